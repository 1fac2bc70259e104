//! Claims, leases and their end.

use outboard_wire::limits::SERVERS_MAX;

use crate::{
    api::{Claimed, Granted, GrantedBox, PoolError},
    grant::Grant,
    limits,
    link::{self, LinkFacts},
    manager::{Due, Host, Lease, Manager, changes::Subject, check_name},
    placement::Wish,
    record::{
        self, AuditKind, Claim, Detach, EndReason, HostRecord, LeaseRecord, LeaseState, Leased,
    },
};

impl Manager {
    /// Gives GPUs to a claim. Without GPUs it waits if `may_wait` says so, otherwise it is refused.
    /// A claim that has its lease already gets it again.
    pub fn claim(
        &mut self,
        now_ms: u64,
        claim: &Claim,
        may_wait: bool,
    ) -> Result<Claimed, PoolError> {
        self.check_claim(claim)?;
        if let Some(lease) = self.lease_of(claim)? {
            return Ok(Claimed::Granted(self.granted(lease)));
        }
        self.check_possible(claim)?;
        // If none waits it passes nobody, and needs no place in the queue.
        let is_alone = self.waiting_count() == 0;
        if !is_alone || !self.try_grant(now_ms, claim) {
            self.wait(now_ms, claim)?;
        }
        if !is_alone {
            self.give_to_waiting(now_ms);
        }
        if let Some(lease) = self.lease_of(claim)? {
            return Ok(Claimed::Granted(self.granted(lease)));
        }
        if !may_wait {
            self.leave(&claim.uid);
            let text = match self.is_over_quota(claim) {
                true => format!("{} has as many GPUs as its quota allows", claim.owner),
                false if claim.gpus == 1 => "no such GPU is free now".into(),
                false => format!("{} such GPUs are not free now", claim.gpus),
            };
            return Err(PoolError::Busy(text));
        }
        let position = self.position(&claim.uid).unwrap_or(0);
        Ok(Claimed::Waiting { position })
    }

    /// Returns the state of a claim that waits. `is_seen` says that its client is told.
    pub fn asked_again(
        &mut self,
        now_ms: u64,
        claim: &Claim,
        is_seen: bool,
    ) -> Result<Claimed, PoolError> {
        if let Some(lease) = self.lease_of(claim)? {
            return Ok(Claimed::Granted(self.granted(lease)));
        }
        self.wait(now_ms, claim)?;
        let position = match is_seen {
            true => self.position(&claim.uid).unwrap_or(0),
            false => 0,
        };
        Ok(Claimed::Waiting { position })
    }

    fn check_claim(&self, claim: &Claim) -> Result<(), PoolError> {
        check_name("a claim's UID", &claim.uid)?;
        check_name("a holder", &claim.owner)?;
        check_name("a host", &claim.host)?;
        let wrong = |text: String| Err(PoolError::Wrong(text));
        if !(1..=limits::CLAIM_GPUS_MAX).contains(&claim.gpus) {
            return wrong(format!(
                "a claim is for 1 to {} GPUs, not {}",
                limits::CLAIM_GPUS_MAX,
                claim.gpus
            ));
        }
        if !(limits::TERM_MIN_MS..=limits::TERM_MAX_MS).contains(&claim.term_ms) {
            return wrong(format!(
                "a term is {} to {} ms, not {}",
                limits::TERM_MIN_MS,
                limits::TERM_MAX_MS,
                claim.term_ms
            ));
        }
        if claim.priority > limits::PRIORITY_MAX {
            return wrong(format!("priorities are 0 to {}", limits::PRIORITY_MAX));
        }
        link::check_needs(&claim.links).map_err(PoolError::Wrong)?;
        if let Some(idle_ms) = claim.idle_ms {
            if claim.attach {
                return wrong(
                    "attached GPUs are the host's, used or not: detach them instead".into(),
                );
            }
            if !(limits::IDLE_MIN_MS..=limits::IDLE_MAX_MS).contains(&idle_ms) {
                return wrong(format!(
                    "idle GPUs are taken back after {} to {} ms, not {idle_ms}",
                    limits::IDLE_MIN_MS,
                    limits::IDLE_MAX_MS
                ));
            }
        }
        let is_word = |model: &String| {
            (1..=limits::NAME_BYTES_MAX).contains(&model.len()) && !model.contains(char::is_control)
        };
        match claim.model.as_ref().is_none_or(is_word) {
            true => Ok(()),
            false => wrong("the model's name is empty or too long".into()),
        }
    }

