//! The C interface, `include/outboard/net.h`. Every function returns 0, or -1 with a message.

use std::{
    cell::RefCell,
    ffi::{CStr, CString, c_char, c_int, c_void},
    mem, process,
    time::Duration,
};

use crate::{
    Access, Error, Meeting, Network, Provider, Way, Window, bell,
    block::{self, Export, UNRELIABLE},
    endpoint::Endpoint,
    kept::Kept,
    layout::Layout,
    open::open,
    remote::look,
};

thread_local! {
    static MESSAGE: RefCell<CString> = RefCell::default();
}

/// `struct outboard_net`.
#[derive(Debug)]
pub struct Net {
    endpoint: Box<dyn Endpoint>,
    /// Forgotten after the endpoint has ended.
    kept: Kept,
    /// The process that has the endpoint's threads: in one that is forked from it they are not.
    process: u32,
}

/// `struct outboard_net_options`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Options {
    pub seed: u64,
    pub delay_ns_min: u64,
    pub delay_ns_max: u64,
    pub bytes_per_s: u64,
    pub loss_ppm: u32,
    /// Of [`Provider`], or 0.
    pub provider: u32,
}

/// `struct outboard_net_status`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct StatusOut {
    pub succeeded: u64,
    pub flushed: u64,
    pub retries: u64,
    pub failed_index: u32,
    pub syndrome: u32,
}

/// `enum outboard_net_meeting`.
const LISTENS: c_int = 1;
const ANYWHERE: c_int = 2;

/// The layout of this library.
const LAYOUT: Layout = Layout {
    version: 2,
    queue_bytes: size_of::<Export>() as u32,
    queue_options_bytes: size_of::<block::Options>() as u32,
    options_bytes: size_of::<Options>() as u32,
    status_bytes: size_of::<StatusOut>() as u32,
    window_bytes: size_of::<Window>() as u32,
};

fn done(result: Result<(), Error>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) => {
            let message = CString::new(error.to_string()).unwrap_or_default();
            MESSAGE.with_borrow_mut(|kept| *kept = message);
            -1
        }
    }
}

/// Returns an endpoint, unless it is null, or of a process from which this one is forked: its
/// threads and locks, and what it shares with a GPU, are the other's.
///
/// # Safety
///
/// `net` is null or open.
unsafe fn of_this_process<'a>(net: *const Net) -> Result<&'a Net, Error> {
    // SAFETY: null, or open.
    match unsafe { net.as_ref() } {
        None => Err(Error::Null("net")),
        Some(net) if net.process != process::id() => Err(Error::Forked),
        Some(net) => Ok(net),
    }
}

/// Returns the reason of this thread's last failure, until its next.
#[unsafe(no_mangle)]
pub extern "C" fn outboard_net_message() -> *const c_char {
    MESSAGE.with_borrow(|kept| kept.as_ptr())
}

/// Stores the number of a provider's name.
///
/// # Safety
///
/// `name` is null or a string, and `provider` has room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_net_provider_named(
    name: *const c_char,
    provider: *mut u32,
) -> c_int {
    if name.is_null() {
        return done(Err(Error::Null("name")));
    }
    // SAFETY: a string of the caller's.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    // SAFETY: null, or room for a number.
    let Some(provider) = (unsafe { provider.as_mut() }) else {
        return done(Err(Error::Null("provider")));
    };
    done(Provider::named(&name).map(|named| *provider = named.map_or(0, |one| one as u32)))
}

/// Returns the name of an endpoint's provider; null without an endpoint.
///
/// # Safety
///
/// `net` is null or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_net_provider_of(net: *const Net) -> *const c_char {
    // SAFETY: null, or an open endpoint.
    let net = unsafe { of_this_process(net) }.ok();
    net.map_or(std::ptr::null(), |net| {
        net.endpoint.provider().name().as_ptr()
    })
}

/// Opens an endpoint. Without options its network is perfect, and its provider left open.
///
/// # Safety
///
/// `layout` points to the caller's, `options` is null or points to options, and `out` to room for a
/// pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_net_open_as(
    layout: *const Layout,
    options: *const Options,
    out: *mut *mut Net,
) -> c_int {
    // SAFETY: null, or the layout that the caller lends.
    let Some(layout) = (unsafe { layout.as_ref() }) else {
        return done(Err(Error::Null("layout")));
    };
    if *layout != LAYOUT {
        return done(Err(Error::Layout(*layout, LAYOUT)));
    }
    // SAFETY: null, or options that the caller lends.
    let options = unsafe { options.as_ref() };
    let network = options.map_or(Network::default(), |options| Network {
        seed: options.seed,
        loss_ppm: options.loss_ppm,
        delay_ns_min: options.delay_ns_min,
        delay_ns_max: options.delay_ns_max,
        bytes_per_s: options.bytes_per_s,
    });
    // SAFETY: null, or room for a pointer.
    let Some(out) = (unsafe { out.as_mut() }) else {
        return done(Err(Error::Null("out")));
    };
    let asked = Provider::numbered(options.map_or(0, |options| options.provider));
    let opened = asked.and_then(|asked| open(asked, network));
    done(opened.map(|endpoint| {
        *out = Box::into_raw(Box::new(Net {
            kept: Kept::default(),
            endpoint,
            process: process::id(),
        }))
    }))
}

