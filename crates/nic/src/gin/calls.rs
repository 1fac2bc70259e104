//! The plugin's functions, by version. Each returns one of NCCL's results, and says on standard
//! error what it refuses.

use std::{
    ffi::{c_int, c_void},
    ptr::null,
    slice,
    sync::Arc,
};

use outboard_net::wqe::{Data, Operation, Remote, Segment};
use smallvec::{SmallVec, smallvec};

use crate::{
    host::{host, ring},
    refused::say,
};

use super::{
    Outcome,
    abi::{
        Config, DEVICE_GIN_PROXY, DeviceHandle, HANDLE_BYTES, Handle, Name, PTR_CUDA, PTR_HOST,
        Properties, Properties11, Properties12, SIGNAL_ADD, SIGNAL_INC, SUCCESS, Table11, Table12,
        Table13, UNDEFINED,
    },
    broken,
    group::{Listener, Member},
    queue::{Group, Queues, Request, WORD_BYTES},
    registry::{CONTEXT, GROUP, LISTENER, Object, QUEUES, REQUEST, WINDOW, find, forget, keep},
    window::Window,
    wrong,
};

const NAME: &std::ffi::CStr = c"OUTBOARD";
/// Megabits a second: of no adapter, but NCCL counts with it.
const SPEED: c_int = 100_000;
const COMMS_MAX: c_int = 1 << 16;
const BYTES_MAX: usize = 1 << 40;
/// Bytes of an entry. An operation of more is several.
const PIECE_BYTES: u64 = 8 << 20;
const CONTEXTS_MAX: c_int = 1024;

macro_rules! table {
    ($type:ident { $($field:ident: $function:ident),* $(,)? }) => {
        $type { name: Name(NAME.as_ptr()), $($field: $function),* }
    };
}

/// The plugin as NCCL 2.28 takes it.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static ncclGinPlugin_v11: Table11 = table!(Table11 {
    init: init,
    devices: devices,
    properties: properties_11,
    listen: listen,
    connect: connect_11,
    create_context: create_context_11,
    register: register,
    register_buffer: register_buffer,
    deregister: deregister,
    destroy_context: destroy_context,
    close_group: close_group,
    close_listener: close_listener,
    put: put_11,
    put_signal: put_signal_11,
    test: test,
    progress: progress,
    last_error: last_error,
    finalize: finalize,
});

/// The plugin as NCCL 2.29 takes it.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static ncclGinPlugin_v12: Table12 = table!(Table12 {
    init: init,
    devices: devices,
    properties: properties_11,
    listen: listen,
    connect: connect_12,
    create_context: create_context_12,
    register: register,
    register_buffer: register_buffer,
    deregister: deregister,
    destroy_context: destroy_context,
    close_group: close_group,
    close_listener: close_listener,
    put: put_12,
    put_signal: put_signal_12,
    test: test,
    progress: progress,
    last_error: last_error,
    finalize: finalize,
});

/// The plugin as NCCL 2.30 takes it.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static ncclGinPlugin_v13: Table13 = table!(Table13 {
    init: init,
    devices: devices,
    properties: properties_13,
    listen: listen,
    connect: connect_13,
    create_context: create_context_13,
    register: register,
    register_buffer: register_buffer,
    deregister: deregister,
    destroy_context: destroy_context,
    close_group: close_group,
    close_listener: close_listener,
    put: put_13,
    put_signal: put_signal_13,
    get: get,
    flush: flush,
    test: test,
    progress: progress,
    last_error: last_error,
    finalize: finalize,
});

/// The answer for NCCL's device code, which has none for this plugin.
static DEVICE: Told = Told(DeviceHandle {
    device_type: DEVICE_GIN_PROXY,
    device_version: 0,
    handle: std::ptr::null_mut(),
    bytes: 0,
    needs_progress: 0,
});

struct Told(DeviceHandle);

// SAFETY: it is only read, and has no pointer but null.
unsafe impl Sync for Told {}

