//! Memory of the GPU mapped at an address.

use std::sync::Arc;

use super::{
    owned::{Owned, given_back},
    table::{Driver, Refused, real},
};

/// Physical memory mapped at an address; unmapped when dropped.
pub(super) struct Mapping {
    driver: Arc<Driver>,
    pub(super) va: u64,
    pub(super) len: u64,
    pub(super) allocation: Arc<Owned<real::Allocation>>,
    /// True if `mem_map` made it: then no other mapping uses the same memory.
    pub(super) is_private: bool,
}

impl Mapping {
    /// Maps `allocation` from `offset` on at a range of the session's window.
    pub(super) fn new(
        driver: &Arc<Driver>,
        allocation: &Arc<Owned<real::Allocation>>,
        va: u64,
        len: u64,
        offset: u64,
    ) -> Result<Mapping, Refused> {
        // SAFETY: the range lies in the window; the driver refuses one where something is mapped.
        unsafe { driver.cuMemMap(va, len, offset, allocation.handle(), 0) }?;
        Ok(Mapping {
            driver: driver.clone(),
            va,
            len,
            allocation: allocation.clone(),
            is_private: false,
        })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this object mapped the range with this length, and was dropped only after the
        // GPU's last use.
        given_back(unsafe { self.driver.cuMemUnmap(self.va, self.len) });
    }
}