    /// Returns the lease that the claim has.
    fn lease_of(&self, claim: &Claim) -> Result<Option<u64>, PoolError> {
        let Some(id) = self.by_uid.get(&claim.uid) else {
            return Ok(None);
        };
        match self.leases.get(id).map(|lease| &lease.record) {
            Some(record) if !record.is_of(claim) => Err(PoolError::Conflict(format!(
                "the UID {} is that of another claim",
                claim.uid
            ))),
            Some(record) if record.state == LeaseState::Granted => Ok(Some(*id)),
            _ => Err(PoolError::Conflict(format!(
                "the lease of the claim {} is over",
                claim.uid
            ))),
        }
    }

    fn check_possible(&self, claim: &Claim) -> Result<(), PoolError> {
        let most = self.placement.most(&wish_of(claim));
        if most < claim.gpus as usize {
            self.check_possible_links(claim, most)?;
            let model = claim.model.as_ref();
            let model = model.map_or(String::new(), |model| format!(" of the model {model:?}"));
            let same = claim.same.map_or(String::new(), |same| {
                format!(" in one {}", format!("{same:?}").to_lowercase())
            });
            return Err(PoolError::Impossible(format!(
                "{} GPUs{model}{same} are asked for, and there are {most}",
                claim.gpus
            )));
        }
        let quota = self.quotas.get(&claim.owner).map(|quota| quota.gpus);
        match quota.filter(|quota| claim.gpus > *quota) {
            Some(quota) => Err(PoolError::Impossible(format!(
                "the quota of {} is {quota} GPUs, and {} are asked for",
                claim.owner, claim.gpus
            ))),
            None => Ok(()),
        }
    }

    /// Refuses a claim that could be met if its network did not matter.
    fn check_possible_links(&self, claim: &Claim, most: usize) -> Result<(), PoolError> {
        let anywhere = Wish {
            links: &[],
            ..wish_of(claim)
        };
        if claim.links.is_empty() || self.placement.most(&anywhere) < claim.gpus as usize {
            return Ok(());
        }
        let boxes = self.boxes.iter().filter(|of| {
            let has_some = |gpu: &usize| {
                let record = &self.gpus[*gpu].record;
                record.present && self.placement.is_of_model(&record.facts.model, &anywhere)
            };
            !of.is_forgotten && of.gpus.iter().any(has_some)
        });
        let (mut known, mut unknown) = (Vec::new(), 0);
        for of in boxes {
            match of.record.link {
                Some(link) => known.push((of.record.name.as_str(), link)),
                None => unknown += 1,
            }
        }
        Err(PoolError::Impossible(format!(
            "{} GPUs behind a network that the program needs are asked for, and there are {most}: it needs {}; {}{}",
            claim.gpus,
            link::show_needs(&claim.links),
            best_of(&known),
            match unknown {
                0 => String::new(),
                1 => "; the network of 1 box is not known".into(),
                unknown => format!("; the networks of {unknown} boxes are not known"),
            }
        )))
    }

    pub(super) fn is_over_quota(&self, claim: &Claim) -> bool {
        let used = self.used.get(&claim.owner).copied().unwrap_or(0);
        let quota = self.quotas.get(&claim.owner);
        quota.is_some_and(|quota| used + claim.gpus > quota.gpus)
    }

