//! The supervisor: the process that owns the sockets, accepts clients, and gives each a worker
//! process of its own.
//!
//! ```text
//!  supervisor ── listeners                        worker (one for each client)
//!      │ accept                                       │
//!      ├── fork, exec; Greet, client's socket ───────►│ reads the hello, until HANDSHAKE_MS_MAX
//!      │◄───────────────── Heard: hello, socket ──────┤
//!      ├── Serve: the admission ─────────────────────►│ opens the device, welcomes
//!      │   or Refuse: why                             │ serves until the client leaves
//!      ├── DataConnection: socket ───────────────────►│ one of several, when they come
//!      │◄──────────────────────────────── SIGCHLD ────┘
//! ```
//!
//! Every hand-over is a document of [`admission`], on the worker's [`control`] socket. The
//! supervisor decodes nothing that a client sent. Bytes of strangers reach only a process that has
//! no device yet, and at most [`limits::HANDSHAKES_MAX`] of these exist; further clients wait in
//! the listener's backlog. A client takes a place among the sessions only after a proper hello. A
//! worker that was started ahead, with its device open ([`spares`]), takes the client over at that
//! moment.
//!
//! A data connection, or one for heartbeats, comes to the same port. Its hello has the key of its
//! session, so the supervisor passes it on to that session's worker, whose
//! [`keeper`](super::keeper) takes it; with any other key it is refused.

use std::{
    ffi::OsString,
    fmt, io,
    net::SocketAddr,
    os::{
        fd::{AsFd as _, BorrowedFd, OwnedFd},
        unix::{ffi::OsStrExt as _, process::ExitStatusExt},
    },
    path::PathBuf,
    process::{Child, ExitStatus},
    time::{Duration, Instant},
};

use outboard_link::{Endpoint, Listener, Peer};
use outboard_pool::{Grant, record::GpuFacts};
use outboard_trust::TlsState;
use outboard_wire::{
    doc::{Refusal, SessionEnd, StatusAnswer, StatusQuestion},
    handshake::{ClientHello, Purpose, SessionKey},
    limits::{DATA_CONNECTIONS_MAX, HANDSHAKE_MS_MAX},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, Signal, kill_process},
};
use thiserror::Error;
use tracing::{debug, error, info, warn};

use crate::{
    access::Access,
    admission::{Admission, NOT_AWAITED, Order, Report, Terms, Transport},
    audit::Audit,
    control::Control,
    devices::DeviceOptions,
    exporter::Exporter,
    inherit, limits,
    pool::{Gate, PoolOptions},
    sandbox::Sandbox,
    shares::{Place, Shares, Tenants, tenant},
    signals::Signals,
    spares::Spares,
    status,
    view::{Newcomer, View},
};

/// The settings of a server.
#[derive(Debug, Clone)]
pub struct ServeOptions {
    pub listen: Vec<Endpoint>,
    /// Programs served at the same time, at most.
    pub sessions_max: usize,
    /// Workers kept ready, each with its device open.
    pub spares: usize,
    pub device: DeviceOptions,
    pub access: Access,
    /// Folder that keeps module images between sessions.
    pub cache: Option<PathBuf>,
    /// Address for requests for metrics, over HTTP.
    pub metrics: Option<SocketAddr>,
    /// File with a line for each session that has ended.
    pub audit: Option<PathBuf>,
    /// This machine's memory that a worker may use for its client, device memory apart.
    pub host_memory_bytes: u64,
    pub shares: Shares,
    /// The rights of workers; None leaves them those of the server's user.
    pub sandbox: Option<Sandbox>,
    /// The pool that the server is part of.
    pub pool: Option<PoolOptions>,
    /// Arguments with which this executable becomes a worker. The number of the worker's socket is
    /// appended.
    pub worker_args: Vec<OsString>,
}

