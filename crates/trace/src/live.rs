//! The recording of this process: begun at its first driver call and ended when it exits, if
//! `OUTBOARD_RECORD` is set.
//!
//! Used by the libraries that stand in for the driver. Nothing here panics or makes the program
//! fail: what cannot be recorded is reported on standard error, once.

use std::{
    cell::{Cell, RefCell},
    env,
    ffi::{CStr, OsStr, c_char},
    io,
    path::PathBuf,
    sync::{
        Arc, Once, OnceLock,
        atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering},
    },
    thread::JoinHandle,
    time::{SystemTime, UNIX_EPOCH},
};

use outboard_api::signals::FAULTS;
use parking_lot::Mutex;

use crate::{
    clock::Ticks,
    numbers::{Numbers, Remembered},
    record::{About, Call, Host, Mark, Record},
    ring::Ring,
    writer::{Drain, Writer},
};

/// Variable that names the file to record to.
pub const VARIABLE: &str = "OUTBOARD_RECORD";
/// Variable for the library that is loaded before this machine's own driver. In tests that driver
/// may be the client library, which reads the other variable.
pub const LOCAL_VARIABLE: &str = "OUTBOARD_RECORD_LOCAL";
/// Variable with a name of ranges that delimit iterations, instead of those with `iteration` in
/// their name.
pub const ITERATIONS_VARIABLE: &str = "OUTBOARD_RECORD_ITERATIONS";
/// Variable with a number of iterations after which the GPU is timed: those before show how long
/// calls take while the GPU is not watched.
pub const UNTIMED_VARIABLE: &str = "OUTBOARD_RECORD_UNTIMED";
/// Marks a function whose name has no number yet.
const NO_NAME: u32 = u32::MAX;

/// Handles of the default stream, which a call without a stream or with a null one uses, and of the
/// thread's own.
const LEGACY_STREAM: u64 = 1;
const PER_THREAD_STREAM: u64 = 2;

/// A recording in progress.
pub struct Live {
    writer: Arc<Writer>,
    about: Mutex<About>,
    /// Numbers of names, by the number of a function, in whatever order the caller counts
    /// functions.
    functions: Vec<AtomicU32>,
    next_thread: AtomicU32,
    streams: Numbers,
    events: Numbers,
    /// Number of iterations begun.
    iterations: AtomicU32,
}

/// Called with the number of an iteration, from 1, just before it begins.
pub type OnIteration = fn(u32);

static ON_ITERATION: OnceLock<OnIteration> = OnceLock::new();

/// Registers a function to be called for iterations; the first registration counts.
pub fn on_iteration(told: OnIteration) {
    let _ = ON_ITERATION.set(told);
}

/// The recording in progress, or null.
static LIVE: AtomicPtr<Live> = AtomicPtr::new(std::ptr::null_mut());
static BEGINNING: Mutex<()> = Mutex::new(());
/// True if the recording could not be made, or is over.
static IS_OVER: AtomicBool = AtomicBool::new(false);
/// Counts the recordings of this process and of those that it was forked from.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// State of one thread of the program, looked up once per call. No part of it has a destructor, so
/// it exists until the thread is gone.
struct Local {
    /// The recording to which the thread's number and ring belong.
    generation: Cell<u32>,
    thread: Cell<u32>,
    /// The thread's ring, or null.
    ring: Cell<*const Ring>,
    streams: Remembered,
    events: Remembered,
}

thread_local! {
    static LOCAL: Local = const {
        Local {
            generation: Cell::new(0),
            thread: Cell::new(0),
            ring: Cell::new(std::ptr::null()),
            streams: Remembered::nothing(),
            events: Remembered::nothing(),
        }
    };
    /// Returns the ring when the thread ends.
    static LEASE: RefCell<Option<Lease>> = const { RefCell::new(None) };
}

struct Lease(Arc<Ring>);

impl Drop for Lease {
    fn drop(&mut self) {
        LOCAL.with(|local| {
            if local.ring.get() == Arc::as_ptr(&self.0) {
                local.ring.set(std::ptr::null());
            }
        });
        self.0.release();
    }
}

