//! Races: two accesses of one place by different threads, at least one a write, at most one of them strong (atomic,
//! volatile or with an ordering), and nothing that orders them.
//!
//! What orders accesses:
//! - within a block, a barrier of it; one of part of a block counts as one of all, which may hide a race and invents none;
//! - within a warp, `bar.warp.sync` (`__syncwarp`);
//! - a strong write or atomic behind a fence in the one thread, and later a strong read or atomic in the other. Which location they
//!   use is not looked at, and of another block any thread counts: this too only hides;
//! - the end of a launch.
//!
//! Threads that write the same value where nobody reads are left alone, as compute-sanitizer does; so are plain reads of what others write
//! by atomics, with which loops around `atomicCAS` begin, and memory from `malloc` in kernels, which changes hands.

use rustc_hash::FxHashMap;

use crate::interp::lanes::lanes;

/// A thread's access, as much as orders need.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    pub(crate) block: u64,
    /// In its block.
    pub(crate) thread: u32,
    /// The instruction.
    pub(crate) pc: u32,
    pub(crate) strong: bool,
    /// Barriers that the block, and synchronisations that the warp, has passed.
    phase: u32,
    warp_phase: u32,
    /// Synchronising operations before it, of all threads.
    time: u32,
}

/// What is known of four bytes of memory.
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    write: Option<(Access, u8, Option<u32>)>,
    /// Two threads, so that no writer mistakes its own read for the only one.
    reads: [Option<(Access, u8)>; 2],
}

/// When a thread or block let others know what it did, and when it last learnt.
#[derive(Debug, Default)]
struct Sync {
    published: Vec<u32>,
    learnt: u32,
    fenced: bool,
}

impl Sync {
    /// Whether what this one did at `time` is known to `other`.
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

/// Two accesses that nothing orders.
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

/// What an access touches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Touch {
    pub(crate) shared: bool,
    /// Address, or offset in shared memory.
    pub(crate) at: u64,
    pub(crate) bytes: u32,
    pub(crate) read: bool,
    pub(crate) write: bool,
    /// The value, where it is known: 4 bytes at most.
    pub(crate) value: Option<u32>,
}

impl Races {
    /// Where a thread is in its own time.
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

    /// A strong access: lets others know of what lies before its thread's fence, learns what they let know.
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

    /// The block is done: its shared memory is no more.
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

    /// Notes an access; the first race that it makes.
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
                // Reads before it have been compared with it; later accesses need not be compared with them again.
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
            // A plain read beside strong writes is how loops around atomicCAS begin.
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
