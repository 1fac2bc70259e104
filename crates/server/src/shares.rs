//! Shares of tenants: what one user, token, key or address may use of a server over all its
//! sessions, and all of them together.

use std::{
    collections::{BTreeMap, HashMap},
    fmt, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    str::FromStr,
    time::Instant,
};

use outboard_budget::ledger::{Account, Ledger, Share};
use outboard_link::Peer;
use outboard_wire::handshake::Purpose;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{
    cgroup::{WEIGHT_DEFAULT, WEIGHT_MAX},
    limits,
};

/// A whole GPU.
pub const PERCENT_MAX: u8 = 100;

/// A limit of a share. The table [`Limit::ALL`] is the only list of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    Sessions,
    Queries,
    Connections,
    Memory,
    HostMemory,
    Disk,
    Compute,
    GpuPercent,
}

/// The unit of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    Count,
    Bytes,
    Percent,
}

impl Limit {
    /// Each limit with its name, its unit, its meaning, and whether the whole server can have it.
    pub const ALL: [(Limit, &'static str, Unit, &'static str, bool); 8] = [
        (
            Limit::Sessions,
            "sessions",
            Unit::Count,
            "programs at a time",
            false,
        ),
        (
            Limit::Queries,
            "queries",
            Unit::Count,
            "connections at a time that only ask",
            false,
        ),
        (
            Limit::Connections,
            "connections",
            Unit::Count,
            "new sessions and queries a second",
            false,
        ),
        (
            Limit::Memory,
            "memory",
            Unit::Bytes,
            "device memory of all its programs, on each device",
            true,
        ),
        (
            Limit::HostMemory,
            "host-memory",
            Unit::Bytes,
            "the server's own memory of all its programs",
            true,
        ),
        (
            Limit::Disk,
            "disk",
            Unit::Bytes,
            "what its programs keep in the folder of --cache",
            true,
        ),
        (
            Limit::Compute,
            "compute",
            Unit::Count,
            "weight of all its programs on the software device's cores, where others have 100",
            false,
        ),
        (
            Limit::GpuPercent,
            "gpu-percent",
            Unit::Percent,
            "part of an NVIDIA GPU's multiprocessors that each of its programs may use, by MPS",
            false,
        ),
    ];
}

/// Values of limits; None is without bound.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Limits([Option<u64>; Limit::ALL.len()]);

impl Limits {
    /// Sets a limit, and returns the one before.
    pub fn set(&mut self, limit: Limit, value: u64) -> Option<u64> {
        self.0[limit as usize].replace(value)
    }

    fn get(&self, limit: Limit) -> Option<u64> {
        self.0[limit as usize]
    }

    fn or(&self, other: &Limits) -> Limits {
        let mut both = self.clone();
        for (mine, others) in both.0.iter_mut().zip(&other.0) {
            *mine = mine.or(*others);
        }
        both
    }

    fn memory(&self) -> Share {
        Share {
            host_bytes: self.get(Limit::HostMemory),
            device_bytes: self.get(Limit::Memory),
        }
    }
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = Limit::ALL.iter().zip(&self.0);
        let set = set.filter_map(|((_, name, ..), value)| Some(format!("{name}={}", (*value)?)));
        f.write_str(&set.collect::<Vec<_>>().join(","))
    }
}

/// The one whose share it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Whose {
    /// Each tenant that has none of its own.
    Each,
    /// All tenants together.
    Server,
    /// The tenant of this name.
    Tenant(String),
}

/// A name that is no tenant's.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "{0:?} is no tenant: name one as uid:1001, token:alice, key:sha256:..., cert:alice or address:10.0.0.7, or server \
     for all together"
)]
pub struct NoTenant(String);

impl FromStr for Whose {
    type Err = NoTenant;

    fn from_str(name: &str) -> Result<Whose, NoTenant> {
        let is_named = match name.split_once(':') {
            _ if name == "server" => return Ok(Whose::Server),
            Some(("uid", uid)) => uid.parse::<u32>().is_ok(),
            Some(("address", address)) => address.parse::<std::net::IpAddr>().is_ok(),
            Some(("token" | "key" | "cert", name)) => !name.is_empty(),
            _ => false,
        };
        match is_named {
            true => Ok(Whose::Tenant(name.into())),
            false => Err(NoTenant(name.into())),
        }
    }
}

/// The shares of a server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Shares {
    each: Limits,
    server: Limits,
    named: BTreeMap<String, Limits>,
}

