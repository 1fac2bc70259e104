//! The provider `mlx5`: queues of a real adapter in a program's memory, to which its threads and
//! kernels post as they do to `nic`'s: ring, record, doorbell and completions have one format.

mod commands;
mod described;
mod pair;
mod queue;

use std::{collections::HashMap, ffi::c_void, fmt, sync::Arc};

use outboard_verbs::Mlx5 as Adapter;
use parking_lot::Mutex;

use crate::{
    block::{Export, Options},
    device::Device,
    endpoint::{Counts, Endpoint, mapped},
    error::Error,
    keys::Access,
    meet::{Meeting, Window},
    provider::Provider,
    reach,
};

use queue::Queue;

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
        match self.device.local_key(key) == Some(key) {
            true => Ok(key),
            false => Err(Error::Device(
                "memory has one key for this side and another for peers".into(),
            )),
        }
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
        let queue = unsafe { Queue::create(&self.adapter, &self.device, memory, options) }?;
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
