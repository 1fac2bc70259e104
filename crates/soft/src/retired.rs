//! Arrays, textures and surfaces that were destroyed while a kernel ran, which may still use them.

use outboard_ptx::array::Array;

use super::{Soft, memory::Charge};

/// Memory of texels, and its charge against the device's size.
pub(super) struct TexelMemory {
    _memory: Array,
    pub(super) charge: Charge,
}

impl TexelMemory {
    pub(super) fn new(memory: Array, charge: Charge) -> Self {
        Self {
            _memory: memory,
            charge,
        }
    }
}

/// An object that was destroyed while a kernel ran.
pub(super) enum Retired {
    Texels(TexelMemory),
    /// The number of a texture or surface.
    Number(u64),
}

impl Soft {
    /// Frees destroyed objects, once nothing runs.
    pub(super) fn reap(&mut self) {
        if self.retired.is_empty() || !self.gpu.is_idle() {
            return;
        }
        for retired in std::mem::take(&mut self.retired) {
            match retired {
                Retired::Texels(owned) => self.refund(owned.charge),
                Retired::Number(number) => self.gpu.memory().unbind(number),
            }
        }
    }
}
