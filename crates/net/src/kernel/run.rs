//! The thread that runs the kernel, slice after slice.
//!
//! ```text
//!  launch ─► slice: blocks serve their queues ─► ended, with work ─► launch
//!                                                ended, without ───► rest, launch a short one
//! ```
//!
//! A slice looks at the word that stops it each 20 us, between entries, and ends within its time if
//! nobody is there to write that: what a process leaves behind when it is killed ends by itself.
//! One that cannot even begin keeps what it is going to use, though its endpoint is closed.

use std::{
    io::{Write as _, stderr},
    mem::{forget, take},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering, fence},
    },
    thread::{JoinHandle, Thread, current, park_timeout, sleep, yield_now},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::{
    error::Error,
    memory::Mapped,
    rest::{Rest, longest},
    threads::spawn,
};

use super::{
    adapter::KernelAdapter,
    gpu::{Gpu, Slice},
    tables::{GROUPS_MAX, TABLES_BYTES},
};

/// Time of a slice: who waits for the whole device waits for as long, at most.
const SLICE: Duration = Duration::from_millis(5);
/// Time without work after which a slice ends: where there was some, and where there was none.
const IDLE: Duration = Duration::from_millis(1);
const LOOK: Duration = Duration::from_micros(20);
/// Sleep of the thread while a slice runs, and shortly before its end.
const LONG_STEP: Duration = Duration::from_millis(1);
const STEP: Duration = Duration::from_micros(50);
/// Why a call cannot have the tables now. Later ones may.
const BUSY: &str = "its slice has not ended: kernels that fill the GPU leave it no room to begin";
/// Time that a call waits for a slice's end. One that cannot begin has none.
const LOST: Duration = Duration::from_secs(10);
/// Time after which the driver is asked whether a slice is over.
const LATE: Duration = Duration::from_millis(100);
/// Looks for a slice's end before a caller sleeps between them.
const LOOKS: u32 = 200;

const LINE_BYTES: usize = 64;
const CONTROL_BYTES: usize = LINE_BYTES * (1 + GROUPS_MAX as usize);

#[derive(Debug)]
struct State {
    adapter: KernelAdapter,
    /// Words by which posters see that they have to rouse.
    told: Vec<Mapped>,
    /// Number of the last slice, and since when it runs, if it does.
    number: u64,
    since: Option<Instant>,
    failed: Option<String>,
}

/// An adapter that is a kernel, which threads use in turns.
#[derive(Debug)]
pub(super) struct Shared {
    /// Before the tables, so that no slice uses them when they are dropped.
    gpu: Gpu,
    state: Mutex<State>,
    control: Mapped,
    blocks: usize,
    is_roused: AtomicBool,
    stop: AtomicBool,
    thread: OnceLock<Thread>,
}

