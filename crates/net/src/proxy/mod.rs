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

use std::{
    collections::HashMap,
    ffi::c_void,
    mem::take,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU32, Ordering, fence},
    },
    thread::{Builder, JoinHandle, Thread, current, park_timeout, yield_now},
    time::{Duration, Instant},
};

use outboard_verbs::{DeviceMemory, Options as DeviceOptions, Remote};
use parking_lot::{Mutex, RwLock};

use crate::{
    bell::Rouse,
    block::{Export, Options},
    device::Device,
    endpoint::{Counts, Endpoint, mapped},
    error::Error,
    keys::Access,
    meet::{Meeting, Window},
    memory::Mapped,
    provider::Provider,
    reach::{self, Reached as _},
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
    /// True while queues are not looked at. Locked for each look.
    is_held: Mutex<bool>,
    /// Callers that want to change it.
    wanted: AtomicU32,
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
        let (device, ()) = Device::open(|_| Ok(()))?;
        Proxy::over(device)
    }

    /// Opens an endpoint of the device that the options name.
    pub(crate) fn open_of(options: &DeviceOptions) -> Result<Proxy, Error> {
        let (device, ()) = Device::open_of(options, |_| Ok(()))?;
        Proxy::over(device)
    }

    fn over(device: Device) -> Result<Proxy, Error> {
        let longest = longest()?;
        let shared = Arc::new(Shared {
            queues: RwLock::default(),
            device,
            is_held: Mutex::default(),
            wanted: AtomicU32::new(0),
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

    /// Returns the number of queues, and of registrations, and the bytes of these.
    pub(crate) fn counted(&self) -> (usize, usize, u64) {
        let queues = self.shared.queues.read().len();
        let (registrations, bytes) = self.shared.device.registrations();
        (queues, registrations, bytes)
    }

    /// Lets the thread look at no queue once this returns, or again.
    pub(crate) fn hold(&self, is_held: bool) {
        self.shared.wanted.fetch_add(1, Ordering::AcqRel);
        *self.shared.is_held.lock() = is_held;
        self.shared.wanted.fetch_sub(1, Ordering::AcqRel);
        if !is_held {
            self.rouse();
        }
    }

    /// Wakes the thread.
    pub(crate) fn rouse(&self) {
        self.shared.sleeper.rouse();
    }

    /// Registers memory, which is kept with the registration.
    pub(crate) fn register_mapped(&self, memory: &Mapped, access: Access) -> Result<u32, Error> {
        self.shared.device.register_mapped(memory, access)
    }

    /// Registers memory of a GPU in one of these ways, until it is forgotten.
    pub(crate) fn register_reached(
        &self,
        by: Vec<DeviceMemory>,
        bytes: u64,
        access: Access,
    ) -> Result<u32, Error> {
        self.shared.device.register_reached(by, bytes, access)
    }

    /// Ends the registrations of a GPU's memory that goes.
    pub(crate) fn forget(&self, address: u64, bytes: u64) {
        self.shared.device.forget(address, bytes);
    }

    /// Makes a queue in memory, which is kept with it.
    pub(crate) fn create_in(&self, memory: Mapped, options: Options) -> Result<Export, Error> {
        let sleeper = self.shared.sleeper.clone();
        let queue = Queue::create(&self.shared.device, memory, options, sleeper)?;
        let export = queue.export();
        let mut queues = self.shared.queues.write();
        queues.insert(export.qpn, Arc::new(queue));
        Ok(export)
    }

    /// Says where a queue that is not connected is reached.
    pub(crate) fn reached(&self, qpn: u32) -> Result<Remote, Error> {
        let queue = self.queue(qpn)?;
        queue.check_unconnected()?;
        Ok(queue.reached(&self.shared.device))
    }

    /// Connects a queue to a peer that is reached there.
    pub(crate) fn reach(&self, qpn: u32, theirs: &Remote) -> Result<(), Error> {
        let (queue, device) = (self.queue(qpn)?, &self.shared.device);
        queue.connect(device, &queue.reached(device), theirs)
    }

    pub(crate) fn counters_bytes(&self, qpn: u32) -> Result<usize, Error> {
        Ok(self.queue(qpn)?.counters_bytes())
    }

    /// Puts a queue back of whose counters this is a copy.
    pub(crate) fn reset_counters_of(&self, qpn: u32, counters: &Mapped) -> Result<(), Error> {
        self.queue(qpn)?.reset_counters(counters)
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
        let is_held = self.is_held.lock();
        if *is_held {
            return 0;
        }
        let queues = self.queues.read();
        queues.values().map(|queue| queue.serve(&self.device)).sum()
    }

    fn run(&self, longest: Duration) {
        let _ = self.sleeper.thread.set(current());
        let mut rest = Rest::new(longest);
        let mut found = 0;
        while !self.stop.load(Ordering::Acquire) {
            if self.wanted.load(Ordering::Acquire) > 0 {
                yield_now();
            }
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
        self.create_in(unsafe { mapped(at, bytes, true) }?, options)
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
        let bytes = self.counters_bytes(qpn)? as u64;
        // SAFETY: the caller lends the counters for this call.
        let counters = unsafe { mapped(counters, bytes, true) }?;
        self.reset_counters_of(qpn, &counters)
    }

    fn counts(&self, qpn: u32) -> Result<Counts, Error> {
        Ok(self.queue(qpn)?.counts())
    }
}
