//! The supervisor: the process that owns the sockets, accepts clients, and gives each a worker
//! process of its own.
//!
//! ```text
//!  supervisor ── listeners                        worker (one for each client)
//!      │ accept                                       │
//!      ├── fork, exec: the socket as a descriptor ───►│ reads the hello, until HANDSHAKE_MS_MAX
//!      │◄───────────────── control: "S" or "Q" ───────┤
//!      ├── control: "Y", or "N" and why ─────────────►│ opens the device, welcomes; or refuses
//!      │                                              │ serves until the client leaves
//!      │◄──────────────────────────────── SIGCHLD ────┘
//! ```
//!
//! The supervisor reads nothing that a client sent. Bytes of strangers reach only a process that
//! has no device yet, and at most [`limits::HANDSHAKES_MAX`] of these exist; further clients wait
//! in the listener's backlog. A client takes a place among the sessions only after a proper hello.
//! A worker that was started ahead, with its device open ([`spares`]), takes the client over at
//! that moment.

mod devices;
mod inherit;
pub mod limits;
pub(crate) mod pass_fd;
mod reporter;
mod signals;
mod spares;
mod worker;

use std::{
    ffi::OsString,
    fmt,
    io::{self, Read, Write},
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::{net::UnixStream, process::ExitStatusExt},
    },
    process::{Child, Command, ExitStatus},
    time::{Duration, Instant},
};

use outboard_link::{Endpoint, Listener, Peer, Stream};
use outboard_wire::{handshake::Purpose, limits::HANDSHAKE_MS_MAX};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, Signal, kill_process},
};
use thiserror::Error;
use tracing::{debug, error, info, warn};

pub use crate::soft::{Capability, MEMORY_BYTES_MAX as SOFT_MEMORY_BYTES_MAX, Watch};
pub use devices::{DeviceKind, DeviceOptions};
pub use outboard_ptx::check::Checks;
use signals::Signals;
use spares::Spares;
pub use worker::{WorkerOptions, run_worker};

/// The settings of a server.
#[derive(Debug, Clone)]
pub struct ServeOptions {
    pub listen: Vec<Endpoint>,
    /// Programs served at the same time, at most.
    pub sessions_max: usize,
    /// Workers kept ready, each with its device open.
    pub spares: usize,
    /// Arguments with which this executable becomes a worker. `--control` is appended, and either
    /// `--spare`, or `--fd`, `--session` and perhaps `--facts`.
    pub worker_args: Vec<OsString>,
}

/// Why a server cannot start.
#[derive(Debug, Error)]
pub enum ServeError {
    #[error("cannot listen{}: {source}", unless_named(endpoint, source))]
    Listen {
        endpoint: Endpoint,
        source: outboard_link::Error,
    },
    #[error("no address to listen at")]
    NoEndpoint,
    #[error("{doing}: {source}")]
    Io {
        doing: &'static str,
        source: io::Error,
    },
}

/// The address, unless the error names it itself.
fn unless_named(endpoint: &Endpoint, error: &outboard_link::Error) -> String {
    let address = endpoint.to_string();
    match error.to_string().contains(&address) {
        true => String::new(),
        false => format!(" at {address}"),
    }
}

impl ServeError {
    fn io<E: Into<io::Error>>(doing: &'static str) -> impl FnOnce(E) -> ServeError {
        move |error| ServeError::Io {
            doing,
            source: error.into(),
        }
    }
}

/// A listening server.
pub struct Supervisor {
    listeners: Vec<Listener>,
    options: ServeOptions,
    signals: Signals,
    workers: Vec<Worker>,
    spares: Spares,
    session_last: u64,
    /// Time until which no client is accepted, after a failure of the system.
    paused_until: Option<Instant>,
}

struct Worker {
    child: Child,
    /// Open until the worker has its place.
    control: Option<UnixStream>,
    session: u64,
    peer: Peer,
    started: Instant,
    phase: Phase,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Handshake,
    /// The worker hands its client to a spare, which is another worker of the same session.
    HandingOver,
    Serving(Purpose),
    /// The worker was refused, or told to end.
    Leaving,
}

