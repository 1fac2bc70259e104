//! Lists and mapping tables.

use crate::{
    api::{
        BoxEntry, BoxTable, BoxView, GpuState, GpuView, HostEntry, HostTable, LeaseView, PoolError,
        PoolView, QuotaView, QuotasView, Tables, WaitingView,
    },
    limits,
    manager::{Box_, Gpu, Lease, Manager},
    record::{Condition, Detach, EndReason, LeaseState, Leased},
};

impl Manager {
    /// Returns GPUs, leases that are not over, and the first of the waiting claims.
    pub fn view(&self, now_ms: u64) -> PoolView {
        let active = self.leases.values();
        let active = active.filter(|lease| lease.record.state != LeaseState::Over);
        let gpus = self.gpus.iter().filter(|gpu| !gpu.is_forgotten);
        let waiting = self.queue.iter().take(limits::QUEUE_LOOKS_MAX).zip(1..);
        PoolView {
            pool: self.pool.id.clone(),
            incarnation: self.pool.incarnation,
            revision: self.revision(),
            boxes: self.known_boxes().map(box_view).collect(),
            gpus: gpus.map(|gpu| self.gpu_view(gpu)).collect(),
            leases: active.map(|lease| self.view_of(now_ms, lease)).collect(),
            waiting: self.waiting_count(),
            queue: waiting
                .map(|(waiting, position)| WaitingView {
                    claim: waiting.claim.clone(),
                    position,
                    waited_ms: now_ms.saturating_sub(waiting.since_ms),
                })
                .collect(),
        }
    }

    fn known_boxes(&self) -> impl Iterator<Item = &Box_> {
        self.boxes.iter().filter(|of| !of.is_forgotten)
    }

    /// Returns how many leases have ended for a reason, since this manager's start.
    pub fn ended(&self, reason: EndReason) -> u64 {
        self.ended.get(&reason).copied().unwrap_or(0)
    }

    /// Returns a lease, over or not.
    pub fn lease_view(&self, now_ms: u64, id: u64) -> Result<LeaseView, PoolError> {
        let lease = self.leases.get(&id);
        let lease = lease.ok_or_else(|| PoolError::Unknown(format!("there is no lease {id}")))?;
        Ok(self.view_of(now_ms, lease))
    }

    /// Returns the bounds of all holders that have one.
    pub fn quotas(&self) -> QuotasView {
        let owners = self.quotas.keys();
        QuotasView {
            quotas: owners.filter_map(|owner| self.quota_view(owner)).collect(),
        }
    }

    pub(super) fn quota_view(&self, owner: &str) -> Option<QuotaView> {
        Some(QuotaView {
            quota: self.quotas.get(owner)?.clone(),
            used: self.used.get(owner).copied().unwrap_or(0),
        })
    }

    fn view_of(&self, now_ms: u64, lease: &Lease) -> LeaseView {
        let record = &lease.record;
        let gpus = || {
            record
                .gpus
                .iter()
                .filter(|leased| !leased.is_out())
                .filter_map(|leased| self.by_uuid.get(&leased.uuid))
        };
        let (mut boxes, mut heard_ms) = (Vec::<String>::new(), Vec::new());
        for gpu in gpus() {
            let of = &self.boxes[self.gpus[*gpu].of];
            if !boxes.contains(&of.record.name) {
                boxes.push(of.record.name.clone());
                let heard = of
                    .heard_until_ms
                    .map(|_| now_ms.saturating_sub(of.heard_ms));
                heard_ms.push(heard);
            }
        }
        let is_leaving = |it: &&Leased| it.detach != Detach::No && !it.free;
        let detaching = record.gpus.iter().filter(is_leaving);
        LeaseView {
            lease: record.id,
            claim: record.claim.clone(),
            state: record.state,
            reason: record.reason,
            gpus: gpus()
                .map(|gpu| self.gpus[*gpu].record.facts.uuid)
                .collect(),
            detaching: detaching.map(|it| it.uuid).collect(),
            boxes,
            left_ms: lease.deadline_ms.saturating_sub(now_ms),
            lost: lease.lost(),
            news: lease.news,
            heard_ms,
            notices: self.notices(now_ms, lease),
        }
    }

    pub(super) fn gpu_view(&self, gpu: &Gpu) -> GpuView {
        let of = &self.boxes[gpu.of];
        let record = &gpu.record;
        let lease = record.lease.and_then(|lease| self.leases.get(&lease));
        let state = match lease.map(|lease| lease.record.state) {
            Some(LeaseState::Granted) => GpuState::Leased,
            Some(_) => GpuState::Ending,
            None if !record.present => GpuState::Gone,
            None if record.health.condition == Condition::Broken => GpuState::Broken,
            None if record.taint.is_some() => GpuState::Tainted,
            None if of.heard_until_ms.is_none() => GpuState::Silent,
            None if of.record.drained.is_some() => GpuState::Drained,
            None if gpu.trial_ms.is_some() => GpuState::Suspect,
            None if gpu.is_spare => GpuState::Spare,
            None => GpuState::Free,
        };
        GpuView {
            facts: record.facts.clone(),
            of: record.of.clone(),
            slot: record.slot,
            epoch: record.epoch,
            lease: record.lease,
            state,
            reason: record.taint.clone().or_else(|| of.record.drained.clone()),
            health: record.health.clone(),
        }
    }

