//! Memory of a queue to whose ring `include/outboard/net.cuh` posts, all in one block, whoever
//! executes what is posted there.
//!
//! ```text
//!     0  counters, a line each, as `Counter` in net_shared.cuh says
//!  1024  result of additions of signals
//!  1088  completion (collapsed)      1152  doorbell record
//!  4096  doorbell page               8192  receives, and the ring behind them
//!  pages behind it: its completions (plain); completions of receives, bits of filled entries
//! ```
//!
//! Bits of filled entries that are in a GPU's memory follow the counters there.

use std::{
    ops::Range,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use crate::{
    adapter::RECEIVE_BYTES,
    claim::Claim,
    completions::check,
    cqe::CQE_BYTES,
    error::Error,
    memory::Mapped,
    syndrome::Syndrome,
    wqe::{BLOCK_BYTES, ENTRIES_MAX},
};

const RESERVED: usize = 0;
const USED: usize = 64;
const RINGING: usize = 128;
const RUNG: usize = 192;
pub(crate) const DONE: usize = 256;
pub(crate) const ERROR: usize = 320;
pub(crate) const BASE: usize = 384;
pub(crate) const CONSUMED: usize = 512;
pub(crate) const RECEIVES_RESERVED: usize = 576;
pub(crate) const RECEIVES_READY: usize = 640;
pub(crate) const RECEIVES_CONSUMED: usize = 704;
const FORCING: usize = 768;
/// Word that is 1 while the adapter sleeps, of counters on the host.
pub(crate) const ASLEEP: usize = 896;
pub(crate) const SCRATCH: usize = 1024;
pub(crate) const COMPLETION: usize = 1088;
pub(crate) const RECORD: usize = 1152;
pub(crate) const PAGE: usize = 4096;
const RECEIVES: usize = 8192;
pub(crate) const PAGE_BYTES: usize = 4096;
const _: () = assert!(RECEIVES as u64 == outboard_wire::doc::NET_CONTROL_BYTES);
/// Bytes of the counters without the bits of filled entries.
pub(crate) const COUNTERS_BYTES: usize = 1024;
/// Numbers from here on are given while a queue is put back: nothing is posted by them.
const CLOSED: u64 = 1 << 62;
pub(crate) const DOORBELL: usize = PAGE + 0x800;

/// Sizes of a ring: threads of a warp that post together need room for all of them.
const LOG_MIN: u32 = 5;
const LOG_MAX: u32 = ENTRIES_MAX.ilog2();
/// Entries that one post reserves at most: the threads of a warp.
const TOGETHER_MAX: u32 = 32;
/// Time that a reset waits for threads which are about to post.
pub(crate) const RESET: Duration = Duration::from_secs(1);
/// The number of an entry that is after all others.
pub(crate) const ALL: u64 = u64::MAX >> 8;
/// Entries after which indices begin again, and after which rings of completions do.
pub(crate) const ROUND: u64 = 1 << 16;
/// Times that a message is sent again to a peer without a receive: without end.
pub(crate) const WITHOUT_END: u32 = 7;

/// Completions of the send queue lie in a ring, rather than over one another.
pub const PLAIN: u32 = 1;
/// A message waits for its receive without end.
pub const PATIENT: u32 = 2;
/// An entry succeeds when it is sent: it may be lost. Of the adapter in software alone.
pub const UNRELIABLE: u32 = 32;
/// One thread, warp or block posts at a time.
pub const EXCLUSIVE: u32 = 4;
/// The adapter is where the GPU is, and the program's memory is a copy: of an [`Export`] alone.
pub(crate) const REMOTE: u32 = 64;
/// The counters are in the memory of the GPU that posts: of an [`Export`] alone.
pub(crate) const OF_GPU: u32 = 8;

/// Properties of a queue: `struct outboard_net_queue_options`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Options {
    /// The ring has 2^`log_blocks` entries.
    pub log_blocks: u32,
    /// 2^`log_receives` receives; 0 if nothing is received.
    pub log_receives: u32,
    /// Each such entry asks for a completion; 0 stands for 1.
    pub signal_every: u32,
    /// [`PLAIN`], [`PATIENT`], [`EXCLUSIVE`], [`UNRELIABLE`].
    pub flags: u32,
    /// The address of [`Options::counters_bytes`] zeroed bytes in the memory of the GPU that posts;
    /// 0 for counters in the queue's own memory.
    pub counters: u64,
}

