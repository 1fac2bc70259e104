//! The loop of the manager's process. All requests that have come are handled, then one transaction
//! makes their changes durable, then the answers are sent.

use std::{
    collections::BTreeMap,
    io,
    net::{SocketAddr, TcpListener},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use outboard_pool::{
    Manager, Store, StoreError,
    api::{Claimed, PoolError},
};
use outboard_trust::{Identity, IdentityError, Secured, hex, random};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Resource, Rlimit, getrlimit, setrlimit},
};
use thiserror::Error;
use tracing::{error, info, warn};

use crate::{
    connection::{Connection, Heard},
    etcd::StoreUrl,
    limits,
    metrics::Load,
    operations::Form,
    proof::{Proof, ProofError, ProofFiles},
    roles::caller,
    routes::{self, Outcome, Own, Wait},
    store::{Opened, Source},
};

const OTHER_PAGE: &str = "a page of another server sends this";
/// Longest sleep: a signal that came just before it is noticed after it.
const SLEEP_MS_MAX: u64 = 1_000;
/// Part of its term after which a holder is answered, so that it renews the lease.
const HOLD_PARTS: u64 = 3;

/// The settings of a manager.
#[derive(Debug, Clone)]
pub struct Options {
    pub listen: SocketAddr,
    pub store: StoreUrl,
    /// File of the authorities of etcd's certificates; None: those of the system.
    pub store_ca: Option<PathBuf>,
    /// File of the key that signs grants; None: beside the store's file.
    pub grant_key: Option<PathBuf>,
    /// Address of this manager for clients that ask another one; None: where it listens.
    pub address: Option<String>,
    /// Time without a session or a call after which a lease's GPUs are taken back; None: never,
    /// unless its claim says so.
    pub idle_reclaim_ms: Option<u64>,
    /// File of the tokens, one of which each request must have; None asks for none.
    pub tokens: Option<PathBuf>,
    /// Files of the key and the certificate for encrypted connections; None: nothing is encrypted.
    pub proof: Option<ProofFiles>,
}

