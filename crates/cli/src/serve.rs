//! `outboard serve`, and the workers that it starts.

use std::{
    collections::BTreeMap,
    env,
    ffi::OsString,
    fs,
    io::Write,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::Context;
use clap::ValueEnum as _;
use outboard_link::{Endpoint, Host, KernelTls, Listener, kernel_tls};
use outboard_pool::{LinkFacts, LinkSource, show_link};
use outboard_server::{
    Access, DeviceKind, DeviceOptions, PoolOptions, Sandbox, ServeOptions, Supervisor, run_worker,
};
use outboard_soft::{MEMORY_BYTES_MAX, Watch};
use outboard_trust::{Authorities, Certificate, Fingerprint, Identity, Store};
use outboard_wire::network::Network;
use serde::Serialize;

use crate::{
    args::{
        BoxArgs, CacheArgs, DeviceArg, KernelTlsArg, LogFormat, SandboxArg, ServeArgs, TrustArgs,
        WatchArgs, WorkerArgs,
    },
    exit::WrongSettings,
    keygen, libraries, pool, probe, token,
};

/// Duration of the measurement of a box's network.
const PROBE: Duration = Duration::from_secs(1);
/// Time for which a measurement that fails is begun anew.
const PROBE_AGAIN: Duration = Duration::from_secs(5);

/// Least device memory of a program, in bytes: devices hand it out in pieces of this size.
const MEMORY_BYTES_MIN: u64 = 2 << 20;

/// Least memory of this machine for a program, in bytes: staging for copies alone takes some of it.
const HOST_MEMORY_BYTES_MIN: u64 = 64 << 20;
/// Least default for it, in bytes: a large framework's modules take some hundred MiB.
const HOST_MEMORY_BYTES_DEFAULT_MIN: u64 = 2 << 30;

pub(crate) fn serve(args: ServeArgs, log_format: LogFormat) -> anyhow::Result<ExitCode> {
    let kind = choose_device(args.device)
        .context("--device")
        .map_err(|error| WrongSettings::of(&error))?;
    let is_check = args.config.check_config;
    let (read, set) = (args.config.read.clone(), args.config.set.clone());
    let json = args.json.clone();
    if json.json.is_some() && !is_check {
        let what = "--json: the settings alone are a result: add --check-config";
        return Err(WrongSettings::of(&anyhow::anyhow!(what)).into());
    }
    let probed = args.pool.pool_probe.clone();
    let (mut options, opened) =
        settings(args, kind, log_format).map_err(|error| WrongSettings::of(&error))?;
    if is_check {
        let settings = Settings {
            file: read,
            set,
            ..Settings::of(&options, &opened)
        };
        return json.say(&settings, || settings.text());
    }
    if let (Some(probed), Some(pool)) = (probed, &mut options.pool) {
        match measured(&probed) {
            Ok(link) => pool.link = Some(link),
            Err(error) => pool.link_fails = Some(format!("{error:#}")),
        }
    }
    let access = options.access.clone();
    let has_kernel_tls = options.kernel_tls;
    let supervisor = Supervisor::bind(options, opened)?;
    announce(&supervisor, &access);
    say_who_encrypts(&supervisor, has_kernel_tls);
    supervisor.run()?;
    Ok(ExitCode::SUCCESS)
}

/// Checks the arguments and the sockets that a service manager has opened, and makes the server's
/// settings of them.
fn settings(
    args: ServeArgs,
    kind: DeviceKind,
    log_format: LogFormat,
) -> anyhow::Result<(ServeOptions, Vec<Listener>)> {
    let opened = outboard_server::opened_sockets()?;
    let adopted = opened.into_iter().map(|(number, socket)| {
        Listener::adopt(socket).with_context(|| format!("LISTEN_FDS: descriptor {number}"))
    });
    let opened = adopted.collect::<anyhow::Result<Vec<_>>>()?;
    let own = own_proof(&args.listen, &args.trust)?;
    let opened: Vec<_> = match &own {
        Some(own) if own.is_for_all => {
            let opened = opened.into_iter();
            opened.map(|at| at.encrypted(own.pin())).collect()
        }
        _ => opened,
    };
    let options = options(args, kind, log_format, &opened, own)?;
    let places = options.listen.iter();
    let places: Vec<_> = places
        .chain(opened.iter().map(Listener::endpoint))
        .collect();
    check_places(&places, options.hand_over.as_deref(), options.metrics)?;
    if let Some(path) = &options.hand_over {
        outboard_server::check_hand_over(path).context("--hand-over")?;
    }
    if let Some(file) = &options.audit {
        outboard_server::check_audit(file)
            .with_context(|| format!("--audit: {}", file.display()))?;
    }
    outboard_server::check_parts(&options)?;
    Ok((options, opened))
}

/// Refuses addresses at which two would listen, and sockets whose folder is not there.
fn check_places(
    places: &[&Endpoint],
    hand_over: Option<&Path>,
    metrics: Option<SocketAddr>,
) -> anyhow::Result<()> {
    let mut taken = Vec::new();
    for endpoint in places {
        let place = Place::of(endpoint, "--listen")?;
        if let Some((_, other)) = taken.iter().find(|(taken, _)| *taken == place) {
            anyhow::bail!("--listen: {endpoint} and {other} are one place");
        }
        if place != Place::Any {
            taken.push((place, endpoint));
        }
    }
    if let Some(file) = hand_over {
        let endpoint = Endpoint::Shm(file.into());
        let place = Place::of(&endpoint, "--hand-over")?;
        if let Some((_, other)) = taken.iter().find(|(taken, _)| *taken == place) {
            anyhow::bail!("--hand-over and --listen {other} are one place");
        }
    }
    let metrics = metrics.filter(|at| at.port() != 0);
    let metrics = metrics.map(|at| Place::Port(at.ip().to_string(), at.port()));
    let both = taken
        .iter()
        .find(|(place, _)| Some(place) == metrics.as_ref());
    match both {
        Some((_, endpoint)) => anyhow::bail!("--metrics and --listen {endpoint} are one place"),
        None => Ok(()),
    }
}

/// The place of an address, however it is written.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    /// A socket's folder and name.
    File(PathBuf),
    /// A host and its port.
    Port(String, u16),
    /// A port that the system will choose.
    Any,
}

