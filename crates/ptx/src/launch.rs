//! Launches: checked as sm_80 checks them, run by worker threads, cancellable.
//!
//! Each worker takes the next block, runs it for a time slice, and keeps it if it is not done. A
//! worker alternates between its waiting blocks and new ones, so that blocks may wait for each
//! other. A slice holds the memory's range lock.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::Builder;
use std::time::Instant;

use parking_lot::Mutex;

use crate::check::{Checker, Watching};
use crate::error::{Error, Fault, FaultKind};
use crate::execution::Execution;
use crate::extents::validate;
use crate::heap::Heap;
use crate::interp::Env;
use crate::interp::range_cache::RangeCache;
use crate::interp::run::block::{Block, BlockProgress};
use crate::interp::runtime::children::{ChildWork, Children};
use crate::limits::{COOPERATIVE_BLOCKS_MAX, LOCAL_BYTES_MAX, SHARED_UNIT_BYTES};
use crate::lower::Kernel;
use crate::memory::Memory;
use crate::module::Module;
use crate::output::Output;

/// Warp instructions of a time slice, which lasts some milliseconds at most.
const SLICE: u64 = 100_000;
/// Warp instructions that the calling thread runs before it starts workers: fewer cost less than a
/// thread's start.
const ALONE: u64 = 10_000;
/// Warp instructions of a slice at most, if the order is drawn from a seed.
const SEEDED_SLICE: usize = 8;
/// Unfinished blocks that a worker keeps while it starts new ones. Cooperative launches keep all.
const RESIDENT_BLOCKS_MAX: usize = 64;
/// Local memory of a thread for calls by default, in bytes.
pub const STACK_BYTES_DEFAULT: u32 = 64 << 10;

static NEXT_LAUNCH: AtomicU64 = AtomicU64::new(1);

/// One kernel launch, which borrows its arguments.
pub struct Launch<'l> {
    pub module: &'l Module,
    pub kernel: &'l str,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub dynamic_shared_bytes: u32,
    /// Parameters as the kernel declares them, with padding.
    pub params: &'l [u8],
    /// Threads that run blocks, at least 1.
    pub workers: usize,
    /// Stack of a GPU thread for calls, in bytes.
    pub stack_bytes: u32,
    /// Whether all blocks run together, so that they may wait for each other.
    pub cooperative: bool,
    /// `%envreg0..31`.
    pub envregs: [u32; 32],
    /// Receives the text of `printf` and `assert`.
    pub output: &'l dyn Output,
    /// Memory for device-side `malloc`; without it `malloc` returns 0.
    pub heap: Option<&'l Heap>,
    /// May be set by any thread to end the launch with [`FaultKind::LaunchTimeout`].
    pub cancel: &'l AtomicBool,
    /// The graph's execution that the kernel belongs to.
    pub execution: Option<&'l dyn Execution>,
}

/// Counts of a launch's work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub blocks: u64,
    /// Instructions executed; one for a whole warp counts once.
    pub warp_instructions: u64,
}

