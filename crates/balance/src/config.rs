//! The configuration file, checked as a whole before any of it counts.

use crate::engine::{BackendRule, Forward, Phase, ServiceRule, TCP, Timeouts, UDP};
use serde::{Deserialize, Deserializer, Serialize, de};
use std::collections::{BTreeMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest file.
pub const FILE_BYTES_MAX: u64 = 4 << 20;
/// Longest line of a file that an error shows.
const LINE_BYTES_MAX: usize = 400;
/// Characters of what is no address that an error shows.
const ADDRESS_SHOWN_MAX: usize = 60;
pub const SERVICES_MAX: usize = 4096;
pub const BACKENDS_MAX: usize = 4096;
pub const WEIGHT_MAX: u32 = 1000;
pub const CONNECTIONS_MAX: usize = 64 << 20;
/// Longest time between dumps, and of a slow start.
pub const DUMP_SECONDS_MAX: u64 = 7 * 86_400;
pub const SLOW_START_SECONDS_MAX: u64 = 7 * 86_400;
/// Longest path of the socket for commands: a successor listens beside it, at four bytes more.
pub const API_BYTES_MAX: usize = 103;
/// Longest name of an interface.
pub const INTERFACE_BYTES_MAX: usize = 15;

/// Longer than waking a thread takes, and too short to be noticed where little comes.
const SPIN: Duration = Duration::from_micros(50);

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error(transparent)]
    Read(#[from] std::io::Error),
    #[error("{0}")]
    Syntax(String),
    #[error("service {service}: {what}")]
    Service { service: String, what: String },
    #[error("{0}")]
    Value(String),
}

/// Kind of data plane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PlaneKind {
    /// Packet sockets, since interfaces are named.
    #[default]
    Auto,
    Packet,
    Tun,
    /// AF_XDP.
    Xdp,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    plane: PlaneTable,
    #[serde(default)]
    limits: LimitsTable,
    #[serde(default)]
    timeouts: BTreeMap<String, f64>,
    /// Path of the socket for commands.
    api: Option<PathBuf>,
    /// Address for metrics over HTTP.
    #[serde(default, deserialize_with = "some_address")]
    metrics: Option<SocketAddr>,
    /// Address for commands over HTTP, for those who have the token of a file.
    #[serde(default, deserialize_with = "some_address")]
    control: Option<SocketAddr>,
    control_token: Option<PathBuf>,
    state: Option<PathBuf>,
    /// Seconds between dumps to the state file while running; 0 for none.
    #[serde(default)]
    dump_seconds: u64,
    #[serde(default)]
    hash_seed: u64,
    #[serde(default)]
    service: Vec<ServiceTable>,
}

/// Data plane as configured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlaneTable {
    #[serde(default)]
    pub kind: PlaneKind,
    #[serde(default)]
    pub interfaces: Vec<String>,
    /// Microseconds for which the balancer keeps looking for frames before it sleeps.
    pub spin_us: Option<u32>,
}

impl PlaneTable {
    /// Time without frames after which the balancer sleeps until the next.
    pub fn spin(&self) -> Duration {
        let longest = Duration::from_secs(1);
        self.spin_us
            .map_or(SPIN, |us| Duration::from_micros(us.into()).min(longest))
    }
}

/// Sizes, which are those of the start: a reload does not change them.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsTable {
    pub connections: usize,
    pub half_open: usize,
    pub fragments: usize,
}