impl Shares {
    /// Adds limits; the later one of two wins.
    pub fn add(&mut self, whose: Whose, limits: &Limits) {
        let mine = match whose {
            Whose::Each => &mut self.each,
            Whose::Server => &mut self.server,
            Whose::Tenant(name) => self.named.entry(name).or_default(),
        };
        *mine = limits.or(mine);
    }

    /// Returns the limits of a tenant: its own, and those of each for what it has none.
    fn of(&self, tenant: &str) -> Limits {
        match self.named.get(tenant) {
            Some(own) => own.or(&self.each),
            None => self.each.clone(),
        }
    }

    /// Returns what a tenant's sessions may keep in the cache, and what all may.
    pub(super) fn disk(&self, tenant: &str) -> (Option<u64>, Option<u64>) {
        (
            self.of(tenant).get(Limit::Disk),
            self.server.get(Limit::Disk),
        )
    }

    /// Returns the weight of a tenant's workers on the machine's cores.
    pub(super) fn weight(&self, tenant: &str) -> u64 {
        self.of(tenant)
            .get(Limit::Compute)
            .unwrap_or(WEIGHT_DEFAULT)
            .min(WEIGHT_MAX)
    }

    /// Returns the part of a GPU that each program of a tenant may use, if that is bounded.
    pub(super) fn gpu_percent(&self, tenant: &str) -> Option<u8> {
        let percent = self.of(tenant).get(Limit::GpuPercent)?;
        Some(percent.min(u64::from(PERCENT_MAX)) as u8)
    }

    /// Returns whether some tenant has this limit.
    pub(super) fn have(&self, limit: Limit) -> bool {
        let mut all = self.named.values().chain([&self.each]);
        all.any(|limits| limits.get(limit).is_some())
    }

    fn bound_memory(&self) -> bool {
        let all = self.named.values().chain([&self.each, &self.server]);
        all.map(Limits::memory)
            .any(|share| share != Share::default())
    }
}

impl fmt::Display for Shares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = self.named.iter().map(|(name, limits)| (&**name, limits));
        let all = [("each tenant", &self.each), ("server", &self.server)];
        let all = all.into_iter().chain(named);
        let all = all.filter(|(_, limits)| **limits != Limits::default());
        let lines = all.map(|(name, limits)| format!("share of {name}: {limits}"));
        f.write_str(&lines.collect::<Vec<_>>().join("\n"))
    }
}

/// Returns the name of the tenant of a connection: its token, its TLS key or certificate, the user
/// of its process or the address of its machine, in this order. `by_tls` is a tenant's name.
pub(super) fn tenant(peer: &Peer, token: Option<&str>, by_tls: Option<&str>) -> String {
    match (token, by_tls, peer) {
        (Some(token), _, _) => format!("token:{token}"),
        (None, Some(name), _) => name.into(),
        (None, None, Peer::Process { uid, .. }) => format!("uid:{uid}"),
        (None, None, Peer::Host(address)) => format!("address:{}", address.ip().to_canonical()),
        (None, None, _) => "other".into(),
    }
}

/// A session's row in the ledger and its shares, for its worker, which gets the ledger as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Place {
    row: u64,
    /// Of the tenant, then of the server: host memory, memory of each device.
    of_tenant: (Option<u64>, Option<u64>),
    of_server: (Option<u64>, Option<u64>),
}

impl Place {
    pub(super) fn row(&self) -> usize {
        self.row as usize
    }

    /// Opens the account, in the worker.
    pub(super) fn account(&self, ledger: OwnedFd) -> io::Result<Account> {
        let share = |(host_bytes, device_bytes)| Share {
            host_bytes,
            device_bytes,
        };
        let (of_tenant, of_server) = (share(self.of_tenant), share(self.of_server));
        Ok(Account::new(
            Ledger::open(ledger)?,
            self.row(),
            of_tenant,
            of_server,
        ))
    }

    /// Returns the most device memory that the session can get of a device, if that is bounded.
    pub(super) fn device_bytes(&self) -> Option<u64> {
        [self.of_tenant.1, self.of_server.1]
            .into_iter()
            .flatten()
            .min()
    }
}

/// The tenants of a server that runs.
pub(super) struct Tenants {
    shares: Shares,
    /// None if no share bounds memory.
    ledger: Option<(Ledger, OwnedFd)>,
    /// Numbers of the tenants that have rows in the ledger, and how many.
    numbers: HashMap<String, (u64, usize)>,
    number_last: u64,
    connections: HashMap<String, Bucket>,
}

