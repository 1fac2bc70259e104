//! The process: sets up the data plane, passes frames until a signal ends it, and keeps the
//! connections for the next one.

use super::api::{self, Beside, Doors};
use super::hand_over::{self, Predecessor, TakeError};
use super::health::Checks;
use super::http::{self, Access};
use super::links::{self, Interfaces, Links};
use super::question::{Answering, Reload};
use super::state::{self, Dumps, Lock};
use super::{Greet, Task, Tasks};
use crate::config::{Config, ConfigError, PlaneKind};
use crate::engine::{Engine, Frame, Neighbour, Options, Reason, Verdict, announcement};
use crate::neighbours;
use crate::plane::{PacketPlane, Plane, PlaneError, TunPlane, Wanted, XdpPlane};
use outboard_flow::Secret;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// Frames handled at a time.
const BATCH: usize = 64;
/// Batches after which tasks and time get their turn even if frames keep coming.
const BATCHES_A_TURN: usize = 16;
/// Time of the engine's clock at the start: connections that are taken over were used before it.
const BEGIN_MS: u64 = 1 << 40;
const TICK: Duration = Duration::from_millis(100);
/// Pause after which frames that a device has not taken yet are offered again.
const UNSENT_PAUSE: Duration = Duration::from_millis(1);
/// Lengths of a token for control.
const TOKEN_BYTES_MIN: usize = 16;
const TOKEN_BYTES_MAX: usize = 4096;
const DISCARD_PORT: u16 = 9;
const WANTED: &str = "telling which frames are wanted";
/// Interval at which the kernel's neighbours are read.
const NEIGHBOURS_EVERY: Duration = Duration::from_secs(1);
/// Interval, and time, for one that was asked for a moment ago.
const NEIGHBOURS_SOON: Duration = Duration::from_millis(100);
const NEIGHBOURS_SOON_FOR: Duration = Duration::from_secs(2);
/// Shortest time between two warnings that clients are not served for want of room.
const WARNED_EVERY: Duration = Duration::from_secs(60);

/// Why a balancer does not run, or ended.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Plane(#[from] PlaneError),
    #[error("taking over: {0}")]
    Take(#[from] TakeError),
    #[error(transparent)]
    Memory(#[from] outboard_flow::OutOfMemory),
    #[error("no random numbers for the tables' secrets")]
    Random,
    #[error("control_token: {0}")]
    Token(String),
    #[error("{what}: {source}")]
    Io { what: String, source: io::Error },
    #[error("{}: {source}", path.display())]
    State {
        path: PathBuf,
        source: crate::engine::RestoreError,
    },
}

fn failed(what: impl Into<String>) -> impl FnOnce(io::Error) -> RunError {
    let what = what.into();
    move |source| RunError::Io { what, source }
}

/// How a balancer begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// With the connections of the state file.
    Anew,
    /// With all that the running one hands over, which ends then.
    TakeOver,
}

/// Abilities that a balancer gets from its program.
#[derive(Clone, Copy)]
pub struct Means {
    pub greet: Greet,
    /// Reads the secret of a file that only its owner can read; an error says why it does not.
    pub secret: fn(&Path) -> Result<String, String>,
}

