//! The audit: which GPUs were given to whom, when and why they were taken back, and what operators
//! did to them.
//!
//! Entries have consecutive numbers and are written in the transaction of what they tell, so that
//! they are true whatever fails. The oldest are dropped beyond a limit. Nothing is decided by them.

use std::collections::VecDeque;

use crate::{
    api::{AuditView, PoolError},
    limits,
    manager::Manager,
    record::{
        self, AuditEntry, AuditGpu, AuditKind, Cause, Detach, EndReason, LeaseRecord, Leased,
    },
    uuid::Uuid,
};

/// Bytes of an entry's record, about, and of each of its GPUs.
const ENTRY_BYTES: usize = 256;
const GPU_BYTES: usize = 112;

/// The entries that are kept.
#[derive(Default)]
pub(super) struct Audit {
    entries: VecDeque<AuditEntry>,
    /// Number of the last entry, kept or not.
    last: u64,
    /// GPUs of all entries.
    gpus: usize,
    /// Entries after this one are not in a transaction yet.
    written: u64,
}

/// A question about the audit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditFilter {
    /// Only entries after this number.
    pub after: u64,
    pub gpu: Option<Uuid>,
    pub holder: Option<String>,
    /// Only entries of this time and later, in seconds since 1970.
    pub since_s: u64,
}

impl AuditFilter {
    fn suits(&self, entry: &AuditEntry) -> bool {
        let has_gpu = |uuid: Uuid| entry.gpus.iter().any(|gpu| gpu.uuid == uuid);
        let holder = self.holder.as_ref();
        entry.at_s >= self.since_s
            && self.gpu.is_none_or(has_gpu)
            && holder.is_none_or(|holder| entry.holder.as_ref() == Some(holder))
    }
}

impl Audit {
    /// Takes an entry of the store, which has them in their order. Returns whether none is missing.
    pub(super) fn restore(&mut self, entry: AuditEntry) -> bool {
        if !self.entries.is_empty() && entry.number != self.last + 1 {
            return false;
        }
        self.last = entry.number;
        self.written = self.last;
        self.gpus += entry.gpus.len();
        self.entries.push_back(entry);
        true
    }

    /// Returns the length of the records that the next transaction writes, about.
    pub(super) fn noted_bytes(&self) -> usize {
        let new = self.entries.iter().rev();
        let new = new.take_while(|entry| entry.number > self.written);
        new.map(|entry| ENTRY_BYTES + GPU_BYTES * entry.gpus.len())
            .sum()
    }

    /// Returns how many entries the next transaction writes.
    pub(super) fn noted(&self) -> usize {
        usize::try_from(self.last - self.written).unwrap_or(usize::MAX)
    }

    /// Adds GPUs to the last entry if it tells the same of others and is not written yet, otherwise
    /// a new entry. Returns the numbers of entries that are dropped for it.
    fn add(&mut self, mut entry: AuditEntry) -> Vec<u64> {
        self.gpus += entry.gpus.len();
        if let Some(last) = self.entries.back_mut().filter(|last| {
            last.number > self.written
                && !entry.gpus.is_empty()
                && last.gpus.len() + entry.gpus.len() <= limits::AUDIT_ENTRY_GPUS_MAX
                && last.tells_the_same(&entry)
        }) {
            last.gpus.append(&mut entry.gpus);
        } else {
            self.last += 1;
            entry.number = self.last;
            self.entries.push_back(entry);
        }
        let mut dropped = Vec::new();
        while self.entries.len() > limits::AUDIT_ENTRIES_MAX || self.gpus > limits::AUDIT_GPUS_MAX {
            let Some(oldest) = self.entries.pop_front() else {
                break;
            };
            self.gpus -= oldest.gpus.len();
            dropped.push(oldest.number);
        }
        dropped
    }
}

