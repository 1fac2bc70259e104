//! Claims that wait.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
};

use crate::{
    api::{PoolError, WaitingView},
    limits,
    manager::{Due, Manager, changes::Subject, claims::wish_of},
    record::Claim,
};

#[derive(Default)]
pub(super) struct Queue {
    /// By age.
    waiting: BTreeMap<u64, Waiting>,
    by_uid: HashMap<String, u64>,
    /// Highest priority first, then by age.
    order: BTreeMap<(Reverse<u8>, u64), ()>,
    last: u64,
}

pub(super) struct Waiting {
    pub(super) claim: Claim,
    pub(super) since_ms: u64,
    forget_ms: u64,
}

impl Queue {
    pub(super) fn iter(&self) -> impl Iterator<Item = &Waiting> {
        self.order
            .keys()
            .filter_map(|(_, number)| self.waiting.get(number))
    }

    fn remove(&mut self, number: u64) -> Option<Waiting> {
        let waiting = self.waiting.remove(&number)?;
        self.by_uid.remove(&waiting.claim.uid);
        self.order
            .remove(&(Reverse(waiting.claim.priority), number));
        Some(waiting)
    }
}

impl Manager {
    /// Puts a claim into the queue, or notes that its client still waits.
    pub(super) fn wait(&mut self, now_ms: u64, claim: &Claim) -> Result<(), PoolError> {
        let forget_ms = now_ms + limits::QUEUE_SILENCE_MS;
        let queue = &mut self.queue;
        let number = match queue.by_uid.get(&claim.uid) {
            Some(number) => {
                let waiting = queue.waiting.get_mut(number);
                let waiting = waiting.filter(|waiting| waiting.claim == *claim);
                let waiting = waiting.ok_or_else(|| {
                    PoolError::Conflict(format!("the UID {} is that of another claim", claim.uid))
                })?;
                self.due.remove(&(waiting.forget_ms, Due::Waiting(*number)));
                waiting.forget_ms = forget_ms;
                *number
            }
            None => {
                if queue.waiting.len() >= limits::QUEUE_MAX {
                    return Err(PoolError::Busy(format!(
                        "{} claims wait already; try again later",
                        limits::QUEUE_MAX
                    )));
                }
                queue.last += 1;
                let number = queue.last;
                queue.by_uid.insert(claim.uid.clone(), number);
                queue.order.insert((Reverse(claim.priority), number), ());
                let waiting = Waiting {
                    claim: claim.clone(),
                    since_ms: now_ms,
                    forget_ms,
                };
                queue.waiting.insert(number, waiting);
                self.changes.touch(Subject::Claim(claim.uid.clone()));
                number
            }
        };
        self.due.insert((forget_ms, Due::Waiting(number)));
        Ok(())
    }

    /// Removes a claim whose client waits no longer.
    pub fn leave(&mut self, uid: &str) {
        if let Some(number) = self.queue.by_uid.get(uid).copied() {
            self.forget(number);
        }
    }

    fn forget(&mut self, number: u64) {
        if let Some(waiting) = self.queue.remove(number) {
            self.due.remove(&(waiting.forget_ms, Due::Waiting(number)));
            self.changes.touch(Subject::Claim(waiting.claim.uid));
        }
    }

    pub(super) fn waiting_is_due(&mut self, now_ms: u64, number: u64) {
        let waiting = self.queue.waiting.get(&number);
        if waiting.is_some_and(|waiting| waiting.forget_ms <= now_ms) {
            self.forget(number);
        }
    }

    /// Returns how many claims wait.
    pub fn waiting_count(&self) -> usize {
        self.queue.waiting.len()
    }

    /// Returns a claim that waits, as it is shown.
    pub(super) fn waiting_view(&self, now_ms: u64, uid: &str) -> Option<WaitingView> {
        let number = self.queue.by_uid.get(uid)?;
        let waiting = self.queue.waiting.get(number)?;
        Some(WaitingView {
            claim: waiting.claim.clone(),
            position: self.position(uid)?,
            waited_ms: now_ms.saturating_sub(waiting.since_ms),
        })
    }

    /// Returns how many claims come before this one, and one more.
    pub(super) fn position(&self, uid: &str) -> Option<usize> {
        let number = *self.queue.by_uid.get(uid)?;
        let priority = self.queue.waiting.get(&number)?.claim.priority;
        let before = self.queue.order.range(..(Reverse(priority), number));
        // Beyond that the number says nothing to anybody.
        Some(before.take(limits::QUEUE_LOOKS_MAX).count() + 1)
    }

    /// Gives free GPUs to claims that wait: the oldest first if it has waited too long, otherwise
    /// by priority and age. Smaller ones may pass larger ones that find no place.
    pub(super) fn give_to_waiting(&mut self, now_ms: u64) {
        while let Some((&number, oldest)) = self.queue.waiting.first_key_value() {
            if oldest.since_ms + limits::QUEUE_PATIENCE_MS > now_ms {
                break;
            }
            let claim = oldest.claim.clone();
            if self.is_over_quota(&claim) {
                break;
            }
            if self.placement.choose(&wish_of(&claim)).is_none() {
                // Nothing passes it.
                return;
            }
            if !self.try_grant(now_ms, &claim) {
                break;
            }
            self.forget(number);
        }
        let first = self.queue.order.keys().take(limits::QUEUE_LOOKS_MAX);
        let first: Vec<u64> = first.map(|(_, number)| *number).collect();
        for number in first {
            let Some(claim) = self.queue.waiting.get(&number).map(|w| w.claim.clone()) else {
                continue;
            };
            if self.try_grant(now_ms, &claim) {
                self.forget(number);
            }
        }
    }
}