impl Default for LimitsTable {
    fn default() -> LimitsTable {
        LimitsTable {
            connections: 1 << 20,
            half_open: 1 << 16,
            fragments: 4096,
        }
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ServiceTable {
    name: String,
    #[serde(deserialize_with = "address")]
    address: SocketAddr,
    #[serde(default = "tcp")]
    protocol: String,
    forward: Forward,
    #[serde(default)]
    affinity: bool,
    #[serde(default)]
    adopt: bool,
    #[serde(default)]
    sources: Vec<IpAddr>,
    #[serde(default = "source_ports")]
    source_ports: (u16, u16),
    #[serde(default)]
    backend: Vec<BackendTable>,
    check: Option<CheckTable>,
}

/// Reads an address and says how one is written, which the error of a parser does not.
fn address<'de, D: Deserializer<'de>>(from: D) -> Result<SocketAddr, D::Error> {
    let text = String::deserialize(from)?;
    text.parse()
        .map_err(|_| de::Error::custom(no_address(&text)))
}

fn some_address<'de, D: Deserializer<'de>>(from: D) -> Result<Option<SocketAddr>, D::Error> {
    address(from).map(Some)
}

fn no_address(text: &str) -> String {
    let text: String = text.chars().take(ADDRESS_SHOWN_MAX).collect();
    format!(
        "{text:?} is no IP address with a port, as \"192.0.2.10:80\" and \"[2001:db8::1]:80\" are"
    )
}

fn tcp() -> String {
    "tcp".into()
}

fn source_ports() -> (u16, u16) {
    (1024, 65_535)
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct BackendTable {
    #[serde(deserialize_with = "address")]
    address: SocketAddr,
    #[serde(default = "one")]
    weight: u32,
    #[serde(default)]
    drain: bool,
    /// Neighbour through whom packets go there, if the backend is on no link of ours.
    via: Option<IpAddr>,
    /// Address for the health check, if it is another one.
    check: Option<String>,
}

fn one() -> u32 {
    1
}

/// Kind of a health check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CheckKind {
    /// A connection can be made.
    Tcp,
    /// A GET request is answered with a status from 200 to 399.
    Http,
    /// `outboard serve` answers a greeting, for which it opens no device.
    Outboard,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "a table: check = { kind = \"tcp\" }, or \"http\" or \"outboard\""
)]
struct CheckTable {
    kind: CheckKind,
    #[serde(default = "interval")]
    interval_ms: u64,
    #[serde(default = "interval")]
    timeout_ms: u64,
    #[serde(default = "rise")]
    rise: u32,
    #[serde(default = "fall")]
    fall: u32,
    #[serde(default)]
    slow_start_s: u64,
    #[serde(default = "path")]
    path: String,
}

fn interval() -> u64 {
    2000
}

fn rise() -> u32 {
    2
}

fn fall() -> u32 {
    3
}

fn path() -> String {
    "/".into()
}

/// Health check of a service's backends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    pub kind: CheckKind,
    pub interval: Duration,
    pub timeout: Duration,
    /// Successes in a row after which a backend is up, and failures after which it is down.
    pub rise: u32,
    pub fall: u32,
    pub slow_start: Duration,
    pub path: String,
}

/// One backend to be checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// Name of the service.
    pub name: String,
    pub service: (SocketAddr, u8),
    pub backend: SocketAddr,
    /// Address, or for Outboard's handshake a URL, that is asked.
    pub asked: String,
    pub check: Check,
}

/// A whole configuration.
#[derive(Clone, Debug)]
pub struct Config {
    pub plane: PlaneTable,
    pub limits: LimitsTable,
    pub timeouts: Timeouts,
    pub api: Option<PathBuf>,
    pub metrics: Option<SocketAddr>,
    /// Address for commands over HTTP, and the file of its token.
    pub control: Option<(SocketAddr, PathBuf)>,
    pub state: Option<PathBuf>,
    pub dump_every: Option<Duration>,
    pub hash_seed: u64,
    pub services: Vec<ServiceRule>,
    pub checks: Vec<Checked>,
    /// Neighbours through whom backends are reached.
    pub via: Vec<(IpAddr, IpAddr)>,
}

impl Config {
    /// Reads and checks a file.
    pub fn read(path: &Path) -> Result<Config, ConfigError> {
        Config::parse(&outboard_files::read_text(path, FILE_BYTES_MAX)?)
    }