impl Supervisor {
    pub fn bind(options: ServeOptions) -> Result<Supervisor, ServeError> {
        if options.listen.is_empty() {
            return Err(ServeError::NoEndpoint);
        }
        let signals = Signals::register().map_err(ServeError::io("watching for signals"))?;
        let listeners = options
            .listen
            .iter()
            .map(|endpoint| {
                Listener::bind(endpoint).map_err(|source| ServeError::Listen {
                    endpoint: endpoint.clone(),
                    source,
                })
            })
            .collect::<Result<_, _>>()?;
        Ok(Supervisor {
            listeners,
            signals,
            workers: Vec::new(),
            spares: Spares::new(options.spares.min(limits::SPARES_MAX)),
            options,
            session_last: 0,
            paused_until: None,
        })
    }

    /// Returns the addresses it listens at, with the ports that the system chose.
    pub fn endpoints(&self) -> impl Iterator<Item = &Endpoint> {
        self.listeners.iter().map(Listener::endpoint)
    }

    /// Serves until SIGINT or SIGTERM, then ends all workers.
    pub fn run(mut self) -> Result<(), ServeError> {
        while !self.signals.is_stopping() {
            let options = &self.options;
            self.spares.refill(|| start_spare(options));
            let news = self.wait()?;
            self.signals.drain();
            for id in news.spares {
                self.spares.listen(id);
            }
            self.reap();
            self.expire();
            for session in news.controls {
                self.admit(session);
            }
            for at in news.listeners {
                self.accept(at);
            }
        }
        self.stop();
        Ok(())
    }

