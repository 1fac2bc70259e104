//! A store in memory, with the faults of a real one.

use std::{cell::RefCell, collections::BTreeMap, io, rc::Rc};

use crate::{
    limits,
    store::{Change, Entry, Revision, Store, StoreError, Transaction},
};

/// Result of the next transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// It is not written, and the error says so.
    Full,
    /// It is written, and an error says otherwise.
    LostAnswer,
}

#[derive(Clone, Default)]
struct Disk {
    records: BTreeMap<String, (Revision, Vec<u8>)>,
    changes: Vec<Change>,
    last: Revision,
}

/// One user of records that several share, as managers share a cluster's.
#[derive(Clone)]
pub(crate) struct SimulatedStore {
    disk: Rc<RefCell<Disk>>,
    fault: Rc<RefCell<Fault>>,
}

impl SimulatedStore {
    pub(crate) fn new() -> SimulatedStore {
        SimulatedStore {
            disk: Rc::default(),
            fault: Rc::new(RefCell::new(Fault::None)),
        }
    }

    /// Returns a copy of the records as they are now.
    pub(crate) fn copied(&self) -> SimulatedStore {
        let copy = SimulatedStore::new();
        *copy.disk.borrow_mut() = self.disk.borrow().clone();
        copy
    }

    /// Has the next transaction fail.
    pub(crate) fn fail(&self, fault: Fault) {
        *self.fault.borrow_mut() = fault;
    }
}

impl Store for SimulatedStore {
    fn load(&mut self) -> Result<Vec<Entry>, StoreError> {
        let disk = self.disk.borrow();
        let entry = |(key, (revision, value)): (&String, &(Revision, Vec<u8>))| Entry {
            key: key.clone(),
            value: value.clone(),
            revision: *revision,
        };
        Ok(disk.records.iter().map(entry).collect())
    }

    fn commit(&mut self, transaction: &Transaction) -> Result<Revision, StoreError> {
        let fault = self.fault.replace(Fault::None);
        let full = || StoreError::Io {
            what: "writing",
            source: io::ErrorKind::StorageFull.into(),
        };
        if fault == Fault::Full {
            return Err(full());
        }
        let mut disk = self.disk.borrow_mut();
        for (key, expected) in &transaction.compare {
            if disk.records.get(key).map(|(revision, _)| *revision) != *expected {
                return Err(StoreError::Conflict);
            }
        }
        if transaction.write.is_empty() {
            return Ok(disk.last);
        }
        disk.last += 1;
        let revision = disk.last;
        for (key, value) in &transaction.write {
            match value {
                Some(value) => drop(disk.records.insert(key.clone(), (revision, value.clone()))),
                None => drop(disk.records.remove(key)),
            }
            disk.changes.push(Change {
                revision,
                key: key.clone(),
            });
        }
        let kept = revision.saturating_sub(limits::CHANGES_KEPT as u64);
        disk.changes.retain(|change| change.revision > kept);
        match fault {
            Fault::LostAnswer => Err(full()),
            _ => Ok(revision),
        }
    }

    fn changes(&mut self, after: Revision) -> Result<Vec<Change>, StoreError> {
        let disk = self.disk.borrow();
        let first = disk.changes.first();
        if first.is_some_and(|change| change.revision > after + 1) {
            return Err(StoreError::Compacted(after));
        }
        let later = disk.changes.iter().filter(|change| change.revision > after);
        Ok(later.cloned().collect())
    }
}
