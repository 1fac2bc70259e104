//! One run of the program: its output, its duration, and a certain end.

use std::{
    io::{self, Read},
    os::unix::process::CommandExt,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::{bench::Interrupt, signals::end_with_parent};

const LOOK: Duration = Duration::from_millis(5);
/// Bytes kept of each stream; a metric further back is not found.
const KEPT_BYTES_MAX: usize = 4 << 20;

pub(super) struct Ended {
    pub(super) seconds: f64,
    pub(super) stdout: String,
    /// Reason why the run does not count.
    pub(super) error: Option<String>,
}

/// Runs the program in a process group of its own, which ends with it. The program ends with this
/// process, too, whatever ends that.
pub(super) fn run(
    command: &mut Command,
    timeout: Duration,
    interrupt: &Interrupt,
) -> anyhow::Result<Ended> {
    let start = Instant::now();
    end_with_parent(command, Signal::KILL);
    let mut child = command
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("starting the program")?;
    let stdout = child.stdout.take().map(keep_end);
    let stderr = child.stderr.take().map(keep_end);
    let group = Pid::from_raw(child.id().cast_signed());
    let end_group = || {
        if let Some(group) = group {
            let _ = kill_process_group(group, Signal::KILL);
        }
    };
    let mut error = None;
    let status = loop {
        if let Some(status) = child.try_wait().context("waiting for the program")? {
            break status;
        }
        let interrupted = interrupt.check();
        if interrupted.is_err() || start.elapsed() > timeout {
            end_group();
            let status = child.wait().context("waiting for the program")?;
            interrupted?;
            error = Some(format!("it took longer than {} s", timeout.as_secs()));
            break status;
        }
        thread::sleep(LOOK);
    };
    let seconds = start.elapsed().as_secs_f64();
    // Processes that it left behind would hold the pipes and the GPU.
    end_group();
    let text = |reader: Option<thread::JoinHandle<Vec<u8>>>| {
        let bytes = reader.and_then(|reader| reader.join().ok());
        String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned()
    };
    let (stdout, stderr) = (text(stdout), text(stderr));
    if error.is_none() && !status.success() {
        let last = stderr.lines().rev().find(|line| !line.trim().is_empty());
        error = Some(match last {
            Some(last) => format!("{status}: {last}"),
            None => status.to_string(),
        });
    }
    Ok(Ended {
        seconds,
        stdout,
        error,
    })
}

/// Reads to the end and keeps the last part.
fn keep_end(mut pipe: impl Read + Send + 'static) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let (mut kept, mut some) = (Vec::new(), [0; 64 << 10]);
        loop {
            match pipe.read(&mut some) {
                Ok(0) => return kept,
                Ok(count) => kept.extend_from_slice(&some[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return kept,
            }
            if kept.len() > 2 * KEPT_BYTES_MAX {
                kept.drain(..kept.len() - KEPT_BYTES_MAX);
            }
        }
    })
}
