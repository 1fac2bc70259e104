//! The program's subscriber: the calls it has enabled, and its callbacks.
//!
//! It is called at both ends of a driver or runtime call, with the call's parameters. Of resources
//! it is called for graphs and their nodes, within the call that creates or destroys them.

use std::{
    ffi::c_void,
    ptr,
    sync::atomic::{AtomicBool, Ordering},
};

use outboard_api::{
    CUresult,
    activity::{DriverCall, RuntimeCall},
    cupti_records::{API_ENTER, Called, GraphData, Resource},
};
use parking_lot::Mutex;

use crate::{
    driver,
    entry::{DRIVER, RUNTIME},
    known::{Known, What, name},
    objects,
    status::Status,
};

/// `CUpti_CallbackFunc`.
pub(crate) type Callback = unsafe extern "C" fn(*mut c_void, u32, u32, *const c_void);

/// `CUPTI_CB_DOMAIN_*`.
pub(crate) const DOMAIN_DRIVER: u32 = 1;
pub(crate) const DOMAIN_RUNTIME: u32 = 2;
pub(crate) const DOMAIN_RESOURCE: u32 = 3;
const DOMAINS: usize = 4;
/// Upper bound of CUPTI's numbers of calls.
const CALLS: usize = 1024;
/// `CUPTI_CBID_RESOURCE_*`, and their upper bound.
const GRAPH_CREATED: u32 = 9;
const GRAPH_DESTROY_STARTING: u32 = 10;
const GRAPH_CLONED: u32 = 11;
const NODE_CREATED: u32 = 13;
const NODE_DESTROY_STARTING: u32 = 14;
const EXEC_CREATED: u32 = 18;
const EXEC_DESTROY_STARTING: u32 = 19;
const RESOURCES: u32 = 24;
/// Resources that are reported. A program that enables only others, as PyTorch does at its start,
/// costs nothing.
const SERVED: [u32; 7] = [
    GRAPH_CREATED,
    GRAPH_DESTROY_STARTING,
    GRAPH_CLONED,
    NODE_CREATED,
    NODE_DESTROY_STARTING,
    EXEC_CREATED,
    EXEC_DESTROY_STARTING,
];

struct Subscriber {
    function: Callback,
    user: usize,
}

static SUBSCRIBER: Mutex<Option<Subscriber>> = Mutex::new(None);
/// Calls for which the subscriber is called, by domain.
static WANTED: [[AtomicBool; CALLS]; DOMAINS] =
    [const { [const { AtomicBool::new(false) }; CALLS] }; DOMAINS];

/// Returns whether a subscriber has enabled any callback.
pub(crate) fn any() -> bool {
    let is_wanted = || {
        WANTED
            .iter()
            .flatten()
            .any(|flag| flag.load(Ordering::Relaxed))
    };
    SUBSCRIBER.lock().is_some() && is_wanted()
}

pub(crate) fn wants(domain: u32, cbid: u32) -> bool {
    let flags = WANTED.get(domain as usize);
    let flag = flags.and_then(|flags| flags.get(cbid as usize));
    flag.is_some_and(|flag| flag.load(Ordering::Relaxed))
}

pub(crate) fn subscribe(function: Callback, user: *mut c_void) -> Result<(), Status> {
    driver::table()?;
    let mut subscriber = SUBSCRIBER.lock();
    if subscriber.is_some() {
        return Err(Status::MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED);
    }
    *subscriber = Some(Subscriber {
        function,
        user: user as usize,
    });
    Ok(())
}

pub(crate) fn unsubscribe() -> Result<(), Status> {
    let gone = SUBSCRIBER.lock().take();
    forget();
    gone.map(|_| ()).ok_or(Status::INVALID_PARAMETER)
}

/// Ends the subscription, if there is one.
pub(crate) fn forget() {
    *SUBSCRIBER.lock() = None;
    for flag in WANTED.iter().flatten() {
        flag.store(false, Ordering::Relaxed);
    }
}

/// Enables or disables one call of a domain, or all of them.
pub(crate) fn choose(domain: u32, cbid: Option<u32>, on: bool) -> Result<(), Status> {
    let flags = WANTED
        .get(domain as usize)
        .ok_or(Status::INVALID_PARAMETER)?;
    let is_known = |cbid: u32| match domain {
        DOMAIN_DRIVER => name(DRIVER, cbid).is_some(),
        DOMAIN_RUNTIME => name(RUNTIME, cbid).is_some(),
        _ => SERVED.contains(&cbid),
    };
    match cbid {
        Some(cbid) if domain == DOMAIN_RESOURCE && !is_known(cbid) => {
            let exists = (1..RESOURCES).contains(&cbid);
            return exists.then_some(()).ok_or(Status::INVALID_PARAMETER);
        }
        Some(cbid) => flags
            .get(cbid as usize)
            .filter(|_| is_known(cbid))
            .ok_or(Status::INVALID_PARAMETER)?
            .store(on, Ordering::Relaxed),
        None => {
            for (cbid, flag) in (0..).zip(flags) {
                flag.store(on && is_known(cbid), Ordering::Relaxed);
            }
        }
    }
    Ok(())
}

/// Returns the function to call for this call.
fn subscriber(domain: u32, cbid: u32) -> Option<(Callback, usize)> {
    if !wants(domain, cbid) {
        return None;
    }
    let subscriber = SUBSCRIBER.lock();
    subscriber.as_ref().map(|s| (s.function, s.user))
}