    /// Checks the text of a file.
    pub fn parse(text: &str) -> Result<Config, ConfigError> {
        let file: File = toml::from_str(text).map_err(|error| syntax(&error))?;
        let wrong = |what: &str| Err(ConfigError::Value(what.to_string()));
        let limits = &file.limits;
        if !(1..=CONNECTIONS_MAX).contains(&limits.connections)
            || !(1..=CONNECTIONS_MAX).contains(&limits.half_open)
            || !(1..=1 << 20).contains(&limits.fragments)
        {
            return wrong(
                "limits: each is at least 1; connections and half_open at most 67,108,864, \
                          fragments at most 1,048,576",
            );
        }
        check_plane(&file.plane).map_err(ConfigError::Value)?;
        check_files(&file).map_err(ConfigError::Value)?;
        if file.dump_seconds > DUMP_SECONDS_MAX {
            return wrong("dump_seconds: 604,800 at most, which is a week");
        }
        if file.control.is_some() != file.control_token.is_some() {
            return wrong(
                "control and control_token need each other: whoever has the token of that file \
                 can drain and reload",
            );
        }
        if file.control.is_some() && file.control == file.metrics {
            return wrong("control and metrics need different addresses");
        }
        let mut config = Config {
            timeouts: timeouts(&file.timeouts)?,
            plane: file.plane,
            limits: file.limits,
            api: file.api,
            metrics: file.metrics,
            control: file.control.zip(file.control_token),
            state: file.state,
            dump_every: (file.dump_seconds > 0).then(|| Duration::from_secs(file.dump_seconds)),
            hash_seed: file.hash_seed,
            services: Vec::new(),
            checks: Vec::new(),
            via: Vec::new(),
        };
        if config.dump_every.is_some() && config.state.is_none() {
            return wrong("dump_seconds needs a state file");
        }
        if file.service.len() > SERVICES_MAX {
            return wrong("at most 4096 services");
        }
        for service in file.service {
            config.add(service)?;
        }
        config.check_addresses()?;
        Ok(config)
    }

    /// Returns whether frames begin with the IP header.
    pub fn is_tun(&self) -> bool {
        match self.plane.kind {
            PlaneKind::Auto | PlaneKind::Packet | PlaneKind::Xdp => false,
            PlaneKind::Tun => true,
        }
    }

    /// Returns the state file and the interval of dumps to it, if there are any while running.
    pub fn dumped(&self) -> Option<(&Path, Duration)> {
        self.state.as_deref().zip(self.dump_every)
    }

    fn add(&mut self, table: ServiceTable) -> Result<(), ConfigError> {
        let name = table.name.clone();
        let wrong = |what: String| ConfigError::Service {
            service: name.clone(),
            what,
        };
        let protocol = match table.protocol.as_str() {
            "tcp" => TCP,
            "udp" => UDP,
            other => {
                return Err(wrong(format!(
                    "protocol {other:?} is neither \"tcp\" nor \"udp\""
                )));
            }
        };
        check_service(&table, self.is_tun()).map_err(&wrong)?;
        for backend in &table.backend {
            self.via
                .extend(backend.via.map(|via| (backend.address.ip(), via)));
            if let Some(check) = &table.check {
                self.checks.push(checked(&table, backend, check, protocol));
            }
        }
        let backend = |one: &BackendTable| BackendRule {
            address: one.address,
            weight: one.weight,
            drain: one.drain,
            is_checked: table.check.is_some(),
            link: None,
        };
        let rule = ServiceRule {
            backends: table.backend.iter().map(backend).collect(),
            name: table.name,
            address: table.address,
            protocol,
            forward: table.forward,
            affinity: table.affinity,
            adopt: table.adopt,
            sources: table.sources,
            source_ports: table.source_ports,
        };
        let same = |one: &ServiceRule| one.address == rule.address && one.protocol == protocol;
        if self.services.iter().any(same) {
            return Err(wrong(format!(
                "{} belongs to another service already",
                rule.address
            )));
        }
        if self.services.iter().any(|one| one.name == rule.name) {
            return Err(wrong("there are two of this name".into()));
        }
        self.services.push(rule);
        Ok(())
    }

    /// Checks addresses of services against those of all backends.
    fn check_addresses(&self) -> Result<(), ConfigError> {
        let backends = self.services.iter().flat_map(|one| &one.backends);
        let backends: HashSet<_> = backends.map(|one| one.address.ip()).collect();
        for service in &self.services {
            let own = [service.address.ip()]
                .into_iter()
                .chain(service.sources.iter().copied());
            if let Some(address) = own.into_iter().find(|one| backends.contains(one)) {
                return Err(ConfigError::Service {
                    service: service.name.clone(),
                    what: format!("its address {address} is a backend's, too"),
                });
            }
        }
        Ok(())
    }
}

