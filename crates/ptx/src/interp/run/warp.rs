//! A warp: its registers, and its lanes in groups.
//!
//! A group is a set of lanes with one program counter and one frame. All lanes start in one group;
//! branches split groups, and groups that meet merge. Of several, the one deepest in calls and
//! lowest in the code runs, so that lanes wait for each other where paths join. A group runs for at
//! most [`QUANTUM`] instructions before the longest waiting one gets its turn; otherwise spinning
//! lanes could keep those from running that they wait for.

use crate::code::{BarKind, Op};
use crate::error::FaultKind;
use crate::interp::Env;
use crate::interp::fast::memory::{Addresses, SEEN};
use crate::interp::lanes::{Files, Lanes32, Lanes64};
use crate::interp::memory::access::RangeCache;
use crate::interp::run::block::Barriers;
use crate::interp::run::core::{Core, Stop, Trouble};
use crate::interp::run::dispatch::{Event, run_group};
use crate::limits::{LOCAL_BYTES_MAX, REGISTER_ROWS_MAX};
use crate::memory::Ranges;

/// Instructions that a group runs while others wait.
const QUANTUM: u64 = 2048;

/// Start of a frame's registers and local memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) r32: u32,
    pub(crate) r64: u32,
    pub(crate) preds: u32,
    pub(crate) local: u32,
    pub(crate) depth: u32,
    pub(crate) function: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GroupState {
    Ready,
    /// At an instruction that these lanes must reach.
    Members(u32),
    /// At a barrier of the block, with the destination of a reduction's result.
    Barrier {
        id: u32,
        kind: BarKind,
        dest: u32,
    },
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    pub(crate) pc: u32,
    pub(crate) mask: u32,
    pub(crate) frame: Frame,
    pub(crate) state: GroupState,
    /// When it last ran, by the warp's own clock.
    pub(crate) last_run: u64,
}

impl Group {
    /// Keeps the lanes of `keep` at `pc`; the rest becomes a group at `other_pc`.
    pub(crate) fn split(&mut self, others: &mut Vec<Group>, keep: u32, pc: u32, other_pc: u32) {
        others.push(Group {
            pc: other_pc,
            mask: self.mask & !keep,
            ..*self
        });
        (self.mask, self.pc) = (keep, pc);
    }

    /// Lets lanes outside `keep` skip the current instruction.
    pub(crate) fn peel(&mut self, others: &mut Vec<Group>, keep: u32) {
        if keep != self.mask {
            self.split(others, keep, self.pc, self.pc + 1);
        }
    }
}

/// The return position of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Return {
    pub(crate) pc: u32,
    pub(crate) call: u32,
    pub(crate) frame: Frame,
}

/// Registers and stacks. Each lane uses its own column of a row, so lanes with different frames
/// share rows.
pub(crate) struct Storage {
    pub(crate) r32: Vec<Lanes32>,
    pub(crate) r64: Vec<Lanes64>,
    pub(crate) preds: Vec<u32>,
    /// Local memory of 32 lanes, `stride` bytes each.
    pub(crate) local: Vec<u128>,
    pub(crate) stride: u32,
    /// For each lane, bytes that `alloca` has allocated.
    pub(crate) taken: [u32; 32],
    /// By the callee's depth minus 1, then by lane.
    pub(crate) returns: Vec<[Return; 32]>,
    /// Carry flags.
    pub(crate) carry: u32,
    pub(crate) tid: [Lanes32; 4],
    /// Facts about rows of addresses, found by earlier loads and stores.
    pub(crate) seen: [Addresses; SEEN + 1],
}

pub(crate) struct Warp {
    pub(crate) index: u32,
    /// Lanes that exist: the last warp of a block may have fewer than 32.
    pub(crate) exists: u32,
    /// Lanes that have not exited.
    pub(crate) live: u32,
    pub(crate) groups: Vec<Group>,
    pub(crate) storage: Storage,
    /// The block size that `tid` was computed for.
    shape: [u32; 3],
    clock: u64,
}

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

impl Storage {
    fn new() -> Self {
        Storage {
            r32: Vec::new(),
            r64: Vec::new(),
            preds: Vec::new(),
            local: Vec::new(),
            stride: 0,
            taken: [0; 32],
            returns: Vec::new(),
            carry: 0,
            tid: [Lanes32([0; 32]); 4],
            seen: Default::default(),
        }
    }

    /// Makes room for a frame of `function`; an error if that exceeds a warp's limits.
    pub(crate) fn reserve(&mut self, env: &Env<'_>, frame: &Frame) -> Result<(), FaultKind> {
        let function = &env.program.functions[frame.function as usize];
        let (r32, r64) = (
            (frame.r32 + function.rows32) as usize,
            (frame.r64 + function.rows64) as usize,
        );
        let preds = (frame.preds + function.preds) as usize;
        let local = u64::from(frame.local) + u64::from(function.frame_bytes);
        // A kernel's own frame is always granted; only calls can overflow.
        if frame.depth > 0
            && (local > u64::from(env.stack_bytes.min(LOCAL_BYTES_MAX))
                || r32.max(r64).max(preds) > REGISTER_ROWS_MAX)
        {
            return Err(FaultKind::StackOverflow { bytes: local });
        }
        if self.r32.len() < r32 {
            self.r32.resize(r32, Lanes32([0; 32]));
        }
        if self.r64.len() < r64 {
            self.r64.resize(r64, Lanes64([0; 32]));
        }
        if self.preds.len() < preds {
            self.preds.resize(preds, 0);
        }
        if u64::from(self.stride) < local {
            self.grow_local((local as u32).next_power_of_two().max(256));
        }
        Ok(())
    }

