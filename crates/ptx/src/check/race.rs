//! Races: two accesses of one location by different threads, at least one of them a write, at most
//! one of them strong (atomic, volatile or with an ordering), with nothing that orders them.
//!
//! Accesses are ordered by:
//! - a barrier of the block; one of part of a block counts as one of all, which may hide a race but
//!   never invents one;
//! - within a warp, `bar.warp.sync` (`__syncwarp`);
//! - a strong write or atomic after a fence in one thread, and later a strong read or atomic in the
//!   other. Their locations are not compared, and any thread of another block counts, which again
//!   only hides races;
//! - the end of a launch.
//!
//! Not reported, as by compute-sanitizer: threads that write equal values that nobody reads; plain
//! reads of what others write by atomics, with which loops around `atomicCAS` begin; and memory
//! from `malloc` in kernels, which changes hands.

use rustc_hash::FxHashMap;

use crate::lanes::lanes;

/// A thread's access, with its position in the order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    pub(crate) block: u64,
    /// Number of the thread in its block.
    pub(crate) thread: u32,
    /// The instruction.
    pub(crate) pc: u32,
    pub(crate) strong: bool,
    /// Barriers that the block has passed, and synchronisations that the warp has passed.
    phase: u32,
    warp_phase: u32,
    /// Synchronising operations before it, of all threads.
    time: u32,
}

/// The last accesses of four bytes of memory.
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    write: Option<(Access, u8, Option<u32>)>,
    /// Reads of two threads, so that a writer that has read itself is still compared with another
    /// reader.
    reads: [Option<(Access, u8)>; 2],
}

/// Times at which a thread or block published its accesses, and last learnt of others'.
#[derive(Debug, Default)]
struct Sync {
    published: Vec<u32>,
    learnt: u32,
    fenced: bool,
}

impl Sync {
    /// Whether the accesses of `self` at `time` are ordered before what `other` does now.
    fn known_to(&self, time: u32, other: &Sync) -> bool {
        let next = self.published.partition_point(|at| *at <= time);
        self.published
            .get(next)
            .is_some_and(|at| *at < other.learnt)
    }
}

#[derive(Debug, Default)]
struct BlockState {
    phase: u32,
    warp_phases: [u32; 32],
    sync: Sync,
    threads: FxHashMap<u32, Sync>,
    shared: FxHashMap<u64, Cell>,
}

/// Two accesses without an order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Race {
    pub(crate) earlier: Access,
    pub(crate) earlier_writes: bool,
    pub(crate) later: Access,
    pub(crate) later_writes: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Races {
    time: u32,
    blocks: FxHashMap<u64, BlockState>,
    global: FxHashMap<u64, Cell>,
}

/// The memory that an access touches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Touch {
    pub(crate) shared: bool,
    /// Address, or offset in shared memory.
    pub(crate) at: u64,
    pub(crate) bytes: u32,
    pub(crate) read: bool,
    pub(crate) write: bool,
    /// The value, if it is known and has at most 4 bytes.
    pub(crate) value: Option<u32>,
}

impl Races {
    /// Makes an access of a thread at its current time.
    pub(crate) fn now(&mut self, block: u64, thread: u32, pc: u32, strong: bool) -> Access {
        let time = self.time;
        let state = self.blocks.entry(block).or_default();
        Access {
            block,
            thread,
            pc,
            strong,
            phase: state.phase,
            warp_phase: state.warp_phases[thread as usize / 32 % 32],
            time,
        }
    }

    pub(crate) fn barrier(&mut self, block: u64) {
        self.blocks.entry(block).or_default().phase += 1;
    }

    pub(crate) fn warp_sync(&mut self, block: u64, warp: u32) {
        self.blocks.entry(block).or_default().warp_phases[(warp & 31) as usize] += 1;
    }

    pub(crate) fn fence(&mut self, block: u64, warp: u32, mask: u32) {
        let state = self.blocks.entry(block).or_default();
        state.sync.fenced = true;
        for lane in lanes(mask) {
            state
                .threads
                .entry(warp * 32 + lane as u32)
                .or_default()
                .fenced = true;
        }
    }