impl Place {
    /// Returns the place of an address that this option names.
    fn of(endpoint: &Endpoint, option: &str) -> anyhow::Result<Place> {
        match endpoint {
            Endpoint::Shm(path) => {
                let path = std::path::absolute(path)?;
                let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
                    anyhow::bail!("{option}: {endpoint} names no file");
                };
                let folder = folder.canonicalize();
                let folder = folder
                    .with_context(|| format!("{option}: {endpoint}: the folder of the socket"))?;
                Ok(Place::File(folder.join(name)))
            }
            Endpoint::Tcp { port: 0, .. }
            | Endpoint::Tls { port: 0, .. }
            | Endpoint::Rdma { port: 0, .. } => Ok(Place::Any),
            Endpoint::Tcp { host, port }
            | Endpoint::Tls { host, port, .. }
            | Endpoint::Rdma { host, port, .. } => Ok(Place::Port(
                match host {
                    Host::V4(address) => address.to_string(),
                    Host::V6(address, None) => address.to_string(),
                    Host::V6(address, Some(zone)) => format!("{address}%{zone}"),
                    Host::Name(name) => name.clone(),
                },
                *port,
            )),
            _ => Ok(Place::Any),
        }
    }
}

/// Makes the server's settings of the arguments.
fn options(
    args: ServeArgs,
    kind: DeviceKind,
    log_format: LogFormat,
    opened: &[Listener],
    own: Option<OwnProof>,
) -> anyhow::Result<ServeOptions> {
    let listen = match args.listen.is_empty() {
        true if !opened.is_empty() => Vec::new(),
        true => vec![default_endpoint()?],
        false => args.listen.clone(),
    };
    let listen = encrypted(listen, own.as_ref())?;
    let opened = opened.iter().map(Listener::endpoint);
    check_networks(
        listen.iter().chain(opened.clone()),
        &args.trust,
        own.is_some(),
    )?;
    check_device(&args, kind)?;
    anyhow::ensure!(
        args.hand_over.hand_over.is_none() || args.pool.pool.is_none(),
        "--hand-over: a server of a pool hands nothing over; drain it with outboard pool drain"
    );
    let shares = args.shares.shares();
    let mut all = listen.iter().chain(opened.clone());
    let has_rdma = all.any(|at| matches!(at, Endpoint::Rdma { .. }));
    let has_rdma = has_rdma || args.trust.net_device.is_some();
    if let Some(folder) = &args.cache.cache {
        check_cache(folder).with_context(|| format!("--cache: {}", folder.display()))?;
    }
    let cache = cache_folder(args.cache);
    let sandbox = args.trust.sandbox == SandboxArg::On;
    let kernel_tls = args.trust.kernel_tls == KernelTlsArg::Auto;
    let sandbox = sandbox.then(|| Sandbox::new(kind, has_rdma, cache.as_deref()));
    Ok(ServeOptions {
        listen,
        peer_copies: args.trust.peer_copies.clone(),
        net_device: args.trust.net_device.clone(),
        greet_ms: args.idle.greet_within.as_millis() as u64,
        query_idle_ms: args.idle.query_idle.as_millis() as u64,
        sessions_max: args.sessions_max.into(),
        spares: args.spare.into(),
        device: DeviceOptions {
            kind,
            memory_bytes: args.memory,
            threads: args.threads.map(Into::into),
            devices: args.devices.unwrap_or(1).into(),
            chosen: None,
            gpu_percent: None,
            board: outboard_soft::BOARD,
            capability: args.capability.unwrap_or_default(),
            watch: watch_of(args.watch),
        },
        access: access(args.trust, own)?,
        cache,
        sandbox,
        kernel_tls,
        host_memory_bytes: args.shares.host_memory.unwrap_or_else(host_memory_default),
        shares,
        metrics: args.seeing.metrics,
        audit: args.seeing.audit,
        hand_over: args.hand_over.hand_over,
        drain_ms: args.hand_over.drain_within.as_millis() as u64,
        pool: box_of(args.pool)?,
        until_eof: args.until_eof,
        worker_args: worker_args(log_format),
    })
}