/// Reason why a manager does not start, or ends.
#[derive(Debug, Error)]
pub enum ServeError {
    #[error("cannot listen at {address}: {source}")]
    Listen {
        address: SocketAddr,
        source: io::Error,
    },
    #[error("{url}: {source}")]
    Store { url: StoreUrl, source: StoreError },
    #[error(
        "managers with etcd need one key for grants, the same file on each: add --grant-key FILE"
    )]
    NoGrantKey,
    #[error("the manager's key: {0}")]
    Key(#[from] IdentityError),
    #[error(transparent)]
    Proof(#[from] ProofError),
    #[error("{doing}: {source}")]
    Io {
        doing: &'static str,
        source: io::Error,
    },
}

pub struct Server {
    listener: TcpListener,
    options: Options,
    key: Identity,
    proof: Option<Proof>,
    pool_id: String,
    source: Source,
    store: Option<Box<dyn Store>>,
    /// Address of the manager that leads, if it is another one.
    elsewhere: Option<String>,
    manager: Option<Manager>,
    /// Moment that is 0 of the manager's time.
    began: Instant,
    retry_at: Instant,
    connections: BTreeMap<u64, Connection>,
    last: u64,
    /// Connection that was heard last.
    heard_last: u64,
    /// As of the last round.
    load: Load,
    stopping: Arc<AtomicBool>,
}

/// An answer that is sent after the transaction.
type Pending = (u64, Outcome);

impl Server {
    /// Opens the store, or makes it, with the manager's key beside it.
    pub fn bind(options: Options) -> Result<Server, ServeError> {
        let io = |doing| move |source| ServeError::Io { doing, source };
        let key_file = key_file(&options)?;
        // A key that has signed grants is never without its store.
        let is_new = !key_file.exists();
        let key = match is_new {
            true => Identity::random()?,
            false => Identity::read(&key_file)?,
        };
        let proof = options.proof.as_ref().map(Proof::read).transpose()?;
        allow_connections();
        let id: [u8; 8] = random().map_err(io("drawing an id"))?;
        let listener = TcpListener::bind(options.listen).map_err(|source| ServeError::Listen {
            address: options.listen,
            source,
        })?;
        listener.set_nonblocking(true).map_err(io("listening"))?;
        let stopping = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
            let flag = Arc::clone(&stopping);
            signal_hook::flag::register(signal, flag).map_err(io("watching for signals"))?;
        }
        let mut server = Server {
            listener,
            key,
            proof,
            pool_id: hex::encode(&id),
            source: Source::new(options.store.clone(), options.store_ca.clone()),
            store: None,
            elsewhere: None,
            manager: None,
            began: Instant::now(),
            retry_at: Instant::now(),
            connections: BTreeMap::new(),
            last: 0,
            heard_last: 0,
            load: Load::default(),
            stopping,
            options,
        };
        let is_etcd = matches!(server.options.store, StoreUrl::Etcd(_));
        if is_new && is_etcd {
            server.key.write(&key_file)?;
        }
        server.open(is_new).map_err(|source| ServeError::Store {
            url: server.options.store.clone(),
            source,
        })?;
        if is_new && !is_etcd {
            // A file that cannot be opened, or has another key's grants, gets no new key.
            server.key.write(&key_file)?;
        }
        Ok(server)
    }

    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    fn open(&mut self, is_new: bool) -> Result<(), StoreError> {
        // Never two at a time: the file is locked.
        self.store = None;
        let address = match &self.options.address {
            Some(address) => address.clone(),
            None => self.own_address(),
        };
        let mut store = match self.source.open(&address, is_new)? {
            Opened::Store(store) => store,
            Opened::Elsewhere(leader) => {
                self.retry_at = Instant::now() + Duration::from_millis(limits::STORE_RETRY_MS);
                if self.elsewhere.as_ref() != Some(&leader) {
                    info!(leader, "another manager leads");
                }
                self.elsewhere = Some(leader);
                return Ok(());
            }
        };
        self.elsewhere = None;
        let public = self.key.public_key().to_string();
        self.began = Instant::now();
        // A later start has a higher number, even of an older copy of the store.
        let wall_ms = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let least = wall_ms.map_or(0, |wall| u64::try_from(wall.as_millis()).unwrap_or(0));
        let mut manager = Manager::open_from(store.as_mut(), &self.pool_id, &public, least)?;
        manager.reclaim_idle(self.options.idle_reclaim_ms);
        info!(incarnation = manager.incarnation(), "the store is open");
        self.store = Some(store);
        self.manager = Some(manager);
        Ok(())
    }

    fn own_address(&self) -> String {
        let scheme = if self.proof.is_some() {
            "https"
        } else {
            "http"
        };
        let address = self.address().map(|address| address.to_string());
        format!("{scheme}://{}", address.unwrap_or_default())
    }

    /// Closes the store if another manager may have taken over. Returns whether it did.
    fn watch_leadership(&mut self) -> bool {
        let has_lost = self.manager.is_some() && self.source.has_lost();
        if has_lost {
            warn!("this manager leads no longer");
            self.source.refused();
            self.close_store();
        }
        has_lost
    }

    /// Closes the store, which is read anew.
    fn close_store(&mut self) {
        self.manager = None;
        self.store = None;
        self.retry_at = Instant::now();
    }

    /// Refuses the requests that wait and those whose answers were not sent.
    fn refuse_all(&self, pending: &mut Vec<Pending>) {
        let waiting = self.connections.iter().filter(|(_, it)| it.wait.is_some());
        let all = waiting
            .map(|(id, _)| *id)
            .chain(pending.iter().map(|(id, _)| *id));
        let all: std::collections::BTreeSet<u64> = all.collect();
        let refusal = |id| (id, routes::refusal(&self.not_now()));
        *pending = all.into_iter().map(refusal).collect();
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Serves until SIGINT or SIGTERM.
    pub fn run(mut self) -> Result<(), ServeError> {
        while !self.stopping.load(Ordering::Relaxed) {
            self.watch_leadership();
            if self.manager.is_none() && self.retry_at <= Instant::now() {
                if let Err(error) = self.open(false) {
                    warn!(%error, "the store cannot be read");
                    self.retry_at = Instant::now() + Duration::from_millis(limits::STORE_RETRY_MS);
                } else if self.manager.is_some() {
                    self.restart_clocks();
                }
            }
            let (is_new, ready) = self.wait().map_err(|source| ServeError::Io {
                doing: "waiting for requests",
                source,
            })?;
            let mut pending = Vec::new();
            if let Some(manager) = &mut self.manager {
                manager.note_time(outboard_trust::now_s());
            }
            self.load = load_of(&self.connections);
            self.hear_some(ready, &mut pending);
            self.end_late();
            if is_new && !self.is_full() {
                self.accept(&mut pending);
            }
            self.go_on(&mut pending);
            self.commit(&mut pending);
            // Another manager may have decided otherwise while this one was stopped.
            if self.watch_leadership() {
                self.refuse_all(&mut pending);
            }
            self.send(pending);
        }
        Ok(())
    }

    /// Hears as many clients as one transaction has room for, the others after it: they take turns.
    fn hear_some(&mut self, mut ready: Vec<u64>, pending: &mut Vec<Pending>) {
        let next = ready.partition_point(|id| *id <= self.heard_last);
        ready.rotate_left(next);
        for id in ready {
            if self.is_full() {
                break;
            }
            self.heard_last = id;
            self.hear(id, pending);
        }
    }

    /// Returns whether the next transaction is large enough.
    fn is_full(&self) -> bool {
        let (Some(manager), Some(store)) = (&self.manager, &self.store) else {
            return false;
        };
        let writes_max = store.writes_max().saturating_sub(limits::REQUEST_WRITES);
        manager.noted_bytes() > limits::BATCH_BYTES || manager.noted_writes() > writes_max
    }

    /// A new manager's time begins anew, and so do the limits of connections.
    fn restart_clocks(&mut self) {
        for connection in self.connections.values_mut() {
            connection.until_ms = limits::REQUEST_MS_MAX;
            if let Some((_, until_ms)) = &mut connection.wait {
                *until_ms = 0;
            }
        }
    }

    fn wait(&self) -> io::Result<(bool, Vec<u64>)> {
        let now_ms = self.now_ms();
        let mut fds = vec![PollFd::new(&self.listener, PollFlags::IN)];
        let is_idle = |it: &Connection| it.is_idle();
        let is_full = self.connections.len() >= limits::CONNECTIONS_MAX;
        if is_full && !self.connections.values().any(is_idle) {
            fds[0] = PollFd::new(&self.listener, PollFlags::empty());
        }
        for connection in self.connections.values() {
            let events = match connection.has_output() {
                true => PollFlags::IN | PollFlags::OUT,
                false => PollFlags::IN,
            };
            fds.push(PollFd::new(connection, events));
        }
        let waits = self.connections.values().map(|connection| {
            connection
                .wait
                .as_ref()
                .map_or(connection.until_ms, |(_, until)| *until)
        });
        let next = self.manager.as_ref().and_then(Manager::next_ms);
        let mut sleep_ms = waits.chain(next).min().unwrap_or(u64::MAX);
        sleep_ms = sleep_ms.saturating_sub(now_ms).min(SLEEP_MS_MAX);
        if self.manager.is_none() {
            sleep_ms = sleep_ms.min(limits::STORE_RETRY_MS);
        }
        // A wait that ends early would end in vain. Requests that came together wait for nothing.
        sleep_ms = match self.connections.values().any(Connection::has_more) {
            true => 0,
            false => sleep_ms + 1,
        };
        let timeout = Timespec::try_from(Duration::from_millis(sleep_ms)).ok();
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let is_ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        let ready = self.connections.iter().zip(&fds[1..]);
        let ready = ready.filter(|((_, it), fd)| is_ready(fd) || it.has_more());
        let ready = ready.map(|((id, _), _)| *id);
        Ok((is_ready(&fds[0]), ready.collect()))
    }

    fn accept(&mut self, pending: &mut Vec<Pending>) {
        while self.make_room() {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => {
                    warn!(%error, "no connection is accepted for a moment");
                    std::thread::sleep(Duration::from_millis(1));
                    break;
                }
            };
            let tls = self.proof.as_mut().map(|it| Secured::server(it.current()));
            let Ok(connection) = Connection::new(stream, tls, self.now_ms()) else {
                continue;
            };
            self.last += 1;
            let id = self.last;
            self.connections.insert(id, connection);
            // Its request has mostly come with it.
            self.hear(id, pending);
        }
    }

    fn hear(&mut self, id: u64, pending: &mut Vec<Pending>) {
        let now_ms = self.now_ms();
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        if !connection.write() {
            return self.ended(id);
        }
        match connection.read() {
            // Nobody would know of its lease.
            Heard::Request(request) if routes::is_claim(&request) && connection.has_left() => {
                self.ended(id);
            }
            Heard::Request(request) => self.handle(id, &request, pending),
            Heard::Malformed(malformed) => {
                connection.refuse(now_ms, malformed);
                if !connection.write() {
                    self.ended(id);
                }
            }
            Heard::Nothing => {}
            Heard::Ended => self.ended(id),
        }
    }

    /// A client has gone: its lease has lost its holder, or its claim waits no longer.
    fn ended(&mut self, id: u64) {
        let now_ms = self.now_ms();
        let waited = self.connections.remove(&id).and_then(|it| it.wait);
        let Some(manager) = &mut self.manager else {
            return;
        };
        match waited {
            Some((Wait::Hold(lease, _), _)) => manager.holder_is_gone(now_ms, lease),
            Some((Wait::Claim(claim), _)) => manager.leave(&claim.uid),
            Some((Wait::Report(report), _)) => {
                // A box that has something new to say does so on a new connection.
                let is_same = |it: &Connection| match &it.wait {
                    Some((Wait::Report(other), _)) => other.instance == report.instance,
                    _ => false,
                };
                if !self.connections.values().any(is_same) {
                    manager.box_is_gone(now_ms, &report);
                }
            }
            Some((Wait::Watch(..), _)) | None => {}
        }
    }

    fn handle(&mut self, id: u64, request: &crate::http::Request, pending: &mut Vec<Pending>) {
        let now_ms = self.now_ms();
        let refusal = self.not_now();
        let token = routes::token_of(request);
        let tokens = self.options.tokens.as_ref();
        let tokens = tokens.filter(|_| !routes::is_public(request));
        let outcome = match caller(tokens, token.as_deref()) {
            Err((status, text)) => routes::refused(request, status, &PoolError::Forbidden(text)),
            Ok(_) if request.is_of_other_page() => {
                routes::refusal(&PoolError::Forbidden(OTHER_PAGE.into()))
            }
            Ok(_) if self.load.output_bytes > limits::OUTPUT_BYTES_MAX => routes::refusal(
                &PoolError::Busy("clients do not take their answers; try again later".into()),
            ),
            Ok(caller) => {
                let own = Own {
                    key: &self.key,
                    load: self.load,
                    asks_token: self.options.tokens.is_some(),
                };
                match &mut self.manager {
                    None => routes::refusal(&refusal),
                    Some(manager) => routes::handle(manager, now_ms, &own, &caller, request),
                }
            }
        };
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        match outcome {
            Outcome::Wait(wait) => {
                self.load.watchers += usize::from(matches!(wait, Wait::Watch(..)));
                let until_ms = now_ms
                    + self
                        .manager
                        .as_ref()
                        .map_or(0, |it| waits(it, now_ms, &wait));
                connection.wait = Some((wait, until_ms));
            }
            answer => pending.push((id, answer)),
        }
    }

    /// Does what the time brings, and answers requests that have waited for it.
    fn go_on(&mut self, pending: &mut Vec<Pending>) {
        let now_ms = self.now_ms();
        let refusal = self.not_now();
        let Some(manager) = &mut self.manager else {
            let waiting = self.connections.iter().filter(|(_, it)| it.wait.is_some());
            pending.extend(waiting.map(|(id, _)| (*id, routes::refusal(&refusal))));
            return;
        };
        manager.tick(now_ms);
        manager.sort_changes();
        for (id, connection) in &self.connections {
            if let Some((wait, until_ms)) = &connection.wait {
                let is_over = *until_ms <= now_ms;
                if let Some(answer) = waited(manager, &self.key, now_ms, wait, is_over) {
                    pending.push((*id, answer));
                }
            }
        }
    }

    /// Ends connections whose request does not come, or whose client does not take its answer.
    fn end_late(&mut self) {
        let now_ms = self.now_ms();
        let late = self.connections.iter().filter(|(_, it)| it.is_late(now_ms));
        let late: Vec<u64> = late.map(|(id, _)| *id).collect();
        late.into_iter().for_each(|id| self.ended(id));
    }

    /// Ends the oldest connection that asks for nothing, if there is no room for a further one.
    /// Returns whether there is room.
    fn make_room(&mut self) -> bool {
        if self.connections.len() < limits::CONNECTIONS_MAX {
            return true;
        }
        let idle = self.connections.iter().filter(|(_, it)| it.is_idle());
        let oldest = idle.min_by_key(|(_, it)| it.rank()).map(|(id, _)| *id);
        oldest.into_iter().for_each(|id| self.ended(id));
        oldest.is_some()
    }

    /// Makes all changes durable. If that fails, nobody learns of them, and the store is read anew.
    fn commit(&mut self, pending: &mut Vec<Pending>) {
        let (Some(manager), Some(store)) = (&mut self.manager, &mut self.store) else {
            return;
        };
        let Some(transaction) = manager.take_transaction() else {
            return;
        };
        let Err(failure) = store.commit(&transaction) else {
            return;
        };
        error!(error = %failure, "the store failed; it is read anew");
        if matches!(failure, StoreError::Conflict) {
            self.source.refused();
        }
        self.close_store();
        self.refuse_all(pending);
    }

    /// Reason why nothing is decided here at present.
    fn not_now(&self) -> PoolError {
        match &self.elsewhere {
            Some(leader) => PoolError::Elsewhere(format!("another manager leads: {leader}")),
            None => PoolError::NotNow("the manager's store fails; try again in a moment".into()),
        }
    }

    fn send(&mut self, pending: Vec<Pending>) {
        let now_ms = self.now_ms();
        for (id, outcome) in pending {
            let Some(connection) = self.connections.get_mut(&id) else {
                continue;
            };
            match outcome {
                Outcome::Answer(status, body) => {
                    connection.answer(now_ms, status, (Form::Json.kind(), ""), &body);
                }
                Outcome::Text(status, form, text) => {
                    let more = routes::more_of(status, form);
                    connection.answer(now_ms, status, (form.kind(), &more), text.as_bytes());
                }
                Outcome::Wait(_) => {}
            }
            if !connection.write() {
                self.ended(id);
            }
        }
    }
}

