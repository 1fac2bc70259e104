//! Boxes that join and report.

use std::collections::BTreeSet;

use crate::{
    api::{BoxAnswer, BoxLease, GpuReport, Join, PoolError, Report},
    fence::EPOCH_MAX,
    limits, link,
    manager::{
        Due, Manager, changes::Subject, check_name, check_text, health::plain_reason, place_of,
    },
    record::{self, BoxRecord, GpuFacts, GpuRecord, LeaseState},
};

/// Least time between two reports of a box.
const REPORT_MS_MIN: u64 = 100;
/// Reports within the shortest term of a lease, at least: a renewal must come in time.
const REPORTS_PER_TERM: u64 = 5;

/// Highest number of a lease that is believed.
const LEASE_MAX: u64 = 1 << 52;
/// Numbers that are left out after a lost lease: other boxes may have been told of later ones.
const LEASES_SKIPPED: u64 = 10_000;

impl Manager {
    /// A box begins: its inventory replaces the one before.
    pub fn join(&mut self, now_ms: u64, join: &Join) -> Result<BoxAnswer, PoolError> {
        self.check_join(join)?;
        let number = match self.by_name.get(&join.name) {
            Some(number) => *number,
            None => {
                self.node_last += 1;
                self.add_box(BoxRecord {
                    name: join.name.clone(),
                    node: self.node_last,
                    identity: join.identity.clone(),
                    url: String::new(),
                    drained: None,
                    link: None,
                })
            }
        };
        let of = &mut self.boxes[number];
        let has_moved = of.record.link != join.link;
        if of.record.url != join.url || has_moved {
            of.record.url.clone_from(&join.url);
            of.record.link = join.link;
            let record = of.record.clone();
            self.write(record::box_key(&join.name), &record);
        }
        self.boxes[number].link_fails = join.link_fails.as_deref().map(shown_reason);
        let before = self.boxes[number].instance.replace(join.instance.clone());
        if before.is_some_and(|before| before != join.instance) {
            self.began_anew(now_ms, number);
        }
        self.take_inventory(now_ms, number, &join.gpus, has_moved);
        // Nothing is given out before the first report, by which floors are known on both sides.
        self.boxes[number].heard_until_ms = None;
        self.settle_box(number);
        let silent_ms = now_ms + limits::BOX_SILENCE_MS;
        self.due.insert((silent_ms, Due::Box(number)));
        // A box whose disk was replaced believes the answer's floors and leases.
        self.has_promised = true;
        Ok(self.answer(now_ms, number))
    }

    fn check_join(&self, join: &Join) -> Result<(), PoolError> {
        check_name("a box", &join.name)?;
        check_name("an identity", &join.identity)?;
        check_name("an instance", &join.instance)?;
        let wrong = |text: String| Err(PoolError::Wrong(text));
        check_text("a box's address", &join.url, limits::URL_BYTES_MAX)?;
        if let Some(link) = &join.link {
            link::check_link(link).map_err(PoolError::Wrong)?;
        }
        if join.gpus.len() > limits::BOX_GPUS_MAX {
            return wrong(format!("a box has at most {} GPUs", limits::BOX_GPUS_MAX));
        }
        if self.gpus.len() + join.gpus.len() > limits::GPUS_MAX
            || self.boxes.len() >= limits::BOXES_MAX
        {
            return Err(PoolError::Busy(
                "the pool has all the GPUs that it may have".into(),
            ));
        }
        if let Some(number) = self.by_name.get(&join.name)
            && self.boxes[*number].record.identity != join.identity
        {
            return Err(PoolError::Conflict(format!(
                "there is another box of the name {}: give one of them another name, or have an operator forget the one that is gone (outboard pool forget {})",
                join.name, join.name
            )));
        }
        let mut seen = BTreeSet::new();
        for facts in &join.gpus {
            let groups = facts.nvlink.iter().chain(&facts.bridge);
            if !seen.insert(facts.uuid) {
                return wrong(format!("the inventory has {} twice", facts.uuid));
            }
            check_text("a model", &facts.model, limits::NAME_BYTES_MAX)?;
            for group in groups {
                check_text("a group of GPUs", group, limits::NAME_BYTES_MAX)?;
            }
            facts.near.check().map_err(PoolError::Wrong)?;
            let other = self.by_uuid.get(&facts.uuid).map(|gpu| &self.gpus[*gpu]);
            if let Some(other) = other.filter(|other| other.record.of != join.name) {
                let record = &other.record;
                let of = &self.boxes[other.of];
                // A box that has another name now may take its GPUs along.
                let is_another = of.record.identity != join.identity;
                let is_there = record.present && of.heard_until_ms.is_some();
                if is_another || is_there || record.lease.is_some() {
                    return Err(PoolError::Conflict(format!(
                        "{} is a GPU of the box {}: no two boxes have one GPU. If it has moved, an operator forgets that box first (outboard pool forget {})",
                        facts.uuid, record.of, record.of
                    )));
                }
            }
        }
        Ok(())
    }

