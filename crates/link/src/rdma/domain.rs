//! A session's protection domain, and the memory registered in it. A key of one domain is invalid
//! in all others, which isolates the sessions of one device.

use std::{
    os::fd::{AsRawFd, OwnedFd},
    ptr::NonNull,
    sync::Arc,
};

use rustix::process::{Resource, getrlimit};

use super::{abi::*, device::Context, error::RdmaError, memory::Memory};

pub(super) struct Domain {
    pub(super) raw: *mut ibv_pd,
    pub(super) context: Arc<Context>,
}

// SAFETY: libibverbs's objects may be used from any thread, by its documentation.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    pub(super) fn new(context: &Arc<Context>) -> Result<Arc<Self>, RdmaError> {
        // SAFETY: the context is open.
        let raw = unsafe { (context.verbs.ibv_alloc_pd)(context.raw) };
        match raw.is_null() {
            true => Err(RdmaError::last("making an RDMA protection domain")),
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

/// Access of a peer's device to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// None: only our own device reads it.
    Local,
    Write,
    WriteAndRead,
}

impl Access {
    fn flags(self) -> i32 {
        match self {
            Access::Local => IBV_ACCESS_LOCAL_WRITE,
            Access::Write => IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
            Access::WriteAndRead => {
                IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ
            }
        }
    }
}

/// Registered memory.
pub(super) struct Region {
    raw: NonNull<ibv_mr>,
    pub(super) memory: Arc<Memory>,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
    domain: Arc<Domain>,
}

// SAFETY: libibverbs's objects may be used from any thread, by its documentation.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    pub(super) fn new(
        domain: &Arc<Domain>,
        memory: Arc<Memory>,
        access: Access,
    ) -> Result<Self, RdmaError> {
        let (address, len) = (memory.address() as *mut _, memory.len());
        // SAFETY: the memory is there for as long as the region holds it, longer than the
        // registration.
        let raw =
            unsafe { (domain.context.verbs.ibv_reg_mr)(domain.raw, address, len, access.flags()) };
        let raw = NonNull::new(raw).ok_or_else(|| refused(len))?;
        Ok(Self::made(domain, memory, raw))
    }

    /// Registers device memory by its dma-buf; requests name it by the addresses of `memory`.
    pub(super) fn of_dmabuf(
        domain: &Arc<Domain>,
        memory: Arc<Memory>,
        dmabuf: &OwnedFd,
        access: Access,
    ) -> Result<Self, RdmaError> {
        let Some(register) = domain.context.verbs.ibv_reg_dmabuf_mr else {
            return Err(RdmaError::OldLibrary {
                symbol: "ibv_reg_dmabuf_mr",
            });
        };
        let (address, len) = (memory.address(), memory.len());
        // SAFETY: the registration holds the dma-buf itself; the call fails where it is none, or
        // shorter.
        let raw = unsafe {
            register(
                domain.raw,
                0,
                len,
                address,
                dmabuf.as_raw_fd(),
                access.flags(),
            )
        };
        let raw = NonNull::new(raw)
            .ok_or_else(|| RdmaError::last("registering a GPU's dma-buf for RDMA"))?;
        Ok(Self::made(domain, memory, raw))
    }

    fn made(domain: &Arc<Domain>, memory: Arc<Memory>, raw: NonNull<ibv_mr>) -> Self {
        // SAFETY: made just now; the library does not change it.
        let mr = unsafe { raw.as_ref() };
        let (lkey, rkey) = (mr.lkey, mr.rkey);
        Self {
            raw,
            memory,
            lkey,
            rkey,
            domain: Arc::clone(domain),
        }
    }
}

/// Bytes of a region in the device's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) address: u64,
    pub(super) len: u32,
    pub(super) lkey: u32,
}

impl Region {
    #[inline]
    pub(super) fn piece(&self, offset: usize, len: usize) -> Piece {
        let whole = self.memory.len();
        assert!(offset <= whole && whole - offset >= len && len <= u32::MAX as usize);
        Piece {
            address: self.memory.address() + offset as u64,
            len: len as u32,
            lkey: self.lkey,
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let context = &self.domain.context;
        if context.is_ours() {
            // SAFETY: made by `new`; queues that use it hold it, and are gone.
            let _ = unsafe { (context.verbs.ibv_dereg_mr)(self.raw.as_ptr()) };
        }
    }
}

/// Finds the reason why memory was not registered: the limit on locked memory gives ENOMEM, as does
/// a lack of memory.
fn refused(len: usize) -> RdmaError {
    let error = RdmaError::last("registering memory for RDMA");
    let is_limit = matches!(
        error,
        RdmaError::Verbs {
            errno: libc::ENOMEM | libc::EAGAIN | libc::EPERM,
            ..
        }
    );
    match getrlimit(Resource::Memlock).current {
        Some(limit) if is_limit => RdmaError::MemoryLock {
            needed: len as u64,
            limit,
        },
        _ => error,
    }
}