/// Returns a result as NCCL's number.
fn result(name: &str, outcome: Outcome<()>) -> c_int {
    match outcome {
        Ok(()) => SUCCESS,
        Err(failure) => {
            say(&format!("outboard nic: GIN: {name}: {}", failure.why));
            failure.result
        }
    }
}

/// Stores a value where NCCL has room for it.
///
/// # Safety
///
/// `to` is null or has room.
unsafe fn store<T>(to: *mut T, value: T) -> Outcome<()> {
    if to.is_null() {
        return wrong("no room for what is returned");
    }
    // SAFETY: room for it.
    unsafe { to.write(value) };
    Ok(())
}

unsafe extern "C" fn init(to: *mut Handle, _communicator: u64, _log: *const c_void) -> c_int {
    // SAFETY: NCCL has room for it.
    let made = keep(Object::Context).and_then(|context| unsafe { store(to, context) });
    result("init", made)
}

unsafe extern "C" fn devices(to: *mut c_int) -> c_int {
    let count = c_int::from(host().is_ok());
    // SAFETY: NCCL has room for it.
    result("devices", unsafe { store(to, count) })
}

fn describe<const DEVICES: usize, const MORE: usize>(
    device: c_int,
) -> Outcome<Properties<DEVICES, MORE>> {
    let Ok(host) = host() else {
        return Err(broken("there is no adapter"));
    };
    if device != 0 {
        return wrong(format!("there is no device {device}"));
    }
    Ok(Properties {
        name: NAME.as_ptr(),
        pci_path: null(),
        guid: host.fabric.place().into(),
        ptr_support: PTR_HOST | PTR_CUDA,
        reg_is_global: 0,
        force_flush: 0,
        speed: SPEED,
        port: 1,
        latency: 0.0,
        comms_max: COMMS_MAX,
        receives_max: 1,
        device_type: DEVICE_GIN_PROXY,
        device_version: 0,
        devices_count: 1,
        devices: [0; DEVICES],
        p2p_bytes_max: BYTES_MAX,
        collective_bytes_max: BYTES_MAX,
        requests_max: 1,
        rail_and_plane: [UNDEFINED; MORE],
    })
}

unsafe extern "C" fn properties_11(device: c_int, to: *mut Properties11) -> c_int {
    // SAFETY: NCCL has room for them.
    let told = describe(device).and_then(|of| unsafe { store(to, of) });
    result("getProperties", told)
}

unsafe extern "C" fn properties_13(device: c_int, to: *mut Properties12) -> c_int {
    // SAFETY: NCCL has room for them.
    let told = describe(device).and_then(|of| unsafe { store(to, of) });
    result("getProperties", told)
}

unsafe extern "C" fn listen(
    context: Handle,
    device: c_int,
    handle: *mut u8,
    to: *mut Handle,
) -> c_int {
    let listening = || {
        find(context, CONTEXT)?;
        if device != 0 {
            return wrong(format!("there is no device {device}"));
        }
        let (listener, made) = Listener::make()?;
        // SAFETY: room for a handle.
        unsafe { store(handle.cast(), made)? };
        let listener = keep(Object::Listener(Arc::new(listener)))?;
        // SAFETY: room for the listener.
        unsafe { store(to, listener) }
    };
    result("listen", listening())
}

/// Joins the ranks, with queues of their own where there is no context for them. NCCL 2.30 gives
/// its network's context for that of the plugin, which is not looked at.
///
/// # Safety
///
/// `handles` is null or has as many handles as there are ranks; `to` is null or has room.
unsafe fn join(
    listener: Handle,
    handles: *const *const u8,
    [ranks, rank]: [c_int; 2],
    own: Option<c_int>,
    to: *mut Handle,
) -> Outcome<()> {
    let listener = find(listener, LISTENER)?;
    let (Ok(ranks), Ok(rank)) = (usize::try_from(ranks), usize::try_from(rank)) else {
        return wrong(format!("rank {rank} of {ranks}"));
    };
    if handles.is_null() || ranks == 0 {
        return wrong("no handles");
    }
    // SAFETY: as many as there are ranks.
    let handles = unsafe { slice::from_raw_parts(handles, ranks) };
    if handles.iter().any(|handle| handle.is_null()) {
        return wrong("a handle is null");
    }
    // SAFETY: handles of NCCL's have this length.
    let read = |handle: &*const u8| unsafe { handle.cast::<[u8; HANDLE_BYTES]>().read() };
    let handles: Vec<_> = handles.iter().map(read).collect();
    let member = Member::join(&listener, &handles, rank)?;
    let queues = own.map(|contexts| Queues::make(&member, count(contexts)));
    let own = queues.transpose()?.map(Arc::new);
    let group = keep(Object::Group(Arc::new(Group { member, own })))?;
    // SAFETY: room for the group, or null.
    unsafe { store(to, group) }
}

