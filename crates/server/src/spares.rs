//! Spares: workers started before their client comes, with the driver loaded, the device open and a
//! context made.
//!
//! ```text
//!  supervisor                    spare                         worker of a new client
//!      │◄── Ready, facts ──────────┤ sleeps                        │ reads the hello
//!      │◄──────────────────────────┼─────── Heard: hello, socket ──┤
//!      ├── TakeOver: admission, ──►│                               │
//!      │   socket                  │ asks its device               │
//!      │◄── Taken ─────────────────┤ welcomes, serves              │
//!      ├── Leave ──────────────────┼──────────────────────────────►│ ends
//! ```
//!
//! As without spares, a process that has no device reads the bytes of strangers: a spare is used
//! only for a client with a proper hello and a place. A spare that fails before it says `Taken`
//! closes its socket; the other worker then opens a device itself and serves the client.

use std::{
    io,
    os::fd::OwnedFd,
    process::{Child, ExitStatus},
    time::{Duration, Instant},
};

use outboard_wire::doc::GpuStatus;
use rustix::process::{Pid, Signal, kill_process};
use tracing::{debug, warn};

use super::{admission::Report, control::Control, limits};

/// The spares of one server.
pub(super) struct Spares {
    wanted: usize,
    idle: Vec<Spare>,
    /// Earliest start of the next spare.
    next_at: Instant,
    /// Pause after the next failure.
    retry: Duration,
    id_last: u64,
    /// Facts about the devices, from the last spare that became ready.
    facts: Option<OwnedFd>,
}

struct Spare {
    id: u64,
    child: Child,
    /// Open until the spare closes its end.
    control: Option<Control>,
    started: Instant,
    is_ready: bool,
}

impl Spares {
    pub(super) fn new(wanted: usize) -> Spares {
        Spares {
            wanted,
            idle: Vec::new(),
            next_at: Instant::now(),
            retry: Duration::from_millis(limits::SPARE_RETRY_MS_MIN),
            id_last: 0,
            facts: None,
        }
    }

    /// Counts the spares whose context has yet to take its device memory.
    pub(super) fn to_come(&self) -> u8 {
        u8::try_from(self.wanted.saturating_sub(self.ready())).unwrap_or(u8::MAX)
    }

    /// Returns the management library's constant answers about the devices.
    pub(super) fn facts(&self) -> Option<&OwnedFd> {
        self.facts.as_ref()
    }

