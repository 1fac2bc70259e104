//! A warp's turn: its groups run until its fuel is used up, or all of them wait.
//!
//! A group is a set of lanes with one program counter and one frame. All lanes start in one group;
//! branches split groups, and groups that meet merge. Of several, the one deepest in calls and
//! lowest in the code runs, so that lanes wait for each other where paths join. A group runs for at
//! most [`QUANTUM`] instructions before the longest waiting one gets its turn; otherwise spinning
//! lanes could keep those from running that they wait for.

use crate::code::{BarKind, Op};
use crate::error::FaultKind;
use crate::interp::Env;
use crate::interp::core::{Core, Stop, Trouble};
use crate::interp::range_cache::RangeCache;
use crate::interp::run::barriers::Barriers;
use crate::interp::run::dispatch::{Arrival, Event, run_group};
use crate::interp::run::group::{Group, GroupState};
use crate::interp::run::warp::Warp;
use crate::interp::storage::Frame;
use crate::memory::Ranges;

/// Instructions that a group runs while others wait.
const QUANTUM: u64 = 2048;

/// The state of a warp after its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// It can go on.
    Paused,
    /// All groups wait.
    Blocked,
    Exited,
}

/// A fault, and where it happened.
pub(crate) struct Stopped {
    pub(crate) trouble: Stop,
    pub(crate) pc: u32,
    pub(crate) warp: u32,
}

/// State that a block lends its warps for a turn.
pub(crate) struct Turn<'t> {
    pub(crate) env: &'t Env<'t>,
    pub(crate) ranges: &'t Ranges,
    pub(crate) cache: &'t mut RangeCache,
    pub(crate) barriers: &'t mut Barriers,
    pub(crate) shared: *mut u8,
    pub(crate) block: [u32; 3],
    pub(crate) worker: u32,
}

impl Core<'_> {
    /// Points the core at a group's frame.
    pub(crate) fn enter(&mut self, frame: &Frame) {
        self.files = self.storage.files(self.env, frame);
        self.local = self.storage.local.as_mut_ptr().cast();
        self.stride = self.storage.stride.into();
        self.frame_local = frame.local.into();
    }
}

impl Warp {
    /// Runs until all groups wait, the warp is done, or `budget` instructions are spent.
    pub(crate) fn run(
        &mut self,
        turn: &mut Turn<'_>,
        budget: &mut u64,
    ) -> Result<Progress, Stopped> {
        let mut fair = false;
        loop {
            let Some((mut group, limit)) = self.pick(turn.env, turn.block, fair) else {
                return Ok(if self.groups.is_empty() {
                    Progress::Exited
                } else {
                    Progress::Blocked
                });
            };
            fair = false;
            if *budget == 0 {
                self.groups.push(group);
                return Ok(Progress::Paused);
            }
            let crowded = self.groups.iter().any(|g| g.state == GroupState::Ready);
            let granted = if crowded {
                QUANTUM.min(*budget)
            } else {
                *budget
            };
            let mut fuel = granted;
            let (event, pc) = self.run_group(turn, &mut group, limit, &mut fuel);
            *budget -= granted - fuel;
            self.clock += 1;
            group.last_run = self.clock;
            let warp = self.index;
            let stopped = |trouble| Stopped { trouble, pc, warp };
            match event.map_err(stopped)? {
                Event::Gone => {}
                Event::Reschedule | Event::Wait => self.groups.push(group),
                Event::Fuel => {
                    self.groups.push(group);
                    // A sleeping group gives up its warp's turn, too.
                    if !crowded && *budget > 0 {
                        return Ok(Progress::Paused);
                    }
                    fair = crowded;
                }
                Event::Barrier(arrival) => {
                    let arrived = self.arrive(turn, &mut group, &arrival);
                    arrived.map_err(stopped)?;
                    self.groups.push(group);
                }
            }
        }
    }

    /// Runs a group until an event; returns it with the place of the last instruction that may
    /// fault.
    #[inline(always)]
    fn run_group(
        &mut self,
        turn: &mut Turn<'_>,
        group: &mut Group,
        limit: u32,
        fuel: &mut u64,
    ) -> (Result<Event, Stop>, u32) {
        let files = self.storage.files(turn.env, &group.frame);
        let mut core = Core {
            env: turn.env,
            program: turn.env.program,
            ranges: turn.ranges,
            cache: turn.cache,
            storage: &mut self.storage,
            files,
            pc: group.pc,
            shared: turn.shared,
            shared_bytes: turn.env.shared_bytes.into(),
            local: std::ptr::null_mut(),
            stride: 0,
            frame_local: 0,
            block: turn.block,
            warp: self.index,
            worker: turn.worker,
            live: self.live,
            known: 0,
        };
        core.enter(&group.frame);
        let run = match turn.env.counts {
            None => run_group::<false>,
            Some(_) => run_group::<true>,
        };
        let event = run(&mut core, group, &mut self.groups, limit, fuel);
        self.live = core.live;
        (event, core.pc)
    }

