//! Changes since a revision, for those who watch the pool.
//!
//! What is remembered is which object changed when, not how: each object is handed out once, as it
//! is at that time. A revision is that of one incarnation of the manager, since some states, such
//! as a silent box, are not in the store: after a restart all earlier revisions are gone.

use std::{
    collections::{BTreeMap, HashMap},
    mem,
};

use crate::{
    api::{self, Event, Object, PoolError},
    limits,
    manager::{Manager, show::box_view},
};

/// An object that has changed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Subject {
    Box(usize),
    Gpu(usize),
    Lease(u64),
    /// A claim that waits, by its UID.
    Claim(String),
    Quota(String),
    Spares,
}

/// Objects by the number of their last change.
#[derive(Default)]
pub(super) struct Changes {
    /// Number of the last change in `by_number`.
    last: u64,
    /// Changes after `last`, in their order.
    new: Vec<Subject>,
    by_number: BTreeMap<u64, Subject>,
    numbers: HashMap<Subject, u64>,
    /// Changes up to this one may have been forgotten.
    forgotten: u64,
}

impl Changes {
    /// Notes a change. If nobody sorts the changes in for long, all of them are forgotten.
    pub(super) fn touch(&mut self, subject: Subject) {
        if self.new.len() >= limits::CHANGES_MAX {
            self.last += self.new.len() as u64;
            self.forgotten = self.last;
            self.new.clear();
            self.by_number.clear();
            self.numbers.clear();
        }
        self.new.push(subject);
    }

    fn newest(&self) -> u64 {
        self.last + self.new.len() as u64
    }

    fn sort_in(&mut self) {
        for subject in mem::take(&mut self.new) {
            self.last += 1;
            if let Some(before) = self.numbers.insert(subject.clone(), self.last) {
                self.by_number.remove(&before);
            }
            self.by_number.insert(self.last, subject);
        }
        while self.by_number.len() > limits::CHANGES_MAX {
            if let Some((number, subject)) = self.by_number.pop_first() {
                self.numbers.remove(&subject);
                self.forgotten = number;
            }
        }
    }
}

impl Manager {
    /// Returns the place in the sequence of changes at which the pool is.
    pub fn revision(&self) -> String {
        self.revision_of(self.changes.newest())
    }

    fn revision_of(&self, number: u64) -> String {
        format!("{}-{number}", self.pool.incarnation)
    }

    /// Sorts new changes in, so that they do not become too many.
    pub fn sort_changes(&mut self) {
        self.changes.sort_in();
    }

    /// Returns the number of a revision whose later changes are all known.
    fn number_of(&self, revision: &str) -> Result<u64, PoolError> {
        let parts = revision.split_once('-');
        let parts =
            parts.and_then(|(of, number)| Some((of.parse::<u64>().ok()?, number.parse().ok()?)));
        let Some((incarnation, number)) = parts else {
            return Err(PoolError::Wrong(format!(
                "{:?} is no revision: a list or a watch gives one",
                revision.chars().take(64).collect::<String>()
            )));
        };
        let is_known = (self.changes.forgotten..=self.changes.newest()).contains(&number);
        match is_known && incarnation == self.pool.incarnation {
            true => Ok(number),
            false => Err(PoolError::Gone(format!(
                "gone: list again. Changes after the revision {revision} are no longer known"
            ))),
        }
    }

    /// Returns whether something has changed after a revision, or its changes are not known.
    pub fn has_changed(&self, revision: &str) -> bool {
        self.number_of(revision)
            .map_or(true, |number| number < self.changes.newest())
    }

    /// Returns the objects that have changed after a revision, those that changed first before
    /// others.
    pub fn changes_after(&self, now_ms: u64, revision: &str) -> Result<api::Changes, PoolError> {
        let number = self.number_of(revision)?;
        let sorted = self.changes.by_number.range(number + 1..);
        let sorted = sorted.map(|(number, subject)| (*number, subject));
        let new = (self.changes.last + 1..).zip(&self.changes.new);
        let mut after = sorted.chain(new).filter(|(at, _)| *at > number).peekable();
        let mut events = Vec::new();
        let mut reached = number;
        while let Some((at, subject)) = after.next_if(|_| events.len() < limits::EVENTS_MAX) {
            reached = at;
            events.push(self.event(now_ms, at, subject));
        }
        let more = after.peek().is_some();
        if !more {
            reached = self.changes.newest();
        }
        Ok(api::Changes {
            revision: self.revision_of(reached),
            more,
            events,
        })
    }

    fn event(&self, now_ms: u64, number: u64, subject: &Subject) -> Event {
        let (name, object) = match subject {
            Subject::Box(number) => {
                let of = &self.boxes[*number];
                let view = (!of.is_forgotten).then(|| box_view(of));
                (of.record.name.clone(), Object::Box(view))
            }
            Subject::Gpu(gpu) => {
                let gpu = &self.gpus[*gpu];
                let view = (!gpu.is_forgotten).then(|| Box::new(self.gpu_view(gpu)));
                (gpu.record.facts.uuid.to_string(), Object::Gpu(view))
            }
            Subject::Lease(id) => {
                let view = self.lease_view(now_ms, *id).ok().map(Box::new);
                (id.to_string(), Object::Lease(view))
            }
            Subject::Claim(uid) => (uid.clone(), Object::Claim(self.waiting_view(now_ms, uid))),
            Subject::Quota(owner) => (owner.clone(), Object::Quota(self.quota_view(owner))),
            Subject::Spares => ("spares".into(), Object::Spares(self.spares_view())),
        };
        Event {
            revision: self.revision_of(number),
            name,
            object,
        }
    }
}
