//! The server's view of itself: its sessions and GPUs as the workers report them, and what it has
//! counted since it started.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant, SystemTime},
};

use outboard_link::Peer;
use outboard_wire::{
    doc::{
        GpuStatus, Refusal, ServerStatus, SessionEnd, SessionStatus, TENANTS_MAX, TenantStatus,
        Totals, Usage, WAIT_BUCKETS,
    },
    handshake::{ClientHello, RELEASE},
};

use crate::{
    admission::Transport,
    audit::{Audit, SessionRecord},
    limits,
};

pub(super) struct View {
    started: Instant,
    /// Kind of device: nvidia or soft.
    device: &'static str,
    sessions_max: usize,
    /// Settings that make the server slower, in words.
    slow_by: Vec<String>,
    gpus: Vec<GpuStatus>,
    sessions: BTreeMap<u64, Seen>,
    /// Refusals of tenants, besides those of their present sessions.
    tenants: BTreeMap<String, Refused>,
    /// Sums over the sessions that have ended, and the reasons.
    ended: Totals,
    audit: Option<Audit>,
}

/// A session, and what its worker has reported.
struct Seen {
    since: Instant,
    start: SystemTime,
    worker_pid: u32,
    pid: u32,
    program: String,
    peer: Peer,
    token: Option<String>,
    tenant: String,
    link: &'static str,
    usage: Usage,
    host_memory_peak_bytes: u64,
    /// Most memory that was allocated, by device.
    memory_peak_bytes: Vec<u64>,
    reported_at: Instant,
    rates: Rates,
    end: Option<SessionEnd>,
}

/// Counts of what a tenant was refused.
#[derive(Default)]
struct Refused {
    connections: u64,
    /// By sessions that have ended.
    memory: u64,
}

/// A client that has got a place, and who it is.
pub(super) struct Newcomer<'a> {
    pub(super) client: &'a ClientHello,
    pub(super) peer: &'a Peer,
    pub(super) transport: &'a Transport,
    pub(super) token: Option<&'a str>,
    pub(super) tenant: &'a str,
}

/// Name for the tenants beyond [`TENANTS_MAX`].
const OTHER_TENANTS: &str = "other";

/// Rates between two reports.
#[derive(Default)]
struct Rates {
    messages_per_s: u64,
    received_bytes_per_s: u64,
    sent_bytes_per_s: u64,
    wait_us: u64,
}

impl View {
    pub(super) fn new(
        device: &'static str,
        sessions_max: usize,
        slow_by: Vec<String>,
        audit: Option<Audit>,
    ) -> View {
        View {
            started: Instant::now(),
            device,
            sessions_max,
            slow_by,
            gpus: Vec::new(),
            sessions: BTreeMap::new(),
            tenants: BTreeMap::new(),
            ended: Totals {
                wait_counts: vec![0; WAIT_BUCKETS],
                ends: vec![0; SessionEnd::ALL.len()],
                refusals: vec![0; Refusal::ALL.len()],
                ..Totals::default()
            },
            audit,
        }
    }

    /// Adds a session whose client has got a place.
    pub(super) fn begins(&mut self, session: u64, worker_pid: u32, newcomer: &Newcomer<'_>) {
        let Newcomer {
            client,
            peer,
            transport,
            token,
            tenant,
        } = *newcomer;
        self.refused_of(tenant);
        let now = Instant::now();
        let seen = Seen {
            since: now,
            start: SystemTime::now(),
            worker_pid,
            pid: client.pid,
            program: client.program.clone(),
            peer: peer.clone(),
            token: token.map(String::from),
            tenant: tenant.into(),
            link: transport.name(),
            usage: Usage::default(),
            memory_peak_bytes: Vec::new(),
            host_memory_peak_bytes: 0,
            reported_at: now,
            rates: Rates::default(),
            end: None,
        };
        self.sessions.insert(session, seen);
        self.ended.sessions += 1;
    }

    /// Notes which worker serves a session.
    pub(super) fn is_served_by(&mut self, session: u64, worker_pid: u32) {
        if let Some(seen) = self.sessions.get_mut(&session) {
            seen.worker_pid = worker_pid;
        }
    }