/// Calls the subscriber for a runtime's call.
///
/// # Safety
/// `call` is a runtime's record of a call.
pub(crate) unsafe fn runtime(cbid: u32, call: &RuntimeCall, number: u32) {
    let Some((function, user)) = subscriber(DOMAIN_RUNTIME, cbid) else {
        return;
    };
    let called = Called {
        site: call.site,
        name: call.name,
        params: call.params,
        result: call.result.cast(),
        symbol: ptr::null(),
        context: call.context,
        context_uid: call.context_uid as u32,
        correlation_data: call.correlation_data,
        correlation: number,
    };
    let called = (&raw const called).cast();
    // SAFETY: the program subscribed this function, and the record outlives the call.
    unsafe { function(user as *mut c_void, DOMAIN_RUNTIME, cbid, called) };
}

/// Calls the subscriber for one end of a driver call.
///
/// # Safety
/// `call` must be libcuda's record of a call.
pub(crate) unsafe fn driver(known: &Known, call: &mut DriverCall, site: u32, number: u32) {
    let Some((function, user)) = subscriber(DOMAIN_DRIVER, known.cbid) else {
        return;
    };
    let symbol = match known.what {
        // SAFETY: libcuda's record; `known` says that this parameter and those before it are words.
        What::Launch { function } => driver::function_name(unsafe { word(call, function) }),
        _ => ptr::null(),
    };
    let called = Called {
        site,
        name: known.name.as_ptr(),
        params: call.params,
        result: (&raw mut call.result).cast(),
        symbol,
        context: call.context,
        // Before the call ends, asking the server would count as the call's own message.
        context_uid: objects::context(call.context as usize, site != API_ENTER),
        correlation_data: &raw mut call.correlation_data,
        correlation: number,
    };
    let called = (&raw const called).cast();
    // SAFETY: the program subscribed this function, and the record outlives the call.
    unsafe { function(user as *mut c_void, DOMAIN_DRIVER, known.cbid, called) };
}

/// Returns a parameter of a call.
///
/// # Safety
/// `call` must be libcuda's record, and the parameter and all before it words.
pub(crate) unsafe fn word(call: &DriverCall, at: usize) -> usize {
    // SAFETY: words of the call's parameters, by this function's contract.
    unsafe { call.params.cast::<usize>().add(at).read() }
}

/// Calls the subscriber for a graph or node that a call is about to destroy, or has created.
///
/// # Safety
/// `call` is libcuda's record of a call.
pub(crate) unsafe fn graph(known: &Known, call: &DriverCall, site: u32) {
    let cbid = match (known.what, site) {
        (What::GraphDestroy, API_ENTER) => GRAPH_DESTROY_STARTING,
        (What::GraphExecDestroy, API_ENTER) => EXEC_DESTROY_STARTING,
        (What::GraphNodeDestroy, API_ENTER) => NODE_DESTROY_STARTING,
        (_, API_ENTER) => return,
        (What::GraphCreate, _) => GRAPH_CREATED,
        (What::GraphClone, _) => GRAPH_CLONED,
        (What::GraphInstantiate, _) => EXEC_CREATED,
        (What::GraphAdd, _) => NODE_CREATED,
        _ => return,
    };
    let Some((function, user)) = subscriber(DOMAIN_RESOURCE, cbid) else {
        return;
    };
    if call.result != CUresult::CUDA_SUCCESS {
        return;
    }
    // SAFETY: these calls have a first parameter of one word. Calls that create something have
    // written it there, and all but cuGraphCreate have the graph as a second word.
    let made = || unsafe { (word(call, 0) as *const *mut c_void).as_ref().copied() };
    let made = || made().unwrap_or(ptr::null_mut());
    // SAFETY: all of these calls have one word, and those that are asked for a second have two.
    let (first, second) = unsafe {
        let first = word(call, 0) as *mut c_void;
        match site {
            API_ENTER => (first, ptr::null_mut()),
            _ if cbid == GRAPH_CREATED => (made(), ptr::null_mut()),
            _ => (made(), word(call, 1) as *mut c_void),
        }
    };
    let mut data = GraphData {
        graph: ptr::null_mut(),
        original_graph: ptr::null_mut(),
        node: ptr::null_mut(),
        original_node: ptr::null_mut(),
        node_type: 0,
        dependency: ptr::null_mut(),
        exec: ptr::null_mut(),
    };
    match cbid {
        GRAPH_CREATED | GRAPH_DESTROY_STARTING => data.graph = first,
        GRAPH_CLONED => (data.graph, data.original_graph) = (first, second),
        EXEC_CREATED => (data.exec, data.graph) = (first, second),
        EXEC_DESTROY_STARTING => data.exec = first,
        _ => {
            (data.node, data.graph) = (first, second);
            data.node_type = driver::node_type(first);
        }
    }
    let resource = Resource {
        context: call.context,
        stream: ptr::null_mut(),
        descriptor: (&raw const data).cast(),
    };
    let resource = (&raw const resource).cast();
    // SAFETY: the program subscribed this function, and the record outlives the call.
    unsafe { function(user as *mut c_void, DOMAIN_RESOURCE, cbid, resource) };
}
