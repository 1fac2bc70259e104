//! GPUs that a host has, without a program, until they are detached.
//!
//! A host has one such lease for each holder. A claim that attaches makes it, or adds GPUs to it;
//! a GPU that is detached leaves it in three steps, each of which is written:
//!
//! 1. No grant names it any more; sessions that have it go on.
//! 2. No session has it, or the caller does not wait for them: its floor rises.
//! 3. Its box has confirmed, or the time is over for which the lease was promised: it is free.
//!
//! The manager itself renews the lease, with each report of its boxes.

use std::collections::BTreeSet;

use outboard_wire::limits::SERVERS_MAX;

use crate::{
    api::{PoolError, Report},
    limits,
    manager::{Due, Manager},
    record::{AuditKind, Claim, Detach, LeaseRecord, LeaseState, Leased},
    uuid::Uuid,
};

impl LeaseRecord {
    /// Returns whether this is the lease of that claim, or the host's lease that it added to.
    pub(super) fn is_of(&self, claim: &Claim) -> bool {
        let added = || {
            self.gpus
                .iter()
                .any(|it| it.attached_by.as_ref() == Some(&claim.uid))
        };
        self.claim == *claim || claim.attach && self.is_for_host(claim) && added()
    }

    fn is_for_host(&self, claim: &Claim) -> bool {
        let of = |claim: &Claim| (claim.attach, claim.host.clone(), claim.owner.clone());
        of(&self.claim) == of(claim)
    }
}

impl Manager {
    /// Returns the lease to which a claim that attaches adds.
    pub(super) fn lease_of_host(&self, claim: &Claim) -> Option<u64> {
        if !claim.attach {
            return None;
        }
        let mut granted = self.leases.values().map(|lease| &lease.record);
        let found =
            granted.find(|record| record.state == LeaseState::Granted && record.is_for_host(claim));
        found.map(|record| record.id)
    }

    /// Returns whether a lease with these GPUs more has no more boxes than a program can use.
    pub(super) fn has_room(&self, id: u64, more: &[usize]) -> bool {
        let Some(lease) = self.leases.get(&id) else {
            return false;
        };
        let gpus = lease.record.gpus.iter().filter(|it| !it.free);
        let known = gpus.filter_map(|it| self.by_uuid.get(&it.uuid));
        let boxes: BTreeSet<usize> = known.chain(more).map(|gpu| self.gpus[*gpu].of).collect();
        boxes.len() <= SERVERS_MAX
    }

    pub(super) fn extend_lease(&mut self, id: u64, gpus: Vec<Leased>) {
        if let Some(lease) = self.leases.get_mut(&id) {
            lease.record.gpus.extend(gpus);
            lease.news += 1;
            self.write_lease(id);
        }
    }

    /// Takes a GPU from its host: when no session has it any more, or at once. Returns the lease.
    pub fn detach(&mut self, now_ms: u64, uuid: &Uuid, is_forced: bool) -> Result<u64, PoolError> {
        let gpu = self.by_uuid.get(uuid).copied();
        let gpu = gpu.ok_or_else(|| PoolError::Unknown(format!("there is no {uuid}")))?;
        let attached = self.attached_to(gpu);
        let id = attached.ok_or_else(|| {
            PoolError::Conflict(match self.gpus[gpu].record.lease {
                Some(lease) => format!(
                    "{uuid} is not attached to a host: a program has it, by the lease {lease}"
                ),
                None => format!("{uuid} is not attached to a host"),
            })
        })?;
        let waits = self.leased_mut(id, uuid, |leased| {
            let is_new = leased.detach == Detach::No;
            if is_new {
                leased.detach = Detach::Waits;
            }
            is_new
        });
        if waits == Some(true) || is_forced {
            let by = self.caller.clone();
            self.leased_mut(id, uuid, |leased| {
                leased.is_forced |= is_forced;
                leased.detached_by = by;
            });
            self.note_leased(AuditKind::Detaching, id, uuid);
        }
        if waits == Some(true) {
            if let Some(lease) = self.leases.get_mut(&id) {
                lease.news += 1;
            }
            self.write_lease(id);
            // The box's next report says whether a session has it.
            self.wake(self.gpus[gpu].of);
        }
        if is_forced {
            self.take_out(now_ms, id, gpu);
        }
        Ok(id)
    }

