//! Memory registered in a protection domain, which the adapter reads and writes by its keys.

use std::{
    ops::{Deref, Range},
    os::fd::{AsRawFd, OwnedFd},
    ptr::NonNull,
    sync::Arc,
};

use rustix::process::{Resource, getrlimit};

use crate::{
    DeviceMemory, Error, Lasting, Reach,
    abi::{
        IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_READ,
        IBV_ACCESS_REMOTE_WRITE, ibv_mr,
    },
    domain::Domain,
    memory::Memory,
};

/// Access of devices to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// None of the peer's: only our own device reads it.
    Local,
    Write,
    WriteAndRead,
    /// Each by itself. What a peer's device writes, ours writes too.
    Some {
        local_write: bool,
        write: bool,
        read: bool,
        atomic: bool,
    },
}

impl Access {
    fn flags(self) -> i32 {
        match self {
            Access::Local => IBV_ACCESS_LOCAL_WRITE,
            Access::Write => IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
            Access::WriteAndRead => {
                IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ
            }
            Access::Some {
                local_write,
                write,
                read,
                atomic,
            } => [
                (local_write || write || atomic, IBV_ACCESS_LOCAL_WRITE),
                (write, IBV_ACCESS_REMOTE_WRITE),
                (read, IBV_ACCESS_REMOTE_READ),
                (atomic, IBV_ACCESS_REMOTE_ATOMIC),
            ]
            .into_iter()
            .filter_map(|(is_it, flag)| is_it.then_some(flag))
            .sum(),
        }
    }
}

/// A registered range of addresses. The adapter accesses it; this process cannot read or write a
/// byte through it.
pub struct Region {
    raw: NonNull<ibv_mr>,
    address: u64,
    len: usize,
    lkey: u32,
    rkey: u32,
    domain: Arc<Domain>,
}

// SAFETY: libibverbs's objects may be used from any thread, by its documentation.
unsafe impl Send for Region {}
// SAFETY: several threads may use libibverbs's objects at once, by its documentation.
unsafe impl Sync for Region {}

impl Region {
    /// Registers memory of another owner.
    pub fn of_lasting(
        domain: &Arc<Domain>,
        memory: Lasting,
        access: Access,
    ) -> Result<Self, Error> {
        // SAFETY: the maker of a `Lasting` promised what `register` asks for.
        unsafe { Self::register(domain, memory.address, memory.len, access) }
    }

    /// Registers GPU memory, which the peer's adapter may write.
    pub fn of_device(domain: &Arc<Domain>, memory: &DeviceMemory) -> Result<Self, Error> {
        Self::of_device_for(domain, memory, Access::Write)
    }

    /// Registers GPU memory.
    pub fn of_device_for(
        domain: &Arc<Domain>,
        memory: &DeviceMemory,
        access: Access,
    ) -> Result<Self, Error> {
        let &DeviceMemory { address, len, .. } = memory;
        match &memory.reach {
            // SAFETY: the maker of a `DeviceMemory` promised what `register` asks for.
            Reach::Address => unsafe { Self::register(domain, address, len, access) },
            Reach::DmaBuf(fd) => Self::of_dmabuf(domain, (address, len), fd, access),
        }
    }

    /// Registers a range by its addresses.
    ///
    /// # Safety
    ///
    /// Until the region is dropped, the range must stay mapped to the same memory. If `access` lets
    /// the peer write, nothing may rely on the contents.
    unsafe fn register(
        domain: &Arc<Domain>,
        address: u64,
        len: usize,
        access: Access,
    ) -> Result<Self, Error> {
        domain.context.check()?;
        let start = std::ptr::with_exposed_provenance_mut(address as usize);
        // SAFETY: the domain is open. The library pins the pages of the range, or refuses a range
        // that is not mapped; the caller promises that the pages stay.
        let raw =
            unsafe { (domain.context.verbs.ibv_reg_mr)(domain.raw, start, len, access.flags()) };
        let raw = NonNull::new(raw).ok_or_else(|| refused(len))?;
        Ok(Self::made(domain, (address, len), raw))
    }

