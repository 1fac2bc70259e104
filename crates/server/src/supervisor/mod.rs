//! The supervisor: the process that owns the sockets, accepts clients, and gives each a worker
//! process of its own.
//!
//! ```text
//!  supervisor ── listeners                        worker (one for each client)
//!      │ accept                                       │
//!      ├── fork, exec; Greet, client's socket ───────►│ reads the hello, until --greet-within
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
//! A new server may take the sockets over; this one then ends with its last session
//! ([`hand_over`](super::hand_over)).
//!
//! A data connection, or one for heartbeats, comes to the same port. Its hello has the key of its
//! session, so the supervisor passes it on to that session's worker, whose
//! [`keeper`](super::keeper) takes it; with any other key it is refused. So with a connection of
//! another server ([`peers`](super::peers)), whose key the session has noted before.

mod drain;
mod ends;
mod leases;
mod options;
mod places;
mod ready;
mod reports;
mod wait;
mod worker;

use std::{
    collections::VecDeque,
    fmt,
    net::{SocketAddr, TcpListener},
    os::fd::AsFd as _,
    time::{Duration, Instant},
};

use outboard_link::{Endpoint, Listener};
use outboard_trust::CertificateFiles;
use outboard_wire::handshake::SessionKey;
use tracing::{debug, error, info};

pub use self::options::{ServeError, ServeOptions};
use self::{
    drain::{Draining, predecessor, take_over},
    leases::{inventory, open_gate},
    worker::{Phase, Side, Worker, start_worker},
};
use crate::{
    admission::{Order, Terms, Transport},
    audit::Audit,
    cgroup::{self, Groups},
    devices::DeviceKind,
    exporter::Exporter,
    hand_over::{Handing, Predecessor},
    limits,
    peers::Dialling,
    pool::Gate,
    shares::{Limit, Tenants},
    signals::Signals,
    spares::Spares,
    view::View,
};

/// A listening server.
pub struct Supervisor {
    listeners: Vec<Listener>,
    options: ServeOptions,
    signals: Signals,
    certificate: Option<CertificateFiles>,
    workers: Vec<Worker>,
    spares: Spares,
    view: View,
    tenants: Tenants,
    exporter: Option<Exporter>,
    gate: Option<Gate>,
    groups: Option<Groups>,
    /// The file at which the next server takes over.
    handing: Option<Handing>,
    /// The server from which this one has taken over, until that one ends.
    predecessor: Option<Predecessor>,
    /// True if there was a server before: it may have left sessions to one before itself.
    has_taken_over: bool,
    /// Keys of the last sessions of this server that have ended.
    ended: VecDeque<SessionKey>,
    /// Since another server has taken over.
    draining: Option<Draining>,
    session_last: u64,
    dialling: Dialling,
    /// Time until which no client is accepted, after a failure of the system.
    paused_until: Option<Instant>,
}

