//! Spares: free GPUs that are held back, by kind and group. If a leased GPU is lost, one of them
//! takes its entry in the host's table, in the transaction that notes the loss.
//!
//! The lost GPU stays the lease's until its box has confirmed, or until the deadline that the box
//! may have been promised: a session may still use it. Every answer to its box raises its floor.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use outboard_wire::limits::SERVERS_MAX;

use crate::{
    api::{PoolError, SparesView},
    limits, link,
    manager::{Due, Manager, changes::Subject, place_of},
    placement::{has_words, words},
    record::{self, Detach, LeaseState, Leased, Same, SpareRecord},
};

#[derive(Default)]
pub(super) struct Spares {
    /// By the word of the model; `*` is that of all.
    rules: BTreeMap<String, SpareRecord>,
    /// GPUs that are held back, by group.
    held: HashMap<String, BTreeSet<usize>>,
}

impl Spares {
    pub(super) fn set(&mut self, rule: SpareRecord) {
        let word = record::spares_word(rule.model.as_deref());
        match rule.gpus {
            0 => drop(self.rules.remove(&word)),
            _ => drop(self.rules.insert(word, rule)),
        }
    }

    /// Returns the rule for a model: one that names it, else the one of all.
    fn rule_of(&self, model: &str) -> Option<&SpareRecord> {
        let model = words(model);
        let mut named = self.rules.iter().filter(|(word, _)| *word != "*");
        let found = named.find(|(word, _)| has_words(&model, &words(word)));
        found.map(|(_, rule)| rule).or_else(|| self.rules.get("*"))
    }
}

impl Manager {
    /// Holds so many free GPUs of a model back, for each group or for all; 0 holds back none.
    pub fn set_spares(&mut self, now_ms: u64, rule: &SpareRecord) -> Result<(), PoolError> {
        if rule.gpus > limits::SPARES_MAX {
            return Err(PoolError::Wrong(format!(
                "at most {} spares are held back, not {}",
                limits::SPARES_MAX,
                rule.gpus
            )));
        }
        let is_word = |model: &String| {
            (1..=limits::NAME_BYTES_MAX).contains(&model.len())
                && model != "*"
                && !model.contains(char::is_control)
        };
        if !rule.model.as_ref().is_none_or(is_word) {
            return Err(PoolError::Wrong(
                "the model's name is empty or too long".into(),
            ));
        }
        if rule.gpus > 0 && self.spares.rules.len() >= limits::SPARE_RULES_MAX {
            return Err(PoolError::Busy(
                "there are rules about spares enough".into(),
            ));
        }
        let key = record::spares_key(&record::spares_word(rule.model.as_deref()));
        match rule.gpus {
            0 => drop(self.writes.insert(key, None)),
            _ => self.write(key, rule),
        }
        let held: Vec<usize> = self.spares.held.values().flatten().copied().collect();
        self.spares.set(rule.clone());
        self.changes.touch(Subject::Spares);
        for gpu in held {
            self.forget_spare(gpu);
            self.placement.put(gpu);
        }
        // The last to have joined, so that the first boxes are filled first.
        for gpu in (0..self.gpus.len()).rev() {
            if self.gpus[gpu].is_free && self.wants_spare(gpu) {
                self.hold_back(gpu);
            }
        }
        self.give_to_waiting(now_ms);
        Ok(())
    }

    pub fn spares_view(&self) -> SparesView {
        let held: BTreeSet<usize> = self.spares.held.values().flatten().copied().collect();
        let uuid = |gpu: usize| self.gpus[gpu].record.facts.uuid;
        SparesView {
            rules: self.spares.rules.values().cloned().collect(),
            held: held.into_iter().map(uuid).collect(),
        }
    }

    /// Returns the group of whose spares a GPU would be one, and how many there are to be.
    fn spare_group(&self, gpu: usize) -> Option<(String, usize)> {
        let record = &self.gpus[gpu].record;
        let rule = self.spares.rule_of(&record.facts.model)?;
        let group = match rule.per {
            None => String::new(),
            Some(same) => place_of(record).group(same).into(),
        };
        let wanted = usize::try_from(rule.gpus).unwrap_or(usize::MAX);
        Some((format!("{}/{group}", record.facts.model), wanted))
    }

    /// Returns whether a GPU that becomes free is held back.
    pub(super) fn wants_spare(&self, gpu: usize) -> bool {
        if self.spares.rules.is_empty() || self.gpus[gpu].is_spare {
            return false;
        }
        let Some((group, wanted)) = self.spare_group(gpu) else {
            return false;
        };
        self.spares.held.get(&group).map_or(0, BTreeSet::len) < wanted
    }

    pub(super) fn hold_back(&mut self, gpu: usize) {
        let Some((group, _)) = self.spare_group(gpu) else {
            return;
        };
        self.spares.held.entry(group).or_default().insert(gpu);
        self.gpus[gpu].is_spare = true;
        self.changes.touch(Subject::Gpu(gpu));
        self.changes.touch(Subject::Spares);
        self.placement.remove(gpu);
    }

    fn forget_spare(&mut self, gpu: usize) {
        self.spares.held.retain(|_, held| {
            held.remove(&gpu);
            !held.is_empty()
        });
        self.gpus[gpu].is_spare = false;
        self.changes.touch(Subject::Gpu(gpu));
        self.changes.touch(Subject::Spares);
        let entry = &self.gpus[gpu];
        let link = self.boxes[entry.of].record.link;
        self.placement.add(gpu, &place_of(&entry.record), link);
    }