/// Returns the number of contexts; 0, which is none, of one that makes no sense.
fn count(contexts: c_int) -> usize {
    match (1..=CONTEXTS_MAX).contains(&contexts) {
        true => contexts as usize,
        false => 0,
    }
}

unsafe extern "C" fn connect_11(
    _context: Handle,
    handles: *const *const u8,
    ranks: c_int,
    rank: c_int,
    listener: Handle,
    to: *mut Handle,
) -> c_int {
    // SAFETY: as NCCL promises of its handles and room.
    let joined = unsafe { join(listener, handles, [ranks, rank], Some(1), to) };
    result("connect", joined)
}

unsafe extern "C" fn connect_12(
    _context: Handle,
    handles: *const *const u8,
    ranks: c_int,
    rank: c_int,
    connections: c_int,
    _depth: c_int,
    listener: Handle,
    to: *mut Handle,
) -> c_int {
    let own = Some(connections);
    // SAFETY: as NCCL promises of its handles and room.
    let joined = unsafe { join(listener, handles, [ranks, rank], own, to) };
    result("connect", joined)
}

unsafe extern "C" fn connect_13(
    _context: Handle,
    handles: *const *const u8,
    ranks: c_int,
    rank: c_int,
    listener: Handle,
    to: *mut Handle,
) -> c_int {
    // SAFETY: as NCCL promises of its handles and room.
    let joined = unsafe { join(listener, handles, [ranks, rank], None, to) };
    result("connect", joined)
}

/// # Safety
///
/// `to` and `device` are null or have room.
unsafe fn create_context(
    group: Handle,
    contexts: c_int,
    to: *mut Handle,
    device: *mut *const DeviceHandle,
) -> c_int {
    let created = || {
        let group = find(group, GROUP)?;
        let queues = Arc::new(Queues::make(&group.member, count(contexts))?);
        let queues = keep(Object::Queues(queues))?;
        // SAFETY: room for both, or null.
        unsafe {
            store(device, &raw const DEVICE.0)?;
            store(to, queues)
        }
    };
    result("createContext", created())
}

unsafe extern "C" fn create_context_11(
    group: Handle,
    _signals: c_int,
    _counters: c_int,
    to: *mut Handle,
    device: *mut *const DeviceHandle,
) -> c_int {
    // SAFETY: NCCL has room for both.
    unsafe { create_context(group, 1, to, device) }
}

unsafe extern "C" fn create_context_12(
    group: Handle,
    _signals: c_int,
    _counters: c_int,
    contexts: c_int,
    to: *mut Handle,
    device: *mut *const DeviceHandle,
) -> c_int {
    // SAFETY: NCCL has room for both.
    unsafe { create_context(group, contexts, to, device) }
}

unsafe extern "C" fn create_context_13(
    group: Handle,
    config: *const Config,
    to: *mut Handle,
    device: *mut *const DeviceHandle,
) -> c_int {
    // SAFETY: null, or NCCL's.
    let contexts = unsafe { config.as_ref() }.map_or(0, |config| config.contexts);
    // SAFETY: NCCL has room for both.
    unsafe { create_context(group, contexts, to, device) }
}

