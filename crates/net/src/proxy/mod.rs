//! The provider `proxy`: a thread of the CPU reads what kernels and threads post to queues of
//! `nic`'s shape, and posts it to an RDMA device by verbs. It needs no doorbells that GPUs reach.
//!
//! ```text
//!  ring, record, doorbell ─► thread: parses, checks keys and ranges ─► ibv_post_send
//!  completions, as an adapter writes them ◄── thread ◄──────────────── ibv_poll_cq
//! ```
//!
//! It is in the program's process, or in that of a session ([`remote`](crate::remote)).

mod queue;
mod served;

use std::ffi::c_void;

use outboard_verbs::Options as DeviceOptions;

use crate::{
    block::{Export, Options},
    device::Device,
    endpoint::{Counts, Endpoint, mapped},
    error::Error,
    keys::Access,
    looker::Looker,
    meet::{Meeting, Window},
    memory::Mapped,
    provider::Provider,
    reach,
};

use queue::Queue;

const THREAD: &str = "outboard-proxy";

/// An endpoint whose thread posts to an RDMA device.
#[derive(Debug)]
pub(crate) struct Proxy(Looker<Queue>);

impl Proxy {
    pub(crate) fn open() -> Result<Proxy, Error> {
        let (device, ()) = Device::open(|_| Ok(()))?;
        Looker::over(device, THREAD).map(Proxy)
    }

    /// Opens an endpoint of the device that the options name.
    pub(crate) fn open_of(options: &DeviceOptions) -> Result<Proxy, Error> {
        let (device, ()) = Device::open_of(options, |_| Ok(()))?;
        Looker::over(device, THREAD).map(Proxy)
    }

    pub(crate) fn looker(&self) -> &Looker<Queue> {
        &self.0
    }

    /// Makes a queue in memory, which is kept with it.
    pub(crate) fn create_in(&self, memory: Mapped, options: Options) -> Result<Export, Error> {
        let queue = Queue::create(self.0.device(), memory, options, self.0.sleeper())?;
        let export = queue.export();
        self.0.insert(export.qpn, queue);
        Ok(export)
    }

    pub(crate) fn counters_bytes(&self, qpn: u32) -> Result<usize, Error> {
        Ok(self.0.queue(qpn)?.counters_bytes())
    }

    /// Puts a queue back of whose counters this is a copy.
    pub(crate) fn reset_counters_of(&self, qpn: u32, counters: &Mapped) -> Result<(), Error> {
        self.0.queue(qpn)?.reset_counters(counters)
    }
}

impl Endpoint for Proxy {
    fn provider(&self) -> Provider {
        Provider::Proxy
    }

    unsafe fn register(&self, at: *mut c_void, bytes: u64, access: Access) -> Result<u32, Error> {
        // SAFETY: the caller keeps the memory.
        unsafe { self.0.device().register(at, bytes, access) }
    }

    unsafe fn create(
        &self,
        at: *mut c_void,
        bytes: u64,
        options: Options,
    ) -> Result<Export, Error> {
        // SAFETY: the caller keeps the memory mapped.
        self.create_in(unsafe { mapped(at, bytes, true) }?, options)
    }

    fn connect(&self, one: u32, other: u32) -> Result<(), Error> {
        self.0.connect(one, other)
    }

    fn meet(&self, qpn: u32, meeting: Meeting<'_>, mine: Window) -> Result<Window, Error> {
        reach::join(self.0.device(), &*self.0.queue(qpn)?, meeting, mine)
    }

    fn reset(&self, qpn: u32) -> Result<(), Error> {
        self.0.queue(qpn)?.reset()
    }

    unsafe fn reset_counters(&self, qpn: u32, counters: *mut c_void) -> Result<(), Error> {
        let bytes = self.counters_bytes(qpn)? as u64;
        // SAFETY: the caller lends the counters for this call.
        let counters = unsafe { mapped(counters, bytes, true) }?;
        self.reset_counters_of(qpn, &counters)
    }

    fn counts(&self, qpn: u32) -> Result<Counts, Error> {
        Ok(self.0.queue(qpn)?.counts())
    }
}