/// Connections that a tenant may still make. It fills by its share each second.
struct Bucket {
    left: f64,
    at: Instant,
}

impl Tenants {
    pub(super) fn new(shares: Shares, sessions_max: usize) -> io::Result<Tenants> {
        // Sessions that end keep their row until their worker is reaped.
        let rows = 2 * (sessions_max + limits::QUERIES_MAX);
        let ledger = shares.bound_memory().then(|| Ledger::create(rows));
        Ok(Tenants {
            shares,
            ledger: ledger.transpose()?,
            numbers: HashMap::new(),
            number_last: 0,
            connections: HashMap::new(),
        })
    }

    /// Counts a connection of a tenant. Returns why it is refused, if it is.
    pub(super) fn connect(&mut self, tenant: &str, now: Instant) -> Result<(), String> {
        let Some(max) = self.shares.of(tenant).get(Limit::Connections) else {
            return Ok(());
        };
        let full = max as f64;
        if self.connections.len() >= limits::TENANTS_TRACKED_MAX {
            // One that has been quiet for a second has all of its connections left.
            self.connections
                .retain(|_, bucket| now.duration_since(bucket.at).as_secs() == 0);
            if self.connections.len() >= limits::TENANTS_TRACKED_MAX {
                // Who has thousands of names has no limit by name.
                return Ok(());
            }
        }
        let bucket = self.connections.entry(tenant.into()).or_insert(Bucket {
            left: full,
            at: now,
        });
        let since = now.duration_since(bucket.at).as_secs_f64();
        bucket.left = (bucket.left + since * full).min(full);
        bucket.at = now;
        if bucket.left < 1.0 {
            return Err(format!(
                "{tenant} may make {max} connections a second (outboard serve --share); try again later"
            ));
        }
        bucket.left -= 1.0;
        Ok(())
    }

    /// Checks whether a tenant with so many connections of this purpose may have one more.
    pub(super) fn admit(&self, tenant: &str, purpose: Purpose, has: usize) -> Result<(), String> {
        let (limit, what) = match purpose {
            Purpose::Session => (Limit::Sessions, "sessions"),
            _ => (Limit::Queries, "queries"),
        };
        match self.shares.of(tenant).get(limit) {
            Some(max) if has as u64 >= max => Err(format!(
                "{tenant} has {has} {what}, and may have {max} (outboard serve --share); try again later"
            )),
            _ => Ok(()),
        }
    }

    /// Gives a session a row in the ledger, if memory is shared.
    pub(super) fn place(&mut self, tenant: &str) -> Result<Option<Place>, String> {
        let Some((ledger, _)) = &self.ledger else {
            return Ok(None);
        };
        self.number_last += 1;
        let next = (self.number_last, 0);
        let (number, rows) = self.numbers.entry(tenant.into()).or_insert(next);
        let row = ledger.begin(*number);
        *rows += usize::from(row.is_some());
        let of = |share: Share| (share.host_bytes, share.device_bytes);
        let row = row.ok_or("the server has no row for another session; try again later")?;
        Ok(Some(Place {
            row: row as u64,
            of_tenant: of(self.shares.of(tenant).memory()),
            of_server: of(self.shares.server.memory()),
        }))
    }

    /// Takes the row of a session back, whose workers have ended.
    pub(super) fn leave(&mut self, tenant: &str, row: usize) {
        if let Some((ledger, _)) = &self.ledger {
            ledger.end(row);
        }
        if let Some((_, rows)) = self.numbers.get_mut(tenant) {
            *rows -= 1;
            if *rows == 0 {
                self.numbers.remove(tenant);
            }
        }
    }

    /// Returns the descriptor of the ledger, for workers.
    pub(super) fn ledger(&self) -> Option<BorrowedFd<'_>> {
        self.ledger.as_ref().map(|(_, fd)| fd.as_fd())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use outboard_budget::ledger::Resource;

    use super::*;

    fn limits(values: &[(Limit, u64)]) -> Limits {
        let mut limits = Limits::default();
        for (limit, value) in values {
            limits.set(*limit, *value);
        }
        limits
    }

    fn shares() -> Shares {
        let mut shares = Shares::default();
        let each = [
            (Limit::Sessions, 2),
            (Limit::Connections, 4),
            (Limit::Memory, 100),
        ];
        shares.add(Whose::Each, &limits(&each));
        let alice = limits(&[(Limit::Sessions, 3)]);
        shares.add("token:alice".parse().unwrap(), &alice);
        shares.add(Whose::Server, &limits(&[(Limit::Memory, 150)]));
        shares
    }