/// Refuses options that do not fit the device, or that serve no program.
fn check_device(args: &ServeArgs, kind: DeviceKind) -> anyhow::Result<()> {
    let watch = &args.watch;
    anyhow::ensure!(
        kind == DeviceKind::Soft || watch.check.is_none() && watch.seed.is_none(),
        "--check and --seed are the soft device's: add --device soft"
    );
    anyhow::ensure!(
        kind == DeviceKind::Soft || args.capability.is_none() && args.devices.is_none(),
        "--capability and --devices are the soft device's: add --device soft"
    );
    anyhow::ensure!(
        kind != DeviceKind::Soft || args.memory.is_none_or(|n| n <= MEMORY_BYTES_MAX),
        "--memory: the soft device has at most {} GiB",
        MEMORY_BYTES_MAX >> 30
    );
    anyhow::ensure!(
        args.memory.is_none_or(|n| n >= MEMORY_BYTES_MIN),
        "--memory: no program can work with less than {} MiB",
        MEMORY_BYTES_MIN >> 20
    );
    anyhow::ensure!(
        args.shares
            .host_memory
            .is_none_or(|n| n >= HOST_MEMORY_BYTES_MIN),
        "--host-memory: no program can be served with less than {} MiB",
        HOST_MEMORY_BYTES_MIN >> 20
    );
    Ok(())
}

fn watch_of(args: WatchArgs) -> Watch {
    Watch {
        checks: args.check.unwrap_or_default(),
        fail: args.check_fail,
        seed: args.seed,
    }
}

/// Returns the settings of a box of a pool.
fn box_of(args: BoxArgs) -> anyhow::Result<Option<PoolOptions>> {
    let Some(manager) = args.pool else {
        return Ok(None);
    };
    let name = args.pool_name.unwrap_or_else(pool::host_name);
    if let Some(address) = &args.pool_address {
        let _: Endpoint = address.parse().context("--pool-address")?;
    }
    Ok(Some(PoolOptions {
        manager,
        bearer: pool::bearer(args.pool_token_file.as_deref())?,
        ca: args.pool_ca.map(std::path::absolute).transpose()?,
        state: pool::state_folder(args.pool_state, &name)?,
        name,
        address: args.pool_address,
        check: args.pool_check,
        link: args.pool_link.and_then(told),
        link_fails: None,
    }))
}

