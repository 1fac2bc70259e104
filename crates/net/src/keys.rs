//! Registered memory: keys, and what each of them opens.

use crate::{distant::Registered, error::Error};

/// Registrations that an adapter has room for.
pub const REGIONS_MAX: usize = 65_536;

/// Uses of registered memory beyond reading it locally.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Access(pub u32);

impl Access {
    pub const LOCAL_WRITE: Access = Access(1);
    pub const REMOTE_WRITE: Access = Access(2);
    pub const REMOTE_READ: Access = Access(4);
    pub const REMOTE_ATOMIC: Access = Access(8);
    pub const ALL: Access = Access(15);
    pub const LOCAL_READ: Access = Access(0);

    /// Returns these bits, if there are no others.
    pub(crate) fn new(bits: u32) -> Result<Access, Error> {
        match bits & !Access::ALL.0 {
            0 => Ok(Access(bits)),
            _ => Err(Error::Access(bits)),
        }
    }

    /// Returns true if memory is written to by operations that this permits.
    pub(crate) fn writes(self) -> bool {
        self.0 & !Access::REMOTE_READ.0 != 0
    }

    pub(crate) fn permits(self, wanted: Access) -> bool {
        self.0 & wanted.0 == wanted.0
    }
}

#[derive(Debug)]
struct Region {
    memory: Registered,
    domain: u32,
    access: Access,
}

/// A place in registered memory: all checks are done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    pub(crate) memory: &'a Registered,
    pub(crate) offset: usize,
}

/// All registrations of an adapter. A key has the number of its slot, and how often that was used.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    slots: Vec<(u8, Option<Region>)>,
    free: Vec<usize>,
}

impl Keys {
    pub(crate) fn add(
        &mut self,
        domain: u32,
        memory: Registered,
        access: Access,
    ) -> Result<u32, Error> {
        let region = Some(Region {
            memory,
            domain,
            access,
        });
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.slots.len() < REGIONS_MAX => {
                self.slots.push((0, None));
                self.slots.len() - 1
            }
            None => {
                return Err(Error::TooMany {
                    what: "registrations",
                    count_max: REGIONS_MAX,
                });
            }
        };
        // Key 0x100 is that of receives without memory: no slot is used for the 0th time.
        let uses = self.slots[slot].0.checked_add(1).unwrap_or(1);
        self.slots[slot] = (uses, region);
        Ok(key_of(slot, uses))
    }

    pub(crate) fn remove(&mut self, key: u32) -> Result<(), Error> {
        let slot = self
            .slot_of(key)
            .filter(|slot| self.slots[*slot].1.is_some());
        let slot = slot.ok_or(Error::NoKey(key))?;
        self.slots[slot].1 = None;
        self.free.push(slot);
        Ok(())
    }

    /// Returns all registrations, with their keys.
    pub(crate) fn all(&self) -> impl Iterator<Item = (u32, &Registered, Access)> {
        let numbered = self.slots.iter().enumerate();
        numbered.filter_map(|(slot, (uses, region))| {
            let region = region.as_ref()?;
            Some((key_of(slot, *uses), &region.memory, region.access))
        })
    }

    /// Returns what is registered by a key.
    pub(crate) fn memory(&self, key: u32) -> Option<&Registered> {
        let region = self.slots[self.slot_of(key)?].1.as_ref();
        region.map(|region| &region.memory)
    }

    /// Returns true if memory of this domain is registered by a key.
    pub(crate) fn is_of(&self, domain: u32, key: u32) -> bool {
        let slot = self.slot_of(key);
        let region = slot.and_then(|slot| self.slots[slot].1.as_ref());
        region.is_some_and(|region| region.domain == domain)
    }

    /// Finds bytes by their key and address, if the key is of this domain and permits the access.
    pub(crate) fn find(
        &self,
        domain: u32,
        key: u32,
        address: u64,
        bytes: u64,
        access: Access,
    ) -> Option<Place<'_>> {
        let region = self.slots[self.slot_of(key)?].1.as_ref()?;
        if region.domain != domain || !region.access.permits(access) {
            return None;
        }
        let offset = region.memory.offset_of(address, bytes)?;
        Some(Place {
            memory: &region.memory,
            offset,
        })
    }

    fn slot_of(&self, key: u32) -> Option<usize> {
        let slot = (key >> 8).checked_sub(1)? as usize;
        (self.slots.get(slot)?.0 == key as u8).then_some(slot)
    }
}

fn key_of(slot: usize, uses: u8) -> u32 {
    (slot as u32 + 1) << 8 | u32::from(uses)
}