/// Why a server cannot start.
#[derive(Debug, Error)]
pub enum ServeError {
    #[error("cannot listen{}: {source}", unless_named(endpoint, source))]
    Listen {
        endpoint: Box<Endpoint>,
        source: outboard_link::Error,
    },
    #[error("no address to listen at")]
    NoEndpoint,
    #[error("cannot answer requests for metrics at {address}: {source}")]
    Metrics {
        address: SocketAddr,
        source: io::Error,
    },
    #[error("cannot write the audit file {}: {source}", path.display())]
    Audit { path: PathBuf, source: io::Error },
    #[error("the state of the box in {}: {source}", path.display())]
    Pool { path: PathBuf, source: io::Error },
    #[error("the GPUs of this machine cannot be found out: {0}")]
    Inventory(io::Error),
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
    fn listen(endpoint: &Endpoint) -> impl FnOnce(outboard_link::Error) -> ServeError {
        let endpoint = Box::new(endpoint.clone());
        move |source| ServeError::Listen { endpoint, source }
    }

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
    view: View,
    tenants: Tenants,
    exporter: Option<Exporter>,
    gate: Option<Gate>,
    session_last: u64,
    /// Time until which no client is accepted, after a failure of the system.
    paused_until: Option<Instant>,
}

struct Worker {
    child: Child,
    /// Open while the worker may need orders.
    control: Option<Control>,
    session: u64,
    peer: Peer,
    transport: Transport,
    /// The time by which a handshake or a take-over must be over.
    deadline: Instant,
    phase: Phase,
    /// Key of the session that it serves.
    key: Option<SessionKey>,
    /// The tenant whose place it has, and that session's row in the ledger.
    tenant: Option<(String, Option<usize>)>,
    /// Data connections that the session may still get.
    connections_left: usize,
}

enum Phase {
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

impl Supervisor {
    /// Listens at the addresses of the options, and on the sockets that are open already.
    pub fn bind(options: ServeOptions, opened: Vec<Listener>) -> Result<Supervisor, ServeError> {
        if options.listen.is_empty() && opened.is_empty() {
            return Err(ServeError::NoEndpoint);
        }
        let mut options = options;
        let gate = options.pool.as_ref().map(open_gate);
        let mut gate = gate.transpose()?;
        if let Some(gate) = &gate {
            options.device.board = gate.board();
        }
        let signals = Signals::register().map_err(ServeError::io("watching for signals"))?;
        let mut listeners = opened;
        for endpoint in &options.listen {
            listeners.push(Listener::bind(endpoint).map_err(ServeError::listen(endpoint))?);
        }
        if !options.access.uids.is_empty() {
            for listener in &listeners {
                let opened = listener.open_to_group(options.access.group);
                opened.map_err(ServeError::listen(listener.endpoint()))?;
            }
        }
        if let Some(gate) = &mut gate {
            let inventory = inventory(&options).map_err(ServeError::Inventory)?;
            let address = listeners
                .first()
                .map(|listener| listener.endpoint().to_string());
            let started = gate.start(inventory, &address.unwrap_or_default());
            started.map_err(ServeError::io("starting the agent"))?;
        }
        Ok(Supervisor {
            listeners,
            signals,
            workers: Vec::new(),
            spares: Spares::new(options.spares.min(limits::SPARES_MAX)),
            view: view_of(&options)?,
            tenants: Tenants::new(options.shares.clone(), options.sessions_max)
                .map_err(ServeError::io("making the ledger of shares"))?,
            exporter: exporter_of(&options)?,
            gate,
            options,
            session_last: 0,
            paused_until: None,
        })
    }

    /// Returns the addresses it listens at, with the ports that the system chose.
    pub fn endpoints(&self) -> impl Iterator<Item = &Endpoint> {
        self.listeners.iter().map(Listener::endpoint)
    }

    /// Returns the address for requests for metrics, with the port that the system chose.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.exporter.as_ref()?.address().ok()
    }

