//! Waiting: the leading thread reads the board's word, and the link for all threads.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use outboard_api::CUresult;
use outboard_link::{Wait, cores};

use super::{Group, Incoming, Session, board::Word};
use crate::{
    backoff::Backoff,
    library_thread,
    observe::{stats, times},
};

/// Time for which a thread reads the board's word without a pause, with cores to spare; the
/// driver's own waits never pause. After that it sleeps between looks, for 1/256 of the time
/// already waited.
const WATCH_US_MAX: u64 = 5_000;
/// Time for which a thread reads the board's word on one or two cores, where the server needs one.
const WATCH_FEW_CORES_US_MAX: u64 = 20;
/// Reads of the word for each poll of the link.
const WATCH_LOOKS: u32 = 64;
/// Time for which the library's own reader leaves the link to the program's threads.
const GRACE_US: u64 = 200;
/// Time after which a following thread checks by itself whether it can lead.
const FOLLOW_MS_MAX: u64 = 100;
/// Time for which the leading thread reads before it checks whether to continue.
pub(super) const LEAD_MS_MAX: u64 = 200;

impl Session {
    /// Waits until a group is complete. Returns an error if the server is gone.
    pub(crate) fn wait(&self, group: &Arc<Group>) -> Result<Vec<u8>, CUresult> {
        stats::waited();
        self.waits.fetch_add(1, Ordering::AcqRel);
        // An error means that the session has ended, which is noticed below.
        let _ = self.send_batch();
        times::waiting(|| self.wait_for_group(group, None));
        group.take()
    }

    /// Returns the number of waits of the program's threads so far.
    pub(crate) fn waits(&self) -> u64 {
        self.waits.load(Ordering::Acquire)
    }

    /// Waits until a group is complete, at most until `deadline`; returns `None` if it is not
    /// complete by then. Its answers may still come: the group can be waited for again.
    pub(crate) fn wait_until(
        &self,
        group: &Arc<Group>,
        deadline: Instant,
    ) -> Option<Result<Vec<u8>, CUresult>> {
        // The end of the session is noticed below.
        let _ = self.send_batch();
        self.wait_for_group(group, Some(deadline))
            .then(|| group.take())
    }

