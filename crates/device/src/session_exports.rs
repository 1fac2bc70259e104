//! The memory and events that a session shares with other sessions: each is exported once, and the
//! tickets of other sessions are opened as what the client says they are.

use std::os::fd::OwnedFd;

use outboard_api::CUresult;
use outboard_wire::messages;
use rustc_hash::FxHashMap;

use crate::{
    Failure,
    office::{EVENT_BYTES, Export, Office, UUID_BYTES},
};

/// The exports of a session, with their numbers in its office.
#[derive(Default)]
pub struct SessionExports {
    office: Office,
    /// By address.
    memory: FxHashMap<u64, u64>,
    /// By the client's numbers.
    allocations: FxHashMap<u64, u64>,
    /// By the client's numbers.
    events: FxHashMap<u64, u64>,
}

/// Memory of another session.
pub struct ForeignMemory {
    pub file: OwnedFd,
    pub len: u64,
    pub device: [u8; UUID_BYTES],
}

/// An event of another session: the driver's own handle, or the memory of the event's state.
pub struct ForeignEvent {
    pub handle: [u8; EVENT_BYTES],
    pub state: Option<OwnedFd>,
}

impl SessionExports {
    /// Returns the ticket of the memory mapped at `base`, which is exported at the first call.
    pub fn memory_ticket(
        &mut self,
        base: u64,
        export: impl FnOnce() -> Result<Export, Failure>,
    ) -> Result<Vec<u8>, Failure> {
        ticket(&mut self.office, &mut self.memory, base, export)
    }

    pub fn allocation_ticket(
        &mut self,
        allocation: u64,
        export: impl FnOnce() -> Result<Export, Failure>,
    ) -> Result<Vec<u8>, Failure> {
        ticket(&mut self.office, &mut self.allocations, allocation, export)
    }

    pub fn event_ticket(
        &mut self,
        event: u64,
        export: impl FnOnce() -> Result<Export, Failure>,
    ) -> Result<Vec<u8>, Failure> {
        ticket(&mut self.office, &mut self.events, event, export)
    }

    /// Withdraws the export of memory that is no longer mapped.
    pub fn withdraw_memory(&mut self, base: u64) {
        withdraw(&mut self.office, &mut self.memory, base);
    }

    pub fn withdraw_allocation(&mut self, allocation: u64) {
        withdraw(&mut self.office, &mut self.allocations, allocation);
    }

    pub fn withdraw_event(&mut self, event: u64) {
        withdraw(&mut self.office, &mut self.events, event);
    }

    /// Fetches the memory that a message opens.
    pub fn open_memory(&self, m: &messages::IpcOpenMemory<'_>) -> Result<ForeignMemory, Failure> {
        let found = match m.own {
            0 => self.office.redeem(m.ticket)?,
            _ => self.office.redeem_any(m.ticket)?,
        };
        let Export::Memory { file, len, device } = found else {
            return Err(wrong(
                "an IPC handle of an event where one of memory is wanted",
            ));
        };
        if len != m.len {
            return Err(wrong("an IPC handle names memory of another length"));
        }
        Ok(ForeignMemory { file, len, device })
    }

    /// Fetches the memory of an allocation, which may be this session's own.
    pub fn open_allocation(&self, ticket: &[u8]) -> Result<ForeignMemory, Failure> {
        let Export::Memory { file, len, device } = self.office.redeem_any(ticket)? else {
            return Err(wrong(
                "a descriptor of an event where one of memory is wanted",
            ));
        };
        Ok(ForeignMemory { file, len, device })
    }

    pub fn open_event(&self, ticket: &[u8]) -> Result<ForeignEvent, Failure> {
        let Export::Event { handle, state } = self.office.redeem(ticket)? else {
            return Err(wrong(
                "an IPC handle of memory where one of an event is wanted",
            ));
        };
        Ok(ForeignEvent { handle, state })
    }
}

/// The error of memory on a device that the opening session does not have.
pub fn other_device() -> Failure {
    Failure::new(
        CUresult::CUDA_ERROR_INVALID_DEVICE,
        "memory of a device that this session does not have",
    )
}

fn ticket(
    office: &mut Office,
    numbers: &mut FxHashMap<u64, u64>,
    key: u64,
    export: impl FnOnce() -> Result<Export, Failure>,
) -> Result<Vec<u8>, Failure> {
    let number = match numbers.get(&key) {
        Some(number) => *number,
        None => {
            let number = office.add(export()?)?;
            numbers.insert(key, number);
            number
        }
    };
    office.ticket(number)
}

fn withdraw(office: &mut Office, numbers: &mut FxHashMap<u64, u64>, key: u64) {
    if let Some(number) = numbers.remove(&key) {
        office.remove(number);
    }
}

fn wrong(why: &str) -> Failure {
    Failure::new(CUresult::CUDA_ERROR_INVALID_VALUE, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> Result<Export, Failure> {
        let (file, _) = std::os::unix::net::UnixStream::pair().expect("a pair of sockets");
        Ok(Export::Memory {
            file: file.into(),
            len: 4096,
            device: [7; UUID_BYTES],
        })
    }

    #[test]
    fn an_object_is_exported_once_until_it_is_withdrawn() {
        let mut exports = SessionExports::default();
        let first = exports.memory_ticket(64, memory).expect("a ticket");
        let again = exports.memory_ticket(64, || Err(wrong("a second export")));
        assert_eq!(again.expect("the same ticket"), first);
        let other = exports.allocation_ticket(64, memory).expect("a ticket");
        assert_ne!(other, first);
        exports.withdraw_memory(64);
        assert!(exports.open_allocation(&first).is_err());
        assert!(exports.memory_ticket(64, || Err(wrong("gone"))).is_err());
    }

    #[test]
    fn a_ticket_is_opened_as_what_it_is() {
        let mut exports = SessionExports::default();
        let ticket = exports.allocation_ticket(1, memory).expect("a ticket");
        let opened = exports.open_allocation(&ticket).expect("own memory");
        assert_eq!((opened.len, opened.device), (4096, [7; UUID_BYTES]));
        let mut m = messages::IpcOpenMemory {
            ticket: &ticket,
            va: 0,
            len: 4096,
            own: 1,
        };
        assert!(exports.open_memory(&m).is_ok());
        m.len = 8192;
        assert!(exports.open_memory(&m).is_err());
        assert!(exports.open_event(&ticket).is_err(), "own, and memory");
    }
}
