//! A worker: one process for one client.

use std::{
    ffi::OsString,
    io,
    os::{
        fd::{AsFd as _, OwnedFd, RawFd},
        unix::ffi::OsStringExt as _,
    },
    path::PathBuf,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use outboard_budget::ledger::Account;
use outboard_device::{
    Device, Failure,
    images::{DiskLimits, ImageStore},
};
use outboard_link::{Error as LinkError, Link, LinkKind, Stream, Wait, emulated::Clock};
use outboard_pool::Grant;
use outboard_session::{
    self as session, DataConnectionSource, End, MessageStats,
    handshake::{self, Error, Hello},
};
use outboard_trust::TlsError;
use outboard_wire::{
    doc::{DeviceCard, GpuStatus, Refusal, SessionEnd},
    handshake::{ClientHello, HandshakeError, Purpose, ServerWelcome},
    limits::HANDSHAKE_MS_MAX,
};
use signal_hook::low_level;
use tracing::{debug, info, info_span, warn};

use super::{
    admission::{Admission, Cache, Order, Report, Terms, Transport},
    control::Control,
    devices::{self, DeviceOptions, UNRELEASED_STATUS},
    encryption, exporter, inherit, inventory,
    keeper::Keeper,
    limits,
    reporter::Reporter,
    sandbox::Sandbox,
    sealed, status, tokens,
    usage::UsageReports,
};

/// Process names in `ps` and `top`, by which a spare can be told from a worker with a client.
const NAME_WORKER: &str = "outboard-worker";
const NAME_SPARE: &str = "outboard-spare";
const NAME_EXPORTER: &str = "outboard-metrics";

/// Score by which the kernel prefers a worker to other processes when memory runs out, of 1,000.
const OOM_SCORE: &str = "500";

const NO_GRANT: &str = "this server is part of a pool, which gives its GPUs: outboard run --pool URL asks for them. If the program has a file of grants (OUTBOARD_GRANT_FILE), there is none in it for this address, as it is written";

/// Texts for a client that uses the wrong kind of address: first for one that does not want RDMA,
/// then for one that does.
const WRONG_LINK: [&str; 2] = [
    "this port is that of an rdma:// address, not of a tcp:// one",
    "this port is that of a tcp:// address, not of an rdma:// one",
];

/// Serves one client, by the orders that come on the socket `control`. The error is a failure of
/// the server; a client's misbehaviour is only logged.
pub fn run_worker(control: RawFd) -> io::Result<()> {
    let control = Control::of_worker(inherit::take(control)?);
    let mut order = control.receive()?;
    let mut sandbox = None;
    if let Some((Order::Confine(confined), _)) = order {
        confined.enter()?;
        sandbox = Some(confined);
        order = control.receive()?;
    }
    match order {
        Some((Order::Greet { session, terms }, fds)) => {
            let _span = info_span!("session", id = session).entered();
            greet(control, &terms, sandbox.as_ref(), one(fds)?)
        }
        Some((Order::Prepare(device), _)) => wait_as_spare(control, &device),
        Some((Order::Export, fds)) => {
            name(NAME_EXPORTER);
            exporter::serve(control, one(fds)?)
        }
        Some((Order::Inventory(options), _)) => {
            let gpus = inventory::take(&options).map_err(io::Error::other)?;
            control.send(&Report::Inventory(gpus), &[])
        }
        Some((Order::Try, _)) => control.send(&Report::Works, &[]),
        // The server has gone.
        None => Ok(()),
        Some((order, _)) => Err(unexpected(&order)),
    }
}

/// Reads the hello of a new client before any device is opened. Serves the client if the supervisor
/// says so.
fn greet(
    control: Control,
    terms: &Terms,
    sandbox: Option<&Sandbox>,
    socket: OwnedFd,
) -> io::Result<()> {
    name(NAME_WORKER);
    let mut stream = stream_of(socket, &terms.transport)?;
    let peer = peer(&stream);
    let deadline = Instant::now() + Duration::from_millis(terms.greet_ms);
    let shown = match &terms.tls {
        None => None,
        Some(tls) => match encryption::begin(&mut stream, tls, deadline) {
            Ok(shown) => Some((shown, tls)),
            Err(error) => {
                let _ = control.send_if_room(&Report::TurnedAway(refusal_of(&error)));
                return turned_away(&peer, &error);
            }
        },
    };
    let hello = match handshake::read_hello(&mut stream, deadline) {
        Ok(hello) => hello,
        Err(error) => {
            let _ = control.send_if_room(&Report::TurnedAway(refusal_of(&error)));
            return turned_away(&peer, &error);
        }
    };
    // Another server has neither a key nor a token of this one's: the supervisor looks for the one
    // proof that it has, and the connection is nothing else.
    let is_peer = matches!(hello.hello.purpose, Purpose::Peer { .. });
    let shown = shown.filter(|_| !is_peer);
    let name = shown.map_or(Ok(None), |(shown, tls)| {
        encryption::authorize(&shown, tls).map_err(|error| (Refusal::TlsKey, error))
    });
    let checked = name.and_then(|name| {
        let (token, grant) = check(&mut stream, &hello, terms, deadline)?;
        Ok(((token, name), grant))
    });
    let (known, grant) = match checked {
        Ok(known) => known,
        Err((refusal, error)) => {
            let _ = control.send_if_room(&Report::TurnedAway(refusal));
            handshake::refuse(&mut stream, &error.to_string());
            return turned_away(&peer, &error);
        }
    };
    match ask_supervisor(&control, hello.hello, known, grant, &stream) {
        Ok(Some((admission, mut fds))) => {
            if let Some(sandbox) = sandbox {
                sandbox.drop_secrets()?;
            }
            let client = Client {
                account: account(&admission, &mut fds)?,
                stream,
                peer,
                admission,
                control,
            };
            client.serve_fresh(fds.pop())
        }
        Ok(None) => Ok(()),
        Err(error) => {
            handshake::refuse(&mut stream, &error.to_string());
            turned_away(&peer, &error)
        }
    }
}

/// Things that a client has shown, as far as it needs them: the name of its token, and its grant.
type Proved = (Option<String>, Option<Box<Grant>>);

/// Refuses a client that may not connect.
fn check(
    stream: &mut Stream,
    hello: &Hello,
    terms: &Terms,
    deadline: Instant,
) -> Result<Proved, (Refusal, Error)> {
    if let Some(why) = &terms.refusal {
        return Err((Refusal::User, Error::Refused(why.clone())));
    }
    let is_peer = matches!(hello.hello.purpose, Purpose::Peer { .. });
    let token = match &terms.tokens {
        None => None,
        Some(_) if is_peer => None,
        Some(file) => {
            let file = PathBuf::from(OsString::from_vec(file.clone()));
            let proved = tokens::prove(stream, hello, &file, deadline);
            Some(proved.map_err(|error| (Refusal::Token, error))?)
        }
    };
    check_link(&hello.hello, stream).map_err(|error| (Refusal::Link, error))?;
    let grant = match (&terms.pool, hello.hello.purpose) {
        (Some(key), Purpose::Session | Purpose::Query | Purpose::Management) => {
            let grant = check_grant(&hello.hello, key);
            let grant = grant.map_err(|why| (Refusal::Grant, Error::Refused(why)))?;
            Some(Box::new(grant))
        }
        // One that asks whether its grant is good now, before its program does.
        (Some(key), Purpose::Greeting) if hello.hello.grant.is_some() => {
            let grant = check_grant(&hello.hello, key);
            let grant = grant.map_err(|why| (Refusal::Grant, Error::Refused(why)))?;
            Some(Box::new(grant))
        }
        _ => None,
    };
    Ok((token, grant))
}

/// Reads the grant of a client. Whether it is good now the supervisor says.
fn check_grant(hello: &ClientHello, key: &str) -> Result<Grant, String> {
    let key = key
        .parse()
        .map_err(|_| String::from("the server has not heard from its pool's manager yet"))?;
    let signed = hello
        .grant
        .as_deref()
        .ok_or_else(|| String::from(NO_GRANT))?;
    Grant::verify(signed, &key).map_err(|error| error.to_string())
}

/// Refuses a client that expects another link than this one, or one that cannot be had here.
fn check_link(hello: &ClientHello, stream: &Stream) -> Result<(), Error> {
    if stream.kind() == LinkKind::Shm
        && let Err(error) = outboard_link::shm::check_available()
    {
        return Err(Error::Refused(format!(
            "the server gets no shared memory ({error}); use a tcp address of it"
        )));
    }
    // Another server's pieces come over tcp, also to the port of an rdma address.
    let is_peer = matches!(hello.purpose, Purpose::Peer { .. });
    if !is_peer && hello.is_rdma != stream.rdma().is_some() {
        return Err(Error::Refused(
            WRONG_LINK[usize::from(hello.is_rdma)].into(),
        ));
    }
    if let Some(emulation) = &hello.emulation
        && let Err(error) = Clock::compare(&emulation.clock)
    {
        return Err(Error::Refused(error.to_string()));
    }
    Ok(())
}

/// An admission, and what came with it.
type Admitted = (Box<Admission>, Vec<OwnedFd>);

/// Reports the hello. Returns the admission if this worker is to serve the client; `None` if
/// another worker has it.
fn ask_supervisor(
    control: &Control,
    mut hello: ClientHello,
    (token, key): (Option<String>, Option<String>),
    grant: Option<Box<Grant>>,
    stream: &Stream,
) -> Result<Option<Admitted>, Error> {
    let lost = |e: io::Error| Error::Refused(format!("the server is stopping ({e})"));
    hello.program = hello
        .program
        .chars()
        .take(limits::PROGRAM_CHARS_MAX)
        .collect();
    let hello = Box::new(hello);
    let tls = stream.tls_state()?;
    let heard = Report::Heard {
        hello,
        token,
        key,
        grant,
        tls,
    };
    control.send(&heard, &[stream.as_fd()]).map_err(lost)?;
    match control.receive().map_err(lost)? {
        Some((Order::Serve(admission), fds)) => Ok(Some((admission, fds))),
        Some((Order::Leave, _)) => Ok(None),
        Some((Order::Refuse(why), _)) => Err(Error::Refused(why)),
        None => Err(Error::Refused("the server is stopping".into())),
        Some((order, _)) => Err(lost(unexpected(&order))),
    }
}

/// Opens the device ahead of time, then waits for a client whose hello another worker has read.
fn wait_as_spare(control: Control, options: &DeviceOptions) -> io::Result<()> {
    name(NAME_SPARE);
    let span = info_span!("spare").entered();
    let mut device = devices::open(options, true)
        .and_then(|mut device| device.prepare().map(|()| device))
        .map_err(io::Error::other)?;
    let facts = device
        .nvml_facts()
        .map_err(io::Error::other)
        .and_then(|document| sealed::seal(&document));
    if let Ok(cards) = device.cards(0) {
        control.send(&Report::Gpus(gpus(&cards)), &[])?;
    }
    match facts {
        Ok(facts) => control.send(&Report::Ready, &[facts.as_fd()])?,
        Err(error) => {
            debug!(%error, "the management library says nothing");
            control.send(&Report::Ready, &[])?;
        }
    }
    let (admission, mut fds) = match control.receive()? {
        Some((Order::TakeOver(admission), fds)) => (admission, fds),
        // The server has gone, or is stopping.
        None => return Ok(()),
        Some((order, _)) => return Err(unexpected(&order)),
    };
    drop(span);
    if admission.device != *options {
        return Err(io::Error::other("the admission is for another device"));
    }
    name(NAME_WORKER);
    let _span = info_span!("session", id = admission.session).entered();
    let account = account(&admission, &mut fds)?;
    let stream = stream_of(one(fds)?, &admission.transport)?;
    let stream = stream.resume(admission.tls.clone());
    let stream = stream.map_err(io::Error::other)?;
    let client = Client {
        peer: peer(&stream),
        stream,
        admission,
        account,
        control,
    };
    // Fails if the GPU was lost meanwhile: the socket then closes, and the other worker opens the
    // device anew.
    let welcome = client
        .welcome(Some(&mut *device))
        .map_err(io::Error::other)?;
    client.control.send(&Report::Taken, &[])?;
    client.serve(Some(device), &welcome)
}

fn unexpected(order: &Order) -> io::Error {
    io::Error::other(format!("an order that does not fit: {order:?}"))
}

/// Returns the descriptor that an order brought.
fn one(fds: Vec<OwnedFd>) -> io::Result<OwnedFd> {
    let mut fds = fds.into_iter();
    fds.next()
        .ok_or_else(|| io::Error::other("an order without its socket"))
}

/// Opens the session's account in the ledger, the last descriptor that came with its admission but
/// for the facts.
fn account(admission: &Admission, fds: &mut Vec<OwnedFd>) -> io::Result<Option<Account>> {
    let Some(place) = &admission.place else {
        return Ok(None);
    };
    let at = fds.len().checked_sub(1);
    let at = at.ok_or_else(|| io::Error::other("an order without its ledger"))?;
    place.account(fds.remove(at)).map(Some)
}

/// Opens the cache for a tenant's session.
fn images(cache: Option<Cache>, tenant: &str) -> ImageStore {
    let mut limits = DiskLimits::default();
    let folder = cache.map(|cache| {
        limits.tenant_bytes = cache.tenant_bytes;
        limits.all_bytes = cache.all_bytes.unwrap_or(limits.all_bytes);
        PathBuf::from(OsString::from_vec(cache.path))
    });
    ImageStore::new(folder, tenant, limits)
}

/// A client that has a place.
struct Client {
    stream: Stream,
    peer: String,
    admission: Box<Admission>,
    /// The shares of memory that it has with others.
    account: Option<Account>,
    control: Control,
}

impl Client {
    /// Opens the client's device, then serves the client.
    fn serve_fresh(self, facts: Option<OwnedFd>) -> io::Result<()> {
        let options = &self.admission.device;
        let opened = match self.admission.client.purpose {
            Purpose::Greeting
            | Purpose::DataConnection { .. }
            | Purpose::Heartbeat { .. }
            | Purpose::Peer { .. }
            | Purpose::Status => Ok(None),
            Purpose::Management => {
                let reporter = Reporter::new(options, facts);
                Ok(Some(Box::new(reporter) as Box<dyn Device>))
            }
            Purpose::Session | Purpose::Query => devices::open(options, false).map(Some),
        };
        let welcomed = opened.and_then(|mut device| {
            let welcome = self.welcome(device.as_deref_mut())?;
            Ok((device, welcome))
        });
        match welcomed {
            Ok((device, welcome)) => self.serve(device, &welcome),
            Err(failure) => self.turn_away(failure.into()),
        }
    }

    fn welcome(
        &self,
        device: Option<&mut (dyn Device + 'static)>,
    ) -> Result<ServerWelcome, Failure> {
        let Admission {
            session,
            client,
            device: options,
            spares_to_come,
            key,
            place,
            ..
        } = &*self.admission;
        let mut welcome = handshake::welcome(
            device,
            *session,
            client.purpose,
            client.window,
            (*spares_to_come).into(),
        )?;
        let share = place.and_then(|place| place.device_bytes());
        for device in &mut welcome.devices {
            device.quota_bytes = device.quota_bytes.min(share.unwrap_or(u64::MAX));
        }
        Ok(ServerWelcome {
            ptx_only: options.kind.is_ptx_only(),
            confirms_memory: share.is_some(),
            key: (client.purpose == Purpose::Session).then_some(*key),
            ..welcome
        })
    }

    /// Serves the client until it leaves.
    fn serve(mut self, device: Option<Box<dyn Device>>, welcome: &ServerWelcome) -> io::Result<()> {
        let idle_max = self.admission.idle_max();
        let Admission {
            client,
            token,
            cache,
            tenant,
            key,
            host_memory_bytes,
            until_ms,
            has_peers,
            net_device,
            ..
        } = *self.admission;
        outboard_budget::set(host_memory_bytes);
        offer_to_oom_killer();
        let memory = device.as_ref().and_then(|device| device.memory_in_use());
        if let Some(account) = self.account {
            outboard_budget::join(account.clone());
            memory
                .iter()
                .for_each(|memory| memory.join(account.clone()));
        }
        if client.purpose == Purpose::Status {
            debug!(peer = self.peer, "asks about the server");
            return status::serve(self.stream, &self.control, welcome, idle_max);
        }
        let is_session = client.purpose == Purpose::Session;
        if is_session {
            tell_begin(&self.control, welcome, until_ms.is_some());
        }
        let usage = is_session.then(|| UsageReports::new(memory.clone()));
        let keeper = Keeper::start(
            self.control,
            (key, has_peers, net_device),
            &self.stream,
            usage,
            until_ms,
        );
        let deadline = Instant::now() + Duration::from_millis(HANDSHAKE_MS_MAX);
        let linked = handshake::send_welcome(&mut self.stream, welcome, deadline).and_then(|()| {
            Ok(match &client.emulation {
                None => self.stream.into_link_server()?,
                Some(emulation) => self.stream.into_emulated_server(&emulation.network)?,
            })
        });
        let link = match linked {
            Ok(link) => link,
            Err(error) => {
                if is_session {
                    keeper.tell_end(memory, SessionEnd::Link);
                }
                return turned_away(&self.peer, &error);
            }
        };
        log_begin(&client, &self.peer, token.as_deref());
        let (purpose, images) = (client.purpose, images(cache, &tenant));
        match device {
            Some(mut device) => {
                let end = serve(&mut *device, link, purpose, images, idle_max, &keeper);
                if is_session {
                    keeper.tell_end(memory, end);
                }
                keeper.drop_copies();
                give_back(device);
            }
            None => part(link),
        }
        Ok(())
    }

    fn turn_away(mut self, error: Error) -> io::Result<()> {
        let _ = self
            .control
            .send_if_room(&Report::TurnedAway(refusal_of(&error)));
        handshake::refuse(&mut self.stream, &error.to_string());
        turned_away(&self.peer, &error)
    }
}

fn log_begin(client: &ClientHello, peer: &str, token: Option<&str>) {
    let (pid, program) = (client.pid, &client.program);
    match client.purpose {
        Purpose::Session => info!(%peer, token, pid, ?program, "begins"),
        purpose => debug!(%peer, pid, ?program, ?purpose, "begins"),
    }
    if let Some(emulation) = &client.emulation {
        debug!(network = %emulation.network, "is emulated");
    }
}

/// Reports the session's GPUs, and the window of its addresses if it has a lease.
fn tell_begin(control: &Control, welcome: &ServerWelcome, has_lease: bool) {
    let _ = control.send_if_room(&Report::Gpus(gpus(&welcome.devices)));
    if has_lease {
        let (base, bytes) = (welcome.window_base, welcome.window_bytes);
        let _ = control.send_if_room(&Report::Window { base, bytes });
    }
}

/// Returns the GPUs of a worker's devices.
fn gpus(cards: &[DeviceCard]) -> Vec<GpuStatus> {
    let gpu = |card: &DeviceCard| GpuStatus {
        name: card.name.chars().take(limits::PROGRAM_CHARS_MAX).collect(),
        memory_bytes: card.memory_bytes,
        ..GpuStatus::default()
    };
    cards.iter().take(limits::GPUS_MAX).map(gpu).collect()
}

/// Returns the reason as it is counted.
fn refusal_of(error: &Error) -> Refusal {
    match error {
        Error::Link(LinkError::Tls(_)) => Refusal::Tls,
        Error::Link(_) => Refusal::Silent,
        Error::Handshake(HandshakeError::NotOutboard { .. }) => Refusal::Stranger,
        Error::Handshake(_) => Refusal::Version,
        Error::Device(_) => Refusal::Device,
        Error::Refused(_) => Refusal::Other,
    }
}

fn stream_of(socket: OwnedFd, transport: &Transport) -> io::Result<Stream> {
    Stream::try_from(socket)
        .and_then(|stream| transport.dress(stream))
        .map_err(io::Error::other)
}

fn peer(stream: &Stream) -> String {
    match stream.peer() {
        Ok(peer) => peer.to_string(),
        Err(error) => error.to_string(),
    }
}

/// Has the kernel end this process before the server's own, if the machine runs out of memory. A
/// failure is ignored: the kernel then chooses by size alone.
fn offer_to_oom_killer() {
    let _ = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE);
}

/// Names this process. A failure is ignored: the name is only a convenience.
fn name(name: &str) {
    let name = std::ffi::CString::new(name).unwrap_or_default();
    let _ = rustix::thread::set_name(&name);
}

/// Returns whether those who run the server can do something about the error.
fn is_of_use(error: &TlsError) -> bool {
    matches!(
        error,
        TlsError::Declined { .. } | TlsError::CertificateAsked | TlsError::Keys
    )
}

fn turned_away(peer: &str, error: &Error) -> io::Result<()> {
    match error {
        Error::Link(LinkError::Tls(error)) if is_of_use(error) => {
            warn!(peer, %error, "no session")
        }
        // A port scan, or a client that changed its mind.
        Error::Link(error) => debug!(peer, %error, "no session"),
        Error::Handshake(error @ HandshakeError::NotOutboard { .. }) => {
            info!(peer, %error, "no session")
        }
        error => warn!(peer, %error, "no session"),
    }
    match error {
        Error::Device(failure) => Err(io::Error::other(failure.to_string())),
        _ => Ok(()),
    }
}

fn serve(
    device: &mut dyn Device,
    link: Link,
    purpose: Purpose,
    images: ImageStore,
    idle_max: Duration,
    keeper: &Arc<Keeper>,
) -> SessionEnd {
    let start = Instant::now();
    let source = Arc::clone(keeper) as Arc<dyn DataConnectionSource>;
    let (pulse, idle_max) = (
        keeper.pulse(),
        (purpose != Purpose::Session).then_some(idle_max),
    );
    let (end, stats) = session::serve(device, link, purpose, images, Some(source), idle_max, pulse);
    let total = stats.total();
    let seconds = start.elapsed().as_secs_f64();
    match (&end, purpose) {
        (End::ClientLeft, Purpose::Session) => info!("ended after {seconds:.3} s: {total}"),
        (end @ (End::ClientLeft | End::Idle(_)), _) => {
            debug!("ended after {seconds:.3} s, because {end}: {total}");
        }
        (end, _) => warn!("ended after {seconds:.3} s, because {end}: {total}"),
    }
    report(&stats);
    end.counted()
}

fn report(stats: &MessageStats) {
    for (name, op) in stats.by_name() {
        debug!("{name}: {op}");
    }
}

/// Waits briefly for a client that has its answer to leave.
fn part(link: Link) {
    let (_sender, mut receiver) = link.split();
    let until = Instant::now() + Duration::from_millis(limits::GREETING_MS_MAX);
    // Anything that it sends instead is ignored.
    let _ = receiver.recv(Wait::Until(until));
}

/// Releases the device within a time limit; after it the process exits, which releases the rest. No
/// handlers of exits run: a driver's might wait for the call that does not return.
fn give_back(device: Box<dyn Device>) {
    let limit = thread::Builder::new().spawn(|| {
        thread::sleep(Duration::from_millis(limits::GIVE_BACK_MS_MAX));
        warn!("the device does not come to an end; the worker exits without it");
        low_level::exit(UNRELEASED_STATUS);
    });
    if let Err(error) = limit {
        debug!(%error, "no thread for the time limit; the worker exits at once");
        low_level::exit(UNRELEASED_STATUS);
    }
    drop(device);
}
