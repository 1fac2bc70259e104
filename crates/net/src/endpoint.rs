//! Endpoints as programs hold them: memory and queues of one provider.

use std::{collections::HashMap, ffi::c_void, fmt::Debug, ptr::NonNull, sync::Arc};

use parking_lot::Mutex;

use crate::{
    block::{Export, Options},
    error::Error,
    faults::Network,
    keys::Access,
    link::{Link, Meeting},
    mapping::is_mapped,
    meet::Window,
    memory::Mapped,
    nic::Nic,
    provider::Provider,
    queue::Queue,
    way::Way,
};

/// Domain of all memory of a program.
const DOMAIN: u32 = 1;

/// Calls of a program to its endpoint.
pub(crate) trait Endpoint: Debug + Send + Sync {
    fn provider(&self) -> Provider;

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

/// Counts of a queue since its last reset, as far as anybody counts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) succeeded: u64,
    pub(crate) flushed: u64,
    pub(crate) retries: u64,
    /// Index and syndrome of the entry that failed first.
    pub(crate) failure: Option<(u16, u8)>,
}

/// An endpoint of the adapter in software.
#[derive(Debug)]
pub(crate) struct OfAdapter {
    /// Connections to other processes, by the number of their queue. They end before the adapter.
    links: Mutex<HashMap<u32, Link>>,
    nic: Nic,
    queues: Mutex<HashMap<u32, Arc<Queue>>>,
}

impl OfAdapter {
    pub(crate) fn start(network: Network) -> Result<OfAdapter, Error> {
        Ok(OfAdapter {
            links: Mutex::default(),
            nic: Nic::start(network)?,
            queues: Mutex::default(),
        })
    }

    fn queue(&self, qpn: u32) -> Result<Arc<Queue>, Error> {
        self.queues
            .lock()
            .get(&qpn)
            .cloned()
            .ok_or(Error::NoPair(qpn))
    }

    /// Returns the adapter, awake: a program that sets something up is about to post.
    fn awake(&self) -> &Nic {
        self.nic.rouse();
        &self.nic
    }
}

impl Endpoint for OfAdapter {
    fn provider(&self) -> Provider {
        Provider::Nic
    }

    unsafe fn register(&self, at: *mut c_void, bytes: u64, access: Access) -> Result<u32, Error> {
        // SAFETY: the caller keeps the memory mapped.
        let memory = unsafe { mapped(at, bytes, access.writes()) }?;
        self.awake()
            .with(|adapter| adapter.register(DOMAIN, memory, access))
    }

    unsafe fn create(
        &self,
        at: *mut c_void,
        bytes: u64,
        options: Options,
    ) -> Result<Export, Error> {
        // SAFETY: the caller keeps the memory mapped.
        let memory = unsafe { mapped(at, bytes, true) }?;
        let queue = Queue::create(self.awake(), memory, options)?;
        let export = queue.export();
        self.queues.lock().insert(export.qpn, Arc::new(queue));
        Ok(export)
    }

    fn connect(&self, one: u32, other: u32) -> Result<(), Error> {
        let queues = self.queues.lock();
        let find = |qpn| queues.get(&qpn).ok_or(Error::NoPair(qpn));
        Queue::connect(self.awake(), find(one)?, find(other)?)
    }

    fn meet(&self, qpn: u32, meeting: Meeting<'_>, mine: Window) -> Result<Window, Error> {
        let queue = self.queue(qpn)?;
        let (link, window) = Link::meet(&self.nic, &queue, meeting, mine)?;
        // An earlier connection ends here, outside the lock.
        let earlier = self.links.lock().insert(qpn, link);
        drop(earlier);
        self.nic.rouse();
        Ok(window)
    }

    fn way_of(&self, qpn: u32) -> Option<Way> {
        self.links.lock().get(&qpn).map(Link::way)
    }

    fn reset(&self, qpn: u32) -> Result<(), Error> {
        let queues = self.queues.lock();
        let queue = queues.get(&qpn).ok_or(Error::NoPair(qpn))?;
        queue.reset(self.awake())
    }

    unsafe fn reset_counters(&self, qpn: u32, counters: *mut c_void) -> Result<(), Error> {
        let queue = self.queue(qpn)?;
        // SAFETY: the caller lends the counters for this call.
        let counters = unsafe { mapped(counters, queue.counters_bytes() as u64, true) };
        queue.reset_counters(&self.nic, &counters?)
    }

    fn counts(&self, qpn: u32) -> Result<Counts, Error> {
        let status = self.nic.with(|adapter| adapter.status(qpn))?;
        Ok(Counts {
            succeeded: status.succeeded,
            flushed: status.flushed,
            retries: status.retries,
            failure: status.failure,
        })
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
