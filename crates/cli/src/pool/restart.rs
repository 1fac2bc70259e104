//! `outboard run --pool --restart N`: this process stays the program's parent, and runs it again if
//! it ended because it had lost a GPU. A spare that took the GPU's place is used; otherwise the
//! lease is given back, and other GPUs are asked for.

use std::{
    os::unix::process::ExitStatusExt as _,
    process::{ExitCode, ExitStatus},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, TryLockError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2},
    iterator::Signals,
    low_level::emulate_default_handler,
};

use super::claim::{Leased, NotServed, lease_for};
use crate::{
    args::RunArgs,
    run,
    signals::{end_with_parent, is_ignored},
    stack,
};

/// Code of a program that a signal ended, less the signal's number, as shells have it.
const SIGNAL_CODE: i32 = 128;

/// The program, for signals.
#[derive(Default)]
struct Running {
    /// Locked while the program is being started.
    now: Mutex<Now>,
    is_told_to_end: AtomicBool,
}

#[derive(Default)]
enum Now {
    /// No program runs: a signal ends this process.
    #[default]
    Waits,
    Runs(Pid),
    /// The program has ended, and its end decides what follows.
    Ended,
}

impl Running {
    fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether a signal has told the program to end. Otherwise the next one ends this
    /// process.
    fn was_told_to_end(&self) -> bool {
        let mut now = self.now();
        let is_told = self.is_told_to_end.load(Ordering::Relaxed);
        if !is_told {
            *now = Now::Waits;
        }
        is_told
    }

    /// Hands a signal on to the program. Those of the terminal's keys it gets by itself, if it runs
    /// already.
    fn take(&self, signal: i32) {
        let (now, may_be_early) = match self.now.try_lock() {
            Ok(now) => (now, false),
            Err(TryLockError::Poisoned(now)) => (now.into_inner(), false),
            Err(TryLockError::WouldBlock) => (self.now(), true),
        };
        if matches!(*now, Now::Waits) {
            // Returns for no signal of those that are watched.
            let _ = emulate_default_handler(signal);
        }
        let ends = !matches!(signal, SIGUSR1 | SIGUSR2);
        self.is_told_to_end.fetch_or(ends, Ordering::Relaxed);
        let passed = match signal {
            SIGTERM => Signal::TERM,
            SIGHUP => Signal::HUP,
            SIGUSR1 => Signal::USR1,
            SIGUSR2 => Signal::USR2,
            SIGINT if may_be_early => Signal::INT,
            SIGQUIT if may_be_early => Signal::QUIT,
            _ => return,
        };
        if let Now::Runs(pid) = *now {
            // It may just have ended.
            let _ = kill_process(pid, passed);
        }
    }
}

pub(crate) fn run(args: &RunArgs) -> anyhow::Result<ExitCode> {
    let running = Arc::new(Running::default());
    watch_signals(&running)?;
    let times = args.pool.restart;
    let mut leased = lease_for(args)?.context("--restart is for programs with GPUs of a pool")?;
    for run in 0.. {
        let ended = once(args, &mut leased, &running);
        let lost = match &ended {
            Err(error) if error.is::<NotServed>() => Some(format!("{error:#}")),
            Err(_) => None,
            Ok(Ended::Program(status)) if status.success() => None,
            Ok(Ended::Program(_)) if running.was_told_to_end() => None,
            Ok(Ended::Program(_)) => leased.lost()?,
            Ok(Ended::NotStarted(_)) => None,
        };
        let Some(lost) = lost else {
            return Ok(ended?.code());
        };
        if run == times {
            eprintln!(
                "outboard: the program lost a GPU ({lost}), and has been run again {times} times"
            );
            return Ok(ended?.code());
        }
        eprintln!(
            "outboard: the program lost a GPU ({lost}); it runs again, {} of {times}",
            run + 1
        );
        leased = leased.again(args)?;
    }
    Ok(ExitCode::FAILURE)
}

enum Ended {
    Program(ExitStatus),
    NotStarted(ExitCode),
}

impl Ended {
    fn code(self) -> ExitCode {
        match self {
            Ended::NotStarted(code) => code,
            Ended::Program(status) => {
                let signal = status.signal().map(|signal| SIGNAL_CODE + signal);
                let code = status
                    .code()
                    .or(signal)
                    .and_then(|code| u8::try_from(code).ok());
                code.map_or(ExitCode::FAILURE, ExitCode::from)
            }
        }
    }
}

fn once(args: &RunArgs, leased: &mut Leased, running: &Running) -> anyhow::Result<Ended> {
    let mut command = run::command(args, Some(leased))?;
    stack::restore();
    // Its GPUs are then given back.
    end_with_parent(&mut command, Signal::KILL);
    let mut child = {
        let mut now = running.now();
        match command.spawn() {
            Ok(child) => {
                *now = Now::Runs(Pid::from_child(&child));
                child
            }
            Err(error) => return Ok(Ended::NotStarted(run::not_started(&command, &error))),
        }
    };
    let status = child.wait().context("waiting for the program");
    *running.now() = Now::Ended;
    status.map(Ended::Program)
}

/// Starts the thread that takes signals.
fn watch_signals(running: &Arc<Running>) -> anyhow::Result<()> {
    // Those that are ignored stay so for the program, too: nohup.
    let signals = [SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGINT, SIGQUIT];
    let watched = signals.into_iter().filter(|signal| !is_ignored(*signal));
    let mut signals = Signals::new(watched).context("watching for signals")?;
    let running = Arc::clone(running);
    let handle = move || signals.forever().for_each(|signal| running.take(signal));
    let builder = thread::Builder::new().name("outboard-signals".into());
    builder.spawn(handle).context("watching for signals")?;
    Ok(())
}
