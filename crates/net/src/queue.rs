//! A queue pair with all of its memory in one block, as `include/outboard/net.cuh` posts to it.
//!
//! ```text
//!     0  counters, a line each: reserved, ready, ringing, rung, done, error, base
//!   512  result of additions of signals
//!  1024  completion (collapsed)      1088  doorbell record
//!  4096  doorbell page               8192  ring
//! ```

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use crate::{
    adapter::{PairSetup, Retries},
    completions::{CompletionsSetup, check},
    error::Error,
    keys::Access,
    memory::Mapped,
    nic::Nic,
    syndrome::Syndrome,
};

const RESERVED: usize = 0;
const READY: usize = 64;
const RUNG: usize = 192;
const DONE: usize = 256;
const ERROR: usize = 320;
const BASE: usize = 384;
const SCRATCH: usize = 512;
const COMPLETION: usize = 1024;
const RECORD: usize = 1088;
const PAGE: usize = 4096;
const RING: usize = 8192;
const PAGE_BYTES: usize = 4096;
const DOORBELL: usize = PAGE + 0x800;

/// Sizes of a ring: threads of a warp that post together need room for all of them.
const LOG_MIN: u32 = 5;
const LOG_MAX: u32 = 15;
/// Time that a reset waits for threads which are about to post.
const RESET: Duration = Duration::from_secs(1);
/// The number of an entry that is after all others.
const ALL: u64 = u64::MAX >> 8;
/// Entries after which indices begin again.
const ROUND: u64 = 1 << 16;
/// Domain of all queues of a C program.
const DOMAIN: u32 = 1;

/// A queue as kernels take it by value: `struct outboard_net_queue`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Export {
    pub ring: u64,
    pub record: u64,
    pub doorbell: u64,
    pub completion: u64,
    pub counters: u64,
    pub scratch: u64,
    pub scratch_key: u32,
    pub qpn: u32,
    pub log_blocks: u32,
    pub reserved: u32,
}

/// A queue pair and its block of memory.
#[derive(Debug)]
pub struct Queue {
    block: Mapped,
    completions: u32,
    export: Export,
    retries: Retries,
}

impl Queue {
    /// Bytes of a block whose ring has 2^`log_blocks` entries.
    #[must_use]
    pub fn bytes(log_blocks: u32) -> usize {
        RING + (64_usize << log_blocks.min(LOG_MAX))
    }

    /// Makes a queue pair in a block, whose old contents are lost.
    pub fn create(
        nic: &Nic,
        block: Mapped,
        log_blocks: u32,
        retries: Retries,
    ) -> Result<Queue, Error> {
        if !(LOG_MIN..=LOG_MAX).contains(&log_blocks) {
            let (what, log_min, log_max) = ("queue", LOG_MIN, LOG_MAX);
            return Err(Error::Size {
                what,
                log_min,
                log_max,
                given: log_blocks,
            });
        }
        check(&block, "a queue", Queue::bytes(log_blocks), PAGE_BYTES)?;
        for at in (0..RING).step_by(8) {
            block.u64(at).store(0, Ordering::Relaxed);
        }
        nic.with(|adapter| {
            let completions = adapter.create_completions(completions(&block)?)?;
            let qpn = adapter.create_pair(pair(&block, completions, log_blocks, retries)?)?;
            let scratch = part(&block, SCRATCH, 64)?;
            let scratch_key = adapter.register(DOMAIN, scratch, Access::LOCAL_WRITE)?;
            let at = |offset: usize| block.address() + offset as u64;
            let export = Export {
                ring: at(RING),
                record: at(RECORD),
                doorbell: at(DOORBELL),
                completion: at(COMPLETION),
                counters: at(0),
                scratch: at(SCRATCH),
                scratch_key,
                qpn,
                log_blocks,
                reserved: 0,
            };
            Ok(Queue {
                block,
                completions,
                export,
                retries,
            })
        })
    }

    #[must_use]
    pub fn export(&self) -> Export {
        self.export
    }

    /// Connects two queues, which may be one.
    pub fn connect(nic: &Nic, one: &Queue, other: &Queue) -> Result<(), Error> {
        let (a, b) = (one.export.qpn, other.export.qpn);
        nic.with(|adapter| {
            let (of_a, of_b) = (adapter.end_of(a)?, adapter.end_of(b)?);
            adapter.connect(a, of_b)?;
            adapter.connect(b, of_a)
        })?;
        for queue in [one, other] {
            queue.block.u64(ERROR).store(0, Ordering::Release);
        }
        Ok(())
    }

    /// Puts the queue back to its start. Waits for earlier entries fail from now on, and posts fail
    /// until it is connected again. Threads of the CPU and of the software device may be using it.
    pub fn reset(&self, nic: &Nic) -> Result<(), Error> {
        let block = &self.block;
        block
            .u64(ERROR)
            .store(ALL << 8 | u64::from(Syndrome::FLUSHED.0), Ordering::SeqCst);
        let deadline = Instant::now() + RESET;
        let base = loop {
            let reserved = block.u64(RESERVED).load(Ordering::Acquire);
            let base = (reserved + 1).next_multiple_of(ROUND);
            let is_quiet = block.u64(READY).load(Ordering::Acquire) == reserved
                && block.u64(128).load(Ordering::Acquire) == 0;
            let word = block.u64(RESERVED);
            let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
            if is_quiet
                && word
                    .compare_exchange(reserved, base, success, failure)
                    .is_ok()
            {
                break base;
            }
            if Instant::now() > deadline {
                return Err(Error::Posting(self.export.qpn));
            }
            std::thread::yield_now();
        };
        nic.with(|adapter| {
            block.u64(RECORD).store(0, Ordering::Relaxed);
            block.u64(DOORBELL).store(0, Ordering::Relaxed);
            adapter.reset_completions(self.completions, completions(block)?)?;
            let setup = pair(
                block,
                self.completions,
                self.export.log_blocks,
                self.retries,
            )?;
            adapter.reset(self.export.qpn, setup)
        })?;
        for at in [BASE, READY, RUNG, DONE] {
            block.u64(at).store(base, Ordering::Release);
        }
        Ok(())
    }
}

fn part(block: &Mapped, offset: usize, bytes: usize) -> Result<Mapped, Error> {
    let given = block.len();
    block.part(offset, bytes).ok_or(Error::Memory {
        what: "a queue",
        bytes,
        alignment: 64,
        given,
    })
}

fn completions(block: &Mapped) -> Result<CompletionsSetup, Error> {
    let entries = part(block, COMPLETION, 64)?;
    Ok(CompletionsSetup {
        entries,
        log_entries: 0,
        collapsed: true,
        record: None,
    })
}

fn pair(
    block: &Mapped,
    completions: u32,
    log_blocks: u32,
    retries: Retries,
) -> Result<PairSetup, Error> {
    Ok(PairSetup {
        domain: DOMAIN,
        send_completions: completions,
        receive_completions: completions,
        ring: part(block, RING, 64_usize << log_blocks.min(LOG_MAX))?,
        log_blocks,
        receives: None,
        record: part(block, RECORD, 8)?,
        page: part(block, PAGE, PAGE_BYTES)?,
        retries,
    })
}