/// Why a launch failed: refused before it began, or stopped by a fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaunchError {
    #[error(transparent)]
    Refused(#[from] Error),
    #[error(transparent)]
    Fault(#[from] Fault),
}

impl Launch<'_> {
    /// Runs the kernel to its end on this thread and `workers - 1` others.
    pub fn run(&self) -> Result<Stats, LaunchError> {
        self.run_all(None, 0)
    }

    /// Runs the kernel, then the kernels that it launched, each followed by its own children.
    fn run_all(&self, checker: Option<&Checker>, depth: u32) -> Result<Stats, LaunchError> {
        let kernels = self.module.kernels();
        let children = Children::new(kernels, depth);
        let mut stats = self.run_on(checker, None, &children)?;
        for work in children.into_work() {
            let child = match work {
                ChildWork::Grid(child) => child,
                ChildWork::Copy { to, from, bytes } => {
                    self.copy(to, from, bytes)?;
                    continue;
                }
            };
            let launch = Launch {
                kernel: &kernels[child.kernel].name,
                grid: child.grid,
                block: child.block,
                dynamic_shared_bytes: child.shared_bytes,
                params: &child.params,
                cooperative: false,
                envregs: [0; 32],
                ..*self
            };
            let more = launch.run_all(checker, depth + 1)?;
            stats.blocks += more.blocks;
            stats.warp_instructions += more.warp_instructions;
        }
        Ok(stats)
    }

    /// Makes a copy that a kernel asked for.
    fn copy(&self, to: u64, from: u64, bytes: u64) -> Result<(), LaunchError> {
        let memory = self.module.memory();
        let copied = match bytes {
            0 => Ok(()),
            _ => memory.copy(to, from, bytes),
        };
        copied.map_err(|_| {
            let write = !memory.is_mapped(to, bytes);
            let address = if write { to } else { from };
            LaunchError::Fault(Fault {
                kind: FaultKind::IllegalAddress {
                    address,
                    bytes: 1,
                    write,
                },
                kernel: self.kernel.to_owned(),
                block: [0; 3],
                thread: [0; 3],
                line: 0,
            })
        })
    }

    /// Runs the kernel, and counts how often a warp executed each line of the PTX text.
    pub fn run_counted(&self) -> Result<BTreeMap<u32, u64>, LaunchError> {
        let lines = &self.module.program().lines;
        let counts: Vec<_> = lines.iter().map(|_| AtomicU64::new(0)).collect();
        let children = Children::new(self.module.kernels(), 0);
        self.run_on(None, Some(&counts), &children)?;
        let mut by_line = BTreeMap::new();
        for (line, count) in lines.iter().zip(counts) {
            let count = count.into_inner();
            if count > 0 {
                *by_line.entry(*line).or_default() += count;
            }
        }
        Ok(by_line)
    }

    /// Runs the kernel, and ends it as if cancelled once it has run that many warp instructions,
    /// or a slice more.
    pub(crate) fn run_at_most(&self, instructions_max: u64) -> Result<Stats, LaunchError> {
        let children = Children::new(self.module.kernels(), 0);
        self.run_limited(None, None, &children, instructions_max)
    }

    /// Runs the kernel on this thread alone, watched by `checker`.
    pub fn run_watched(&self, checker: &Checker) -> Result<Stats, LaunchError> {
        self.run_all(Some(checker), 0)
    }

    fn run_on(
        &self,
        checker: Option<&Checker>,
        counts: Option<&[AtomicU64]>,
        children: &Children<'_>,
    ) -> Result<Stats, LaunchError> {
        self.run_limited(checker, counts, children, u64::MAX)
    }

    fn run_limited(
        &self,
        checker: Option<&Checker>,
        counts: Option<&[AtomicU64]>,
        children: &Children<'_>,
        instructions_max: u64,
    ) -> Result<Stats, LaunchError> {
        let kernel = self.module.kernel(self.kernel)?;
        validate(
            kernel,
            self.grid,
            self.block,
            self.dynamic_shared_bytes,
            self.params.len(),
        )?;
        let params = aligned(&self.params[..kernel.param_bytes as usize]);
        let shared_bytes = self.shared_bytes(kernel, checker);
        let blocks = self.blocks(kernel)?;
        let workers = self.workers_for(blocks, checker);
        let watch = checker.map(|checker| {
            let code = (self.module.program(), self.module.sources());
            let extents = [self.grid, self.block];
            Watching::new(checker, &kernel.name, code, self.module.memory(), extents)
        });
        let (consts32, consts64) = self.module.constants();
        let env = Env {
            program: self.module.program(),
            steps: match checker {
                Some(checker) if checker.checks.any() => self.module.watched_steps(),
                _ => self.module.steps(),
            },
            consts32,
            consts64,
            kernel,
            grid: self.grid,
            block: self.block,
            params: &params,
            param_bytes: kernel.param_bytes.into(),
            shared_bytes,
            dynamic_shared_bytes: self.dynamic_shared_bytes,
            stack_bytes: self
                .stack_bytes
                .clamp(1024, LOCAL_BYTES_MAX)
                .saturating_add(kernel.local_bytes),
            envregs: self.envregs,
            output: self.output,
            heap: self.heap,
            children,
            execution: self.execution,
            launch_id: NEXT_LAUNCH.fetch_add(1, Ordering::Relaxed),
            workers: workers as u32,
            start: Instant::now(),
            watch: watch.as_ref(),
            counts,
        };
        let grid = Grid {
            env: &env,
            memory: self.module.memory(),
            cancel: self.cancel,
            cooperative: self.cooperative,
            blocks,
            next: AtomicU64::new(0),
            short: Mutex::default(),
            lowest_fault: AtomicU64::new(u64::MAX),
            fault: Mutex::new(None),
            instructions: AtomicU64::new(0),
            instructions_max,
        };
        grid.run(workers)
    }

    /// Returns the number of threads that run the blocks.
    fn workers_for(&self, blocks: u64, checker: Option<&Checker>) -> usize {
        match checker {
            Some(_) => 1,
            None => (self.workers.max(1) as u64).min(blocks) as usize,
        }
    }

    /// Returns the shared memory of a block in bytes.
    fn shared_bytes(&self, kernel: &Kernel, checker: Option<&Checker>) -> u32 {
        let named_bytes = match self.dynamic_shared_bytes {
            0 => kernel.shared_end,
            dynamic => kernel.dynamic_shared_offset + dynamic,
        };
        // As on a GPU, where a block may use the rest of its last unit.
        match checker {
            Some(checker) if checker.checks.memory => named_bytes,
            _ => named_bytes.next_multiple_of(SHARED_UNIT_BYTES),
        }
    }

    /// Returns the number of blocks; an error if they should run together and cannot.
    fn blocks(&self, kernel: &Kernel) -> Result<u64, Error> {
        let blocks = self.grid.iter().map(|&n| u64::from(n)).product::<u64>();
        if self.cooperative && blocks > COOPERATIVE_BLOCKS_MAX {
            return Err(Error::LaunchLimit {
                kernel: kernel.name.clone(),
                what: "blocks of a cooperative launch",
                actual: blocks,
                limit: COOPERATIVE_BLOCKS_MAX,
            });
        }
        Ok(blocks)
    }
}

