//! A block: it runs for a while, can be put aside, and continues later.

use crate::code::BarKind;
use crate::error::{Fault, FaultKind};
use crate::interp::Env;
use crate::interp::lanes::{Lanes32, lanes};
use crate::interp::memory::access::RangeCache;
use crate::interp::run::dispatch::Arrival;
use crate::interp::run::warp::{Group, GroupState, Progress, Stopped, Turn, Warp};
use crate::limits::BARRIERS;
use crate::memory::Ranges;

/// Instructions that a warp runs before the next warp of the block.
const WARP_TURN: u64 = 16_384;

/// Instructions of a turn at most, if the order is drawn from a seed.
const SEEDED_TURN: usize = 8;
/// Turns per warp without progress after which no warp counts as able to go on. With a seed, all
/// have almost certainly had a turn by then.
const SEEDED_IDLE_TURNS: usize = 64;

/// State of one of the block's barriers.
#[derive(Clone, Copy, Default)]
struct Barrier {
    /// Threads counted so far, and the number expected; 0 for all.
    threads: u32,
    expected: u32,
    waiting: bool,
    votes: u32,
    all: bool,
    /// The first arrival: its thread, and the instruction.
    first: Option<(u32, u32)>,
}

#[derive(Default)]
pub(crate) struct Barriers {
    barriers: [Barrier; BARRIERS],
    /// Barriers at which threads have arrived.
    pending: u32,
    /// Lanes arrived in this phase, by barrier and warp.
    arrived: Vec<u32>,
    warps: usize,
}

pub(crate) struct Block {
    pub(crate) index: [u32; 3],
    /// Number in launch order: x fastest.
    pub(crate) linear: u64,
    warps: Vec<Warp>,
    /// Shared memory, in units that keep every alignment.
    shared: Vec<Lanes32>,
    barriers: Barriers,
    next: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockProgress {
    Paused,
    Finished,
}

impl Block {
    pub(crate) fn new() -> Self {
        Block {
            index: [0; 3],
            linear: 0,
            warps: Vec::new(),
            shared: Vec::new(),
            barriers: Barriers::default(),
            next: 0,
        }
    }

    /// Sets up block `linear` of the grid, reusing an earlier block's allocations.
    pub(crate) fn start(&mut self, env: &Env<'_>, linear: u64) -> Result<(), Box<Fault>> {
        let [gx, gy, _] = env.grid.map(u64::from);
        self.linear = linear;
        self.index = [
            (linear % gx) as u32,
            (linear / gx % gy) as u32,
            (linear / (gx * gy)) as u32,
        ];
        let count = env.block.iter().product::<u32>().div_ceil(32) as usize;
        while self.warps.len() < count {
            self.warps.push(Warp::new(self.warps.len() as u32));
        }
        self.warps.truncate(count);
        let lines = (env.shared_bytes as usize).div_ceil(size_of::<Lanes32>());
        self.shared.clear();
        self.shared.resize(lines, Lanes32([0; 32]));
        self.barriers.reset(count);
        self.next = 0;
        for warp in &mut self.warps {
            if let Err(kind) = warp.start(env, env.kernel.function) {
                return Err(Box::new(Fault {
                    kind,
                    kernel: env.kernel.name.clone(),
                    block: self.index,
                    thread: [0; 3],
                    line: 0,
                }));
            }
        }
        Ok(())
    }

    /// Runs the warps in turn until the block is done or `budget` instructions are spent.
    pub(crate) fn run(
        &mut self,
        env: &Env<'_>,
        ranges: &Ranges,
        cache: &mut RangeCache,
        worker: u32,
        budget: &mut u64,
    ) -> Result<BlockProgress, Box<Fault>> {
        let mut idle = 0;
        loop {
            if *budget == 0 {
                return Ok(BlockProgress::Paused);
            }
            let dice = env.watch.and_then(|watch| watch.dice.as_ref());
            if let Some(dice) = dice {
                self.next = dice.below(self.barriers.warps);
            }
            let warp = &mut self.warps[self.next];
            self.next += 1;
            if self.next == self.barriers.warps {
                self.next = 0;
            }
            let turn = dice.map_or(WARP_TURN, |dice| 1 + dice.below(SEEDED_TURN) as u64);
            let granted = turn.min(*budget);
            let mut fuel = granted;
            let mut turn = Turn {
                env,
                ranges,
                cache,
                barriers: &mut self.barriers,
                shared: self.shared.as_mut_ptr().cast(),
                block: self.index,
                worker,
            };
            let live = warp.live;
            let progress = warp.run(&mut turn, &mut fuel);
            let moved = granted != fuel || warp.live != live;
            // Even a turn without an instruction counts, so that the loop ends.
            *budget = budget.saturating_sub((granted - fuel).max(1));
            let progress = match progress {
                Ok(progress) => progress,
                Err(stopped) => return Err(self.fault(env, stopped)),
            };
            let released = self.barriers.pending != 0
                && self.barriers.release(env, &mut self.warps, self.linear);
            idle = if moved || released || progress == Progress::Paused {
                0
            } else {
                idle + 1
            };
            if progress == Progress::Exited && self.warps.iter().all(|w| w.groups.is_empty()) {
                return Ok(BlockProgress::Finished);
            }
            let idle_max = if dice.is_some() { SEEDED_IDLE_TURNS } else { 1 } * self.warps.len();
            if idle > idle_max {
                return Err(self.deadlock(env));
            }
        }
    }