    pub(crate) fn grow_local(&mut self, stride: u32) {
        const UNIT: usize = size_of::<u128>();
        let (old, new) = (self.stride as usize / UNIT, stride as usize / UNIT);
        let mut local = vec![0u128; 32 * new];
        if old > 0 {
            for (from, to) in self
                .local
                .chunks_exact(old)
                .zip(local.chunks_exact_mut(new))
            {
                to[..old].copy_from_slice(from);
            }
        }
        (self.local, self.stride) = (local, stride);
    }

    pub(crate) fn files(&mut self, env: &Env<'_>, frame: &Frame) -> Files {
        #[cfg(debug_assertions)]
        let function = &env.program.functions[frame.function as usize];
        Files {
            #[cfg(debug_assertions)]
            counts: crate::interp::lanes::Counts {
                r32: function.rows32,
                r64: function.rows64,
                preds: function.preds,
                c32: env.consts32.len(),
                c64: env.consts64.len(),
            },
            r32: self.r32.as_mut_ptr().wrapping_add(frame.r32 as usize),
            r64: self.r64.as_mut_ptr().wrapping_add(frame.r64 as usize),
            preds: self.preds.as_mut_ptr().wrapping_add(frame.preds as usize),
            c32: env.consts32.as_ptr(),
            c64: env.consts64.as_ptr(),
        }
    }
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
    pub(crate) fn new(index: u32) -> Self {
        Warp {
            index,
            exists: 0,
            live: 0,
            groups: Vec::new(),
            storage: Storage::new(),
            shape: [0; 3],
            clock: 0,
        }
    }

    /// Sets the warp to the kernel's first instruction.
    pub(crate) fn start(&mut self, env: &Env<'_>, function: u32) -> Result<(), FaultKind> {
        self.storage.taken = [0; 32];
        let [x, y, z] = env.block;
        let threads = x * y * z;
        let first = self.index * 32;
        self.exists = if threads - first >= 32 {
            u32::MAX
        } else {
            (1 << (threads - first)) - 1
        };
        self.live = self.exists;
        self.storage.carry = 0;
        // Registers and local memory keep what an earlier block of the launch left, as on a GPU:
        // clearing them would take longer than many a short kernel.
        self.storage.preds.fill(0);
        if self.shape != env.block {
            self.shape = env.block;
            for lane in 0..32 {
                let thread = first + lane;
                let at = [thread % x, thread / x % y, thread / (x * y)];
                for (axis, value) in at.into_iter().enumerate() {
                    self.storage.tid[axis].0[lane as usize] = value;
                }
            }
        }
        let frame = Frame {
            function,
            ..Frame::default()
        };
        self.storage.reserve(env, &frame)?;
        let pc = env.program.functions[function as usize].entry.unwrap_or(0);
        self.groups.clear();
        self.groups.push(Group {
            pc,
            mask: self.exists,
            frame,
            state: GroupState::Ready,
            last_run: 0,
        });
        Ok(())
    }

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
            let shared_bytes = u64::from(turn.env.shared_bytes);
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
                shared_bytes,
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
            let event = run(&mut core, &mut group, &mut self.groups, limit, &mut fuel);
            self.live = core.live;
            let pc = core.pc;
            *budget -= granted - fuel;
            self.clock += 1;
            group.last_run = self.clock;
            match event.map_err(|trouble| Stopped {
                trouble,
                pc,
                warp: self.index,
            })? {
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
                    let arrived =
                        turn.barriers
                            .arrive((turn.env, turn.block), &arrival, self, &group);
                    arrived.map_err(|reason| {
                        let lane = group.mask.trailing_zeros() as usize;
                        Stopped {
                            trouble: Trouble::at_lane(FaultKind::Trap { reason }, lane),
                            pc,
                            warp: self.index,
                        }
                    })?;
                    if arrival.kind != BarKind::Arrive {
                        group.state = GroupState::Barrier {
                            id: arrival.id,
                            kind: arrival.kind,
                            dest: arrival.dest,
                        };
                    }
                    self.groups.push(group);
                }
            }
        }
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
        if !self.groups.iter().any(|g| g.state == GroupState::Ready) {
            self.release_warp_sync(env, block);
        }
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
                    // A group that was ready checks the members again, together with those that
                    // waited.
                    merged.state = match (a.state, b.state) {
                        (GroupState::Members(x), GroupState::Members(y)) => {
                            GroupState::Members(x | y)
                        }
                        _ => GroupState::Ready,
                    };
                } else {
                    j += 1;
                }
            }
            i += 1;
        }
    }

    /// Lets groups go on whose members have all arrived or exited.
    fn wake(&mut self) {
        let live = self.live;
        for group in &mut self.groups {
            if let GroupState::Members(members) = group.state
                && members & live & !group.mask == 0
            {
                group.state = GroupState::Ready;
            }
        }
    }

    /// Releases `bar.warp.sync` reached at different places. Called when no group can go on.
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
