//! Asynchronous events of a device, for which programs wait: completion queues that are overrun.
//! Errors of queue pairs are completions here.
//!
//! An event travels through a pipe, whose end programs poll, as the number of the queue that it is
//! about and its type. No other queue has that number, also if it is at the address of one that is
//! gone. What is destroyed before its event is read has none; what is destroyed afterwards is there
//! until the event is acknowledged.

use std::{
    collections::HashMap,
    ffi::{c_char, c_int, c_uint, c_void},
    fs::File,
    io::{PipeReader, PipeWriter, Read, Write, pipe},
    mem::ManuallyDrop,
    os::fd::{AsRawFd, FromRawFd},
    sync::{Arc, LazyLock, Weak},
};

use outboard_verbs::abi::{IBV_EVENT_CQ_ERR, ibv_async_event, ibv_context};
use parking_lot::{Condvar, Mutex};

use crate::refused::set_errno;

/// Completion queues that the program has: others have no events.
static QUEUES: LazyLock<Mutex<Queues>> = LazyLock::new(Mutex::default);
/// Tells those who destroy a queue that an event of one is acknowledged.
static ACKNOWLEDGED: Condvar = Condvar::new();
/// Writing ends of open devices, by the descriptors that programs poll.
static OPEN: LazyLock<Mutex<HashMap<c_int, Weak<PipeWriter>>>> = LazyLock::new(Mutex::default);
/// Bytes of an event in the pipe, which takes all of them or none: number and type.
const EVENT_BYTES: usize = 16;

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

/// Completion queues by their numbers, of which none is given twice.
#[derive(Default)]
struct Queues {
    last: u64,
    living: HashMap<u64, Living>,
}

struct Living {
    address: usize,
    /// Asynchronous events that the program has and has not acknowledged.
    given: u32,
}

/// Returns the number of a new queue at this address.
pub(crate) fn enter(address: usize) -> u64 {
    let mut queues = QUEUES.lock();
    queues.last += 1;
    let number = queues.last;
    queues.living.insert(number, Living { address, given: 0 });
    number
}

/// Returns the address of a queue, if it is there.
pub(crate) fn find(number: u64) -> Option<usize> {
    let queues = QUEUES.lock();
    queues.living.get(&number).map(|of| of.address)
}

/// Forgets a queue, once each of its asynchronous events that the program has is acknowledged.
pub(crate) fn leave(number: u64) {
    let mut queues = QUEUES.lock();
    while queues.living.get(&number).is_some_and(|of| of.given > 0) {
        ACKNOWLEDGED.wait(&mut queues);
    }
    queues.living.remove(&number);
}

/// The events of an open device.
pub(crate) struct Events {
    /// Closed first, which ends the wait of a thread that still reads.
    _write: Arc<PipeWriter>,
    read: PipeReader,
}

impl Drop for Events {
    fn drop(&mut self) {
        OPEN.lock().remove(&self.read.as_raw_fd());
    }
}

/// The end by which a device that may be closed is told of events.
pub(crate) struct Raising(Weak<PipeWriter>);

impl Raising {
    pub(crate) fn of(context: &ibv_context) -> Raising {
        let open = OPEN.lock();
        Raising(open.get(&context.async_fd).cloned().unwrap_or_default())
    }

    /// Says that the completion queue of this number is in error.
    pub(crate) fn queue_failed(&self, queue: u64) {
        let mut event = [0; EVENT_BYTES];
        event[..8].copy_from_slice(&queue.to_ne_bytes());
        event[8..12].copy_from_slice(&IBV_EVENT_CQ_ERR.to_ne_bytes());
        if let Some(write) = self.0.upgrade() {
            // A full pipe wakes its reader as well.
            let _ = (&*write).write(&event);
        }
    }
}

impl Events {
    pub(crate) fn new() -> std::io::Result<Events> {
        let (read, write) = pipe()?;
        // SAFETY: open; the adapter's thread must not wait for a program that reads no events.
        unsafe { libc::fcntl(write.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
        let write = Arc::new(write);
        let descriptor = read.as_raw_fd();
        OPEN.lock().insert(descriptor, Arc::downgrade(&write));
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

/// Waits for an event until the device is closed, or not at all if the program has said so of the
/// descriptor.
///
/// # Safety
///
/// `context` is null or open, and `event` null or has room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_nic_ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    // SAFETY: null, or open; null, or room.
    let (Some(context), false) = (unsafe { context.as_ref() }, event.is_null()) else {
        set_errno(libc::EINVAL);
        return -1;
    };
    // SAFETY: open for as long as the device; it is not closed here.
    let mut events = ManuallyDrop::new(unsafe { File::from_raw_fd(context.async_fd) });
    loop {
        let mut bytes = [0; EVENT_BYTES];
        if let Err(error) = events.read_exact(&mut bytes) {
            set_errno(error.raw_os_error().unwrap_or(libc::ENODEV));
            return -1;
        }
        let ([number, rest], _) = bytes.as_chunks::<8>() else {
            continue;
        };
        let (number, event_type) = (u64::from_ne_bytes(*number), u64::from_ne_bytes(*rest));
        if let Some(of) = QUEUES.lock().living.get_mut(&number) {
            of.given += 1;
            // SAFETY: room.
            unsafe {
                event.write(ibv_async_event {
                    element: of.address as *mut c_void,
                    event_type: event_type as c_uint,
                });
            }
            return 0;
        }
    }
}

/// Lets what the event is about be destroyed.
///
/// # Safety
///
/// `event` is null or from `ibv_get_async_event`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_nic_ibv_ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: null, or the program's.
    let Some(event) = (unsafe { event.as_ref() }) else {
        return;
    };
    let address = event.element as usize;
    let mut queues = QUEUES.lock();
    let mut living = queues.living.values_mut();
    if let Some(of) = living.find(|of| of.address == address) {
        of.given = of.given.saturating_sub(1);
    }
    ACKNOWLEDGED.notify_all();
}

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
