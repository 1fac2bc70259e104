//! Health of GPUs, and what leases lose.
//!
//! A session that fails makes its GPU suspect: it is given out again after a pause that grows with
//! each failure in a row, and counts as broken after [`limits::FAILURES_MAX`]. So one dead GPU
//! takes few claims. A session that ends well makes it healthy; an operator mends a broken one.

use crate::{
    api::{Claimed, GpuReport, Held, LostView, PoolError},
    limits,
    manager::{Due, Lease, Manager, claims::unknown, operate::checked},
    record::{AuditKind, Condition, EndReason, Health, LeaseState, Leased},
    uuid::Uuid,
};

/// Reason that passes when the box reports again.
const SILENT: &str = "its box does not answer";

/// Returns a reason that a box gives as it is shown.
pub(super) fn plain_reason(reason: &str) -> String {
    let plain = reason.chars().filter(|char| !char.is_control());
    plain.take(limits::REASON_BYTES_MAX / 4).collect()
}

impl Lease {
    /// Returns whether the lease had this GPU, whose sessions are to end.
    pub(super) fn is_out(&self, uuid: &Uuid) -> bool {
        let mut gpus = self.record.gpus.iter();
        gpus.any(|leased| leased.is_out() && !leased.free && leased.uuid == *uuid)
    }

    pub(super) fn lost(&self) -> Vec<LostView> {
        let lost = self.record.gpus.iter().filter_map(|leased| {
            let reason = leased.lost.clone()?;
            Some(LostView {
                uuid: leased.uuid,
                reason,
                replaced: leased.replaced,
            })
        });
        lost.collect()
    }
}

impl Manager {
    /// Takes what a box says of a GPU's health.
    pub(super) fn take_health(&mut self, now_ms: u64, gpu: usize, report: &GpuReport) {
        if let Some(reason) = &report.broken {
            self.breaks(now_ms, gpu, &plain_reason(reason));
        }
        let told = &mut self.gpus[gpu].failures_told;
        let has_failed = report.failures > *told;
        *told = report.failures;
        if has_failed {
            self.fails(now_ms, gpu, "its session's worker failed");
        }
    }

    /// Notes that a program could not begin a session at a box of its lease: other programs are not
    /// sent there for a while.
    pub fn session_failed(
        &mut self,
        now_ms: u64,
        id: u64,
        of: &str,
        reason: &str,
    ) -> Result<(), PoolError> {
        let number = self.box_named(of)?;
        checked(Some(reason.into()))?;
        let lease = self.leases.get(&id).ok_or_else(|| unknown(id))?;
        let is_of_box = |uuid: &Uuid| {
            let gpu = self.by_uuid.get(uuid);
            gpu.is_some_and(|gpu| self.gpus[*gpu].of == number)
        };
        let mut gpus = lease.record.gpus.iter();
        // Once for each lease: a program that asks again shows nothing new.
        if !gpus.any(|leased| !leased.free && leased.lost.is_none() && is_of_box(&leased.uuid)) {
            return Ok(());
        }
        for gpu in self.boxes[number].gpus.clone() {
            let lease = self.gpus[gpu].record.lease;
            if lease.is_none_or(|lease| lease == id) {
                self.fails(now_ms, gpu, reason);
            }
        }
        self.give_to_waiting(now_ms);
        Ok(())
    }

    /// A box's process has begun anew: the sessions of the one before are over.
    pub(super) fn began_anew(&mut self, now_ms: u64, number: usize) {
        for gpu in self.boxes[number].gpus.clone() {
            self.gpus[gpu].failures_told = 0;
            // A lease whose session has not begun loses nothing.
            if self.gpus[gpu].window.take().is_some() {
                self.fails(now_ms, gpu, "its box's server ended");
            }
        }
    }

    fn fails(&mut self, now_ms: u64, gpu: usize, reason: &str) {
        let entry = &mut self.gpus[gpu];
        let health = &mut entry.record.health;
        if health.condition == Condition::Broken {
            return;
        }
        let failures = health.failures + 1;
        if failures >= limits::FAILURES_MAX {
            let reason = format!("{failures} sessions in a row failed, the last since {reason}");
            return self.breaks(now_ms, gpu, &reason);
        }
        *health = Health {
            condition: Condition::Suspect,
            reason: Some(reason.into()),
            since_s: self.wall_s,
            failures,
        };
        let pause_ms = limits::SUSPECT_MS << (failures - 1).min(16);
        let trial_ms = now_ms + pause_ms.min(limits::SUSPECT_MS_MAX);
        if let Some(before) = entry.trial_ms.replace(trial_ms) {
            self.due.remove(&(before, Due::Trial(gpu)));
        }
        self.due.insert((trial_ms, Due::Trial(gpu)));
        self.settle(gpu);
        self.write_gpu(gpu);
        self.lose(now_ms, gpu, reason);
    }