    /// Makes a lease, if GPUs for it are free.
    pub(super) fn try_grant(&mut self, now_ms: u64, claim: &Claim) -> bool {
        if self.is_over_quota(claim) {
            return false;
        }
        let Some(chosen) = self.placement.choose(&wish_of(claim)) else {
            return false;
        };
        let of_host = self.lease_of_host(claim);
        if of_host.is_some_and(|id| !self.has_room(id, &chosen)) {
            return false;
        }
        let Some(entries) = self.reserve(&claim.host, chosen.len()) else {
            return false;
        };
        let id = of_host.unwrap_or(self.lease_last + 1);
        self.lease_last = self.lease_last.max(id);
        let mut gpus = Vec::with_capacity(chosen.len());
        for (gpu, entry) in chosen.into_iter().zip(entries) {
            let of = self.gpus[gpu].of;
            gpus.push(Leased {
                uuid: self.gpus[gpu].record.facts.uuid,
                epoch: self.give(now_ms, gpu, id),
                entry,
                free: false,
                lost: None,
                replaced: false,
                attached_by: of_host.map(|_| claim.uid.clone()),
                links: of_host.map_or_else(Vec::new, |_| claim.links.clone()),
                detach: Detach::No,
                is_forced: false,
                detached_by: None,
                since_s: self.wall_s,
            });
            self.settle(gpu);
            self.write_gpu(gpu);
            self.wake(of);
        }
        *self.used.entry(claim.owner.clone()).or_default() += claim.gpus;
        self.by_uid.insert(claim.uid.clone(), id);
        if of_host.is_some() {
            self.note_given(id, &gpus, None);
            self.extend_lease(id, gpus);
            return true;
        }
        self.placement.note(claim.same, claim.gpus as usize);
        let deadline_ms = now_ms + claim.term_ms;
        let record = LeaseRecord {
            id,
            claim: claim.clone(),
            state: LeaseState::Granted,
            reason: None,
            ended_by: None,
            gpus,
        };
        let lease = Lease {
            record,
            deadline_ms,
            due_ms: deadline_ms,
            gone_ms: None,
            news: 0,
            idle_until_ms: None,
        };
        self.leases.insert(id, lease);
        self.due.insert((deadline_ms, Due::Lease(id)));
        let gpus = self.leases.get(&id).map(|it| it.record.gpus.clone());
        self.note_given(id, &gpus.unwrap_or_default(), None);
        self.write_lease(id);
        true
    }

    /// Takes entries of a host's table. The host joins with its first claim.
    fn reserve(&mut self, name: &str, count: usize) -> Option<Vec<u16>> {
        if !self.hosts.contains_key(name) {
            if self.hosts.len() >= limits::HOSTS_MAX {
                return None;
            }
            self.node_last += 1;
            let record = HostRecord {
                name: name.into(),
                node: self.node_last,
                entries: limits::HOST_ENTRIES,
            };
            self.write(record::host_key(name), &record);
            let used = Default::default();
            self.hosts.insert(name.into(), Host { record, used });
        }
        let host = self.hosts.get_mut(name)?;
        host.used.take(count, host.record.entries)
    }

    /// Returns a lease's grants, one for each box.
    pub(super) fn granted(&self, id: u64) -> Granted {
        let mut granted = Granted {
            lease: id,
            term_ms: 0,
            boxes: Vec::new(),
        };
        let Some(Lease {
            record,
            deadline_ms,
            ..
        }) = self.leases.get(&id)
        else {
            return granted;
        };
        granted.term_ms = record.claim.term_ms;
        for leased in record.gpus.iter().filter(|leased| leased.is_granted()) {
            let Some(gpu) = self.by_uuid.get(&leased.uuid).map(|gpu| &self.gpus[*gpu]) else {
                continue;
            };
            let of = &self.boxes[gpu.of].record;
            let found = granted.boxes.iter_mut().find(|at| at.name == of.name);
            let at = match found {
                Some(at) => at,
                None => {
                    granted.boxes.push(GrantedBox {
                        name: of.name.clone(),
                        url: of.url.clone(),
                        grant: Grant {
                            pool: self.pool.id.clone(),
                            incarnation: self.pool.incarnation,
                            lease: id,
                            of: of.name.clone(),
                            owner: record.claim.owner.clone(),
                            gpus: Vec::new(),
                            deadline_ms: *deadline_ms,
                        },
                        signed: String::new(),
                    });
                    let last = granted.boxes.len() - 1;
                    &mut granted.boxes[last]
                }
            };
            at.grant.gpus.push((leased.uuid, leased.epoch));
        }
        granted
    }