    /// Returns when to act even if nothing is heard.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.idle.iter().find(|spare| !spare.is_ready) {
            Some(starting) => Some(starting.deadline()),
            None => (self.idle.len() < self.wanted).then_some(self.next_at),
        }
    }

    pub(super) fn controls(&self) -> impl Iterator<Item = (u64, &Control)> {
        let controls = self.idle.iter();
        controls.filter_map(|spare| Some((spare.id, spare.control.as_ref()?)))
    }

    /// Starts the next spare when it is due. One at a time, because opening a device keeps its
    /// driver busy.
    pub(super) fn refill(&mut self, start: impl FnOnce() -> io::Result<(Child, Control)>) {
        let now = Instant::now();
        if let Some(stuck) = self
            .idle
            .iter()
            .find(|spare| !spare.is_ready && spare.deadline() <= now)
        {
            warn!("a spare worker does not get ready; it is ended");
            stuck.kill();
        }
        let is_starting = self.idle.iter().any(|spare| !spare.is_ready);
        if is_starting || self.idle.len() >= self.wanted || self.next_at > now {
            return;
        }
        match start() {
            Ok((child, control)) => {
                self.id_last += 1;
                debug!(pid = child.id(), "a spare worker starts");
                self.idle.push(Spare {
                    id: self.id_last,
                    child,
                    control: Some(control),
                    started: now,
                    is_ready: false,
                });
            }
            Err(error) => self.back_off(&format!("cannot be started: {error}")),
        }
    }

    /// Returns the number of spares that are ready.
    pub(super) fn ready(&self) -> usize {
        self.idle.iter().filter(|spare| spare.is_ready).count()
    }

    /// Reads what a spare said, or notices that it closed its end. Returns the GPUs if it told
    /// them.
    pub(super) fn listen(&mut self, id: u64) -> Option<Vec<GpuStatus>> {
        let spare = self.idle.iter_mut().find(|spare| spare.id == id)?;
        let control = spare.control.as_ref();
        match control.map(Control::receive::<Report>) {
            Some(Ok(Some((Report::Ready, facts)))) if !spare.is_ready => {
                debug!(
                    pid = spare.child.id(),
                    "a spare worker is ready after {:.3} s",
                    spare.started.elapsed().as_secs_f64()
                );
                spare.is_ready = true;
                self.facts = facts.into_iter().next().or(self.facts.take());
            }
            Some(Ok(Some((Report::Gpus(gpus), _)))) => return Some(gpus),
            Some(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => {}
            // The spare is about to end; its exit status says more.
            _ => {
                spare.control = None;
                spare.is_ready = false;
            }
        }
        None
    }

    /// Removes spares that ended without a word; returns whether there were any.
    pub(super) fn reap(&mut self) -> bool {
        let mut ended = Vec::new();
        self.idle
            .retain_mut(|spare| match spare.child.try_wait().transpose() {
                None => true,
                Some(status) => {
                    ended.push(status);
                    false
                }
            });
        let has_ended = !ended.is_empty();
        for status in ended {
            self.lost(status);
        }
        has_ended
    }

    /// Gives a client to a ready spare: `order` tells it so, and gets the number of spares to come.
    /// Returns its process and its socket.
    pub(super) fn take(
        &mut self,
        mut order: impl FnMut(&Control, u8) -> io::Result<()>,
    ) -> Option<(Child, Control)> {
        while let Some(at) = self.idle.iter().position(|spare| spare.is_ready) {
            let mut spare = self.idle.remove(at);
            self.next_at = Instant::now() + Duration::from_millis(limits::SPARE_PAUSE_MS);
            let told = match spare.control.take() {
                Some(control) => order(&control, self.to_come()).map(|()| control),
                None => Err(io::ErrorKind::NotConnected.into()),
            };
            match told {
                Ok(control) => {
                    self.retry = Duration::from_millis(limits::SPARE_RETRY_MS_MIN);
                    return Some((spare.child, control));
                }
                // The spare has just died.
                Err(error) => {
                    debug!(%error, "a spare worker cannot be reached");
                    spare.end();
                }
            }
        }
        None
    }

    /// Ends all spares, and starts none from now on.
    pub(super) fn retire(&mut self) {
        self.wanted = 0;
        self.end();
    }

    /// Ends all spares; none has a client.
    pub(super) fn end(&mut self) {
        for spare in &self.idle {
            spare.kill();
        }
        self.idle.drain(..).for_each(Spare::end);
    }

    fn lost(&mut self, status: io::Result<ExitStatus>) {
        let how = status.map_or_else(|e| e.to_string(), |status| status.to_string());
        self.back_off(&format!("ended ({how})"));
    }

    fn back_off(&mut self, what: &str) {
        let text = format!(
            "a spare worker {what}; the next one is started in {} s, clients get fresh ones meanwhile",
            self.retry.as_secs()
        );
        // A warning for the first failure only, not while failures go on.
        match self.retry <= Duration::from_millis(limits::SPARE_RETRY_MS_MIN) {
            true => warn!("{text}"),
            false => debug!("{text}"),
        }
        self.next_at = Instant::now() + self.retry;
        self.retry = (self.retry * 2).min(Duration::from_millis(limits::SPARE_RETRY_MS_MAX));
    }
}

impl Spare {
    fn deadline(&self) -> Instant {
        self.started + Duration::from_millis(limits::SPARE_START_MS_MAX)
    }

    fn kill(&self) {
        // The process is not reaped yet, so the pid is still its own. It may have ended, which is
        // just as well.
        let _ = kill_process(Pid::from_child(&self.child), Signal::KILL);
    }

    /// Kills the spare and waits for its end, but not for a driver that is stuck in the kernel.
    fn end(mut self) {
        self.kill();
        let deadline = Instant::now() + Duration::from_millis(limits::STOP_MS_MAX);
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