    /// Handles a strong access: publishes what its thread did before its fence, and learns what
    /// others published.
    pub(crate) fn strong(&mut self, access: &Access, reads: bool, writes: bool, orders: bool) {
        let state = self.blocks.entry(access.block).or_default();
        let thread = state.threads.entry(access.thread).or_default();
        let fenced = orders || thread.fenced || state.sync.fenced;
        self.time += 2;
        for sync in [&mut state.sync, thread] {
            if reads {
                sync.learnt = self.time;
            }
            if writes && fenced {
                sync.published.push(self.time + 1);
            }
        }
        self.time += 2;
    }

    /// Forgets the shared memory of a block that is done.
    pub(crate) fn finished(&mut self, block: u64) {
        if let Some(state) = self.blocks.get_mut(&block) {
            state.shared = FxHashMap::default();
        }
    }

    fn ordered(&self, earlier: &Access, later: &Access) -> bool {
        let (Some(a), Some(b)) = (
            self.blocks.get(&earlier.block),
            self.blocks.get(&later.block),
        ) else {
            return false;
        };
        if earlier.block != later.block {
            return a.sync.known_to(earlier.time, &b.sync);
        }
        let same_warp = earlier.thread / 32 == later.thread / 32;
        earlier.thread == later.thread
            || earlier.phase != later.phase
            || same_warp && earlier.warp_phase != later.warp_phase
            || match (a.threads.get(&earlier.thread), b.threads.get(&later.thread)) {
                (Some(a), Some(b)) => a.known_to(earlier.time, b),
                _ => false,
            }
    }

    /// Notes an access; returns the first race that it is part of.
    pub(crate) fn touch(&mut self, access: Access, touch: Touch) -> Option<Race> {
        let end = touch.at + u64::from(touch.bytes);
        let mut race = None;
        for word in touch.at / 4..end.div_ceil(4) {
            let from = touch.at.max(word * 4) % 4;
            let to = (end - word * 4).min(4);
            let mask = (0xf << from & !(0xf << to)) as u8;
            let cell = match touch.shared {
                true => self
                    .blocks
                    .get(&access.block)
                    .and_then(|b| b.shared.get(&word)),
                false => self.global.get(&word),
            };
            let mut cell = cell.copied().unwrap_or_default();
            let found = self.conflict(&cell, &access, mask, touch);
            race = race.or(found);
            if touch.write {
                // Earlier reads have been compared with the write, so later accesses need not be
                // compared with them.
                cell.write = Some((access, mask, touch.value));
                cell.reads = [None; 2];
            } else if touch.read {
                let same = |slot: &Option<(Access, u8)>| {
                    slot.is_none_or(|(a, _)| a.thread == access.thread && a.block == access.block)
                };
                let slot = if same(&cell.reads[0]) { 0 } else { 1 };
                cell.reads[slot] = Some((access, mask));
            }
            match touch.shared {
                true => self
                    .blocks
                    .entry(access.block)
                    .or_default()
                    .shared
                    .insert(word, cell),
                false => self.global.insert(word, cell),
            };
        }
        race
    }

    fn conflict(&self, cell: &Cell, access: &Access, mask: u8, touch: Touch) -> Option<Race> {
        let clash = |earlier: &Access, bytes: u8, strong: bool| {
            bytes & mask != 0 && !strong && !self.ordered(earlier, access)
        };
        let race = |earlier: Access, earlier_writes: bool| Race {
            earlier,
            earlier_writes,
            later: *access,
            later_writes: touch.write,
        };
        if let Some((earlier, bytes, value)) = cell.write {
            let same_value = touch.write && !touch.read && value.is_some() && value == touch.value;
            // A plain read beside strong writes is the start of a loop around atomicCAS.
            let strong = earlier.strong && (access.strong || !touch.write);
            if clash(&earlier, bytes, strong) && !same_value {
                return Some(race(earlier, true));
            }
        }
        let mut reads = cell.reads.iter().flatten();
        let read =
            reads.find(|(earlier, bytes)| touch.write && clash(earlier, *bytes, access.strong));
        read.map(|(earlier, _)| race(*earlier, false))
    }
}
