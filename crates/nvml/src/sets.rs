//! Sets of events: which events of the lease each is still to give.

use outboard_wire::lease::{LeaseChange, LeaseEvent};

use crate::types::{
    EVENT_XID, Result, SYSTEM_EVENT_BIND, SYSTEM_EVENT_UNBIND, XID_UNKNOWN, nvmlReturn_t,
};

/// Sets of a process at a time.
const SETS_MAX: usize = 64;

/// The existing sets, by number.
#[derive(Default)]
pub(crate) struct Sets {
    all: Vec<Option<Set>>,
}

/// Kinds of sets: their handles are different.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Devices,
    System,
}

pub(crate) struct Set {
    kind: Kind,
    /// Number of the last event that was given or is of no interest.
    seen: u64,
    registered: Vec<Registered>,
}

struct Registered {
    /// UUID of a device; `None`: events of the system.
    device: Option<String>,
    types: u64,
    /// Number of the last event before the registration.
    after: u64,
}

impl Sets {
    pub(crate) fn create(&mut self, kind: Kind) -> Result<usize> {
        let new = Set {
            kind,
            seen: 0,
            registered: Vec::new(),
        };
        match self.all.iter().position(Option::is_none) {
            Some(number) => {
                self.all[number] = Some(new);
                Ok(number)
            }
            None if self.all.len() < SETS_MAX => {
                self.all.push(Some(new));
                Ok(self.all.len() - 1)
            }
            None => Err(nvmlReturn_t::INSUFFICIENT_RESOURCES),
        }
    }

    pub(crate) fn get(&mut self, kind: Kind, number: usize) -> Result<&mut Set> {
        let set = self.all.get_mut(number).and_then(Option::as_mut);
        set.filter(|set| set.kind == kind)
            .ok_or(nvmlReturn_t::INVALID_ARGUMENT)
    }

    pub(crate) fn free(&mut self, kind: Kind, number: usize) -> Result {
        self.get(kind, number)?;
        self.all[number] = None;
        Ok(())
    }
}

impl Set {
    /// Adds types of events that happen after those that are there.
    pub(crate) fn register(&mut self, device: Option<String>, types: u64, there: &[LeaseEvent]) {
        let after = there.last().map_or(0, |event| event.number);
        let is_same = |known: &&mut Registered| known.device == device && known.types == types;
        if self.registered.iter_mut().find(is_same).is_none() {
            self.registered.push(Registered {
                device,
                types,
                after,
            });
        }
    }

    /// Takes the next event of a device: its UUID, and the number of the error.
    pub(crate) fn take_error(&mut self, there: &[LeaseEvent]) -> Option<(String, u64)> {
        self.take(there, |event, by| match event.change {
            LeaseChange::Lost { xid }
                if by.types & EVENT_XID != 0 && by.device.as_ref() == Some(&event.uuid) =>
            {
                Some((event.uuid.clone(), xid.map_or(XID_UNKNOWN, u64::from)))
            }
            _ => None,
        })
    }

    /// Takes the next event of the system: its type, and the driver's id of the GPU.
    pub(crate) fn take_system(&mut self, there: &[LeaseEvent]) -> Option<(u64, u32)> {
        self.take(there, |event, by| {
            let its_type = match event.change {
                LeaseChange::Attached => SYSTEM_EVENT_BIND,
                LeaseChange::Detached => SYSTEM_EVENT_UNBIND,
                LeaseChange::Lost { .. } => return None,
            };
            (by.types & its_type != 0).then(|| (its_type, gpu_id(event.pci)))
        })
    }

    fn take<T>(
        &mut self,
        there: &[LeaseEvent],
        wanted: impl Fn(&LeaseEvent, &Registered) -> Option<T>,
    ) -> Option<T> {
        for event in there {
            if event.number <= self.seen {
                continue;
            }
            self.seen = event.number;
            let mut all = self.registered.iter();
            let found = all.find_map(|by| wanted(event, by).filter(|_| event.number > by.after));
            if found.is_some() {
                return found;
            }
        }
        None
    }
}

/// Returns the id by which the driver names a GPU: its PCI address in one number.
fn gpu_id((domain, bus, device): (u32, u32, u32)) -> u32 {
    (domain & 0xffff) << 16 | (bus & 0xff) << 8 | device & 0xff
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(number: u64, change: LeaseChange, uuid: &str) -> LeaseEvent {
        LeaseEvent {
            number,
            change,
            uuid: uuid.into(),
            pci: (1, 0x5d, 3),
        }
    }

    #[test]
    fn a_set_gives_each_event_once_that_came_after_its_registration() {
        let lost = |xid| LeaseChange::Lost { xid };
        let mut there = vec![
            event(1, lost(None), "a"),
            event(2, LeaseChange::Attached, "b"),
        ];
        let mut sets = Sets::default();
        let (devices, system) = (Kind::Devices, Kind::System);
        assert_eq!(sets.create(devices), Ok(0));
        assert_eq!(sets.create(system), Ok(1));
        let set = sets.get(devices, 0).unwrap();
        set.register(Some("a".into()), EVENT_XID, &there);
        assert_eq!(set.take_error(&there), None);
        there.push(event(3, lost(Some(79)), "c"));
        there.push(event(4, lost(Some(48)), "a"));
        set.register(Some("c".into()), EVENT_XID, &there);
        there.push(event(5, lost(None), "c"));
        assert_eq!(set.take_error(&there), Some(("a".into(), 48)));
        assert_eq!(set.take_error(&there), Some(("c".into(), XID_UNKNOWN)));
        assert_eq!(set.take_error(&there), None);

        let set = sets.get(system, 1).unwrap();
        set.register(None, SYSTEM_EVENT_UNBIND, &there);
        there.push(event(6, LeaseChange::Attached, "d"));
        there.push(event(7, LeaseChange::Detached, "d"));
        assert_eq!(
            set.take_system(&there),
            Some((SYSTEM_EVENT_UNBIND, 0x0001_5d03))
        );
        assert_eq!(set.take_system(&there), None);
    }

    #[test]
    fn sets_have_a_kind_and_a_bound() {
        let mut sets = Sets::default();
        for number in 0..SETS_MAX {
            assert_eq!(sets.create(Kind::System), Ok(number));
        }
        let full = nvmlReturn_t::INSUFFICIENT_RESOURCES;
        assert_eq!(sets.create(Kind::Devices), Err(full));
        assert!(sets.get(Kind::Devices, 7).is_err());
        assert!(sets.free(Kind::Devices, 7).is_err());
        assert_eq!(sets.free(Kind::System, 7), Ok(()));
        assert_eq!(sets.create(Kind::Devices), Ok(7));
    }
}
