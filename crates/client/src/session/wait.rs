//! Waiting: whoever waits looks at the GPU's word and reads for all.

use std::{
    sync::{Arc, OnceLock, atomic::Ordering},
    time::{Duration, Instant},
};

use outboard_api::CUresult;
use outboard_link::Wait;

use super::{Group, Incoming, Session};
use crate::{
    naps::Naps,
    notes,
    state::{Word, waited_with_mirrors},
    stats, times,
};

/// How long a thread looks at the GPU's word without a pause, where there are cores to spare: the driver's own waits do
/// so for as long as it takes. After that it naps between looks, so that a wait ends late by a thousandth at most.
const WATCH_US_MAX: u64 = 5_000;
/// The same on one or two cores, where the server needs one.
const WATCH_FEW_CORES_US_MAX: u64 = 20;
/// Looks at the word for each look at the link.
const WATCH_LOOKS: u32 = 64;
/// How long the library's own reader leaves the link to the program's threads.
const GRACE_US: u64 = 200;
/// How long a thread that waits behind the leading one sleeps before it looks for itself.
const FOLLOW_MS_MAX: u64 = 100;
/// How long the leading thread reads before it looks whether it should go on.
pub(super) const LEAD_MS_MAX: u64 = 200;

impl Session {
    /// Waits until a group is complete. Ends with an error when the server is gone.
    pub(crate) fn wait(&self, group: &Arc<Group>) -> Result<Vec<u8>, CUresult> {
        stats::waited();
        waited_with_mirrors();
        // The end of the session is noticed below.
        let _ = self.send_batch();
        times::waiting(|| self.wait_for_group(group))
    }

    fn wait_for_group(&self, group: &Arc<Group>) -> Result<Vec<u8>, CUresult> {
        group.waiting.fetch_add(1, Ordering::AcqRel);
        loop {
            if group.is_complete() {
                break;
            }
            // Counted as waiting before the try: a leader that leaves in between hands over to us.
            if let Some(mut incoming) = self.receiver.try_lock() {
                let seen = self.watch(&mut incoming, group);
                if !seen {
                    self.lead(&mut incoming, || group.is_complete());
                }
                drop(incoming);
                self.hand_over();
                if seen {
                    break;
                }
                continue;
            }
            let mut state = group.state.lock();
            if state.left > 0 && !std::mem::take(&mut state.lead) {
                group
                    .changed
                    .wait_for(&mut state, Duration::from_millis(FOLLOW_MS_MAX));
                state.lead = false;
            }
        }
        group.waiting.fetch_sub(1, Ordering::AcqRel);
        group.take()
    }

    /// Waits until the GPU has got there, without a look at what the server has to say: for a thread that copies a part of
    /// what another waits for.
    pub(crate) fn wait_for_bytes(&self, group: &Arc<Group>) -> Result<(), CUresult> {
        // The end of the session is noticed below.
        let _ = self.send_batch();
        let start = Instant::now();
        while !group.is_reached() {
            if start.elapsed() > watch_max() {
                return self.wait(group).map(drop);
            }
            // Where no word is written the answer tells.
            self.poll();
            std::hint::spin_loop();
        }
        Ok(())
    }

    /// Looks at the GPU's word, and at what arrives meanwhile. True when the word is there and all that was sent before it
    /// has been taken in: false when the answer came first, or neither came soon.
    ///
    /// Only the thread that reads may trust the word: faults of earlier calls lie in the link in front of it.
    fn watch(&self, incoming: &mut Incoming, group: &Group) -> bool {
        let Some(word) = &group.word else {
            return false;
        };
        let start = Instant::now();
        let mut naps = None;
        loop {
            let mut written = false;
            for look in 0..WATCH_LOOKS {
                written = word.is_written();
                if written {
                    break;
                }
                // A pause takes 140 cycles: not at every look.
                if look % 8 == 7 {
                    std::hint::spin_loop();
                }
            }
            self.take_in(incoming);
            if group.is_complete() || self.gone.load(Ordering::Acquire) {
                return false;
            }
            // Data of earlier copies comes through the link: its answers precede this one's.
            if written && self.landing.load(Ordering::Acquire) == 0 {
                return true;
            }
            let waited = start.elapsed();
            if waited > watch_max() {
                if is_few_cores() {
                    return false;
                }
                naps.get_or_insert_with(Naps::new).nap(waited);
            } else if is_few_cores() {
                std::thread::yield_now();
            }
        }
    }

