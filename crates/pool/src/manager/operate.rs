//! Drains, taints and quotas.

use std::collections::BTreeSet;

use crate::{
    api::PoolError,
    limits,
    manager::{Manager, changes::Subject, check_name},
    record::{self, AuditKind, QuotaRecord},
    uuid::Uuid,
};

impl Manager {
    /// Stops giving out the GPUs of a box, for a reason, or goes on. Leases stay.
    pub fn drain(
        &mut self,
        now_ms: u64,
        name: &str,
        reason: Option<String>,
    ) -> Result<(), PoolError> {
        let number = self.box_named(name)?;
        let reason = checked(reason)?;
        let what = match reason {
            Some(_) => AuditKind::Drained,
            None => AuditKind::Undrained,
        };
        // An undrain of what is not drained does nothing.
        if reason.is_none() && self.boxes[number].record.drained.is_none() {
            return Ok(());
        }
        self.note_box(what, number, reason.clone());
        self.boxes[number].record.drained = reason;
        let record = self.boxes[number].record.clone();
        self.write(record::box_key(name), &record);
        self.settle_box(number);
        self.tell_drain(number);
        self.give_to_waiting(now_ms);
        Ok(())
    }

    /// Forgets a box and its GPUs, none of which a lease has: others may have them then.
    pub fn forget_box(&mut self, name: &str) -> Result<(), PoolError> {
        let number = self.box_named(name)?;
        let gpus = self.boxes[number].gpus.clone();
        let leases: BTreeSet<u64> = gpus
            .iter()
            .filter_map(|gpu| self.gpus[*gpu].record.lease)
            .collect();
        if let Some(lease) = leases.first() {
            return Err(PoolError::Conflict(format!(
                "{} leases have GPUs of the box {name}, such as the lease {lease}: drain the box, and wait until they are over",
                leases.len()
            )));
        }
        self.note_box(AuditKind::Forgotten, number, None);
        for gpu in gpus {
            self.mend(gpu);
            self.gpus[gpu].record.present = false;
            self.settle(gpu);
            self.placement.remove(gpu);
            self.gpus[gpu].is_forgotten = true;
            let uuid = self.gpus[gpu].record.facts.uuid;
            self.by_uuid.remove(&uuid);
            self.writes.insert(record::gpu_key(&uuid), None);
        }
        self.wake(number);
        let of = &mut self.boxes[number];
        of.gpus.clear();
        (of.instance, of.heard_until_ms, of.is_forgotten) = (None, None, true);
        self.by_name.remove(name);
        self.changes.touch(Subject::Box(number));
        self.writes.insert(record::box_key(name), None);
        Ok(())
    }

    /// Stops giving out a GPU, for a reason. Without one it is healthy, and given out. Its lease
    /// stays.
    pub fn taint(
        &mut self,
        now_ms: u64,
        uuid: &Uuid,
        reason: Option<String>,
    ) -> Result<(), PoolError> {
        let gpu = self.by_uuid.get(uuid).copied();
        let gpu = gpu.ok_or_else(|| PoolError::Unknown(format!("there is no {uuid}")))?;
        let reason = checked(reason)?;
        let what = match reason {
            Some(_) => AuditKind::Tainted,
            None => AuditKind::Untainted,
        };
        self.note_gpu(what, gpu, reason.clone());
        if reason.is_none() {
            self.mend(gpu);
        }
        self.gpus[gpu].record.taint = reason;
        self.write_gpu(gpu);
        self.settle(gpu);
        self.give_to_waiting(now_ms);
        Ok(())
    }

    /// Notes that a GPU is broken, as an operator has found. A spare takes its place.
    pub fn is_broken(&mut self, now_ms: u64, uuid: &Uuid, reason: &str) -> Result<(), PoolError> {
        let gpu = self.by_uuid.get(uuid).copied();
        let gpu = gpu.ok_or_else(|| PoolError::Unknown(format!("there is no {uuid}")))?;
        checked(Some(reason.into()))?;
        self.breaks(now_ms, gpu, reason);
        self.give_to_waiting(now_ms);
        Ok(())
    }

    /// Bounds the GPUs that an owner has at a time; `None` removes the bound.
    pub fn quota(&mut self, now_ms: u64, owner: &str, gpus: Option<u32>) -> Result<(), PoolError> {
        check_name("a holder", owner)?;
        let key = record::quota_key(owner);
        self.changes.touch(Subject::Quota(owner.into()));
        match gpus {
            Some(gpus) => {
                let record = QuotaRecord {
                    owner: owner.into(),
                    gpus,
                };
                self.write(key, &record);
                self.quotas.insert(owner.into(), record);
            }
            None => {
                self.quotas.remove(owner);
                self.writes.insert(key, None);
            }
        }
        self.give_to_waiting(now_ms);
        Ok(())
    }
}

pub(super) fn checked(reason: Option<String>) -> Result<Option<String>, PoolError> {
    let is_short = |reason: &String| {
        (1..=limits::REASON_BYTES_MAX).contains(&reason.len()) && !reason.contains(char::is_control)
    };
    match reason.as_ref().is_none_or(is_short) {
        true => Ok(reason),
        false => Err(PoolError::Wrong(
            "the reason is empty, too long, or has control characters".into(),
        )),
    }
}