impl Options {
    pub(crate) fn check(&self) -> Result<(), Error> {
        if !(LOG_MIN..=LOG_MAX).contains(&self.log_blocks) {
            return Err(Error::Size {
                what: "queue",
                log_min: LOG_MIN,
                log_max: LOG_MAX,
                given: self.log_blocks,
            });
        }
        if self.log_receives > LOG_MAX {
            let (log_max, given) = (LOG_MAX, self.log_receives);
            return Err(Error::Receives { log_max, given });
        }
        // A warp that waits for room must have an entry before it that completes.
        let every_max = (1 << self.log_blocks) - TOGETHER_MAX + 1;
        if self.signal_every > every_max {
            let given = self.signal_every;
            return Err(Error::SignalEvery { every_max, given });
        }
        if !self.counters.is_multiple_of(64) {
            return Err(Error::Counters(self.counters));
        }
        self.counters_range()?;
        match self.flags & !(PLAIN | PATIENT | EXCLUSIVE | UNRELIABLE) {
            0 => Ok(()),
            unknown => Err(Error::Flags(unknown)),
        }
    }

    /// Addresses of the counters that are not in the queue's own memory.
    pub(crate) fn counters_range(&self) -> Result<Range<u64>, Error> {
        let (address, bytes) = (self.counters, self.counters_bytes() as u64);
        let end = address
            .checked_add(bytes)
            .ok_or(Error::Wraps { address, bytes })?;
        Ok(address..end)
    }

    pub(crate) fn are_counters_of_gpu(&self) -> bool {
        self.counters != 0
    }

    pub(crate) fn is_plain(&self) -> bool {
        self.flags & PLAIN != 0
    }

    pub(crate) fn ring_bytes(&self) -> usize {
        BLOCK_BYTES << self.log_blocks.min(LOG_MAX)
    }

    pub(crate) fn receives(&self) -> usize {
        match self.log_receives.min(LOG_MAX) {
            0 => 0,
            log => 1 << log,
        }
    }

    /// Receives come before the ring, as adapters have it, and begin a page.
    pub(crate) fn receives_at(&self) -> usize {
        RECEIVES
    }

    pub(crate) fn ring_at(&self) -> usize {
        RECEIVES + (self.receives() * RECEIVE_BYTES).next_multiple_of(BLOCK_BYTES)
    }

    /// Completions begin a page, for adapters.
    pub(crate) fn completions_at(&self) -> usize {
        (self.ring_at() + self.ring_bytes()).next_multiple_of(PAGE_BYTES)
    }

    pub(crate) fn receive_completions_at(&self) -> usize {
        let completions = match self.is_plain() {
            true => CQE_BYTES << self.log_blocks.min(LOG_MAX),
            false => 0,
        };
        (self.completions_at() + completions).next_multiple_of(PAGE_BYTES)
    }

    pub(crate) fn filled_at(&self) -> usize {
        self.receive_completions_at() + self.receives() * CQE_BYTES
    }

    /// Bytes with a bit for each entry, in whole words.
    pub(crate) fn filled_bytes(&self) -> usize {
        (1usize << self.log_blocks.min(LOG_MAX)).div_ceil(64) * 8
    }

    /// Bytes of the counters and bits of such a queue, for those who have them elsewhere.
    #[must_use]
    pub fn counters_bytes(&self) -> usize {
        COUNTERS_BYTES + self.filled_bytes()
    }

    /// Bytes of the block of such a queue: whole pages, since `cudaHostAlloc` aligns less to pages.
    #[must_use]
    pub fn bytes(&self) -> usize {
        (self.filled_at() + self.filled_bytes()).next_multiple_of(PAGE_BYTES)
    }
}

/// A queue as kernels take it by value: `struct outboard_net_queue`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Export {
    pub ring: u64,
    pub record: u64,
    pub doorbell: u64,
    pub completion: u64,
    pub counters: u64,
    pub filled: u64,
    pub scratch: u64,
    pub receives: u64,
    pub receive_completions: u64,
    pub scratch_key: u32,
    pub qpn: u32,
    pub log_blocks: u32,
    pub log_receives: u32,
    pub signal_every: u32,
    pub flags: u32,
}