unsafe extern "C" fn register(
    group: Handle,
    memory: Handle,
    bytes: usize,
    kind: c_int,
    _flags: u64,
    to: *mut Handle,
    for_device: *mut Handle,
) -> c_int {
    let registered = || {
        let group = find(group, GROUP)?;
        // SAFETY: it stays mapped until NCCL deregisters it.
        let window = unsafe { Window::register(&group.member, memory, bytes, kind)? };
        let window = keep(Object::Window(Arc::new(window)))?;
        // SAFETY: NCCL has room for both.
        unsafe {
            store(for_device, window)?;
            store(to, window)
        }
    };
    result("regMrSym", registered())
}

/// Takes memory of a GPU by its address: the buffer is not looked at.
unsafe extern "C" fn register_buffer(
    group: Handle,
    memory: Handle,
    bytes: usize,
    kind: c_int,
    _offset: u64,
    _descriptor: c_int,
    flags: u64,
    to: *mut Handle,
    for_device: *mut Handle,
) -> c_int {
    // SAFETY: the duties are the same.
    unsafe { register(group, memory, bytes, kind, flags, to, for_device) }
}

unsafe extern "C" fn deregister(group: Handle, window: Handle) -> c_int {
    let found = find(group, GROUP).and_then(|_| forget(window, WINDOW));
    result("deregMrSym", found.map(drop))
}

unsafe extern "C" fn destroy_context(queues: Handle) -> c_int {
    result("destroyContext", forget(queues, QUEUES).map(drop))
}

unsafe extern "C" fn close_group(group: Handle) -> c_int {
    result("closeColl", forget(group, GROUP).map(drop))
}

unsafe extern "C" fn close_listener(listener: Handle) -> c_int {
    result("closeListen", forget(listener, LISTENER).map(drop))
}

unsafe extern "C" fn finalize(context: Handle) -> c_int {
    result("finalize", forget(context, CONTEXT))
}

/// The queue of an operation.
struct To {
    queues: Arc<Queues>,
    context: usize,
    rank: usize,
}

impl To {
    fn new(queues: Arc<Queues>, context: c_int, rank: u32) -> Outcome<To> {
        let Ok(context) = usize::try_from(context) else {
            return wrong(format!("there is no context {context}"));
        };
        let rank = rank as usize;
        queues.queue(context, rank)?;
        Ok(To {
            queues,
            context,
            rank,
        })
    }

    /// Finds the queue of a context's.
    fn of(queues: Handle, context: c_int, rank: u32) -> Outcome<To> {
        To::new(find(queues, QUEUES)?, context, rank)
    }

    /// Finds the queue of a group's own.
    fn own(group: Handle, context: c_int, rank: u32) -> Outcome<To> {
        let own = find(group, GROUP)?.own.clone();
        let none = || broken("a group of a version without queues of its own");
        To::new(own.ok_or_else(none)?, context, rank)
    }

    fn window(&self, handle: Handle) -> Outcome<Arc<Window>> {
        let window = find(handle, WINDOW)?;
        match window.domain == self.queues.domain {
            true => Ok(window),
            false => wrong("memory of another communicator"),
        }
    }

    /// Posts operations, and gives NCCL the request.
    ///
    /// # Safety
    ///
    /// `request` is null or has room.
    unsafe fn post(
        self,
        operations: impl Iterator<Item = Operation>,
        request: *mut Handle,
    ) -> Outcome<()> {
        if request.is_null() {
            return wrong("no room for the request");
        }
        let mut queue = self.queues.queue(self.context, self.rank)?.lock();
        queue.post(operations)?;
        let last = queue.posted() - 1;
        drop(queue);
        let posted = Request::new(self.queues, self.context, self.rank, last);
        let posted = keep(Object::Request(Arc::new(posted)))?;
        // SAFETY: room for the request.
        unsafe { store(request, posted) }
    }
}

/// Bytes of a rank's memory: offset and handle.
#[derive(Clone, Copy)]
struct Place(u64, Handle);

