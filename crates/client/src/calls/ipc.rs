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

use super::{
    Done, Out,
    foreign_block::{ForeignBlock, TICKET_BYTES},
};
use crate::state::{AllocationKind, Chunk, Driver, HandleKind, driver, wire_context};

const MEMORY_MARK: [u8; 8] = *b"OB-IPC-M";
const EVENT_MARK: [u8; 8] = *b"OB-IPC-E";

fn handle_of(block: &ForeignBlock) -> CUipcMemHandle {
    let mut reserved = [0; 64];
    let all = [&MEMORY_MARK[..], &block.write()].concat();
    reserved[..all.len()].copy_from_slice(&all);
    CUipcMemHandle { reserved }
}

/// Reads a handle that another process made. Nothing in it is to be trusted.
fn block_of(handle: &CUipcMemHandle) -> Option<ForeignBlock> {
    let rest = handle.reserved.strip_prefix(&MEMORY_MARK)?;
    ForeignBlock::read(rest.first_chunk()?)
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
        self.session.take_fault(wire_context)
    }

    fn open_foreign(&self, block: &ForeignBlock) -> Result<Opened, CUresult> {
        let context = self.contexts.current()?;
        let (chunk, device) = self.map_block(wire_context(), block, 0)?;
        let device = self.devices.client(device)?;
        let address = chunk.base + block.offset;
        self.memory.lock().adopt(
            address,
            block.bytes,
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
                opened.chunk
            })
            .collect()
    }
}

pub(crate) unsafe fn cuIpcGetMemHandle(
    handle: Out<'_, CUipcMemHandle>,
    address: CUdeviceptr,
) -> Done {
    let driver = driver()?;
    handle.check()?;
    let found = driver.memory.lock().find(address).copied();
    let allocation = found
        .filter(|a| a.kind == AllocationKind::Plain)
        .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    let block = driver.export_block(wire_context(), allocation.base, allocation.bytes)?;
    handle.put(handle_of(&block))
}

pub(crate) fn cuIpcOpenMemHandle_v2(
    out: Out<'_, CUdeviceptr>,
    handle: CUipcMemHandle,
    flags: u32,
) -> Done {
    let driver = driver()?;
    if out.is_null() || flags & !CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS != 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let block = block_of(&handle).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    driver.contexts.current()?;
    let key = (handle.reserved, wire_context());
    let mut openings = openings().lock();
    let address = match openings.get_mut(&key) {
        Some(opened) => {
            opened.uses += 1;
            opened.address
        }
        None => {
            let opened = driver.open_foreign(&block)?;
            let address = opened.address;
            openings.insert(key, opened);
            address
        }
    };
    out.put(address)
}

pub(crate) fn cuIpcCloseMemHandle(address: CUdeviceptr) -> Done {
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

pub(crate) fn cuIpcGetEventHandle(handle: Out<'_, CUipcEventHandle>, event: CUevent) -> Done {
    let driver = driver()?;
    handle.check()?;
    if event.0 == 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let event = driver.streams.event(event)?;
    if !event.is_shared() {
        // As a driver does.
        handle.put(CUipcEventHandle { reserved: [0; 64] })?;
        return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
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
    handle.put(CUipcEventHandle { reserved })
}

pub(crate) fn cuIpcOpenEventHandle(event: Out<'_, CUevent>, handle: CUipcEventHandle) -> Done {
    let driver = driver()?;
    event.check()?;
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
    event.put(CUevent(number as usize))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::foreign_block::BLOCK;

    #[test]
    fn a_handle_says_where_the_allocation_lies_and_is_marked() {
        let handle = handle_of(&BLOCK);
        assert_eq!(block_of(&handle), Some(BLOCK));
        let mut foreign = handle;
        foreign.reserved[0] = 0;
        assert_eq!(block_of(&foreign), None);
    }
}