impl Shared {
    /// Wakes the thread, which then looks for some time before it sleeps again.
    pub(super) fn rouse(&self) {
        self.is_roused.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    fn line(&self, block: usize) -> usize {
        LINE_BYTES * (1 + block)
    }

    /// Returns the work of the last slice, once all blocks have ended it.
    fn ended(&self, number: u64) -> Option<u64> {
        let mut done = 0;
        for block in 0..self.blocks {
            let at = self.line(block);
            if self.control.u64(at).load(Ordering::Acquire) != number {
                return None;
            }
            done += self.control.u64(at + 8).load(Ordering::Relaxed);
        }
        Some(done)
    }

    /// Says why a slice is over and has not ended.
    fn silence(&self) -> String {
        let tables = (0..self.blocks).map(|block| self.control.u64(self.line(block) + 24));
        match tables.map(|bytes| bytes.load(Ordering::Acquire)).max() {
            Some(bytes) if bytes > 0 => {
                format!("the kernel has tables of {bytes} bytes, and this side of {TABLES_BYTES}")
            }
            _ => "a slice is over and has not said so".into(),
        }
    }

    /// Fails if the GPU is done with a slice that has not said so.
    fn check(&self, number: u64) -> Result<(), String> {
        match self.gpu.within(Gpu::is_over)? && self.ended(number).is_none() {
            true => Err(self.silence()),
            false => Ok(()),
        }
    }

    /// Returns true if the GPU has yet to run a slice, or is still running it.
    fn is_under_way(&self) -> bool {
        let has_slice = self.state.lock().since.is_some();
        has_slice && matches!(self.gpu.within(Gpu::is_over), Ok(false))
    }

    /// Ends the slice, and calls a function with the adapter.
    pub(super) fn with<R>(
        &self,
        call: impl FnOnce(&mut KernelAdapter) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let mut state = self.state.lock();
        self.end(&mut state)?;
        let result = call(&mut state.adapter);
        drop(state);
        self.rouse();
        result
    }

    /// Adds a word that is 1 while a thread that posts has to rouse.
    pub(super) fn tell_posters(&self, word: Mapped) {
        self.state.lock().told.push(word);
    }

    pub(super) fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Stops the slice that runs, and waits for its end.
    fn end(&self, state: &mut State) -> Result<(), Error> {
        if let Some(why) = &state.failed {
            return Err(Error::Kernel(why.clone()));
        }
        if state.since.is_none() {
            return Ok(());
        }
        self.control.u64(0).store(1, Ordering::SeqCst);
        let began = Instant::now();
        let mut looks = 0;
        while self.ended(state.number).is_none() {
            looks += 1;
            match looks < LOOKS {
                true => yield_now(),
                false => sleep(STEP),
            }
            if began.elapsed() > LATE {
                self.check(state.number).map_err(Error::Kernel)?;
            }
            if began.elapsed() > LOST {
                return Err(Error::Kernel(BUSY.into()));
            }
        }
        state.since = None;
        Ok(())
    }

    /// Says to posters that they have to rouse, or need not. A post before it is seen by the next
    /// slice.
    fn tell(&self, state: &State, is_told: bool) {
        for word in &state.told {
            word.u64(0).store(is_told.into(), Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
    }

    fn launch(&self, state: &mut State, idle: Duration) -> Result<(), String> {
        self.control.u64(0).store(0, Ordering::SeqCst);
        state.number += 1;
        let slice = Slice {
            tables: state.adapter.address(),
            control: self.control.address(),
            number: state.number,
            idle_ns: idle.as_nanos() as u64,
            slice_ns: SLICE.as_nanos() as u64,
        };
        self.gpu.launch(&slice)?;
        state.since = Some(Instant::now());
        Ok(())
    }

    /// Takes a step. Returns for how long the thread may sleep.
    fn step(&self, state: &mut State, pace: &mut Pace) -> Result<Duration, String> {
        pace.is_wanted |= self.is_roused.swap(false, Ordering::SeqCst);
        let Some(since) = state.since else {
            pace.is_quick &= !take(&mut pace.is_wanted);
            self.tell(state, pace.is_quick);
            let idle = if pace.is_quick { LOOK } else { IDLE };
            self.launch(state, idle)?;
            return Ok(STEP);
        };
        let Some(done) = self.ended(state.number) else {
            let runs = since.elapsed();
            if runs > LATE {
                self.check(state.number)?;
            }
            let is_long = !pace.is_quick && runs + LONG_STEP < SLICE;
            return Ok(if is_long { LONG_STEP } else { STEP });
        };
        state.since = None;
        if done > 0 {
            pace.rest = Rest::new(pace.longest);
            pace.is_quick = false;
            return Ok(Duration::ZERO);
        }
        pace.is_quick = true;
        if pace.is_wanted {
            return Ok(Duration::ZERO);
        }
        Ok(pace.rest.time(Instant::now(), state.adapter.is_waiting()))
    }

    fn run(&self, longest: Duration) {
        let _ = self.thread.set(current());
        let mut pace = Pace {
            rest: Rest::new(longest),
            longest,
            is_quick: false,
            is_wanted: false,
        };
        let failed = self.gpu.within(|_| {
            while !self.stop.load(Ordering::Acquire) {
                let mut state = self.state.lock();
                let time = self.step(&mut state, &mut pace)?;
                drop(state);
                if !time.is_zero() && !self.is_roused.load(Ordering::SeqCst) {
                    park_timeout(time);
                }
            }
            Ok(())
        });
        let mut state = self.state.lock();
        if let Err(why) = failed {
            state.failed = Some(why);
        }
        let _ = self.end(&mut state);
    }
}

/// How the thread passes the time without work.
struct Pace {
    rest: Rest,
    longest: Duration,
    /// Slices look once, since those before had nothing to do.
    is_quick: bool,
    /// Somebody has roused since the slice began.
    is_wanted: bool,
}

/// The kernel's thread, which ends with it.
#[derive(Debug)]
pub(super) struct Runner {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Runner {
    /// Starts an adapter in the context of this thread.
    pub(super) fn start(blocks: u32, warps: u32) -> Result<Runner, Error> {
        let longest = longest()?;
        let gpu = Gpu::open(blocks, warps).map_err(Error::Kernel)?;
        // The kernel uses both unchecked.
        let memory = |bytes| Mapped::of_driver(bytes).ok_or(Error::OutOfMemory(bytes));
        let adapter = KernelAdapter::new(memory(KernelAdapter::BYTES)?, blocks)?;
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                adapter,
                told: Vec::new(),
                number: 0,
                since: None,
                failed: None,
            }),
            gpu,
            control: memory(CONTROL_BYTES)?,
            blocks: blocks as usize,
            is_roused: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            thread: OnceLock::new(),
        });
        let run = {
            let shared = shared.clone();
            move || shared.run(longest)
        };
        let thread = spawn("outboard-net", run);
        let thread = Some(thread.map_err(|error| Error::Thread(error.to_string()))?);
        Ok(Runner { shared, thread })
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.rouse();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        if self.shared.is_under_way() {
            let _ = writeln!(
                stderr(),
                "outboard_net_close: {BUSY}. Its tables and its module are left to it"
            );
            forget(self.shared.clone());
        }
    }
}