/// Raises this process's limit of open files to what its connections need.
fn allow_connections() {
    let limit = getrlimit(Resource::Nofile);
    let wanted = limits::CONNECTIONS_MAX as u64 + limits::FILES_BESIDE;
    if limit.current.is_none_or(|current| current >= wanted) {
        return;
    }
    let current = limit.maximum.map_or(wanted, |most| most.min(wanted));
    let raised = Rlimit {
        current: Some(current),
        maximum: limit.maximum,
    };
    if setrlimit(Resource::Nofile, raised).is_err() || current < wanted {
        warn!(
            current,
            wanted, "open files are limited, so fewer connections are accepted"
        );
    }
}

fn load_of(connections: &BTreeMap<u64, Connection>) -> Load {
    let is_watcher = |it: &&Connection| matches!(it.wait, Some((Wait::Watch(..), _)));
    Load {
        connections: connections.len(),
        watchers: connections.values().filter(is_watcher).count(),
        output_bytes: connections.values().map(Connection::output_bytes).sum(),
    }
}

/// Returns how long a request may wait.
fn waits(manager: &Manager, now_ms: u64, wait: &Wait) -> u64 {
    match wait {
        Wait::Report(report) => {
            let answer = manager.answer_for(now_ms, &report.name);
            answer.map_or(0, |answer| answer.wait_ms)
        }
        Wait::Claim(_) => limits::CLAIM_WAIT_MS,
        Wait::Watch(_, wait_ms) => *wait_ms,
        Wait::Hold(lease, _) => {
            let view = manager.lease_view(now_ms, *lease);
            view.map_or(0, |view| view.claim.term_ms / HOLD_PARTS)
        }
    }
}

