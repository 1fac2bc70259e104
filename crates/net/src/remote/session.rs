//! The session of a program under `outboard run`, as its `libcuda.so.1` gives it.

use std::{
    env,
    ffi::c_void,
    fmt::Debug,
    process, ptr,
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
};

use outboard_api::{
    CUresult,
    net::{NET_TABLE, NET_VERSION, Request, Table},
};
use outboard_wire::{
    doc::{self, NET_ANSWER_BYTES_MAX, NET_ENDPOINTS_MAX, NetAnswer, NetCall, NetEnd},
    limits::PEER_ADDRESS_BYTES_MAX,
};
use parking_lot::Mutex;

use crate::{
    block::{Options, lose},
    driver,
    endpoint::mapped,
    error::Error,
};

/// Length of a server's address.
pub(super) const ADDRESS_BYTES_MAX: usize = PEER_ADDRESS_BYTES_MAX;

/// Numbers of the endpoints that are open, a bit each.
static OPEN: AtomicU32 = AtomicU32::new(0);
const _: () = assert!(NET_ENDPOINTS_MAX <= u32::BITS);
/// Queues for which threads of the program may be waiting, by their endpoint's number.
static QUEUES: Mutex<Vec<Queue>> = Mutex::new(Vec::new());

/// A queue in memory of the program.
struct Queue {
    endpoint: u32,
    /// In a process that is forked from this one, what waits is the parent's.
    process: u32,
    address: u64,
    options: Options,
    /// Offset of completions that are written over one another.
    completion: usize,
}

/// Returns the functions of the client's libcuda, if that is the one of this process.
fn table() -> Option<&'static Table> {
    static TABLE: OnceLock<&'static Table> = OnceLock::new();
    if let Some(table) = TABLE.get() {
        return Some(table);
    }
    let found: *const c_void = driver::export_table(&NET_TABLE)?;
    // SAFETY: under this id libcuda has a table that begins with its version, and stays loaded.
    let version = unsafe { found.cast::<u64>().read() };
    if version != NET_VERSION {
        return None;
    }
    // SAFETY: a table of this version, which is never changed.
    let table = unsafe { found.cast::<Table>().as_ref() }?;
    Some(TABLE.get_or_init(|| table))
}

/// Returns true if the program's GPU is at a server that has a copy of the program's memory.
pub(crate) fn is_remote() -> Result<bool, Error> {
    match table().map_or(0, |table| (table.place)()) {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Error::Session(
            "a program with several servers has no place for its endpoint".into(),
        )),
    }
}

/// Names the servers of a program that `outboard run` has started.
const SERVERS_VARIABLE: &str = "OUTBOARD_GPU";
/// Beginning of the addresses whose servers have the program's memory.
const SHARED: &str = "shm:";

/// Returns true if [`is_remote`] may say so later: before the first call of CUDA nobody knows.
pub(crate) fn may_be_remote() -> bool {
    let servers = env::var(SERVERS_VARIABLE).unwrap_or_default();
    let mut servers = servers.split(',').map(str::trim);
    servers.any(|server| !server.is_empty() && !server.starts_with(SHARED))
}

/// Returns true if kernels that run do not see some of these bytes of the program's, nor it what
/// they write there, though they do with other memory.
#[must_use]
pub fn is_copied(address: u64, bytes: u64) -> bool {
    table().is_some_and(|table| (table.is_copied)(address, bytes) != 0)
}

/// Tells libcuda that an endpoint at a place has memory of the program's from now on, or no longer.
/// Returns false if libcuda is not there yet.
pub(crate) fn keep(address: u64, bytes: u64, place: u32, is_kept: bool) -> bool {
    let table = table();
    if let Some(table) = table {
        (table.keep)(address, bytes, place, is_kept.into());
    }
    table.is_some()
}

/// Returns the address by which other servers find the session's; empty if they cannot.
pub(super) fn address() -> String {
    let Some(table) = table() else {
        return String::new();
    };
    let mut bytes = vec![0; ADDRESS_BYTES_MAX];
    // SAFETY: the buffer has as many bytes.
    let len = unsafe { (table.address)(bytes.as_mut_ptr(), bytes.len()) };
    bytes.truncate(len.min(ADDRESS_BYTES_MAX));
    String::from_utf8(bytes).unwrap_or_default()
}

/// Memory of a call that is about none.
pub(super) const NOTHING: (u64, u64) = (0, 0);

pub(super) fn done(answer: NetAnswer) -> Result<(), Error> {
    match answer {
        NetAnswer::Done => Ok(()),
        other => Err(wrong(&other)),
    }
}