    /// Takes the GPUs of a box. `has_moved` says that its network is another one than before.
    fn take_inventory(
        &mut self,
        now_ms: u64,
        number: usize,
        inventory: &[GpuFacts],
        has_moved: bool,
    ) {
        for gpu in self.boxes[number].gpus.clone() {
            let found = inventory
                .iter()
                .any(|f| f.uuid == self.gpus[gpu].record.facts.uuid);
            if !found && self.gpus[gpu].record.present {
                self.settle_gone(now_ms, gpu);
            }
        }
        let name = self.boxes[number].record.name.clone();
        for (facts, slot) in inventory.iter().zip(0..) {
            let Some(gpu) = self.by_uuid.get(&facts.uuid).copied() else {
                let record = GpuRecord {
                    facts: facts.clone(),
                    of: name.clone(),
                    slot,
                    epoch: 0,
                    lease: None,
                    present: true,
                    taint: None,
                    health: Default::default(),
                };
                self.add_gpu(record, number);
                self.write_gpu(self.gpus.len() - 1);
                continue;
            };
            let record = &self.gpus[gpu].record;
            let is_known = (&record.facts, &record.of, record.slot, record.present)
                == (facts, &name, slot, true);
            if is_known && !has_moved {
                continue;
            }
            if self.gpus[gpu].is_spare {
                self.hold_back_no_more(gpu);
            }
            let before = self.gpus[gpu].of;
            self.boxes[before].gpus.retain(|other| *other != gpu);
            self.boxes[number].gpus.push(gpu);
            let entry = &mut self.gpus[gpu];
            entry.of = number;
            entry.is_free = false;
            let record = &mut entry.record;
            (record.facts, record.of) = (facts.clone(), name.clone());
            (record.slot, record.present) = (slot, true);
            self.placement.remove(gpu);
            let link = self.boxes[number].record.link;
            self.placement
                .add(gpu, &place_of(&self.gpus[gpu].record), link);
            self.write_gpu(gpu);
        }
    }

    fn settle_gone(&mut self, now_ms: u64, gpu: usize) {
        self.gpus[gpu].record.present = false;
        self.settle(gpu);
        self.placement.remove(gpu);
        self.write_gpu(gpu);
        self.lose(now_ms, gpu, "its box no longer has it");
    }

    /// A box reports. The answer may wait until there are news, or until its `wait_ms` are over.
    pub fn report(&mut self, now_ms: u64, report: &Report) -> Result<(), PoolError> {
        let number = self.box_named(&report.name)?;
        if self.boxes[number].instance.as_ref() != Some(&report.instance) {
            return Err(PoolError::Unknown(format!(
                "this process of the box {} has not joined, or another one has since",
                report.name
            )));
        }
        if report.gpus.len() > 2 * limits::BOX_GPUS_MAX {
            return Err(PoolError::Wrong(
                "the report has more GPUs than a box can have".into(),
            ));
        }
        let check = report.check.as_deref().map(plain_reason);
        if self.boxes[number].check != check {
            self.boxes[number].check = check;
            self.changes.touch(Subject::Box(number));
        }
        let is_older = self.boxes[number].heard_until_ms.is_none()
            && self.is_older_than(report.lease_last.min(LEASE_MAX));
        for gpu in &report.gpus {
            self.take_report(now_ms, number, gpu, is_older);
        }
        for window in report.windows.iter().take(limits::BOX_GPUS_MAX) {
            for gpu in self.boxes[number].gpus.clone() {
                if self.gpus[gpu].record.lease == Some(window.lease) {
                    self.gpus[gpu].window = Some((window.base, window.bytes));
                }
            }
        }
        self.box_has_attached(now_ms, number, report);
        // Only what is reported to this incarnation counts: the box knows its floors.
        if report.incarnation == self.pool.incarnation {
            self.boxes[number].heard_ms = now_ms;
            let until_ms = now_ms + limits::BOX_SILENCE_MS;
            let before = self.boxes[number].heard_until_ms.replace(until_ms);
            if let Some(before) = before {
                self.due.remove(&(before, Due::Box(number)));
            }
            self.due.insert((until_ms, Due::Box(number)));
            if before.is_none() {
                self.regain_box(number);
                self.settle_box(number);
            }
            self.look_for_idle(now_ms, number);
        }
        self.give_to_waiting(now_ms);
        Ok(())
    }

    /// Returns whether the store is an older copy: it does not know this lease, of which a box has
    /// been told. Numbers that the lost leases may have are not given again.
    fn is_older_than(&mut self, lease: u64) -> bool {
        if lease > self.lease_last {
            if self.leases_lost.1 == 0 {
                self.leases_lost.0 = self.lease_last;
            }
            self.lease_last = lease + LEASES_SKIPPED;
            self.leases_lost.1 = self.lease_last;
        }
        lease > self.leases_lost.0 && lease <= self.leases_lost.1
    }

