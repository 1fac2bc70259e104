//! Records in etcd, below the pool's prefix:
//!
//! | key | contents |
//! |---|---|
//! | `record/KEY` | a record |
//! | `last` | rewritten by each transaction, which compares its revision: none is repeated late |
//! | `journal` | a transaction with more writes than etcd takes at once, until all are done |
//!
//! A large transaction is done when its journal is written; whoever loads the store finishes it.

use std::io;

use outboard_pool::{Change, Entry, Revision, Store, StoreError, Transaction};
use serde_json::{Value, json};

use super::{
    EtcdUrl, Leadership,
    cluster::{Cluster, bytes, end_of, number, text},
    failed,
};
use crate::limits;

type Writes = Vec<(String, Option<Vec<u8>>)>;

/// Records of one pool in a cluster.
pub(crate) struct EtcdStore {
    cluster: Cluster,
    prefix: String,
    /// Key and create revision of the leader's key, which each transaction compares.
    leader: Option<(String, u64)>,
    /// Revision of the key `last`.
    last: Revision,
}

impl EtcdStore {
    /// Connects to the cluster, and finishes what an earlier manager has begun.
    pub(crate) fn open(
        url: &EtcdUrl,
        cluster: Cluster,
        leader: Option<&Leadership>,
    ) -> Result<EtcdStore, StoreError> {
        let mut store = EtcdStore {
            cluster,
            prefix: url.prefix(),
            leader: leader.map(|leader| (leader.key.clone(), leader.create_revision)),
            last: 0,
        };
        store.read_last().map_err(|e| failed("reading", e))?;
        store.finish()?;
        Ok(store)
    }

    fn key(&self, name: &str) -> Value {
        text(format!("{}{name}", self.prefix).as_bytes())
    }

    fn record(&self, key: &str) -> Value {
        self.key(&format!("record/{key}"))
    }

    fn read_last(&mut self) -> io::Result<()> {
        let range = json!({ "key": self.key("last") });
        let found = self.cluster.ask("/v3/kv/range", &range)?;
        self.last = number(&found["kvs"][0]["mod_revision"])?;
        Ok(())
    }

    /// Compares the leader's key and the last revision.
    fn guards(&self) -> Vec<Value> {
        let mut guards = vec![is_of(&self.key("last"), self.last)];
        if let Some((key, revision)) = &self.leader {
            guards.push(json!({
                "key": text(key.as_bytes()), "target": "CREATE", "createRevision": revision.to_string()
            }));
        }
        guards
    }

    fn puts(&self, writes: &[(String, Option<Vec<u8>>)]) -> Vec<Value> {
        let put = |(key, value): &(String, Option<Vec<u8>>)| match value {
            Some(value) => {
                json!({ "requestPut": { "key": self.record(key), "value": text(value) } })
            }
            None => json!({ "requestDeleteRange": { "key": self.record(key) } }),
        };
        writes.iter().map(put).collect()
    }

    /// Does one transaction of etcd. Returns its revision, unless a comparison failed.
    fn transact(&mut self, compare: &[Value], success: &mut Vec<Value>) -> io::Result<Option<u64>> {
        success.push(json!({ "requestPut": { "key": self.key("last") } }));
        let body = json!({ "compare": compare, "success": success });
        let said = self.cluster.once("/v3/kv/txn", &body)?;
        if said["succeeded"] != Value::Bool(true) {
            return Ok(None);
        }
        self.last = number(&said["header"]["revision"])?;
        Ok(Some(self.last))
    }

    /// Does the writes of the journal, if there is one, then removes it.
    fn finish(&mut self) -> Result<(), StoreError> {
        let reading = |error| failed("reading", error);
        let range = json!({ "key": self.key("journal") });
        let found = self.cluster.ask("/v3/kv/range", &range).map_err(reading)?;
        let Some(entry) = found["kvs"].get(0) else {
            return Ok(());
        };
        let revision = number(&entry["mod_revision"]).map_err(reading)?;
        let journal = bytes(&entry["value"]).map_err(reading)?;
        let writes: Writes = postcard::from_bytes(&journal)
            .map_err(|error| StoreError::Damaged(format!("the journal: {error}")))?;
        let mut pieces = writes.chunks(limits::ETCD_WRITES_MAX).peekable();
        while let Some(piece) = pieces.next() {
            let mut guards = self.guards();
            guards.push(is_of(&self.key("journal"), revision));
            let mut success = self.puts(piece);
            if pieces.peek().is_none() {
                success.push(json!({ "requestDeleteRange": { "key": self.key("journal") } }));
            }
            let done = self.transact(&guards, &mut success);
            done.map_err(|error| failed("writing", error))?
                .ok_or(StoreError::Conflict)?;
        }
        Ok(())
    }

