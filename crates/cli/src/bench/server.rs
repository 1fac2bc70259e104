//! `outboard serve`, started for the bench and ended with it.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader},
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::mpsc::{RecvTimeoutError, channel},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use outboard_link::Endpoint;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::Interrupt;
use crate::signals::end_with_parent;

const START_MS_MAX: u64 = 30_000;
/// Time limit for the server to end; it gives its own workers a few seconds.
const STOP_MS_MAX: u64 = 10_000;
const TICK: Duration = Duration::from_millis(50);
const LOG_LINES_MAX: usize = 12;

/// A server of this release on a shm address and a tcp port that only the bench knows.
pub(super) struct BenchServer {
    child: Child,
    pub(super) endpoints: Vec<Endpoint>,
    log: PathBuf,
    _folder: TempDir,
}

impl BenchServer {
    pub(super) fn start(sessions_max: usize, interrupt: &Interrupt) -> anyhow::Result<BenchServer> {
        let folder = tempfile::Builder::new()
            .prefix("outboard-bench-")
            .tempdir()
            .context("making a folder for the server")?;
        let log = folder.path().join("log");
        let socket = folder.path().join("socket");
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0("outboard")
            .args(["serve", "--no-config", "--device", "auto", "--listen"])
            .arg(format!("shm://{}", socket.display()))
            .args(["--listen", "tcp://127.0.0.1:0", "--sessions-max"])
            .arg(sessions_max.to_string())
            .arg("--cache")
            .arg(folder.path().join("images"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(&log)?)
            // Ctrl-C is for the bench, which ends the server in order.
            .process_group(0);
        end_with_parent(&mut command, Signal::TERM);
        let mut child = command.spawn().context("starting the server")?;
        let stdout = child.stdout.take().context("a server without output")?;
        let mut server = BenchServer {
            child,
            endpoints: Vec::new(),
            log,
            _folder: folder,
        };
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let deadline = Instant::now() + Duration::from_millis(START_MS_MAX);
        while server.endpoints.len() < 2 {
            match lines.recv_timeout(TICK) {
                Ok(line) => server.endpoints.extend(
                    line.strip_prefix("listening on ")
                        .and_then(|url| url.parse().ok()),
                ),
                Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => interrupt.check()?,
                Err(_) => bail!("the server did not start:\n{}", server.last_words()),
            }
        }
        Ok(server)
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the last lines of the server's log, to explain an error of a worker.
    pub(super) fn last_words(&mut self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let tail = lines[lines.len().saturating_sub(LOG_LINES_MAX)..].join("\n");
        match self.child.try_wait() {
            Ok(Some(status)) => format!("the server ended ({status}):\n{tail}"),
            _ => format!("the server's log:\n{tail}"),
        }
    }
}

impl Drop for BenchServer {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            // Not reaped yet, so the pid is still its own.
            let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        }
        let deadline = Instant::now() + Duration::from_millis(STOP_MS_MAX);
        while Instant::now() < deadline {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
