//! Places for clients: who gets one, and which worker serves it.

use std::{
    os::{
        fd::{AsFd as _, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    time::Instant,
};

use outboard_link::Listener;
use outboard_pool::Grant;
use outboard_trust::TlsState;
use outboard_wire::{
    doc::Refusal,
    handshake::{ClientHello, NOT_AWAITED, Purpose, SessionKey},
};
use tracing::{debug, error, warn};

use super::{Phase, Side, Supervisor, Worker};
use crate::{
    admission::{Admission, Cache, Order},
    limits,
    peers::may_come,
    shares::Place,
    view::Newcomer,
};

/// Refusal of a heartbeat of a session that is not known to be over.
const NOT_ANSWERED: &str = "the session's worker takes no further connection now";

/// The outcome of passing a further connection on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Passed {
    /// The worker of its session has it, or the server before this one.
    On,
    /// There is such a session, or may be one at a server before, but it does not take it.
    NotTaken,
    /// No session has its key, or the one that had it has ended.
    Unknown,
}

impl Supervisor {
    /// Gives a place to a client with a proper hello, or refuses it. Its worker has the client's
    /// socket, too.
    pub(super) fn admit(
        &mut self,
        at: usize,
        client: ClientHello,
        (token, grant, tls, tenant): (Option<String>, Option<Box<Grant>>, Option<TlsState>, String),
        socket: &OwnedFd,
    ) {
        let purpose = client.purpose;
        match purpose {
            Purpose::DataConnection { key } => {
                return self.pass_on(at, key, &Order::DataConnection { tls }, socket);
            }
            Purpose::Heartbeat { key } => {
                return self.pass_on(at, key, &Order::Heartbeat { tls }, socket);
            }
            Purpose::Peer { key } => return self.pass_peer_on(at, key, tls, socket),
            _ => {}
        }
        let session = self.workers[at].session;
        let leased = match self.lease(session, purpose, grant.as_deref()) {
            Ok(leased) => leased,
            Err(why) => return self.refuse_grant(at, why),
        };
        let Some((key, place)) = self.find_place(at, purpose, &tenant) else {
            return;
        };
        let worker = &self.workers[at];
        let (peer, transport) = (&worker.peer, &worker.transport);
        if purpose == Purpose::Session {
            let newcomer = Newcomer {
                client: &client,
                peer,
                transport,
                token: token.as_deref(),
                tenant: &tenant,
            };
            let pid = self.workers[at].child.id();
            self.view.begins(session, pid, &newcomer);
        }
        let transport = transport.clone();
        let row = place.as_ref().map(Place::row);
        self.workers[at].tenant = Some((tenant.clone(), row));
        let part = self.options.shares.gpu_percent(&tenant);
        let mut admission = Box::new(Admission {
            session,
            transport,
            has_peers: self.may_have_peers(&client),
            net_device: self.net_device_for(&client),
            client,
            token,
            tls,
            device: leased.device.with_part(part),
            cache: self.cache_of(&tenant),
            tenant,
            spares_to_come: 0,
            host_memory_bytes: self.options.host_memory_bytes,
            place,
            key,
            until_ms: leased.until_ms,
            query_idle_ms: self.options.query_idle_ms,
        });
        if purpose == Purpose::Session
            && admission.device.is_all()
            && self.hand_over(at, &mut admission, socket)
        {
            self.workers[at].phase = Phase::HandingOver(admission);
        } else {
            self.serve_here(at, admission);
        }
    }

    /// Returns whether a client's copies may go straight to and from other servers. They would not
    /// cross an emulated network.
    fn may_have_peers(&self, client: &ClientHello) -> bool {
        !self.options.peer_copies.is_empty() && client.emulation.is_none()
    }

    /// Returns options for the RDMA device that a client's endpoints may use. What it sends would
    /// not cross an emulated network.
    fn net_device_for(&self, client: &ClientHello) -> Option<String> {
        let lent = self.options.net_device.clone();
        lent.filter(|_| client.emulation.is_none())
    }

    /// Returns the folder that keeps a tenant's images, if there is one, and what it may keep.
    fn cache_of(&self, tenant: &str) -> Option<Cache> {
        let (tenant_bytes, all_bytes) = self.options.shares.disk(tenant);
        let folder = self.options.cache.as_ref()?;
        Some(Cache {
            path: folder.as_os_str().as_bytes().to_vec(),
            tenant_bytes,
            all_bytes,
        })
    }

    /// Finds a place for a client of this tenant, and a key for its session, or refuses it.
    pub(super) fn find_place(
        &mut self,
        at: usize,
        purpose: Purpose,
        tenant: &str,
    ) -> Option<(SessionKey, Option<Place>)> {
        if let Err((refusal, what)) = self.has_room(self.workers[at].side(), purpose) {
            let Worker { session, peer, .. } = &self.workers[at];
            warn!(session, %peer, "refused: all of the {what} are in use");
            self.view.refused(refusal, peer);
            let why = format!("all of its {what} are in use; try again later");
            self.dismiss(at, &Order::Refuse(why));
            return None;
        }
        let Worker { session, peer, .. } = &self.workers[at];
        let key = match outboard_trust::random() {
            Ok(key) => SessionKey::new(key),
            Err(error) => {
                error!(session, %error, "the system has no random numbers");
                self.view.refused(Refusal::Other, peer);
                let why = "the server cannot make a key for the session".into();
                self.dismiss(at, &Order::Refuse(why));
                return None;
            }
        };
        let is_its = |worker: &Worker| {
            let whose = worker.tenant.as_ref();
            whose.is_some_and(|(its, _)| its == tenant)
        };
        let has = self.serving(purpose, is_its);
        let place = self
            .tenants
            .connect(tenant, Instant::now())
            .and_then(|()| self.tenants.admit(tenant, purpose, has))
            .and_then(|()| self.tenants.place(tenant));
        match place {
            Ok(place) => Some((key, place)),
            Err(why) => {
                self.refuse_by_share(at, tenant, why);
                None
            }
        }
    }

    /// Returns which places are all taken, if they are, for a client on this side.
    fn has_room(&self, side: Side, purpose: Purpose) -> Result<(), (Refusal, String)> {
        let all = self.serving(purpose, |_| true);
        if purpose == Purpose::Session {
            let max = self.options.sessions_max;
            let what = || format!("{max} sessions (--sessions-max)");
            return (all < max)
                .then_some(())
                .ok_or_else(|| (Refusal::Sessions, what()));
        }
        let max = limits::QUERIES_MAX;
        if all >= max {
            return Err((Refusal::Queries, format!("{max} queries")));
        }
        let max = self.places_of(side, max);
        if self.serving(purpose, |worker| worker.side() == side) >= max {
            let what = format!("{max} queries {}", side.name());
            return Err((Refusal::Queries, what));
        }
        Ok(())
    }

    /// Returns how many of `max` places peers on this side may have: some are kept for those on the
    /// other side, if the server listens there.
    pub(super) fn places_of(&self, side: Side, max: usize) -> usize {
        let sides = self.listeners.iter().map(Listener::endpoint).map(Side::of);
        let is_shared = sides.into_iter().any(|other| other != side);
        max - if is_shared { limits::PLACES_KEPT } else { 0 }
    }

    /// Refuses a client whose tenant has used up its share.
    pub(super) fn refuse_by_share(&mut self, at: usize, tenant: &str, why: String) {
        let Worker { session, peer, .. } = &self.workers[at];
        warn!(session, %peer, why, "refused");
        self.view.refused_by_share(peer, tenant);
        self.dismiss(at, &Order::Refuse(why));
    }

    /// Refuses a client whose grant gives it nothing now.
    pub(super) fn refuse_grant(&mut self, at: usize, why: String) {
        let Worker { session, peer, .. } = &self.workers[at];
        warn!(session, %peer, why, "refused");
        self.view.refused(Refusal::Grant, peer);
        self.dismiss(at, &Order::Refuse(why));
    }

    /// Lets the worker that read the hello serve the client.
    pub(super) fn serve_here(&mut self, at: usize, mut admission: Box<Admission>) {
        let (purpose, key) = (admission.client.purpose, admission.key);
        admission.spares_to_come = self.spares.to_come();
        let facts = self.spares.facts();
        let is_all = admission.device.chosen.is_none();
        let facts = facts.filter(|_| purpose == Purpose::Management && is_all);
        let ledger = self.tenants.ledger().filter(|_| admission.place.is_some());
        let facts = facts.iter().map(|facts| facts.as_fd());
        let fds: Vec<_> = facts.chain(ledger).collect();
        let worker = &mut self.workers[at];
        worker.phase = Phase::Serving(purpose);
        let pid = worker.child.id();
        if let Some((groups, bytes)) = self.groups.as_ref().zip(admission.group_bytes()) {
            groups.bound(pid, bytes);
        }
        let tenant = admission.tenant.clone();
        worker.tell(&Order::Serve(admission), &fds);
        match purpose {
            Purpose::Session => {
                worker.key = Some(key);
                self.view.is_served_by(worker.session, pid);
                self.weigh(&tenant);
            }
            // Its worker asks for the client.
            Purpose::Status => {}
            _ => worker.control = None,
        }
    }

    /// Lets a spare take over the client of worker `at`, if a spare is ready.
    pub(super) fn hand_over(
        &mut self,
        at: usize,
        admission: &mut Box<Admission>,
        socket: &OwnedFd,
    ) -> bool {
        let ledger = self.tenants.ledger().filter(|_| admission.place.is_some());
        let fds: Vec<_> = [socket.as_fd()].into_iter().chain(ledger).collect();
        let Some((child, control)) = self.spares.take(|control, spares_to_come| {
            admission.spares_to_come = spares_to_come;
            control.send(&Order::TakeOver(admission.clone()), &fds)
        }) else {
            return false;
        };
        let session = admission.session;
        debug!(session, pid = child.id(), "a spare worker takes over");
        let (peer, transport) = (self.workers[at].peer.clone(), admission.transport.clone());
        let phase = (Phase::Taking, limits::TAKE_OVER_MS_MAX);
        let mut worker = Worker::new(child, control, session, peer, transport, phase);
        worker.key = Some(admission.key);
        worker.tenant = self.workers[at].tenant.clone();
        let pid = worker.child.id();
        self.workers.push(worker);
        if let Some((groups, bytes)) = self.groups.as_ref().zip(admission.group_bytes()) {
            groups.bound(pid, bytes);
        }
        self.weigh(&admission.tenant);
        true
    }

    /// Passes a further connection on to the worker of its session.
    pub(super) fn pass_on(&mut self, at: usize, key: SessionKey, order: &Order, socket: &OwnedFd) {
        let passed = self.passed_on(key, order, socket.as_fd());
        let order = match (passed, order) {
            (Passed::On, _) => Order::Leave,
            // A heartbeat's refusal as unknown tells the client that its session is over.
            (Passed::NotTaken, Order::Heartbeat { .. }) => Order::Refuse(NOT_ANSWERED.into()),
            _ => Order::Refuse(NOT_AWAITED.into()),
        };
        if passed != Passed::On {
            self.view.refused(Refusal::Key, &self.workers[at].peer);
        }
        self.dismiss(at, &order);
    }

    /// Passes a connection of another server on to the worker whose session waits for it.
    fn pass_peer_on(
        &mut self,
        at: usize,
        key: SessionKey,
        tls: Option<TlsState>,
        socket: &OwnedFd,
    ) {
        let may_come = may_come(&self.options.peer_copies, &self.workers[at].peer);
        let mut all = self.workers.iter_mut().filter(|_| may_come);
        let its = all.find_map(|worker| worker.offers.take(&key).then_some(&*worker));
        let control = its.and_then(|worker| worker.control.as_ref());
        let order = Order::Peer { key, tls };
        let order = match control.is_some_and(|it| it.send(&order, &[socket.as_fd()]).is_ok()) {
            true => Order::Leave,
            false => {
                self.view.refused(Refusal::Key, &self.workers[at].peer);
                Order::Refuse(NOT_AWAITED.into())
            }
        };
        self.dismiss(at, &order);
    }

    /// Passes it on to the worker of its session, or to the server before this one.
    pub(super) fn passed_on(
        &mut self,
        key: SessionKey,
        order: &Order,
        socket: BorrowedFd<'_>,
    ) -> Passed {
        let is_its = |w: &&mut Worker| w.key.is_some_and(|of_session| of_session.is(&key));
        let Some(worker) = self.workers.iter_mut().find(is_its) else {
            return match &self.predecessor {
                Some(before) if before.pass(key, order, socket) => Passed::On,
                // The session may be of a server before that one, which goes on longer.
                _ if self.has_taken_over && !self.ended.iter().any(|ended| ended.is(&key)) => {
                    Passed::NotTaken
                }
                _ => Passed::Unknown,
            };
        };
        let may = match order {
            Order::DataConnection { .. } => {
                let may = worker.connections_left > 0;
                worker.connections_left = worker.connections_left.saturating_sub(1);
                may
            }
            // The worker bounds how many of these it has.
            _ => true,
        };
        let control = worker.control.as_ref().filter(|_| may);
        // A worker that has closed its end, or does not read, gets no further connections.
        match control.is_some_and(|control| control.send(order, &[socket]).is_ok()) {
            true => Passed::On,
            false => Passed::NotTaken,
        }
    }

    /// Gives a worker its last order.
    pub(super) fn dismiss(&mut self, at: usize, order: &Order) {
        let worker = &mut self.workers[at];
        worker.tell(order, &[]);
        worker.phase = Phase::Leaving;
        worker.control = None;
    }

    /// Returns the worker that waits while a spare takes its client over.
    pub(super) fn handing_over(&self, session: u64) -> Option<(usize, Box<Admission>)> {
        self.workers
            .iter()
            .enumerate()
            .find_map(|(at, worker)| match &worker.phase {
                Phase::HandingOver(admission) if worker.session == session => {
                    Some((at, admission.clone()))
                }
                _ => None,
            })
    }

    /// Counts the clients that have a place, as far as they are counted. A client being handed over
    /// counts once.
    fn serving(&self, purpose: Purpose, is_counted: impl Fn(&Worker) -> bool) -> usize {
        let mut sessions: Vec<u64> = self
            .workers
            .iter()
            .filter(|worker| is_counted(worker))
            .filter(|worker| match worker.phase {
                Phase::Serving(served) => served == purpose,
                Phase::Taking | Phase::HandingOver(_) => purpose == Purpose::Session,
                Phase::Handshake | Phase::Leaving => false,
            })
            .map(|worker| worker.session)
            .collect();
        sessions.sort_unstable();
        sessions.dedup();
        sessions.len()
    }
}
