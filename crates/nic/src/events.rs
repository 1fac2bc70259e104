//! Asynchronous events of a device: programs wait for them, and none come. Errors of queue pairs
//! are completions here.

use std::{
    ffi::{c_char, c_int, c_uint, c_void},
    fs::File,
    io::{PipeReader, PipeWriter, Read, pipe},
    mem::ManuallyDrop,
    os::fd::{AsRawFd, FromRawFd},
};

use outboard_verbs::abi::ibv_context;

use crate::refused::set_errno;

/// Names of the events, in their order.
const NAMES: [&str; 20] = [
    "CQ error\0",
    "local work queue catastrophic error\0",
    "invalid request local work queue error\0",
    "local access violation work queue error\0",
    "communication established\0",
    "send queue drained\0",
    "path migrated\0",
    "path migration request error\0",
    "local catastrophic error\0",
    "port active\0",
    "port error\0",
    "LID change\0",
    "P_Key change\0",
    "SM change\0",
    "SRQ catastrophic error\0",
    "SRQ limit reached\0",
    "last WQE reached\0",
    "client reregistration\0",
    "GID table change\0",
    "WQ fatal\0",
];

/// The events of an open device.
pub(crate) struct Events {
    /// Closed first, which ends the wait of a thread that still reads.
    _write: PipeWriter,
    read: PipeReader,
}

impl Events {
    pub(crate) fn new() -> std::io::Result<Events> {
        let (read, write) = pipe()?;
        Ok(Events {
            _write: write,
            read,
        })
    }

    /// Returns the descriptor that programs poll.
    pub(crate) fn descriptor(&self) -> c_int {
        self.read.as_raw_fd()
    }
}

/// Waits until the device is closed, or not at all if the program has said so of the descriptor.
///
/// # Safety
///
/// `context` is null or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_nic_ibv_get_async_event(
    context: *mut ibv_context,
    _event: *mut c_void,
) -> c_int {
    // SAFETY: null, or open.
    let Some(context) = (unsafe { context.as_ref() }) else {
        set_errno(libc::EINVAL);
        return -1;
    };
    // SAFETY: open for as long as the device; it is not closed here.
    let mut events = ManuallyDrop::new(unsafe { File::from_raw_fd(context.async_fd) });
    let number = match events.read_exact(&mut [0]) {
        Err(error) => error.raw_os_error().unwrap_or(libc::ENODEV),
        Ok(()) => libc::EIO,
    };
    set_errno(number);
    -1
}

/// No event is ever given out.
#[unsafe(no_mangle)]
pub extern "C" fn outboard_nic_ibv_ack_async_event(_event: *mut c_void) {}

#[unsafe(no_mangle)]
pub extern "C" fn outboard_nic_ibv_event_type_str(event: c_uint) -> *const c_char {
    name_of(&NAMES, event)
}

/// The names of `ibv_node_type`, by their numbers.
const NODES: [&str; 8] = [
    "unknown\0",
    "InfiniBand channel adapter\0",
    "InfiniBand switch\0",
    "InfiniBand router\0",
    "iWARP NIC\0",
    "usNIC\0",
    "usNIC UDP\0",
    "unspecified\0",
];

#[unsafe(no_mangle)]
pub extern "C" fn outboard_nic_ibv_node_type_str(node: c_uint) -> *const c_char {
    name_of(&NODES, node)
}

/// The names of `ibv_port_state`, by their numbers.
const PORTS: [&str; 6] = [
    "no state change (NOP)\0",
    "down\0",
    "init\0",
    "armed\0",
    "active\0",
    "active deferred\0",
];

#[unsafe(no_mangle)]
pub extern "C" fn outboard_nic_ibv_port_state_str(state: c_uint) -> *const c_char {
    name_of(&PORTS, state)
}

fn name_of(names: &[&'static str], number: c_uint) -> *const c_char {
    let name = names.get(number as usize).copied();
    name.unwrap_or("unknown\0").as_ptr().cast()
}
