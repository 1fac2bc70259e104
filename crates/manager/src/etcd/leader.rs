//! The leader's key. A lease of etcd holds it, so it is gone some seconds after its manager. That
//! alone excludes nobody: each transaction compares the key's create revision, and answers are sent
//! only until the lease may be over by this machine's own clock.

use std::{
    io,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use outboard_pool::StoreError;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use tracing::{info, warn};

use super::{
    EtcdUrl,
    cluster::{Cluster, bytes, number, text},
    failed,
};
use crate::limits;

const KEY: &str = "leader";

/// Result of an attempt to lead.
pub(crate) enum Campaign {
    Leads(Leadership),
    /// Another manager leads, at this address.
    Other(String),
}

/// The right to write, as long as the key is there. Dropping it gives it up.
pub(crate) struct Leadership {
    pub(super) key: String,
    pub(super) create_revision: u64,
    lease: String,
    term: Arc<Term>,
    url: EtcdUrl,
    ca: Option<PathBuf>,
}

/// The time for which etcd surely keeps the leader's key.
struct Term {
    /// The key was given up, or could not be kept.
    is_over: AtomicBool,
    /// Time until which the key is kept, in ms of [`now_ms`].
    until_ms: AtomicU64,
}

impl Term {
    /// Starts with a lease that etcd was asked for at `asked_ms`: it began no sooner.
    fn new(asked_ms: u64) -> Term {
        Term {
            is_over: AtomicBool::new(false),
            until_ms: AtomicU64::new(asked_ms + limits::LEADER_S * 1000),
        }
    }

    fn renew(&self, asked_ms: u64) {
        let until_ms = asked_ms + limits::LEADER_S * 1000;
        self.until_ms.store(until_ms, Ordering::Relaxed);
    }

    fn is_past(&self) -> bool {
        now_ms() >= self.until_ms.load(Ordering::Relaxed)
    }
}

/// The machine's clock since its start, in ms. It goes on while a process is stopped and while the
/// machine sleeps, as etcd's does.
fn now_ms() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let ms = now.tv_sec.saturating_mul(1000) + now.tv_nsec / 1_000_000;
    u64::try_from(ms).unwrap_or(0)
}

impl Leadership {
    /// Makes the key with this manager's address, unless there is one.
    pub(crate) fn campaign(
        url: &EtcdUrl,
        ca: Option<&PathBuf>,
        address: &str,
    ) -> Result<Campaign, StoreError> {
        let mut cluster = Cluster::new(url, ca);
        let asked_ms = now_ms();
        let said = attempt(&mut cluster, url, address);
        let (lease, key, create_revision) = match said {
            Ok(Ok(made)) => made,
            Ok(Err(other)) => return Ok(Campaign::Other(other)),
            Err(error) => return Err(failed("asking who leads", error)),
        };
        let leadership = Leadership {
            key,
            create_revision,
            lease,
            term: Arc::new(Term::new(asked_ms)),
            url: url.clone(),
            ca: ca.cloned(),
        };
        leadership.start_keeper()?;
        info!(create_revision, "this manager leads");
        Ok(Campaign::Leads(leadership))
    }

    /// Returns whether the key is gone, or may be: this process may have been stopped meanwhile.
    pub(crate) fn is_over(&self) -> bool {
        self.term.is_over.load(Ordering::Relaxed) || self.term.is_past()
    }

    fn start_keeper(&self) -> Result<(), StoreError> {
        let (url, ca, lease) = (self.url.clone(), self.ca.clone(), self.lease.clone());
        let term = Arc::clone(&self.term);
        let builder = thread::Builder::new().name("outboard-leader".into());
        let started =
            builder.spawn(move || keep(&mut Cluster::new(&url, ca.as_ref()), &lease, &term));
        let started = started.map(drop);
        started.map_err(|error| failed("starting the leader's thread", error))
    }
}

impl Drop for Leadership {
    fn drop(&mut self) {
        // Another manager need not wait for the lease's end.
        if !self.term.is_over.swap(true, Ordering::Relaxed) {
            let mut cluster = Cluster::new(&self.url, self.ca.as_ref());
            let _ = cluster.ask("/v3/lease/revoke", &json!({ "ID": self.lease }));
        }
    }
}

type Made = (String, String, u64);

/// Returns lease, key and create revision, or the address of the manager that leads.
fn attempt(
    cluster: &mut Cluster,
    url: &EtcdUrl,
    address: &str,
) -> io::Result<Result<Made, String>> {
    let key = format!("{}{KEY}", url.prefix());
    let range = json!({ "key": text(key.as_bytes()) });
    let found = cluster.ask("/v3/kv/range", &range)?;
    if let Some(entry) = found["kvs"].get(0) {
        return Ok(Err(shown(&bytes(&entry["value"])?)));
    }
    let lease = cluster.ask("/v3/lease/grant", &json!({ "TTL": limits::LEADER_S }))?;
    let lease = lease["ID"].as_str().map(String::from);
    let lease = lease.ok_or_else(|| io::Error::other("etcd gave no lease"))?;
    let put = json!({ "requestPut": {
        "key": text(key.as_bytes()), "value": text(address.as_bytes()), "lease": lease
    } });
    let made = cluster.once(
        "/v3/kv/txn",
        &json!({
            "compare": [{ "key": text(key.as_bytes()), "target": "CREATE", "createRevision": "0" }],
            "success": [put],
            "failure": [{ "requestRange": range }],
        }),
    )?;
    if made["succeeded"] == Value::Bool(true) {
        let revision = number(&made["header"]["revision"])?;
        return Ok(Ok((lease, key, revision)));
    }
    cluster.ask("/v3/lease/revoke", &json!({ "ID": lease }))?;
    let entry = &made["responses"][0]["response_range"]["kvs"][0]["value"];
    Ok(Err(shown(&bytes(entry)?)))
}

fn shown(address: &[u8]) -> String {
    String::from_utf8_lossy(address).into_owned()
}

/// Keeps the lease until it is given up, or cannot be kept.
fn keep(cluster: &mut Cluster, lease: &str, term: &Term) {
    while !term.is_over.load(Ordering::Relaxed) {
        let asked_ms = now_ms();
        match cluster.ask("/v3/lease/keepalive", &json!({ "ID": lease })) {
            Ok(said) if number(&said["result"]["TTL"]).is_ok_and(|left| left > 0) => {
                term.renew(asked_ms);
            }
            Ok(_) => break,
            Err(error) => {
                warn!(%error, "the leader's key is not kept");
                if term.is_past() {
                    break;
                }
            }
        }
        thread::sleep(Duration::from_millis(limits::LEADER_KEPT_MS));
    }
    term.is_over.store(true, Ordering::Relaxed);
}
