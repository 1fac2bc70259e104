//! A protection domain. A key of memory registered in one domain is invalid in all others, which
//! isolates the sessions of one device.

use std::sync::Arc;

use crate::{Error, abi::ibv_pd, device::Context};

/// A protection domain of a device.
pub struct Domain {
    pub(crate) raw: *mut ibv_pd,
    pub(crate) context: Arc<Context>,
}

// SAFETY: libibverbs's objects may be used from any thread, by its documentation.
unsafe impl Send for Domain {}
// SAFETY: several threads may use libibverbs's objects at once, by its documentation.
unsafe impl Sync for Domain {}

impl Domain {
    /// Makes a domain of an opened device.
    pub fn new(context: &Arc<Context>) -> Result<Arc<Self>, Error> {
        // SAFETY: the context is open.
        let raw = unsafe { (context.verbs.ibv_alloc_pd)(context.raw) };
        match raw.is_null() {
            true => Err(Error::last("making an RDMA protection domain")),
            false => Ok(Arc::new(Self {
                raw,
                context: Arc::clone(context),
            })),
        }
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        if self.context.is_ours() {
            // SAFETY: made by `new`; everything made with it holds it by an Arc.
            let _ = unsafe { (self.context.verbs.ibv_dealloc_pd)(self.raw) };
        }
    }
}