/// Returns the network of a box, as its operator says.
fn told(network: Network) -> Option<LinkFacts> {
    Some(LinkFacts {
        rtt_ns: u64::try_from(network.rtt().as_nanos()).ok()?,
        bits_per_s: network.bandwidth()?.bps(),
        source: LinkSource::Told,
    })
}

/// Measures the network of a box. A box serves without it, and gets no programs that need one.
fn measured(probed: &Endpoint) -> anyhow::Result<LinkFacts> {
    let tried = Instant::now();
    loop {
        match probe::link_to(probed, None, None, PROBE) {
            Ok(link) => {
                tracing::info!(to = %probed, "the network of this box has {}", show_link(&link));
                return Ok(link);
            }
            // The machines of a pool may start together.
            Err(_) if tried.elapsed() < PROBE_AGAIN => std::thread::sleep(PROBE),
            Err(error) => {
                tracing::warn!("--pool-probe: the network of this box is not known: {error:#}");
                return Err(error);
            }
        }
    }
}

/// The settings as --check-config shows them.
#[derive(Serialize)]
struct Settings {
    file: Option<PathBuf>,
    listen: Vec<String>,
    device: &'static str,
    sandbox: bool,
    sessions_max: usize,
    spares: usize,
    cache: Option<PathBuf>,
    certificate: Option<PathBuf>,
    metrics: Option<String>,
    shares: Vec<String>,
    hand_over: Option<PathBuf>,
    peer_copies: Vec<String>,
    net_device: Option<String>,
    audit: Option<PathBuf>,
    set: BTreeMap<String, Vec<String>>,
}

impl Settings {
    fn of(options: &ServeOptions, opened: &[Listener]) -> Settings {
        let listen = options.listen.iter();
        let listen = listen.chain(opened.iter().map(Listener::endpoint));
        let certificate = options.access.certificate.as_ref();
        let shares = options.shares.to_string();
        let peers = options.peer_copies.iter();
        Settings {
            file: None,
            set: BTreeMap::new(),
            listen: listen.map(Endpoint::to_string).collect(),
            device: options.device.kind.name(),
            sandbox: options.sandbox.is_some(),
            sessions_max: options.sessions_max,
            spares: options.spares,
            cache: options.cache.clone(),
            certificate: certificate.map(|(chain, _)| chain.clone()),
            metrics: options.metrics.map(|at| format!("http://{at}/metrics")),
            shares: shares.lines().map(String::from).collect(),
            hand_over: options.hand_over.clone(),
            peer_copies: peers.map(ToString::to_string).collect(),
            net_device: options.net_device.clone(),
            audit: options.audit.clone(),
        }
    }

    fn text(&self) -> String {
        let file = |what: &str, file: &Option<PathBuf>| {
            let file = file.as_ref();
            file.map(|file| format!("{what} {}", file.display()))
        };
        let mut lines: Vec<_> = file("settings in", &self.file).into_iter().collect();
        lines.extend(self.listen.iter().map(|at| format!("listen at {at}")));
        lines.push(format!("device {}", self.device));
        let sandbox = if self.sandbox { "on" } else { "off" };
        lines.push(format!("sandbox {sandbox}"));
        let (sessions, spares) = (self.sessions_max, self.spares);
        lines.push(format!("{sessions} sessions, {spares} spares"));
        lines.extend(file("cache in", &self.cache));
        lines.extend(file("certificate in", &self.certificate));
        lines.extend(self.metrics.iter().map(|at| format!("metrics at {at}")));
        lines.extend(self.shares.iter().cloned());
        lines.extend(file("hand-over at", &self.hand_over));
        let device = self.net_device.iter().map(|options| match &options[..] {
            "" => "the first RDMA device for endpoints of programs".into(),
            options => format!("the RDMA device {options} for endpoints of programs"),
        });
        lines.extend(device);
        let peers = self.peer_copies.iter();
        lines.extend(peers.map(|it| format!("copies straight to and from servers in {it}")));
        lines.extend(file("audit in", &self.audit));
        let set = self.set.iter();
        lines.extend(set.map(|(name, values)| format!("set: {name} = {}", values.join(", "))));
        lines.push("the settings are right\n".into());
        lines.join("\n")
    }
}