    /// Returns whether the group, or the GPU's word for it, is there: false only if there is a
    /// deadline.
    fn wait_for_group(&self, group: &Arc<Group>, deadline: Option<Instant>) -> bool {
        let is_late = || deadline.is_some_and(|deadline| Instant::now() >= deadline);
        let mut in_time = true;
        group.waiting.fetch_add(1, Ordering::AcqRel);
        // In one order with the lead: a leader that leaves finds this thread counted, or this
        // thread finds that the lead is free.
        self.waiting.fetch_add(1, Ordering::SeqCst);
        loop {
            if group.is_complete() {
                break;
            }
            if is_late() {
                in_time = false;
                break;
            }
            // The thread counts as waiting before it tries: a leader that leaves in between passes
            // the lead to it.
            if let Some(mut incoming) = self.receiver.try_lock() {
                let seen = self.watch(&mut incoming, group);
                if !seen {
                    self.lead(&mut incoming, || group.is_complete() || is_late());
                }
                drop(incoming);
                self.hand_over(Some(group));
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
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        group.waiting.fetch_sub(1, Ordering::AcqRel);
        // The lead may have come to this group just before a data connection completed it.
        let has_lead = std::mem::take(&mut group.state.lock().lead);
        if has_lead {
            self.hand_over(None);
        }
        in_time
    }

    /// Waits until the GPU has reached a point, without handling the server's messages: for a
    /// thread that copies part of the data that another thread waits for.
    pub(crate) fn wait_for_bytes(&self, group: &Arc<Group>) -> Result<(), CUresult> {
        // An error means that the session has ended, which is noticed below.
        let _ = self.send_batch();
        let start = Instant::now();
        while !group.is_reached() {
            if start.elapsed() > watch_max() {
                return self.wait(group).map(drop);
            }
            // Without a word, the reply ends the wait.
            self.poll();
            std::hint::spin_loop();
        }
        Ok(())
    }

    /// Reads the board's word, and handles messages that arrive meanwhile. Returns true once the
    /// word is written and all messages sent before it have been handled, and false if the reply
    /// came first or neither came soon.
    ///
    /// Only the thread that reads the link may trust the word: errors of earlier calls may still be
    /// in the link.
    fn watch(&self, incoming: &mut Incoming, group: &Group) -> bool {
        let Some(word) = &group.word else {
            return false;
        };
        let start = Instant::now();
        let mut backoff = None;
        loop {
            let mut written = false;
            for look in 0..WATCH_LOOKS {
                written = word.is_written();
                if written {
                    break;
                }
                // A pause takes 140 cycles, too many for every read.
                if look % 8 == 7 {
                    std::hint::spin_loop();
                }
            }
            self.take_in(incoming);
            if group.is_complete() || self.gone.load(Ordering::Acquire) {
                return false;
            }
            // Data of earlier copies arrives through the link, and must come before this wait ends.
            if written && self.receiving.load(Ordering::Acquire) == 0 {
                return true;
            }
            let waited = start.elapsed();
            if waited > watch_max() {
                if cores::are_few() {
                    return false;
                }
                backoff.get_or_insert_with(Backoff::new).sleep(waited);
            } else if cores::are_few() {
                std::thread::yield_now();
            }
        }
    }

    /// Handles messages that have arrived, without waiting.
    pub(crate) fn poll(&self) {
        if let Some(mut incoming) = self.receiver.try_lock() {
            self.take_in(&mut incoming);
            drop(incoming);
            self.hand_over(None);
        }
    }

    /// Handles messages that have arrived. Returns true if the board's word is written and all
    /// messages sent before it have been handled.
    pub(crate) fn look(&self, group: &Group) -> bool {
        let written = group.word.as_ref().is_some_and(Word::is_written);
        let Some(mut incoming) = self.receiver.try_lock() else {
            return false;
        };
        self.take_in(&mut incoming);
        drop(incoming);
        self.hand_over(None);
        written && self.receiving.load(Ordering::Acquire) == 0
    }

    /// Handles all messages that have arrived. Programs that only query notice the server's end
    /// here too.
    fn take_in(&self, incoming: &mut Incoming) {
        while let Ok(true) = self.take_next(incoming, Wait::Poll) {}
    }

    /// Announces that something can arrive that no thread waits for.
    pub(crate) fn attend(self: &'static Session) {
        if self.unattended.fetch_add(1, Ordering::AcqRel) > 0 {
            return;
        }
        let (started, wake) = &self.attend;
        let mut started = started.lock();
        if !*started {
            *started = library_thread::spawn("outboard-reader", move || self.read_unattended());
        }
        wake.notify_all();
    }

    /// Asks for what can arrive while no thread waits for it.
    pub(crate) fn attending<R>(
        self: &'static Session,
        ask: impl FnOnce() -> Result<R, CUresult>,
    ) -> Result<R, CUresult> {
        self.attend();
        ask().inspect_err(|_| self.attended())
    }

    /// Ends a copy of which only some pieces could be asked for: `left` replies will not come.
    /// Those of the others are written to the program's memory, so a copy that is waited for ends
    /// after them. Returns the error.
    pub(crate) fn end_in_part(
        &self,
        group: &Arc<Group>,
        left: usize,
        detached: bool,
        error: CUresult,
    ) -> CUresult {
        for _ in 0..left {
            group.complete(Err(error));
        }
        if !detached {
            // Its error is the one at hand, or came later.
            let _ = self.wait(group);
        }
        error
    }

    /// Notes that what `attend` announced has arrived.
    pub(crate) fn attended(&self) {
        let _ = self
            .unattended
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |n| n.checked_sub(1));
    }

    /// Sends what is long while another thread reads, if a reply is expected: the server may be
    /// sending, too, and would take nothing.
    pub(crate) fn read_meanwhile<R>(&'static self, send: impl FnOnce() -> R) -> R {
        if self.waiters.lock().is_empty() {
            return send();
        }
        self.attend();
        let sent = send();
        self.attended();
        sent
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
            // Most programs wait for the result, and read sooner than this thread could wake them.
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
            self.hand_over(None);
        }
    }

    fn someone_waits(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
    }

    /// Reads for all threads until `enough` returns true.
    fn lead(&self, incoming: &mut Incoming, enough: impl Fn() -> bool) {
        // The wait may end by data on a data connection: waking from a wait on this connection
        // would take longer.
        if self.data_connections.awaited.load(Ordering::Acquire) > 0
            && self.look_busily(incoming, &enough)
        {
            return;
        }
        while !enough() {
            let wait = Wait::Until(Instant::now() + Duration::from_millis(LEAD_MS_MAX));
            if self.take_next(incoming, wait).is_err() {
                return;
            }
        }
    }

    /// Spins for messages for a while, if there are cores to spare. Returns whether `enough` became
    /// true.
    fn look_busily(&self, incoming: &mut Incoming, enough: &impl Fn() -> bool) -> bool {
        let start = Instant::now();
        while !cores::are_few() && start.elapsed() < watch_max() {
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

    /// Passes the lead to a thread that still waits. `own` is the group that the calling thread
    /// counts as waiting for, if it does. A program may expect many replies and ask for one after
    /// another: without others that wait, none of them is looked at.
    fn hand_over(&self, own: Option<&Arc<Group>>) {
        if self.waiting.load(Ordering::SeqCst) <= usize::from(own.is_some()) {
            return;
        }
        if let Some(group) = self.awaited_by_another(own) {
            group.state.lock().lead = true;
            group.changed.notify_all();
        }
    }

    /// Returns a group that a thread waits for, other than the calling one.
    pub(super) fn awaited_by_another(&self, own: Option<&Arc<Group>>) -> Option<Arc<Group>> {
        let waiters = self.waiters.lock();
        let mut groups = waiters.values().map(|expected| &expected.group);
        let awaited = groups.find(|group| {
            let is_own = own.is_some_and(|own| Arc::ptr_eq(own, group));
            group.waiting.load(Ordering::Acquire) > usize::from(is_own)
        });
        awaited.cloned()
    }
}

fn watch_max() -> Duration {
    Duration::from_micros(if cores::are_few() {
        WATCH_FEW_CORES_US_MAX
    } else {
        WATCH_US_MAX
    })
}