/// Name of the variable for the file: [`VARIABLE`], unless another was chosen.
static CHOSEN: OnceLock<&'static str> = OnceLock::new();

pub fn choose_variable(name: &'static str) {
    let _ = CHOSEN.set(name);
}

fn variable() -> &'static str {
    CHOSEN.get().copied().unwrap_or(VARIABLE)
}

/// Returns true if this process is to be recorded.
pub fn is_wanted() -> bool {
    env::var_os(variable()).is_some_and(|path| !path.is_empty())
}

/// Returns the recording in progress, if there is one.
#[inline]
pub fn live() -> Option<&'static Live> {
    // SAFETY: null, or a recording that is never freed.
    unsafe { LIVE.load(Ordering::Acquire).as_ref() }
}

/// Returns the recording; begins it if there is none yet. The caller counts `functions` from 0.
///
/// `None` if it cannot be made, which is reported once.
#[inline]
pub fn begin(functions: usize) -> Option<&'static Live> {
    match live() {
        Some(live) => Some(live),
        None => begin_anew(functions),
    }
}

#[cold]
fn begin_anew(functions: usize) -> Option<&'static Live> {
    if IS_OVER.load(Ordering::Acquire) {
        return None;
    }
    // Other threads' calls meanwhile are not recorded: the first call may wait for one of them.
    let _one_at_a_time = BEGINNING.try_lock()?;
    if let Some(live) = live() {
        return Some(live);
    }
    let begun = make(functions);
    IS_OVER.store(begun.is_none(), Ordering::Release);
    begun
}

fn make(functions: usize) -> Option<&'static Live> {
    let path = PathBuf::from(env::var_os(variable())?);
    let about = about_this_process();
    let (writer, drain) = match Writer::create(&path, &about) {
        Ok(created) => created,
        Err(error) => {
            warn(format_args!("nothing is recorded: {error}"));
            return None;
        }
    };
    if writer.is_beside() {
        warn(format_args!(
            "{} exists and is left as it is; the recording goes to {}",
            path.display(),
            writer.path().display()
        ));
    }
    if !spawn(drain) {
        return None;
    }
    install_handlers();
    GENERATION.fetch_add(1, Ordering::AcqRel);
    let live = Box::leak(Box::new(Live {
        writer,
        about: Mutex::new(about),
        functions: (0..functions).map(|_| AtomicU32::new(NO_NAME)).collect(),
        next_thread: AtomicU32::new(0),
        streams: Numbers::new(),
        events: Numbers::new(),
        iterations: AtomicU32::new(0),
    }));
    live.know(|about| about.cost = live.writer.cost());
    LIVE.store(live, Ordering::Release);
    Some(live)
}

/// Marks the beginning or end of the program's range `name`; begins the recording if there is none.
///
/// # Safety
/// `name` must be NULL or a C string.
pub unsafe fn mark(name: *const c_char, is_end: bool, functions: usize) {
    if name.is_null() {
        return;
    }
    if let Some(live) = begin(functions) {
        // SAFETY: not NULL, so it is a C string by this function's contract.
        let name = unsafe { CStr::from_ptr(name) };
        live.mark(&name.to_string_lossy(), is_end);
    }
}

/// Facts about a call that the caller of [`Live::call`] gives.
#[derive(Debug, Clone, Copy)]
pub struct Made {
    pub start: Ticks,
    pub end: Ticks,
    pub class: crate::Class,
    pub request_bytes: u64,
    pub response_bytes: u64,
    pub about: Numbered,
    pub correlation: u32,
    pub status: u32,
    /// Number of the server, of those of the program.
    pub server: u8,
}

/// The handles that a call is about; 0 for none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subject {
    pub stream: u64,
    pub event: u64,
    /// True if the call destroys them.
    pub is_destroyed: bool,
}

impl Subject {
    pub const NONE: Subject = Subject {
        stream: 0,
        event: 0,
        is_destroyed: false,
    };
}

/// Numbers in the recording of a call's [`Subject`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Numbered {
    pub stream: u32,
    pub event: u32,
}

impl Live {
    pub fn writer(&self) -> &Arc<Writer> {
        &self.writer
    }

