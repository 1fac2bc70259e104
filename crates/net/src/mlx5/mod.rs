//! The provider `mlx5`: queues of a real adapter in a program's memory, to which its threads and
//! kernels post as they do to `nic`'s: ring, record, doorbell and completions have one format.
//!
//! Behind a network they have no doorbell of an adapter of the server's machine, where the queues
//! are. There a thread of the session's process rings it ([`Rung`]).
//!
//! ```text
//!  kernel: entries ────────────────────────────────────────► adapter ──► completions
//!          record, doorbell of the block ─► thread: record, doorbell ─┘
//! ```

mod commands;
mod described;
mod pair;
mod queue;
mod ringer;

use std::{collections::HashMap, ffi::c_void, fmt, sync::Arc};

use outboard_verbs::{Mlx5 as Adapter, Options as DeviceOptions};
use parking_lot::Mutex;

use crate::{
    block::{Export, Options, PAGE},
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

use queue::{Queue, Ringing};

/// An endpoint of an mlx5 adapter.
pub(crate) struct Mlx5 {
    queues: Mutex<HashMap<u32, Arc<Queue>>>,
    adapter: Arc<Adapter>,
    device: Device,
}

impl fmt::Debug for Mlx5 {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("Mlx5").finish_non_exhaustive()
    }
}

impl Mlx5 {
    pub(crate) fn open() -> Result<Mlx5, Error> {
        let (device, adapter) = Device::open(Adapter::of)?;
        Ok(Mlx5 {
            queues: Mutex::default(),
            adapter,
            device,
        })
    }

    fn queue(&self, qpn: u32) -> Result<Arc<Queue>, Error> {
        let queues = self.queues.lock();
        queues.get(&qpn).cloned().ok_or(Error::NoPair(qpn))
    }
}

impl Endpoint for Mlx5 {
    fn provider(&self) -> Provider {
        Provider::Mlx5
    }

    unsafe fn register(&self, at: *mut c_void, bytes: u64, access: Access) -> Result<u32, Error> {
        // SAFETY: the caller keeps the memory.
        let key = unsafe { self.device.register(at, bytes, access) }?;
        self.device.same_key(key)
    }

    unsafe fn create(
        &self,
        at: *mut c_void,
        bytes: u64,
        options: Options,
    ) -> Result<Export, Error> {
        // SAFETY: the caller keeps the memory mapped.
        let memory = unsafe { mapped(at, bytes, true) }?;
        // SAFETY: the caller keeps the memory mapped until the endpoint is dropped, and so does
        // the queue, to which nobody posts then.
        let queue = unsafe {
            let ringing = Ringing::ByPosters;
            Queue::create(&self.adapter, &self.device, memory, options, ringing)
        }?;
        let export = queue.export();
        self.queues.lock().insert(export.qpn, Arc::new(queue));
        Ok(export)
    }

    fn connect(&self, one: u32, other: u32) -> Result<(), Error> {
        let queues = (self.queue(one)?, self.queue(other)?);
        reach::connect(&self.device, &*queues.0, &*queues.1, one == other)
    }

    fn meet(&self, qpn: u32, meeting: Meeting<'_>, mine: Window) -> Result<Window, Error> {
        reach::join(&self.device, &*self.queue(qpn)?, meeting, mine)
    }

    fn reset(&self, qpn: u32) -> Result<(), Error> {
        self.queue(qpn)?.reset()
    }

    unsafe fn reset_counters(&self, qpn: u32, counters: *mut c_void) -> Result<(), Error> {
        let queue = self.queue(qpn)?;
        // SAFETY: the caller lends the counters for this call.
        let counters = unsafe { mapped(counters, queue.counters_bytes() as u64, true) }?;
        queue.reset_counters(&counters)
    }

    fn counts(&self, qpn: u32) -> Result<Counts, Error> {
        Ok(self.queue(qpn)?.counts())
    }
}

/// An endpoint whose doorbells a thread rings.
pub(crate) struct Rung {
    looker: Looker<Queue>,
    adapter: Arc<Adapter>,
}

impl fmt::Debug for Rung {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("Rung").finish_non_exhaustive()
    }
}

impl Rung {
    /// Opens an endpoint of the adapter that the options name.
    pub(crate) fn open_of(options: &DeviceOptions) -> Result<Rung, Error> {
        let (device, adapter) = Device::open_of(options, Adapter::of)?;
        let looker = Looker::over(device, "outboard-bells")?;
        Ok(Rung { looker, adapter })
    }

    pub(crate) fn looker(&self) -> &Looker<Queue> {
        &self.looker
    }

    pub(crate) fn queue(&self, qpn: u32) -> Result<Arc<Queue>, Error> {
        self.looker.queue(qpn)
    }

    /// Makes a queue in memory, which is kept with it.
    pub(crate) fn create_in(&self, memory: Mapped, options: Options) -> Result<Export, Error> {
        let (device, ringing) = (self.looker.device(), Ringing::ByThread);
        // SAFETY: the memory is kept mapped by what the queue has of it.
        let queue = unsafe { Queue::create(&self.adapter, device, memory, options, ringing) }?;
        let export = queue.export();
        self.looker.insert(export.qpn, queue);
        Ok(export)
    }
}

/// Returns a queue of a block at an address, as one at a server has its completions.
pub(crate) fn export_at(base: u64, options: &Options, qpn: u32, scratch_key: u32) -> Export {
    let mut export = Export::at(base, options, qpn, scratch_key);
    if !options.is_plain() {
        export.completion = base + PAGE as u64;
    }
    export
}