    /// Takes the list of GPUs that a worker has found.
    pub(super) fn has_gpus(&mut self, mut gpus: Vec<GpuStatus>) {
        gpus.truncate(limits::GPUS_MAX);
        self.gpus = gpus;
    }

    /// Takes a worker's report.
    pub(super) fn reports(&mut self, session: u64, mut usage: Usage) {
        let Some(seen) = self.sessions.get_mut(&session) else {
            return;
        };
        usage.wait_counts.resize(WAIT_BUCKETS, 0);
        usage.memory_bytes.truncate(limits::GPUS_MAX);
        let now = Instant::now();
        seen.rates = Rates::between(&seen.usage, &usage, now - seen.reported_at);
        seen.reported_at = now;
        seen.memory_peak_bytes.resize(usage.memory_bytes.len(), 0);
        for (peak, bytes) in seen.memory_peak_bytes.iter_mut().zip(&usage.memory_bytes) {
            *peak = (*peak).max(*bytes);
        }
        seen.host_memory_peak_bytes = seen.host_memory_peak_bytes.max(usage.host_memory_bytes);
        seen.usage = usage;
    }

    /// Notes how a session ends, unless that is known already.
    pub(super) fn will_end(&mut self, session: u64, end: SessionEnd) {
        if let Some(seen) = self.sessions.get_mut(&session) {
            seen.end.get_or_insert(end);
        }
    }

    /// Removes a session that has ended, for the reason that is known, otherwise for `end`.
    pub(super) fn ended(&mut self, session: u64, end: SessionEnd) {
        let Some(seen) = self.sessions.remove(&session) else {
            return;
        };
        let end = seen.end.unwrap_or(end);
        add(&mut self.ended, &seen.usage);
        self.refused_of(&seen.tenant).memory += seen.usage.memory_refusals;
        self.ended.ends[end as usize] += 1;
        if let Some(audit) = &mut self.audit {
            let (address, uid) = who(&seen.peer);
            audit.session(&SessionRecord {
                session,
                start: seen.start,
                peer: &address,
                uid,
                token: seen.token.as_deref(),
                tenant: &seen.tenant,
                pid: seen.pid,
                program: &seen.program,
                link: seen.link,
                device: self.device,
                memory_peak_bytes: &seen.memory_peak_bytes,
                host_memory_peak_bytes: seen.host_memory_peak_bytes,
                usage: &seen.usage,
                end,
            });
        }
    }

    pub(super) fn has(&self, session: u64) -> bool {
        self.sessions.contains_key(&session)
    }

    pub(super) fn refused(&mut self, refusal: Refusal, peer: &Peer) {
        self.note_refusal(refusal, peer, None);
    }

    /// Notes a connection that is refused because its tenant's share is used up.
    pub(super) fn refused_by_share(&mut self, peer: &Peer, tenant: &str) {
        self.refused_of(tenant).connections += 1;
        self.note_refusal(Refusal::Share, peer, Some(tenant));
    }

    fn note_refusal(&mut self, refusal: Refusal, peer: &Peer, tenant: Option<&str>) {
        self.ended.refusals[refusal as usize] += 1;
        if let Some(audit) = &mut self.audit {
            let (address, uid) = who(peer);
            audit.refusal(refusal, &address, uid, tenant);
        }
    }

    /// Returns the counts of a tenant, or those of the others if there are too many.
    fn refused_of(&mut self, tenant: &str) -> &mut Refused {
        let is_counted = self.tenants.contains_key(tenant) || self.tenants.len() < TENANTS_MAX;
        let name = if is_counted { tenant } else { OTHER_TENANTS };
        self.tenants.entry(name.into()).or_default()
    }

    fn tenants(&self) -> Vec<TenantStatus> {
        let of = |(name, refused): (&String, &Refused)| TenantStatus {
            name: name.clone(),
            refusals: refused.connections,
            memory_refusals: refused.memory,
            ..TenantStatus::default()
        };
        let mut all: Vec<_> = self.tenants.iter().map(of).collect();
        for seen in self.sessions.values() {
            let name = match self.tenants.contains_key(&seen.tenant) {
                true => &seen.tenant,
                false => OTHER_TENANTS,
            };
            let Some(of) = all.iter_mut().find(|of| of.name == name) else {
                continue;
            };
            of.sessions += 1;
            of.host_memory_bytes += seen.usage.host_memory_bytes;
            of.memory_refusals += seen.usage.memory_refusals;
            let devices = of.memory_bytes.len().max(seen.usage.memory_bytes.len());
            of.memory_bytes.resize(devices, 0);
            for (sum, bytes) in of.memory_bytes.iter_mut().zip(&seen.usage.memory_bytes) {
                *sum = sum.saturating_add(*bytes);
            }
        }
        all
    }

