//! A thread that runs an adapter.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread::{Builder, JoinHandle, sleep, yield_now},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::{adapter::Adapter, error::Error, faults::Network};

/// Polls without work before the thread lets others run, about a GPU's way to memory and back,
/// and before it sleeps.
const YIELD_AFTER: u32 = 256;
const SLEEP_AFTER: u32 = 4096;
const SLEEP: Duration = Duration::from_micros(50);

/// An adapter that threads use in turns.
#[derive(Clone, Debug)]
pub(crate) struct Shared {
    adapter: Arc<Mutex<Adapter>>,
    /// Callers that want the adapter.
    wanted: Arc<AtomicU32>,
    start: Instant,
}

impl Shared {
    fn poll(&self) -> usize {
        // The time is looked at with the adapter locked, so that it never goes back.
        let mut adapter = self.adapter.lock();
        adapter.poll(self.start.elapsed().as_nanos() as u64)
    }

    pub(crate) fn with<R>(&self, call: impl FnOnce(&mut Adapter) -> R) -> R {
        self.wanted.fetch_add(1, Ordering::AcqRel);
        let result = call(&mut self.adapter.lock());
        self.wanted.fetch_sub(1, Ordering::AcqRel);
        result
    }
}

/// An adapter and its thread, which ends with it.
#[derive(Debug)]
pub struct Nic {
    shared: Shared,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Nic {
    pub fn start(network: Network) -> Result<Nic, Error> {
        network.check()?;
        let shared = Shared {
            adapter: Arc::new(Mutex::new(Adapter::new(network))),
            wanted: Arc::new(AtomicU32::new(0)),
            start: Instant::now(),
        };
        let stop = Arc::new(AtomicBool::new(false));
        let run = {
            let (shared, stop) = (shared.clone(), stop.clone());
            move || run(&shared, &stop)
        };
        let thread = Builder::new().name("outboard-net".into()).spawn(run);
        let thread = Some(thread.map_err(|error| Error::Thread(error.to_string()))?);
        Ok(Nic {
            shared,
            stop,
            thread,
        })
    }

    /// Calls a function with the adapter, between two of its polls.
    pub fn with<R>(&self, call: impl FnOnce(&mut Adapter) -> R) -> R {
        self.shared.with(call)
    }

    /// Serves all queues once, in the thread that has posted: it need not wait for the adapter's.
    pub fn poll(&self) {
        self.shared
            .with(|adapter| adapter.poll(self.shared.start.elapsed().as_nanos() as u64));
    }

    pub(crate) fn shared(&self) -> Shared {
        self.shared.clone()
    }
}

impl Drop for Nic {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(shared: &Shared, stop: &AtomicBool) {
    let mut idle = 0;
    while !stop.load(Ordering::Acquire) {
        let done = shared.poll();
        idle = if done > 0 {
            0
        } else {
            (idle + 1).min(SLEEP_AFTER)
        };
        if idle == SLEEP_AFTER {
            sleep(SLEEP);
        } else if idle >= YIELD_AFTER || shared.wanted.load(Ordering::Acquire) > 0 {
            yield_now();
        }
    }
}