/// Logs whether the kernel encrypts connections, and if not, why.
fn say_who_encrypts(supervisor: &Supervisor, has_kernel_tls: bool) {
    let encrypted = supervisor.endpoints().any(Endpoint::is_encrypted);
    let who = match has_kernel_tls {
        _ if !encrypted => return,
        true => kernel_tls(),
        false => KernelTls::TurnedOff,
    };
    match who.remedy() {
        None => tracing::info!("{who}"),
        Some(remedy) => tracing::info!("{who} ({remedy})"),
    }
}

/// Prints the addresses, and warns of those that are open to others.
fn announce(supervisor: &Supervisor, access: &Access) {
    let has_tokens = access.tokens.is_some();
    let is_restricted = has_tokens || access.authorized.is_some() || access.client_ca.is_some();
    let mut out = std::io::stdout().lock();
    for endpoint in supervisor.endpoints() {
        // Standard output may be closed by a reader that only wanted the port.
        let _ = writeln!(out, "listening on {endpoint}");
        let is_known = is_restricted && (has_tokens || endpoint.is_encrypted());
        let is_exposed = !is_known || endpoint.has_open_data();
        if is_exposed && is_open_to_others(endpoint) {
            let who = match is_known {
                true => "whoever is between a program and this server",
                false => "whoever can connect",
            };
            tracing::warn!(
                "{endpoint} is insecure: {who} can use the GPU and run code; keep it to a network that you trust"
            );
        }
    }
    if let Some(address) = supervisor.metrics_address() {
        let _ = writeln!(out, "metrics at http://{address}/metrics");
        tracing::info!("metrics are answered at http://{address}/metrics");
        if !address.ip().is_loopback() {
            tracing::warn!("the metrics at {address} have no password");
        }
    }
    let _ = out.flush();
}

/// Returns the arguments of workers, whose log has the form of the server's.
fn worker_args(log_format: LogFormat) -> Vec<OsString> {
    let format = log_format.to_possible_value();
    let format = format
        .iter()
        .flat_map(|format| ["--log-format", format.get_name()]);
    format.chain(["worker"]).map(OsString::from).collect()
}