    #[test]
    fn the_table_has_each_limit_at_its_place() {
        for (at, (limit, ..)) in Limit::ALL.into_iter().enumerate() {
            assert_eq!(limit as usize, at);
        }
    }

    #[test]
    fn tenants_have_names() {
        let process = Peer::Process {
            pid: 1,
            uid: 1001,
            gid: 1,
        };
        let host = Peer::Host("[::ffff:10.0.0.7]:5".parse().unwrap());
        assert_eq!(tenant(&process, None, None), "uid:1001");
        assert_eq!(tenant(&host, None, None), "address:10.0.0.7");
        assert_eq!(tenant(&host, None, Some("key:sha256:1")), "key:sha256:1");
        assert_eq!(tenant(&host, Some("bob"), Some("key:1")), "token:bob");
        for name in ["uid:1001", "address:10.0.0.7", "token:bob", "key:sha256:1"] {
            assert_eq!(name.parse(), Ok(Whose::Tenant(name.into())));
        }
        for name in [
            "",
            "bob",
            "uid:",
            "uid:bob",
            "token:",
            "address:host",
            "user:1",
        ] {
            assert!(name.parse::<Whose>().is_err(), "{name}");
        }
    }

    #[test]
    fn a_tenants_own_limits_come_before_those_of_each() {
        let tenants = Tenants::new(shares(), 4).unwrap();
        let session = Purpose::Session;
        assert!(tenants.admit("token:bob", session, 1).is_ok());
        let why = tenants.admit("token:bob", session, 2).unwrap_err();
        assert!(
            why.contains("token:bob has 2 sessions, and may have 2"),
            "{why}"
        );
        assert!(tenants.admit("token:alice", session, 2).is_ok());
        assert!(tenants.admit("token:alice", session, 3).is_err());
        assert!(tenants.admit("token:alice", Purpose::Query, 90).is_ok());
        let text = shares().to_string();
        assert!(text.contains("share of token:alice: sessions=3"), "{text}");
    }

    #[test]
    fn connections_are_counted_by_the_second() {
        let mut tenants = Tenants::new(shares(), 4).unwrap();
        let now = Instant::now();
        let mut connect = |tenant: &str, ms| {
            tenants
                .connect(tenant, now + Duration::from_millis(ms))
                .is_ok()
        };
        assert!((0..4).all(|_| connect("uid:5", 0)));
        assert!(!connect("uid:5", 0) && connect("uid:6", 0));
        assert!(connect("uid:5", 300) && !connect("uid:5", 300));
        assert!((0..4).all(|_| connect("uid:5", 5_000)) && !connect("uid:5", 5_000));
    }

    #[test]
    fn tenants_that_are_quiet_are_forgotten() {
        let mut tenants = Tenants::new(shares(), 4).unwrap();
        let now = Instant::now();
        for uid in 0..3 * limits::TENANTS_TRACKED_MAX {
            let at = now + Duration::from_millis(uid as u64);
            tenants.connect(&format!("uid:{uid}"), at).unwrap();
        }
        assert!(tenants.connections.len() <= limits::TENANTS_TRACKED_MAX);
    }

    #[test]
    fn rows_are_given_back_and_shares_are_of_the_tenant() {
        let mut tenants = Tenants::new(shares(), 4).unwrap();
        let fd = |tenants: &Tenants| tenants.ledger().unwrap().try_clone_to_owned().unwrap();
        let places = ["uid:1", "uid:1", "uid:2"].map(|t| tenants.place(t).unwrap().unwrap());
        let [one, two, other] = places.map(|place| place.account(fd(&tenants)).unwrap());
        assert_eq!(places[0].device_bytes(), Some(100));
        one.take(Resource::Device(0), 80).unwrap();
        assert!(two.take(Resource::Device(0), 30).is_err());
        assert!(other.take(Resource::Device(0), 80).is_err());
        other.take(Resource::Device(0), 70).unwrap();
        tenants.leave("uid:1", places[0].row());
        two.take(Resource::Device(0), 80).unwrap();
        tenants.leave("uid:1", places[1].row());
        tenants.leave("uid:2", places[2].row());
        assert!(tenants.numbers.is_empty());
        let free = Tenants::new(Shares::default(), 4).unwrap();
        assert!(free.ledger().is_none());
    }
}
