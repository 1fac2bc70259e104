//! Signals: those that this process was started with, and those that end a command early.

use std::{
    io::{self, Write as _},
    os::unix::process::CommandExt as _,
    process::{Command, ExitCode},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, TryLockError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::Context as _;
use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ},
    flag,
    iterator::Signals,
    low_level,
};

/// Time for results that are being noted or printed when a signal comes.
const BUSY_MS_MAX: u64 = 1_000;
const PAUSE_MS: u64 = 10;

/// Returns whether this process was started with the signal ignored, as `nohup` does.
pub(crate) fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut lines = status.lines();
    let mask = lines.find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// Has the program get a signal if this process dies. It is to be started by a thread that lives as
/// long as this process.
pub(crate) fn end_with_parent(command: &mut Command, signal: Signal) {
    let parent = getpid();
    let prepare = move || {
        set_parent_process_death_signal(Some(signal))?;
        // The parent may have died before the line above.
        match getppid() == Some(parent) {
            true => Ok(()),
            false => Err(io::ErrorKind::NotFound.into()),
        }
    };
    // SAFETY: between fork and exec `prepare` makes two system calls; it allocates nothing and
    // takes no lock.
    unsafe { command.pre_exec(prepare) };
}

/// Has a write beyond the limit of files (`ulimit -f`) fail, also in memory that counts as a file,
/// rather than end the process without a word. A program that this process becomes, or starts, has
/// the signal's usual effect.
pub(crate) fn outlive_file_limit() {
    if !is_ignored(SIGXFSZ) {
        // A failure is ignored: the signal then ends the process, as it does by default.
        let _ = flag::register(SIGXFSZ, Arc::default());
    }
}

/// Results of a command that waits for others. Ctrl-C, SIGTERM and SIGHUP end it with what it has
/// found, and with the exit code of a command that the signal ends; a second one ends it at once.
pub(crate) struct Cut<T>(Arc<Mutex<State<T>>>);

struct State<T> {
    doing: &'static str,
    found: T,
    has_any: bool,
    /// Says what was found. Gone once it is said.
    say: Option<Say<T>>,
}

type Say<T> = Box<dyn FnOnce(&T) -> anyhow::Result<ExitCode> + Send>;

impl<T: Send + 'static> Cut<T> {
    pub(crate) fn watch(
        found: T,
        say: impl FnOnce(&T) -> anyhow::Result<ExitCode> + Send + 'static,
    ) -> anyhow::Result<Cut<T>> {
        let state = Arc::new(Mutex::new(State {
            doing: "starting",
            found,
            has_any: false,
            say: Some(Box::new(say)),
        }));
        let watched = Arc::clone(&state);
        watch(move |signal| end(signal, &watched)).context("taking charge of Ctrl-C")?;
        Ok(Cut(state))
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what the command is about to do, for who ends it: `measuring`, `looking at`.
    pub(crate) fn doing(&self, what: &'static str) {
        self.state().doing = what;
    }

    /// Notes a result.
    pub(crate) fn note(&self, note: impl FnOnce(&mut T)) {
        let mut state = self.state();
        note(&mut state.found);
        state.has_any = true;
    }

    /// Looks at the results.
    pub(crate) fn look<R>(&self, at: impl FnOnce(&T) -> R) -> R {
        at(&self.state().found)
    }

    /// Says all results.
    pub(crate) fn finish(self) -> anyhow::Result<ExitCode> {
        let mut state = self.state();
        if let Some(say) = state.say.take() {
            return say(&state.found);
        }
        drop(state);
        // A signal has come, and its thread ends the process.
        loop {
            thread::park();
        }
    }
}

/// Calls `end` at the first signal. The second has its usual effect.
fn watch(end: impl FnOnce(i32) + Send + 'static) -> io::Result<()> {
    let all = [SIGINT, SIGTERM, SIGHUP];
    let watched: Vec<i32> = all.into_iter().filter(|one| !is_ignored(*one)).collect();
    let has_come = Arc::new(AtomicBool::new(false));
    for signal in &watched {
        flag::register_conditional_default(*signal, Arc::clone(&has_come))?;
    }
    let mut signals = Signals::new(&watched)?;
    thread::Builder::new()
        .name("outboard-signals".into())
        .spawn(move || {
            if let Some(signal) = signals.forever().next() {
                has_come.store(true, Ordering::SeqCst);
                end(signal);
            }
        })
        .map(drop)
}

fn end<T>(signal: i32, state: &Mutex<State<T>>) {
    let name = low_level::signal_name(signal).unwrap_or("a signal");
    let (mut doing, mut rest) = ("", "");
    for _ in 0..BUSY_MS_MAX / PAUSE_MS {
        let mut state = match state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
            Err(TryLockError::WouldBlock) => {
                thread::sleep(Duration::from_millis(PAUSE_MS));
                continue;
            }
        };
        doing = state.doing;
        if let Some(say) = state.say.take().filter(|_| state.has_any) {
            rest = match say(&state.found) {
                Ok(_) => "; what was found until then is said",
                Err(_) => "; what was found until then cannot be said",
            };
        }
        break;
    }
    let during = if doing.is_empty() { "" } else { " while " };
    // There is nobody to tell where standard error is closed.
    let _ = writeln!(
        io::stderr(),
        "outboard: interrupted by {name}{during}{doing}{rest}"
    );
    // Without the exit handlers of libraries, which other threads may be in.
    low_level::exit(128 + signal);
}