/// Returns whether packets can go to an address of one host, through a network.
fn is_host(address: IpAddr) -> bool {
    let is_mapped = matches!(address, IpAddr::V6(address) if address.to_ipv4_mapped().is_some());
    !(address.is_unspecified()
        || address.is_multicast()
        || address.is_loopback()
        || address == IpAddr::V4(Ipv4Addr::BROADCAST)
        || is_mapped)
}

/// Checks the paths of the files that the balancer makes, which would spoil each other.
fn check_files(file: &File) -> Result<(), String> {
    let api = file.api.as_deref();
    if api.is_some_and(|api| !(1..=API_BYTES_MAX).contains(&api.as_os_str().len())) {
        return Err(format!(
            "api: a path of 1 to {API_BYTES_MAX} bytes is needed"
        ));
    }
    let (Some(api), Some(state)) = (api, file.state.as_deref()) else {
        return Ok(());
    };
    // Each has a lock and a new file beside it.
    let all = |path: &Path| {
        let beside = |end: &str| {
            let mut path = path.as_os_str().to_os_string();
            path.push(end);
            std::path::absolute(&path).unwrap_or(path.into())
        };
        ["", ".lock", ".new"].map(beside)
    };
    let of_state = all(state);
    if all(api).iter().any(|one| of_state.contains(one)) {
        return Err(
            "api and state need different paths, also with .lock and .new after them".into(),
        );
    }
    Ok(())
}

/// Checks kind and interfaces.
fn check_plane(plane: &PlaneTable) -> Result<(), String> {
    match (plane.kind, plane.interfaces.len()) {
        (PlaneKind::Auto, 0) => {
            return Err(
                "plane: write interfaces = [\"eth0\"] for packet sockets, with \
                        kind = \"xdp\" for AF_XDP, or kind = \"tun\" for a TUN device"
                    .into(),
            );
        }
        (PlaneKind::Packet, 0) => return Err("plane: packet sockets need interfaces".into()),
        (PlaneKind::Xdp, 0) => return Err("plane: AF_XDP needs interfaces".into()),
        (PlaneKind::Tun, 2..) => {
            return Err(
                "plane: a TUN device is one interface: interfaces is its own name, not \
                        where packets come from"
                    .into(),
            );
        }
        (_, 257..) => return Err("plane: at most 256 interfaces".into()),
        _ => {}
    }
    let mut seen = HashSet::new();
    for name in &plane.interfaces {
        let is_name = |byte: u8| byte.is_ascii_graphic() && byte != b'/';
        if !(1..=INTERFACE_BYTES_MAX).contains(&name.len()) || !name.bytes().all(is_name) {
            return Err(format!(
                "plane: {name:?} is no name of an interface, which has 1 to \
                 {INTERFACE_BYTES_MAX} characters without blanks and slashes"
            ));
        }
        if !seen.insert(name) {
            return Err(format!("plane: interface {name} is there twice"));
        }
    }
    Ok(())
}

fn checked(
    table: &ServiceTable,
    backend: &BackendTable,
    check: &CheckTable,
    protocol: u8,
) -> Checked {
    let asked = match (&backend.check, check.kind) {
        (Some(asked), _) => asked.clone(),
        (None, CheckKind::Outboard) => format!("tcp://{}", backend.address),
        (None, _) => backend.address.to_string(),
    };
    Checked {
        name: table.name.clone(),
        service: (table.address, protocol),
        backend: backend.address,
        asked,
        check: Check {
            kind: check.kind,
            interval: Duration::from_millis(check.interval_ms),
            timeout: Duration::from_millis(check.timeout_ms),
            rise: check.rise,
            fall: check.fall,
            slow_start: Duration::from_secs(check.slow_start_s),
            path: check.path.clone(),
        },
    }
}

