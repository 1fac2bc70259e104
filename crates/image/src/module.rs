//! The content of a module, for queries after it is loaded, in whichever form it came.

use crate::Arch;

/// The contents of one cubin or PTX text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    pub arch: Arch,
    /// True if it must still be linked with other device code (`nvcc -rdc=true` before the link): a
    /// driver cannot run it.
    pub relocatable: bool,
    pub kernels: Vec<Kernel>,
    pub variables: Vec<Variable>,
}

impl Module {
    pub fn kernel(&self, name: &str) -> Option<&Kernel> {
        self.kernels.iter().find(|kernel| kernel.name == name)
    }

    pub fn variable(&self, name: &str) -> Option<&Variable> {
        self.variables.iter().find(|variable| variable.name == name)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// The mangled name, as `cuModuleGetFunction` takes it.
    pub name: String,
    /// In the order of declaration, with ascending offsets.
    pub params: Vec<Param>,
    pub attributes: Attributes,
}

impl Kernel {
    /// Bytes of the whole parameter buffer, up to the end of the last parameter.
    pub fn param_bytes(&self) -> u32 {
        self.params
            .last()
            .map_or(0, |param| param.offset.saturating_add(param.size))
    }
}

/// Location of a kernel parameter in the parameter buffer, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Param {
    pub offset: u32,
    pub size: u32,
}

/// Attributes of a kernel; `None` if the image does not give them (PTX, for example, has no
/// registers yet).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Attributes {
    /// Registers per thread.
    pub registers: Option<u32>,
    /// Static shared memory per block, without the part that the system reserves.
    pub shared_bytes: Option<u32>,
    /// Shared memory that the system reserves in each block (1 KiB from sm_90 on).
    pub shared_reserved_bytes: Option<u32>,
    /// Local memory per thread.
    pub local_bytes: Option<u32>,
    /// User constants (`__constant__`), which all kernels of a module share.
    pub constant_bytes: Option<u32>,
    /// Bytes of parameters that the code expects. More than [`Kernel::param_bytes`] if a compiler
    /// other than NVIDIA's left out the list.
    pub param_bytes: Option<u32>,
    /// Offset of the parameters in constant bank 0.
    pub param_base: Option<u32>,
    /// `__launch_bounds__` or `.maxntid`.
    pub threads_max: Option<[u32; 3]>,
    /// `.reqntid`: the only block shape the kernel accepts.
    pub threads_required: Option<[u32; 3]>,
    /// `__maxnreg__`, `-maxrregcount` or `.maxnreg`.
    pub registers_max: Option<u32>,
    /// `__cluster_dims__`: the only cluster shape the kernel accepts.
    pub cluster_required: Option<[u32; 3]>,
    /// True if the kernel must be launched with clusters.
    pub cluster_explicit: bool,
    pub cluster_blocks_max: Option<u32>,
    pub barriers: Option<u32>,
}

/// Memory space of a variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Space {
    /// `__device__`
    Global,
    /// `__managed__`
    Managed,
    /// `__constant__`
    Constant,
}

/// A variable that `cuModuleGetGlobal` finds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable {
    pub name: String,
    pub space: Space,
    pub bytes: u64,
}
