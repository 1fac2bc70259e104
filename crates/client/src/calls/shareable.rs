//! Memory of `cuMemCreate` and memory pools as file descriptors, which a program may pass to
//! another that uses the same server.
//!
//! A descriptor is one end of a pair of sockets. It contains the server's ticket as an unread
//! message; importers read the message without removing it. The other end stays in this process,
//! and reports when the last copy of the descriptor, in any process, is closed.

use std::{
    ffi::{c_int, c_void},
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd},
};

use outboard_api::{
    CUresult,
    cuda::{CUmemAllocationProp, CUmemGenericAllocationHandle, CUmemLocation},
    enums::*,
};
use outboard_wire::messages;

use super::{Done, Out, Untyped, foreign_block::TICKET_BYTES};
use crate::{
    log,
    state::{Driver, HandleKind, driver},
};

const MARK_BYTES: usize = 8;
const MEMORY_MARK: [u8; MARK_BYTES] = *b"OB-FD-M1";
pub(super) const POOL_MARK: [u8; MARK_BYTES] = *b"OB-FD-P1";
/// Length of a descriptor: a mark, and a ticket or a pool's own number.
const MESSAGE_BYTES: usize = MARK_BYTES + TICKET_BYTES;

/// Returns a descriptor that contains a ticket, and the end that reports when it is closed.
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
    // SAFETY: both were created above, and are not yet owned.
    let [theirs, ours] = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
    // SAFETY: the message has `message.len()` bytes.
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

/// Returns the descriptor that a caller passes as a pointer. An invalid number fails when it is
/// used.
///
/// # Safety
/// The caller keeps the descriptor open while it is used.
pub(super) unsafe fn borrowed<'a>(os_handle: *mut c_void) -> Result<BorrowedFd<'a>, CUresult> {
    let number = i32::try_from(os_handle as usize)
        .ok()
        .filter(|number| *number >= 0)
        .ok_or(CUresult::CUDA_ERROR_UNKNOWN)?;
    // SAFETY: not -1, and open for as long as the caller promises.
    Ok(unsafe { BorrowedFd::borrow_raw(number) })
}

/// Returns the ticket in a descriptor, which may be any descriptor at all.
pub(super) fn ticket_of(
    mark: [u8; MARK_BYTES],
    descriptor: BorrowedFd<'_>,
) -> Option<[u8; TICKET_BYTES]> {
    // One byte longer than our messages, so that a longer message is recognised as foreign.
    let mut message = [0; MESSAGE_BYTES + 1];
    // SAFETY: the buffer has this length; the call neither waits nor removes anything.
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
    /// Releases memory that only descriptors kept, if their last copies have been closed.
    pub(super) fn forget_closed_exports(&self) -> Done {
        let mut table = self.virtual_memory.lock();
        for (handle, physical) in table.take_forgotten() {
            self.give_back(&mut self.memory.lock(), handle, &physical)?;
        }
        Ok(())
    }
}

pub(crate) fn cuMemExportToShareableHandle(
    Untyped(shareable): Untyped<Out<'_, c_int>>,
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
    // Memory was created for this kind of handle, or for none.
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
    shareable.put(theirs.into_raw_fd())
}

pub(crate) unsafe fn cuMemImportFromShareableHandle(
    handle: Out<'_, CUmemGenericAllocationHandle>,
    os_handle: *mut c_void,
    kind: u32,
) -> Done {
    let driver = driver()?;
    handle.check()?;
    match kind {
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR => {}
        CU_MEM_HANDLE_TYPE_NONE => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        _ => {
            log::warn("cuMemImportFromShareableHandle: only POSIX file descriptors are supported");
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
    }
    driver.forget_closed_exports()?;
    // SAFETY: the program keeps a descriptor open until the call that it passes it to returns.
    let descriptor = unsafe { borrowed(os_handle)? };
    // The driver returns this for a descriptor that is not its own.
    let ticket = ticket_of(MEMORY_MARK, descriptor).ok_or(CUresult::CUDA_ERROR_UNKNOWN)?;
    let allocation = driver.handles.mint(HandleKind::Allocation);
    let question = messages::IpcOpenAllocation {
        allocation,
        ticket: &ticket,
    };
    let (device, bytes) = driver.call(&question, |reply| (reply.device, reply.len))?;
    let device = driver.devices.client(device)?;
    let properties = CUmemAllocationProp {
        kind: CU_MEM_ALLOCATION_TYPE_PINNED,
        // As with the driver, imported memory cannot be exported again.
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
    handle.put(allocation)
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
        // The process that created it is gone.
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
        // SAFETY: the number is only passed to system calls.
        let closed = unsafe { BorrowedFd::borrow_raw(99_999) };
        assert_eq!(ticket(closed), None);
    }
}