/// The socket for commands, whose path is removed at the end.
struct Socket {
    path: PathBuf,
    /// The path is this process's, not its predecessor's or successor's.
    is_own: bool,
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.is_own {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Runs the balancer of a configuration file until SIGINT or SIGTERM, or until another process
/// takes over. `is_ready` is called once it passes frames.
pub fn run(
    path: &Path,
    api: &Path,
    start: Start,
    means: Means,
    is_ready: impl FnOnce(&[String]),
) -> Result<(), RunError> {
    let config = Config::read(path)?;
    let api = config.api.clone().unwrap_or_else(|| api.to_path_buf());
    let control = token(means, &config)?;
    let mut engine = new_engine(&config)?;
    let (wake_in, wake) = pipe()?;
    let (sender, tasks_in) = channel();
    let tasks = Tasks {
        sender,
        wake: Arc::clone(&wake),
    };
    let stop = Arc::new(AtomicBool::new(false));
    let is_starting = Arc::new(AtomicBool::new(true));
    let hup = signals(&stop, &wake, &is_starting).map_err(failed("signals"))?;
    let begun = begin(&config, &api, start, &mut engine)?;
    let (plane, mut socket) = (begun.plane, begun.socket);
    let listeners = listen(&config, control, begun.listeners)?;
    let (takers, takers_in) = channel();
    let mut passing = Passing {
        links: Links::of(plane.as_ref()).map_err(failed("a socket"))?,
        dumps: config.dumped().map(|(path, every)| Dumps::new(path, every)),
        plane,
        lock: begun.lock,
        listeners: again(&listeners).map_err(failed("a listener"))?,
        spin: config.plane.spin(),
        engine,
        tasks: tasks_in,
        takers: takers_in,
        wake: wake_in,
        started: Instant::now(),
        wanted: Wanted::default(),
        local: Vec::new(),
        looked: Instant::now(),
        warned: None,
    };
    let checks = Arc::new(Mutex::new(Checks::default()));
    let answering = Answering {
        interfaces: passing.links.interfaces(),
        reload: reloader(path, &config, means.greet, &tasks, &checks),
        tasks,
    };
    let doors = Doors {
        answering: answering.clone(),
        plane: config.plane.clone(),
        takers,
    };
    let turn = Turn::default();
    answer(doors, begun.listener, listeners, &turn)?;
    follow(&config, passing.links.interfaces(), &answering.tasks, &turn)?;
    passing.look_at_host();
    passing.begin(begun.before, &mut socket, &is_starting)?;
    turn.begin();
    lock(&checks).replace(&config.checks, means.greet, &answering.tasks);
    is_ready(&passing.plane.interfaces());
    let ended = passing.pass(&stop, &hup, &answering.reload);
    passing.dumps.iter_mut().for_each(Dumps::finish);
    if matches!(ended, Ok(End::HandedOver)) {
        socket.is_own = false;
        return Ok(());
    }
    // Until this is written the socket is there, so that the next one does not begin with less.
    keep(&config, &passing.engine)?;
    ended.map(drop).map_err(failed(passing.name()))
}

/// Finds what [`run`] would refuse beside the configuration's text: the token for control, and the
/// folder of the state file.
pub fn check(config: &Config, means: Means) -> Result<(), RunError> {
    token(means, config)?;
    let Some(state) = &config.state else {
        return Ok(());
    };
    let failed = || failed(state.display().to_string());
    let whole = std::path::absolute(state).map_err(failed())?;
    let is_folder = |about: std::fs::Metadata| match about.is_dir() {
        true => Ok(()),
        false => Err(io::ErrorKind::NotADirectory.into()),
    };
    let folder = whole.parent().unwrap_or(Path::new("/"));
    let about = std::fs::metadata(folder).and_then(is_folder);
    about.map_err(failed())?;
    match std::fs::metadata(&whole) {
        Ok(about) if !about.is_file() => Err(failed()(io::Error::new(
            io::ErrorKind::InvalidInput,
            "this is no file",
        ))),
        _ => Ok(()),
    }
}

/// Lets threads begin once this process is the balancer, and its predecessor is not.
#[derive(Clone, Default)]
struct Turn(Arc<OnceLock<()>>);

impl Turn {
    fn begin(&self) {
        // It begins once.
        let _ = self.0.set(());
    }

    /// Starts a thread that works from then on.
    fn spawn(&self, name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), RunError> {
        let has_begun = Arc::clone(&self.0);
        let thread = std::thread::Builder::new()
            .name(name.into())
            .spawn(move || {
                has_begun.wait();
                work();
            });
        thread.map(drop).map_err(failed("a thread"))
    }
}

/// Listens for requests over HTTP. An address that the predecessor has goes on with its listener.
fn listen(
    config: &Config,
    control: Option<(SocketAddr, Access)>,
    mut handed: Vec<TcpListener>,
) -> Result<Vec<(TcpListener, Access)>, RunError> {
    let metrics = config.metrics.map(|address| (address, Access::Open));
    let addresses = metrics.into_iter().chain(control);
    let listener = |(address, access): (SocketAddr, Access)| {
        let is_there = |one: &TcpListener| one.local_addr().is_ok_and(|own| own == address);
        let listener = match handed.iter().position(is_there) {
            Some(place) => Ok(handed.swap_remove(place)),
            None => TcpListener::bind(address),
        };
        Ok((listener.map_err(failed(address.to_string()))?, access))
    };
    addresses.map(listener).collect()
}

fn again(listeners: &[(TcpListener, Access)]) -> io::Result<Vec<TcpListener>> {
    listeners.iter().map(|(one, _)| one.try_clone()).collect()
}

/// Answers commands at the socket, and requests over HTTP.
fn answer(
    doors: Doors,
    socket: UnixListener,
    listeners: Vec<(TcpListener, Access)>,
    turn: &Turn,
) -> Result<(), RunError> {
    for (listener, access) in listeners {
        let answering = doors.answering.clone();
        turn.spawn("http", move || http::serve(&listener, &access, &answering))?;
    }
    turn.spawn("api", move || api::serve(&socket, doors))
}

/// Returns the address for control, with the token that is needed there.
fn token(means: Means, config: &Config) -> Result<Option<(SocketAddr, Access)>, RunError> {
    let Some((address, file)) = &config.control else {
        return Ok(None);
    };
    let token = (means.secret)(file).map_err(RunError::Token)?;
    let token = token.trim();
    if !(TOKEN_BYTES_MIN..=TOKEN_BYTES_MAX).contains(&token.len()) {
        let what = format!(
            "{}: {} bytes, where {TOKEN_BYTES_MIN} to {TOKEN_BYTES_MAX} are needed",
            file.display(),
            token.len()
        );
        return Err(RunError::Token(what));
    }
    Ok(Some((*address, Access::token(token))))
}

/// Everything that a balancer begins with, beside its engine.
struct Begun {
    plane: Box<dyn Plane>,
    socket: Socket,
    listener: UnixListener,
    /// Listeners of the balancer before, for requests over HTTP.
    listeners: Vec<TcpListener>,
    lock: Option<Lock>,
    /// The balancer before, which goes on unless it is dismissed, and the socket beside its own.
    before: Option<(Predecessor, Beside)>,
}

/// Opens the data plane, and takes the connections of the balancer before: from its state file, or
/// from itself. The socket for commands comes first: a running balancer has it.
fn begin(
    config: &Config,
    api: &Path,
    start: Start,
    engine: &mut Engine,
) -> Result<Begun, RunError> {
    let state = config.state.as_deref();
    let lock = |handed| {
        let lock = state
            .map(|state| Lock::or_of(handed, state).map_err(failed(state.display().to_string())));
        lock.transpose()
    };
    let at_socket = || failed(api.display().to_string());
    let mut socket = Socket {
        path: api.to_path_buf(),
        is_own: false,
    };
    if start == Start::TakeOver {
        let taken = hand_over::take(api, config, engine)?;
        let lock = lock(taken.lock)?;
        let (listener, beside) = api::listen_beside(api).map_err(at_socket())?;
        return Ok(Begun {
            plane: taken.plane,
            socket,
            listener,
            listeners: taken.listeners,
            lock,
            before: Some((taken.predecessor, beside)),
        });
    }
    let listener = api::listen(api).map_err(at_socket())?;
    socket.is_own = true;
    let lock = lock(None)?;
    let plane = open_plane(config)?;
    engine.set_ports(plane.ports());
    restore(config, engine)?;
    Ok(Begun {
        plane,
        socket,
        listener,
        listeners: Vec::new(),
        lock,
        before: None,
    })
}

fn pipe() -> Result<(OwnedFd, Arc<OwnedFd>), RunError> {
    let flags = rustix::pipe::PipeFlags::NONBLOCK | rustix::pipe::PipeFlags::CLOEXEC;
    let (read, write) =
        rustix::pipe::pipe_with(flags).map_err(|error| failed("a pipe")(error.into()))?;
    Ok((read, Arc::new(write)))
}

/// Starts the thread that follows the kernel's neighbours.
fn follow(
    config: &Config,
    interfaces: Interfaces,
    tasks: &Tasks,
    turn: &Turn,
) -> Result<(), RunError> {
    if !config.is_tun() {
        let (via, tasks) = (config.via.clone(), tasks.clone());
        turn.spawn("neighbours", move || {
            follow_neighbours(&tasks, &interfaces, &via)
        })?;
    }
    Ok(())
}

/// Writes the connections for the next balancer.
fn keep(config: &Config, engine: &Engine) -> Result<(), RunError> {
    let Some(path) = &config.state else {
        return Ok(());
    };
    state::write(path, &engine.dump()).map_err(failed(path.display().to_string()))?;
    info!(connections = engine.sizes().0, "kept for the next balancer");
    Ok(())
}

fn open_plane(config: &Config) -> Result<Box<dyn Plane>, RunError> {
    let interfaces = &config.plane.interfaces;
    if config.is_tun() {
        let name = interfaces.first().map_or("balance0", String::as_str);
        return Ok(Box::new(TunPlane::open(name)?));
    }
    if config.plane.kind == PlaneKind::Xdp {
        return Ok(Box::new(XdpPlane::open(interfaces)?));
    }
    Ok(Box::new(PacketPlane::open(interfaces)?))
}

fn new_engine(config: &Config) -> Result<Engine, RunError> {
    let secret = || Secret::random().map_err(|_| RunError::Random);
    let options = Options {
        connections_max: config.limits.connections,
        half_open_max: config.limits.half_open,
        fragments_max: config.limits.fragments,
        hash_seed: config.hash_seed,
        secrets: [secret()?, secret()?, secret()?, secret()?],
    };
    let mut engine = Engine::new(options, Vec::new(), BEGIN_MS)?;
    engine.reload(&config.services, config.timeouts.clone());
    Ok(engine)
}

/// Takes over the connections of the balancer before. A file that is no dump is an error: to go on
/// without would end them all in silence.
fn restore(config: &Config, engine: &mut Engine) -> Result<(), RunError> {
    let Some(path) = &config.state else {
        return Ok(());
    };
    let connections_max = config.limits.connections + config.limits.half_open;
    let dump = state::read(path, connections_max).map_err(failed(path.display().to_string()))?;
    let Some(dump) = dump else {
        return Ok(());
    };
    let (restored, left_out) = engine.restore(&dump).map_err(|source| RunError::State {
        path: path.clone(),
        source,
    })?;
    info!(restored, left_out, "connections of the balancer before");
    Ok(())
}

/// Has signals stop or reload: both wake the loop. Those that stop end the process at once while it
/// is starting, when it has nothing to keep yet.
fn signals(
    stop: &Arc<AtomicBool>,
    wake: &Arc<OwnedFd>,
    is_starting: &Arc<AtomicBool>,
) -> io::Result<Arc<AtomicBool>> {
    let hup = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_default(signal, Arc::clone(is_starting))?;
    }
    for (signal, flag) in [(SIGINT, stop), (SIGTERM, stop), (SIGHUP, &hup)] {
        signal_hook::flag::register(signal, Arc::clone(flag))?;
        signal_hook::low_level::pipe::register(signal, wake.try_clone()?)?;
    }
    Ok(hup)
}

fn lock(checks: &Mutex<Checks>) -> MutexGuard<'_, Checks> {
    checks.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes the function that reads the configuration again, and replaces the checks.
fn reloader(
    path: &Path,
    config: &Config,
    greet: Greet,
    tasks: &Tasks,
    checks: &Arc<Mutex<Checks>>,
) -> Reload {
    let checks = Arc::clone(checks);
    let (path, tasks, first) = (path.to_path_buf(), tasks.clone(), config.clone());
    Arc::new(move || {
        let new = Config::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let changed = [
            ("plane", new.plane != first.plane),
            ("limits", new.limits != first.limits),
            ("api", new.api != first.api),
            ("metrics", new.metrics != first.metrics),
            ("control", new.control != first.control),
            ("state", new.state != first.state),
            ("dump_seconds", new.dump_every != first.dump_every),
            ("hash_seed", new.hash_seed != first.hash_seed),
            ("via", new.via != first.via),
        ];
        let changed: Vec<_> = changed
            .iter()
            .filter(|one| one.1)
            .map(|one| one.0)
            .collect();
        if !changed.is_empty() {
            let names = changed.join(", ");
            return Err(format!("{names}: changed, for which a restart is needed"));
        }
        let (services, timeouts) = (new.services.clone(), new.timeouts.clone());
        let reloaded = tasks.ask(move |engine| engine.reload(&services, timeouts));
        reloaded.map_err(|error| error.to_string())?;
        lock(&checks).replace(&new.checks, greet, &tasks);
        info!(
            services = new.services.len(),
            "the configuration is read again"
        );
        Ok(())
    })
}

/// Tells the engine the hardware addresses of backends, as the kernel learns them.
fn follow_neighbours(tasks: &Tasks, interfaces: &Interfaces, via: &[(IpAddr, IpAddr)]) {
    let (mut has_warned, mut missing) = (false, HashMap::new());
    loop {
        match neighbours::read() {
            Err(error) if !std::mem::replace(&mut has_warned, true) => {
                warn!(%error, "the kernel's neighbours cannot be read");
            }
            Err(_) => {}
            Ok(found) => {
                let now = tell_neighbours(tasks, interfaces, via, &found);
                missing.retain(|one, _| now.contains(one));
                for one in now {
                    missing.entry(one).or_insert_with(Instant::now);
                }
            }
        }
        let is_soon = |asked: &Instant| asked.elapsed() < NEIGHBOURS_SOON_FOR;
        std::thread::sleep(match missing.values().any(is_soon) {
            true => NEIGHBOURS_SOON,
            false => NEIGHBOURS_EVERY,
        });
    }
}

/// Tells the engine what is new about its backends' neighbours, and returns those that are not
/// known and were asked for.
fn tell_neighbours(
    tasks: &Tasks,
    interfaces: &Interfaces,
    via: &[(IpAddr, IpAddr)],
    found: &HashMap<IpAddr, (u32, [u8; 6])>,
) -> HashSet<IpAddr> {
    let mut missing = HashSet::new();
    let asked = tasks.ask(|engine| {
        let backends = engine.backends().map(|one| (one.address.ip(), one.link));
        backends.collect::<Vec<_>>()
    });
    let news = asked
        .unwrap_or_default()
        .into_iter()
        .filter_map(|(address, known)| {
            let next = via
                .iter()
                .find(|one| one.0 == address)
                .map_or(address, |one| one.1);
            let Some((index, mac)) = found.get(&next) else {
                if missing.insert(next) {
                    ask_for(next);
                }
                return None;
            };
            let port = interfaces.port_of(*index)? as u16;
            let link = Neighbour { port, mac: *mac };
            (known != Some(link)).then_some((address, link))
        });
    let news: Vec<_> = news.collect();
    if !news.is_empty() {
        tasks.tell(move |engine| {
            news.iter()
                .for_each(|(address, link)| engine.set_neighbour(*address, *link));
        });
    }
    missing
}

/// Has the kernel ask for a neighbour's hardware address, by an empty datagram to the port that
/// discards them. Health checks do so, too, where there are any.
fn ask_for(neighbour: IpAddr) {
    let own: IpAddr = match neighbour {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // If it cannot be sent now, the next turn tries again.
    let _ = UdpSocket::bind((own, 0)).and_then(|one| one.send_to(&[], (neighbour, DISCARD_PORT)));
}

/// Why the loop has ended.
enum End {
    Stopped,
    HandedOver,
}

/// The loop that passes frames.
struct Passing {
    plane: Box<dyn Plane>,
    links: Links,
    dumps: Option<Dumps>,
    lock: Option<Lock>,
    /// Listeners for requests over HTTP.
    listeners: Vec<TcpListener>,
    engine: Engine,
    tasks: Receiver<Task>,
    /// Processes that take over.
    takers: Receiver<UnixStream>,
    wake: OwnedFd,
    started: Instant,
    /// Time without frames after which it sleeps.
    spin: Duration,
    /// Frames that the plane was told to give.
    wanted: Wanted,
    /// This machine's addresses, and when they were last read.
    local: Vec<IpAddr>,
    looked: Instant,
    /// When it was last said that clients are not served for want of room.
    warned: Option<Instant>,
}

impl Passing {
    fn name(&self) -> String {
        let interfaces = self.plane.interfaces();
        format!("passing frames on {}", interfaces.join(", "))
    }

    fn now_ms(&self) -> u64 {
        BEGIN_MS + self.started.elapsed().as_millis() as u64
    }

    fn wanted_now(&self) -> Wanted {
        let mut backends: Vec<_> = self.engine.answering().collect();
        backends.sort_unstable();
        backends.dedup();
        let mut own: Vec<_> = self.engine.own_addresses().collect();
        own.sort_unstable();
        Wanted {
            own,
            // They matter beside backends alone, which answer health checks, too.
            local: if backends.is_empty() {
                Vec::new()
            } else {
                self.local.clone()
            },
            backends,
        }
    }

    /// Tells the plane which frames are wanted, if that has changed.
    fn follow_wanted(&mut self) -> io::Result<()> {
        let wanted = self.wanted_now();
        if wanted != self.wanted {
            self.plane.set_wanted(&wanted)?;
            self.wanted = wanted;
        }
        Ok(())
    }

    /// Reads this machine's addresses, and tells the engine how long packets may be at each port
    /// and the plane which frames are wanted.
    fn look_around(&mut self) -> io::Result<()> {
        self.look_at_host();
        self.follow_wanted()
    }

    fn look_at_host(&mut self) {
        self.looked = Instant::now();
        if let Ok(mut local) = neighbours::own_addresses() {
            local.sort_unstable();
            self.local = local;
        }
        for port in 0..self.plane.ports().len() {
            let index = self.plane.index(port);
            if let Some(Ok(mtu)) = index.map(neighbours::mtu) {
                self.engine.set_mtu(port, mtu);
            }
        }
    }

    /// Becomes the balancer: everything that can fail has been set up.
    fn begin(
        &mut self,
        before: Option<(Predecessor, Beside)>,
        socket: &mut Socket,
        is_starting: &AtomicBool,
    ) -> Result<(), RunError> {
        let Some((predecessor, beside)) = before else {
            is_starting.store(false, Ordering::Relaxed);
            self.follow_wanted().map_err(failed(WANTED))?;
            self.announce();
            return Ok(());
        };
        self.replace(predecessor, is_starting)?;
        socket.is_own = true;
        // The running balancer has ended: without commands is better than without frames.
        if let Err(error) = beside.replace(&socket.path) {
            warn!(%error, "commands do not reach this balancer");
        }
        Ok(())
    }

    /// Dismisses the balancer before. Until it has gone it gets all frames that it wants: what this
    /// one wants is added first, and what nobody wants is taken away afterwards.
    fn replace(
        &mut self,
        predecessor: Predecessor,
        is_starting: &AtomicBool,
    ) -> Result<(), RunError> {
        let before = self.plane.wanted();
        let both = before.clone().and(&self.wanted_now());
        let added = self.plane.set_wanted(&both).map_err(failed(WANTED));
        is_starting.store(false, Ordering::Relaxed);
        let dismissed = added.and_then(|()| Ok(predecessor.dismiss().map_err(TakeError::from)?));
        if dismissed.is_err() {
            // The error that is told is the first one.
            let _ = self.plane.set_wanted(&before);
            return dismissed;
        }
        self.wanted = both;
        if let Err(error) = self.follow_wanted() {
            warn!(%error, "frames come that are not for this balancer");
        }
        Ok(())
    }

    /// Tells all neighbours that the services' addresses are here.
    fn announce(&mut self) {
        let own: Vec<_> = self.engine.own_addresses().collect();
        for (number, port) in self.plane.ports().iter().enumerate() {
            let Some(mac) = port.mac else { continue };
            for address in &own {
                let frame = Frame {
                    bytes: announcement(*address, mac),
                    port: number as u16,
                    ..Frame::default()
                };
                if let Err(error) = self.plane.send(usize::MAX, &frame, number as u16) {
                    warn!(%error, %address, "not announced");
                }
            }
        }
    }

    fn pass(&mut self, stop: &AtomicBool, hup: &AtomicBool, reload: &Reload) -> io::Result<End> {
        let (mut frames, mut verdicts) = (Vec::new(), Vec::new());
        let (mut all_sent, mut has_changed) = (true, false);
        let mut busy_until = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            if Instant::now() >= busy_until {
                self.wait(if all_sent { TICK } else { UNSENT_PAUSE })?;
            }
            while let Ok(task) = self.tasks.try_recv() {
                task(&mut self.engine);
                has_changed = true;
            }
            if std::mem::take(&mut has_changed) {
                if self.looked.elapsed() >= NEIGHBOURS_EVERY {
                    self.look_around()?;
                } else {
                    self.follow_wanted()?;
                }
            }
            if self.hand_over() {
                return Ok(End::HandedOver);
            }
            if hup.swap(false, Ordering::Relaxed) {
                let reload = Arc::clone(reload);
                // It asks this loop, so it needs a thread of its own.
                let reload = move || {
                    if let Err(why) = reload() {
                        warn!(why, "the configuration stays as it was");
                    }
                };
                std::thread::Builder::new()
                    .name("reload".into())
                    .spawn(reload)?;
            }
            for _ in 0..BATCHES_A_TURN {
                if self.pass_batch(&mut frames, &mut verdicts)? == 0 {
                    break;
                }
                busy_until = Instant::now() + self.spin;
            }
            all_sent = self.plane.flush();
            self.engine.tick(self.now_ms());
            self.warn_exhausted();
            if self.links.look(self.plane.as_mut())? {
                self.engine.set_ports(self.plane.ports());
                self.look_around()?;
                self.announce();
            }
            if let Some(dumps) = &mut self.dumps {
                dumps.dump(&self.engine);
            }
        }
        Ok(End::Stopped)
    }

    /// Says that clients are not served for want of room, now and then.
    fn warn_exhausted(&mut self) {
        if self.warned.is_some_and(|at| at.elapsed() < WARNED_EVERY) {
            return;
        }
        for reason in self.engine.exhausted() {
            let dropped = self.engine.counts().drops.of(reason);
            let remedy = match reason {
                Reason::PortsExhausted => "more sources, or source_ports, are needed",
                _ => "more connections are needed in [limits]",
            };
            warn!(dropped, remedy, "new clients are refused: {reason}");
            self.warned = Some(Instant::now());
        }
    }

    /// Hands everything over if another process asks for it. Returns whether it has it.
    fn hand_over(&mut self) -> bool {
        // The next process may dump at once, and two dumps would spoil each other.
        if self.dumps.as_ref().is_some_and(Dumps::is_writing) {
            return false;
        }
        let Ok(stream) = self.takers.try_recv() else {
            return false;
        };
        let begin = Instant::now();
        let (lock, listeners) = (self.lock.as_ref(), &self.listeners);
        match hand_over::give(&stream, &self.engine, self.plane.as_mut(), lock, listeners) {
            Ok(()) => {
                let took = begin.elapsed();
                info!(?took, connections = self.engine.sizes().0, "handed over");
                true
            }
            Err(error) => {
                warn!(%error, "not handed over: this balancer goes on");
                false
            }
        }
    }

    /// Waits for frames, tasks, a signal or the next tick.
    fn wait(&mut self, longest: Duration) -> io::Result<()> {
        let wake = self.wake.as_fd();
        let mut fds: Vec<_> = self
            .plane
            .descriptors()
            .into_iter()
            .chain([wake])
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        let tick = Timespec::try_from(longest).ok();
        match poll(&mut fds, tick.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if fds.iter().any(|fd| fd.revents().contains(PollFlags::ERR)) {
            drop(fds);
            match self.plane.take_error() {
                Err(error) if links::is_down(&error) => {}
                taken => taken?,
            }
        }
        let mut buffer = [0; 64];
        while rustix::io::read(&self.wake, &mut buffer).is_ok_and(|count| count > 0) {}
        Ok(())
    }

    /// Passes one batch. Returns the number of its frames.
    fn pass_batch(
        &mut self,
        frames: &mut Vec<Frame>,
        verdicts: &mut Vec<Verdict>,
    ) -> io::Result<usize> {
        match self.plane.receive(frames, BATCH) {
            // An interface that is down gives no frames; the others do.
            Err(error) if links::is_down(&error) => {}
            received => received?,
        }
        if frames.is_empty() {
            return Ok(0);
        }
        let now_ms = self.now_ms();
        self.engine.process(frames, verdicts, now_ms);
        // A frame that cannot be sent is lost, as on any network.
        for _ in 0..self.plane.send_all(frames, verdicts) {
            self.engine.note_unsent();
        }
        let further: Vec<_> = self.engine.take_further().collect();
        if further.is_empty() {
            return Ok(frames.len());
        }
        for (frame, port) in further {
            if self.plane.send(usize::MAX, &frame, port).is_err() {
                self.engine.note_unsent();
            }
        }
        self.plane.flush();
        Ok(frames.len())
    }
}