    /// Returns the time stamp for calls.
    #[inline(always)]
    pub fn now(&self) -> Ticks {
        self.writer.now()
    }

    /// Records a call.
    #[inline]
    pub fn call(&self, function: usize, name: &str, made: &Made) {
        LOCAL.with(|local| {
            self.known(local);
            self.put(
                local,
                Record::Call(Call {
                    function: self.function(function, name),
                    class: made.class,
                    thread: local.thread.get(),
                    start_ns: made.start.0,
                    duration_ns: made.end.0.saturating_sub(made.start.0),
                    request_bytes: made.request_bytes,
                    response_bytes: made.response_bytes,
                    stream: made.about.stream,
                    event: made.about.event,
                    correlation: made.correlation,
                    status: made.status,
                    server: made.server,
                }),
            );
        });
    }

    /// Records the beginning or end of the program's range `name`.
    pub fn mark(&self, name: &str, is_end: bool) {
        if let Some(told) = ON_ITERATION.get() {
            let begins = !is_end && self.about.lock().is_iteration(name);
            if begins {
                told(self.iterations.fetch_add(1, Ordering::Relaxed) + 1);
            }
        }
        let at_ns = self.now().0;
        let name = self.writer.name(name);
        LOCAL.with(|local| {
            self.known(local);
            let thread = local.thread.get();
            let mark = Mark {
                name,
                thread,
                at_ns,
                is_end,
            };
            self.put(local, Record::Mark(mark));
        });
    }

    /// Adds a record whose times are ticks.
    #[inline]
    fn put(&self, local: &Local, record: Record) {
        // SAFETY: the thread's own ring, which it holds while the pointer is set; it belongs to
        // this recording (`known`).
        unsafe { self.writer.put(local.ring.get().as_ref(), record) };
    }

    /// Changes the description of the recording when more is known.
    pub fn know(&self, change: impl FnOnce(&mut About)) {
        let mut about = self.about.lock();
        change(&mut about);
        self.writer.set_about(about.clone());
    }

    /// Gives the thread a number in this recording, and a ring if one is left.
    #[inline]
    fn known(&self, local: &Local) {
        if local.generation.get() != GENERATION.load(Ordering::Relaxed) {
            self.meet(local);
        }
    }

    #[cold]
    fn meet(&self, local: &Local) {
        local
            .thread
            .set(self.next_thread.fetch_add(1, Ordering::Relaxed));
        local.generation.set(GENERATION.load(Ordering::Relaxed));
        local.ring.set(std::ptr::null());
        // A thread that is ending gets no ring, since it could not return it.
        let _ = LEASE.try_with(|lease| {
            let ring = self.writer.ring();
            let pointer = ring.as_ref().map_or(std::ptr::null(), Arc::as_ptr);
            // In a forked child the last ring belonged to its parent's recording.
            drop(lease.replace(ring.map(Lease)));
            local.ring.set(pointer);
        });
    }

    /// Returns the numbers of what a call is about, before it is made. An object that the call
    /// destroys is forgotten now: after the call another thread may already have been given the
    /// same handle.
    #[inline]
    pub fn numbered(&self, subject: &Subject) -> Numbered {
        if (subject.stream, subject.event) == (0, 0) {
            return Numbered::default();
        }
        let numbered = LOCAL.with(|local| Numbered {
            stream: self.stream(local, subject.stream),
            event: match subject.event {
                0 => 0,
                handle => self.events.of(&local.events, handle, || 0),
            },
        });
        if subject.is_destroyed {
            self.streams.forget(subject.stream);
            self.events.forget(subject.event);
        }
        numbered
    }

    /// Returns the number of a stream: 0 for the default one, a thread's own for CUDA's per-thread
    /// default stream.
    #[inline]
    fn stream(&self, local: &Local, handle: u64) -> u32 {
        match handle {
            0..=LEGACY_STREAM => 0,
            handle => self.streams.of(&local.streams, handle, || match handle {
                PER_THREAD_STREAM => {
                    self.known(local);
                    local.thread.get() + 1
                }
                _ => 0,
            }),
        }
    }

