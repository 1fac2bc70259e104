//! The contents of an image for a device: found once, then kept beside the image.

use memchr::memmem;
use outboard_api::{
    CUresult,
    enums::{
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK,
    },
};
use outboard_device::{Cx, Failure, images::Hash};
use outboard_image::{Attributes, Choice, Image, Space};
use outboard_wire::doc::{self, KernelCard, LaunchBounds, LibraryCard};

use super::Nvidia;

/// The function that device code calls to print. Only with it must the driver be made to write text
/// out.
const PRINT_SYMBOL: &[u8] = b"vprintf";
const FATBIN_MAGIC: [u8; 4] = 0xBA55_ED50_u32.to_le_bytes();
const ELF_MAGIC: [u8; 4] = *b"\x7fELF";
/// Label of the notes that keep contents; a change of [`Contents`] needs a new one.
const CONTENTS_LABEL: &str = "contents-2";

/// An image's contents, for one device.
pub(super) struct Contents {
    pub(super) card: LibraryCard,
    /// Whether to load at once, so that an error comes now: the driver must compile the image, or
    /// may find nothing to load.
    pub(super) load_now: bool,
    pub(super) may_print: bool,
    /// Names of the `__managed__` variables; `None` if only the driver may know them.
    pub(super) managed: Option<Vec<String>>,
}

/// [`Contents`] as the note beside an image keeps them.
type Note<Card> = (Card, bool, bool, Option<Vec<String>>);

