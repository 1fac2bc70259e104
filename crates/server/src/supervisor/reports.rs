//! Reports and questions of workers.

use std::io;

use outboard_link::Peer;
use outboard_wire::{
    doc::{Doing, SessionEnd, StatusAnswer, StatusQuestion},
    handshake::Purpose,
};
use rustix::process::Signal;
use tracing::{debug, info};

use super::{Phase, Supervisor};
use crate::{
    admission::{Order, Report},
    shares::tenant,
    status,
};

impl Supervisor {
    /// Reads a worker's report, or notices that it closed its end. Returns whether there may be
    /// more.
    pub(super) fn hear(&mut self, pid: u32) -> bool {
        let Some(at) = self.workers.iter().position(|w| w.child.id() == pid) else {
            return false;
        };
        let worker = &mut self.workers[at];
        let Some(control) = &worker.control else {
            return false;
        };
        let session = worker.session;
        match (&worker.phase, control.receive::<Report>()) {
            (_, Err(error)) if error.kind() == io::ErrorKind::WouldBlock => return false,
            (_, Ok(Some((Report::Usage(usage), _)))) => {
                if let Some(gate) = &mut self.gate {
                    let is_waiting = usage.doing == Doing::AwaitsClient;
                    gate.has_called(session, usage.messages, is_waiting);
                }
                self.view.reports(session, *usage);
            }
            (_, Ok(Some((Report::Gpus(gpus), _)))) => self.view.has_gpus(gpus),
            (_, Ok(Some((Report::Ended(end), _)))) => self.view.will_end(session, end),
            (_, Ok(Some((Report::TurnedAway(refusal), _)))) => {
                self.view.refused(refusal, &worker.peer);
            }
            (Phase::Serving(Purpose::Status), Ok(Some((Report::Asks(question), _)))) => {
                self.answer(at, question);
            }
            (_, Ok(Some((Report::Window { base, bytes }, _)))) => {
                if let Some(gate) = &mut self.gate {
                    gate.has_window(session, base, bytes);
                }
            }
            (Phase::Serving(_), Ok(Some((Report::Offer(key), _)))) => worker.offers.add(key),
            (Phase::Serving(_), Ok(Some((Report::Dial { number, address }, _)))) => {
                // The worker has read the address before.
                if let Ok(address) = address.parse() {
                    let networks = &self.options.peer_copies;
                    self.dialling.dial(control, networks, number, address);
                }
            }
            (
                Phase::Handshake,
                Ok(Some((
                    Report::Heard {
                        hello,
                        token,
                        key,
                        grant,
                        tls,
                    },
                    fds,
                ))),
            ) => {
                let tenant = tenant(&worker.peer, token.as_deref(), key.as_deref());
                match fds.into_iter().next() {
                    Some(socket) => self.admit(at, *hello, (token, grant, tls, tenant), &socket),
                    None => self.closed(at),
                }
            }
            (Phase::Taking, Ok(Some((Report::Taken, _)))) => {
                worker.phase = Phase::Serving(Purpose::Session);
                self.view.is_served_by(session, pid);
                if let Some((at, _)) = self.handing_over(session) {
                    self.dismiss(at, &Order::Leave);
                }
            }
            _ => self.closed(at),
        }
        true
    }

    /// Answers a client that asks about the server.
    pub(super) fn answer(&mut self, at: usize, question: StatusQuestion) {
        let peer = self.workers[at].peer.clone();
        let answer = match question {
            StatusQuestion::Now => {
                StatusAnswer::Now(Box::new(self.view.status(self.spares.ready())))
            }
            StatusQuestion::End(session) => self.end_session(session, &peer),
        };
        let worker = &mut self.workers[at];
        let Some(control) = &worker.control else {
            return;
        };
        if let Err(error) = status::answer(control, &answer) {
            debug!(%error, "a question about the server has no answer");
            // The worker ends without its socket.
            worker.control = None;
        }
    }

    /// Ends a session if the server's own user or root asks for it, over a local socket.
    pub(super) fn end_session(&mut self, session: u64, peer: &Peer) -> StatusAnswer {
        let Peer::Process { uid, .. } = *peer else {
            let why = "only over a local socket of the server can sessions be ended";
            return StatusAnswer::Refused(why.into());
        };
        let ours = rustix::process::geteuid().as_raw();
        if uid != ours && uid != 0 {
            let why = format!("only user {ours}, whose server this is, and root may end sessions");
            return StatusAnswer::Refused(why);
        }
        if !self.view.has(session) {
            return StatusAnswer::Refused(format!("there is no session {session}"));
        }
        self.view.will_end(session, SessionEnd::Asked);
        info!(session, uid, "is ended, as a user asks");
        for worker in self.workers.iter_mut().filter(|w| w.session == session) {
            // The first of two workers must not serve the client after the second is gone.
            worker.phase = Phase::Leaving;
            worker.signal(Signal::KILL);
        }
        StatusAnswer::Ended
    }

    pub(super) fn hear_exporter(&mut self) {
        let (view, ready) = (&self.view, self.spares.ready());
        if let Some(exporter) = &mut self.exporter {
            exporter.hear(|_| StatusAnswer::Now(Box::new(view.status(ready))));
        }
    }

    /// Notes that a worker takes no more orders, most likely because it is about to end.
    pub(super) fn closed(&mut self, at: usize) {
        let worker = &mut self.workers[at];
        worker.control = None;
        match worker.phase {
            // It found no proper hello.
            Phase::Handshake => worker.phase = Phase::Leaving,
            Phase::Taking => {
                worker.phase = Phase::Leaving;
                // The session is not its own.
                worker.key = None;
                let session = worker.session;
                if let Some((at, admission)) = self.handing_over(session) {
                    debug!(
                        session,
                        "no spare took the client; its first worker serves it"
                    );
                    self.serve_here(at, admission);
                }
            }
            Phase::HandingOver(_) | Phase::Serving(_) | Phase::Leaving => {}
        }
    }
}