    pub(super) fn status(&self, spares_ready: usize) -> ServerStatus {
        let mut totals = self.ended.clone();
        let mut gpus = self.gpus.clone();
        for seen in self.sessions.values() {
            add(&mut totals, &seen.usage);
            for (gpu, bytes) in gpus.iter_mut().zip(&seen.usage.memory_bytes) {
                gpu.used_bytes = gpu.used_bytes.saturating_add(*bytes);
                gpu.sessions += u64::from(*bytes > 0);
            }
        }
        ServerStatus {
            release: RELEASE.into(),
            pid: std::process::id(),
            uptime_ms: ms(self.started.elapsed()),
            device: self.device.into(),
            sessions_max: self.sessions_max as u64,
            spares_ready: spares_ready as u64,
            slow_by: self.slow_by.clone(),
            gpus,
            sessions: self.sessions.iter().map(Seen::status).collect(),
            tenants: self.tenants(),
            totals,
        }
    }
}

impl Seen {
    fn status((session, seen): (&u64, &Seen)) -> SessionStatus {
        let (address, uid) = who(&seen.peer);
        SessionStatus {
            session: *session,
            worker_pid: seen.worker_pid,
            pid: seen.pid,
            program: seen.program.clone(),
            address,
            uid,
            token: seen.token.clone(),
            tenant: seen.tenant.clone(),
            link: seen.link.into(),
            age_ms: ms(seen.since.elapsed()),
            usage: seen.usage.clone(),
            messages_per_s: seen.rates.messages_per_s,
            received_bytes_per_s: seen.rates.received_bytes_per_s,
            sent_bytes_per_s: seen.rates.sent_bytes_per_s,
            wait_us: seen.rates.wait_us,
        }
    }
}

impl Rates {
    fn between(before: &Usage, now: &Usage, time: Duration) -> Rates {
        // Two reports at once say nothing about a rate.
        let ms = ms(time).max(1);
        let per_s = |before: u64, now: u64| {
            let more = u128::from(now.saturating_sub(before));
            u64::try_from(more * 1_000 / u128::from(ms)).unwrap_or(u64::MAX)
        };
        let waited_ns = now.waiting_ns.saturating_sub(before.waiting_ns);
        let waits = now.waits.saturating_sub(before.waits);
        Rates {
            messages_per_s: per_s(before.messages, now.messages),
            received_bytes_per_s: per_s(before.received_bytes, now.received_bytes),
            sent_bytes_per_s: per_s(before.sent_bytes, now.sent_bytes),
            wait_us: waited_ns.checked_div(waits).unwrap_or(0) / 1_000,
        }
    }
}

/// Returns the address of a host, empty for a local process, and the user of the process.
fn who(peer: &Peer) -> (String, Option<u32>) {
    match peer {
        Peer::Process { uid, .. } => (String::new(), Some(*uid)),
        other => (other.to_string(), None),
    }
}