    /// Serves until SIGINT or SIGTERM, then ends all workers.
    pub fn run(mut self) -> Result<(), ServeError> {
        while !self.signals.is_stopping() {
            let options = &self.options;
            self.spares
                .refill(|| start_worker(options, &Order::Prepare(options.device.clone()), None));
            if let Some(exporter) = &mut self.exporter {
                exporter.refill(|listener| start_worker(options, &Order::Export, Some(listener)));
            }
            let news = self.wait()?;
            self.signals.drain();
            for id in news.spares {
                if let Some(gpus) = self.spares.listen(id) {
                    self.view.has_gpus(gpus);
                }
            }
            if news.exporter {
                self.hear_exporter();
            }
            self.reap();
            self.expire();
            self.watch_leases(news.gate);
            for pid in news.controls {
                self.hear(pid);
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
                sources.push(Source::Control(worker.child.id()));
            }
        }
        for (id, control) in self.spares.controls() {
            fds.push(PollFd::new(control, PollFlags::IN));
            sources.push(Source::Spare(id));
        }
        if let Some(control) = self.exporter.as_ref().and_then(Exporter::control) {
            fds.push(PollFd::new(control, PollFlags::IN));
            sources.push(Source::Exporter);
        }
        if let Some(gate) = &self.gate {
            fds.push(PollFd::from_borrowed_fd(gate.bell(), PollFlags::IN));
            sources.push(Source::Gate);
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
            // The kernel has no memory for the list of descriptors just now; workers go on.
            Err(error @ (rustix::io::Errno::NOMEM | rustix::io::Errno::AGAIN)) => {
                self.pause("waiting for clients", &error);
                std::thread::sleep(Duration::from_millis(limits::PAUSE_MS));
                return Ok(News::default());
            }
            Err(error) => return Err(ServeError::io("waiting for clients")(error)),
        }
        let mut news = News::default();
        for (fd, source) in fds.iter().zip(sources) {
            match source {
                _ if fd.revents().is_empty() => {}
                Source::Signal => {}
                Source::Exporter => news.exporter = true,
                Source::Gate => news.gate = true,
                Source::Control(pid) => news.controls.push(pid),
                Source::Spare(id) => news.spares.push(id),
                Source::Listener(at) => news.listeners.push(at),
            }
        }
        Ok(news)
    }