    /// Returns the lease of a host that has this GPU.
    fn attached_to(&self, gpu: usize) -> Option<u64> {
        let id = self.gpus[gpu].record.lease?;
        let record = &self.leases.get(&id)?.record;
        (record.claim.attach && record.state == LeaseState::Granted).then_some(id)
    }

    /// Changes the entry of a GPU that the lease still has.
    fn leased_mut<T>(
        &mut self,
        id: u64,
        uuid: &Uuid,
        change: impl FnOnce(&mut Leased) -> T,
    ) -> Option<T> {
        let lease = self.leases.get_mut(&id)?;
        let mut gpus = lease.record.gpus.iter_mut();
        let leased = gpus.find(|it| it.uuid == *uuid && !it.free && !it.is_out())?;
        Some(change(leased))
    }

    fn take_out(&mut self, now_ms: u64, id: u64, gpu: usize) {
        let uuid = self.gpus[gpu].record.facts.uuid;
        if self
            .leased_mut(id, &uuid, |leased| leased.detach = Detach::Out)
            .is_none()
        {
            return;
        }
        let Some(lease) = self.leases.get(&id) else {
            return;
        };
        // A box that is cut off cannot have been promised more.
        let due_ms = lease.deadline_ms.max(now_ms) + limits::MARGIN_MS;
        self.gpus[gpu].out_ms = Some(due_ms);
        self.due.insert((due_ms, Due::Out(id, gpu)));
        self.wake(self.gpus[gpu].of);
        self.write_lease(id);
    }

    /// A box reports: leases of hosts that have its GPUs are renewed, and GPUs that wait to be
    /// detached are taken out if no session has them.
    pub(super) fn box_has_attached(&mut self, now_ms: u64, number: usize, report: &Report) {
        // A report from before the box knew of the detaching says nothing about it.
        let knows = report.incarnation == self.pool.incarnation
            && report.revision == self.boxes[number].revision;
        for gpu in self.boxes[number].gpus.clone() {
            let Some(id) = self.attached_to(gpu) else {
                continue;
            };
            let uuid = self.gpus[gpu].record.facts.uuid;
            let Some(lease) = self.leases.get_mut(&id) else {
                continue;
            };
            let deadline_ms = now_ms + lease.record.claim.term_ms;
            if deadline_ms > lease.deadline_ms {
                lease.deadline_ms = deadline_ms;
                self.set_due(id, deadline_ms);
                self.has_promised = true;
            }
            let waiting = self.leased_mut(id, &uuid, |leased| {
                (leased.detach == Detach::Waits).then_some(leased.epoch)
            });
            let Some(epoch) = waiting.flatten().filter(|_| knows) else {
                continue;
            };
            let mut reports = report.gpus.iter().filter(|it| it.uuid == uuid);
            let is_idle = |it: &crate::api::GpuReport| it.busy.is_none_or(|busy| busy > epoch);
            if reports.next().is_some_and(is_idle) {
                self.take_out(now_ms, id, gpu);
            }
        }
    }

    /// Forgets GPUs that a host's lease had, so that the lease does not grow for ever.
    pub(super) fn forget_detached(&mut self, id: u64) {
        let Some(lease) = self.leases.get_mut(&id) else {
            return;
        };
        let record = &mut lease.record;
        if !record.claim.attach || record.state != LeaseState::Granted {
            return;
        }
        let (gone, kept) = std::mem::take(&mut record.gpus)
            .into_iter()
            .partition::<Vec<_>, _>(|leased| leased.free);
        record.gpus = kept;
        for uid in gone.into_iter().filter_map(|leased| leased.attached_by) {
            let is_left = |it: &Leased| it.attached_by.as_ref() == Some(&uid);
            if !record.gpus.iter().any(is_left) {
                self.by_uid.remove(&uid);
            }
        }
    }
}