    /// Renews a lease: its holder is there. Returns the time left until its deadline.
    pub fn hold(&mut self, now_ms: u64, id: u64) -> Result<u64, PoolError> {
        let lease = self.granted_lease(id)?;
        lease.gone_ms = None;
        lease.deadline_ms = lease.deadline_ms.max(now_ms + lease.record.claim.term_ms);
        let (due_ms, left_ms) = (lease.deadline_ms, lease.deadline_ms - now_ms);
        self.set_due(id, due_ms);
        self.has_promised = true;
        Ok(left_ms)
    }

    /// Notes that the connection of a lease's holder has ended.
    pub fn holder_is_gone(&mut self, now_ms: u64, id: u64) {
        let Ok(lease) = self.granted_lease(id) else {
            return;
        };
        if lease.record.claim.attach {
            return;
        }
        let until_ms = now_ms + limits::HOLDER_GRACE_MS;
        lease.gone_ms = Some(until_ms);
        let due_ms = lease.deadline_ms.min(until_ms);
        self.set_due(id, due_ms);
    }

    /// Ends a lease. A lease that ends or is over already is none the worse.
    pub fn release(&mut self, now_ms: u64, id: u64) -> Result<(), PoolError> {
        match self.leases.get(&id) {
            None => Err(unknown(id)),
            Some(lease) if lease.record.state != LeaseState::Granted => Ok(()),
            Some(_) => {
                self.end(now_ms, id, EndReason::Released);
                Ok(())
            }
        }
    }

    /// Returns the owner of a lease.
    pub fn owner_of(&self, id: u64) -> Result<&str, PoolError> {
        let lease = self.leases.get(&id).ok_or_else(|| unknown(id))?;
        Ok(&lease.record.claim.owner)
    }

    pub(super) fn granted_lease(&mut self, id: u64) -> Result<&mut Lease, PoolError> {
        let lease = self.leases.get_mut(&id).ok_or_else(|| unknown(id))?;
        match lease.record.state {
            LeaseState::Granted => Ok(lease),
            _ => Err(PoolError::Conflict(format!("the lease {id} is over"))),
        }
    }

    pub(super) fn set_due(&mut self, id: u64, due_ms: u64) {
        if let Some(lease) = self.leases.get_mut(&id) {
            self.due.remove(&(lease.due_ms, Due::Lease(id)));
            lease.due_ms = due_ms;
            self.due.insert((due_ms, Due::Lease(id)));
        }
    }

    pub(super) fn lease_is_due(&mut self, now_ms: u64, id: u64) {
        let Some(lease) = self.leases.get(&id) else {
            return;
        };
        match lease.record.state {
            // Its boxes do not report, and sessions have ended by their clocks. The host keeps it.
            LeaseState::Granted if lease.record.claim.attach && lease.deadline_ms <= now_ms => {
                let due_ms = now_ms + lease.record.claim.term_ms;
                self.set_due(id, due_ms);
            }
            LeaseState::Granted if lease.deadline_ms <= now_ms => {
                self.end(now_ms, id, EndReason::Expired);
            }
            LeaseState::Granted if lease.gone_ms.is_some() => {
                self.end(now_ms, id, EndReason::HolderGone);
            }
            LeaseState::Granted => self.set_due(id, lease.deadline_ms),
            // Its sessions have ended by their boxes' own clocks.
            LeaseState::Ending => {
                let gpus = lease.record.gpus.iter().filter(|leased| !leased.free);
                let gpus: Vec<_> = gpus.map(|leased| leased.uuid).collect();
                for uuid in gpus {
                    if let Some(gpu) = self.by_uuid.get(&uuid).copied() {
                        self.free(id, gpu);
                    }
                }
            }
            LeaseState::Over => {}
        }
    }

