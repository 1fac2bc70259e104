//! A manager of a store's records.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::de::DeserializeOwned;

use crate::{
    limits,
    manager::{Box_, Due, Gpu, Host, Lease, Manager, place_of},
    placement::Placement,
    record::{
        AUDIT_PREFIX, BOX_PREFIX, BoxRecord, FORMAT, GPU_PREFIX, GpuRecord, HOST_PREFIX,
        HostRecord, LEASE_PREFIX, LeaseRecord, LeaseState, POOL_KEY, PoolRecord, QUOTA_PREFIX,
        QuotaRecord, SPARES_PREFIX, SpareRecord,
    },
    store::{Entry, Store, StoreError, Transaction},
};

use super::{
    audit::Audit, changes::Changes, entries::Entries, history::History, queue::Queue,
    spares::Spares,
};

impl Manager {
    /// Takes over a store: from now on no other manager writes to it. `id` is the pool's, if this
    /// is a new store, and `key` the public key as text. The manager's time is 0 at this moment.
    pub fn open(store: &mut dyn Store, id: &str, key: &str) -> Result<Manager, StoreError> {
        Manager::open_from(store, id, key, 0)
    }

    /// Takes over a store as an incarnation that has at least this number. If that grows with each
    /// start, boxes believe the manager of an older copy of the store, too.
    pub fn open_from(
        store: &mut dyn Store,
        id: &str,
        key: &str,
        least: u64,
    ) -> Result<Manager, StoreError> {
        let entries = store.load()?;
        let pool = entries.iter().find(|entry| entry.key == POOL_KEY);
        let (before, revision) = match pool {
            None if entries.is_empty() => (None, None),
            None => {
                return Err(StoreError::Damaged(format!(
                    "it has no record {POOL_KEY:?}"
                )));
            }
            Some(entry) => (Some(read_pool(entry)?), Some(entry.revision)),
        };
        let known = before.as_ref().and_then(|before| before.key.as_deref());
        if known.is_some_and(|known| known != key) {
            return Err(StoreError::OtherKey);
        }
        let record = PoolRecord {
            format: FORMAT,
            id: before.as_ref().map_or(id, |before| &before.id).into(),
            incarnation: least.max(before.map_or(0, |before| before.incarnation) + 1),
            key: Some(key.into()),
        };
        let value = serde_json::to_vec(&record).unwrap_or_default();
        let committed = store.commit(&Transaction {
            compare: vec![(POOL_KEY.into(), revision)],
            write: vec![(POOL_KEY.into(), Some(value))],
        })?;
        // Another manager may have written between the reading and the taking over.
        let entries = store.load()?;
        let mut manager = Manager::empty(record, committed, key);
        for entry in &entries {
            manager.take_entry(entry)?;
        }
        manager.take_leases()?;
        Ok(manager)
    }

    fn empty(pool: PoolRecord, revision: u64, key: &str) -> Manager {
        Manager {
            pool,
            pool_revision: Some(revision),
            key: key.into(),
            gpus: Vec::new(),
            by_uuid: HashMap::new(),
            boxes: Vec::new(),
            by_name: HashMap::new(),
            hosts: BTreeMap::new(),
            leases: BTreeMap::new(),
            by_uid: HashMap::new(),
            over: BTreeSet::new(),
            lease_last: 0,
            leases_lost: (0, 0),
            node_last: 0,
            quotas: BTreeMap::new(),
            spares: Spares::default(),
            used: HashMap::new(),
            queue: Queue::default(),
            placement: Placement::default(),
            due: BTreeSet::new(),
            woken: BTreeSet::new(),
            writes: BTreeMap::new(),
            has_promised: false,
            changes: Changes::default(),
            audit: Audit::default(),
            history: History::default(),
            idle_reclaim_ms: None,
            ended: BTreeMap::new(),
            caller: None,
            wall_s: 0,
        }
    }

    fn take_entry(&mut self, entry: &Entry) -> Result<(), StoreError> {
        let key = entry.key.as_str();
        if key.starts_with(BOX_PREFIX) {
            let record: BoxRecord = read(entry)?;
            self.node_last = self.node_last.max(record.node);
            self.add_box(record);
        } else if key.starts_with(GPU_PREFIX) {
            let record: GpuRecord = read(entry)?;
            let of = self.by_name.get(&record.of).copied();
            let of = of.ok_or_else(|| damaged(entry, "its box is missing"))?;
            self.add_gpu(record, of);
        } else if key.starts_with(HOST_PREFIX) {
            let record: HostRecord = read(entry)?;
            self.node_last = self.node_last.max(record.node);
            let used = Entries::default();
            self.hosts
                .insert(record.name.clone(), Host { record, used });
        } else if key.starts_with(LEASE_PREFIX) {
            let record: LeaseRecord = read(entry)?;
            self.lease_last = self.lease_last.max(record.id);
            self.by_uid.insert(record.claim.uid.clone(), record.id);
            let claim = &record.claim;
            self.placement.note(claim.same, claim.gpus as usize);
            let later = record.gpus.iter().filter_map(|it| it.attached_by.clone());
            self.by_uid.extend(later.map(|uid| (uid, record.id)));
            let lease = Lease {
                record,
                deadline_ms: 0,
                due_ms: 0,
                gone_ms: None,
                news: 0,
                idle_until_ms: None,
            };
            self.leases.insert(lease.record.id, lease);
        } else if key.starts_with(QUOTA_PREFIX) {
            let record: QuotaRecord = read(entry)?;
            self.quotas.insert(record.owner.clone(), record);
        } else if key.starts_with(SPARES_PREFIX) {
            let record: SpareRecord = read(entry)?;
            self.spares.set(record);
        } else if key.starts_with(AUDIT_PREFIX) {
            if !self.audit.restore(read(entry)?) {
                return Err(damaged(entry, "the one before is missing"));
            }
        } else if key != POOL_KEY {
            return Err(damaged(entry, "nothing of this name is known"));
        }
        Ok(())
    }

