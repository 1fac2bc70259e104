//! `outboard run --pool --restart N`: this process stays the program's parent, and runs it again if
//! it ended because it had lost a GPU. A spare that took the GPU's place is used; otherwise the
//! lease is given back, and other GPUs are asked for.

use std::{
    os::unix::process::ExitStatusExt as _,
    process::{Child, ExitCode, ExitStatus},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI32, Ordering},
    },
    thread,
};

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2},
    iterator::Signals,
};

use super::claim::{Leased, NotServed, lease_for};
use crate::{args::RunArgs, run, stack};

/// Code of a program that a signal ended, less the signal's number, as shells have it.
const SIGNAL_CODE: i32 = 128;

/// The program that runs now, for signals.
#[derive(Default)]
struct Running {
    pid: AtomicI32,
    is_told_to_end: AtomicBool,
}

pub(crate) fn run(args: &RunArgs) -> anyhow::Result<ExitCode> {
    let running = Arc::new(Running::default());
    forward_signals(&running)?;
    let times = args.pool.restart;
    let mut leased = lease_for(args)?.context("--restart is for programs with GPUs of a pool")?;
    for run in 0.. {
        let ended = once(args, &mut leased, &running);
        let lost = match &ended {
            Err(error) if error.is::<NotServed>() => Some(format!("{error:#}")),
            Err(_) => None,
            Ok(Ended::Program(status)) if status.success() => None,
            Ok(Ended::Program(_)) if running.is_told_to_end.load(Ordering::Relaxed) => None,
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
    let mut child: Child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return Ok(Ended::NotStarted(run::not_started(&command, &error))),
    };
    let pid = i32::try_from(child.id()).unwrap_or(0);
    running.pid.store(pid, Ordering::Relaxed);
    let status = child.wait().context("waiting for the program");
    running.pid.store(0, Ordering::Relaxed);
    status.map(Ended::Program)
}

/// Hands signals on to the program. Those of the terminal's keys it gets by itself.
fn forward_signals(running: &Arc<Running>) -> anyhow::Result<()> {
    let signals = [SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGINT, SIGQUIT];
    let mut signals = Signals::new(signals).context("watching for signals")?;
    let running = Arc::clone(running);
    let handle = move || {
        for signal in signals.forever() {
            let ends = !matches!(signal, SIGUSR1 | SIGUSR2);
            running.is_told_to_end.fetch_or(ends, Ordering::Relaxed);
            let passed = match signal {
                SIGTERM => Signal::TERM,
                SIGHUP => Signal::HUP,
                SIGUSR1 => Signal::USR1,
                SIGUSR2 => Signal::USR2,
                _ => continue,
            };
            if let Some(pid) = Pid::from_raw(running.pid.load(Ordering::Relaxed)) {
                // It may just have ended.
                let _ = kill_process(pid, passed);
            }
        }
    };
    let builder = thread::Builder::new().name("outboard-signals".into());
    builder.spawn(handle).context("watching for signals")?;
    Ok(())
}