    pub(super) fn breaks(&mut self, now_ms: u64, gpu: usize, reason: &str) {
        let health = &mut self.gpus[gpu].record.health;
        if health.condition == Condition::Broken {
            return;
        }
        *health = Health {
            condition: Condition::Broken,
            reason: Some(reason.into()),
            since_s: self.wall_s,
            failures: health.failures,
        };
        self.note_gpu(AuditKind::Broken, gpu, Some(reason.into()));
        self.settle(gpu);
        self.write_gpu(gpu);
        self.lose(now_ms, gpu, reason);
    }

    /// Makes a GPU healthy, since an operator says so.
    pub(super) fn mend(&mut self, gpu: usize) {
        let entry = &mut self.gpus[gpu];
        if entry.record.health != Health::default() {
            entry.record.health = Health {
                since_s: self.wall_s,
                ..Health::default()
            };
        }
        if let Some(trial_ms) = entry.trial_ms.take() {
            self.due.remove(&(trial_ms, Due::Trial(gpu)));
        }
    }

    /// Makes a suspect GPU healthy whose lease is over, if its session ran and did not fail.
    pub(super) fn served_well(&mut self, id: u64, gpu: usize) {
        let entry = &self.gpus[gpu];
        let uuid = entry.record.facts.uuid;
        let is_suspect = entry.record.health.condition == Condition::Suspect;
        if !is_suspect || entry.window.is_none() || entry.trial_ms.is_some() {
            return;
        }
        let Some(lease) = self.leases.get(&id) else {
            return;
        };
        let is_by_holder = matches!(
            lease.record.reason,
            Some(EndReason::Released | EndReason::HolderGone)
        );
        let mut gpus = lease.record.gpus.iter();
        let ran = gpus.any(|leased| leased.uuid == uuid && leased.lost.is_none());
        if ran && is_by_holder {
            self.mend(gpu);
        }
    }

    pub(super) fn trial_is_due(&mut self, now_ms: u64, gpu: usize) {
        let trial_ms = &mut self.gpus[gpu].trial_ms;
        if trial_ms.is_some_and(|at| at <= now_ms) {
            *trial_ms = None;
            self.settle(gpu);
        }
    }

    /// A GPU is of no use to the lease that has it: a spare takes its place, the holder is told.
    pub(super) fn lose(&mut self, now_ms: u64, gpu: usize, reason: &str) {
        let record = &self.gpus[gpu].record;
        let (Some(id), uuid) = (record.lease, record.facts.uuid) else {
            return;
        };
        let Some(lease) = self.leases.get_mut(&id) else {
            return;
        };
        let mut gpus = lease.record.gpus.iter_mut();
        let Some(leased) = gpus.find(|leased| leased.uuid == uuid && !leased.is_out()) else {
            return;
        };
        if leased.lost.as_deref().is_none_or(|said| said == SILENT) {
            leased.lost = Some(reason.into());
            lease.news += 1;
            self.write_lease(id);
        }
        self.replace(now_ms, id, gpu);
    }

    /// A box does not report: its GPUs are lost for their holders.
    pub(super) fn lose_box(&mut self, now_ms: u64, number: usize) {
        for gpu in self.boxes[number].gpus.clone() {
            self.lose(now_ms, gpu, SILENT);
        }
    }

    /// A silent box reports again: what no spare has replaced is there again.
    pub(super) fn regain_box(&mut self, number: usize) {
        for gpu in self.boxes[number].gpus.clone() {
            let record = &self.gpus[gpu].record;
            let (uuid, id) = (record.facts.uuid, record.lease);
            let Some((id, lease)) = id.and_then(|id| Some((id, self.leases.get_mut(&id)?))) else {
                continue;
            };
            let is_its = |it: &&mut Leased| it.uuid == uuid && !it.is_out();
            let leased = lease.record.gpus.iter_mut().find(is_its);
            if let Some(leased) = leased.filter(|it| it.lost.as_deref() == Some(SILENT)) {
                leased.lost = None;
                lease.news += 1;
                self.write_lease(id);
            }
        }
    }

    /// Returns what a holder is told, and renews its lease.
    pub fn held(&mut self, now_ms: u64, id: u64) -> Result<Held, PoolError> {
        let left_ms = self.hold(now_ms, id)?;
        let lease = self.leases.get(&id).ok_or_else(|| unknown(id))?;
        Ok(Held {
            left_ms,
            news: lease.news,
            lost: lease.lost(),
            notices: self.notices(now_ms, lease),
        })
    }

    /// Returns how often a holder had to be told something.
    pub fn news_of(&self, id: u64) -> Option<u64> {
        let lease = self.leases.get(&id)?;
        (lease.record.state == LeaseState::Granted).then_some(lease.news)
    }

    /// Returns the grants of a lease as it is now.
    pub fn grants_of(&mut self, id: u64) -> Result<Claimed, PoolError> {
        self.granted_lease(id)?;
        // A promise that only the present manager may make.
        self.has_promised = true;
        Ok(Claimed::Granted(self.granted(id)))
    }
}