/// Copies parameters to memory that is aligned for the longest access.
fn aligned(params: &[u8]) -> Vec<u128> {
    let whole = |from: &[u8]| {
        let mut bytes = [0; 16];
        bytes[..from.len()].copy_from_slice(from);
        u128::from_le_bytes(bytes)
    };
    params.chunks(16).map(whole).collect()
}

/// The blocks of a launch, as workers take them.
struct Grid<'g> {
    env: &'g Env<'g>,
    memory: &'g Memory,
    cancel: &'g AtomicBool,
    cooperative: bool,
    blocks: u64,
    next: AtomicU64,
    short: Mutex<Short>,
    /// Number of the lowest block that faulted. Later blocks need not run; earlier ones may still
    /// fault.
    lowest_fault: AtomicU64,
    fault: Mutex<Option<(u64, Box<Fault>)>>,
    instructions: AtomicU64,
    /// Instructions after which the launch ends as if cancelled.
    instructions_max: u64,
}

/// Workers and blocks, if there is not enough memory for all to run at a time.
#[derive(Default)]
struct Short {
    /// Workers other than the first that have not left.
    others: usize,
    /// Blocks that await a worker with more memory.
    blocks: Vec<u64>,
}

/// The state of a worker besides the blocks that it runs.
#[derive(Default)]
struct Own {
    /// Finished blocks, whose memory is used again.
    spare: Vec<Block>,
    /// A block for which there was no memory beside those that run.
    put_off: Option<u64>,
    /// Its last block was left to other workers.
    has_left: bool,
}

impl Own {
    /// Whether a new block is worth an attempt beside those that run.
    fn may_start(&self) -> bool {
        self.put_off.is_none() || !self.spare.is_empty()
    }
}