impl Export {
    /// Returns a queue of a block at an address, with these numbers.
    pub(crate) fn at(base: u64, options: &Options, qpn: u32, scratch_key: u32) -> Export {
        let at = |offset: usize| base + offset as u64;
        let (counters, filled, of_gpu) = match options.counters {
            0 => (at(0), at(options.filled_at()), 0),
            of_gpu => (of_gpu, of_gpu + COUNTERS_BYTES as u64, OF_GPU),
        };
        let completion = match options.is_plain() {
            true => options.completions_at(),
            false => COMPLETION,
        };
        Export {
            ring: at(options.ring_at()),
            record: at(RECORD),
            doorbell: at(DOORBELL),
            completion: at(completion),
            counters,
            filled,
            scratch: at(SCRATCH),
            receives: at(options.receives_at()),
            receive_completions: at(options.receive_completions_at()),
            scratch_key,
            qpn,
            log_blocks: options.log_blocks,
            log_receives: options.log_receives,
            signal_every: options.signal_every.max(1),
            flags: options.flags | of_gpu,
        }
    }
}

/// The memory of a queue, which no other queue of this process has.
#[derive(Debug)]
pub(crate) struct Block {
    _claims: Vec<Claim>,
    pub(crate) memory: Mapped,
    pub(crate) options: Options,
}

impl Block {
    /// Takes a block, whose old contents are lost.
    pub(crate) fn take(memory: Mapped, options: Options) -> Result<Block, Error> {
        options.check()?;
        check(&memory, "a queue", options.bytes(), PAGE_BYTES)?;
        let range = memory.address()..memory.address() + options.bytes() as u64;
        let mut claims = vec![Claim::take("a queue", range)?];
        if options.are_counters_of_gpu() {
            claims.push(Claim::take(
                "a queue's counters",
                options.counters_range()?,
            )?);
        }
        let filled = options.filled_at()..options.filled_at() + options.filled_bytes();
        for at in (0..RECEIVES).chain(filled).step_by(8) {
            memory.u64(at).store(0, Ordering::Relaxed);
        }
        Ok(Block {
            _claims: claims,
            memory,
            options,
        })
    }

    /// Returns the queue as kernels take it, with these numbers.
    pub(crate) fn export(&self, qpn: u32, scratch_key: u32) -> Export {
        Export::at(self.memory.address(), &self.options, qpn, scratch_key)
    }

    pub(crate) fn part(&self, offset: usize, bytes: usize) -> Result<Mapped, Error> {
        part(&self.memory, offset, bytes)
    }

    /// Lets threads post after a reset.
    pub(crate) fn connected(&self) {
        self.memory.u64(ERROR).store(0, Ordering::Release);
    }

    /// Returns the entry that failed first, and its syndrome, as the queue's threads have noted it.
    pub(crate) fn failure(&self) -> Option<(u16, u8)> {
        let error = self.memory.u64(ERROR).load(Ordering::Acquire);
        let base = self.memory.u64(BASE).load(Ordering::Acquire);
        (error != 0 && error >> 8 >= base).then_some(((error >> 8) as u16, error as u8))
    }

    /// Puts the queue back to its start by a function that does so where entries are executed, and
    /// returns the number of the next completion, or none if a new round of them begins.
    ///
    /// Waits for earlier entries fail from now on, and posts fail until it is connected again.
    /// Threads of the CPU and of the software device may be using it.
    pub(crate) fn reset(
        &self,
        qpn: u32,
        again: impl FnOnce(&Mapped) -> Result<Option<u64>, Error>,
    ) -> Result<(), Error> {
        if self.options.are_counters_of_gpu() {
            return Err(Error::CountersOfGpu(qpn));
        }
        let deadline = Instant::now() + RESET;
        let filled_at = self.options.filled_at();
        self.reset_with(qpn, (&self.memory, filled_at), deadline, again)
    }