/// Refuses programs that were built with a header that does not say its layout: in newer ones this
/// function is the header's own.
#[unsafe(no_mangle)]
pub extern "C" fn outboard_net_open(_options: *const Options, _out: *mut *mut Net) -> c_int {
    done(Err(Error::NoLayout))
}

/// Stops an adapter. Kernels must not use its queues any more, and memory may be freed after it.
///
/// # Safety
///
/// `net` is null or from `outboard_net_open`, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_net_close(net: *mut Net) {
    if !net.is_null() {
        // SAFETY: made by `Box::into_raw`, and given back once.
        let net = unsafe { Box::from_raw(net) };
        match net.process == process::id() {
            true => drop(net),
            // Its threads are another process's, and cannot be ended here.
            false => mem::forget(net),
        }
    }
}

/// Registers memory, and stores its key, which is both lkey and rkey.
///
/// # Safety
///
/// `net` is open, `key` has room, and the memory stays mapped until the adapter is closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_net_register(
    net: *const Net,
    memory: *mut c_void,
    bytes: u64,
    access: u32,
    key: *mut u32,
) -> c_int {
    // SAFETY: null, or an open endpoint.
    let net = match unsafe { of_this_process(net) } {
        Ok(net) => net,
        Err(error) => return done(Err(error)),
    };
    // SAFETY: null, or room for a key.
    let Some(key) = (unsafe { key.as_mut() }) else {
        return done(Err(Error::Null("key")));
    };
    if bytes == 0 {
        return done(Err(Error::Empty));
    }
    done(Access::new(access).and_then(|access| {
        // SAFETY: the caller keeps the memory mapped.
        let register = || unsafe { net.endpoint.register(memory, bytes, access) };
        *key = net
            .kept
            .with(&*net.endpoint, (memory as u64, bytes), register)?;
        Ok(())
    }))
}

/// Returns the bytes of a queue's memory; 0 without options.
///
/// # Safety
///
/// `options` is null or points to options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_net_queue_bytes(options: *const block::Options) -> u64 {
    // SAFETY: null, or options that the caller lends.
    let options = unsafe { options.as_ref() };
    options.map_or(0, |options| options.bytes() as u64)
}

/// Returns the bytes of a queue's counters; 0 without options.
///
/// # Safety
///
/// `options` is null or points to options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_net_counters_bytes(options: *const block::Options) -> u64 {
    // SAFETY: null, or options that the caller lends.
    let options = unsafe { options.as_ref() };
    options.map_or(0, |options| options.counters_bytes() as u64)
}

/// Makes a queue in page-aligned memory.
///
/// # Safety
///
/// `net` is open, `options` are null or lent, `out` has room, and the memory stays mapped until the
/// adapter is closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_net_queue_create(
    net: *const Net,
    memory: *mut c_void,
    bytes: u64,
    options: *const block::Options,
    out: *mut Export,
) -> c_int {
    // SAFETY: null, or an open endpoint.
    let net = match unsafe { of_this_process(net) } {
        Ok(net) => net,
        Err(error) => return done(Err(error)),
    };
    // SAFETY: null, or options that the caller lends.
    let Some(options) = (unsafe { options.as_ref() }) else {
        return done(Err(Error::Null("options")));
    };
    // SAFETY: null, or room for a queue.
    let Some(out) = (unsafe { out.as_mut() }) else {
        return done(Err(Error::Null("out")));
    };
    if options.flags & UNRELIABLE != 0 && net.endpoint.provider() != Provider::Nic {
        return done(Err(Error::Unreliable));
    }
    // SAFETY: the caller keeps the memory mapped.
    let create = || unsafe { net.endpoint.create(memory, bytes, *options) };
    let created = net
        .kept
        .with(&*net.endpoint, (memory as u64, bytes), create);
    done(created.map(|queue| *out = queue))
}

/// Connects two queues, new ones or those that were reset.
///
/// # Safety
///
/// `net` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_net_connect(net: *const Net, one: u32, other: u32) -> c_int {
    // SAFETY: null, or an open endpoint.
    let net = match unsafe { of_this_process(net) } {
        Ok(net) => net,
        Err(error) => return done(Err(error)),
    };
    done(net.endpoint.connect(one, other))
}

