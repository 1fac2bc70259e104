//! The manager: gives out GPUs and takes them back. It does no I/O.
//!
//! Every request changes what is in memory and notes what is to be written. The caller then commits
//! [`Manager::take_transaction`], and sends answers only after that. If the transaction fails, the
//! caller drops the manager and makes a new one of the store's records.
//!
//! - `open`: a manager of a store's records.
//! - `boxes`: boxes that join and report.
//! - `claims`: claims, leases and their end.
//! - `entries`: entries of hosts' tables.
//! - `audit`: what was given to whom, and taken back.
//! - `attach`: GPUs that a host has, without a program.
//! - `history`: its numbers over time.
//! - `idle`: leases that nobody uses.
//! - `queue`: claims that wait.
//! - `health`: GPUs that fail, and what a lease loses.
//! - `spares`: GPUs that are held back for that.
//! - `operate`: drains, taints and quotas.
//! - `show`: lists and mapping tables.
//! - `changes`: changes since a revision, for those who watch.

mod attach;
mod audit;
mod boxes;
mod changes;
mod claims;
mod entries;
mod health;
mod history;
mod idle;
mod open;
mod operate;
mod queue;
mod show;
mod spares;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::Serialize;

use crate::{
    api::PoolError,
    limits,
    placement::{Place, Placement},
    record::{
        self, BoxRecord, Condition, EndReason, GpuRecord, HostRecord, LeaseRecord, POOL_KEY,
        PoolRecord, QuotaRecord,
    },
    store::{Revision, Transaction},
    uuid::Uuid,
};
use audit::Audit;
pub use audit::AuditFilter;
use changes::{Changes, Subject};
use entries::Entries;
use history::History;
use queue::Queue;
use spares::Spares;

/// State of a manager.
pub struct Manager {
    pool: PoolRecord,
    /// Of the pool's record, which every transaction compares.
    pool_revision: Option<Revision>,
    /// Public key, as boxes get it.
    key: String,
    gpus: Vec<Gpu>,
    by_uuid: HashMap<Uuid, usize>,
    boxes: Vec<Box_>,
    by_name: HashMap<String, usize>,
    hosts: BTreeMap<String, Host>,
    leases: BTreeMap<u64, Lease>,
    by_uid: HashMap<String, u64>,
    /// Leases that are over, oldest first.
    over: BTreeSet<u64>,
    lease_last: u64,
    /// Numbers of leases that the store has lost, since it is an older copy: after the first, up to
    /// the last.
    leases_lost: (u64, u64),
    node_last: u32,
    quotas: BTreeMap<String, QuotaRecord>,
    spares: Spares,
    /// GPUs that each owner has.
    used: HashMap<String, u32>,
    queue: Queue,
    placement: Placement,
    due: BTreeSet<(u64, Due)>,
    /// Boxes that have news.
    woken: BTreeSet<usize>,
    writes: BTreeMap<String, Option<Vec<u8>>>,
    /// Whether something was promised that only the present manager may promise.
    has_promised: bool,
    changes: Changes,
    audit: Audit,
    history: History,
    /// Time after which idle GPUs are taken back, as the operator sets it.
    idle_reclaim_ms: Option<u64>,
    /// Leases that have ended since this manager's start.
    ended: BTreeMap<EndReason, u64>,
    /// Name of the one whose request is handled.
    caller: Option<String>,
    /// Seconds since 1970, for those who read lists.
    wall_s: u64,
}

/// A thing to be looked at, at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    /// The next sample of the history.
    History,
    Lease(u64),
    Box(usize),
    /// A claim that waits, by its number.
    Waiting(u64),
    /// A GPU that is suspect is given out again.
    Trial(usize),
    /// A GPU that its lease has no more is free: a spare has its place, or it was detached.
    Out(u64, usize),
}

struct Gpu {
    record: GpuRecord,
    of: usize,
    is_free: bool,
    /// Whether it is held back for broken ones. Then it is not among those that are placed.
    is_spare: bool,
    window: Option<(u64, u64)>,
    /// Time until which it is not given out, since a session failed.
    trial_ms: Option<u64>,
    /// Time at which it is free although its box says nothing, if its lease has it no more.
    out_ms: Option<u64>,
    /// Time at which its lease got it, and since when its box calls it idle; `None`: it is used, or
    /// nothing is known.
    given_ms: u64,
    idle_from_ms: Option<u64>,
    /// Failed sessions that the box's process has reported.
    failures_told: u32,
    /// Highest epoch that its box knows: no lower one is given out.
    epoch_told: u64,
    /// An operator forgot its box: nothing leads here any more.
    is_forgotten: bool,
}

