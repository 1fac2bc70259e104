//! News of a lease for its program: the file that the library in place of NVML reads.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fs,
    path::{Path, PathBuf},
};

use outboard_manager::{Client, ClientError, Operation};
use outboard_pool::{
    Uuid,
    api::{LeaseView, PoolView},
    xid,
};
use outboard_trust::write_new_secret;
use outboard_wire::lease::{EVENTS_MAX, LeaseChange, LeaseEvent};

/// Returns the file of the news of a lease, beside that of its grants.
pub(super) fn file_beside(grants: &Path) -> PathBuf {
    let mut file = grants.as_os_str().to_owned();
    file.push(".news");
    file.into()
}

type Change = (Uuid, LeaseChange);

/// The news of a lease so far.
pub(super) struct News {
    file: PathBuf,
    lease: u64,
    /// State of the lease that was looked at last.
    before: Option<LeaseView>,
    /// Addresses of the GPUs that were told of.
    pci: BTreeMap<Uuid, (u32, u32, u32)>,
    /// Number of the last event.
    last: u64,
    events: VecDeque<LeaseEvent>,
}

impl News {
    pub(super) fn new(grants: &Path, lease: u64) -> News {
        News {
            file: file_beside(grants),
            lease,
            before: None,
            pci: BTreeMap::new(),
            last: 0,
            events: VecDeque::new(),
        }
    }

    /// Returns whether the lease has not been looked at yet.
    pub(super) fn is_new(&self) -> bool {
        self.before.is_none()
    }

    /// Looks at the lease, and tells what has changed since the last look.
    pub(super) fn look(&mut self, client: &mut Client) -> Result<(), ClientError> {
        let now: LeaseView = client.get(&Operation::Lease.path(&[&self.lease]))?;
        if let Some(before) = &self.before {
            let changes = changes(before, &now);
            self.know(client, &changes)?;
            self.tell(changes);
        }
        self.before = Some(now);
        Ok(())
    }

    /// Tells that the lease is over: its GPUs have gone.
    pub(super) fn over(&mut self, client: &mut Client) {
        let had = self.before.take().map(|before| has(&before));
        let gone = had.into_iter().flatten();
        let changes: Vec<Change> = gone.map(|uuid| (uuid, LeaseChange::Detached)).collect();
        // Without their addresses nothing can be told.
        if self.know(client, &changes).is_ok() {
            self.tell(changes);
        }
    }

    /// Asks for the addresses of GPUs that have not been told of before.
    fn know(&mut self, client: &mut Client, changes: &[Change]) -> Result<(), ClientError> {
        let is_new = |(uuid, _): &Change| !self.pci.contains_key(uuid);
        if !changes.iter().any(is_new) {
            return Ok(());
        }
        let all: PoolView = client.get(&Operation::List.path(&[]))?;
        let addresses = all.gpus.iter().map(|gpu| (gpu.facts.uuid, gpu.facts.pci));
        let is_told = |uuid: &Uuid| changes.iter().any(|(told, _)| told == uuid);
        self.pci.extend(addresses.filter(|(uuid, _)| is_told(uuid)));
        Ok(())
    }

    /// Removes the file, once the program has ended.
    pub(super) fn remove(&self) {
        let _ = fs::remove_file(&self.file);
    }

    /// Adds events, and replaces the file in one step.
    fn tell(&mut self, changes: Vec<Change>) {
        if changes.is_empty() {
            return;
        }
        for (uuid, change) in changes {
            // An address that the pool does not know is no event: NVML's have one.
            let Some(pci) = self.pci.get(&uuid).copied() else {
                continue;
            };
            self.last += 1;
            self.events.push_back(LeaseEvent {
                number: self.last,
                change,
                uuid: uuid.to_string(),
                pci,
            });
        }
        while self.events.len() > EVENTS_MAX {
            self.events.pop_front();
        }
        let lines = self.events.iter().map(|event| format!("{event}\n"));
        let mut new = self.file.clone().into_os_string();
        new.push(".new");
        let new = PathBuf::from(new);
        let _ = fs::remove_file(&new);
        // Without the file the program misses its events, and nothing else.
        let _ = write_new_secret(&new, &lines.collect::<String>())
            .map(|()| fs::rename(&new, &self.file));
    }
}

/// Returns the GPUs that a lease has, those that are about to leave included.
fn has(view: &LeaseView) -> BTreeSet<Uuid> {
    view.gpus.iter().chain(&view.detaching).copied().collect()
}

/// Returns what differs between two states of a lease. A lost GPU is told before it goes, and a
/// spare after it.
fn changes(before: &LeaseView, now: &LeaseView) -> Vec<Change> {
    let (old, new) = (has(before), has(now));
    let was_lost = |uuid: &Uuid| before.lost.iter().any(|lost| lost.uuid == *uuid);
    let lost = now.lost.iter().filter(|lost| !was_lost(&lost.uuid));
    let lost = lost.map(|lost| {
        let xid = xid::of_reason(&lost.reason);
        (lost.uuid, LeaseChange::Lost { xid })
    });
    let gone = old.difference(&new).map(|it| (*it, LeaseChange::Detached));
    let came = new.difference(&old).map(|it| (*it, LeaseChange::Attached));
    lost.chain(gone).chain(came).collect()
}
