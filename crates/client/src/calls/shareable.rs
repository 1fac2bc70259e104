//! Memory of `cuMemCreate` and memory pools as file descriptors, which a program may pass to another that uses the same server.
//!
//! A descriptor is one end of a pair of sockets. What it stands for, the server's ticket, lies in it, to be looked at and never
//! taken out.
//! The other end stays here: it says when the last copy of the descriptor, in whatever process, is closed.

use std::{
    ffi::c_void,
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd},
};

use outboard_api::{
    CUresult,
    cuda::{CUmemAllocationProp, CUmemGenericAllocationHandle, CUmemLocation},
    enums::*,
};
use outboard_wire::messages;

use super::{Done, put};
use crate::{
    log,
    state::{Driver, Kind, driver},
};

const MARK_BYTES: usize = 8;
const MEMORY_MARK: [u8; MARK_BYTES] = *b"OB-FD-M1";
pub(super) const POOL_MARK: [u8; MARK_BYTES] = *b"OB-FD-P1";
/// What a descriptor stands for: a ticket, or a pool's own number.
const TICKET_BYTES: usize = 24;
const MESSAGE_BYTES: usize = MARK_BYTES + TICKET_BYTES;

/// A descriptor that holds a ticket, and the end that tells when it is closed.
pub(super) fn descriptor(
    mark: [u8; MARK_BYTES],
    ticket: &[u8; TICKET_BYTES],
) -> io::Result<(OwnedFd, OwnedFd)> {
    let message = [&mark[..], ticket].concat();
    let mut ends = [-1; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: room for two descriptors.
    if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: both were made for the caller a moment ago.
    let [theirs, ours] = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
    // SAFETY: as many bytes as said.
    let sent = unsafe {
        libc::send(
            ours.as_raw_fd(),
            message.as_ptr().cast(),
            message.len(),
            libc::MSG_NOSIGNAL,
        )
    };
    match usize::try_from(sent) {
        Ok(MESSAGE_BYTES) => Ok((theirs, ours)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The descriptor that a caller passes as a pointer. A number that is none is refused when it is looked at.
///
/// # Safety
/// The caller keeps the descriptor open while it is looked at.
pub(super) unsafe fn borrowed<'a>(os_handle: *mut c_void) -> Result<BorrowedFd<'a>, CUresult> {
    let number = i32::try_from(os_handle as usize)
        .ok()
        .filter(|number| *number >= 0)
        .ok_or(CUresult::CUDA_ERROR_UNKNOWN)?;
    // SAFETY: not -1, and open for as long as the caller promises.
    Ok(unsafe { BorrowedFd::borrow_raw(number) })
}

/// The ticket in a descriptor, which may be any descriptor at all.
pub(super) fn ticket_of(
    mark: [u8; MARK_BYTES],
    descriptor: BorrowedFd<'_>,
) -> Option<[u8; TICKET_BYTES]> {
    // One byte more than there is to see, so that a longer message is none of ours.
    let mut message = [0; MESSAGE_BYTES + 1];
    // SAFETY: as much room as said; the call neither waits nor takes anything out.
    let seen = unsafe {
        libc::recv(
            descriptor.as_raw_fd(),
            message.as_mut_ptr().cast(),
            message.len(),
            libc::MSG_PEEK | libc::MSG_DONTWAIT,
        )
    };
    let message = message.get(..usize::try_from(seen).ok()?)?;
    message.strip_prefix(&mark)?.try_into().ok()
}

impl Driver {
    /// Gives back memory that only descriptors kept, if their last copies were closed meanwhile.
    pub(super) fn forget_closed_exports(&self) -> Done {
        let mut table = self.virtual_memory.lock();
        for (handle, physical) in table.take_forgotten() {
            self.give_back(&mut self.memory.lock(), handle, &physical)?;
        }
        Ok(())
    }
}

pub(crate) unsafe fn cuMemExportToShareableHandle(
    shareable: *mut c_void,
    handle: CUmemGenericAllocationHandle,
    kind: u32,
    flags: u64,
) -> Done {
    let driver = driver()?;
    if shareable.is_null() || flags != 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    driver.forget_closed_exports()?;
    let properties = driver.virtual_memory.lock().get(handle)?.properties;
    // No other kind can have been asked for when the memory was made.
    let is_possible = kind == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if !is_possible || properties.requested_handle_types & kind == 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let question = messages::IpcExportAllocation { allocation: handle };
    let ticket = driver.call(&question, |reply| reply.ticket.to_vec())?;
    let ticket = ticket
        .try_into()
        .map_err(|_| CUresult::CUDA_ERROR_UNKNOWN)?;
    let (theirs, ours) = descriptor(MEMORY_MARK, &ticket).map_err(|error| {
        log::warn(format!(
            "cuMemExportToShareableHandle: a pair of sockets: {error}"
        ));
        CUresult::CUDA_ERROR_OPERATING_SYSTEM
    })?;
    driver.virtual_memory.lock().export(handle, ours);
    // SAFETY: a handle of this type is an `int`; see the module's contract.
    unsafe { put(shareable.cast(), theirs.into_raw_fd()) }
}

pub(crate) unsafe fn cuMemImportFromShareableHandle(
    handle: *mut CUmemGenericAllocationHandle,
    os_handle: *mut c_void,
    kind: u32,
) -> Done {
    let driver = driver()?;
    if handle.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    match kind {
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR => {}
        CU_MEM_HANDLE_TYPE_NONE => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        _ => {
            log::warn("cuMemImportFromShareableHandle: only POSIX file descriptors are supported");
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
    }
    driver.forget_closed_exports()?;
    // SAFETY: only looked at during this call.
    let descriptor = unsafe { borrowed(os_handle)? };
    // What the driver answers to a descriptor that is none of its own.
    let ticket = ticket_of(MEMORY_MARK, descriptor).ok_or(CUresult::CUDA_ERROR_UNKNOWN)?;
    let allocation = driver.handles.mint(Kind::Allocation);
    let question = messages::IpcOpenAllocation {
        allocation,
        ticket: &ticket,
    };
    let (device, bytes) = driver.call(&question, |reply| (reply.device, reply.len))?;
    let device = driver.devices.client(device)?;
    let properties = CUmemAllocationProp {
        kind: CU_MEM_ALLOCATION_TYPE_PINNED,
        // As the driver has it: what was imported is not exported again.
        requested_handle_types: CU_MEM_HANDLE_TYPE_NONE,
        location: CUmemLocation {
            kind: CU_MEM_LOCATION_TYPE_DEVICE,
            id: device,
        },
        win32_handle_meta_data: std::ptr::null_mut(),
        compression_type: 0,
        gpu_direct_rdma_capable: 0,
        usage: 0,
        reserved: [0; 4],
    };
    let mut table = driver.virtual_memory.lock();
    table.adopt(allocation, device, bytes, properties);
    // SAFETY: see the module's contract.
    unsafe { put(handle, allocation) }
}

#[cfg(test)]
mod tests {
    use std::{fs::File, os::fd::AsFd as _};

    use super::*;

    #[test]
    fn a_ticket_can_be_looked_at_more_than_once() {
        let ticket = [7; TICKET_BYTES];
        let (theirs, ours) = descriptor(MEMORY_MARK, &ticket).unwrap();
        let copy = theirs.try_clone().unwrap();
        assert_eq!(ticket_of(MEMORY_MARK, theirs.as_fd()), Some(ticket));
        assert_eq!(ticket_of(MEMORY_MARK, copy.as_fd()), Some(ticket));
        assert_eq!(ticket_of(POOL_MARK, copy.as_fd()), None);
        // The process that made it is gone.
        drop(ours);
        assert_eq!(ticket_of(MEMORY_MARK, copy.as_fd()), Some(ticket));
    }

    #[test]
    fn other_descriptors_hold_no_ticket() {
        let ticket = |fd: BorrowedFd<'_>| ticket_of(MEMORY_MARK, fd);
        let file = File::open("/dev/null").unwrap();
        assert_eq!(ticket(file.as_fd()), None);
        let (_theirs, ours) = descriptor(MEMORY_MARK, &[1; TICKET_BYTES]).unwrap();
        assert_eq!(ticket(ours.as_fd()), None, "nothing to be seen");
        // SAFETY: only looked at.
        let closed = unsafe { BorrowedFd::borrow_raw(99_999) };
        assert_eq!(ticket(closed), None);
    }
}
