//! A thread that runs an adapter.

use std::{
    mem::take,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread::{JoinHandle, Thread, current, park_timeout, yield_now},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::{
    adapter::Adapter,
    bell::Rouse,
    error::Error,
    faults::Network,
    rest::{Crowd, Next, Rest, longest},
    threads::spawn,
};

/// Looks of a thread that a peer has woken.
const ROUSED_MAX: usize = 64;

/// An adapter that threads use in turns.
#[derive(Clone, Debug)]
pub(crate) struct Shared {
    adapter: Arc<Mutex<Adapter>>,
    /// Callers that want the adapter.
    wanted: Arc<AtomicU32>,
    /// The adapter looks at nothing. Changed with the adapter locked.
    is_held: Arc<AtomicBool>,
    sleeper: Arc<Sleeper>,
    start: Instant,
}

/// The adapter's thread, as those see it who wake it.
#[derive(Debug, Default)]
struct Sleeper {
    thread: OnceLock<Thread>,
    is_asleep: AtomicBool,
    is_roused: AtomicBool,
    /// Peers know that they have to rouse.
    is_told: AtomicBool,
}

impl Shared {
    /// Makes an adapter that has no thread yet.
    pub(crate) fn new(network: Network) -> Shared {
        Shared {
            adapter: Arc::new(Mutex::new(Adapter::new(network))),
            wanted: Arc::new(AtomicU32::new(0)),
            is_held: Arc::default(),
            sleeper: Arc::default(),
            start: Instant::now(),
        }
    }

    /// Serves the queues until a caller wants the adapter.
    fn poll(&self) -> usize {
        let mut adapter = self.adapter.lock();
        let goes_on = || self.wanted.load(Ordering::Relaxed) == 0;
        self.poll_locked(&mut adapter, goes_on)
    }

    /// Returns true if the adapter is to do nothing. Asked with the adapter locked.
    pub(crate) fn is_held(&self) -> bool {
        self.is_held.load(Ordering::Relaxed)
    }

    fn poll_locked(&self, adapter: &mut Adapter, goes_on: impl Fn() -> bool) -> usize {
        match self.is_held() {
            true => 0,
            // The time is looked at with the adapter locked, so that it never goes back.
            false => adapter.poll_while(self.start.elapsed().as_nanos() as u64, goes_on),
        }
    }

    pub(crate) fn with<R>(&self, call: impl FnOnce(&mut Adapter) -> R) -> R {
        self.wanted.fetch_add(1, Ordering::AcqRel);
        let result = call(&mut self.adapter.lock());
        self.wanted.fetch_sub(1, Ordering::AcqRel);
        result
    }

    /// Wakes the adapter's thread, which then looks for some time before it sleeps again.
    pub(crate) fn rouse(&self) {
        self.sleeper.is_roused.store(true, Ordering::SeqCst);
        if self.sleeper.is_asleep.load(Ordering::SeqCst)
            && let Some(thread) = self.sleeper.thread.get()
        {
            thread.unpark();
        }
    }

    /// Serves all queues in the thread that a peer has woken, which runs sooner than the adapter's.
    pub(crate) fn roused(&self) {
        for _ in 0..ROUSED_MAX {
            let done = self.poll();
            if self.sleeper.is_told.load(Ordering::Acquire) {
                self.adapter.lock().announce(true);
            }
            if done == 0 && self.poll() == 0 {
                break;
            }
        }
        self.rouse();
    }

    /// Tells peers whether they have to rouse this side.
    fn tell(&self, is_told: bool) {
        self.sleeper.is_told.store(is_told, Ordering::Release);
        self.adapter.lock().announce(is_told);
    }

    /// Sleeps until somebody rouses, or a time is over. Returns true if there was work or a call.
    fn sleep(&self, rest: &mut Rest) -> bool {
        let mut adapter = self.adapter.lock();
        let time = rest.time(Instant::now(), adapter.is_waiting());
        let time = time.min(adapter.sleep_max());
        self.sleeper.is_asleep.store(true, Ordering::SeqCst);
        adapter.lie_down(true);
        let done = self.poll_locked(&mut adapter, || true);
        drop(adapter);
        if done == 0 && !self.sleeper.is_roused.load(Ordering::SeqCst) {
            park_timeout(time);
        }
        self.sleeper.is_asleep.store(false, Ordering::SeqCst);
        self.adapter.lock().lie_down(false);
        self.sleeper.is_roused.swap(false, Ordering::SeqCst) || done > 0
    }

    fn run(&self, stop: &AtomicBool, longest: Duration) {
        let _ = self.sleeper.thread.set(current());
        let (mut rest, mut crowd, mut is_told) = (Rest::new(longest), Crowd::default(), false);
        let mut found = 0;
        while !stop.load(Ordering::Acquire) {
            found += self.poll();
            if found > 0 && is_told {
                is_told = false;
                self.tell(is_told);
            }
            let next = rest.after(take(&mut found));
            // Who is told rouses; what came before is found by one more look.
            if !is_told && (next == Next::Sleep || (next == Next::Yield && crowd.is_there())) {
                is_told = true;
                self.tell(is_told);
                continue;
            }
            match next {
                Next::Sleep => found = self.sleep(&mut rest).into(),
                Next::Yield => crowd.pass(),
                Next::Look if self.wanted.load(Ordering::Acquire) > 0 => yield_now(),
                Next::Look => {}
            }
        }
    }
}

impl Rouse for Shared {
    fn rouse(&self) {
        Shared::rouse(self);
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
        let longest = longest()?;
        let shared = Shared::new(network);
        let stop = Arc::new(AtomicBool::new(false));
        let run = {
            let (shared, stop) = (shared.clone(), stop.clone());
            move || shared.run(&stop, longest)
        };
        let thread = spawn("outboard-net", run);
        let thread = Some(thread.map_err(|error| Error::Thread(error.to_string()))?);
        Ok(Nic {
            shared,
            stop,
            thread,
        })
    }

    /// Makes an adapter that only [`Nic::poll`] serves.
    #[cfg(test)]
    pub(crate) fn without_thread() -> Nic {
        Nic {
            shared: Shared::new(Network::default()),
            stop: Arc::default(),
            thread: None,
        }
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

    /// Lets the adapter look at nothing, and take nothing of peers, once this returns, or again.
    pub(crate) fn hold(&self, is_held: bool) {
        self.shared
            .with(|_| self.shared.is_held.store(is_held, Ordering::Relaxed));
    }

    /// Wakes the thread, if somebody is about to post who cannot.
    pub fn rouse(&self) {
        self.shared.rouse();
    }

    pub(crate) fn shared(&self) -> Shared {
        self.shared.clone()
    }
}

impl Drop for Nic {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.shared.rouse();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::{
        bell::{Bell, rouse},
        memory::Mapped,
    };

    /// A sleep without end for this test: it returns since it was roused before.
    #[test]
    fn a_doorbell_wakes_its_adapter_and_no_other() {
        let [one, other] = [0, 1].map(|seed| {
            Shared::new(Network {
                seed,
                ..Network::default()
            })
        });
        let word = Mapped::allocate(8).unwrap();
        one.with(|adapter| adapter.tell_posters(word.clone()));
        let is_roused = |of: &Shared| of.sleeper.is_roused.load(Ordering::SeqCst);
        let bells = [Bell::hang(16, one.clone()), Bell::hang(24, other.clone())];
        rouse(8);
        assert!(!is_roused(&one) && !is_roused(&other));
        rouse(16);
        assert!(is_roused(&one) && !is_roused(&other));
        let mut rest = Rest::new(Duration::from_secs(3600));
        assert!(one.sleep(&mut rest) && !is_roused(&one));
        drop(bells);
        rouse(16);
        assert!(!is_roused(&one));
        one.with(|adapter| adapter.lie_down(true));
        assert_eq!(word.u64(0).load(Ordering::Relaxed), 1);
        assert!(!one.sleep(&mut rest));
        assert_eq!(word.u64(0).load(Ordering::Relaxed), 0, "it is up again");
    }
}