struct Box_ {
    record: BoxRecord,
    gpus: Vec<usize>,
    instance: Option<String>,
    /// Time after which it counts as silent; None: it is silent.
    heard_until_ms: Option<u64>,
    /// Time of the last report.
    heard_ms: u64,
    revision: u64,
    /// Reason for which its check of GPUs fails.
    check: Option<String>,
    /// Reason for which it could not measure its network.
    link_fails: Option<String>,
    /// An operator forgot it: nothing leads here any more.
    is_forgotten: bool,
}

struct Host {
    record: HostRecord,
    used: Entries,
}

struct Lease {
    record: LeaseRecord,
    deadline_ms: u64,
    due_ms: u64,
    /// The holder's connection has ended; time until which it may come back.
    gone_ms: Option<u64>,
    /// Rises with each GPU that is lost, replaced, attached or detached, and with each notice.
    news: u64,
    /// The holder was told that idle GPUs are taken back at this time.
    idle_until_ms: Option<u64>,
}

impl Manager {
    /// Returns the writes since the last call, if there are any. A transaction without writes asks
    /// whether this manager still has the store: a renewal may be promised only if it does.
    pub fn take_transaction(&mut self) -> Option<Transaction> {
        self.write_audit();
        if self.writes.is_empty() && !std::mem::take(&mut self.has_promised) {
            return None;
        }
        Some(Transaction {
            compare: vec![(POOL_KEY.into(), self.pool_revision)],
            write: std::mem::take(&mut self.writes).into_iter().collect(),
        })
    }

    /// Returns the length of the values that the next transaction writes.
    pub fn noted_bytes(&self) -> usize {
        let records = self.writes.values().flatten();
        records.map(Vec::len).sum::<usize>() + self.audit.noted_bytes()
    }

    /// Returns how many writes the next transaction has.
    pub fn noted_writes(&self) -> usize {
        self.writes.len() + self.audit.noted()
    }

    pub fn incarnation(&self) -> u64 {
        self.pool.incarnation
    }

    /// Returns the boxes that have news, by name.
    pub fn take_woken(&mut self) -> Vec<String> {
        let woken = std::mem::take(&mut self.woken);
        let name = |at: usize| self.boxes[at].record.name.clone();
        woken.into_iter().map(name).collect()
    }

    /// Returns when to call [`tick`](Self::tick).
    pub fn next_ms(&self) -> Option<u64> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Notes the time of day, for those who read lists.
    pub fn note_time(&mut self, wall_s: u64) {
        self.wall_s = wall_s;
    }

    /// Does what the time brings.
    pub fn tick(&mut self, now_ms: u64) {
        while let Some(&(at, what)) = self.due.first() {
            if at > now_ms {
                break;
            }
            self.due.remove(&(at, what));
            match what {
                Due::History => self.history_is_due(now_ms),
                Due::Lease(id) => self.lease_is_due(now_ms, id),
                Due::Box(number) => self.box_is_due(now_ms, number),
                Due::Waiting(number) => self.waiting_is_due(now_ms, number),
                Due::Trial(gpu) => self.trial_is_due(now_ms, gpu),
                Due::Out(lease, gpu) => self.out_is_due(now_ms, lease, gpu),
            }
        }
        self.give_to_waiting(now_ms);
    }

    fn write<T: Serialize>(&mut self, key: String, record: &T) {
        self.writes.insert(key, Some(value_of(record)));
    }

    fn write_gpu(&mut self, gpu: usize) {
        self.changes.touch(Subject::Gpu(gpu));
        let record = &self.gpus[gpu].record;
        let key = record::gpu_key(&record.facts.uuid);
        self.writes.insert(key, Some(value_of(record)));
    }

    /// Gives a GPU to a lease. Returns its epoch.
    fn give(&mut self, now_ms: u64, gpu: usize, id: u64) -> u64 {
        let entry = &mut self.gpus[gpu];
        (entry.given_ms, entry.idle_from_ms) = (now_ms, None);
        entry.record.epoch = entry.record.epoch.max(entry.epoch_told) + 1;
        entry.record.lease = Some(id);
        entry.window = None;
        entry.record.epoch
    }

