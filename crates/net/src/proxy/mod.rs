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
    mem::take,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering, fence},
    },
    thread::{Builder, JoinHandle, Thread, current, park_timeout, yield_now},
    time::{Duration, Instant},
};

use parking_lot::RwLock;

use crate::{
    bell::Rouse,
    block::{Export, Options},
    device::Device,
    endpoint::{Counts, Endpoint, mapped},
    error::Error,
    keys::Access,
    meet::{Meeting, Window},
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
    sleeper: Arc<Sleeper>,
}

/// The thread, as those see it who wake it.
#[derive(Debug, Default)]
struct Sleeper {
    thread: OnceLock<Thread>,
    is_roused: AtomicBool,
}

impl Rouse for Arc<Sleeper> {
    fn rouse(&self) {
        self.is_roused.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }
}

impl Proxy {
    pub(crate) fn open() -> Result<Proxy, Error> {
        let longest = longest()?;
        let (device, ()) = Device::open(|_| Ok(()))?;
        let shared = Arc::new(Shared {
            queues: RwLock::default(),
            device,
            stop: AtomicBool::new(false),
            sleeper: Arc::default(),
        });
        let run = {
            let shared = shared.clone();
            move || shared.run(longest)
        };
        let thread = Builder::new().name("outboard-proxy".into()).spawn(run);
        let thread = Some(thread.map_err(|error| Error::Thread(error.to_string()))?);
        Ok(Proxy { shared, thread })
    }

    /// Returns a queue, the thread awake: a program that sets something up is about to post.
    fn queue(&self, qpn: u32) -> Result<Arc<Queue>, Error> {
        self.shared.sleeper.rouse();
        let queues = self.shared.queues.read();
        queues.get(&qpn).cloned().ok_or(Error::NoPair(qpn))
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.sleeper.rouse();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn serve(&self) -> usize {
        let queues = self.queues.read();
        queues.values().map(|queue| queue.serve(&self.device)).sum()
    }

    fn run(&self, longest: Duration) {
        let _ = self.sleeper.thread.set(current());
        let mut rest = Rest::new(longest);
        let mut found = 0;
        while !self.stop.load(Ordering::Acquire) {
            found += self.serve();
            match rest.after(take(&mut found)) {
                Next::Look => {}
                Next::Yield => yield_now(),
                Next::Sleep => found = self.sleep(&mut rest),
            }
        }
    }

    /// Sleeps until somebody rouses, or a time is over. Returns whether there was work or a call.
    fn sleep(&self, rest: &mut Rest) -> usize {
        let is_waiting = self.queues.read().values().any(|queue| queue.is_waiting());
        let time = rest.time(Instant::now(), is_waiting);
        self.lie_down(true);
        // Who posts behind this look sees that the thread is asleep.
        let done = self.serve();
        if done == 0 && !self.sleeper.is_roused.load(Ordering::SeqCst) {
            park_timeout(time);
        }
        self.lie_down(false);
        done + usize::from(self.sleeper.is_roused.swap(false, Ordering::SeqCst))
    }

    fn lie_down(&self, is_asleep: bool) {
        let queues = self.queues.read();
        queues.values().for_each(|queue| queue.lie_down(is_asleep));
        fence(Ordering::SeqCst);
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
        let sleeper = self.shared.sleeper.clone();
        let queue = Queue::create(&self.shared.device, memory, options, sleeper)?;
        let export = queue.export();
        self.shared
            .queues
            .write()
            .insert(export.qpn, Arc::new(queue));
        Ok(export)
    }

    fn connect(&self, one: u32, other: u32) -> Result<(), Error> {
        let queues = (self.queue(one)?, self.queue(other)?);
        reach::connect(&self.shared.device, &*queues.0, &*queues.1, one == other)
    }

    fn meet(&self, qpn: u32, meeting: Meeting<'_>, mine: Window) -> Result<Window, Error> {
        reach::join(&self.shared.device, &*self.queue(qpn)?, meeting, mine)
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
