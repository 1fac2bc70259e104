//! The provider `proxy`: a thread of the CPU reads what kernels and threads post to queues of
//! `nic`'s shape, and posts it to an RDMA device by verbs. It needs no doorbells that GPUs reach.
//!
//! ```text
//!  ring, record, doorbell ─► thread: parses, checks keys and ranges ─► ibv_post_send
//!  completions, as an adapter writes them ◄── thread ◄──────────────── ibv_poll_cq
//! ```

mod queue;
mod served;

use std::{
    collections::HashMap,
    ffi::c_void,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{Builder, JoinHandle, sleep, yield_now},
    time::{Duration, Instant},
};

use parking_lot::RwLock;

use crate::{
    block::{Export, Options},
    device::Device,
    endpoint::{Counts, Endpoint, mapped},
    error::Error,
    keys::Access,
    link::Meeting,
    meet::Window,
    provider::Provider,
    reach,
    rest::{Next, Rest, longest},
};

use queue::Queue;

/// An endpoint whose thread posts to an RDMA device.
#[derive(Debug)]
pub(crate) struct Proxy {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    queues: RwLock<HashMap<u32, Arc<Queue>>>,
    device: Device,
    stop: AtomicBool,
}

impl Proxy {
    pub(crate) fn open() -> Result<Proxy, Error> {
        let longest = longest()?;
        let (device, ()) = Device::open(|_| Ok(()))?;
        let shared = Arc::new(Shared {
            queues: RwLock::default(),
            device,
            stop: AtomicBool::new(false),
        });
        let run = {
            let shared = shared.clone();
            move || shared.run(longest)
        };
        let thread = Builder::new().name("outboard-proxy".into()).spawn(run);
        let thread = Some(thread.map_err(|error| Error::Thread(error.to_string()))?);
        Ok(Proxy { shared, thread })
    }

    fn queue(&self, qpn: u32) -> Result<Arc<Queue>, Error> {
        let queues = self.shared.queues.read();
        queues.get(&qpn).cloned().ok_or(Error::NoPair(qpn))
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self, longest: Duration) {
        let mut rest = Rest::new(longest);
        while !self.stop.load(Ordering::Acquire) {
            let queues = self.queues.read();
            let done: usize = queues.values().map(|queue| queue.serve(&self.device)).sum();
            let is_waiting = || queues.values().any(|queue| queue.is_waiting());
            match rest.after(done) {
                Next::Look => {}
                Next::Yield => {
                    drop(queues);
                    yield_now();
                }
                Next::Sleep => {
                    let time = rest.time(Instant::now(), is_waiting());
                    drop(queues);
                    sleep(time);
                }
            }
        }
    }
}

impl Endpoint for Proxy {
    fn provider(&self) -> Provider {
        Provider::Proxy
    }

    unsafe fn register(&self, at: *mut c_void, bytes: u64, access: Access) -> Result<u32, Error> {
        // SAFETY: the caller keeps the memory.
        unsafe { self.shared.device.register(at, bytes, access) }
    }

    unsafe fn create(
        &self,
        at: *mut c_void,
        bytes: u64,
        options: Options,
    ) -> Result<Export, Error> {
        // SAFETY: the caller keeps the memory mapped.
        let memory = unsafe { mapped(at, bytes, true) }?;
        let queue = Queue::create(&self.shared.device, memory, options)?;
        let export = queue.export();
        self.shared
            .queues
            .write()
            .insert(export.qpn, Arc::new(queue));
        Ok(export)
    }

    fn connect(&self, one: u32, other: u32) -> Result<(), Error> {
        let device = &self.shared.device;
        let (a, b) = (self.queue(one)?, self.queue(other)?);
        a.connect(device, &b.reached(device))?;
        match one == other {
            true => Ok(()),
            false => b.connect(device, &a.reached(device)),
        }
    }

    fn meet(&self, qpn: u32, meeting: Meeting<'_>, mine: Window) -> Result<Window, Error> {
        let device = &self.shared.device;
        let queue = self.queue(qpn)?;
        queue.check_unconnected()?;
        reach::meet(meeting, &queue.reached(device), mine, |theirs| {
            queue.connect(device, theirs)
        })
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