    /// Brings a group to a barrier of the block, at which it waits unless it only arrives.
    fn arrive(
        &mut self,
        turn: &mut Turn<'_>,
        group: &mut Group,
        arrival: &Arrival,
    ) -> Result<(), Stop> {
        let block = (turn.env, turn.block);
        let arrived = turn.barriers.arrive(block, arrival, self, group);
        arrived.map_err(|reason| {
            let lane = group.mask.trailing_zeros() as usize;
            Trouble::at_lane(FaultKind::Trap { reason }, lane)
        })?;
        if arrival.kind != BarKind::Arrive {
            group.state = GroupState::Barrier {
                id: arrival.id,
                kind: arrival.kind,
                dest: arrival.dest,
            };
        }
        Ok(())
    }

    /// Takes the group to run next, and the program counter at which it may meet another.
    fn pick(&mut self, env: &Env<'_>, block: [u32; 3], fair: bool) -> Option<(Group, u32)> {
        // Usually all lanes are in one group.
        if let [group] = self.groups[..] {
            match group.state {
                GroupState::Ready => return Some((self.groups.pop()?, u32::MAX)),
                GroupState::Barrier { .. } => return None,
                GroupState::Members(_) => {}
            }
        }
        self.merge();
        self.wake();
        self.release_warp_sync(env, block);
        let ready = self
            .groups
            .iter()
            .enumerate()
            .filter(|(_, g)| g.state == GroupState::Ready);
        let dice = env.watch.and_then(|watch| watch.dice.as_ref());
        let (index, _) = if let Some(dice) = dice {
            let count = ready.clone().count();
            ready.clone().nth(dice.below(count.max(1)))?
        } else if fair {
            ready.min_by_key(|(_, g)| g.last_run)?
        } else {
            ready.min_by_key(|(_, g)| (u32::MAX - g.frame.depth, g.pc))?
        };
        let group = self.groups.swap_remove(index);
        let meets = |g: &&Group| {
            !matches!(g.state, GroupState::Barrier { .. })
                && g.frame.depth == group.frame.depth
                && g.pc > group.pc
        };
        let limit = self
            .groups
            .iter()
            .filter(meets)
            .map(|g| g.pc)
            .min()
            .unwrap_or(u32::MAX);
        Some((group, limit))
    }

    /// Merges groups at the same place.
    fn merge(&mut self) {
        let mut i = 0;
        while i < self.groups.len() {
            let mut j = i + 1;
            while j < self.groups.len() {
                let (a, b) = (self.groups[i], self.groups[j]);
                let movable = |s: GroupState| !matches!(s, GroupState::Barrier { .. });
                if a.pc == b.pc && a.frame == b.frame && movable(a.state) && movable(b.state) {
                    self.groups.swap_remove(j);
                    let merged = &mut self.groups[i];
                    merged.mask |= b.mask;
                    // Groups that wait for the same lanes go on waiting; others look again who
                    // has come.
                    merged.state = match (a.state, b.state) {
                        (GroupState::Members(x), GroupState::Members(y)) if x == y => a.state,
                        _ => GroupState::Ready,
                    };
                } else {
                    j += 1;
                }
            }
            i += 1;
        }
    }

    /// Lets groups go on whose members have all arrived, and look again after one exited.
    fn wake(&mut self) {
        let live = self.live;
        for group in &mut self.groups {
            if let GroupState::Members(members) = group.state
                && (members & !group.mask == 0 || members & !live != 0)
            {
                group.state = GroupState::Ready;
            }
        }
    }

    /// Releases `bar.warp.sync` reached at different places, whatever other lanes do meanwhile.
    fn release_warp_sync(&mut self, env: &Env<'_>, block: [u32; 3]) {
        let at_sync = |g: &Group| {
            matches!(g.state, GroupState::Members(_))
                && matches!(env.program.code[g.pc as usize].op, Op::WarpSync { .. })
        };
        let waiting = self
            .groups
            .iter()
            .filter(|g| at_sync(g))
            .fold(0, |m, g| m | g.mask);
        if waiting == 0 {
            return;
        }
        let live = self.live;
        for group in &mut self.groups {
            if let GroupState::Members(members) = group.state
                && at_sync(group)
                && members & live & !waiting == 0
            {
                group.state = GroupState::Ready;
                group.pc += 1;
                if let Some(watch) = env.watch {
                    watch.warp_sync(env.linear(block), self.index);
                }
            }
        }
    }
}
