//! Drains, taints and quotas.

use crate::{
    api::PoolError,
    limits,
    manager::{Manager, changes::Subject, check_name},
    record::{self, QuotaRecord},
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
        self.boxes[number].record.drained = checked(reason)?;
        let record = self.boxes[number].record.clone();
        self.write(record::box_key(name), &record);
        self.settle_box(number);
        self.give_to_waiting(now_ms);
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
        false => Err(PoolError::Wrong("the reason is empty or too long".into())),
    }
}
