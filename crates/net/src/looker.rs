//! A thread that looks at an endpoint's queues, and gives what is posted there to an RDMA device.
//!
//! It is in the program's process, or in that of a session ([`remote`](crate::remote)), whose
//! client may write memory in parts: then it looks at nothing.

use std::{
    collections::HashMap,
    fmt,
    mem::take,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU32, Ordering, fence},
    },
    thread::{JoinHandle, Thread, current, park_timeout, yield_now},
    time::{Duration, Instant},
};

use outboard_verbs::Remote;
use parking_lot::{Mutex, RwLock};

use crate::{
    bell::Rouse,
    device::Device,
    error::Error,
    reach::{self, Reached},
    rest::{Next, Rest, longest},
    threads::spawn,
};

/// A queue that the thread looks at.
pub(crate) trait Looked: Reached + Send + Sync + 'static {
    /// Passes on what was posted. Returns how much was done.
    fn serve(&self, device: &Device) -> usize;

    /// Returns true while the device has something whose end the thread has to see.
    fn is_waiting(&self) -> bool {
        false
    }

    /// Returns how many bytes of its own the device has registered.
    fn registered_bytes(&self) -> u64 {
        0
    }

    /// Tells those who post whether they have to wake the thread.
    fn lie_down(&self, _is_asleep: bool) {}
}

/// Queues of an RDMA device, by their numbers, and the thread.
pub(crate) struct Looker<Q: Looked> {
    shared: Arc<Shared<Q>>,
    thread: Option<JoinHandle<()>>,
}

impl<Q: Looked> fmt::Debug for Looker<Q> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("Looker").finish_non_exhaustive()
    }
}

struct Shared<Q> {
    queues: RwLock<HashMap<u32, Arc<Q>>>,
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
pub(crate) struct Sleeper {
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

/// An endpoint of an RDMA device, whose queues others reach there.
pub(crate) trait OfDevice {
    /// Returns the number of queues, and of registrations, and the bytes that the device has.
    fn counted(&self) -> (usize, usize, u64);

    /// Says where a queue that is not connected is reached.
    fn reached(&self, qpn: u32) -> Result<Remote, Error>;

    /// Connects a queue to a peer that is reached there.
    fn reach(&self, qpn: u32, theirs: &Remote) -> Result<(), Error>;
}

impl<Q: Looked> OfDevice for Looker<Q> {
    fn counted(&self) -> (usize, usize, u64) {
        let queues = self.shared.queues.read();
        let (registrations, bytes) = self.shared.device.registrations();
        let of_queues = queues.values().map(|queue| queue.registered_bytes());
        (
            queues.len(),
            registrations,
            of_queues.fold(bytes, u64::saturating_add),
        )
    }

    fn reached(&self, qpn: u32) -> Result<Remote, Error> {
        let queue = self.queue(qpn)?;
        queue.check_unconnected()?;
        Ok(queue.reached(&self.shared.device))
    }

    fn reach(&self, qpn: u32, theirs: &Remote) -> Result<(), Error> {
        let (queue, device) = (self.queue(qpn)?, &self.shared.device);
        queue.connect(device, &queue.reached(device), theirs)
    }
}

impl<Q: Looked> Looker<Q> {
    /// Starts a thread of this name.
    pub(crate) fn over(device: Device, name: &str) -> Result<Looker<Q>, Error> {
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
        let thread = spawn(name, run);
        let thread = Some(thread.map_err(|error| Error::Thread(error.to_string()))?);
        Ok(Looker { shared, thread })
    }

    pub(crate) fn device(&self) -> &Device {
        &self.shared.device
    }

    pub(crate) fn sleeper(&self) -> Arc<Sleeper> {
        self.shared.sleeper.clone()
    }

    pub(crate) fn insert(&self, qpn: u32, queue: Q) {
        self.shared.queues.write().insert(qpn, Arc::new(queue));
    }

    /// Returns a queue, the thread awake: a program that sets something up is about to post.
    pub(crate) fn queue(&self, qpn: u32) -> Result<Arc<Q>, Error> {
        self.rouse();
        let queues = self.shared.queues.read();
        queues.get(&qpn).cloned().ok_or(Error::NoPair(qpn))
    }

    /// Connects two queues, or one to itself.
    pub(crate) fn connect(&self, one: u32, other: u32) -> Result<(), Error> {
        let queues = (self.queue(one)?, self.queue(other)?);
        reach::connect(&self.shared.device, &*queues.0, &*queues.1, one == other)
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
}

impl<Q: Looked> Drop for Looker<Q> {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.sleeper.rouse();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl<Q: Looked> Shared<Q> {
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
