//! Kernels of a program, as launches see them.

/// A kernel of the program.
#[derive(Debug, Clone)]
pub struct Kernel {
    pub name: String,
    /// Index in [`Program::functions`](super::Program::functions).
    pub function: u32,
    pub params: Vec<KernelParam>,
    pub param_bytes: u32,
    /// `.maxntid` or `.reqntid`.
    pub max_threads: Option<[u32; 3]>,
    pub required_threads: Option<[u32; 3]>,
    /// Static shared memory of the kernel and the functions that it may call, in bytes.
    pub shared_bytes: u32,
    /// End of that memory in a block; variables of other kernels may lie in between.
    pub shared_end: u32,
    /// Start of dynamic shared memory: `shared_end`, aligned.
    pub dynamic_shared_offset: u32,
    /// Local memory of a thread along the deepest chain of calls, in bytes; a recursion counts
    /// once.
    pub local_bytes: u32,
    /// Estimate of a compiler's register count, because PTX registers are virtual. It is low enough
    /// for the largest block that the kernel allows, and for as many blocks as it asks for.
    pub registers: u32,
    /// Directives bound the register count, so that a linker's limit does not count.
    pub bounds_registers: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelParam {
    pub offset: u32,
    pub bytes: u32,
    pub align: u32,
}