    /// Checks that leases and GPUs agree. Each lease gets a whole term: the manager before may have
    /// promised as much until this moment.
    fn take_leases(&mut self) -> Result<(), StoreError> {
        let mut taken = BTreeMap::new();
        let ids: Vec<u64> = self.leases.keys().copied().collect();
        for id in ids {
            let Some(lease) = self.leases.get_mut(&id) else {
                continue;
            };
            let record = &lease.record;
            if record.state == LeaseState::Over {
                self.over.insert(id);
                continue;
            }
            let name = || format!("lease {id}");
            for leased in record.gpus.iter().filter(|leased| !leased.free) {
                let gpu = self
                    .by_uuid
                    .get(&leased.uuid)
                    .map(|gpu| &self.gpus[*gpu].record);
                let agrees =
                    gpu.is_some_and(|gpu| gpu.lease == Some(id) && gpu.epoch == leased.epoch);
                if !agrees || taken.insert(leased.uuid, id).is_some() {
                    return Err(StoreError::Damaged(format!(
                        "{} and {} do not agree",
                        name(),
                        leased.uuid
                    )));
                }
                *self.used.entry(record.claim.owner.clone()).or_default() += 1;
                if let Some(host) = self.hosts.get_mut(&record.claim.host) {
                    host.used.insert(leased.entry);
                }
                if leased.is_out()
                    && let Some(gpu) = self.by_uuid.get(&leased.uuid)
                {
                    let due_ms = record.claim.term_ms + limits::MARGIN_MS;
                    self.gpus[*gpu].out_ms = Some(due_ms);
                    self.due.insert((due_ms, Due::Out(id, *gpu)));
                }
            }
            lease.deadline_ms = record.claim.term_ms;
            lease.due_ms = match record.state {
                LeaseState::Granted => lease.deadline_ms,
                _ => lease.deadline_ms + limits::MARGIN_MS,
            };
            self.due.insert((lease.due_ms, Due::Lease(id)));
        }
        self.due.insert((0, Due::History));
        // Boxes that do not report are noticed.
        let boxes = 0..self.boxes.len();
        self.due
            .extend(boxes.map(|number| (limits::BOX_SILENCE_MS, Due::Box(number))));
        let leased = self.gpus.iter().filter(|gpu| gpu.record.lease.is_some());
        match leased.count() == taken.len() {
            true => Ok(()),
            false => Err(StoreError::Damaged(
                "GPUs have leases that are not there".into(),
            )),
        }
    }

    pub(super) fn add_box(&mut self, record: BoxRecord) -> usize {
        let number = self.boxes.len();
        self.by_name.insert(record.name.clone(), number);
        self.boxes.push(Box_ {
            record,
            gpus: Vec::new(),
            instance: None,
            heard_until_ms: None,
            heard_ms: 0,
            revision: 0,
            check: None,
            link_fails: None,
            is_forgotten: false,
        });
        number
    }

    pub(super) fn add_gpu(&mut self, record: GpuRecord, of: usize) {
        let gpu = self.gpus.len();
        self.by_uuid.insert(record.facts.uuid, gpu);
        if record.present {
            let link = self.boxes[of].record.link;
            self.placement.add(gpu, &place_of(&record), link);
        }
        self.boxes[of].gpus.push(gpu);
        self.gpus.push(Gpu {
            record,
            of,
            is_free: false,
            is_spare: false,
            window: None,
            trial_ms: None,
            out_ms: None,
            given_ms: 0,
            idle_from_ms: None,
            failures_told: 0,
            epoch_told: 0,
            is_forgotten: false,
        });
    }
}

fn read_pool(entry: &Entry) -> Result<PoolRecord, StoreError> {
    #[derive(serde::Deserialize)]
    struct Format {
        format: u32,
    }
    // A later format may have other fields.
    let Format { format } = read(entry)?;
    match format <= FORMAT {
        true => read(entry),
        false => Err(StoreError::Future {
            ours: FORMAT,
            theirs: format,
        }),
    }
}

fn read<T: DeserializeOwned>(entry: &Entry) -> Result<T, StoreError> {
    serde_json::from_slice(&entry.value).map_err(|error| damaged(entry, &error.to_string()))
}

fn damaged(entry: &Entry, why: &str) -> StoreError {
    StoreError::Damaged(format!("{}: {why}", entry.key))
}