pub(crate) fn worker(args: WorkerArgs) -> anyhow::Result<ExitCode> {
    run_worker(args.control).context("worker")?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the default address of `serve` and `run`: this machine, this user.
pub(crate) fn default_endpoint() -> anyhow::Result<Endpoint> {
    let path = match libraries::runtime_folder() {
        Some(folder) => folder.join("outboard.sock"),
        None => libraries::private_folder()?.join("server.sock"),
    };
    let path = path
        .to_str()
        .context("XDG_RUNTIME_DIR or TMPDIR is not UTF-8")?;
    Ok(format!("shm:{path}").parse()?)
}

/// Returns a quarter of this machine's memory.
fn host_memory_default() -> u64 {
    let info = rustix::system::sysinfo();
    let total = info.totalram as u64 * u64::from(info.mem_unit);
    (total / 4).max(HOST_MEMORY_BYTES_DEFAULT_MIN)
}

pub(crate) fn choose_device(device: DeviceArg) -> anyhow::Result<DeviceKind> {
    match device {
        DeviceArg::Soft => Ok(DeviceKind::Soft),
        DeviceArg::Nvidia => {
            DeviceKind::Nvidia.check().map_err(anyhow::Error::msg)?;
            Ok(DeviceKind::Nvidia)
        }
        DeviceArg::Auto => Ok(match DeviceKind::Nvidia.check() {
            Ok(()) => DeviceKind::Nvidia,
            Err(reason) => {
                tracing::info!(reason, "no GPU can be used; serving the soft device");
                DeviceKind::Soft
            }
        }),
    }
}

/// Makes the folder that the user named, and tries to write there.
fn check_cache(folder: &Path) -> anyhow::Result<()> {
    anyhow::ensure!(folder.is_dir() || !folder.exists(), "this is not a folder");
    fs::create_dir_all(folder)?;
    tempfile::tempfile_in(folder)?;
    Ok(())
}

fn cache_folder(args: CacheArgs) -> Option<PathBuf> {
    if args.no_cache {
        return None;
    }
    let set = |name| {
        env::var_os(name)
            .filter(|v| !v.is_empty())
            .map(PathBuf::from)
    };
    args.cache.or_else(|| {
        let base = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")))?;
        Some(base.join("outboard").join("images"))
    })
}

/// Proofs of the server for encrypted connections. One of both is there.
struct OwnProof {
    /// Its key: the file, and the fingerprint.
    key: Option<(PathBuf, Fingerprint)>,
    /// Its certificate: the files of the chain and of the key, and the key's fingerprint.
    certificate: Option<(PathBuf, PathBuf, Fingerprint)>,
    /// All tcp addresses become encrypted ones.
    is_for_all: bool,
}

impl OwnProof {
    /// Returns the fingerprint of the addresses for programs; None if they check the certificate.
    fn pin(&self) -> Option<Fingerprint> {
        match (&self.certificate, &self.key) {
            (None, Some((_, pin))) => Some(*pin),
            _ => None,
        }
    }

    /// Returns whether programs that expect this key are served.
    fn has(&self, pin: Fingerprint) -> bool {
        match (&self.key, &self.certificate) {
            (Some((_, ours)), _) => *ours == pin,
            (None, Some((.., ours))) => *ours == pin,
            (None, None) => false,
        }
    }
}

/// Returns the files of the certificate that is named and of its key, and the key's fingerprint.
pub(crate) fn own_certificate(
    chain: Option<&Path>,
    key: Option<&Path>,
) -> anyhow::Result<Option<(PathBuf, PathBuf, Fingerprint)>> {
    let (Some(chain), Some(key)) = (chain, key) else {
        return Ok(None);
    };
    let (chain, key) = (std::path::absolute(chain)?, std::path::absolute(key)?);
    let read = Certificate::read(&chain, &key).context("--certificate")?;
    Ok(Some((chain, key, read.fingerprint())))
}

/// Returns the file of the key that is named, or the user's own, and its fingerprint.
pub(crate) fn own_key(named: Option<PathBuf>) -> anyhow::Result<(PathBuf, Fingerprint)> {
    let file = keygen::key_file(named)?;
    let key = Identity::read(&file).context("--tls (outboard keygen makes the key)")?;
    Ok((file, key.fingerprint()))
}

/// Returns the server's key and certificate, if it needs one.
fn own_proof(listen: &[Endpoint], trust: &TrustArgs) -> anyhow::Result<Option<OwnProof>> {
    let certificate = own_certificate(trust.certificate.as_deref(), trust.key.as_deref())?;
    let is_for_all = trust.tls || certificate.is_some();
    if !is_for_all && !listen.iter().any(Endpoint::is_encrypted) {
        anyhow::ensure!(
            trust.tls_key.is_none() && trust.authorized.is_none() && trust.client_ca.is_none(),
            "--tls-key, --authorized and --client-ca are for encrypted connections: add --tls or --certificate"
        );
        return Ok(None);
    }
    let key = match &certificate {
        // Programs that expect a key get the certificate's, unless another one is named.
        Some(_) if trust.tls_key.is_none() => None,
        _ => Some(own_key(trust.tls_key.clone())?),
    };
    Ok(Some(OwnProof {
        key,
        certificate,
        is_for_all,
    }))
}

/// Gives the addresses of encrypted connections the server's key; those of tcp and rdma become
/// such, if all are to be.
fn encrypted(listen: Vec<Endpoint>, own: Option<&OwnProof>) -> anyhow::Result<Vec<Endpoint>> {
    let Some(own) = own else {
        return Ok(listen);
    };
    let listen = listen.into_iter().map(|at| match at {
        at if own.is_for_all && !at.is_encrypted() => Ok(at.encrypted(own.pin())),
        at => match at.pin() {
            None => Ok(at.with_pin(own.pin())),
            Some(pin) => {
                anyhow::ensure!(own.has(pin), "{at}: the server's key is another");
                Ok(at)
            }
        },
    });
    listen.collect()
}

fn access(trust: TrustArgs, own: Option<OwnProof>) -> anyhow::Result<Access> {
    // A file that cannot be used is reported now.
    if let Some(file) = &trust.authorized
        && outboard_trust::authorized_count(file).context("--authorized")? == 0
    {
        tracing::warn!(
            "{} lists nobody: nobody is served over an encrypted connection until it does",
            file.display()
        );
    }
    if let Some(file) = &trust.client_ca {
        Authorities::read(file).context("--client-ca")?;
    }
    let (key, certificate) = own.map_or((None, None), |own| (own.key, own.certificate));
    let tokens = trust.tokens.map(token::server_file).transpose()?;
    if let Some(file) = &tokens {
        let store = Store::read(file).context("--tokens (outboard token create makes the file)")?;
        if store.entries().is_empty() {
            tracing::warn!(
                "{} has no token: nobody is served over a network until there is one",
                file.display()
            );
        }
    }
    Ok(Access {
        uids: trust.allow_uid,
        group: trust.socket_group,
        tokens,
        key: key.map(|(file, _)| file),
        certificate: certificate.map(|(chain, key, _)| (chain, key)),
        client_ca: trust.client_ca.map(std::path::absolute).transpose()?,
        authorized: trust.authorized.map(std::path::absolute).transpose()?,
    })
}

/// Refuses addresses that other machines reach, unless only some may come and nobody in between
/// can listen, or the user knows what that means.
fn check_networks<'a>(
    listen: impl Iterator<Item = &'a Endpoint> + Clone,
    trust: &TrustArgs,
    has_tls: bool,
) -> anyhow::Result<()> {
    anyhow::ensure!(
        !has_tls || listen.clone().any(Endpoint::is_encrypted),
        "--tls and --certificate are for tcp and rdma addresses: add --listen tcp://HOST:PORT"
    );
    if trust.insecure {
        return Ok(());
    }
    for open in listen.filter(|at| is_open_to_others(at)) {
        match open {
            at if !at.has_open_data() => anyhow::ensure!(
                trust.authorized.is_some() || trust.client_ca.is_some() || trust.tokens.is_some(),
                "{open} is reached by other machines, and everybody who connects could use the GPU and run code here: \
                 name who may, by --authorized FILE (keys), --client-ca FILE (certificates) or --tokens (tokens), or serve everybody with --insecure"
            ),
            at if at.is_encrypted() => anyhow::bail!(
                "{open} is reached by other machines, and what RDMA adapters send there is neither encrypted nor \
                 authenticated: add --insecure on a fabric where you trust everybody, or listen at a tcp address"
            ),
            Endpoint::Rdma { .. } => anyhow::bail!(
                "{open} is reached by other machines, and everybody who connects could use the GPU and run code here; what \
                 RDMA adapters send is never encrypted: on a fabric where you trust everybody add --insecure, and --tls with \
                 --authorized, --client-ca or --tokens if only some may come (docs/security.md#rdma)"
            ),
            _ => anyhow::bail!(
                "{open} is reached by other machines, and everybody who connects could use the GPU and run code here: \
                 add --tls and --authorized, --client-ca or --tokens (docs/security.md); on a network where you trust everybody \
                 --insecure; or listen on tcp://localhost, and come through a tunnel"
            ),
        }
    }
    Ok(())
}

fn is_open_to_others(endpoint: &Endpoint) -> bool {
    match endpoint {
        Endpoint::Tcp { host, .. } | Endpoint::Tls { host, .. } | Endpoint::Rdma { host, .. } => {
            match host {
                Host::V4(address) => !address.is_loopback(),
                Host::V6(address, _) => !address.is_loopback(),
                Host::Name(name) => name != "localhost",
            }
        }
        _ => false,
    }
}
