use crate::{Arch, limits};

/// A fault in an image: its kind, its offset, and what was expected there.
///
/// Offsets count bytes from the start of the container, ELF or text being read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("the image pointer is NULL")]
    Null,

    #[error(
        "not a CUDA module image: it starts with {}, expected a fatbin wrapper, a fatbin container, an ELF cubin or PTX text",
        hex(found)
    )]
    NotAnImage { found: Vec<u8> },

    #[error(
        "a fatbin wrapper holds pointers and can only be read where the program lies, not from bytes"
    )]
    WrapperWithoutMemory,

    #[error(
        "{what} is cut short: at offset {offset} it needs {needed} bytes, {available} are there"
    )]
    Truncated {
        what: &'static str,
        offset: usize,
        needed: u64,
        available: u64,
    },

    #[error("{what} at offset {offset} is {found:#x}, expected {expected}")]
    Malformed {
        what: &'static str,
        offset: usize,
        expected: &'static str,
        found: u64,
    },

    #[error("{what} at offset {offset} is {found}, more than the limit of {max}")]
    TooLarge {
        what: &'static str,
        offset: usize,
        found: u64,
        max: u64,
    },

    #[error("the {method} data at offset {offset} does not decompress: {reason}")]
    Decompress {
        offset: usize,
        method: &'static str,
        reason: String,
    },

    #[error("the cubin is not a readable ELF file: {0}")]
    Elf(String),

    #[error("the object file or static library cannot be read: {0}")]
    Library(String),

    #[error("PTX line {line}: expected {expected}, found {found:?}")]
    Ptx {
        line: u32,
        expected: &'static str,
        found: String,
    },

    #[error("the PTX text is not UTF-8 from byte {offset} on")]
    PtxEncoding { offset: usize },

    #[error("an entry of kind {kind} does not list kernels, only PTX and ELF do")]
    NoKernelList { kind: u16 },

    #[error("{}", no_binary(*device, *ptx_only, found))]
    NoBinary {
        device: Arch,
        /// True if the device takes only PTX, so that cubins were not considered.
        ptx_only: bool,
        /// Everything in the image, as `cubin sm_90a`, `PTX compute_80`.
        found: Vec<String>,
    },
}

fn no_binary(device: Arch, ptx_only: bool, found: &[String]) -> String {
    let wanted = if ptx_only { "PTX" } else { "code" };
    let shown = found.len().min(limits::NAMED_ARCHITECTURES_MAX);
    let mut list = found.get(..shown).unwrap_or_default().join(", ");
    if found.len() > shown {
        list.push_str(&format!(" and {} more", found.len() - shown));
    }
    if list.is_empty() {
        list.push_str("nothing");
    }
    format!(
        "the image has no {wanted} for a device of compute capability {}.{}; it contains {list}",
        device.major(),
        device.minor()
    )
}

fn hex(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return "nothing".to_owned();
    }
    bytes
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect::<Vec<_>>()
        .join(" ")
}