impl Supervisor {
    /// Listens at the addresses of the options, and on the sockets that are open already, if a
    /// client could be served.
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
        ready::check(&options)?;
        let certificate = options.access.certificate.as_ref();
        let certificate = certificate.map(|(chain, key)| CertificateFiles::read(chain, key));
        let certificate = certificate.transpose()?;
        let mut before = predecessor(&options)?;
        let signals = Signals::register(certificate.is_some())
            .map_err(ServeError::io("watching for signals"))?;
        let groups = groups_of(&options)?;
        let mut listeners = opened;
        for endpoint in &options.listen {
            let taken = before.as_mut().and_then(|before| before.take(endpoint));
            let listener = taken.unwrap_or_else(|| Listener::bind(endpoint));
            listeners.push(listener.map_err(ServeError::listen(endpoint))?);
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
            let started = gate.start(inventory, &address.unwrap_or_default(), &options.device);
            started.map_err(ServeError::io("starting the agent"))?;
        }
        let view = view_of(&options)?;
        let exporter = exporter_of(&options, before.as_mut())?;
        let tenants = Tenants::new(options.shares.clone(), options.sessions_max)
            .map_err(ServeError::io("making the ledger of shares"))?;
        // Nothing fails from here on: the running server accepts nobody any more.
        let handing = take_over(&options, &mut listeners, before.as_mut())?;
        Ok(Supervisor {
            listeners,
            signals,
            certificate,
            workers: Vec::new(),
            spares: Spares::new(options.spares.min(limits::SPARES_MAX)),
            view,
            tenants,
            exporter,
            gate,
            groups,
            handing,
            has_taken_over: before.is_some(),
            ended: VecDeque::new(),
            predecessor: before,
            draining: None,
            options,
            session_last: 0,
            dialling: Dialling::default(),
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

    /// Serves until SIGINT, SIGTERM or the end of standard input if that is awaited, then ends all
    /// workers; or until the last session has ended
    /// after another server has taken over.
    pub fn run(mut self) -> Result<(), ServeError> {
        while !self.signals.is_stopping() && !self.is_drained() {
            let (options, groups) = (&self.options, self.groups.as_ref());
            self.spares.refill(|| {
                let order = Order::Prepare(options.device.clone());
                start_worker(options, groups, &order, None)
            });
            if let Some(exporter) = &mut self.exporter {
                exporter.refill(|listener| {
                    start_worker(options, groups, &Order::Export, Some(listener))
                });
            }
            let news = self.wait()?;
            self.signals.drain();
            if news.starter_gone {
                info!("standard input is at its end, and so is the server");
                break;
            }
            if let Some(certificate) = &mut self.certificate
                && self.signals.has_hung_up()
            {
                certificate.reload();
            }
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
            if news.handing {
                self.hear_taker();
            }
            if news.successor {
                self.hear_successor();
            }
            if news.predecessor {
                self.predecessor_ends();
            }
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

    fn accept(&mut self, at: usize) {
        if !self.may_greet(at) {
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
        let certificate = self.certificate.as_mut().map(CertificateFiles::current);
        let transport = Transport::of(&stream);
        let order = Order::Greet {
            session,
            terms: Terms {
                transport: transport.clone(),
                refusal: self.options.access.refusal(&peer),
                tokens: self.options.access.tokens_for(&peer),
                tls: self
                    .options
                    .access
                    .tls_for(self.listeners[at].endpoint(), certificate),
                pool: self
                    .gate
                    .as_ref()
                    .map(|gate| gate.key().unwrap_or_default()),
                greet_ms: self.options.greet_ms,
            },
        };
        let groups = self.groups.as_ref();
        match start_worker(&self.options, groups, &order, Some(stream.as_fd())) {
            Ok((child, control)) => {
                debug!(session, %peer, pid = child.id(), "connected");
                // Time for the worker to notice first.
                let phase = (Phase::Handshake, 2 * self.options.greet_ms);
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

    /// Whether there is a place for one more peer of this listener that has not sent its hello.
    fn may_greet(&self, at: usize) -> bool {
        let in_handshake = self.workers.iter().filter(|w| w.is_in_handshake());
        let side = Side::of(self.listeners[at].endpoint());
        let of_side = in_handshake.clone().filter(|w| w.side() == side).count();
        in_handshake.count() < limits::HANDSHAKES_MAX
            && of_side < self.places_of(side, limits::HANDSHAKES_MAX)
    }
}

/// Checks that tenants' parts of the cores and the GPUs can be kept here, if there are any.
pub fn check_parts(options: &ServeOptions) -> Result<(), ServeError> {
    if options.shares.have(Limit::GpuPercent) {
        if options.device.kind != DeviceKind::Nvidia {
            let why = "the software device has compute= instead";
            return Err(ServeError::GpuPercent(why.into()));
        }
        outboard_nvidia::check_mps().map_err(ServeError::GpuPercent)?;
    }
    if !options.shares.have(Limit::Compute) {
        return Ok(());
    }
    if options.device.kind != DeviceKind::Soft {
        let why = "a GPU's time is divided by its driver, among processes; see gpu-percent=";
        return Err(ServeError::Compute(why.into()));
    }
    match cgroup::controllers() {
        Ok(has) if has.iter().any(|one| one == "cpu") => Ok(()),
        Ok(_) => Err(ServeError::Compute(
            "the server's control group has no controller cpu".into(),
        )),
        Err(why) => Err(ServeError::Compute(why.to_string())),
    }
}

/// Divides the server's own control group. Without one the log says so, unless something that the
/// options ask for needs it.
fn groups_of(options: &ServeOptions) -> Result<Option<Groups>, ServeError> {
    check_parts(options)?;
    let shares_compute = options.shares.have(Limit::Compute);
    match Groups::begin() {
        Ok(groups) => Ok(Some(groups)),
        Err(why) if shares_compute => Err(ServeError::Compute(why.to_string())),
        Err(why) => {
            info!(%why, "workers have no control groups of their own");
            Ok(None)
        }
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

fn exporter_of(
    options: &ServeOptions,
    before: Option<&mut Predecessor>,
) -> Result<Option<Exporter>, ServeError> {
    let Some(address) = options.metrics else {
        return Ok(None);
    };
    let taken = before.and_then(|before| before.take_metrics(address));
    let listener = taken.map_or_else(|| TcpListener::bind(address), Ok);
    listener
        .map(|listener| Some(Exporter::new(listener)))
        .map_err(|source| ServeError::Metrics { address, source })
}