    /// Puts a queue back whose counters are in a GPU's memory: `counters` is a copy of them, to be
    /// copied back afterwards. No thread may be using the queue.
    pub(crate) fn reset_counters(
        &self,
        qpn: u32,
        counters: &Mapped,
        again: impl FnOnce(&Mapped) -> Result<Option<u64>, Error>,
    ) -> Result<(), Error> {
        let bytes = self.options.counters_bytes();
        if !self.options.are_counters_of_gpu() {
            return Err(Error::CountersOfQueue(qpn));
        }
        check(counters, "a queue's counters", bytes, 8)?;
        self.reset_with(qpn, (counters, COUNTERS_BYTES), Instant::now(), again)?;
        counters.u64(ERROR).store(0, Ordering::Release);
        Ok(())
    }

    fn reset_with(
        &self,
        qpn: u32,
        (counters, filled_at): (&Mapped, usize),
        deadline: Instant,
        again: impl FnOnce(&Mapped) -> Result<Option<u64>, Error>,
    ) -> Result<(), Error> {
        counters
            .u64(ERROR)
            .store(ALL << 8 | u64::from(Syndrome::FLUSHED.0), Ordering::SeqCst);
        let reserved = close(qpn, counters, deadline)?;
        let started = receives_base(qpn, counters, deadline).and_then(|base| {
            let next = again(counters);
            if next.is_err() {
                // The round is not begun: another try finds what is ready reserved.
                let ready = counters.u64(RECEIVES_READY).load(Ordering::Acquire);
                let reserved = counters.u64(RECEIVES_RESERVED);
                reserved.store(ready, Ordering::Release);
            }
            next.map(|next| (base, next))
        });
        let (receives_base, next) = match started {
            Ok(started) => started,
            Err(error) => {
                counters.u64(RESERVED).store(reserved, Ordering::Release);
                return Err(error);
            }
        };
        // Numbers of completions never begin again: a thread with an old one takes none by it.
        let consumed = counters.u64(CONSUMED).load(Ordering::Acquire);
        let consumed = next.unwrap_or(next_round(consumed));
        counters.u64(CONSUMED).store(consumed, Ordering::Release);
        counters.u64(FORCING).store(0, Ordering::Release);
        for at in [RECEIVES_READY, RECEIVES_CONSUMED] {
            counters.u64(at).store(receives_base, Ordering::Release);
        }
        for at in (0..self.options.filled_bytes()).step_by(8) {
            counters.u64(filled_at + at).store(0, Ordering::Release);
        }
        // A round of indices is an even number of rounds of the ring, so that all bits begin as 0.
        let base = next_round(reserved);
        for at in [BASE, RUNG] {
            counters.u64(at).store(base, Ordering::Release);
        }
        self.open(counters, reserved, base);
        Ok(())
    }

    /// Gives back the entries that were not complete, each once, and gives numbers from `base` on.
    fn open(&self, counters: &Mapped, reserved: u64, base: u64) {
        let done = counters.u64(DONE).swap(base, Ordering::AcqRel);
        if self.options.flags & EXCLUSIVE == 0 {
            let flushed = reserved.saturating_sub(done);
            counters.u64(USED).fetch_sub(flushed, Ordering::AcqRel);
        }
        counters.u64(RESERVED).store(base, Ordering::Release);
    }
}

/// Fails what a queue's completions do not say is done, for threads that wait: whoever executes its
/// entries is gone. A failure that is there already stays.
///
/// `completion` is the offset of those that are written over one another.
pub(crate) fn lose(memory: &Mapped, options: &Options, completion: usize) {
    if options.are_counters_of_gpu() || memory.len() < options.bytes() {
        return;
    }
    let mut done = memory.u64(DONE).load(Ordering::Acquire);
    if !options.is_plain() {
        // Those who post alone leave it to the completion to say what is done.
        let last = memory.u64(completion + CQE_BYTES - 8);
        let last = last.load(Ordering::Acquire).to_le_bytes();
        let ahead = u16::from_be_bytes([last[4], last[5]]).wrapping_sub(done as u16);
        match last[7] >> 4 {
            0 if ahead < 1 << 15 => done += u64::from(ahead) + 1,
            13 if ahead < 1 << 15 => return,
            _ => {}
        }
    }
    let old = memory.u64(ERROR).load(Ordering::Acquire);
    if old == 0 || old >> 8 < memory.u64(BASE).load(Ordering::Acquire) {
        let gone = done << 8 | u64::from(Syndrome::RETRIES_EXCEEDED.0);
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        let error = memory.u64(ERROR);
        // A thread that has found another failure was first.
        let _ = error.compare_exchange(old, gone, success, failure);
    }
}