    fn page(&mut self, from: &[u8], revision: u64) -> io::Result<Value> {
        let mut range = json!({
            "key": text(from), "range_end": text(&end_of(&format!("{}record/", self.prefix))),
            "limit": limits::ETCD_PAGE.to_string(),
        });
        if revision > 0 {
            range["revision"] = revision.to_string().into();
        }
        self.cluster.ask("/v3/kv/range", &range)
    }

    fn pages(&mut self) -> io::Result<Vec<Entry>> {
        let prefix = format!("{}record/", self.prefix);
        let (mut from, mut revision) = (prefix.clone().into_bytes(), 0);
        let mut entries = Vec::new();
        loop {
            let page = self.page(&from, revision)?;
            if revision == 0 {
                revision = number(&page["header"]["revision"])?;
            }
            for entry in page["kvs"].as_array().into_iter().flatten() {
                from = bytes(&entry["key"])?;
                let key = String::from_utf8(from.clone()).map_err(io::Error::other)?;
                let name = key.strip_prefix(&prefix).unwrap_or(&key);
                entries.push(Entry {
                    key: name.into(),
                    value: bytes(&entry["value"])?,
                    revision: number(&entry["mod_revision"])?,
                });
            }
            if page["more"] != Value::Bool(true) {
                return Ok(entries);
            }
            from.push(0);
        }
    }
}

impl Store for EtcdStore {
    fn load(&mut self) -> Result<Vec<Entry>, StoreError> {
        self.read_last().map_err(|e| failed("reading", e))?;
        self.finish()?;
        self.pages().map_err(|error| failed("reading", error))
    }

    fn commit(&mut self, transaction: &Transaction) -> Result<Revision, StoreError> {
        let mut compare = self.guards();
        for (key, revision) in &transaction.compare {
            compare.push(is_of(&self.record(key), revision.unwrap_or(0)));
        }
        let writing = |error| failed("writing", error);
        if transaction.write.is_empty() {
            let body = json!({ "compare": compare });
            let said = self.cluster.ask("/v3/kv/txn", &body).map_err(writing)?;
            return match said["succeeded"] == Value::Bool(true) {
                true => Ok(self.last),
                false => Err(StoreError::Conflict),
            };
        }
        let is_small = transaction.write.len() <= limits::ETCD_WRITES_MAX;
        let mut success = match is_small {
            true => self.puts(&transaction.write),
            false => {
                let journal = postcard::to_stdvec(&transaction.write);
                let journal = journal.map_err(|error| writing(io::Error::other(error)))?;
                if journal.len() > limits::ETCD_BYTES_MAX {
                    let text = format!("etcd does not take {} bytes at once", journal.len());
                    return Err(writing(io::Error::other(text)));
                }
                vec![
                    json!({ "requestPut": { "key": self.key("journal"), "value": text(&journal) } }),
                ]
            }
        };
        let done = self.transact(&compare, &mut success).map_err(writing)?;
        done.ok_or(StoreError::Conflict)?;
        if !is_small {
            self.finish()?;
        }
        Ok(self.last)
    }

    fn writes_max(&self) -> usize {
        limits::ETCD_WRITES_MAX
    }

    fn changes(&mut self, after: Revision) -> Result<Vec<Change>, StoreError> {
        let reading = |error| failed("reading", error);
        self.read_last().map_err(reading)?;
        let (last, prefix) = (self.last, self.prefix.clone());
        if last <= after {
            return Ok(Vec::new());
        }
        let watch = json!({ "create_request": {
            "key": text(prefix.as_bytes()), "range_end": text(&end_of(&prefix)),
            "start_revision": (after + 1).to_string(),
        } });
        let mut changes = Vec::new();
        let mut is_compacted = false;
        let mut take = |line: &Value| {
            let result = &line["result"];
            is_compacted |= number(&result["compact_revision"])? > 0;
            let mut is_last = is_compacted;
            for event in result["events"].as_array().into_iter().flatten() {
                let revision = number(&event["kv"]["mod_revision"])?;
                let key =
                    String::from_utf8(bytes(&event["kv"]["key"])?).map_err(io::Error::other)?;
                let key = key.strip_prefix(&prefix).unwrap_or(&key);
                if let Some(key) = key.strip_prefix("record/") {
                    let key = key.into();
                    changes.push(Change { revision, key });
                }
                is_last |= key == "last" && revision >= last;
            }
            Ok(is_last)
        };
        let read = self.cluster.lines("/v3/watch", &watch, &mut take);
        read.map_err(reading)?;
        match is_compacted {
            true => Err(StoreError::Compacted(after)),
            false => Ok(changes),
        }
    }
}

fn is_of(key: &Value, revision: Revision) -> Value {
    json!({ "key": key, "target": "MOD", "modRevision": revision.to_string() })
}