    /// Sleeps until a signal, a client, or a worker's question arrives.
    fn wait(&mut self) -> Result<News, ServeError> {
        let now = Instant::now();
        if self.paused_until.is_some_and(|until| until <= now) {
            self.paused_until = None;
        }
        let mut fds = vec![PollFd::new(&self.signals, PollFlags::IN)];
        let mut sources = vec![Source::Signal];
        for worker in &self.workers {
            if let Some(control) = &worker.control {
                fds.push(PollFd::new(control, PollFlags::IN));
                sources.push(Source::Control(worker.session));
            }
        }
        for (id, control) in self.spares.controls() {
            fds.push(PollFd::new(control, PollFlags::IN));
            sources.push(Source::Spare(id));
        }
        if self.paused_until.is_none() && self.handshakes() < limits::HANDSHAKES_MAX {
            for (at, listener) in self.listeners.iter().enumerate() {
                fds.push(PollFd::new(listener, PollFlags::IN));
                sources.push(Source::Listener(at));
            }
        }
        let timeout = self
            .next_deadline()
            .map(|at| at.saturating_duration_since(now) + Duration::from_millis(1))
            .and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(ServeError::io("waiting for clients")(error)),
        }
        let mut news = News::default();
        for (fd, source) in fds.iter().zip(sources) {
            match source {
                _ if fd.revents().is_empty() => {}
                Source::Signal => {}
                Source::Control(session) => news.controls.push(session),
                Source::Spare(id) => news.spares.push(id),
                Source::Listener(at) => news.listeners.push(at),
            }
        }
        Ok(news)
    }

    fn next_deadline(&self) -> Option<Instant> {
        let handshakes = self
            .workers
            .iter()
            .filter(|w| w.phase == Phase::Handshake)
            .map(Worker::deadline);
        handshakes
            .chain(self.paused_until)
            .chain(self.spares.deadline())
            .min()
    }

    fn accept(&mut self, at: usize) {
        if self.handshakes() >= limits::HANDSHAKES_MAX {
            return;
        }
        let (stream, peer) = match self.listeners[at].accept(Some(Instant::now())) {
            Ok(accepted) => accepted,
            // The client left before it was accepted.
            Err(outboard_link::Error::TimedOut { .. }) => return,
            Err(error) => return self.pause("accepting a client", &error),
        };
        self.session_last += 1;
        let session = self.session_last;
        match self.start_worker(stream, session) {
            Ok((child, control)) => {
                debug!(session, %peer, pid = child.id(), "connected");
                self.workers.push(Worker {
                    child,
                    control: Some(control),
                    session,
                    peer,
                    started: Instant::now(),
                    phase: Phase::Handshake,
                });
            }
            Err(error) => self.pause("starting a worker", &error),
        }
    }

    /// Stops accepting for a moment: without descriptors or processes, trying again at once would
    /// fail again.
    fn pause(&mut self, doing: &str, error: &dyn fmt::Display) {
        error!(%error, "{doing} failed; no client is accepted for a moment");
        self.paused_until = Some(Instant::now() + Duration::from_millis(limits::PAUSE_MS));
    }

    fn start_worker(&self, stream: Stream, session: u64) -> io::Result<(Child, UnixStream)> {
        let mut command = inherit::this_executable();
        command
            .args(&self.options.worker_args)
            .arg("--session")
            .arg(session.to_string());
        if let Some(options) = stream.rdma() {
            command.arg("--rdma").arg(options.to_string());
        }
        let mut fds = vec![("--fd", OwnedFd::from(stream))];
        if let Some(facts) = self.spares.facts() {
            fds.push(("--facts", facts.try_clone()?));
        }
        start(command, fds)
    }

    /// Gives a place to a worker that has read its client's hello, or whose client no spare took.
    fn admit(&mut self, session: u64) {
        let is_heard = |w: &Worker| w.session == session && w.control.is_some();
        let Some(at) = self.workers.iter().position(is_heard) else {
            return;
        };
        let Some(mut control) = self.workers[at].control.take() else {
            return;
        };
        let mut word = [0];
        let said = match control.read(&mut word) {
            Ok(count) => word.first().filter(|_| count > 0).copied(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.workers[at].control = Some(control);
                return;
            }
            Err(_) => None,
        };
        let purpose = match (self.workers[at].phase, said) {
            (Phase::HandingOver, Some(limits::KEPT)) => {
                debug!(
                    session,
                    "no spare took the client; its first worker serves it"
                );
                self.workers[at].phase = Phase::Serving(Purpose::Session);
                return;
            }
            (Phase::Handshake, Some(limits::ASK_SESSION)) => Purpose::Session,
            (Phase::Handshake, Some(limits::ASK_QUERY)) => Purpose::Query,
            // The worker found no proper hello, or has handed its client over, and is about to end.
            _ => {
                self.workers[at].phase = Phase::Leaving;
                return;
            }
        };
        let (max, what) = match purpose {
            Purpose::Session => (self.options.sessions_max, "sessions (--sessions-max)"),
            _ => (limits::QUERIES_MAX, "queries"),
        };
        if self.serving(purpose) >= max {
            let peer = &self.workers[at].peer;
            warn!(session, %peer, "refused: all of the {max} {what} are in use");
            let why = format!("all of its {max} {what} are in use; try again later");
            self.workers[at].phase = Phase::Leaving;
            // A few bytes into an empty socket do not block; a worker that died is reaped.
            let _ = control.write_all(&[&[limits::ANSWER_NO], why.as_bytes()].concat());
            return;
        }
        if purpose == Purpose::Session && self.hand_over(at, &control) {
            self.workers[at].control = Some(control);
            return;
        }
        self.workers[at].phase = Phase::Serving(purpose);
        let _ = control.write_all(&[limits::ANSWER_YES, self.spares.to_come()]);
    }

    /// Lets a spare take over the client of worker `at`, if a spare is ready.
    fn hand_over(&mut self, at: usize, control: &UnixStream) -> bool {
        let Worker {
            session, ref peer, ..
        } = self.workers[at];
        let peer = peer.clone();
        let Some((child, channel)) = self.spares.take(session) else {
            return false;
        };
        debug!(session, pid = child.id(), "a spare worker takes over");
        self.workers[at].phase = Phase::HandingOver;
        self.workers.push(Worker {
            child,
            control: None,
            session,
            peer,
            started: Instant::now(),
            phase: Phase::Serving(Purpose::Session),
        });
        // A worker that died takes its client with it; the spare then finds its channel closed.
        let _ = pass_fd::send(control, &[limits::ANSWER_HAND_OVER], channel.as_fd());
        true
    }

    /// Counts the clients that have a place. A client being handed over counts once.
    fn serving(&self, purpose: Purpose) -> usize {
        let serves = |w: &&Worker| w.phase == Phase::Serving(purpose);
        let has_no_spare = |w: &&Worker| {
            w.phase == Phase::HandingOver
                && purpose == Purpose::Session
                && !self.workers.iter().any(|other| {
                    other.session == w.session && matches!(other.phase, Phase::Serving(_))
                })
        };
        let counts = |w: &&Worker| serves(w) || has_no_spare(w);
        self.workers.iter().filter(counts).count()
    }

    fn reap(&mut self) {
        self.spares.reap();
        self.workers
            .retain_mut(|worker| match worker.child.try_wait() {
                Ok(None) => true,
                Ok(Some(status)) => {
                    worker.report(status);
                    false
                }
                Err(error) => {
                    error!(session = worker.session, %error, "a worker was lost sight of");
                    false
                }
            });
    }

    /// Ends workers stuck in the handshake. A worker normally ends by itself when its client says
    /// nothing.
    fn expire(&mut self) {
        let now = Instant::now();
        for worker in &mut self.workers {
            if worker.phase == Phase::Handshake && worker.deadline() <= now {
                warn!(
                    session = worker.session,
                    "a worker is stuck in the handshake"
                );
                worker.signal(Signal::KILL);
                worker.phase = Phase::Leaving;
            }
        }
    }

    fn stop(mut self) {
        info!(sessions = self.workers.len(), "stopping");
        self.listeners.clear();
        self.spares.end();
        for worker in &mut self.workers {
            worker.phase = Phase::Leaving;
            worker.signal(Signal::TERM);
        }
        let deadline = Instant::now() + Duration::from_millis(limits::STOP_MS_MAX);
        while !self.workers.is_empty() && Instant::now() < deadline && !self.signals.is_urgent() {
            let tick = Timespec::try_from(Duration::from_millis(limits::STOP_TICK_MS)).ok();
            let mut fds = [PollFd::new(&self.signals, PollFlags::IN)];
            // An interrupted wait does no harm.
            let _ = poll(&mut fds, tick.as_ref());
            self.signals.drain();
            self.reap();
        }
        for mut worker in self.workers.drain(..) {
            worker.signal(Signal::KILL);
            // SIGKILL works at once unless a driver is stuck in the kernel: the wait for that is
            // bounded.
            let deadline = Instant::now() + Duration::from_millis(limits::STOP_MS_MAX);
            while matches!(worker.child.try_wait(), Ok(None)) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    fn handshakes(&self) -> usize {
        let in_handshake = |w: &&Worker| w.phase == Phase::Handshake;
        self.workers.iter().filter(in_handshake).count()
    }
}

#[derive(Default)]
struct News {
    /// Workers by session, because positions change when workers are reaped.
    controls: Vec<u64>,
    spares: Vec<u64>,
    listeners: Vec<usize>,
}

enum Source {
    Signal,
    Control(u64),
    Spare(u64),
    Listener(usize),
}

fn start_spare(options: &ServeOptions) -> io::Result<(Child, UnixStream)> {
    let mut command = inherit::this_executable();
    command.args(&options.worker_args).arg("--spare");
    start(command, Vec::new())
}

/// Starts a worker process; returns it with the socket on which it talks to the supervisor.
fn start(mut command: Command, mut fds: Vec<(&str, OwnedFd)>) -> io::Result<(Child, UnixStream)> {
    let (control, theirs) = UnixStream::pair()?;
    control.set_nonblocking(true)?;
    fds.push(("--control", OwnedFd::from(theirs)));
    inherit::pass(&mut command, &fds).map(|child| (child, control))
}

impl Worker {
    /// Returns when the handshake has taken too long, leaving the worker time to notice that first.
    fn deadline(&self) -> Instant {
        self.started + 2 * Duration::from_millis(HANDSHAKE_MS_MAX)
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        // The process is not reaped yet, so the pid is still its own. It may have ended, which is
        // just as well.
        let _ = kill_process(pid, signal);
    }

    fn report(&self, status: ExitStatus) {
        let (session, peer) = (self.session, &self.peer);
        match (status.signal(), status.code()) {
            (Some(_), _) if self.phase == Phase::Leaving => debug!(session, "ended"),
            (Some(signal), _) => {
                let name = signal_hook::low_level::signal_name(signal).unwrap_or("unknown signal");
                let core = if status.core_dumped() {
                    ", core dumped"
                } else {
                    ""
                };
                error!(session, %peer, "the worker was killed by {name} ({signal}){core}");
            }
            (None, Some(0)) => debug!(session, "ended"),
            (None, code) => error!(session, %peer, ?code, "the worker failed"),
        }
    }
}