/// Pieces of a transfer between this rank's memory and another's.
fn pieces(
    to: &To,
    here: Place,
    there: Place,
    bytes: u64,
) -> Outcome<impl Iterator<Item = (Remote, SmallVec<[Segment; 2]>)> + use<>> {
    let (address, lkey) = to.window(here.1)?.part(to.queues.rank, here.0, bytes)?;
    let (remote, rkey) = to.window(there.1)?.part(to.rank, there.0, bytes)?;
    let count = bytes.div_ceil(PIECE_BYTES).max(1);
    Ok((0..count).map(move |piece| {
        let at = piece * PIECE_BYTES;
        let length = (bytes - at).min(PIECE_BYTES) as u32;
        let segment = Segment {
            length,
            lkey,
            address: address + at,
        };
        let remote = Remote {
            address: remote + at,
            rkey,
        };
        // A segment of no bytes would be one of 2 GiB.
        let segments = if length == 0 {
            smallvec![]
        } else {
            smallvec![segment]
        };
        (remote, segments)
    }))
}

fn writes(
    to: &To,
    here: Place,
    there: Place,
    bytes: usize,
) -> Outcome<impl Iterator<Item = Operation> + use<>> {
    let pieces = pieces(to, here, there, bytes as u64)?;
    Ok(pieces.map(|(remote, segments)| Operation::Write {
        remote,
        imm: None,
        data: Data::Gather(segments),
    }))
}

/// A signal: its place in the other rank's memory, and what is added.
#[derive(Clone, Copy)]
struct Signal {
    place: Place,
    value: u64,
    operation: u32,
}

fn put(to: Outcome<To>, here: Place, there: Place, bytes: usize, request: *mut Handle) -> c_int {
    let posted = || {
        let to = to?;
        let writes = writes(&to, here, there, bytes)?;
        // SAFETY: NCCL has room for the request.
        unsafe { to.post(writes, request) }
    };
    result("iput", posted())
}

fn put_signal(
    to: Outcome<To>,
    [here, there]: [Place; 2],
    bytes: usize,
    signal: Signal,
    request: *mut Handle,
) -> c_int {
    let posted = || {
        let to = to?;
        let add = match signal.operation {
            SIGNAL_INC => 1,
            SIGNAL_ADD => signal.value,
            other => return wrong(format!("a signal of operation {other}")),
        };
        let Place(offset, handle) = signal.place;
        let window = to.window(handle)?;
        let (address, rkey) = window.part(to.rank, offset, WORD_BYTES.into())?;
        if !address.is_multiple_of(WORD_BYTES.into()) {
            return wrong(format!("a signal at {offset:#x}, which is not aligned"));
        }
        // Without bytes there is a signal alone.
        let writes = match bytes {
            0 => None,
            _ => Some(writes(&to, here, there, bytes)?),
        };
        let into = to.queues.queue(to.context, to.rank)?.lock().scratch();
        let remote = Remote { address, rkey };
        let signal = Operation::FetchAdd { remote, add, into };
        let all = writes.into_iter().flatten().chain([signal]);
        // SAFETY: NCCL has room for the request.
        unsafe { to.post(all, request) }
    };
    result("iputSignal", posted())
}

unsafe extern "C" fn put_11(
    group: Handle,
    source: u64,
    source_handle: Handle,
    bytes: usize,
    target: u64,
    target_handle: Handle,
    rank: u32,
    request: *mut Handle,
) -> c_int {
    let (here, there) = (Place(source, source_handle), Place(target, target_handle));
    put(To::own(group, 0, rank), here, there, bytes, request)
}

unsafe extern "C" fn put_12(
    group: Handle,
    source: u64,
    source_handle: Handle,
    bytes: usize,
    target: u64,
    target_handle: Handle,
    rank: u32,
    connection: c_int,
    request: *mut Handle,
) -> c_int {
    let (here, there) = (Place(source, source_handle), Place(target, target_handle));
    put(
        To::own(group, connection, rank),
        here,
        there,
        bytes,
        request,
    )
}

unsafe extern "C" fn put_13(
    queues: Handle,
    context: c_int,
    source: u64,
    source_handle: Handle,
    bytes: usize,
    target: u64,
    target_handle: Handle,
    rank: u32,
    request: *mut Handle,
) -> c_int {
    let (here, there) = (Place(source, source_handle), Place(target, target_handle));
    put(To::of(queues, context, rank), here, there, bytes, request)
}