pub(super) fn wrong(answer: &NetAnswer) -> Error {
    Error::Session(format!("the server has answered {answer:?}"))
}

/// Calls of an endpoint at a server, about no memory.
pub(super) trait Calls: Debug + Send + Sync {
    fn call(&self, call: &NetCall) -> Result<NetAnswer, Error>;
}

impl Calls for Number {
    fn call(&self, call: &NetCall) -> Result<NetAnswer, Error> {
        Number::call(self, call, NOTHING)
    }
}

/// Returns a queue as a peer names it. Fails if it is connected.
pub(super) fn end_of(number: &Number, qpn: u32) -> Result<NetEnd, Error> {
    match number.call(&NetCall::End { qpn }, NOTHING)? {
        NetAnswer::End(end) => Ok(end),
        other => Err(wrong(&other)),
    }
}

/// An endpoint's number, until this is dropped.
#[derive(Debug)]
pub(super) struct Number(u32);

impl Number {
    pub(super) fn take() -> Result<Number, Error> {
        let free = |open: u32| {
            let number = open.trailing_ones();
            (number < NET_ENDPOINTS_MAX).then(|| open | 1 << number)
        };
        let taken = OPEN.fetch_update(Ordering::AcqRel, Ordering::Acquire, free);
        let before = taken.map_err(|_| Error::TooMany {
            what: "endpoints",
            count_max: NET_ENDPOINTS_MAX as usize,
        })?;
        Ok(Number(before.trailing_ones()))
    }

    /// Has the server execute a call, which is about this memory of the program, or none.
    pub(super) fn call(&self, call: &NetCall, memory: (u64, u64)) -> Result<NetAnswer, Error> {
        call_of(self.0, call, memory)
    }

    /// Notes a queue with completions at an offset, which fails when the session is lost.
    pub(super) fn has_queue(&self, address: u64, options: Options, completion: usize) {
        QUEUES.lock().push(Queue {
            endpoint: self.0,
            process: process::id(),
            address,
            options,
            completion,
        });
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        QUEUES.lock().retain(|queue| queue.endpoint != self.0);
        OPEN.fetch_and(!(1 << self.0), Ordering::AcqRel);
    }
}

/// Brings what this program has written to its endpoints at a server, and back what adapters and
/// kernels have written there. Returns at once if there is none. Fails if nothing comes from there
/// any more: then what was posted fails.
pub(crate) fn look() -> Result<(), Error> {
    if OPEN.load(Ordering::Acquire) == 0 {
        return Ok(());
    }
    match call_of(0, &NetCall::Look, NOTHING) {
        Err(error @ Error::Lost(_)) => {
            lose_queues();
            Err(error)
        }
        // The next call that can say so does.
        _ => Ok(()),
    }
}

fn lose_queues() {
    let process = process::id();
    let queues = QUEUES.lock();
    for queue in queues.iter().filter(|queue| queue.process == process) {
        let bytes = queue.options.bytes() as u64;
        // SAFETY: mapped now, and a program keeps it so until the endpoint is closed.
        let memory = unsafe { mapped(queue.address as *mut c_void, bytes, true) };
        if let Ok(memory) = memory {
            lose(&memory, &queue.options, queue.completion);
        }
    }
}

fn call_of(
    endpoint: u32,
    call: &NetCall,
    (address, bytes): (u64, u64),
) -> Result<NetAnswer, Error> {
    let failed = |why: &dyn ToString| Error::Session(why.to_string());
    let table = table().ok_or_else(|| failed(&"libcuda.so.1 is another one now"))?;
    let call = doc::to_bytes(call).map_err(|error| failed(&error))?;
    let mut answer = vec![0; NET_ANSWER_BYTES_MAX];
    let mut request = Request {
        endpoint,
        bytes,
        address,
        call: call.as_ptr(),
        call_bytes: call.len(),
        answer: answer.as_mut_ptr(),
        answer_bytes_max: answer.len(),
        answer_bytes: 0,
    };
    // SAFETY: both buffers are there for the call.
    match unsafe { (table.call)(ptr::from_mut(&mut request)) } {
        CUresult::CUDA_SUCCESS => {}
        CUresult::CUDA_ERROR_INVALID_VALUE if bytes > 0 => {
            return Err(Error::NotPinned { address, bytes });
        }
        status if status.is_sticky() || status == CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE => {
            return Err(Error::Lost(status));
        }
        status => return Err(failed(&status)),
    }
    let answer = answer.get(..request.answer_bytes).unwrap_or_default();
    match doc::from_bytes(answer).map_err(|error| failed(&error))? {
        NetAnswer::Failed(why) => Err(Error::Session(why)),
        answer => Ok(answer),
    }
}