/// Connects a queue to one of another process, which calls this too: one of the two listens. `how`
/// is of `enum outboard_net_meeting`.
///
/// # Safety
///
/// `net` is open, `address` is a string, `mine` is null or lent, and `theirs` has room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_net_meet(
    net: *const Net,
    qpn: u32,
    address: *const c_char,
    how: c_int,
    timeout_ms: u32,
    mine: *const Window,
    theirs: *mut Window,
) -> c_int {
    // SAFETY: null, or an open endpoint.
    let net = match unsafe { of_this_process(net) } {
        Ok(net) => net,
        Err(error) => return done(Err(error)),
    };
    // SAFETY: null, or room for a window.
    let Some(theirs) = (unsafe { theirs.as_mut() }) else {
        return done(Err(Error::Null("theirs")));
    };
    if address.is_null() {
        return done(Err(Error::Null("address")));
    }
    // SAFETY: a string of the caller's.
    let address = unsafe { CStr::from_ptr(address) }.to_string_lossy();
    // SAFETY: null, or a window that the caller lends.
    let mine = unsafe { mine.as_ref() }.copied().unwrap_or_default();
    if mine.reserved != 0 {
        return done(Err(Error::Reserved("outboard_net_window")));
    }
    if how & !(LISTENS | ANYWHERE) != 0 {
        return done(Err(Error::Flags(how as u32)));
    }
    let way = match Way::asked() {
        Ok(way) => way,
        Err(error) => return done(Err(error)),
    };
    let meeting = Meeting {
        address: &address,
        listens: how & LISTENS != 0,
        is_anywhere: how & ANYWHERE != 0,
        timeout: Duration::from_millis(timeout_ms.into()),
        way,
    };
    done(
        net.endpoint
            .meet(qpn, meeting, mine)
            .map(|window| *theirs = window),
    )
}

/// Wakes the adapter of a doorbell of this process, and those at a server. Other addresses wake
/// nobody here.
#[unsafe(no_mangle)]
pub extern "C" fn outboard_net_rouse(doorbell: u64) {
    bell::rouse(doorbell);
    // A session that is lost is noticed by those who wait.
    let _ = look();
}

/// Brings what the program has written to endpoints that are where the GPU is, and back what was
/// written there. Fails if the session is lost.
#[unsafe(no_mangle)]
pub extern "C" fn outboard_net_look() -> c_int {
    match look() {
        Ok(()) => 0,
        Err(error) => done(Err(error)),
    }
}

/// Returns where an endpoint is: `server` or `program`; null without one.
///
/// # Safety
///
/// `net` is null or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_net_place_of(net: *const Net) -> *const c_char {
    // SAFETY: null, or an open endpoint.
    let net = unsafe { of_this_process(net) }.ok();
    let name = net.map(|net| match net.endpoint.is_remote() {
        true => c"server",
        false => c"program",
    });
    name.map_or(std::ptr::null(), CStr::as_ptr)
}

/// Returns how entries of a queue reach the other process: `shm`, `tcp` or `verbs`; null if it has
/// not met one.
///
/// # Safety
///
/// `net` is null or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_net_way_of(net: *const Net, qpn: u32) -> *const c_char {
    // SAFETY: null, or an open endpoint.
    let net = unsafe { of_this_process(net) }.ok();
    let way = net.and_then(|net| net.endpoint.way_of(qpn));
    way.map_or(std::ptr::null(), |way| way.name().as_ptr())
}

/// Puts a queue back to its start.
///
/// # Safety
///
/// `net` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_net_reset(net: *const Net, qpn: u32) -> c_int {
    // SAFETY: null, or an open endpoint.
    let net = match unsafe { of_this_process(net) } {
        Ok(net) => net,
        Err(error) => return done(Err(error)),
    };
    done(net.endpoint.reset(qpn))
}

/// Puts a queue back whose counters are in a GPU's memory: a copy of them in, the new ones out.
///
/// # Safety
///
/// `net` is open, no thread uses the queue, and `counters` points to the bytes that
/// `outboard_net_counters_bytes` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_net_reset_counters(
    net: *const Net,
    qpn: u32,
    counters: *mut c_void,
) -> c_int {
    // SAFETY: null, or an open endpoint.
    let net = match unsafe { of_this_process(net) } {
        Ok(net) => net,
        Err(error) => return done(Err(error)),
    };
    // SAFETY: the caller lends the counters for this call.
    done(unsafe { net.endpoint.reset_counters(qpn, counters) })
}

/// Stores a queue's counts since its last reset.
///
/// # Safety
///
/// `net` is open, and `out` has room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_net_status_of(
    net: *const Net,
    qpn: u32,
    out: *mut StatusOut,
) -> c_int {
    // SAFETY: null, or an open endpoint.
    let net = match unsafe { of_this_process(net) } {
        Ok(net) => net,
        Err(error) => return done(Err(error)),
    };
    // SAFETY: null, or room for a status.
    let Some(out) = (unsafe { out.as_mut() }) else {
        return done(Err(Error::Null("out")));
    };
    done(net.endpoint.counts(qpn).map(|status| {
        let (index, syndrome) = status.failure.unwrap_or_default();
        let (failed_index, syndrome) = (u32::from(index), u32::from(syndrome));
        let (succeeded, flushed, retries) = (status.succeeded, status.flushed, status.retries);
        *out = StatusOut {
            succeeded,
            flushed,
            retries,
            failed_index,
            syndrome,
        };
    }))
}
