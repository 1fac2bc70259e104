//! Every bound this crate holds itself to, whatever an image's headers claim.

/// A fatbin container, an ELF or a PTX text handed over by pointer. The largest containers shipped today (cuBLASLt) stay below 1 GiB.
pub const IMAGE_BYTES_MAX: usize = 4 << 30;

/// One entry of a container, decompressed. Also bounds what a hostile image can make us allocate.
pub const ENTRY_BYTES_MAX: usize = 512 << 20;

/// PTX handed over by pointer: how far its terminating NUL is looked for.
pub const PTX_BYTES_MAX: usize = 256 << 20;

/// Entries in one container: architectures times kinds, in practice below 40.
pub const ENTRIES_MAX: usize = 4096;

/// Containers that a version 2 wrapper lists: one for each object file of a relocatable build.
pub const PRELINKED_MAX: usize = 65_536;

/// One symbol name. Mangled CUTLASS kernels reach tens of kilobytes.
pub const NAME_BYTES_MAX: usize = 1 << 20;

/// Parameters of one kernel. 32,764 bytes of parameters is the architecture's own bound, so this many one-byte ones.
pub const PARAMS_MAX: usize = 32_764;

/// Architectures named in an error before the list is cut short.
pub(crate) const NAMED_ARCHITECTURES_MAX: usize = 16;
