//! CUDA IPC: use of this process's memory and events in another process of the same server. A
//! handle contains the server's ticket, and the allocation's offset in the ticket's memory.

use std::collections::HashMap;

use outboard_api::{
    CUresult,
    cuda::{CUcontext, CUdeviceptr, CUevent, CUipcEventHandle, CUipcMemHandle},
    enums::*,
};
use outboard_wire::messages;
use parking_lot::Mutex;

use super::{Done, put};
use crate::state::{AllocationKind, CHUNK_BYTES, Chunk, Driver, HandleKind, driver, wire_context};

const MEMORY_MARK: [u8; 8] = *b"OB-IPC-M";
const EVENT_MARK: [u8; 8] = *b"OB-IPC-E";
const TICKET_BYTES: usize = 24;
/// Greatest length that a handle from another process may state.
const LEN_BYTES_MAX: u64 = 1 << 40;

/// The contents of a memory handle.
struct MemoryHandle {
    ticket: [u8; TICKET_BYTES],
    /// Length of the memory that the server maps.
    len: u64,
    /// Offset of the allocation in that memory.
    offset: u64,
    bytes: u64,
}

impl MemoryHandle {
    fn write(&self) -> CUipcMemHandle {
        let mut reserved = [0; 64];
        let words = [self.len, self.offset, self.bytes]
            .map(u64::to_ne_bytes)
            .concat();
        let all = [&MEMORY_MARK[..], &self.ticket, &words].concat();
        reserved[..all.len()].copy_from_slice(&all);
        CUipcMemHandle { reserved }
    }

    /// Reads a handle that another process made. Nothing in it is to be trusted.
    fn read(handle: &CUipcMemHandle) -> Option<MemoryHandle> {
        let rest = handle.reserved.strip_prefix(&MEMORY_MARK)?;
        let (ticket, rest) = rest.split_first_chunk::<TICKET_BYTES>()?;
        let (words, _) = rest.as_chunks::<8>();
        let [len, offset, bytes, ..] = words else {
            return None;
        };
        let [len, offset, bytes] = [len, offset, bytes].map(|word| u64::from_ne_bytes(*word));
        let is_sound = len.is_multiple_of(CHUNK_BYTES)
            && len <= LEN_BYTES_MAX
            && bytes > 0
            && offset.checked_add(bytes).is_some_and(|end| end <= len);
        is_sound.then_some(MemoryHandle {
            ticket: *ticket,
            len,
            offset,
            bytes,
        })
    }
}

/// Memory of another process, opened here once or several times.
struct Opened {
    address: u64,
    chunk: Chunk,
    context: u64,
    uses: u32,
}

/// Opened memory, by handle and context.
type Openings = HashMap<([u8; 64], u64), Opened>;

fn openings() -> &'static Mutex<Openings> {
    static OPENINGS: std::sync::OnceLock<Mutex<Openings>> = std::sync::OnceLock::new();
    OPENINGS.get_or_init(Mutex::default)
}

impl Driver {
    /// Waits until the server has executed everything that was sent. Returns the error of any of
    /// it.
    pub(crate) fn settle(&self) -> Done {
        self.call(&messages::Ping {}, |_| ())?;
        self.session.take_fault()
    }

    fn open_foreign(&self, handle: &MemoryHandle) -> Result<Opened, CUresult> {
        let context = self.contexts.current()?;
        let chunk = self.memory.lock().take_addresses(handle.len)?;
        let question = messages::IpcOpenMemory {
            ticket: &handle.ticket,
            va: chunk.base,
            len: chunk.bytes,
            own: 0,
        };
        let device = match self.call(&question, |reply| reply.device) {
            Ok(device) => self.devices.client(device)?,
            Err(error) => {
                self.memory.lock().give_addresses(chunk);
                return Err(error);
            }
        };
        let address = chunk.base + handle.offset;
        self.memory.lock().adopt(
            address,
            handle.bytes,
            context.handle,
            device,
            AllocationKind::Foreign,
        );
        Ok(Opened {
            address,
            chunk,
            context: wire_context(),
            uses: 1,
        })
    }
}

impl Driver {
    /// Closes the memory opened in a context that ends. Returns the memory that the server must
    /// unmap.
    pub(crate) fn close_foreign(&self, context: CUcontext) -> Vec<Chunk> {
        let mut openings = openings().lock();
        let mut memory = self.memory.lock();
        openings
            .extract_if(|(_, of), _| *of == context.0 as u64)
            .map(|(_, opened)| {
                memory.disown(opened.address);
                memory.give_addresses(opened.chunk);
                opened.chunk
            })
            .collect()
    }
}

