//! A block: it runs for a while, can be put aside, and continues later.

use crate::error::{Fault, FaultKind};
use crate::interp::Env;
use crate::interp::range_cache::RangeCache;
use crate::interp::run::barriers::Barriers;
use crate::interp::run::turn::{Progress, Stopped, Turn};
use crate::interp::run::warp::Warp;
use crate::lanes::Lanes32;
use crate::memory::Ranges;
use crate::room;

/// Instructions that a warp runs before the next warp of the block.
const WARP_TURN: u64 = 16_384;

/// Instructions of a turn at most, if the order is drawn from a seed.
const SEEDED_TURN: usize = 8;
/// Turns per warp without progress after which no warp counts as able to go on. With a seed, all
/// have almost certainly had a turn by then.
const SEEDED_IDLE_TURNS: usize = 64;

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
        self.next = 0;
        self.make_room(env, count).map_err(|kind| {
            Box::new(Fault {
                kind,
                kernel: env.kernel.name.clone(),
                block: self.index,
                thread: [0; 3],
                line: 0,
            })
        })
    }

    /// Allocates the warps, their first frames and the shared memory.
    fn make_room(&mut self, env: &Env<'_>, count: usize) -> Result<(), FaultKind> {
        if self.warps.len() < count {
            let more = count - self.warps.len();
            room::take((more * size_of::<Warp>()) as u64, || {
                let indices = self.warps.len()..count;
                self.warps.reserve_exact(more);
                self.warps
                    .extend(indices.map(|index| Warp::new(index as u32)));
            })?;
        }
        self.warps.truncate(count);
        let lines = (env.shared_bytes as usize).div_ceil(size_of::<Lanes32>());
        self.shared.clear();
        room::lengthen(&mut self.shared, lines, Lanes32([0; 32]))?;
        self.barriers.reset(count);
        let mut warps = self.warps.iter_mut();
        warps.try_for_each(|warp| warp.start(env, env.kernel.function))
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
        let trouble = crate::interp::core::Trouble::at_lane(FaultKind::Trap { reason }, lane);
        self.fault(env, Stopped { trouble, pc, warp })
    }
}