    /// Registers device memory by its dma-buf. Requests name it by `range`'s addresses.
    fn of_dmabuf(
        domain: &Arc<Domain>,
        (address, len): (u64, usize),
        dmabuf: &OwnedFd,
        access: Access,
    ) -> Result<Self, Error> {
        domain.context.check()?;
        let Some(register) = domain.context.verbs.ibv_reg_dmabuf_mr else {
            return Err(Error::OldLibrary {
                symbol: "ibv_reg_dmabuf_mr",
            });
        };
        // SAFETY: the domain is open. The registration holds the dma-buf itself, and the call fails
        // if the descriptor is no dma-buf or a shorter one; `address` is only a name.
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
        let raw =
            NonNull::new(raw).ok_or_else(|| Error::last("registering a GPU's dma-buf for RDMA"))?;
        Ok(Self::made(domain, (address, len), raw))
    }

    fn made(domain: &Arc<Domain>, (address, len): (u64, usize), raw: NonNull<ibv_mr>) -> Self {
        // SAFETY: the library returned it just now and does not change it until it is given back.
        let mr = unsafe { raw.as_ref() };
        let (lkey, rkey) = (mr.lkey, mr.rkey);
        Self {
            raw,
            address,
            len,
            lkey,
            rkey,
            domain: Arc::clone(domain),
        }
    }

    /// Returns the key by which requests of this side name the region.
    #[inline]
    pub fn lkey(&self) -> u32 {
        self.lkey
    }

    /// Returns the key by which the peer's requests name the region.
    #[inline]
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    pub fn address(&self) -> u64 {
        self.address
    }

    pub fn addresses(&self) -> Range<u64> {
        self.address..self.address + self.len as u64
    }

    /// Returns the length, which is never 0: no device registers nothing.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }
}

/// Registered memory of this process's own, which the process accesses too.
pub struct OwnRegion {
    // Dropped, and so deregistered, before the memory is unmapped.
    region: Region,
    memory: Arc<Memory>,
}

impl OwnRegion {
    /// Registers `memory`.
    pub fn new(domain: &Arc<Domain>, memory: Memory, access: Access) -> Result<Self, Error> {
        let memory = Arc::new(memory);
        // SAFETY: the memory is mapped for as long as this value holds it, longer than the region.
        // `Memory` gives out no bytes that it assumes not to change.
        let region = unsafe { Region::register(domain, memory.address(), memory.len(), access) }?;
        Ok(Self { region, memory })
    }

    #[inline]
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }
}

impl Deref for OwnRegion {
    type Target = Region;

    #[inline]
    fn deref(&self) -> &Region {
        &self.region
    }
}

/// Bytes of a region in the device's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub address: u64,
    pub len: u32,
    pub lkey: u32,
}

impl Region {
    /// Returns `len` bytes from `offset` on.
    ///
    /// # Panics
    ///
    /// If they are not all in the region.
    #[inline]
    pub fn piece(&self, offset: usize, len: usize) -> Piece {
        assert!(offset <= self.len && self.len - offset >= len && len <= u32::MAX as usize);
        Piece {
            address: self.address + offset as u64,
            len: len as u32,
            lkey: self.lkey,
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let context = &self.domain.context;
        if context.is_ours() {
            // SAFETY: `register` or `of_dmabuf` made it, and this is its only end. The domain is
            // there, since this value holds it. Requests that name its keys may still be posted,
            // which the device refuses from then on.
            let _ = unsafe { (context.verbs.ibv_dereg_mr)(self.raw.as_ptr()) };
        }
    }
}

/// Finds the reason why memory was not registered: the limit on locked memory gives ENOMEM, as does
/// a lack of memory.
fn refused(len: usize) -> Error {
    let error = Error::last("registering memory for RDMA");
    let is_limit = matches!(
        error,
        Error::System {
            errno: libc::ENOMEM | libc::EAGAIN | libc::EPERM,
            ..
        }
    );
    match getrlimit(Resource::Memlock).current {
        Some(limit) if is_limit => Error::MemoryLock {
            needed: len as u64,
            limit,
        },
        _ => error,
    }
}