    fn take_report(&mut self, now_ms: u64, number: usize, report: &GpuReport, is_older: bool) {
        let found = self.by_uuid.get(&report.uuid).copied();
        let Some(gpu) = found.filter(|gpu| self.gpus[*gpu].of == number) else {
            // A GPU that the box had once.
            return;
        };
        self.take_health(now_ms, gpu, report);
        self.take_idle(now_ms, gpu, report);
        let floor = report.floor.min(EPOCH_MAX);
        let busy = report.busy_last.or(report.busy).unwrap_or(0).min(EPOCH_MAX);
        // A lease that was lost may have the epoch of the floor, though no session has begun.
        let given = if is_older {
            floor
        } else {
            floor.saturating_sub(1)
        };
        let entry = &mut self.gpus[gpu];
        entry.epoch_told = entry.epoch_told.max(given).max(busy);
        let (told, record) = (entry.epoch_told, &mut entry.record);
        match record.lease {
            // The store is older than what the box has seen. The answer's floor ends such sessions.
            None if told > record.epoch => {
                record.epoch = told;
                self.write_gpu(gpu);
            }
            None => {}
            Some(lease) => {
                let epoch = record.epoch;
                let is_over = floor > epoch && report.busy.is_none_or(|busy| busy > epoch);
                let is_ending = self.leases.get(&lease).is_some_and(|it| {
                    it.record.state == LeaseState::Ending || it.is_out(&report.uuid)
                });
                if is_over && is_ending {
                    self.free(lease, gpu);
                }
            }
        }
    }

    /// Returns what a box is to know.
    pub fn answer_for(&self, now_ms: u64, name: &str) -> Result<BoxAnswer, PoolError> {
        Ok(self.answer(now_ms, self.box_named(name)?))
    }

    /// Returns whether a box has seen the last change of its leases.
    pub fn is_news(&self, report: &Report) -> bool {
        let number = self.by_name.get(&report.name);
        number.is_none_or(|number| {
            report.incarnation != self.pool.incarnation
                || report.revision != self.boxes[*number].revision
        })
    }

    fn answer(&self, now_ms: u64, number: usize) -> BoxAnswer {
        let of = &self.boxes[number];
        let mut floors = Vec::with_capacity(of.gpus.len());
        let mut leases = BTreeSet::new();
        for gpu in &of.gpus {
            let record = &self.gpus[*gpu].record;
            let granted = record.lease.filter(|lease| {
                self.leases.get(lease).is_some_and(|lease| {
                    lease.record.state == LeaseState::Granted && !lease.is_out(&record.facts.uuid)
                })
            });
            let floor = match granted {
                Some(_) => record.epoch,
                None => record.epoch + 1,
            };
            floors.push((record.facts.uuid, floor));
            leases.extend(granted);
        }
        let leases: Vec<_> = leases
            .into_iter()
            .filter_map(|id| self.leases.get(&id))
            .collect();
        let times = leases.iter().flat_map(|lease| {
            let claim = &lease.record.claim;
            [Some(claim.term_ms), self.idle_limit(claim)]
        });
        let term = times.flatten().min();
        let wait_ms = term.map_or(limits::REPORT_MS, |term| term / REPORTS_PER_TERM);
        BoxAnswer {
            pool: self.pool.id.clone(),
            incarnation: self.pool.incarnation,
            now_ms,
            revision: of.revision,
            wait_ms: wait_ms.clamp(REPORT_MS_MIN, limits::REPORT_MS),
            key: self.key.clone(),
            floors,
            leases: leases
                .iter()
                .map(|lease| BoxLease {
                    lease: lease.record.id,
                    deadline_ms: lease.deadline_ms,
                })
                .collect(),
        }
    }

    pub(super) fn box_is_due(&mut self, now_ms: u64, number: usize) {
        let heard_until_ms = self.boxes[number].heard_until_ms;
        // One that has joined and not reported is silent, too.
        if heard_until_ms.is_none_or(|until| until <= now_ms) {
            self.is_silent(now_ms, number);
        }
    }

    /// Notes that the connection on which a box waited for news has ended. A box that does not
    /// report again at once is silent.
    pub fn box_is_gone(&mut self, now_ms: u64, report: &Report) {
        let Some(number) = self.by_name.get(&report.name).copied() else {
            return;
        };
        let of = &mut self.boxes[number];
        let soon_ms = now_ms + limits::BOX_GRACE_MS;
        let is_its = of.instance.as_ref() == Some(&report.instance);
        if let Some(until_ms) = of.heard_until_ms.filter(|until| is_its && *until > soon_ms) {
            of.heard_until_ms = Some(soon_ms);
            self.due.remove(&(until_ms, Due::Box(number)));
            self.due.insert((soon_ms, Due::Box(number)));
        }
    }

    fn is_silent(&mut self, now_ms: u64, number: usize) {
        self.boxes[number].heard_until_ms = None;
        self.settle_box(number);
        self.lose_box(now_ms, number);
    }
}

/// Returns a box's reason for something that is not kept, as lists show it.
fn shown_reason(reason: &str) -> String {
    let plain = reason.chars().filter(|char| !char.is_control());
    plain.take(limits::REASON_BYTES_MAX).collect()
}
