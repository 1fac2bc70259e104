//! Copies from the device into mirrored memory, and work that waits for them.
//!
//! Such a copy must not overtake what kernels wrote there before. So it decides by which way it
//! comes while it holds `copying` shared, until its requests are sent, if its bytes may be mirrored
//! at all. The thread that opens a mirror takes `copying` exclusively for one moment, from which on
//! copies into that memory come in order. Then it waits for those that were sent before. While it
//! waits it does not hold `copying`: a copy that it waits for may itself wait for what another
//! thread does after its next copy.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use outboard_api::CUresult;
use parking_lot::RwLockReadGuard;
use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    Driver, StreamRef,
    host_memory::{HostMemory, HostRange},
    mirror::Mirror,
};
use crate::{log, session::MirrorCopy};

/// Time limit for work that first names memory to wait for copies into it that are under way.
const COPY_WAIT_MAX: Duration = Duration::from_secs(60);

/// Time for which the thread that opens a mirror keeps copies of other threads from beginning,
/// before it reads the link for those that are being sent.
const COPYING_PAUSE: Duration = Duration::from_millis(10);

/// Time limit for work to wait for copies into mirrors that it does not name.
const FOLLOWED_COPY_WAIT_MAX: Duration = Duration::from_secs(2);

/// Time limit for later copies of a stream whose last one did not come in that time.
const DOUBTED_COPY_WAIT_MAX: Duration = Duration::from_millis(10);

/// Short waits in vain for a stream's copies before the next wait is a long one again. Each long
/// wait in vain multiplies that number by the factor, up to the limit.
const SHORT_WAITS_MIN: u32 = 1;
const SHORT_WAITS_FACTOR: u32 = 4;
const SHORT_WAITS_MAX: u32 = 1024;

/// Streams whose copies launches wait for shortly.
///
/// One copy that is slow says little about the next: only a stream whose copies are held each time
/// is waited for shortly nearly always.
#[derive(Default)]
pub(super) struct Doubts {
    by_stream: FxHashMap<u64, Doubt>,
    /// Number of launches that went on without copies of a stream.
    missed: u64,
}

/// Short waits for a stream's copies: those to come before a long one, and all between two.
struct Doubt {
    left: u32,
    all: u32,
}

impl Doubts {
    /// Returns the streams of these copies that are to be waited for shortly.
    fn among(&self, copies: &[MirrorCopy]) -> FxHashSet<u64> {
        let is_short = |of: &u64| self.by_stream.get(of).is_some_and(|doubt| doubt.left > 0);
        copies.iter().map(|(_, of)| *of).filter(is_short).collect()
    }

    fn has_come(&mut self, of: u64) {
        self.by_stream.remove(&of);
    }

    fn has_not_come(&mut self, of: u64, was_short: bool) {
        match self.by_stream.get_mut(&of) {
            Some(doubt) if was_short => doubt.left = doubt.left.saturating_sub(1),
            Some(doubt) => {
                doubt.all = (doubt.all * SHORT_WAITS_FACTOR).min(SHORT_WAITS_MAX);
                doubt.left = doubt.all;
            }
            None => {
                let all = SHORT_WAITS_MIN;
                self.by_stream.insert(of, Doubt { left: all, all });
            }
        }
    }
}

