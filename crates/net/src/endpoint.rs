//! Endpoints as programs hold them: memory and queues of one provider.

use std::{ffi::c_void, fmt::Debug, ptr::NonNull};

pub use crate::counts::Counts;
use crate::{
    block::{Export, Options},
    error::Error,
    faults::Network,
    keys::Access,
    mapping::is_mapped,
    meet::{Meeting, Window},
    memory::Mapped,
    own::Own,
    provider::Provider,
    way::Way,
};

/// Calls of a program to its endpoint.
pub trait Endpoint: Debug + Send + Sync {
    fn provider(&self) -> Provider;

    /// Chooses where it is, if that is open yet.
    fn settle(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Returns true if it is where the GPU is, rather than in this process.
    fn is_remote(&self) -> bool {
        false
    }

    /// Registers memory. Returns its key.
    ///
    /// # Safety
    ///
    /// Memory that is mapped there now stays mapped until the endpoint is dropped.
    unsafe fn register(&self, at: *mut c_void, bytes: u64, access: Access) -> Result<u32, Error>;

    /// Makes a queue in memory.
    ///
    /// # Safety
    ///
    /// As for [`Endpoint::register`].
    unsafe fn create(&self, at: *mut c_void, bytes: u64, options: Options)
    -> Result<Export, Error>;

    fn connect(&self, one: u32, other: u32) -> Result<(), Error>;

    /// Connects a queue to one of another process. Returns what that offers.
    fn meet(&self, qpn: u32, meeting: Meeting<'_>, mine: Window) -> Result<Window, Error>;

    /// Returns how entries of a queue reach the other process, if it has met one by an adapter.
    fn way_of(&self, _qpn: u32) -> Option<Way> {
        None
    }

    fn reset(&self, qpn: u32) -> Result<(), Error>;

    /// Puts a queue back of whose counters this is a copy.
    ///
    /// # Safety
    ///
    /// As for [`Endpoint::register`], until it returns.
    unsafe fn reset_counters(&self, qpn: u32, counters: *mut c_void) -> Result<(), Error>;

    fn counts(&self, qpn: u32) -> Result<Counts, Error>;
}

/// An endpoint of the adapter in software, in memory that the program lends.
#[derive(Debug)]
pub(crate) struct OfAdapter(Own);

impl OfAdapter {
    pub(crate) fn start(network: Network) -> Result<OfAdapter, Error> {
        Own::start(network).map(OfAdapter)
    }
}

impl Endpoint for OfAdapter {
    fn provider(&self) -> Provider {
        Provider::Nic
    }

    unsafe fn register(&self, at: *mut c_void, bytes: u64, access: Access) -> Result<u32, Error> {
        // SAFETY: the caller keeps the memory mapped.
        let memory = unsafe { mapped(at, bytes, access.writes()) }?;
        self.0.register(memory, access)
    }

    unsafe fn create(
        &self,
        at: *mut c_void,
        bytes: u64,
        options: Options,
    ) -> Result<Export, Error> {
        // SAFETY: the caller keeps the memory mapped.
        let memory = unsafe { mapped(at, bytes, true) }?;
        self.0.create(memory, options)
    }

    fn connect(&self, one: u32, other: u32) -> Result<(), Error> {
        self.0.connect(one, other)
    }

    fn meet(&self, qpn: u32, meeting: Meeting<'_>, mine: Window) -> Result<Window, Error> {
        self.0.meet(qpn, meeting, mine)
    }

    fn way_of(&self, qpn: u32) -> Option<Way> {
        self.0.way_of(qpn)
    }

    fn reset(&self, qpn: u32) -> Result<(), Error> {
        self.0.reset(qpn)
    }

    unsafe fn reset_counters(&self, qpn: u32, counters: *mut c_void) -> Result<(), Error> {
        let bytes = self.0.queue(qpn)?.counters_bytes() as u64;
        // SAFETY: the caller lends the counters for this call.
        let counters = unsafe { mapped(counters, bytes, true) }?;
        self.0.reset_counters(qpn, &counters)
    }

    fn counts(&self, qpn: u32) -> Result<Counts, Error> {
        self.0.counts(qpn)
    }
}

/// Takes memory of the program's that is there now.
///
/// # Safety
///
/// The memory stays mapped until the last clone of what is returned is dropped.
pub(crate) unsafe fn mapped(
    at: *mut c_void,
    bytes: u64,
    is_written: bool,
) -> Result<Mapped, Error> {
    let at = NonNull::new(at.cast::<u8>()).ok_or(Error::Null("memory"))?;
    let address = at.as_ptr() as u64;
    if bytes > isize::MAX as u64 || address.checked_add(bytes).is_none() {
        return Err(Error::Wraps { address, bytes });
    }
    if !is_mapped(address as usize, bytes as usize, is_written) {
        return Err(Error::NotMapped {
            address,
            bytes,
            is_written,
        });
    }
    // SAFETY: mapped for as long as it is used, by the duty above.
    Ok(unsafe { Mapped::new(at, bytes as usize, address) })
}