fn add(sum: &mut Totals, usage: &Usage) {
    for (sum, more) in [
        (&mut sum.messages, usage.messages),
        (&mut sum.failures, usage.failures),
        (&mut sum.received_bytes, usage.received_bytes),
        (&mut sum.sent_bytes, usage.sent_bytes),
        (&mut sum.executing_ns, usage.executing_ns),
        (&mut sum.waits, usage.waits),
        (&mut sum.waiting_ns, usage.waiting_ns),
    ] {
        *sum = sum.wrapping_add(more);
    }
    for (sum, more) in sum.wait_counts.iter_mut().zip(&usage.wait_counts) {
        *sum = sum.wrapping_add(*more);
    }
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use outboard_wire::handshake::Purpose;

    use super::*;

    fn client() -> ClientHello {
        ClientHello {
            release: RELEASE.into(),
            purpose: Purpose::Session,
            pid: 7,
            program: "train".into(),
            emulation: None,
            is_rdma: false,
            token: None,
            grant: None,
            window: 0,
        }
    }

    fn usage(messages: u64, memory: u64) -> Usage {
        Usage {
            messages,
            memory_bytes: vec![memory],
            ..Usage::default()
        }
    }

    #[test]
    fn totals_keep_what_ended_sessions_did() {
        let mut view = View::new("soft", 4, Vec::new(), None);
        view.has_gpus(vec![GpuStatus::default()]);
        let peer = Peer::Process {
            pid: 7,
            uid: 1000,
            gid: 1000,
        };
        for session in [1, 2] {
            let newcomer = Newcomer {
                client: &client(),
                peer: &peer,
                transport: &Transport::Shm,
                token: None,
                tenant: "uid:1000",
            };
            view.begins(session, 9, &newcomer);
            view.reports(session, usage(10 * session, 5));
        }
        let both = view.status(0);
        assert_eq!((both.totals.sessions, both.totals.messages), (2, 30));
        assert_eq!((both.gpus[0].used_bytes, both.gpus[0].sessions), (10, 2));
        assert_eq!(both.sessions[0].uid, Some(1000));
        view.will_end(2, SessionEnd::Asked);
        view.ended(2, SessionEnd::Worker);
        let one = view.status(0);
        assert_eq!((one.totals.sessions, one.totals.messages), (2, 30));
        assert_eq!((one.gpus[0].used_bytes, one.gpus[0].sessions), (5, 1));
        assert_eq!(one.totals.ends[SessionEnd::Asked as usize], 1);
        view.ended(2, SessionEnd::Left);
        assert_eq!(
            view.status(0),
            ServerStatus {
                uptime_ms: view.status(0).uptime_ms,
                sessions: view.status(0).sessions,
                tenants: view.status(0).tenants,
                ..one
            }
        );
    }

    #[test]
    fn tenants_are_counted_by_name_and_those_beyond_a_bound_together() {
        let mut view = View::new("soft", 4, Vec::new(), None);
        let peer = Peer::Host(([10, 0, 0, 1], 5).into());
        let begins = |view: &mut View, session: u64, tenant: &str| {
            let newcomer = Newcomer {
                client: &client(),
                peer: &peer,
                transport: &Transport::Tcp,
                token: None,
                tenant,
            };
            view.begins(session, 9, &newcomer);
        };
        for session in [1, 2] {
            begins(&mut view, session, "token:alice");
            let usage = Usage {
                memory_refusals: 1,
                host_memory_bytes: 3,
                ..usage(1, 5)
            };
            view.reports(session, usage);
        }
        view.ended(2, SessionEnd::Left);
        view.refused_by_share(&peer, "token:bob");
        for uid in 0..2 * TENANTS_MAX {
            view.refused_by_share(&peer, &format!("uid:{uid}"));
        }
        begins(&mut view, 3, "uid:70000");
        let tenants = view.status(0).tenants;
        assert_eq!(tenants.len(), TENANTS_MAX + 1);
        let of = |name: &str| tenants.iter().find(|of| of.name == name).unwrap();
        let alice = of("token:alice");
        assert_eq!((alice.sessions, alice.memory_refusals), (1, 2));
        assert_eq!(
            (alice.host_memory_bytes, &*alice.memory_bytes),
            (3, &[5][..])
        );
        assert_eq!(of("token:bob").refusals, 1);
        let beyond = TENANTS_MAX as u64 + 2;
        assert_eq!(
            (of(OTHER_TENANTS).refusals, of(OTHER_TENANTS).sessions),
            (beyond, 1)
        );
    }

    #[test]
    fn rates_are_of_the_time_between_two_reports() {
        let rates = Rates::between(&usage(10, 0), &usage(30, 0), Duration::from_millis(500));
        assert_eq!((rates.messages_per_s, rates.wait_us), (40, 0));
        let waits = Usage {
            waits: 2,
            waiting_ns: 3_000_000,
            ..Usage::default()
        };
        let rates = Rates::between(&Usage::default(), &waits, Duration::ZERO);
        assert_eq!(rates.wait_us, 1_500);
    }
}