/// Returns the first number of the round after this number, which may be any: it is the program's.
pub(crate) fn next_round(number: u64) -> u64 {
    (number | (ROUND - 1)).wrapping_add(1)
}

/// Waits until nobody is about to post, and gives no more numbers. Returns the next one.
fn close(qpn: u32, counters: &Mapped, deadline: Instant) -> Result<u64, Error> {
    let word = counters.u64(RESERVED);
    until(qpn, deadline, || {
        let reserved = word.load(Ordering::Acquire);
        let is_quiet = counters.u64(RUNG).load(Ordering::Acquire) == reserved
            && counters.u64(RINGING).load(Ordering::Acquire) == 0;
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        let closed = || word.compare_exchange(reserved, CLOSED, success, failure);
        (is_quiet && closed().is_ok()).then_some(reserved)
    })
}

/// Waits until nobody is about to post a receive, and reserves all numbers of this round.
pub(crate) fn receives_base(qpn: u32, counters: &Mapped, deadline: Instant) -> Result<u64, Error> {
    let word = counters.u64(RECEIVES_RESERVED);
    until(qpn, deadline, || {
        let reserved = word.load(Ordering::Acquire);
        let base = next_round(reserved);
        let is_quiet = counters.u64(RECEIVES_READY).load(Ordering::Acquire) == reserved;
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        let moved = || word.compare_exchange(reserved, base, success, failure);
        (is_quiet && moved().is_ok()).then_some(base)
    })
}

fn until(qpn: u32, deadline: Instant, mut get: impl FnMut() -> Option<u64>) -> Result<u64, Error> {
    loop {
        if let Some(got) = get() {
            return Ok(got);
        }
        if Instant::now() > deadline {
            return Err(Error::Posting(qpn));
        }
        std::thread::yield_now();
    }
}

pub(crate) fn part(block: &Mapped, offset: usize, bytes: usize) -> Result<Mapped, Error> {
    let given = block.len();
    block.part(offset, bytes).ok_or(Error::Memory {
        what: "a queue",
        bytes,
        alignment: 64,
        given,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_reset_that_fails_can_be_tried_again() {
        let options = Options {
            log_blocks: 5,
            log_receives: 3,
            ..Options::default()
        };
        let memory = Mapped::allocate(options.bytes()).unwrap();
        let block = Block::take(memory, options).unwrap();
        for at in [RECEIVES_RESERVED, RECEIVES_READY] {
            block.memory.u64(at).store(3, Ordering::Relaxed);
        }
        for _ in 0..2 {
            let failed = block.reset(1, |_| Err(Error::NoPair(7)));
            assert!(matches!(failed, Err(Error::NoPair(7))), "{failed:?}");
        }
        block.reset(1, |_| Ok(None)).unwrap();
        for at in [RECEIVES_RESERVED, RECEIVES_READY, RECEIVES_CONSUMED] {
            assert_eq!(block.memory.u64(at).load(Ordering::Relaxed), ROUND);
        }
    }

    #[test]
    fn what_completed_before_a_session_was_lost_stays_done_wherever_its_completion_lies() {
        let options = Options {
            log_blocks: 5,
            ..Options::default()
        };
        for completion in [COMPLETION, PAGE] {
            let memory = Mapped::allocate(options.bytes()).unwrap();
            for at in [COMPLETION, PAGE] {
                // Another one, which nobody has written.
                let last = memory.u64(at + CQE_BYTES - 8);
                last.store(0xf0_u64.to_be(), Ordering::Relaxed);
            }
            // The third entry is complete.
            let last = memory.u64(completion + CQE_BYTES - 8);
            last.store((2_u64 << 16).to_be(), Ordering::Relaxed);
            lose(&memory, &options, completion);
            let error = memory.u64(ERROR).load(Ordering::Relaxed);
            assert_eq!(error, 3 << 8 | u64::from(Syndrome::RETRIES_EXCEEDED.0));
        }
    }
}
