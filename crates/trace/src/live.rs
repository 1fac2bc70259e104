//! The recording of this process: begun at its first driver call, ended when it exits, as `OUTBOARD_RECORD` asks.
//!
//! Used by the libraries that stand in for the driver. Nothing here panics or fails the program: what cannot be recorded is
//! said on standard error, once.

use std::{
    cell::{Cell, RefCell},
    env,
    ffi::{CStr, OsStr, c_char},
    path::PathBuf,
    sync::{
        Arc, Once, OnceLock,
        atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use parking_lot::Mutex;

use crate::{
    clock::Ticks,
    numbers::{Numbers, Remembered},
    record::{About, Call, Host, Mark, Record},
    ring::Ring,
    writer::{Drain, Writer},
};

/// The file to record to.
pub const VARIABLE: &str = "OUTBOARD_RECORD";
/// The same, for the library in front of this machine's own driver: that may be, in tests, the client library, which looks
/// at the other.
pub const LOCAL_VARIABLE: &str = "OUTBOARD_RECORD_LOCAL";
/// A name of ranges that delimit iterations, beside those that have `iteration` in their name.
pub const ITERATIONS_VARIABLE: &str = "OUTBOARD_RECORD_ITERATIONS";
/// The GPU is timed from behind so many iterations on: those before show what calls take while nobody looks at the GPU.
pub const UNTIMED_VARIABLE: &str = "OUTBOARD_RECORD_UNTIMED";
/// A function's name has no number yet.
const NO_NAME: u32 = u32::MAX;

/// The handle of the stream that a call without one, or with a null one, uses; and of the thread's own.
const LEGACY_STREAM: u64 = 1;
const PER_THREAD_STREAM: u64 = 2;

/// A recording that is being made.
pub struct Live {
    writer: Arc<Writer>,
    about: Mutex<About>,
    /// By the number of a function, in whatever order its user counts them.
    functions: Vec<AtomicU32>,
    next_thread: AtomicU32,
    streams: Numbers,
    events: Numbers,
    /// How many have begun.
    iterations: AtomicU32,
}

/// Told the number of an iteration, from 1, just before it begins.
pub type OnIteration = fn(u32);

static ON_ITERATION: OnceLock<OnIteration> = OnceLock::new();

/// Asks to be told of iterations; of two who ask the first one is.
pub fn on_iteration(told: OnIteration) {
    let _ = ON_ITERATION.set(told);
}

/// Null: none is being made.
static LIVE: AtomicPtr<Live> = AtomicPtr::new(std::ptr::null_mut());
static BEGINNING: Mutex<()> = Mutex::new(());
/// It could not be made, or is over.
static IS_OVER: AtomicBool = AtomicBool::new(false);
/// Counts the recordings of this process and of those that it was forked from.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// What a thread of the program has to itself, looked up once a call. Nothing in it has to be dropped, so that it is there
/// until the thread is gone.
struct Local {
    /// The recording that the thread's number and ring are of.
    generation: Cell<u32>,
    thread: Cell<u32>,
    /// Null: it has none.
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
    /// Gives the ring back when the thread ends.
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

/// Which variable names the file of whoever uses this: [`VARIABLE`], if no other was chosen.
static CHOSEN: OnceLock<&'static str> = OnceLock::new();

pub fn choose_variable(name: &'static str) {
    let _ = CHOSEN.set(name);
}

fn variable() -> &'static str {
    CHOSEN.get().copied().unwrap_or(VARIABLE)
}

/// Whether this process is to be recorded.
pub fn is_wanted() -> bool {
    env::var_os(variable()).is_some_and(|path| !path.is_empty())
}

/// The recording that is being made, if one is.
#[inline]
pub fn live() -> Option<&'static Live> {
    // SAFETY: null, or a recording that is never freed.
    unsafe { LIVE.load(Ordering::Acquire).as_ref() }
}

/// The recording; begins it if there is none yet. `functions` are counted from 0 by whoever records them.
///
/// None where it cannot be made, which is said once.
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
    // Whoever calls meanwhile goes unrecorded: it may be a call that the first one waits for.
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

/// Marks the beginning or end of what the program calls so; begins the recording where there is none.
///
/// # Safety
/// `name` is NULL or a C string.
pub unsafe fn mark(name: *const c_char, is_end: bool, functions: usize) {
    if name.is_null() {
        return;
    }
    if let Some(live) = begin(functions) {
        // SAFETY: the caller's promise.
        let name = unsafe { CStr::from_ptr(name) };
        live.mark(&name.to_string_lossy(), is_end);
    }
}

/// What the caller of [`Live::call`] knows of a call.
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
}

/// The handles that a call is about; 0 where it is about none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subject {
    pub stream: u64,
    pub event: u64,
    /// The call ends their life.
    pub is_destroyed: bool,
}

impl Subject {
    pub const NONE: Subject = Subject {
        stream: 0,
        event: 0,
        is_destroyed: false,
    };
}

/// The same by their numbers in the recording.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Numbered {
    pub stream: u32,
    pub event: u32,
}

impl Live {
    pub fn writer(&self) -> &Arc<Writer> {
        &self.writer
    }

    /// What calls are stamped with.
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
                }),
            );
        });
    }

    /// Records the beginning or end of what the program calls so.
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

    /// Times are ticks.
    #[inline]
    fn put(&self, local: &Local, record: Record) {
        // SAFETY: the thread's own, which it holds for as long as the pointer is there; of this recording (`known`).
        unsafe { self.writer.put(local.ring.get().as_ref(), record) };
    }

    /// What is recorded is known better now.
    pub fn know(&self, change: impl FnOnce(&mut About)) {
        let mut about = self.about.lock();
        change(&mut about);
        self.writer.set_about(about.clone());
    }

    /// The thread has a number in this recording, and a ring where there was one left.
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
        // A thread on its way out gets none: nobody would give it back.
        let _ = LEASE.try_with(|lease| {
            let ring = self.writer.ring();
            let pointer = ring.as_ref().map_or(std::ptr::null(), Arc::as_ptr);
            // In a forked child the last one was of its parent's recording.
            drop(lease.replace(ring.map(Lease)));
            local.ring.set(pointer);
        });
    }

    /// What a call is about that is going to be made. What it destroys is forgotten now: behind the call another thread may
    /// have been given the same handle already.
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

    /// The number of a stream: 0 for the default one, a thread's own for what CUDA calls the per-thread default.
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

/// The program has ended, or does so.
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

/// A forked child has not got the thread that writes; its parent's file is not its own.
extern "C" fn in_child() {
    LIVE.store(std::ptr::null_mut(), Ordering::Release);
}

fn install_handlers() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // SAFETY: the handler of a fork touches an atomic only; that of the exit is a function of this library, which
        // is never unloaded: the program's drivers are not.
        unsafe {
            libc::pthread_atfork(None, None, Some(in_child));
            libc::atexit(at_exit);
        }
    });
}

/// A thread of the library: it takes no signals, they are the program's.
fn spawn(drain: Drain) -> bool {
    // SAFETY: a signal set filled by the calls themselves; the old mask is restored.
    let spawned = unsafe {
        let (mut all, mut old) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut old);
        let spawned = std::thread::Builder::new()
            .name("outboard-record".into())
            .spawn(move || drain.run());
        libc::pthread_sigmask(libc::SIG_SETMASK, &old, std::ptr::null_mut());
        spawned
    };
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
