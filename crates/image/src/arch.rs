//! Names of architectures, and rules for which code runs on which device.

use std::fmt;

/// Tegra parts: their code is compatible neither with desktop parts of the same major version nor
/// with each other (CUDA C++ Programming Guide, "Binary Compatibility").
const TEGRA: [u32; 4] = [53, 62, 72, 87];

/// The first major version with family-specific (`f`) targets.
const FAMILY_MAJOR_MIN: u32 = 10;

/// Compatibility of a target, beyond its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Variant {
    /// `sm_90`: forward compatible.
    #[default]
    Base,
    /// `sm_100f`: runs on its family, the later minor versions of the same major version.
    Family,
    /// `sm_90a`: runs on this compute capability alone.
    Specific,
}

/// An architecture like `sm_90a`: ten times the major version plus the minor one, and the variant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Arch {
    pub number: u32,
    pub variant: Variant,
}

impl Arch {
    pub const fn new(number: u32, variant: Variant) -> Self {
        Self { number, variant }
    }

    /// The architecture of a device.
    pub const fn device(major: u32, minor: u32) -> Self {
        Self::new(
            major.saturating_mul(10).saturating_add(minor),
            Variant::Base,
        )
    }

    /// Reads `sm_90a`, `compute_90a` or `90a`.
    pub fn parse(name: &str) -> Option<Self> {
        let digits = name
            .trim_start_matches("sm_")
            .trim_start_matches("compute_");
        let (digits, variant) = if let Some(digits) = digits.strip_suffix('a') {
            (digits, Variant::Specific)
        } else if let Some(digits) = digits.strip_suffix('f') {
            (digits, Variant::Family)
        } else {
            (digits, Variant::Base)
        };
        let is_number =
            (2..=4).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number {
            return None;
        }
        digits.parse().ok().map(|number| Self::new(number, variant))
    }

    pub const fn major(self) -> u32 {
        self.number / 10
    }

    pub const fn minor(self) -> u32 {
        self.number % 10
    }

    /// Returns true if a cubin for this architecture runs on `device`.
    pub fn cubin_runs_on(self, device: Self) -> bool {
        if self.number == device.number {
            return true;
        }
        let tegra = TEGRA.contains(&self.number) || TEGRA.contains(&device.number);
        self.variant != Variant::Specific
            && !tegra
            && self.major() == device.major()
            && self.minor() < device.minor()
    }

    /// Returns true if PTX for this architecture can be compiled for `device`.
    pub fn ptx_runs_on(self, device: Self) -> bool {
        match self.variant {
            Variant::Base => self.number <= device.number,
            Variant::Family => {
                self.major() >= FAMILY_MAJOR_MIN
                    && self.major() == device.major()
                    && self.minor() <= device.minor()
            }
            Variant::Specific => self.number == device.number,
        }
    }

    const fn suffix(self) -> &'static str {
        match self.variant {
            Variant::Base => "",
            Variant::Family => "f",
            Variant::Specific => "a",
        }
    }

    /// The name in the form of PTX targets: `compute_90a`.
    pub fn virtual_name(self) -> String {
        format!("compute_{}{}", self.number, self.suffix())
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sm_{}{}", self.number, self.suffix())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arch(name: &str) -> Arch {
        Arch::parse(name).unwrap()
    }

    #[test]
    fn names_round_trip() {
        for name in ["sm_50", "sm_90a", "sm_100f", "sm_120"] {
            assert_eq!(arch(name).to_string(), name);
        }
        assert_eq!(arch("compute_103f").virtual_name(), "compute_103f");
        for name in [
            "",
            "sm_",
            "sm_9",
            "sm_9x",
            "sm_99999",
            "sm_+80",
            "sm_80b",
            "texmode_unified",
        ] {
            assert_eq!(Arch::parse(name), None, "{name}");
        }
    }

    #[test]
    fn cubins_run_within_their_major_version() {
        for (code, device, runs) in [
            ("sm_80", "sm_80", true),
            ("sm_80", "sm_86", true),
            ("sm_80", "sm_89", true),
            ("sm_86", "sm_80", false),
            ("sm_80", "sm_90", false),
            ("sm_80", "sm_87", false),
            ("sm_87", "sm_89", false),
            ("sm_87", "sm_87", true),
            ("sm_90a", "sm_90", true),
            ("sm_100a", "sm_103", false),
            ("sm_100f", "sm_103", true),
            ("sm_100", "sm_103", true),
            ("sm_100f", "sm_120", false),
        ] {
            assert_eq!(
                arch(code).cubin_runs_on(arch(device)),
                runs,
                "{code} on {device}"
            );
        }
    }

    #[test]
    fn ptx_runs_on_anything_later_unless_it_says_otherwise() {
        for (code, device, runs) in [
            ("sm_50", "sm_90", true),
            ("sm_90", "sm_80", false),
            ("sm_90a", "sm_90", true),
            ("sm_90a", "sm_100", false),
            ("sm_100f", "sm_103", true),
            ("sm_100f", "sm_120", false),
            ("sm_103f", "sm_100", false),
        ] {
            assert_eq!(
                arch(code).ptx_runs_on(arch(device)),
                runs,
                "{code} on {device}"
            );
        }
    }
}