impl Driver {
    /// Keeps the way by which copies into these bytes come as it is, until it is dropped: the
    /// caller decides about a copy from the device, and sends it. `None` if the server maps the
    /// bytes, or they are not pinned: no mirror is of them, and threads that copy share no lock.
    pub(crate) fn copying_out(&self, address: u64, bytes: u64) -> Option<RwLockReadGuard<'_, ()>> {
        HostMemory::may_be_private(address, bytes).then(|| self.mirrors.copying.read())
    }

    /// Returns whether copies into some memory come in order.
    pub(super) fn orders_copies(&self) -> bool {
        self.mirrors.ordered.load(Ordering::Acquire) > 0
    }

    /// Makes copies into this memory that are not sent yet come after what kernels write there
    /// before them.
    pub(super) fn order_copies(&self, mirror: &Mirror) -> Result<(), CUresult> {
        let begin = Instant::now();
        while !mirror.orders_copies() {
            if let Some(_none_is_sent) = self.mirrors.copying.try_write_for(COPYING_PAUSE) {
                if !mirror.orders_copies.swap(true, Ordering::AcqRel) {
                    self.mirrors.ordered.fetch_add(1, Ordering::AcqRel);
                }
                return Ok(());
            }
            self.session.check()?;
            // A thread that sends may wait for the server, which waits until replies are read.
            self.session.poll();
            if begin.elapsed() > COPY_WAIT_MAX {
                log::warn(format_args!(
                    "work that first names pinned memory is refused: copies of other threads could not be sent in {} s",
                    COPY_WAIT_MAX.as_secs()
                ));
                return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
            }
        }
        Ok(())
    }

    pub(super) fn leave_copies_unordered(&self, mirror: &Mirror) {
        if mirror.orders_copies.swap(false, Ordering::AcqRel) {
            self.mirrors.ordered.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Waits for copies into this memory that are under way: work that reads the mirror would miss
    /// them. A copy may itself wait for a later act of the calling thread, and never arrive; then
    /// the work is refused.
    pub(super) fn wait_for_copies(&self, range: &HostRange) -> Result<(), CUresult> {
        let copies = self.session.copies_into(range.base, range.bytes, false);
        if self.wait_until_come(copies, COPY_WAIT_MAX) {
            return Ok(());
        }
        log::warn(format_args!(
            "work that first names pinned memory while a copy is on its way into it, which has not come in {} s, is not supported: a stream may wait for what comes later",
            COPY_WAIT_MAX.as_secs()
        ));
        Err(CUresult::CUDA_ERROR_NOT_SUPPORTED)
    }

    /// Waits for copies into this memory that other threads wait for, and that do not come in
    /// order: they could come after what kernels write later.
    pub(super) fn wait_for_awaited_copies(&self, range: &HostRange) {
        let copies = self.session.copies_into(range.base, range.bytes, true);
        if !self.wait_until_come(copies, FOLLOWED_COPY_WAIT_MAX) {
            log::warn(format_args!(
                "a copy into pinned memory that another thread waits for may be written over what kernels write there later: it has not come in {} s",
                FOLLOWED_COPY_WAIT_MAX.as_secs()
            ));
        }
    }

    /// Waits until these copies have come. Returns false if they have not by then.
    pub(super) fn wait_until_come(&self, mut copies: Vec<u32>, time: Duration) -> bool {
        let begin = Instant::now();
        while !copies.is_empty() {
            if begin.elapsed() > time {
                return false;
            }
            self.session.poll();
            std::thread::yield_now();
            self.session.retain_expected(&mut copies);
        }
        true
    }

    /// Waits for copies into mirrors that are under way now and that work in this stream may come
    /// after. A copy may itself wait for a later act of the calling thread: the wait has a bound,
    /// and no copy is waited for again.
    #[cold]
    pub(super) fn wait_for_copies_before(&self, stream: &StreamRef) {
        let mut copies = self.session.copies_into_mirrors(|of| stream.may_follow(of));
        let begin = Instant::now();
        let doubted = self.mirrors.doubts.lock().among(&copies);
        let is_late = |(_, of): &mut MirrorCopy| {
            let bound = match doubted.contains(of) {
                true => DOUBTED_COPY_WAIT_MAX,
                false => FOLLOWED_COPY_WAIT_MAX,
            };
            begin.elapsed() > bound
        };
        let mut missed = FxHashSet::default();
        while !copies.is_empty() {
            self.session.poll();
            let arrived = self.session.take_arrived(&mut copies);
            if !arrived.is_empty() {
                let mut doubts = self.mirrors.doubts.lock();
                arrived.iter().for_each(|(_, of)| doubts.has_come(*of));
            }
            let late: Vec<_> = copies.extract_if(.., is_late).collect();
            self.session.give_up(&late);
            missed.extend(late.into_iter().map(|(_, of)| of));
            std::thread::yield_now();
        }
        for of in missed {
            self.missed(of, doubted.contains(&of));
        }
    }

    /// Notes that a launch has gone on without copies of a stream, and says so at powers of two.
    fn missed(&self, of: u64, was_doubted: bool) {
        let mut doubts = self.mirrors.doubts.lock();
        doubts.has_not_come(of, was_doubted);
        doubts.missed += 1;
        let missed = doubts.missed;
        drop(doubts);
        if missed.is_power_of_two() {
            log::warn(format_args!(
                "a kernel that reads pinned memory by a pointer in the GPU's memory may miss a copy into it, which has not come in {} ms ({missed} such launches); after one of {} s later ones of the stream are mostly waited for for {} ms, until one comes in that time",
                match was_doubted {
                    true => DOUBTED_COPY_WAIT_MAX.as_millis(),
                    false => FOLLOWED_COPY_WAIT_MAX.as_millis(),
                },
                FOLLOWED_COPY_WAIT_MAX.as_secs(),
                DOUBTED_COPY_WAIT_MAX.as_millis()
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One slow copy costs one launch its bytes; a stream whose copies are always held costs few
    /// long waits.
    #[test]
    fn a_stream_is_waited_for_at_length_again() {
        let mut doubts = Doubts::default();
        let wait = |doubts: &mut Doubts| {
            let is_short = doubts.among(&[(1, 7), (2, 8)]).contains(&7);
            doubts.has_not_come(7, is_short);
            !is_short
        };
        let long: Vec<usize> = (0..1400).filter(|_| wait(&mut doubts)).collect();
        assert_eq!(long, [0, 2, 7, 24, 89, 346, 1371]);
        assert!(doubts.among(&[(1, 7)]).contains(&7));
        doubts.has_come(7);
        assert!(doubts.among(&[(1, 7)]).is_empty());
        assert!(wait(&mut doubts) && !wait(&mut doubts) && wait(&mut doubts));
    }
}