    /// Notes that a lease's holder is to be told something that is not in the store.
    fn has_news(&mut self, id: u64) {
        if let Some(lease) = self.leases.get_mut(&id) {
            lease.news += 1;
            self.changes.touch(Subject::Lease(id));
        }
    }

    fn write_lease(&mut self, id: u64) {
        self.changes.touch(Subject::Lease(id));
        if let Some(lease) = self.leases.get(&id) {
            let value = value_of(&lease.record);
            self.writes.insert(record::lease_key(id), Some(value));
        }
    }

    /// Puts a GPU among the free ones or takes it away, as its state says.
    fn settle(&mut self, gpu: usize) {
        self.changes.touch(Subject::Gpu(gpu));
        let of = &self.boxes[self.gpus[gpu].of];
        let is_usable = of.heard_until_ms.is_some() && of.record.drained.is_none();
        let Gpu {
            record,
            is_free,
            trial_ms,
            ..
        } = &mut self.gpus[gpu];
        let was_free = *is_free;
        let is_well = record.health.condition != Condition::Broken && trial_ms.is_none();
        *is_free = is_usable
            && is_well
            && record.present
            && record.taint.is_none()
            && record.lease.is_none();
        match (was_free, *is_free) {
            (false, true) if self.wants_spare(gpu) => self.hold_back(gpu),
            (false, true) => self.placement.put(gpu),
            (true, false) if self.gpus[gpu].is_spare => self.hold_back_no_more(gpu),
            (true, false) => self.placement.take(gpu),
            _ => {}
        }
    }

    fn settle_box(&mut self, number: usize) {
        self.changes.touch(Subject::Box(number));
        for gpu in self.boxes[number].gpus.clone() {
            self.settle(gpu);
        }
    }

    /// Tells a box that its leases have changed.
    fn wake(&mut self, number: usize) {
        self.boxes[number].revision += 1;
        self.woken.insert(number);
    }

    fn box_named(&self, name: &str) -> Result<usize, PoolError> {
        let found = self.by_name.get(name).copied();
        found.ok_or_else(|| PoolError::Unknown(format!("there is no box {name:?}")))
    }
}

/// Returns a record as it is stored.
fn value_of<T: Serialize>(record: &T) -> Vec<u8> {
    // Plain records always have a form.
    serde_json::to_vec(record).unwrap_or_default()
}

/// Returns where a GPU lies. Names of groups begin with the box's, so that they hold for all boxes.
fn place_of(record: &GpuRecord) -> Place {
    let (of, facts) = (&record.of, &record.facts);
    // A GPU without a group is one by itself.
    let group = |kind: &str, name: &Option<String>| match name {
        Some(name) => format!("{of}/{kind}/{name}"),
        None => format!("{of}/{}", facts.uuid),
    };
    Place {
        model: facts.model.clone(),
        groups: [
            of.clone(),
            group("nvlink", &facts.nvlink),
            group("bridge", &facts.bridge),
            format!("{of}/proxy/{}", facts.proxy),
        ],
    }
}

/// Checks a word that appears in lists and in keys of the store.
pub fn check_name(what: &str, name: &str) -> Result<(), PoolError> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-@".contains(&byte);
    match (1..=limits::NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_plain) {
        true => Ok(()),
        false => Err(PoolError::Wrong(format!(
            "{:?} is no name of {what}: letters, digits and . _ - @ are, at most {}",
            name.chars()
                .take(limits::NAME_BYTES_MAX)
                .collect::<String>(),
            limits::NAME_BYTES_MAX
        ))),
    }
}

/// Checks a text that a box has of its GPUs or its server, and that is shown.
fn check_text(what: &str, text: &str, bytes_max: usize) -> Result<(), PoolError> {
    let is_shown = |char: char| !char.is_control() && !is_invisible(char);
    match (1..=bytes_max).contains(&text.len()) && text.chars().all(is_shown) {
        true => Ok(()),
        false => Err(PoolError::Wrong(format!(
            "{:?} is no name of {what}: it has 1 to {bytes_max} bytes, and none that control a terminal",
            text.chars()
                .take(limits::NAME_BYTES_MAX)
                .collect::<String>()
        ))),
    }
}

/// Returns whether a character changes the direction of text, or the look of others.
fn is_invisible(char: char) -> bool {
    matches!(char, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}