    /// Returns a GPU's epoch and lease.
    #[cfg(test)]
    pub(crate) fn holder_of(&self, uuid: &crate::Uuid) -> Option<(u64, Option<u64>)> {
        let gpu = &self.gpus[*self.by_uuid.get(uuid)?];
        Some((gpu.record.epoch, gpu.record.lease))
    }

    /// Returns how many GPUs are free to be given out.
    #[cfg(test)]
    pub(crate) fn free_count(&self) -> usize {
        let is_placed = |gpu: &&Gpu| gpu.is_free && !gpu.is_spare;
        self.gpus.iter().filter(is_placed).count()
    }

    /// Returns the GPUs that are not healthy.
    #[cfg(test)]
    pub(crate) fn unhealthy(&self) -> Vec<crate::Uuid> {
        let is_ill = |gpu: &&Gpu| gpu.record.health.condition != Condition::Healthy;
        let ill = self.gpus.iter().filter(is_ill);
        ill.map(|gpu| gpu.record.facts.uuid).collect()
    }

    /// Returns the GPUs that are attached and not on their way out.
    #[cfg(test)]
    pub(crate) fn attached(&self) -> Vec<crate::Uuid> {
        let leases = self.leases.values().map(|lease| &lease.record);
        let attached = leases.filter(|record| record.claim.attach);
        let gpus = attached.flat_map(|record| &record.gpus);
        let left = gpus.filter(|it| !it.free && !it.is_out());
        left.map(|it| it.uuid).collect()
    }

    /// Returns the mapping tables of all hosts and boxes.
    pub fn tables(&self) -> Tables {
        let mut tables = Tables {
            hosts: Vec::new(),
            boxes: Vec::new(),
        };
        for (name, host) in &self.hosts {
            tables.hosts.push(HostTable {
                host: name.clone(),
                node: host.record.node,
                entries: self.host_entries(name),
                reserved: host.record.entries,
            });
        }
        for of in self.known_boxes() {
            let gpus = of.gpus.iter().map(|gpu| &self.gpus[*gpu]).zip(0..);
            let entry = |(gpu, entry): (&Gpu, u16)| {
                let lease = gpu.record.lease.and_then(|lease| self.leases.get(&lease));
                let host = lease.and_then(|lease| self.hosts.get(&lease.record.claim.host));
                BoxEntry {
                    entry,
                    valid: gpu.record.present,
                    used: lease.is_some(),
                    slot: gpu.record.slot,
                    host: host.map(|host| host.record.node),
                    path: gpu.record.facts.proxy,
                    health: gpu.record.health.clone(),
                }
            };
            tables.boxes.push(BoxTable {
                of: of.record.name.clone(),
                node: of.record.node,
                entries: gpus.map(entry).collect(),
            });
        }
        tables
    }

    fn host_entries(&self, host: &str) -> Vec<HostEntry> {
        let mut entries = Vec::new();
        for lease in self.leases.values() {
            let record = &lease.record;
            if record.state == LeaseState::Over || record.claim.host != host {
                continue;
            }
            let present = record.gpus.iter();
            for leased in present.filter(|leased| !leased.free && !leased.replaced) {
                let Some(gpu) = self.by_uuid.get(&leased.uuid).map(|gpu| &self.gpus[*gpu]) else {
                    continue;
                };
                let facts = &gpu.record.facts;
                entries.push(HostEntry {
                    entry: leased.entry,
                    used: true,
                    bus: facts.pci.1,
                    device: facts.pci.2,
                    memory_base: gpu.window.map(|(base, _)| base),
                    memory_limit: gpu.window.map(|(base, bytes)| base.saturating_add(bytes)),
                    of: self.boxes[gpu.of].record.node,
                    slot: gpu.record.slot,
                    path: facts.proxy,
                });
            }
        }
        entries.sort_by_key(|entry| entry.entry);
        entries
    }
}

pub(super) fn box_view(of: &Box_) -> BoxView {
    BoxView {
        of: of.record.name.clone(),
        node: of.record.node,
        url: of.record.url.clone(),
        gpus: of.gpus.len(),
        drained: of.record.drained.clone(),
        heard: of.heard_until_ms.is_some(),
        check: of.check.clone(),
        link: of.record.link,
        link_fails: of.link_fails.clone(),
    }
}