impl AuditEntry {
    /// Returns whether entries differ in nothing but their GPUs.
    fn tells_the_same(&self, other: &AuditEntry) -> bool {
        let told = |entry: &AuditEntry| AuditEntry {
            number: 0,
            gpus: Vec::new(),
            ..entry.clone()
        };
        self.what == other.what && self.lease == other.lease && told(self) == told(other)
    }
}

impl Manager {
    /// Notes who sends the request that comes next: `None` if it is nobody whom the audit names.
    pub fn note_caller(&mut self, caller: Option<&str>) {
        self.caller = caller.map(Into::into);
    }

    /// Returns the first entries that suit.
    pub fn audit(&self, filter: &AuditFilter) -> Result<AuditView, PoolError> {
        let audit = &self.audit;
        if filter.after > audit.last {
            return Err(PoolError::Gone(format!(
                "gone: the last entry of the audit is {}, and not yet {}: the store is another one, or an older copy",
                audit.last, filter.after
            )));
        }
        let kept = audit
            .entries
            .partition_point(|it| it.number <= filter.after);
        let first = audit.entries.front().map_or(audit.last + 1, |it| it.number);
        let mut entries = Vec::new();
        let (mut revision, mut more) = (audit.last, false);
        for entry in audit.entries.range(kept..) {
            if entries.len() >= limits::EVENTS_MAX {
                more = true;
                break;
            }
            if filter.suits(entry) {
                entries.push(entry.clone());
            }
            revision = entry.number;
        }
        Ok(AuditView {
            revision,
            more,
            dropped: (first - 1).saturating_sub(filter.after),
            entries,
        })
    }

    /// Puts the new entries into the next transaction.
    pub(super) fn write_audit(&mut self) {
        let new = self.audit.entries.iter().rev();
        let new = new.take_while(|entry| entry.number > self.audit.written);
        for entry in new {
            // Plain records always have a form.
            let value = serde_json::to_vec(entry).unwrap_or_default();
            self.writes
                .insert(record::audit_key(entry.number), Some(value));
        }
        self.audit.written = self.audit.last;
    }

    fn note(&mut self, entry: AuditEntry) {
        for number in self.audit.add(entry) {
            self.writes.insert(record::audit_key(number), None);
        }
    }

    fn new_entry(&self, what: AuditKind) -> AuditEntry {
        AuditEntry {
            number: 0,
            at_s: self.wall_s,
            what,
            lease: None,
            holder: None,
            host: None,
            gpus: Vec::new(),
            of: None,
            cause: None,
            by: None,
            reason: None,
        }
    }

    fn entry_of(&self, what: AuditKind, record: &LeaseRecord) -> AuditEntry {
        AuditEntry {
            lease: Some(record.id),
            holder: Some(record.claim.owner.clone()),
            host: Some(record.claim.host.clone()),
            ..self.new_entry(what)
        }
    }

    fn audited(&self, leased: &Leased) -> AuditGpu {
        let gpu = self.by_uuid.get(&leased.uuid);
        AuditGpu {
            uuid: leased.uuid,
            of: gpu.map_or(String::new(), |gpu| self.gpus[*gpu].record.of.clone()),
            epoch: Some(leased.epoch),
            since_s: Some(leased.since_s),
        }
    }

    /// Notes GPUs that a lease gets: with its begin or later, or one in place of a lost one.
    pub(super) fn note_given(&mut self, id: u64, gpus: &[Leased], instead_of: Option<String>) {
        let Some(record) = self.leases.get(&id).map(|lease| &lease.record) else {
            return;
        };
        let mut entries = Vec::new();
        for gpus in gpus.chunks(limits::AUDIT_ENTRY_GPUS_MAX) {
            entries.push(AuditEntry {
                gpus: gpus.iter().map(|leased| self.audited(leased)).collect(),
                reason: instead_of.clone(),
                ..self.entry_of(AuditKind::Given, record)
            });
        }
        entries.into_iter().for_each(|entry| self.note(entry));
    }