/// Checks one service by itself.
fn check_service(table: &ServiceTable, is_tun: bool) -> Result<(), String> {
    let address = table.address;
    if address.port() == 0 || !is_host(address.ip()) {
        return Err(format!("{address} is no address and port of one host"));
    }
    if !(1..=BACKENDS_MAX).contains(&table.backend.len()) {
        return Err(format!(
            "{} backends; 1 to {BACKENDS_MAX} are needed",
            table.backend.len()
        ));
    }
    let is_v6 = address.is_ipv6();
    let mut seen = HashSet::new();
    for backend in &table.backend {
        let wrong = |what: &str| Err(format!("backend {}: {what}", backend.address));
        match () {
            () if backend.address.is_ipv6() != is_v6 => return wrong("of another version of IP"),
            () if backend.address.port() == 0 => return wrong("it has no port"),
            () if !is_host(backend.address.ip()) => return wrong("no address of one host"),
            () if backend.via.is_some_and(|via| via.is_ipv6() != is_v6) => {
                return wrong("via: of another version of IP");
            }
            () if backend
                .via
                .is_some_and(|via| !is_host(via) || via == address.ip()) =>
            {
                return wrong("via: no address of a router");
            }
            () if backend.weight > WEIGHT_MAX => return wrong("its weight is above 1000"),
            () if !seen.insert(backend.address) => return wrong("there twice"),
            () if table.forward == Forward::Direct && backend.address.port() != address.port() => {
                return wrong("direct return keeps the port, so it must be the service's");
            }
            () => {}
        }
    }
    let asked_by_address = table
        .check
        .as_ref()
        .filter(|one| one.kind != CheckKind::Outboard);
    for asked in table.backend.iter().filter_map(|one| one.check.as_ref()) {
        if asked_by_address.is_some() && asked.parse::<SocketAddr>().is_err() {
            return Err(format!("check: {}", no_address(asked)));
        }
    }
    check_sources(table)?;
    if table.forward == Forward::Direct && is_tun {
        return Err(
            "direct return needs interfaces: a TUN device has no hardware addresses".into(),
        );
    }
    match &table.check {
        Some(check)
            if check.interval_ms < 10
                || !(10..=60_000).contains(&check.timeout_ms)
                || check.slow_start_s > SLOW_START_SECONDS_MAX
                || check.rise == 0
                || check.fall == 0
                || !check.path.starts_with('/')
                || check.path.contains(char::is_whitespace) =>
        {
            Err("check: interval_ms at least 10, timeout_ms 10 to 60000, rise and fall at least 1, \
                 slow_start_s at most 604800, path from / on"
                .into())
        }
        _ => Ok(()),
    }
}

/// Checks the source addresses and ports of one service.
fn check_sources(table: &ServiceTable) -> Result<(), String> {
    let is_v6 = table.address.is_ipv6();
    let is_full = table.forward == Forward::FullNat;
    if is_full == table.sources.is_empty() {
        return Err("full-nat, and nothing else, needs sources".into());
    }
    if table.sources.iter().any(|one| one.is_ipv6() != is_v6) {
        return Err("a source of another version of IP".into());
    }
    let mut seen = HashSet::new();
    for source in &table.sources {
        if !is_host(*source) {
            return Err(format!("source {source} is no address of one host"));
        }
        if !seen.insert(source) {
            return Err(format!("source {source} is there twice"));
        }
    }
    if table.source_ports.0 == 0 || table.source_ports.0 > table.source_ports.1 {
        return Err("source_ports: the first is at least 1 and at most the last".into());
    }
    Ok(())
}

/// Says where a file is no TOML, or has keys that are unknown: with the line, unless that is long.
fn syntax(error: &toml::de::Error) -> ConfigError {
    let whole = error.to_string();
    let longest = whole.lines().map(str::len).max().unwrap_or_default();
    let text = if longest > LINE_BYTES_MAX {
        let place = whole.lines().next().unwrap_or_default();
        format!("{place}: {}", error.message())
    } else {
        whole.trim_end().to_string()
    };
    ConfigError::Syntax(text)
}

