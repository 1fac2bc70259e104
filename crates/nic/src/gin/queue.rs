//! Queue pairs of a context: one for each of its parts and ranks, and requests that are posted.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use outboard_net::{
    Access, CompletionsSetup, Mapped, PairSetup, Retries,
    cqe::{CQE_BYTES, Completion},
    wqe::{BLOCK_BYTES, Entry, Flags, Operation, Segment},
};
use parking_lot::Mutex;

use crate::host::{connect, leave, ring, with};

use super::{Failure, Outcome, abi::REMOTE_ERROR, broken, group::Member, refused, wrong};

const LOG_BLOCKS: u32 = 10;
const BLOCKS: u64 = 1 << LOG_BLOCKS;
/// Queues that a communicator may have.
const QUEUES_MAX: usize = 1 << 14;
/// Memory of a queue: its ring, then its completion, record, and room for what atomics return.
const COMPLETION: usize = BLOCK_BYTES << LOG_BLOCKS;
const RECORD: usize = COMPLETION + CQE_BYTES;
const SCRATCH: usize = RECORD + 64;
const MEMORY_BYTES: usize = SCRATCH + 64;
const PAGE_BYTES: usize = 4096;
const DOORBELL: usize = 0x800;
pub(super) const WORD_BYTES: u32 = 8;
/// Time in which a full queue has to move on.
const FULL: Duration = Duration::from_secs(30);
const LAST_WORD: usize = CQE_BYTES - 8;

/// Ranks, and the queues of versions 11 and 12, which have them without a context.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) member: Member,
    pub(super) own: Option<Arc<Queues>>,
}

/// Queues by context and rank.
#[derive(Debug)]
pub(super) struct Queues {
    pub(super) rank: usize,
    pub(super) domain: u32,
    rows: Vec<Vec<Mutex<Queue>>>,
}

/// A queue pair of which each entry is one block, with a collapsed completion queue.
#[derive(Debug)]
pub(super) struct Queue {
    qpn: u32,
    completions: u32,
    scratch_key: u32,
    memory: Mapped,
    page: Mapped,
    /// Entries that were posted, and of these complete.
    posted: u64,
    completed: u64,
    failure: Option<u8>,
}

/// An operation: it is done when its last entry is.
#[derive(Debug)]
pub(super) struct Request {
    queues: Arc<Queues>,
    context: usize,
    rank: usize,
    entry: u64,
}

impl Queues {
    /// Makes queues to all ranks, which do so, too, and connects them.
    pub(super) fn make(member: &Member, contexts: usize) -> Outcome<Queues> {
        let made = make_rows(member, contexts);
        // Numbers of all queues of a rank; none if it has failed.
        let count = contexts.saturating_mul(member.ranks);
        let mut told = vec![0; if count > QUEUES_MAX { 0 } else { count * 4 }];
        let numbers = made.iter().flatten().flatten().map(|of| of.lock().qpn);
        for (to, number) in told.chunks_exact_mut(4).zip(numbers) {
            to.copy_from_slice(&number.to_le_bytes());
        }
        let all = member.gather(&told)?;
        let connected = made.and_then(|rows| {
            let (rank, domain) = (member.rank, member.domain);
            let queues = Queues { rank, domain, rows };
            queues.connect(member.ranks, &all).map(|()| queues)
        });
        // Nobody posts before the peers' queues are connected.
        let all = member.gather(&[u8::from(connected.is_ok())]);
        let queues = connected?;
        match all?.iter().all(|is_connected| *is_connected == 1) {
            true => Ok(queues),
            false => Err(broken("another rank has not connected its queues")),
        }
    }

    /// Connects each queue to that of its rank, by the numbers that all ranks have told.
    fn connect(&self, ranks: usize, told: &[u8]) -> Outcome<()> {
        let count = self.rows.len() * ranks;
        for (context, row) in self.rows.iter().enumerate() {
            for (rank, queue) in row.iter().enumerate() {
                let at = (rank * count + context * ranks + self.rank) * 4;
                let number = told[at..at + 4].iter().rev();
                let peer = number.fold(0, |sum, byte| sum << 8 | u32::from(*byte));
                connect(queue.lock().qpn, peer).map_err(refused)?;
            }
        }
        Ok(())
    }

    pub(super) fn queue(&self, context: usize, rank: usize) -> Outcome<&Mutex<Queue>> {
        match self.rows.get(context).and_then(|row| row.get(rank)) {
            Some(queue) => Ok(queue),
            None => wrong(format!("there is no rank {rank} of context {context}")),
        }
    }

    /// Returns true if a queue has failed.
    pub(super) fn has_failed(&self) -> bool {
        let mut all = self.rows.iter().flatten();
        all.any(|queue| {
            let mut queue = queue.lock();
            queue.look();
            queue.failure.is_some()
        })
    }
}

fn make_rows(member: &Member, contexts: usize) -> Outcome<Vec<Vec<Mutex<Queue>>>> {
    if contexts == 0 || contexts.saturating_mul(member.ranks) > QUEUES_MAX {
        return wrong(format!("{contexts} contexts of {} ranks", member.ranks));
    }
    let row = |_| {
        let queues = (0..member.ranks).map(|_| Queue::make(member.domain).map(Mutex::new));
        queues.collect()
    };
    (0..contexts).map(row).collect()
}