pub(crate) unsafe fn cuIpcGetMemHandle(handle: *mut CUipcMemHandle, address: CUdeviceptr) -> Done {
    let driver = driver()?;
    if handle.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let found = driver.memory.lock().find(address).copied();
    let allocation = found
        .filter(|a| a.kind == AllocationKind::Plain)
        .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    let question = messages::IpcExportMemory {
        va: allocation.base,
    };
    let (ticket, base, len) = driver.call(&question, |reply| {
        (reply.ticket.to_vec(), reply.base, reply.len)
    })?;
    let read = MemoryHandle {
        ticket: ticket
            .try_into()
            .map_err(|_| CUresult::CUDA_ERROR_UNKNOWN)?,
        len,
        offset: allocation
            .base
            .checked_sub(base)
            .ok_or(CUresult::CUDA_ERROR_UNKNOWN)?,
        bytes: allocation.bytes,
    };
    // SAFETY: see the module's contract.
    unsafe { put(handle, read.write()) }
}

pub(crate) unsafe fn cuIpcOpenMemHandle_v2(
    address: *mut CUdeviceptr,
    handle: CUipcMemHandle,
    flags: u32,
) -> Done {
    let driver = driver()?;
    if address.is_null() || flags & !CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS != 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let read = MemoryHandle::read(&handle).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    driver.contexts.current()?;
    let key = (handle.reserved, wire_context());
    let mut openings = openings().lock();
    let opened = match openings.get_mut(&key) {
        Some(opened) => {
            opened.uses += 1;
            opened.address
        }
        None => {
            let opened = driver.open_foreign(&read)?;
            let address = opened.address;
            openings.insert(key, opened);
            address
        }
    };
    // SAFETY: see the module's contract.
    unsafe { put(address, opened) }
}

pub(crate) unsafe fn cuIpcCloseMemHandle(address: CUdeviceptr) -> Done {
    let driver = driver()?;
    let mut openings = openings().lock();
    let (key, opened) = openings
        .iter_mut()
        .find(|(_, opened)| opened.address == address)
        .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    opened.uses -= 1;
    if opened.uses > 0 {
        return Ok(());
    }
    let (key, chunk, context) = (*key, opened.chunk, opened.context);
    openings.remove(&key);
    // The lock is held until the message is sent, so that memory is unmapped before its addresses
    // are reused.
    let mut memory = driver.memory.lock();
    memory.disown(address);
    memory.give_addresses(chunk);
    driver.unmap(context, chunk)
}

pub(crate) unsafe fn cuIpcGetEventHandle(handle: *mut CUipcEventHandle, event: CUevent) -> Done {
    let driver = driver()?;
    let event = driver.streams.event(event)?;
    if handle.is_null() || !event.is_shared() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let question = messages::IpcExportEvent {
        event: event.handle,
    };
    let ticket = driver.call(&question, |reply| reply.ticket.to_vec())?;
    if ticket.len() != TICKET_BYTES {
        return Err(CUresult::CUDA_ERROR_UNKNOWN);
    }
    let mut reserved = [0; 64];
    let all = [&EVENT_MARK[..], &ticket].concat();
    reserved[..all.len()].copy_from_slice(&all);
    // SAFETY: see the module's contract.
    unsafe { put(handle, CUipcEventHandle { reserved }) }
}

pub(crate) unsafe fn cuIpcOpenEventHandle(event: *mut CUevent, handle: CUipcEventHandle) -> Done {
    let driver = driver()?;
    if event.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let ticket = handle
        .reserved
        .strip_prefix(&EVENT_MARK)
        .and_then(|rest| rest.get(..TICKET_BYTES))
        .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    let context = driver.contexts.current()?;
    let number = driver.handles.mint(HandleKind::Event);
    let question = messages::IpcOpenEvent {
        event: number,
        ticket,
    };
    driver.call(&question, |_| ())?;
    let flags = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
    driver.streams.insert_event(number, context.handle, flags);
    // SAFETY: see the module's contract.
    unsafe { put(event, CUevent(number as usize)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HANDLE: MemoryHandle = MemoryHandle {
        ticket: [5; TICKET_BYTES],
        len: 4 << 20,
        offset: 512,
        bytes: 1000,
    };

    #[test]
    fn a_handle_says_where_the_allocation_lies() {
        let read = MemoryHandle::read(&HANDLE.write()).unwrap();
        assert_eq!(
            (read.ticket, read.len, read.offset, read.bytes),
            ([5; 24], 4 << 20, 512, 1000)
        );
    }

    #[test]
    fn a_handle_that_cannot_be_is_refused() {
        for (len, offset, bytes) in [
            (0, 0, 0),
            (1 << 20, 0, 1),
            (2 << 20, 2 << 20, 1),
            (2 << 20, u64::MAX, 2),
            (2 << 50, 0, 1),
            (2 << 20, 0, 0),
        ] {
            let wrong = MemoryHandle {
                len,
                offset,
                bytes,
                ..HANDLE
            };
            assert!(
                MemoryHandle::read(&wrong.write()).is_none(),
                "{len} {offset} {bytes}"
            );
        }
        let mut foreign = HANDLE.write();
        foreign.reserved[0] = 0;
        assert!(MemoryHandle::read(&foreign).is_none());
    }
}
