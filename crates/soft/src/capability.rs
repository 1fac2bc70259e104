//! Compute capabilities that the software GPU can report, and their limits.

use std::{fmt, str::FromStr};

use outboard_image::Image;

/// A known compute capability, with its limits (CUDA C++ Programming Guide, "Technical
/// Specifications per Compute Capability").
#[derive(Clone, Copy)]
pub struct Capability {
    facts: &'static Facts,
}

pub(super) struct Facts {
    pub(super) major: u32,
    pub(super) minor: u32,
    pub(super) sm_threads: u32,
    pub(super) sm_blocks: u32,
    pub(super) sm_shared_bytes: u32,
    /// Shared memory of a block that has opted in to more than 48 KiB.
    pub(super) shared_optin_bytes: u32,
    /// Shared memory that the system takes from each block.
    pub(super) shared_reserved_bytes: u32,
    /// `NVML_DEVICE_ARCH_...`
    pub(super) nvml_architecture: u32,
}

const KIB: u32 = 1 << 10;

/// Ordered by number.
const KNOWN: &[Facts] = &[
    facts((7, 5), 1024, 16, 64, 64, 6),
    facts((8, 0), 2048, 32, 164, 163, 7),
    facts((8, 6), 1536, 16, 100, 99, 7),
    facts((8, 9), 1536, 24, 100, 99, 8),
    facts((9, 0), 2048, 32, 228, 227, 9),
    facts((10, 0), 2048, 32, 228, 227, 10),
    facts((12, 0), 1536, 24, 100, 99, 10),
];

const fn facts(
    (major, minor): (u32, u32),
    sm_threads: u32,
    sm_blocks: u32,
    sm_shared_kib: u32,
    shared_optin_kib: u32,
    nvml_architecture: u32,
) -> Facts {
    Facts {
        major,
        minor,
        sm_threads,
        sm_blocks,
        sm_shared_bytes: sm_shared_kib * KIB,
        shared_optin_bytes: shared_optin_kib * KIB,
        shared_reserved_bytes: (sm_shared_kib - shared_optin_kib) * KIB,
        nvml_architecture,
    }
}

impl Capability {
    pub(super) fn facts(self) -> &'static Facts {
        self.facts
    }

    /// Returns the next higher capability that has PTX in an image.
    pub(super) fn taking(self, image: &Image<'_>) -> Option<Capability> {
        let number = |facts: &Facts| (facts.major, facts.minor);
        let higher = KNOWN
            .iter()
            .filter(|facts| number(facts) > number(self.facts));
        let mut taking = higher.filter(|f| image.select_ptx(f.major, f.minor).is_ok());
        taking.next().map(|facts| Capability { facts })
    }
}

impl PartialEq for Capability {
    fn eq(&self, other: &Capability) -> bool {
        (self.facts.major, self.facts.minor) == (other.facts.major, other.facts.minor)
    }
}

impl Eq for Capability {}

/// 8.0, the capability of which every instruction is executed.
impl Default for Capability {
    fn default() -> Capability {
        Capability { facts: &KNOWN[1] }
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.facts.major, self.facts.minor)
    }
}

impl fmt::Debug for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Capability({self})")
    }
}

impl FromStr for Capability {
    type Err = String;

    fn from_str(text: &str) -> Result<Capability, String> {
        let known = || KNOWN.iter().map(|facts| Capability { facts });
        known().find(|one| one.to_string() == text).ok_or_else(|| {
            let names: Vec<String> = known().map(|one| one.to_string()).collect();
            format!("known are {}", names.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_ones_are_read_as_they_are_written() {
        for facts in KNOWN {
            let text = format!("{}.{}", facts.major, facts.minor);
            let read: Capability = text.parse().unwrap();
            assert_eq!(read.to_string(), text);
        }
        assert_eq!(Capability::default().to_string(), "8.0");
        for bad in [
            "", "8", "80", "sm_80", "8.00", "8.1", "13.0", "-8.0", " 8.0",
        ] {
            let error = bad.parse::<Capability>().unwrap_err();
            assert_eq!(
                error, "known are 7.5, 8.0, 8.6, 8.9, 9.0, 10.0, 12.0",
                "{bad:?}"
            );
        }
    }
}