impl Queue {
    fn make(domain: u32) -> Outcome<Queue> {
        let none = || broken("no memory for a queue");
        let memory = Mapped::allocate(MEMORY_BYTES).ok_or_else(none)?;
        let page = Mapped::allocate(PAGE_BYTES).ok_or_else(none)?;
        let part = |at, bytes| memory.part(at, bytes).ok_or_else(none);
        let entries = part(COMPLETION, CQE_BYTES)?.into();
        let (ring, record) = (part(0, COMPLETION)?.into(), part(RECORD, 8)?.into());
        let scratch = part(SCRATCH, WORD_BYTES as usize)?;
        let (qpn, completions, scratch_key) = with(|adapter| {
            let completions = adapter.create_completions(CompletionsSetup {
                entries,
                log_entries: 0,
                collapsed: true,
                record: None,
            })?;
            let made = adapter.create_pair(PairSetup {
                domain,
                send_completions: completions,
                receive_completions: completions,
                ring,
                log_blocks: LOG_BLOCKS,
                receives: None,
                record,
                page: page.clone(),
                retries: Retries::default(),
            });
            let registered = adapter.register(domain, scratch, Access::ALL);
            match (made, registered) {
                (Ok(qpn), Ok(key)) => Ok((qpn, completions, key)),
                (made, registered) => {
                    let _ = made.as_ref().map(|qpn| adapter.destroy_pair(*qpn));
                    let _ = registered.as_ref().map(|key| adapter.unregister(*key));
                    adapter.destroy_completions(completions)?;
                    made.and(registered).map(|key| (0, completions, key))
                }
            }
        })
        .map_err(refused)?;
        Ok(Queue {
            qpn,
            completions,
            scratch_key,
            memory,
            page,
            posted: 0,
            completed: 0,
            failure: None,
        })
    }

    /// The place of a word that an atomic returns.
    pub(super) fn scratch(&self) -> Segment {
        Segment {
            length: WORD_BYTES,
            lkey: self.scratch_key,
            address: self.memory.address() + SCRATCH as u64,
        }
    }

    /// Posts operations, and rings once for all of them.
    pub(super) fn post(&mut self, operations: impl Iterator<Item = Operation>) -> Outcome<()> {
        for operation in operations {
            self.wait_for_room()?;
            let entry = Entry {
                index: self.posted as u16,
                qpn: self.qpn,
                flags: Flags::SIGNALLED,
                operation,
            };
            let slot = (self.posted % BLOCKS) as usize;
            self.memory.write(slot * BLOCK_BYTES, &entry.encode());
            self.posted += 1;
        }
        self.ring();
        Ok(())
    }

    fn ring(&self) {
        use std::sync::atomic::Ordering::Release;
        let index = u32::from(self.posted as u16);
        self.memory.u32(RECORD + 4).store(index.to_be(), Release);
        let rung = u64::from(index << 8) << 32 | u64::from(self.qpn << 8);
        self.page.u64(DOORBELL).store(rung.to_be(), Release);
        ring();
    }

    /// Waits until a full ring has room.
    fn wait_for_room(&mut self) -> Outcome<()> {
        if self.posted - self.completed < BLOCKS {
            return Ok(());
        }
        self.ring();
        let (before, deadline) = (self.completed, Instant::now() + FULL);
        loop {
            self.look();
            self.check()?;
            if self.completed > before {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(broken("a queue is full, and nothing completes"));
            }
            ring();
        }
    }

    /// Reads the completion, which is that of the last entry that is done.
    fn look(&mut self) {
        let last = self.memory.u64(COMPLETION + LAST_WORD);
        let last = last.load(std::sync::atomic::Ordering::Acquire);
        let mut bytes = [0; CQE_BYTES];
        let (head, tail) = bytes.split_at_mut(LAST_WORD);
        tail.copy_from_slice(&last.to_ne_bytes());
        // An error stays, so that what is read after its last word is of it.
        self.memory.read(COMPLETION, head);
        let Some((done, _)) = Completion::parse(&bytes) else {
            return;
        };
        if done.is_error() {
            self.failure = Some(done.syndrome);
            return;
        }
        let ahead = done
            .index
            .wrapping_add(1)
            .wrapping_sub(self.completed as u16);
        self.completed += u64::from(ahead);
    }

    fn check(&self) -> Outcome<()> {
        match self.failure {
            None => Ok(()),
            Some(syndrome) => Err(Failure {
                result: REMOTE_ERROR,
                why: format!("queue {:#x}: syndrome {syndrome:02x}", self.qpn),
            }),
        }
    }

    /// Number of the next entry.
    pub(super) fn posted(&self) -> u64 {
        self.posted
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        leave(self.qpn);
        let _ = with(|adapter| {
            adapter.destroy_pair(self.qpn)?;
            adapter.destroy_completions(self.completions)?;
            adapter.unregister(self.scratch_key)
        });
    }
}

impl Request {
    pub(super) fn new(queues: Arc<Queues>, context: usize, rank: usize, entry: u64) -> Request {
        Request {
            queues,
            context,
            rank,
            entry,
        }
    }

    /// Returns true if it is done; an error if it, or one before it, has failed.
    pub(super) fn is_done(&self) -> Outcome<bool> {
        let queue = self.queues.queue(self.context, self.rank)?;
        let mut queue = queue.lock();
        queue.look();
        if self.entry < queue.completed {
            return Ok(true);
        }
        queue.check().map(|()| false)
    }
}
