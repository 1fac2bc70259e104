//! One side of the comparison: a worker process, with the machine's own driver or with ours and a
//! server.

use std::{
    env,
    ffi::OsString,
    io::{BufRead, BufReader, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow, bail};
use outboard_api::optimise::VARIABLE;
use outboard_link::Endpoint;

use super::{
    Interrupt,
    cases::Operation,
    net_case::{NetCase, NetFigures},
    protocol::{Ready, Reply, Request},
};
use crate::run::environment;

/// Time limit for a worker's first result: a server opens its device, a driver compiles the
/// kernels.
const START_MS_MAX: u64 = 90_000;
/// Time allowed in addition to a measurement's own: its preparation, and one sample of a slow
/// device.
const OVERTIME_MS_MAX: u64 = 60_000;
/// Time for a worker to exit after its input has ended, before it is killed.
const LEAVE_MS_MAX: u64 = 2_000;
/// Interval at which a wait checks for an interruption.
const TICK: Duration = Duration::from_millis(50);

/// The driver or server that a worker uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) name: String,
    /// `None` for this machine's own driver.
    pub(super) url: Option<Endpoint>,
    /// Value of `OUTBOARD_OPTIMISE`; `None` for the library's own choice.
    pub(super) optimise: Option<String>,
}

/// A running worker.
pub(super) struct Side {
    pub(super) target: Target,
    pub(super) ready: Ready,
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    interrupt: Interrupt,
}

/// A worker's report that it could not do its work.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Refused(String);

/// A worker that has been started, and may not be ready.
pub(super) struct Starting(Side);

impl Side {
    pub(super) fn start(
        target: &Target,
        folder: &Path,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Side> {
        Side::launch(target, folder, interrupt)?.ready()
    }

    pub(super) fn launch(
        target: &Target,
        folder: &Path,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Starting> {
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0("outboard")
            .arg("bench-worker")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C is for the bench, which ends the workers in order.
            .process_group(0)
            .env_remove("OUTBOARD_GPU")
            .env_remove("OUTBOARD_STATS");
        match &target.url {
            Some(url) => command.envs(environment(folder, std::slice::from_ref(url))),
            None => command.env("LD_LIBRARY_PATH", without(folder)),
        };
        if let Some(level) = &target.optimise {
            command.env(VARIABLE, level);
        }
        let mut child = command.spawn().context("starting a worker")?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().context("a worker without output")?;
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let nothing = Ready {
            device: String::new(),
            driver_version: 0,
            library: String::new(),
            connect_ns: 0,
            first_result_ns: 0,
        };
        Ok(Starting(Side {
            target: target.clone(),
            ready: nothing,
            child,
            stdin,
            lines,
            interrupt: interrupt.clone(),
        }))
    }

    pub(super) fn run(
        &mut self,
        what: &str,
        work: Operation,
        samples: usize,
        budget: Duration,
    ) -> anyhow::Result<(Vec<f64>, u64)> {
        self.ask(work, samples, budget)
            .and_then(|()| self.samples(budget))
            .with_context(|| format!("{}: {what}", self.target.name))
    }

    /// Starts a measurement; [`samples`](Self::samples) waits for it.
    pub(super) fn ask(
        &mut self,
        work: Operation,
        samples: usize,
        budget: Duration,
    ) -> anyhow::Result<()> {
        let budget_ms = u64::try_from(budget.as_millis())?;
        self.send(&Request::Run {
            work,
            samples,
            budget_ms,
        })
    }

    pub(super) fn samples(&mut self, budget: Duration) -> anyhow::Result<(Vec<f64>, u64)> {
        match self.reply(budget + Duration::from_millis(OVERTIME_MS_MAX))? {
            Reply::Samples { ns, span_ns } => Ok((ns, span_ns)),
            other => bail!("the worker said {other:?}"),
        }
    }

    pub(super) fn free_bytes(&mut self) -> anyhow::Result<u64> {
        self.send(&Request::Memory)?;
        match self.reply(Duration::from_millis(OVERTIME_MS_MAX))? {
            Reply::Memory { free_bytes } => Ok(free_bytes),
            other => bail!("the worker said {other:?}"),
        }
    }

    pub(super) fn net(&mut self, case: &NetCase) -> anyhow::Result<NetFigures> {
        self.send(&Request::Net(*case))?;
        match self.reply(Duration::from_millis(OVERTIME_MS_MAX))? {
            Reply::Net(figures) => Ok(figures),
            other => bail!("the worker said {other:?}"),
        }
    }

    /// Returns whether the device still works.
    pub(super) fn still_works(&mut self) -> bool {
        let work = Operation::LaunchSynchronize;
        self.run("looking after a failure", work, 1, Duration::ZERO)
            .is_ok()
    }

    /// Makes the worker exit, without waiting for it.
    pub(super) fn dismiss(&mut self) {
        self.stdin = None;
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    fn send(&mut self, request: &Request) -> anyhow::Result<()> {
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        let written = match &mut self.stdin {
            Some(stdin) => stdin.write_all(&line),
            None => Err(std::io::ErrorKind::BrokenPipe.into()),
        };
        written.map_err(|_| self.ended())
    }

    fn reply(&mut self, patience: Duration) -> anyhow::Result<Reply> {
        let deadline = Instant::now() + patience;
        loop {
            match self.lines.recv_timeout(TICK) {
                Ok(line) => {
                    let reply = serde_json::from_str(&line)
                        .with_context(|| format!("the worker said {line:?}"))?;
                    return match reply {
                        Reply::Failed { why } => Err(Refused(why).into()),
                        reply => Ok(reply),
                    };
                }
                Err(RecvTimeoutError::Disconnected) => return Err(self.ended()),
                Err(RecvTimeoutError::Timeout) if Instant::now() > deadline => {
                    bail!("no answer within {} s", patience.as_secs())
                }
                Err(RecvTimeoutError::Timeout) => self.interrupt.check()?,
            }
        }
    }

    fn ended(&mut self) -> anyhow::Error {
        match self.child.wait() {
            Ok(status) => anyhow!("the worker ended ({status})"),
            Err(error) => anyhow!("the worker ended ({error})"),
        }
    }
}

impl Starting {
    /// Waits for the worker's first result.
    pub(super) fn ready(self) -> anyhow::Result<Side> {
        let Starting(mut side) = self;
        let reply = side
            .reply(Duration::from_millis(START_MS_MAX))
            .with_context(|| side.target.name.clone())?;
        let Reply::Ready(ready) = reply else {
            bail!("{}: the worker said {reply:?}", side.target.name);
        };
        side.ready = ready;
        Ok(side)
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        // At the end of its input a worker closes its session and exits.
        self.dismiss();
        let deadline = Instant::now() + Duration::from_millis(LEAVE_MS_MAX);
        while Instant::now() < deadline && !self.interrupt.is_set() {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(Duration::from_millis(2));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the loader's path without our folder, for a bench that was itself started through
/// `outboard run`.
fn without(folder: &Path) -> OsString {
    let path = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let rest: Vec<PathBuf> = env::split_paths(&path)
        .filter(|entry| entry != folder && !entry.as_os_str().is_empty())
        .collect();
    env::join_paths(rest).unwrap_or_default()
}
