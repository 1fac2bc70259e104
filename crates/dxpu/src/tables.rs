//! Mapping tables of the proxies: Table 2 at a host, Table 3 at a GPU box.

use crate::{
    packet::{End, Node},
    tlp::Id,
};

/// Most entries of a table: devices of a virtual switch's bus.
pub const ENTRIES_MAX: usize = 32;

/// Addresses from `base` to `limit`, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    pub base: u64,
    pub limit: u64,
}

impl Window {
    pub fn contains(&self, address: u64) -> bool {
        (self.base..=self.limit).contains(&address)
    }
}

/// A GPU as the manager assigns it to a host's entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Assigned {
    pub gpu_box: Node,
    pub slot: u8,
    pub path: u16,
}

/// An entry of Table 2; its number is its device on the virtual switch's bus.
///
/// A bridge has three windows, so one base and limit of the paper are three here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HostEntry {
    pub is_used: bool,
    /// Given by the OS, at enumeration. 0: not yet.
    pub bus: u8,
    pub memory: Option<Window>,
    pub prefetchable: Option<Window>,
    pub io: Option<Window>,
    /// Given by the manager.
    pub assigned: Option<Assigned>,
}

/// Refusal of a change to a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    #[error("no entry of the table is free")]
    Full,
    #[error("there is no entry {0}")]
    NoEntry(usize),
    #[error("slot {0} has no GPU in place")]
    Empty(u8),
    #[error("slot {slot} is used by node {}", host.0)]
    InUse { slot: u8, host: Node },
    #[error("node {} has box, slot {slot} already", gpu_box.0)]
    Twice { gpu_box: Node, slot: u8 },
}

/// Table 2.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostTable {
    entries: Vec<HostEntry>,
}

impl HostTable {
    /// Makes a table of this many entries, [`ENTRIES_MAX`] at most.
    pub fn new(entries: usize) -> HostTable {
        HostTable {
            entries: vec![HostEntry::default(); entries.min(ENTRIES_MAX)],
        }
    }

    pub fn entries(&self) -> &[HostEntry] {
        &self.entries
    }

    /// Takes a free entry for a GPU, as the manager does. The OS has numbered the entry's bus and
    /// windows at boot, or will.
    pub fn assign(&mut self, gpu: Assigned) -> Result<usize, TableError> {
        let (gpu_box, slot) = (gpu.gpu_box, gpu.slot);
        let is_same = |a: &Assigned| a.gpu_box == gpu_box && a.slot == slot;
        if self
            .entries
            .iter()
            .any(|e| e.assigned.as_ref().is_some_and(is_same))
        {
            return Err(TableError::Twice { gpu_box, slot });
        }
        let free = self.entries.iter().position(|entry| !entry.is_used);
        let number = free.ok_or(TableError::Full)?;
        self.entries[number].is_used = true;
        self.entries[number].assigned = Some(gpu);
        Ok(number)
    }

    /// Frees an entry; the windows that the OS reserved for it stay.
    pub fn release(&mut self, number: usize) -> Result<Assigned, TableError> {
        let entry = self.entries.get_mut(number);
        let entry = entry.ok_or(TableError::NoEntry(number))?;
        entry.is_used = false;
        entry.assigned.take().ok_or(TableError::NoEntry(number))
    }

    pub(crate) fn entry_mut(&mut self, number: usize) -> Option<&mut HostEntry> {
        self.entries.get_mut(number)
    }

    /// Finds the entry whose memory has this address.
    pub fn by_address(&self, address: u64) -> Option<&HostEntry> {
        let has = |window: &Option<Window>| window.is_some_and(|w| w.contains(address));
        let mut used = self.entries.iter().filter(|entry| entry.is_used);
        used.find(|entry| has(&entry.memory) || has(&entry.prefetchable))
    }

    pub fn by_io(&self, address: u32) -> Option<&HostEntry> {
        let address = u64::from(address);
        let mut used = self.entries.iter().filter(|entry| entry.is_used);
        used.find(|entry| entry.io.is_some_and(|window| window.contains(address)))
    }

    /// Finds the entry of a bus; a device of another number than 0 is none of the GPU's.
    pub fn by_id(&self, id: Id) -> Option<&HostEntry> {
        let mut used = self.entries.iter().filter(|entry| entry.is_used);
        used.find(|entry| entry.bus == id.bus() && entry.bus != 0 && id.device() == 0)
    }
}

/// An entry of Table 3.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BoxEntry {
    /// A GPU is in place.
    pub is_valid: bool,
    pub slot: u8,
    /// Host and path, given by the manager; none if the GPU is not used.
    pub host: Option<(Node, u16)>,
}

/// Table 3.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoxTable {
    entries: Vec<BoxEntry>,
}

impl BoxTable {
    /// Makes the table of a box with this many slots, numbered from 1: 0 is a host's.
    pub fn new(slots: usize) -> BoxTable {
        let slots = 1..=slots.min(ENTRIES_MAX) as u8;
        BoxTable {
            entries: slots
                .map(|slot| BoxEntry {
                    slot,
                    ..BoxEntry::default()
                })
                .collect(),
        }
    }

    pub fn entries(&self) -> &[BoxEntry] {
        &self.entries
    }

    fn of_slot(&mut self, slot: u8) -> Result<&mut BoxEntry, TableError> {
        let found = self.entries.iter_mut().find(|entry| entry.slot == slot);
        found.ok_or(TableError::NoEntry(usize::from(slot)))
    }

    /// Notes that a GPU is in place, or has been taken out.
    pub fn plug(&mut self, slot: u8, is_valid: bool) -> Result<(), TableError> {
        self.of_slot(slot)?.is_valid = is_valid;
        Ok(())
    }

    pub fn assign(&mut self, slot: u8, host: Node, path: u16) -> Result<(), TableError> {
        let entry = self.of_slot(slot)?;
        match (entry.is_valid, entry.host) {
            (false, _) => Err(TableError::Empty(slot)),
            (_, Some((host, _))) => Err(TableError::InUse { slot, host }),
            (true, None) => {
                entry.host = Some((host, path));
                Ok(())
            }
        }
    }

    pub fn release(&mut self, slot: u8) -> Result<(), TableError> {
        self.of_slot(slot)?.host = None;
        Ok(())
    }

    /// Returns the host of a GPU, which is its only one, and the path.
    pub fn host_of(&self, slot: u8) -> Option<(End, u16)> {
        let entry = self.entries.iter().find(|entry| entry.slot == slot)?;
        let (node, path) = entry.host.filter(|_| entry.is_valid)?;
        Some((End { node, slot: 0 }, path))
    }
}