    fn fault(&self, env: &Env<'_>, stopped: Stopped) -> Box<Fault> {
        let thread = stopped.warp * 32 + stopped.trouble.lane as u32;
        let [x, y, _] = env.block;
        Box::new(Fault {
            kind: stopped.trouble.kind,
            kernel: env.kernel.name.clone(),
            block: self.index,
            thread: [thread % x, thread / x % y, thread / (x * y)],
            line: env
                .program
                .lines
                .get(stopped.pc as usize)
                .copied()
                .unwrap_or(0),
        })
    }

    /// The fault of a block whose warps all wait for something that cannot come. A GPU would hang
    /// until its watchdog ends it.
    fn deadlock(&self, env: &Env<'_>) -> Box<Fault> {
        let waiting = self
            .warps
            .iter()
            .find_map(|w| Some((w.index, w.groups.first()?)));
        let (warp, pc, lane) = waiting.map_or((0, 0, 0), |(warp, group)| {
            (warp, group.pc, group.mask.trailing_zeros() as usize)
        });
        let reason =
            "deadlock: all threads of the block wait at barriers or for lanes of their warp".into();
        let trouble = crate::interp::run::core::Trouble::at_lane(FaultKind::Trap { reason }, lane);
        self.fault(env, Stopped { trouble, pc, warp })
    }
}

impl Barriers {
    fn reset(&mut self, warps: usize) {
        // A barrier that is not pending is empty.
        if self.pending != 0 || self.warps != warps {
            self.pending = 0;
            self.arrived.clear();
            self.arrived.resize(BARRIERS * warps, 0);
            self.warps = warps;
        }
    }

    /// Counts a group as arrived.
    pub(crate) fn arrive(
        &mut self,
        (env, block): (&Env<'_>, [u32; 3]),
        arrival: &Arrival,
        warp: &Warp,
        group: &Group,
    ) -> Result<(), String> {
        let warps = self.warps;
        let Some(barrier) = self.barriers.get_mut(arrival.id as usize) else {
            return Err(format!(
                "barrier {} does not exist: there are {BARRIERS}",
                arrival.id
            ));
        };
        if self.pending >> arrival.id & 1 == 0 {
            self.pending |= 1 << arrival.id;
            *barrier = Barrier {
                all: true,
                ..Barrier::default()
            };
        }
        if !arrival.count.is_multiple_of(32) {
            return Err(format!(
                "barrier for {} threads: not whole warps",
                arrival.count
            ));
        }
        let arrived = &mut self.arrived[arrival.id as usize * warps + warp.index as usize];
        let before = *arrived;
        *arrived |= group.mask;
        barrier.threads += group.mask.count_ones();
        // Barriers count whole warps: lanes that have exited arrive together with the last live
        // one.
        if warp.live & !before != 0 && warp.live & !*arrived == 0 {
            barrier.threads += 32 - warp.live.count_ones();
        }
        if let Some(watch) = env.watch
            && arrival.count == 0
        {
            // The group's program counter is already past the barrier.
            let here = (
                warp.index * 32 + group.mask.trailing_zeros(),
                group.pc.wrapping_sub(1),
            );
            let first = *barrier.first.get_or_insert(here);
            if first.1 != here.1 {
                watch.barriers_differ(env.linear(block), first, here);
            }
        }
        barrier.expected = arrival.count;
        barrier.waiting |= arrival.kind != BarKind::Arrive;
        barrier.votes += arrival.votes.count_ones();
        barrier.all &= arrival.votes == group.mask;
        Ok(())
    }

    /// Releases the groups whose barrier is complete. Returns whether there were any.
    fn release(&mut self, env: &Env<'_>, warps: &mut [Warp], block: u64) -> bool {
        let mut any = false;
        for id in lanes(self.pending) {
            let barrier = &self.barriers[id];
            let arrived = &mut self.arrived[id * self.warps..][..self.warps];
            let complete = if barrier.expected == 0 {
                // The last warp is usually the last to arrive.
                let mut missing = arrived.iter().zip(warps.iter()).rev();
                missing.all(|(&arrived, warp)| warp.live & !arrived == 0)
            } else {
                barrier.threads >= barrier.expected
            };
            if !complete {
                continue;
            }
            any = true;
            if let Some(watch) = env.watch {
                watch.barrier(block);
            }
            for warp in warps.iter_mut() {
                for i in 0..warp.groups.len() {
                    let group = warp.groups[i];
                    if let GroupState::Barrier { id: at, kind, dest } = group.state
                        && at as usize == id
                    {
                        warp.groups[i].state = GroupState::Ready;
                        deliver(env, warp, &group, kind, dest, barrier);
                    }
                }
            }
            arrived.fill(0);
            self.pending &= !(1 << id);
        }
        any
    }
}

/// Writes a reduction's result for the lanes of a group.
fn deliver(
    env: &Env<'_>,
    warp: &mut Warp,
    group: &Group,
    kind: BarKind,
    dest: u32,
    barrier: &Barrier,
) {
    if matches!(kind, BarKind::Sync | BarKind::Arrive) {
        return;
    }
    let files = warp.storage.files(env, &group.frame);
    let all_or_none = |value: bool| if value { u32::MAX } else { 0 };
    match kind {
        BarKind::Sync | BarKind::Arrive => {}
        BarKind::RedPopc => {
            lanes(group.mask).for_each(|l| files.set_lane32(dest, l, barrier.votes))
        }
        BarKind::RedAnd => files.set_pred(dest as u16, group.mask, all_or_none(barrier.all)),
        BarKind::RedOr => files.set_pred(dest as u16, group.mask, all_or_none(barrier.votes > 0)),
    }
}