    /// Looks whether anything has arrived, without waiting.
    pub(crate) fn poll(&self) {
        if let Some(mut incoming) = self.receiver.try_lock() {
            self.take_in(&mut incoming);
            drop(incoming);
            self.hand_over();
        }
    }

    /// As `poll`; true where the GPU's word is there and all that was sent before it has been taken in.
    pub(crate) fn look(&self, group: &Group) -> bool {
        let written = group.word.as_ref().is_some_and(Word::is_written);
        let Some(mut incoming) = self.receiver.try_lock() else {
            return false;
        };
        self.take_in(&mut incoming);
        drop(incoming);
        self.hand_over();
        written && self.landing.load(Ordering::Acquire) == 0
    }

    /// What has arrived. A program that only ever asks "are you done" learns of the server's end too.
    fn take_in(&self, incoming: &mut Incoming) {
        while let Ok(true) = self.take_next(incoming, Wait::Poll) {}
    }

    /// From now on something can arrive that no thread waits for.
    pub(crate) fn attend(self: &'static Session) {
        if self.unattended.fetch_add(1, Ordering::AcqRel) > 0 {
            return;
        }
        let (started, wake) = &self.attend;
        let mut started = started.lock();
        if !*started {
            *started = notes::spawn("outboard-reader", move || self.read_unattended());
        }
        wake.notify_all();
    }

    /// What `attend` announced has arrived.
    pub(crate) fn attended(&self) {
        let _ = self
            .unattended
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |n| n.checked_sub(1));
    }

    fn read_unattended(&self) {
        loop {
            {
                let (started, wake) = &self.attend;
                let mut guard = started.lock();
                while self.unattended.load(Ordering::Acquire) == 0 {
                    wake.wait(&mut guard);
                }
            }
            if self.gone.load(Ordering::Acquire) {
                return;
            }
            // Most programs wait for what they asked for, and read faster than this thread could wake them.
            std::thread::sleep(Duration::from_micros(GRACE_US));
            if self.unattended.load(Ordering::Acquire) == 0 || self.someone_waits() {
                continue;
            }
            let Some(mut incoming) = self.receiver.try_lock() else {
                continue;
            };
            self.lead(&mut incoming, || {
                self.unattended.load(Ordering::Acquire) == 0 || self.someone_waits()
            });
            drop(incoming);
            self.hand_over();
        }
    }

    fn someone_waits(&self) -> bool {
        self.waiters
            .lock()
            .values()
            .any(|e| e.group.waiting.load(Ordering::Acquire) > 0)
    }

    /// Reads for everybody until `enough`.
    fn lead(&self, incoming: &mut Incoming, enough: impl Fn() -> bool) {
        // What ends the wait may come on a lane: waking from a wait for this connection would take longer.
        if self.lanes.awaited.load(Ordering::Acquire) > 0 && self.look_busily(incoming, &enough) {
            return;
        }
        while !enough() {
            let wait = Wait::Until(Instant::now() + Duration::from_millis(LEAD_MS_MAX));
            if self.take_next(incoming, wait).is_err() {
                return;
            }
        }
    }

    /// Looks busily at what arrives, for a while, where there are cores to spare. True when that was enough.
    fn look_busily(&self, incoming: &mut Incoming, enough: &impl Fn() -> bool) -> bool {
        let start = Instant::now();
        while !is_few_cores() && start.elapsed() < watch_max() {
            for _ in 0..WATCH_LOOKS {
                if enough() {
                    return true;
                }
                std::hint::spin_loop();
            }
            self.take_in(incoming);
        }
        false
    }

    /// Lets one of those who still wait read for the rest.
    fn hand_over(&self) {
        let next = self
            .waiters
            .lock()
            .values()
            .map(|e| e.group.clone())
            .find(|g| g.waiting.load(Ordering::Acquire) > 0);
        if let Some(group) = next {
            group.state.lock().lead = true;
            group.changed.notify_all();
        }
    }
}

fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, |cores| cores.get()))
}

pub(crate) fn is_few_cores() -> bool {
    cores() <= 2
}

fn watch_max() -> Duration {
    Duration::from_micros(if is_few_cores() {
        WATCH_FEW_CORES_US_MAX
    } else {
        WATCH_US_MAX
    })
}