    /// A spare is none any more: another free GPU of its group is held back.
    pub(super) fn hold_back_no_more(&mut self, gpu: usize) {
        let before = self.spare_group(gpu).map(|(group, _)| group);
        self.forget_spare(gpu);
        let is_next = |other: &usize| {
            let entry = &self.gpus[*other];
            let group = || self.spare_group(*other).map(|(group, _)| group);
            *other != gpu && entry.is_free && self.wants_spare(*other) && group() == before
        };
        if let Some(next) = (0..self.gpus.len()).rev().find(is_next) {
            self.hold_back(next);
        }
    }

    /// Gives a lost GPU's place in its lease to a spare, if there is one.
    pub(super) fn replace(&mut self, now_ms: u64, id: u64, gpu: usize) {
        let Some(spare) = self.spare_for(id, gpu) else {
            return;
        };
        let uuid = self.gpus[gpu].record.facts.uuid;
        let mut new = Leased {
            uuid: self.gpus[spare].record.facts.uuid,
            epoch: self.give(now_ms, spare, id),
            entry: 0,
            free: false,
            lost: None,
            replaced: false,
            attached_by: None,
            links: Vec::new(),
            detach: Detach::No,
            is_forced: false,
            detached_by: None,
            since_s: self.wall_s,
        };
        self.settle(spare);
        self.write_gpu(spare);
        let Some(lease) = self.leases.get_mut(&id) else {
            return;
        };
        let gpus = &mut lease.record.gpus;
        let Some(at) = gpus.iter().position(|it| it.uuid == uuid && !it.is_out()) else {
            return;
        };
        new.entry = gpus[at].entry;
        new.attached_by.clone_from(&gpus[at].attached_by);
        new.links.clone_from(&gpus[at].links);
        let given = new.clone();
        let mut old = std::mem::replace(&mut gpus[at], new);
        old.replaced = true;
        gpus.push(old);
        lease.news += 1;
        let due_ms = lease.deadline_ms.max(now_ms) + limits::MARGIN_MS;
        // The lost GPU counts until it is free.
        let owner = lease.record.claim.owner.clone();
        *self.used.entry(owner).or_default() += 1;
        self.gpus[gpu].out_ms = Some(due_ms);
        self.due.insert((due_ms, Due::Out(id, gpu)));
        self.wake(self.gpus[gpu].of);
        self.wake(self.gpus[spare].of);
        self.note_given(id, &[given], Some(format!("in place of {uuid}")));
        self.write_lease(id);
    }

    /// Returns a spare of the lost GPU's model; in the group that the lease asks for, and behind a
    /// network that it needs.
    fn spare_for(&self, id: u64, gpu: usize) -> Option<usize> {
        if self.spares.held.is_empty() {
            return None;
        }
        let lease = self.leases.get(&id)?;
        let record = &lease.record;
        if record.state != LeaseState::Granted {
            return None;
        }
        let lost = &self.gpus[gpu].record;
        let mut gpus = record.gpus.iter();
        let is_its = |it: &&Leased| it.uuid == lost.facts.uuid && !it.is_out();
        let leased = gpus.find(is_its).filter(|it| it.detach != Detach::Waits)?;
        // Those of the claim that brought the GPU.
        let needs = match leased.attached_by {
            Some(_) => &leased.links,
            None => &record.claim.links,
        };
        let left = record.gpus.iter();
        let left = left.filter(|it| !it.is_out() && it.uuid != lost.facts.uuid);
        let left: Vec<usize> = left
            .filter_map(|it| self.by_uuid.get(&it.uuid).copied())
            .collect();
        let mut boxes: BTreeSet<usize> = left.iter().map(|gpu| self.gpus[*gpu].of).collect();
        boxes.insert(usize::MAX);
        let is_full = boxes.len() > SERVERS_MAX;
        let group = |gpu: usize, same: Same| {
            let place = place_of(&self.gpus[gpu].record);
            place.group(same).to_owned()
        };
        let suits = |spare: &usize| {
            let entry = &self.gpus[*spare];
            let together = record.claim.same.zip(left.first());
            entry.is_free
                && entry.record.facts.model == lost.facts.model
                && (!is_full || boxes.contains(&entry.of))
                && link::meets(self.boxes[entry.of].record.link.as_ref(), needs)
                && together.is_none_or(|(same, first)| group(*spare, same) == group(*first, same))
        };
        let held: BTreeSet<usize> = self.spares.held.values().flatten().copied().collect();
        let mut suiting: Vec<usize> = held.into_iter().filter(suits).collect();
        // Nearest first: the fewer boxes a program uses, the better.
        let distance = |spare: &usize| {
            let of = self.gpus[*spare].of;
            (of != self.gpus[gpu].of, !boxes.contains(&of))
        };
        suiting.sort_by_key(distance);
        suiting.first().copied()
    }

    /// The time is over at which a session may still have used a GPU that its lease has no more.
    pub(super) fn out_is_due(&mut self, now_ms: u64, id: u64, gpu: usize) {
        let uuid = self.gpus[gpu].record.facts.uuid;
        let lease = self.leases.get(&id);
        // The same lease may have got the GPU again and lost it again since.
        let is_time = self.gpus[gpu].out_ms.is_some_and(|at| at <= now_ms);
        let is_its = is_time && self.gpus[gpu].record.lease == Some(id);
        if is_its && lease.is_some_and(|lease| lease.is_out(&uuid)) {
            self.free(id, gpu);
        }
    }
}
