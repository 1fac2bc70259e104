//! A watched launch.

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::race::{Race, Races, Touch};
use super::seed::Dice;
use super::{Checker, Sources};
use crate::code::{Op, Program};
use crate::lanes::lanes;
use crate::memory::{Memory, Ranges};

pub(crate) struct Watching<'w> {
    checker: &'w Checker,
    kernel: &'w str,
    program: &'w Program,
    sources: &'w Sources,
    memory: &'w Memory,
    block: [u32; 3],
    grid: [u32; 3],
    pub(crate) dice: Option<Dice>,
    races: Mutex<Races>,
    /// For each block, a bit for each byte of shared memory.
    shared_written: Mutex<FxHashMap<u64, crate::written::Written>>,
}

/// The accesses of an instruction: host addresses of the lanes.
pub(crate) struct Accesses<'a> {
    pub(crate) pc: u32,
    pub(crate) block: u64,
    pub(crate) warp: u32,
    pub(crate) mask: u32,
    pub(crate) at: &'a [u64; 32],
    pub(crate) bytes: u32,
    pub(crate) write: bool,
    pub(crate) ranges: &'a Ranges,
    /// The heap of `malloc` in kernels: address and size.
    pub(crate) heap: (u64, u64),
    /// The block's shared memory: address and size.
    pub(crate) shared: (u64, u64),
    /// Values that are stored, if they have at most 4 bytes.
    pub(crate) values: Option<&'a [u32; 32]>,
}

impl<'w> Watching<'w> {
    pub(crate) fn new(
        checker: &'w Checker,
        kernel: &'w str,
        (program, sources): (&'w Program, &'w Sources),
        memory: &'w Memory,
        [grid, block]: [[u32; 3]; 2],
    ) -> Self {
        Watching {
            dice: checker.next_seed().map(Dice::new),
            checker,
            kernel,
            program,
            sources,
            memory,
            block,
            grid,
            races: Mutex::default(),
            shared_written: Mutex::default(),
        }
    }

    pub(crate) fn barrier(&self, block: u64) {
        if self.checker.checks.race {
            self.races.lock().barrier(block);
        }
    }

    pub(crate) fn warp_sync(&self, block: u64, warp: u32) {
        if self.checker.checks.race {
            self.races.lock().warp_sync(block, warp);
        }
    }

    pub(crate) fn fence(&self, block: u64, warp: u32, mask: u32) {
        if self.checker.checks.race {
            self.races.lock().fence(block, warp, mask);
        }
    }

    pub(crate) fn finished(&self, block: u64) {
        self.races.lock().finished(block);
        self.shared_written.lock().remove(&block);
    }

    /// Reports threads of a block that reached a barrier at different places although all were
    /// expected at one.
    pub(crate) fn barriers_differ(&self, block: u64, first: (u32, u32), other: (u32, u32)) {
        if !self.checker.checks.barrier {
            return;
        }
        let lines = [first.1, other.1].map(|pc| self.line(pc));
        self.checker
            .report("diverged barrier", self.kernel, lines, || {
                format!(
                    "block {}: {} waits at the barrier of {}, {} at that of {}",
                    self.block_name(block),
                    self.thread_name(first.0),
                    self.sources.describe(lines[0]),
                    self.thread_name(other.0),
                    self.sources.describe(lines[1]),
                )
            });
    }

    /// Checks accesses before they are made. All are in bounds.
    pub(crate) fn accesses(&self, all: &Accesses<'_>) {
        let op = &self.program.code[all.pc as usize].op;
        let plain = matches!(
            op,
            Op::Ld { .. }
                | Op::St { .. }
                | Op::LdVec { .. }
                | Op::StVec { .. }
                | Op::CpAsync { .. }
                | Op::Tensor { .. }
        );
        let mbarrier = matches!(op, Op::Mbarrier { .. });
        let ordered = mbarrier || self.program.strong.binary_search(&all.pc).is_ok();
        for lane in lanes(all.mask) {
            let at = all.at[lane];
            let offset = at.wrapping_sub(all.shared.0);
            let shared = offset < all.shared.1;
            let touch = Touch {
                shared,
                at: if shared { offset } else { at },
                bytes: all.bytes,
                // Reads of an mbarrier before its initialisation are not reported.
                read: !all.write || !plain && !mbarrier,
                write: all.write,
                value: all.values.filter(|_| all.bytes <= 4).map(|v| v[lane]),
            };
            let thread = all.warp * 32 + lane as u32;
            if !shared && !all.ranges.is_known(at) {
                continue;
            }
            if self.checker.checks.uninitialised && (shared || all.ranges.is_device(at)) {
                self.initialised(all, touch, thread);
            }
            let heap = at.wrapping_sub(all.heap.0) < all.heap.1;
            if self.checker.checks.race && (shared || !heap) {
                let mut races = self.races.lock();
                let access = races.now(all.block, thread, all.pc, !plain || ordered);
                if access.strong {
                    races.strong(&access, touch.read, touch.write, ordered);
                }
                if let Some(race) = races.touch(access, touch) {
                    self.race(race, touch);
                }
            }
        }
    }

    fn initialised(&self, all: &Accesses<'_>, touch: Touch, thread: u32) {
        let bytes = u64::from(touch.bytes);
        let mut known = true;
        if touch.shared {
            let mut shared = self.shared_written.lock();
            let written = shared.entry(all.block).or_default();
            known = !touch.read || written.holds(touch.at, bytes);
            if touch.write {
                written.set(touch.at, bytes);
            }
        } else if let Some(mut written) = self.memory.written() {
            known = !touch.read || written.holds(touch.at, bytes);
            if touch.write {
                written.set(touch.at, bytes);
            }
        }
        if !known {
            let line = self.line(all.pc);
            self.checker
                .report("uninitialised memory", self.kernel, [line; 2], || {
                    format!(
                        "block {}, {} reads {} that nobody has written, {}",
                        self.block_name(all.block),
                        self.thread_name(thread),
                        place(touch),
                        self.sources.describe(line),
                    )
                });
        }
    }

    fn race(&self, race: Race, touch: Touch) {
        let lines = [race.earlier, race.later].map(|access| self.line(access.pc));
        let does = |writes| if writes { "writes" } else { "reads" };
        self.checker.report("race", self.kernel, lines, || {
            format!(
                "block {}, {} {} {}, {}; block {}, {} {} it, {}; nothing orders the two",
                self.block_name(race.earlier.block),
                self.thread_name(race.earlier.thread),
                does(race.earlier_writes),
                place(touch),
                self.sources.describe(lines[0]),
                self.block_name(race.later.block),
                self.thread_name(race.later.thread),
                does(race.later_writes),
                self.sources.describe(lines[1]),
            )
        });
    }

    fn line(&self, pc: u32) -> u32 {
        self.program.lines.get(pc as usize).copied().unwrap_or(0)
    }

    fn block_name(&self, linear: u64) -> String {
        let [x, y, _] = self.grid.map(u64::from);
        format!("({},{},{})", linear % x, linear / x % y, linear / (x * y))
    }

    fn thread_name(&self, thread: u32) -> String {
        let [x, y, _] = self.block;
        format!(
            "thread ({},{},{})",
            thread % x,
            thread / x % y,
            thread / (x * y)
        )
    }
}

fn place(touch: Touch) -> String {
    match touch.shared {
        true => format!("{} bytes at {:#x} of shared memory", touch.bytes, touch.at),
        false => format!("{} bytes at {:#x}", touch.bytes, touch.at),
    }
}