impl Nvidia {
    /// Returns an image's contents, from the note beside it if there is one. Listing the kernels
    /// needs decompression, which takes longer than the driver's loading.
    pub(super) fn contents(
        &self,
        cx: &mut Cx<'_>,
        hash: &Hash,
        image: &[u8],
    ) -> Result<Contents, Failure> {
        let ordinal = self.real_device(self.context(cx.context)?.device as i32)?;
        let number = |attribute| {
            self.driver
                .cuDeviceGetAttribute(attribute, ordinal)
                .map(i32::unsigned_abs)
        };
        let (major, minor) = (
            number(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            number(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        );
        let label = format!("{CONTENTS_LABEL}-sm_{major}{minor}");
        let kept = cx.images.note(hash, &label);
        if let Some(contents) = kept.and_then(|note| doc::from_bytes(&note).ok()) {
            return Ok(Contents::from_note(contents));
        }
        let registers = number(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK)?;
        let found = read_contents(major, minor, registers, image)?;
        if let Some(contents) = &found
            && let Ok(note) = doc::to_bytes(&contents.to_note())
        {
            cx.images.keep_note(hash, &label, &note);
        }
        Ok(found.unwrap_or_else(Contents::unknown))
    }
}

impl Contents {
    fn unknown() -> Contents {
        Contents {
            card: LibraryCard::default(),
            load_now: true,
            may_print: true,
            managed: None,
        }
    }

    fn from_note((card, load_now, may_print, managed): Note<LibraryCard>) -> Contents {
        Contents {
            card,
            load_now,
            may_print,
            managed,
        }
    }

    fn to_note(&self) -> Note<&LibraryCard> {
        let managed = self.managed.clone();
        (&self.card, self.load_now, self.may_print, managed)
    }
}

/// Lists an image's contents; `None` if only the driver may understand the image.
fn read_contents(
    major: u32,
    minor: u32,
    block_registers: u32,
    image: &[u8],
) -> Result<Option<Contents>, Failure> {
    let parsed = match Image::parse(image) {
        Ok(parsed) => parsed,
        // The driver would read past the end of a container whose size is wrong.
        Err(error) if framed(image) => {
            return Err(Failure::new(
                CUresult::CUDA_ERROR_INVALID_IMAGE,
                error.to_string(),
            ));
        }
        Err(error) => {
            tracing::debug!(%error, "an image that only the driver may understand");
            return Ok(None);
        }
    };
    let choice = match parsed.select(major, minor) {
        Ok(choice) => choice,
        Err(error) => {
            tracing::debug!(%error, "an image for another device, says its header");
            return Ok(None);
        }
    };
    let read = choice.entry().bytes().and_then(|bytes| {
        let may_print = memmem::find(&bytes, PRINT_SYMBOL).is_some();
        let plain = Image::parse(&bytes)?;
        let (kernels, variables) = match plain.entries().first() {
            Some(entry) => entry.module().map(|m| (m.kernels, m.variables))?,
            None => Default::default(),
        };
        Ok((kernels, variables, may_print))
    });
    let (kernels, variables, may_print) = match read {
        Ok(read) => read,
        Err(error) => {
            tracing::debug!(%error, "an image whose kernels only the driver can list");
            return Ok(None);
        }
    };
    let managed = variables
        .into_iter()
        .filter(|variable| variable.space == Space::Managed)
        .map(|variable| variable.name)
        .collect();
    let kernels = kernels
        .into_iter()
        .map(|kernel| KernelCard {
            params: kernel.params.iter().map(|p| (p.offset, p.size)).collect(),
            bounds: bounds(&kernel.attributes, block_registers),
            name: kernel.name,
        })
        .collect();
    Ok(Some(Contents {
        card: LibraryCard { kernels },
        load_now: matches!(choice, Choice::Ptx(_)),
        may_print,
        managed: Some(managed),
    }))
}

/// Returns the launch limits that the driver is sure to grant. Registers are allocated to warps in
/// units of 256, four warps at once (CUDA C++ Programming Guide, "Hardware Implementation"; the
/// occupancy calculator has the units).
fn bounds(attributes: &Attributes, block_registers: u32) -> LaunchBounds {
    const WARP_THREADS: u32 = 32;
    const WARP_REGISTERS_UNIT: u32 = 256;
    const WARPS_UNIT: u32 = 4;
    const THREADS_MAX: u32 = 1024;
    const SHARED_BYTES: u32 = 48 << 10;
    let threads = match attributes.registers {
        // A required block size fixes the extents, not the number of threads.
        Some(registers) if registers > 0 && attributes.threads_required.is_none() => {
            let warp = registers
                .saturating_mul(WARP_THREADS)
                .checked_next_multiple_of(WARP_REGISTERS_UNIT)
                .unwrap_or(u32::MAX);
            let warps = block_registers / warp / WARPS_UNIT * WARPS_UNIT;
            let declared = attributes.threads_max.map_or(THREADS_MAX, |dims| {
                dims.iter().copied().fold(1, u32::saturating_mul)
            });
            (warps * WARP_THREADS).min(declared).min(THREADS_MAX)
        }
        _ => 0,
    };
    let used = attributes
        .shared_bytes
        .map(|own| own.saturating_add(attributes.shared_reserved_bytes.unwrap_or_default()));
    LaunchBounds {
        threads,
        dynamic_shared_bytes: used.map_or(0, |used| SHARED_BYTES.saturating_sub(used)),
    }
}

/// Whether an image contains its own length. Other images are text, which ends with a NUL.
pub(super) fn framed(image: &[u8]) -> bool {
    image.starts_with(&FATBIN_MAGIC) || image.starts_with(&ELF_MAGIC)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_what_the_occupancy_calculator_says_or_less() {
        let of = |registers, threads_max, shared_bytes| {
            let attributes = Attributes {
                registers,
                threads_max,
                shared_bytes,
                shared_reserved_bytes: Some(1024),
                ..Attributes::default()
            };
            let bounds = bounds(&attributes, 65_536);
            (bounds.threads, bounds.dynamic_shared_bytes)
        };
        assert_eq!(of(Some(64), None, Some(0)), (1024, 47 << 10));
        assert_eq!(of(Some(65), None, Some(0)).0, 896);
        assert_eq!(of(Some(128), None, Some(0)).0, 512);
        assert_eq!(of(Some(168), None, Some(0)).0, 384);
        assert_eq!(of(Some(255), None, Some(0)).0, 256);
        assert_eq!(of(Some(32), Some([16, 8, 1]), Some(0)).0, 128);
        assert_eq!(of(Some(32), None, Some(64 << 10)).1, 0);
        assert_eq!(of(None, None, None), (0, 0));
        assert_eq!(of(Some(u32::MAX), None, Some(u32::MAX)), (0, 0));
        let required = Attributes {
            registers: Some(32),
            threads_required: Some([32, 1, 1]),
            ..Attributes::default()
        };
        assert_eq!(bounds(&required, 65_536).threads, 0);
    }

    #[test]
    fn text_is_not_framed() {
        assert!(!framed(b".version 8.0"));
        assert!(framed(b"\x7fELF\x02"));
        assert!(framed(&[0x50, 0xED, 0x55, 0xBA, 1]));
    }
}
