//! Bounds that this crate keeps, whatever an image's headers claim.

/// Longest fatbin container, ELF or PTX text that is passed by pointer. The largest containers
/// shipped today (cuBLASLt) stay below 1 GiB.
pub const IMAGE_BYTES_MAX: usize = 4 << 30;

/// Longest entry of a container after decompression. It also bounds the memory that a hostile image
/// can make us allocate.
pub const ENTRY_BYTES_MAX: usize = 512 << 20;

/// Longest PTX that is passed by pointer: the terminating NUL is looked for up to here.
pub const PTX_BYTES_MAX: usize = 256 << 20;

/// Entries in one container, at most: architectures times kinds, in practice below 40.
pub const ENTRIES_MAX: usize = 4096;

/// Containers that a version 2 wrapper lists, at most: one for each object file of a relocatable
/// build.
pub const PRELINKED_MAX: usize = 65_536;

/// Longest symbol name. Mangled CUTLASS kernels reach tens of kilobytes.
pub const NAME_BYTES_MAX: usize = 1 << 20;

/// Parameters of one kernel, at most: as many parameters of one byte as fit into the architecture's
/// own bound of 32,764 bytes.
pub const PARAMS_MAX: usize = 32_764;

/// Architectures that an error names, at most.
pub(crate) const NAMED_ARCHITECTURES_MAX: usize = 16;
