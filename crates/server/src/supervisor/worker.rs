//! A worker process, as the supervisor sees it.

use std::{
    io,
    os::{fd::BorrowedFd, unix::process::ExitStatusExt as _},
    process::{Child, ExitStatus},
    time::{Duration, Instant},
};

use outboard_link::{Endpoint, KERNEL_TLS_VARIABLE, Peer};
use outboard_wire::{
    handshake::{Purpose, SessionKey},
    limits::DATA_CONNECTIONS_MAX,
};
use rustix::process::{Pid, Signal, kill_process};
use tracing::{debug, error, warn};

use super::ServeOptions;
use crate::{
    admission::{Admission, Order, Transport},
    cgroup::Groups,
    control::Control,
    devices::{HELD_UP_STATUS, LEASE_OVER_STATUS, UNRELEASED_STATUS},
    inherit,
    peers::Offers,
};

pub(super) struct Worker {
    pub(super) child: Child,
    /// Open while the worker may need orders.
    pub(super) control: Option<Control>,
    pub(super) session: u64,
    pub(super) peer: Peer,
    pub(super) transport: Transport,
    /// The time by which a handshake or a take-over must be over.
    pub(super) deadline: Instant,
    pub(super) phase: Phase,
    /// Key of the session that it serves.
    pub(super) key: Option<SessionKey>,
    /// The tenant whose place it has, and that session's row in the ledger.
    pub(super) tenant: Option<(String, Option<usize>)>,
    /// Data connections that the session may still get.
    pub(super) connections_left: usize,
    /// Keys of other servers that its session waits for.
    pub(super) offers: Offers,
}

/// Returns whether a worker ended with its session: in order, or in a driver call that does not
/// return.
pub(super) fn ends_with_session(status: ExitStatus) -> bool {
    matches!(
        status.code(),
        Some(0 | HELD_UP_STATUS | UNRELEASED_STATUS | LEASE_OVER_STATUS)
    )
}

pub(super) enum Phase {
    Handshake,
    /// A spare, which is another worker of the same session, takes the client over. If it fails,
    /// this worker serves the client.
    HandingOver(Box<Admission>),
    /// This worker was a spare, and has not said yet that it has the client.
    Taking,
    Serving(Purpose),
    /// The worker was refused, or told to end.
    Leaving,
}

/// The side on which a peer is, as far as the address says that it connects to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// Local sockets, whose peers are users of this machine.
    Local,
    Network,
}

impl Side {
    pub(super) fn of(endpoint: &Endpoint) -> Side {
        match endpoint {
            Endpoint::Shm(_) => Side::Local,
            _ => Side::Network,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Side::Local => "over local sockets",
            Side::Network => "over the network",
        }
    }
}

/// Starts a worker process with its first order, in a control group of its own if there are groups.
/// Returns it with the socket for further orders.
pub(super) fn start_worker(
    options: &ServeOptions,
    groups: Option<&Groups>,
    order: &Order,
    socket: Option<BorrowedFd<'_>>,
) -> io::Result<(Child, Control)> {
    let (control, theirs) = Control::pair()?;
    let mut command = inherit::this_executable();
    command.args(&options.worker_args);
    if !options.kernel_tls {
        command.env(KERNEL_TLS_VARIABLE, "off");
    }
    let mut child = inherit::pass(&mut command, "--control", theirs)?;
    if let Some(groups) = groups {
        groups.add(child.id());
    }
    let confined = match &options.sandbox {
        None => Ok(()),
        Some(sandbox) => {
            let sandbox = match order {
                Order::Greet { .. } => sandbox.with_secrets(&options.access.files()),
                _ => sandbox.clone(),
            };
            control.send(&Order::Confine(sandbox), &[])
        }
    };
    match confined.and_then(|()| control.send(order, socket.as_slice())) {
        Ok(()) => Ok((child, control)),
        Err(error) => {
            // It has opened nothing yet, so it ends at once.
            let _ = child.kill().and_then(|()| child.wait());
            Err(error)
        }
    }
}

impl Worker {
    pub(super) fn new(
        child: Child,
        control: Control,
        session: u64,
        peer: Peer,
        transport: Transport,
        (phase, ms_max): (Phase, u64),
    ) -> Worker {
        Worker {
            child,
            control: Some(control),
            session,
            peer,
            transport,
            deadline: Instant::now() + Duration::from_millis(ms_max),
            phase,
            key: None,
            tenant: None,
            connections_left: DATA_CONNECTIONS_MAX,
            offers: Offers::default(),
        }
    }

    pub(super) fn side(&self) -> Side {
        match self.transport {
            Transport::Shm => Side::Local,
            Transport::Tcp | Transport::Rdma(_) => Side::Network,
        }
    }

    pub(super) fn is_in_handshake(&self) -> bool {
        matches!(self.phase, Phase::Handshake)
    }

    pub(super) fn is_timed(&self) -> bool {
        matches!(self.phase, Phase::Handshake | Phase::Taking)
    }

    pub(super) fn tell(&self, order: &Order, fds: &[BorrowedFd<'_>]) {
        let Some(control) = &self.control else {
            return;
        };
        // A worker that has died is reaped.
        if let Err(error) = control.send(order, fds) {
            debug!(session = self.session, %error, "a worker cannot be reached");
        }
    }

    pub(super) fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        // The process is not reaped yet, so the pid is still its own. It may have ended, which is
        // just as well.
        let _ = kill_process(pid, signal);
    }

    /// Returns whether it served a session, and ended by a fault of its own or of its GPU. Nothing
    /// is known of one that was killed.
    pub(super) fn has_failed(&self, how: &io::Result<ExitStatus>) -> bool {
        let is_session = self.key.is_some() && !matches!(self.phase, Phase::Leaving);
        let is_killed = |signal: i32| {
            [Signal::KILL, Signal::TERM]
                .iter()
                .any(|it| it.as_raw() == signal)
        };
        how.as_ref().is_ok_and(|status| match status.signal() {
            Some(signal) => is_session && !is_killed(signal),
            None => is_session && !ends_with_session(*status),
        })
    }

    pub(super) fn report(&self, status: ExitStatus) {
        let (session, peer) = (self.session, &self.peer);
        match (status.signal(), status.code()) {
            (Some(_), _) if matches!(self.phase, Phase::Leaving) => debug!(session, "ended"),
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
            (None, Some(LEASE_OVER_STATUS)) => debug!(session, "ended with its lease"),
            (None, Some(HELD_UP_STATUS)) => {
                warn!(session, %peer, "ended in a driver call that did not return");
            }
            (None, Some(UNRELEASED_STATUS)) => {
                warn!(session, %peer, "ended before its device was released");
            }
            (None, code) => error!(session, %peer, ?code, "the worker failed"),
        }
    }
}