unsafe extern "C" fn put_signal_11(
    group: Handle,
    source: u64,
    source_handle: Handle,
    bytes: usize,
    target: u64,
    target_handle: Handle,
    rank: u32,
    signal: u64,
    signal_handle: Handle,
    value: u64,
    operation: u32,
    request: *mut Handle,
) -> c_int {
    let places = [Place(source, source_handle), Place(target, target_handle)];
    let place = Place(signal, signal_handle);
    let signal = Signal {
        place,
        value,
        operation,
    };
    put_signal(To::own(group, 0, rank), places, bytes, signal, request)
}

unsafe extern "C" fn put_signal_12(
    group: Handle,
    source: u64,
    source_handle: Handle,
    bytes: usize,
    target: u64,
    target_handle: Handle,
    rank: u32,
    signal: u64,
    signal_handle: Handle,
    value: u64,
    operation: u32,
    connection: c_int,
    request: *mut Handle,
) -> c_int {
    let places = [Place(source, source_handle), Place(target, target_handle)];
    let place = Place(signal, signal_handle);
    let signal = Signal {
        place,
        value,
        operation,
    };
    put_signal(
        To::own(group, connection, rank),
        places,
        bytes,
        signal,
        request,
    )
}

unsafe extern "C" fn put_signal_13(
    queues: Handle,
    context: c_int,
    source: u64,
    source_handle: Handle,
    bytes: usize,
    target: u64,
    target_handle: Handle,
    rank: u32,
    signal: u64,
    signal_handle: Handle,
    value: u64,
    operation: u32,
    request: *mut Handle,
) -> c_int {
    let places = [Place(source, source_handle), Place(target, target_handle)];
    let place = Place(signal, signal_handle);
    let signal = Signal {
        place,
        value,
        operation,
    };
    put_signal(
        To::of(queues, context, rank),
        places,
        bytes,
        signal,
        request,
    )
}

unsafe extern "C" fn get(
    queues: Handle,
    context: c_int,
    source: u64,
    source_handle: Handle,
    bytes: usize,
    target: u64,
    target_handle: Handle,
    rank: u32,
    request: *mut Handle,
) -> c_int {
    let posted = || {
        let to = To::of(queues, context, rank)?;
        let (here, there) = (Place(target, target_handle), Place(source, source_handle));
        let pieces = pieces(&to, here, there, bytes as u64)?;
        let reads = pieces.map(|(remote, into)| Operation::Read { remote, into });
        // SAFETY: NCCL has room for the request.
        unsafe { to.post(reads, request) }
    };
    result("iget", posted())
}

/// Bytes that were got lie in memory when their request is done: this one is when all before are.
unsafe extern "C" fn flush(
    queues: Handle,
    context: c_int,
    window: Handle,
    rank: u32,
    request: *mut Handle,
) -> c_int {
    let posted = || {
        let to = To::of(queues, context, rank)?;
        to.window(window)?;
        // SAFETY: NCCL has room for the request.
        unsafe { to.post([Operation::Nop].into_iter(), request) }
    };
    result("iflush", posted())
}

unsafe extern "C" fn test(group: Handle, request: Handle, done: *mut c_int) -> c_int {
    let tested = || {
        find(group, GROUP)?;
        let is_done = find(request, REQUEST)?.is_done();
        // One that has failed is over, too.
        if !matches!(is_done, Ok(false)) {
            forget(request, REQUEST)?;
        }
        // SAFETY: NCCL has room for it.
        unsafe { store(done, is_done?.into()) }
    };
    result("test", tested())
}

/// Lets the adapter work in the calling thread.
unsafe extern "C" fn progress(_of: Handle) -> c_int {
    ring();
    SUCCESS
}

unsafe extern "C" fn last_error(queues: Handle, to: *mut bool) -> c_int {
    let looked = find(queues, QUEUES).and_then(|of| {
        // SAFETY: NCCL has room for it.
        unsafe { store(to, of.has_failed()) }
    });
    result("queryLastError", looked)
}