    /// Notes that a lease is over: its GPUs are taken back when their sessions have ended.
    pub(super) fn note_ended(&mut self, id: u64) {
        let Some(record) = self.leases.get(&id).map(|lease| &lease.record) else {
            return;
        };
        let entry = AuditEntry {
            cause: record.reason.map(Cause::from),
            by: record.ended_by.clone(),
            ..self.entry_of(AuditKind::Ended, record)
        };
        self.note(entry);
    }

    /// Notes something about a whole lease.
    pub(super) fn note_lease(&mut self, what: AuditKind, id: u64, reason: &str) {
        if let Some(lease) = self.leases.get(&id) {
            let entry = AuditEntry {
                reason: Some(reason.into()),
                ..self.entry_of(what, &lease.record)
            };
            self.note(entry);
        }
    }

    /// Notes a GPU of a lease that is told of, or of which something is asked.
    pub(super) fn note_leased(&mut self, what: AuditKind, id: u64, uuid: &Uuid) {
        let Some(record) = self.leases.get(&id).map(|lease| &lease.record) else {
            return;
        };
        let Some(leased) = record.gpus.iter().find(|it| it.uuid == *uuid && !it.free) else {
            return;
        };
        let mut entry = AuditEntry {
            gpus: vec![self.audited(leased)],
            ..self.entry_of(what, record)
        };
        (entry.cause, entry.by, entry.reason) = match what {
            AuditKind::Taken => cause_of(record, leased),
            _ if leased.is_forced => (Some(Cause::Forced), self.caller.clone(), None),
            _ => (Some(Cause::Detached), self.caller.clone(), None),
        };
        self.note(entry);
    }

    /// Notes what was done to a box.
    pub(super) fn note_box(&mut self, what: AuditKind, number: usize, reason: Option<String>) {
        let gpus = self.boxes[number].gpus.clone();
        self.note_operated(what, &gpus, number, reason);
    }

    /// Notes what was done to a GPU, or found about it.
    pub(super) fn note_gpu(&mut self, what: AuditKind, gpu: usize, reason: Option<String>) {
        self.note_operated(what, &[gpu], self.gpus[gpu].of, reason);
    }

    fn note_operated(
        &mut self,
        what: AuditKind,
        gpus: &[usize],
        of: usize,
        reason: Option<String>,
    ) {
        let of = &self.boxes[of].record.name;
        let gpus = gpus.iter().take(limits::AUDIT_ENTRY_GPUS_MAX);
        let gpus = gpus.map(|gpu| AuditGpu {
            uuid: self.gpus[*gpu].record.facts.uuid,
            of: of.clone(),
            epoch: None,
            since_s: None,
        });
        let entry = AuditEntry {
            gpus: gpus.collect(),
            of: Some(of.clone()),
            by: self.caller.clone(),
            reason,
            ..self.new_entry(what)
        };
        self.note(entry);
    }
}

/// Returns why a GPU that is free again was taken from its lease, by whom, and a text about it.
fn cause_of(
    record: &LeaseRecord,
    leased: &Leased,
) -> (Option<Cause>, Option<String>, Option<String>) {
    if leased.replaced {
        return (Some(Cause::Lost), None, leased.lost.clone());
    }
    match leased.detach {
        Detach::Out if leased.is_forced => (Some(Cause::Forced), leased.detached_by.clone(), None),
        Detach::Out => (Some(Cause::Detached), leased.detached_by.clone(), None),
        Detach::No | Detach::Waits => (
            record.reason.map(Cause::from),
            record.ended_by.clone(),
            None,
        ),
    }
}

impl From<EndReason> for Cause {
    fn from(reason: EndReason) -> Cause {
        match reason {
            EndReason::Released => Cause::Released,
            EndReason::HolderGone => Cause::HolderGone,
            EndReason::Expired => Cause::Expired,
            EndReason::Detached => Cause::Detached,
            EndReason::Idle => Cause::Idle,
        }
    }
}