/// Returns the answer of a request that waits, if there is one now.
fn waited(
    manager: &mut Manager,
    key: &Identity,
    now_ms: u64,
    wait: &Wait,
    is_over: bool,
) -> Option<Outcome> {
    let answer = match wait {
        Wait::Report(report) => {
            if !is_over && !manager.is_news(report) {
                return None;
            }
            manager
                .answer_for(now_ms, &report.name)
                .and_then(|answer| routes::document(&answer))
        }
        Wait::Claim(claim) => match manager.asked_again(now_ms, claim, is_over) {
            Ok(Claimed::Waiting { .. }) if !is_over => return None,
            Ok(Claimed::Granted(granted)) => {
                routes::granted_answer(granted, key).and_then(|it| routes::document(&it))
            }
            Ok(waiting) => routes::document(&waiting),
            Err(error) => Err(error),
        },
        Wait::Watch(after, _) => {
            if !is_over && !manager.has_changed(after) {
                return None;
            }
            let changes = manager.changes_after(now_ms, after);
            changes.and_then(|changes| routes::document(&changes))
        }
        Wait::Hold(lease, news) => match manager.news_of(*lease) {
            Some(now) if news.is_none_or(|news| news == now) && !is_over => return None,
            Some(_) => {
                let held = manager.held(now_ms, *lease);
                held.and_then(|held| routes::document(&held))
            }
            None => Err(PoolError::Conflict(format!("the lease {lease} is over"))),
        },
    };
    Some(answer.unwrap_or_else(|error| routes::refusal(&error)))
}

/// Reads the key that signs grants, or makes it.
fn key_file(options: &Options) -> Result<PathBuf, ServeError> {
    match (&options.grant_key, &options.store) {
        (Some(file), _) => Ok(file.clone()),
        (None, StoreUrl::File(store)) => {
            let mut path = store.as_os_str().to_owned();
            path.push(".key");
            Ok(path.into())
        }
        (None, StoreUrl::Etcd(_)) => Err(ServeError::NoGrantKey),
    }
}