impl Grid<'_> {
    /// Runs all blocks on this thread and `workers - 1` others.
    fn run(self, workers: usize) -> Result<Stats, LaunchError> {
        std::thread::scope(|scope| {
            let help = || {
                for worker in 1..workers {
                    let grid = &self;
                    let body = move || grid.work(worker as u32, None);
                    grid.short.lock().others += 1;
                    // The threads that there are run all blocks.
                    if Builder::new().spawn_scoped(scope, body).is_err() {
                        grid.short.lock().others -= 1;
                        break;
                    }
                }
            };
            self.work(0, Some(&help));
        });
        match self.fault.into_inner() {
            Some((_, fault)) => Err(LaunchError::Fault(*fault)),
            None => Ok(Stats {
                blocks: self.blocks,
                warp_instructions: self.instructions.into_inner(),
            }),
        }
    }

    /// Runs blocks until none are left. `help` starts the other workers once there is enough work
    /// for them.
    fn work(&self, worker: u32, mut help: Option<&dyn Fn()>) {
        let mut done = 0;
        let mut waiting: VecDeque<Block> = VecDeque::new();
        let mut own = Own::default();
        let mut cache = RangeCache::new();
        let mut start_new = true;
        loop {
            let is_over = self.instructions.load(Ordering::Relaxed) >= self.instructions_max;
            if is_over || self.cancel.load(Ordering::Relaxed) {
                return self.cancelled();
            }
            // New and waiting blocks take turns; a cooperative grid starts all of its blocks first.
            let is_idle = waiting.is_empty();
            let room = self.cooperative || waiting.len() < RESIDENT_BLOCKS_MAX && own.may_start();
            let fresh = if is_idle || room && (start_new || self.cooperative) {
                self.take(&mut own, is_idle)
            } else {
                None
            };
            start_new = !start_new;
            let dice = self.env.watch.and_then(|watch| watch.dice.as_ref());
            if let Some(dice) = dice
                && !waiting.is_empty()
            {
                let turn = dice.below(waiting.len());
                waiting.rotate_left(turn);
            }
            let Some(mut block) = fresh.or_else(|| waiting.pop_front()) else {
                let is_done = self.next.load(Ordering::Relaxed) >= self.limit();
                if own.has_left || is_done && self.leave() {
                    return;
                }
                continue;
            };
            if block.linear > self.lowest_fault.load(Ordering::Relaxed) {
                continue;
            }
            let slice = match dice {
                Some(dice) => 1 + dice.below(SEEDED_SLICE) as u64,
                None if help.is_some() => ALONE,
                None => SLICE,
            };
            let mut budget = slice;
            let outcome = {
                let ranges = self.memory.lock();
                cache.refresh(&ranges);
                block.run(self.env, &ranges, &mut cache, worker, &mut budget)
            };
            self.env.start_fired();
            done += slice - budget;
            self.instructions
                .fetch_add(slice - budget, Ordering::Relaxed);
            if done >= ALONE
                && self.next.load(Ordering::Relaxed) < self.limit()
                && let Some(help) = help.take()
            {
                help();
            }
            match outcome {
                Ok(BlockProgress::Finished) => {
                    if let Some(watch) = self.env.watch {
                        watch.finished(block.linear);
                    }
                    own.spare.push(block);
                }
                Ok(BlockProgress::Paused) => waiting.push_back(block),
                Err(fault) => self.faulted(block.linear, fault),
            }
        }
    }

    /// Returns the number from which blocks need not start.
    fn limit(&self) -> u64 {
        self.blocks.min(self.lowest_fault.load(Ordering::Relaxed))
    }

    /// Starts a block. `is_idle` says that the worker has no other.
    fn take(&self, own: &mut Own, is_idle: bool) -> Option<Block> {
        let linear = match own.put_off.take() {
            Some(linear) => linear,
            None => self.next_block()?,
        };
        if linear >= self.limit() {
            return None;
        }
        let mut block = own.spare.pop().unwrap_or_else(Block::new);
        let fault = match block.start(self.env, linear) {
            Ok(()) => return Some(block),
            Err(fault) => fault,
        };
        let is_short = matches!(fault.kind, FaultKind::OutOfMemory(_)) && !self.cooperative;
        own.spare.clear();
        if is_short && !is_idle {
            own.put_off = Some(linear);
        } else if is_short && self.leave_to_others(linear) {
            own.has_left = true;
        } else {
            self.faulted(linear, fault);
        }
        None
    }

    /// Returns the number of the next block to start.
    fn next_block(&self) -> Option<u64> {
        if self.next.load(Ordering::Relaxed) < self.limit() {
            let linear = self.next.fetch_add(1, Ordering::Relaxed);
            return (linear < self.blocks).then_some(linear);
        }
        self.short.lock().blocks.pop()
    }

    /// Leaves a block, for which there is no memory, to the workers that still run blocks: theirs
    /// gets free. Returns false if there are none.
    fn leave_to_others(&self, linear: u64) -> bool {
        let mut short = self.short.lock();
        match short.others {
            0 => false,
            _ => {
                short.others -= 1;
                short.blocks.push(linear);
                true
            }
        }
    }

    /// Notes that a worker has no blocks. Returns false if others have left some.
    fn leave(&self) -> bool {
        let mut short = self.short.lock();
        let may = short.blocks.is_empty();
        if may {
            short.others = short.others.saturating_sub(1);
        }
        may
    }

    fn faulted(&self, linear: u64, fault: Box<Fault>) {
        let mut known = self.fault.lock();
        if known.as_ref().is_none_or(|(lowest, _)| linear < *lowest) {
            self.lowest_fault.store(linear, Ordering::Relaxed);
            *known = Some((linear, fault));
        }
    }

    fn cancelled(&self) {
        let mut known = self.fault.lock();
        if known.is_none() {
            let kernel = self.env.kernel.name.clone();
            *known = Some((
                0,
                Box::new(Fault {
                    kind: FaultKind::LaunchTimeout,
                    kernel,
                    block: [0; 3],
                    thread: [0; 3],
                    line: 0,
                }),
            ));
        }
        self.lowest_fault.store(0, Ordering::Relaxed);
    }
}