    fn next_deadline(&self) -> Option<Instant> {
        let timed = self
            .workers
            .iter()
            .filter(|w| w.is_timed())
            .map(|w| w.deadline);
        timed
            .chain(self.paused_until)
            .chain(self.spares.deadline())
            .chain(self.exporter.as_ref().and_then(Exporter::deadline))
            .chain(self.gate.as_ref().and_then(Gate::deadline))
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
        let transport = Transport::of(&stream);
        let order = Order::Greet {
            session,
            terms: Terms {
                transport: transport.clone(),
                refusal: self.options.access.refusal(&peer),
                tokens: self.options.access.tokens_for(&peer),
                tls: self.options.access.tls_for(self.listeners[at].endpoint()),
                pool: self
                    .gate
                    .as_ref()
                    .map(|gate| gate.key().unwrap_or_default()),
            },
        };
        match start_worker(&self.options, &order, Some(stream.as_fd())) {
            Ok((child, control)) => {
                debug!(session, %peer, pid = child.id(), "connected");
                let phase = Phase::Handshake;
                self.workers
                    .push(Worker::new(child, control, session, peer, transport, phase));
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

    /// Reads a worker's report, or notices that it closed its end. Returns whether there may be
    /// more.
    fn hear(&mut self, pid: u32) -> bool {
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
            (_, Ok(Some((Report::Usage(usage), _)))) => self.view.reports(session, *usage),
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
    fn answer(&mut self, at: usize, question: StatusQuestion) {
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
    fn end_session(&mut self, session: u64, peer: &Peer) -> StatusAnswer {
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

    fn hear_exporter(&mut self) {
        let (view, ready) = (&self.view, self.spares.ready());
        if let Some(exporter) = &mut self.exporter {
            exporter.hear(|_| StatusAnswer::Now(Box::new(view.status(ready))));
        }
    }

    /// Notes that a worker takes no more orders, most likely because it is about to end.
    fn closed(&mut self, at: usize) {
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

    /// Gives a place to a client with a proper hello, or refuses it. Its worker has the client's
    /// socket, too.
    fn admit(
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
        self.workers[at].tenant = Some((tenant, row));
        let cache = self.options.cache.as_ref();
        // A spare has all devices open.
        let may_take_a_spare = leased.device.chosen.is_none();
        let mut admission = Box::new(Admission {
            session,
            transport,
            client,
            token,
            tls,
            device: leased.device,
            cache: cache.map(|folder| folder.as_os_str().as_bytes().to_vec()),
            spares_to_come: 0,
            host_memory_bytes: self.options.host_memory_bytes,
            place,
            key,
            until_ms: leased.until_ms,
        });
        if purpose == Purpose::Session
            && may_take_a_spare
            && self.hand_over(at, &mut admission, socket)
        {
            self.workers[at].phase = Phase::HandingOver(admission);
        } else {
            self.serve_here(at, admission);
        }
    }

    /// Finds a place for a client of this tenant, and a key for its session, or refuses it.
    fn find_place(
        &mut self,
        at: usize,
        purpose: Purpose,
        tenant: &str,
    ) -> Option<(SessionKey, Option<Place>)> {
        let (max, what, refusal) = match purpose {
            Purpose::Session => {
                let max = self.options.sessions_max;
                (max, "sessions (--sessions-max)", Refusal::Sessions)
            }
            _ => (limits::QUERIES_MAX, "queries", Refusal::Queries),
        };
        let Worker { session, peer, .. } = &self.workers[at];
        if self.serving(purpose, None) >= max {
            warn!(session, %peer, "refused: all of the {max} {what} are in use");
            self.view.refused(refusal, peer);
            let why = format!("all of its {max} {what} are in use; try again later");
            self.dismiss(at, &Order::Refuse(why));
            return None;
        }
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
        let has = self.serving(purpose, Some(tenant));
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

    /// Refuses a client whose tenant has used up its share.
    fn refuse_by_share(&mut self, at: usize, tenant: &str, why: String) {
        let Worker { session, peer, .. } = &self.workers[at];
        warn!(session, %peer, why, "refused");
        self.view.refused_by_share(peer, tenant);
        self.dismiss(at, &Order::Refuse(why));
    }

    /// Refuses a client whose grant gives it nothing now.
    fn refuse_grant(&mut self, at: usize, why: String) {
        let Worker { session, peer, .. } = &self.workers[at];
        warn!(session, %peer, why, "refused");
        self.view.refused(Refusal::Grant, peer);
        self.dismiss(at, &Order::Refuse(why));
    }

    /// Asks the gate of a pool's server. Returns the devices of the client, and the end of its
    /// lease. Older sessions of its GPUs have ended then.
    fn lease(
        &mut self,
        session: u64,
        purpose: Purpose,
        grant: Option<&Grant>,
    ) -> Result<LeasedDevice, String> {
        let mut leased = LeasedDevice {
            device: self.options.device.clone(),
            until_ms: None,
        };
        let needs_one = matches!(
            purpose,
            Purpose::Session | Purpose::Query | Purpose::Management
        );
        let Some(gate) = self.gate.as_mut().filter(|_| needs_one) else {
            return Ok(leased);
        };
        // Its worker has checked the signature.
        let grant = grant.ok_or("a client without a grant")?;
        if purpose != Purpose::Session {
            leased.device.chosen = gate.check(grant)?;
            return Ok(leased);
        }
        let admitted = gate.admit(session, grant)?;
        leased.device.chosen = admitted.chosen;
        leased.until_ms = Some(admitted.until_ms);
        if !admitted.end_first.is_empty() && !self.end_now(&admitted.end_first) {
            if let Some(gate) = &mut self.gate {
                gate.ended(session);
            }
            return Err("an older session of the GPU does not end; try again in a moment".into());
        }
        Ok(leased)
    }

    /// Does what the pool's manager and the ends of leases ask for.
    fn watch_leases(&mut self, is_news: bool) {
        let Some(gate) = &mut self.gate else {
            return;
        };
        let mut end = gate.over();
        if is_news {
            let news = gate.hear();
            end.extend(news.end);
            for (session, until_ms) in news.extended {
                for worker in self.workers.iter().filter(|w| w.session == session) {
                    if matches!(worker.phase, Phase::Serving(_) | Phase::Taking) {
                        worker.tell(&Order::Lease { until_ms }, &[]);
                    }
                }
            }
        }
        self.end_leased(&end);
    }

    /// Ends sessions whose leases are over.
    fn end_leased(&mut self, sessions: &[u64]) {
        for worker in self
            .workers
            .iter_mut()
            .filter(|w| sessions.contains(&w.session))
        {
            if !matches!(worker.phase, Phase::Leaving) {
                info!(
                    session = worker.session,
                    "is ended: its lease of the GPUs is over"
                );
            }
            self.view.will_end(worker.session, SessionEnd::Lease);
            // The first of two workers must not serve the client after the second is gone.
            worker.phase = Phase::Leaving;
            worker.signal(Signal::KILL);
        }
        let is_left = |session: &u64| self.workers.iter().any(|w| w.session == *session);
        let gone: Vec<u64> = sessions.iter().copied().filter(|s| !is_left(s)).collect();
        if let Some(gate) = &mut self.gate {
            gone.into_iter().for_each(|session| gate.ended(session));
        }
    }

    /// Ends sessions, and waits for that. Returns whether all have ended in time.
    fn end_now(&mut self, sessions: &[u64]) -> bool {
        self.end_leased(sessions);
        let deadline = Instant::now() + Duration::from_millis(limits::POOL_END_MS_MAX);
        let is_left = |worker: &mut Worker| {
            sessions.contains(&worker.session) && matches!(worker.child.try_wait(), Ok(None))
        };
        // They are reaped with the others.
        while self.workers.iter_mut().any(is_left) {
            if Instant::now() > deadline {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }

    /// Lets the worker that read the hello serve the client.
    fn serve_here(&mut self, at: usize, mut admission: Box<Admission>) {
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
        worker.tell(&Order::Serve(admission), &fds);
        match purpose {
            Purpose::Session => {
                worker.key = Some(key);
                self.view.is_served_by(worker.session, worker.child.id());
            }
            // Its worker asks for the client.
            Purpose::Status => {}
            _ => worker.control = None,
        }
    }

    /// Lets a spare take over the client of worker `at`, if a spare is ready.
    fn hand_over(&mut self, at: usize, admission: &mut Box<Admission>, socket: &OwnedFd) -> bool {
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
        let mut worker = Worker::new(child, control, session, peer, transport, Phase::Taking);
        worker.key = Some(admission.key);
        worker.tenant = self.workers[at].tenant.clone();
        self.workers.push(worker);
        true
    }

    /// Passes a further connection on to the worker of its session.
    fn pass_on(&mut self, at: usize, key: SessionKey, order: &Order, socket: &OwnedFd) {
        let is_its = |w: &&mut Worker| w.key.is_some_and(|of_session| of_session.is(&key));
        let passed = self.workers.iter_mut().find(is_its).is_some_and(|worker| {
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
            control.is_some_and(|control| control.send(order, &[socket.as_fd()]).is_ok())
        });
        let order = match passed {
            true => Order::Leave,
            false => {
                self.view.refused(Refusal::Key, &self.workers[at].peer);
                Order::Refuse(NOT_AWAITED.into())
            }
        };
        self.dismiss(at, &order);
    }

    /// Gives a worker its last order.
    fn dismiss(&mut self, at: usize, order: &Order) {
        let worker = &mut self.workers[at];
        worker.tell(order, &[]);
        worker.phase = Phase::Leaving;
        worker.control = None;
    }

    /// Returns the worker that waits while a spare takes its client over.
    fn handing_over(&self, session: u64) -> Option<(usize, Box<Admission>)> {
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

    /// Counts the clients that have a place, or those of one tenant. A client being handed over
    /// counts once.
    fn serving(&self, purpose: Purpose, of: Option<&str>) -> usize {
        let is_counted = |worker: &&Worker| match (of, &worker.tenant) {
            (None, _) => true,
            (Some(tenant), Some((its, _))) => its == tenant,
            (Some(_), None) => false,
        };
        let mut sessions: Vec<u64> = self
            .workers
            .iter()
            .filter(is_counted)
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

    fn reap(&mut self) {
        self.spares.reap();
        let mut ended = Vec::new();
        for worker in &mut self.workers {
            match worker.child.try_wait() {
                Ok(None) => {}
                Ok(Some(status)) => ended.push((worker.child.id(), Ok(status))),
                Err(error) => ended.push((worker.child.id(), Err(error))),
            }
        }
        for (pid, how) in ended {
            // It may have reported something before its end.
            while self.hear(pid) {}
            let Some(at) = self.workers.iter().position(|w| w.child.id() == pid) else {
                continue;
            };
            self.closed(at);
            let worker = self.workers.swap_remove(at);
            self.free_row(&worker);
            let session = worker.session;
            let is_over = !self.workers.iter().any(|other| other.session == session);
            if let Some(gate) = self.gate.as_mut().filter(|_| is_over) {
                gate.ended(session);
            }
            if worker.key.is_some() {
                let end = match how {
                    Ok(status) if status.success() => SessionEnd::Left,
                    _ => SessionEnd::Worker,
                };
                self.view.ended(worker.session, end);
            }
            match how {
                Ok(status) => worker.report(status),
                Err(error) => {
                    error!(session = worker.session, %error, "a worker was lost sight of");
                }
            }
        }
    }

    /// Gives back the row of a worker that has ended, unless another worker has its session.
    fn free_row(&mut self, ended: &Worker) {
        let Some((tenant, Some(row))) = &ended.tenant else {
            return;
        };
        let has_it = |worker: &Worker| worker.session == ended.session && worker.tenant.is_some();
        if !self.workers.iter().any(has_it) {
            self.tenants.leave(tenant, *row);
        }
    }

    /// Ends workers stuck in the handshake, and spares that do not take their client over. A worker
    /// normally ends by itself when its client says nothing.
    fn expire(&mut self) {
        let now = Instant::now();
        let late = |w: &&mut Worker| w.is_timed() && w.deadline <= now;
        for worker in self.workers.iter_mut().filter(late) {
            let session = worker.session;
            match worker.phase {
                Phase::Taking => warn!(session, "a spare worker does not take its client over"),
                _ => {
                    warn!(session, "a worker is stuck in the handshake");
                    worker.phase = Phase::Leaving;
                }
            }
            // The first worker serves the client of a spare once the spare is reaped: until then
            // the spare might still write to the client.
            worker.signal(Signal::KILL);
            worker.deadline = now + Duration::from_millis(limits::STOP_MS_MAX);
        }
    }

    fn stop(mut self) {
        info!(sessions = self.workers.len(), "stopping");
        self.listeners.clear();
        self.spares.end();
        if let Some(exporter) = &mut self.exporter {
            exporter.end();
        }
        for worker in &mut self.workers {
            self.view.will_end(worker.session, SessionEnd::Stopped);
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
            if worker.key.is_some() {
                self.view.ended(worker.session, SessionEnd::Stopped);
            }
            // SIGKILL works at once unless a driver is stuck in the kernel: the wait for that is
            // bounded.
            let deadline = Instant::now() + Duration::from_millis(limits::STOP_MS_MAX);
            while matches!(worker.child.try_wait(), Ok(None)) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    fn handshakes(&self) -> usize {
        let in_handshake = self.workers.iter().filter(|w| w.is_in_handshake());
        in_handshake.count()
    }
}

/// The devices of a client, and the end of its lease.
struct LeasedDevice {
    device: DeviceOptions,
    until_ms: Option<u64>,
}

#[derive(Default)]
struct News {
    gate: bool,
    exporter: bool,
    /// Workers by process, because positions change when workers are reaped.
    controls: Vec<u32>,
    spares: Vec<u64>,
    listeners: Vec<usize>,
}

enum Source {
    Signal,
    Control(u32),
    Spare(u64),
    Exporter,
    Gate,
    Listener(usize),
}

fn open_gate(options: &PoolOptions) -> Result<Gate, ServeError> {
    Gate::open(options).map_err(|source| ServeError::Pool {
        path: options.state.clone(),
        source,
    })
}

/// Has a worker find out which GPUs this machine has.
fn inventory(options: &ServeOptions) -> io::Result<Vec<GpuFacts>> {
    let order = Order::Inventory(options.device.clone());
    let (mut child, control) = start_worker(options, &order, None)?;
    let limit = Duration::from_millis(limits::SPARE_START_MS_MAX);
    let limit = Timespec::try_from(limit).ok();
    let mut fds = [PollFd::new(&control, PollFlags::IN)];
    let _ = rustix::io::retry_on_intr(|| poll(&mut fds, limit.as_ref()))?;
    let said = control.receive();
    let _ = child.kill().and_then(|()| child.wait());
    match said? {
        Some((Report::Inventory(gpus), _)) => Ok(gpus),
        _ => Err(io::Error::other(
            "the device cannot be opened; the log says why",
        )),
    }
}

fn view_of(options: &ServeOptions) -> Result<View, ServeError> {
    let audit = options.audit.as_ref().map(|path| {
        Audit::open(path).map_err(|source| ServeError::Audit {
            path: path.clone(),
            source,
        })
    });
    let device = options.device.kind.name();
    let (max, slow_by) = (options.sessions_max, slow_by(options));
    Ok(View::new(device, max, slow_by, audit.transpose()?))
}

/// Returns the settings that make a server slower, in words.
fn slow_by(options: &ServeOptions) -> Vec<String> {
    let watch = &options.device.watch;
    let reasons = [
        (cfg!(debug_assertions), "it is a debug build"),
        (watch.checks.any(), "--check watches what kernels do"),
        (watch.seed.is_some(), "--seed gives threads a fixed order"),
        (
            options.spares == 0,
            "--spare 0: each program waits for the device to start",
        ),
    ];
    let holding = reasons.into_iter().filter(|(holds, _)| *holds);
    holding.map(|(_, reason)| reason.into()).collect()
}

fn exporter_of(options: &ServeOptions) -> Result<Option<Exporter>, ServeError> {
    let exporter = options.metrics.map(|address| {
        Exporter::bind(address).map_err(|source| ServeError::Metrics { address, source })
    });
    exporter.transpose()
}

/// Starts a worker process with its first order; returns it with the socket for further ones.
fn start_worker(
    options: &ServeOptions,
    order: &Order,
    socket: Option<BorrowedFd<'_>>,
) -> io::Result<(Child, Control)> {
    let (control, theirs) = Control::pair()?;
    let mut command = inherit::this_executable();
    command.args(&options.worker_args);
    let mut child = inherit::pass(&mut command, "--control", theirs)?;
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
    fn new(
        child: Child,
        control: Control,
        session: u64,
        peer: Peer,
        transport: Transport,
        phase: Phase,
    ) -> Worker {
        let ms_max = match phase {
            Phase::Taking => limits::TAKE_OVER_MS_MAX,
            // Time for the worker to notice first.
            _ => 2 * HANDSHAKE_MS_MAX,
        };
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
        }
    }

    fn is_in_handshake(&self) -> bool {
        matches!(self.phase, Phase::Handshake)
    }

    fn is_timed(&self) -> bool {
        matches!(self.phase, Phase::Handshake | Phase::Taking)
    }

    fn tell(&self, order: &Order, fds: &[BorrowedFd<'_>]) {
        let Some(control) = &self.control else {
            return;
        };
        // A worker that has died is reaped.
        if let Err(error) = control.send(order, fds) {
            debug!(session = self.session, %error, "a worker cannot be reached");
        }
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
            (None, code) => error!(session, %peer, ?code, "the worker failed"),
        }
    }
}
