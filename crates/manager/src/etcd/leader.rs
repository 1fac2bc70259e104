//! The leader's key. A lease of etcd holds it, so it is gone some seconds after its manager. That
//! alone excludes nobody: each transaction compares the key's create revision.

use std::{
    io,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use outboard_pool::StoreError;
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
    is_over: Arc<AtomicBool>,
    url: EtcdUrl,
    ca: Option<PathBuf>,
}

impl Leadership {
    /// Makes the key with this manager's address, unless there is one.
    pub(crate) fn campaign(
        url: &EtcdUrl,
        ca: Option<&PathBuf>,
        address: &str,
    ) -> Result<Campaign, StoreError> {
        let mut cluster = Cluster::new(url, ca);
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
            is_over: Arc::new(AtomicBool::new(false)),
            url: url.clone(),
            ca: ca.cloned(),
        };
        leadership.start_keeper()?;
        info!(create_revision, "this manager leads");
        Ok(Campaign::Leads(leadership))
    }

    /// Returns whether the key is known to be gone.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    fn start_keeper(&self) -> Result<(), StoreError> {
        let (url, ca, lease) = (self.url.clone(), self.ca.clone(), self.lease.clone());
        let is_over = Arc::clone(&self.is_over);
        let builder = thread::Builder::new().name("outboard-leader".into());
        let started =
            builder.spawn(move || keep(&mut Cluster::new(&url, ca.as_ref()), &lease, &is_over));
        let started = started.map(drop);
        started.map_err(|error| failed("starting the leader's thread", error))
    }
}

impl Drop for Leadership {
    fn drop(&mut self) {
        // Another manager need not wait for the lease's end.
        if !self.is_over.swap(true, Ordering::Relaxed) {
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
fn keep(cluster: &mut Cluster, lease: &str, is_over: &AtomicBool) {
    let life = Duration::from_secs(limits::LEADER_S);
    let mut until = Instant::now() + life;
    while !is_over.load(Ordering::Relaxed) {
        let asked = Instant::now();
        match cluster.ask("/v3/lease/keepalive", &json!({ "ID": lease })) {
            Ok(said) if number(&said["result"]["TTL"]).is_ok_and(|left| left > 0) => {
                until = asked + life;
            }
            Ok(_) => break,
            Err(error) => {
                warn!(%error, "the leader's key is not kept");
                if Instant::now() > until {
                    break;
                }
            }
        }
        thread::sleep(Duration::from_millis(limits::LEADER_KEPT_MS));
    }
    is_over.store(true, Ordering::Relaxed);
}