    #[inline]
    fn function(&self, function: usize, name: &str) -> u32 {
        let Some(slot) = self.functions.get(function) else {
            return self.writer.name(name);
        };
        match slot.load(Ordering::Relaxed) {
            NO_NAME => {
                let number = self.writer.name(name);
                slot.store(number, Ordering::Relaxed);
                number
            }
            number => number,
        }
    }
}

/// Ends the recording, since the program has ended or is ending.
fn finish() {
    let Some(live) = live() else { return };
    IS_OVER.store(true, Ordering::Release);
    LIVE.store(std::ptr::null_mut(), Ordering::Release);
    match live.writer.finish() {
        Ok(summary) if summary.lost > 0 => warn(format_args!(
            "{}: {} calls came faster than they could be written and are missing",
            summary.path.display(),
            summary.lost
        )),
        Ok(_) => {}
        Err(error) => warn(error),
    }
}

extern "C" fn at_exit() {
    finish();
}

/// Stops recording in a forked child: it does not have the thread that writes, and its parent's
/// file is not its own.
extern "C" fn in_child() {
    LIVE.store(std::ptr::null_mut(), Ordering::Release);
}

fn install_handlers() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // SAFETY: the handler of a fork only touches an atomic; that of the exit is a function of
        // this library, which is never unloaded: programs do not unload their drivers.
        unsafe {
            libc::pthread_atfork(None, None, Some(in_child));
            libc::atexit(at_exit);
        }
    });
}

/// Starts a thread of the library. It takes no signals but those of its own faults, since they are
/// the program's.
fn spawn_aside<T: Send + 'static>(
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let thread = std::thread::Builder::new().name("outboard-record".into());
    // SAFETY: the calls themselves fill the signal sets; the old mask is restored.
    unsafe {
        let (mut blocked, mut old) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut blocked);
        for fault in FAULTS {
            libc::sigdelset(&mut blocked, fault);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &blocked, &mut old);
        let spawned = thread.spawn(body);
        libc::pthread_sigmask(libc::SIG_SETMASK, &old, std::ptr::null_mut());
        spawned
    }
}

/// Starts the thread that writes the recording.
fn spawn(drain: Drain) -> bool {
    let spawned = spawn_aside(move || drain.run());
    if let Err(error) = &spawned {
        warn(format_args!(
            "nothing is recorded: a thread cannot be started: {error}"
        ));
    }
    spawned.is_ok()
}

fn about_this_process() -> About {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    About {
        argv: env::args_os()
            .map(|argument| argument.to_string_lossy().into_owned())
            .collect(),
        time_s: now.map_or(0, |now| now.as_secs()),
        release: env!("CARGO_PKG_VERSION").into(),
        host: Host {
            cpu: processor(),
            cores: std::thread::available_parallelism().map_or(0, |cores| cores.get() as u32),
        },
        iterations: env::var_os(ITERATIONS_VARIABLE)
            .as_deref()
            .map(OsStr::to_string_lossy)
            .filter(|name| !name.is_empty())
            .map(Into::into),
        ..About::default()
    }
}

fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("model name"));
    let name = line.and_then(|line| line.split_once(':'));
    name.map_or_else(String::new, |(_, name)| name.trim().into())
}

fn warn(what: impl std::fmt::Display) {
    if env::var("OUTBOARD_LOG").as_deref() == Ok("off") {
        return;
    }
    // stderr may be closed; eprintln! would panic.
    let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("outboard: {what}\n"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_takes_the_signals_of_its_own_faults_alone() {
        let thread = spawn_aside(|| {
            // SAFETY: a signal set that the call fills; no mask is changed.
            let is_blocked = unsafe {
                let mut mask = std::mem::zeroed();
                libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut mask);
                move |signal| libc::sigismember(&mask, signal) == 1
            };
            let others = [libc::SIGINT, libc::SIGTERM, libc::SIGCHLD, libc::SIGPROF];
            (FAULTS.map(&is_blocked), others.map(is_blocked))
        });
        let masks = thread.expect("a thread").join().expect("ended");
        assert_eq!(masks, ([false; FAULTS.len()], [true; 4]));
    }
}