/// Reads times of phases, in seconds.
fn timeouts(table: &BTreeMap<String, f64>) -> Result<Timeouts, ConfigError> {
    let mut timeouts = Timeouts::default();
    for (name, seconds) in table {
        let phase = Phase::ALL.iter().find(|phase| phase.label() == name);
        let Some(phase) = phase else {
            let names: Vec<_> = Phase::ALL.iter().map(|phase| phase.label()).collect();
            let what = format!(
                "timeouts: unknown key {name:?}; there are {}",
                names.join(", ")
            );
            return Err(ConfigError::Value(what));
        };
        if !(0.1..=10_000_000.0).contains(seconds) {
            let what = format!("timeouts: {name}: {seconds} s is not from 0.1 to 10,000,000");
            return Err(ConfigError::Value(what));
        }
        timeouts.set(*phase, (seconds * 1000.0) as u64);
    }
    Ok(timeouts)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
        api = "/run/balance.sock"
        [plane]
        interfaces = ["eth0"]
        [timeouts]
        established = 3600
        [[service]]
        name = "gpu"
        address = "192.0.2.10:4833"
        forward = "full-nat"
        affinity = true
        sources = ["192.0.2.99"]
        check = { kind = "outboard", interval_ms = 500 }
        backend = [{ address = "203.0.113.1:4833" }, { address = "203.0.113.2:4833", weight = 3 }]
    "#;

    #[test]
    fn a_whole_file_is_read() {
        let config = Config::parse(GOOD).expect("right");
        assert_eq!(config.services[0].backends[1].weight, 3);
        assert_eq!(config.checks[0].asked, "tcp://203.0.113.1:4833");
        assert_eq!(config.timeouts.of(Phase::Established), 3_600_000);
        assert_eq!(config.timeouts.of(Phase::SynSent), 120_000);
        assert!(!config.is_tun());
    }

    #[test]
    fn addresses_and_paths_that_cannot_be_are_refused() {
        let backend = "203.0.113.2:4833\", weight = 3";
        let via = |via: &str| format!("{backend}, via = \"{via}\"");
        for wrong in ["0.0.0.0", "224.0.0.1", "255.255.255.255", "127.0.0.1"] {
            refuses("203.0.113.2", wrong, "no address of one host");
            refuses("192.0.2.10", wrong, "is no address and port of one host");
            refuses("192.0.2.99", wrong, "is no address of one host");
            refuses(backend, &via(wrong), "via: no address of a router");
        }
        refuses(
            backend,
            &via("2001:db8::1"),
            "via: of another version of IP",
        );
        refuses(backend, &via("192.0.2.10"), "via: no address of a router");
        refuses(
            "[\"192.0.2.99\"]",
            "[\"192.0.2.99\", \"192.0.2.98\", \"192.0.2.99\"]",
            "source 192.0.2.99 is there twice",
        );
        let api = "\"/run/balance.sock\"";
        refuses(api, "\"\"", "api: a path of 1 to 103 bytes");
        let long = format!("\"/{}\"", "a".repeat(API_BYTES_MAX));
        refuses(api, &long, "api: a path of 1 to 103 bytes");
        for state in ["balance.sock", "balance.sock.lock", "./balance.sock"] {
            let both = format!("{api}\nstate = \"/run/{state}\"");
            refuses(api, &both, "api and state need different paths");
        }
    }

    /// Checks that the file is refused with `text` if it has one thing in place of another.
    fn refuses(from: &str, to: &str, text: &str) {
        let broken = GOOD.replacen(from, to, 1);
        assert_ne!(broken, GOOD, "{from}");
        let error = Config::parse(&broken).expect_err(text).to_string();
        assert!(error.contains(text), "{error}\nhas not: {text}");
    }

    #[test]
    fn planes_that_cannot_be_are_refused() {
        for (from, to, text) in [
            (
                "interfaces = [\"eth0\"]",
                "kind = \"packet\"",
                "need interfaces",
            ),
            (
                "interfaces = [\"eth0\"]",
                "",
                "plane: write interfaces = [\"eth0\"] for packet sockets",
            ),
            (
                "interfaces = [\"eth0\"]",
                "kind = \"tun\"\ninterfaces = [\"eth0\", \"eth1\"]",
                "is its own name",
            ),
            (
                "[\"eth0\"]",
                "[\"eth0\", \"eth1\", \"eth0\"]",
                "interface eth0 is there twice",
            ),
            ("[\"eth0\"]", "[\"a234567890123456\"]", "1 to 15 characters"),
            ("[\"eth0\"]", "[\"\"]", "is no name of an interface"),
            ("[\"eth0\"]", "[\"eth 0\"]", "is no name of an interface"),
        ] {
            refuses(from, to, text);
        }
    }

    #[test]
    fn mistakes_are_refused_with_what_is_wrong() {
        for (from, to, text) in [
            ("api =", "apu =", "unknown field `apu`"),
            ("affinity", "afinity", "unknown field `afinity`"),
            ("weight = 3", "wait = 3", "unknown field `wait`"),
            (
                "interval_ms = 500",
                "interval = 500",
                "unknown field `interval`",
            ),
            ("established", "establish", "unknown key \"establish\""),
            ("3600", "0.01", "0.01 s is not"),
            ("weight = 3", "weight = 1001", "its weight is above 1000"),
            ("203.0.113.2", "203.0.113.1", "there twice"),
            (
                "203.0.113.2",
                "192.0.2.10",
                "its address 192.0.2.10 is a backend's, too",
            ),
            (
                "203.0.113.2",
                "192.0.2.99",
                "its address 192.0.2.99 is a backend's, too",
            ),
            (
                "203.0.113.2:4833",
                "[2001:db8::1]:4833",
                "another version of IP",
            ),
            ("sources = [\"192.0.2.99\"]", "", "needs sources"),
            ("full-nat", "nat", "needs sources"),
            ("full-nat", "tunnel", "unknown variant `tunnel`"),
            (
                "\"203.0.113.1:4833\" }, {",
                "\"203.0.113.1:4833\" }]\nother = [{",
                "unknown field",
            ),
            ("interval_ms = 500", "fall = 0", "rise and fall at least 1"),
            (
                "interval_ms = 500",
                "slow_start_s = 604801",
                "slow_start_s at most 604800",
            ),
            (
                "api =",
                "state = \"a\"\ndump_seconds = 604801\napi =",
                "dump_seconds: 604,800 at most",
            ),
        ] {
            refuses(from, to, text);
        }
        let twice = format!("{GOOD}{}", &GOOD[GOOD.find("[[service]]").expect("one")..]);
        let error = Config::parse(&twice).expect_err("two").to_string();
        assert!(
            error.contains("belongs to another service already"),
            "{error}"
        );
        let long = format!("{GOOD}{}", " ".repeat(1000) + "x");
        let error = Config::parse(&long).expect_err("long").to_string();
        assert!(
            error.contains("line 15, column") && error.len() < 200,
            "{error}"
        );
        let none = &GOOD[..GOOD.find("backend =").expect("some")];
        let error = Config::parse(none).expect_err("none").to_string();
        assert!(
            error.contains("0 backends; 1 to 4096 are needed"),
            "{error}"
        );
    }

    #[test]
    fn what_is_of_another_type_is_refused_with_what_to_write() {
        for (from, to, text) in [
            (
                "{ kind = \"outboard\", interval_ms = 500 }",
                "\"tcp\"",
                "expected a table: check = { kind = \"tcp\" }",
            ),
            (
                "203.0.113.2:4833",
                "203.0.113.2",
                "\"203.0.113.2\" is no IP address with a port, as",
            ),
            (
                "api =",
                "metrics = \"localhost:80\"\napi =",
                "\"localhost:80\" is no IP address with a port, as",
            ),
        ] {
            let error = Config::parse(&GOOD.replacen(from, to, 1)).expect_err(text);
            assert!(error.to_string().contains(text), "{error}");
        }
    }

    #[test]
    fn control_needs_a_token() {
        let control = GOOD.replace("api =", "control = \"127.0.0.1:9186\"\napi =");
        let error = Config::parse(&control).expect_err("no token").to_string();
        assert!(
            error.contains("control and control_token need each other"),
            "{error}"
        );
    }

    #[test]
    fn a_long_line_is_not_shown() {
        let long = format!("{GOOD}{}x", " ".repeat(1000));
        let error = Config::parse(&long).expect_err("no value").to_string();
        assert!(
            error.contains(", column 10") && error.len() < 200,
            "{error}"
        );
    }
}