    pub(super) fn end(&mut self, now_ms: u64, id: u64, reason: EndReason) {
        let Some(lease) = self.leases.get_mut(&id) else {
            return;
        };
        lease.record.state = LeaseState::Ending;
        *self.ended.entry(reason).or_default() += 1;
        lease.record.reason = Some(reason);
        lease.record.ended_by = match reason {
            EndReason::Released => self.caller.clone(),
            _ => None,
        };
        let due_ms = lease.deadline_ms.max(now_ms) + limits::MARGIN_MS;
        let gpus: Vec<_> = lease.record.gpus.iter().map(|leased| leased.uuid).collect();
        for uuid in gpus {
            if let Some(gpu) = self.by_uuid.get(&uuid).copied() {
                self.wake(self.gpus[gpu].of);
                self.changes.touch(Subject::Gpu(gpu));
            }
        }
        self.set_due(id, due_ms);
        self.note_ended(id);
        self.write_lease(id);
    }

    /// Makes a GPU of a lease free. The lease is over with the last.
    pub(super) fn free(&mut self, id: u64, gpu: usize) {
        let uuid = self.gpus[gpu].record.facts.uuid;
        self.served_well(id, gpu);
        self.note_leased(AuditKind::Taken, id, &uuid);
        let entry = &mut self.gpus[gpu];
        entry.record.lease = None;
        entry.record.epoch = entry.record.epoch.max(entry.epoch_told);
        entry.window = None;
        entry.out_ms = None;
        self.settle(gpu);
        self.write_gpu(gpu);
        let Some(lease) = self.leases.get_mut(&id) else {
            return;
        };
        let claim = &lease.record.claim;
        if let Some(leased) = lease
            .record
            .gpus
            .iter_mut()
            .find(|leased| leased.uuid == uuid && !leased.free)
        {
            leased.free = true;
            lease.news += 1;
            let host = self.hosts.get_mut(&claim.host);
            if let Some(host) = host.filter(|_| !leased.replaced) {
                host.used.remove(leased.entry);
            }
        }
        if let Some(used) = self.used.get_mut(&claim.owner) {
            *used = used.saturating_sub(1);
        }
        if lease.record.gpus.iter().all(|leased| leased.free) {
            lease.record.state = LeaseState::Over;
            if lease.record.reason.is_none() {
                lease.record.reason = Some(EndReason::Detached);
                *self.ended.entry(EndReason::Detached).or_default() += 1;
            }
            self.due.remove(&(lease.due_ms, Due::Lease(id)));
            self.over.insert(id);
        }
        self.forget_detached(id);
        self.write_lease(id);
        while self.over.len() > limits::LEASES_OVER_MAX {
            let Some(oldest) = self.over.pop_first() else {
                break;
            };
            if let Some(lease) = self.leases.remove(&oldest) {
                let claim = &lease.record.claim;
                self.placement.forget(claim.same, claim.gpus as usize);
                self.by_uid.remove(&claim.uid);
                let later = lease.record.gpus.iter();
                for uid in later.filter_map(|it| it.attached_by.as_ref()) {
                    self.by_uid.remove(uid);
                }
            }
            self.changes.touch(Subject::Lease(oldest));
            self.writes.insert(record::lease_key(oldest), None);
        }
    }
}

pub(super) fn wish_of(claim: &Claim) -> Wish<'_> {
    Wish {
        gpus: claim.gpus as usize,
        model: claim.model.as_deref(),
        same: claim.same,
        fit: claim.fit,
        boxes_max: SERVERS_MAX,
        links: &claim.links,
    }
}

/// Returns the best networks of boxes as an error shows them.
fn best_of(known: &[(&str, LinkFacts)]) -> String {
    let nearest = known
        .iter()
        .min_by_key(|(_, link)| (link.rtt_ns, u64::MAX - link.bits_per_s));
    let widest = known
        .iter()
        .max_by_key(|(_, link)| (link.bits_per_s, u64::MAX - link.rtt_ns));
    let (Some((near, link)), Some((wide, other))) = (nearest, widest) else {
        return "no box's network is known".into();
    };
    let mut text = format!(
        "the box {near} has the shortest round trip, with {}",
        link::show_link(link)
    );
    if wide != near {
        text.push_str(&format!(
            ", and {wide} the highest bandwidth, with {}",
            link::show_link(other)
        ));
    }
    text
}

pub(super) fn unknown(id: u64) -> PoolError {
    PoolError::Unknown(format!("there is no lease {id}"))
}
