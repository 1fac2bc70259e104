//! Hand-over between servers: this one takes the place of one that runs, and later gives it up.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd},
    time::{Duration, Instant},
};

use outboard_link::Listener;
use outboard_wire::handshake::SessionKey;
use tracing::{debug, info, warn};

use super::{Phase, ServeError, ServeOptions, Supervisor};
use crate::{
    admission::Order,
    control::Control,
    hand_over::{Handing, Predecessor},
};

/// The time from another server's taking over to the end of the last session.
pub(super) struct Draining {
    /// The server that has taken over, while it lives.
    successor: Option<Control>,
    until: Instant,
}

impl Draining {
    pub(super) fn successor(&self) -> Option<BorrowedFd<'_>> {
        self.successor.as_ref().map(Control::as_fd)
    }

    pub(super) fn until(&self) -> Instant {
        self.until
    }
}

/// Returns the server that runs, if there is one to take over from.
pub(super) fn predecessor(options: &ServeOptions) -> Result<Option<Predecessor>, ServeError> {
    match &options.hand_over {
        None => Ok(None),
        Some(path) => Predecessor::ask(path).map_err(ServeError::hand_over(path)),
    }
}

/// Takes over from the server that runs, if there is one, and waits for the next one.
pub(super) fn take_over(
    options: &ServeOptions,
    listeners: &mut [Listener],
    before: Option<&mut Predecessor>,
) -> Result<Option<Handing>, ServeError> {
    let Some(path) = &options.hand_over else {
        return Ok(None);
    };
    if let Some(before) = before {
        for left in before.left() {
            if !listeners.iter().any(|at| at.endpoint().is_same_place(left)) {
                warn!("nobody listens at {left} any longer, where the server before did");
            }
        }
        match before.go() {
            Ok(()) => info!(
                release = before.release,
                sessions = before.sessions,
                "has taken over from a server that goes on with its sessions"
            ),
            // It has got the word, or has ended; whatever it does, this one serves.
            Err(error) => warn!(%error, "the server before has not said that it accepts nobody"),
        }
        listeners.iter_mut().for_each(Listener::own_file);
    }
    match Handing::bind(path) {
        Ok(handing) => Ok(Some(handing)),
        Err(error) => {
            let path = path.display();
            warn!(%error, "no server can take over from this one: {path}");
            Ok(None)
        }
    }
}

impl Supervisor {
    /// Returns true if another server has taken over, and no session is left or the time is over.
    pub(super) fn is_drained(&self) -> bool {
        let Some(draining) = &self.draining else {
            return false;
        };
        let is_late = draining.until <= Instant::now();
        if self.workers.is_empty() {
            info!("the last session has ended; a new server has taken over before");
        } else if is_late {
            let sessions = self.sessions();
            warn!(
                sessions,
                "sessions are ended: the time of --drain-within is over"
            );
        }
        self.workers.is_empty() || is_late
    }

    /// Hears a new server. Once it goes ahead, this one accepts nobody.
    pub(super) fn hear_taker(&mut self) {
        let sessions = self.sessions();
        let metrics = self.exporter.as_ref().map(|exporter| exporter.listener());
        let Some(handing) = &mut self.handing else {
            return;
        };
        match handing.hear(&self.listeners, metrics, sessions) {
            Ok(None) => {}
            Ok(Some(successor)) => self.drain(successor),
            Err(error) => warn!(%error, "a server did not take over; this one goes on"),
        }
    }

    fn drain(&mut self, successor: Control) {
        let within = Duration::from_millis(self.options.drain_ms);
        self.listeners.drain(..).for_each(Listener::leave);
        if let Some(mut exporter) = self.exporter.take() {
            exporter.end();
        }
        let told = self.handing.take().map(|handing| handing.leave(&successor));
        if let Some(Err(error)) = told {
            debug!(%error, "the new server has gone already");
        }
        self.spares.retire();
        let sessions = self.sessions();
        info!(
            sessions,
            "a new server has taken over; sessions go on here until they end, for {} s at most",
            within.as_secs()
        );
        self.draining = Some(Draining {
            successor: Some(successor),
            until: Instant::now() + within,
        });
    }

    /// Passes on what the new server got for a session of this one.
    pub(super) fn hear_successor(&mut self) {
        let Some(draining) = &mut self.draining else {
            return;
        };
        let Some(successor) = &draining.successor else {
            return;
        };
        match successor.receive::<(SessionKey, Order)>() {
            Ok(Some(((key, order), fds))) => {
                let is_further = matches!(
                    order,
                    Order::DataConnection { .. } | Order::Heartbeat { .. }
                );
                let socket = fds.into_iter().next().filter(|_| is_further);
                // A session that has ended wants no further connection.
                if let Some(socket) = socket {
                    let _ = self.passed_on(key, &order, socket.as_fd());
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok(None) | Err(_) => {
                debug!("the server that has taken over has ended");
                draining.successor = None;
            }
        }
    }

    pub(super) fn predecessor_ends(&mut self) {
        if self.predecessor.take().is_some() {
            info!("the server before has ended");
        }
    }

    /// Counts the sessions that run.
    fn sessions(&self) -> usize {
        let workers = self.workers.iter().filter(|worker| worker.key.is_some());
        let mut sessions: Vec<_> = workers
            .filter(|worker| !matches!(worker.phase, Phase::Leaving))
            .map(|worker| worker.session)
            .collect();
        sessions.sort_unstable();
        sessions.dedup();
        sessions.len()
    }
}
