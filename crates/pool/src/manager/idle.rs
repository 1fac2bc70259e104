//! Leases whose GPUs nobody uses: their holders are told, then the GPUs are taken back. Holders are
//! told of drained boxes, too.
//!
//! Boxes say how long a GPU has been idle, each by its own clock. That is believed for the time in
//! which the lease has had the GPU, by the manager's clock, and only of a box that reports: a
//! silent one may have sessions.

use crate::{
    api::{GpuReport, Notice, NoticeKind},
    limits,
    manager::{Lease, Manager},
    record::{AuditKind, Claim, EndReason, LeaseState},
};

impl Manager {
    /// Takes GPUs back that nobody has used for this time; `None`: only those whose claims say so.
    pub fn reclaim_idle(&mut self, idle_ms: Option<u64>) {
        self.idle_reclaim_ms = idle_ms;
    }

    /// Returns the time after which a lease's GPUs are taken back if nobody uses them. Attached
    /// ones are their host's.
    pub(super) fn idle_limit(&self, claim: &Claim) -> Option<u64> {
        if claim.attach {
            return None;
        }
        let limits = claim.idle_ms.iter().chain(&self.idle_reclaim_ms);
        limits.min().copied()
    }

    /// Takes what a box says of a GPU's use.
    pub(super) fn take_idle(&mut self, now_ms: u64, gpu: usize, report: &GpuReport) {
        let entry = &mut self.gpus[gpu];
        let idle_ms = report.idle_ms.filter(|idle_ms| *idle_ms > 0);
        entry.idle_from_ms =
            idle_ms.map(|idle_ms| now_ms.saturating_sub(idle_ms).max(entry.given_ms));
    }

    /// Looks for idle leases of a box that has reported just now.
    pub(super) fn look_for_idle(&mut self, now_ms: u64, number: usize) {
        let gpus = self.boxes[number].gpus.iter();
        let mut leases: Vec<u64> = gpus
            .filter_map(|gpu| self.gpus[*gpu].record.lease)
            .collect();
        leases.dedup();
        for id in leases {
            let Some(lease) = self.leases.get(&id) else {
                continue;
            };
            let Some(limit_ms) = self.idle_limit(&lease.record.claim) else {
                continue;
            };
            if lease.record.state != LeaseState::Granted {
                continue;
            }
            let notice_ms = notice_ms(limit_ms);
            let from_ms = self.idle_from(lease);
            let is_idle = |from_ms: &u64| now_ms >= from_ms + limit_ms - notice_ms;
            match (from_ms.filter(is_idle), lease.idle_until_ms) {
                (None, None) => {}
                // A session has begun, or a call: the notice is withdrawn.
                (None, Some(_)) => self.tell_idle(id, None),
                (Some(from_ms), None) => {
                    let until_ms = (from_ms + limit_ms).max(now_ms + notice_ms);
                    self.tell_idle(id, Some(until_ms));
                    self.note_lease(AuditKind::Noticed, id, NoticeKind::Idle.word());
                }
                (Some(_), Some(until_ms)) if until_ms <= now_ms => {
                    self.end(now_ms, id, EndReason::Idle);
                }
                (Some(_), Some(_)) => {}
            }
        }
    }

    /// Returns since when no GPU of a lease has been used; `None` if one is, or may be.
    fn idle_from(&self, lease: &Lease) -> Option<u64> {
        let gpus = lease.record.gpus.iter();
        let mut from_ms = 0;
        for leased in gpus.filter(|it| !it.free && !it.is_out()) {
            let gpu = &self.gpus[*self.by_uuid.get(&leased.uuid)?];
            self.boxes[gpu.of].heard_until_ms?;
            from_ms = from_ms.max(gpu.idle_from_ms?);
        }
        Some(from_ms)
    }

    fn tell_idle(&mut self, id: u64, until_ms: Option<u64>) {
        if let Some(lease) = self.leases.get_mut(&id) {
            lease.idle_until_ms = until_ms;
            self.has_news(id);
        }
    }

    /// Tells the holders of a box's GPUs that it is drained, or no more.
    pub(super) fn tell_drain(&mut self, number: usize) {
        let gpus = self.boxes[number].gpus.iter();
        let leases = gpus.filter_map(|gpu| self.gpus[*gpu].record.lease);
        let leases: std::collections::BTreeSet<u64> = leases.collect();
        leases.into_iter().for_each(|id| self.has_news(id));
    }

    /// Returns what a lease's holder is to know before it loses GPUs.
    pub(super) fn notices(&self, now_ms: u64, lease: &Lease) -> Vec<Notice> {
        let mut notices = Vec::new();
        if lease.record.state != LeaseState::Granted {
            return notices;
        }
        if let Some(until_ms) = lease.idle_until_ms {
            notices.push(Notice {
                what: NoticeKind::Idle,
                of: None,
                reason: "nobody uses the GPUs".into(),
                left_ms: Some(until_ms.saturating_sub(now_ms)),
            });
        }
        let gpus = lease.record.gpus.iter();
        let gpus = gpus.filter(|it| !it.free && !it.is_out());
        for gpu in gpus.filter_map(|it| self.by_uuid.get(&it.uuid)) {
            let of = &self.boxes[self.gpus[*gpu].of].record;
            let is_told = |it: &Notice| it.of.as_ref() == Some(&of.name);
            if let Some(reason) = of.drained.clone().filter(|_| !notices.iter().any(is_told)) {
                notices.push(Notice {
                    what: NoticeKind::Drain,
                    of: Some(of.name.clone()),
                    reason,
                    left_ms: None,
                });
            }
        }
        notices
    }
}

/// Returns how long before its GPUs are taken back a holder is told.
fn notice_ms(limit_ms: u64) -> u64 {
    (limit_ms / 4).min(limits::IDLE_NOTICE_MS)
}
