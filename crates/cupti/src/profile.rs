//! The kinds that the program has enabled, and the work taken from the server for them.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

use outboard_api::{
    activity::RUNTIME_CALLS,
    cupti_records::{self as records, Kernel, Memcpy, Memset, Overhead, Peer},
};
use outboard_wire::doc::{
    self, ACTIVITY_COPIES, ACTIVITY_EVENTS, ACTIVITY_KERNELS, ACTIVITY_MEMSETS, ACTIVITY_NONE,
    ACTIVITY_NUMBERS, ACTIVITY_PEER_COPIES, Activities, Activity, ActivityWhat,
};
use parking_lot::Mutex;

use crate::{
    buffers,
    callbacks::{self, DOMAIN_RUNTIME},
    clock, copies, driver,
    entry::{DRIVER, RUNTIME},
    hooks::HOOKS,
    known::{KINDS as KIND_NAMES, name},
    log, names,
    status::Status,
    waits,
};

/// Upper bound of `CUpti_ActivityKind`.
const KINDS: usize = 64;
/// Upper bound of CUPTI's numbers of calls.
const CALLS: usize = 1024;
/// Most pieces of work in one reply.
const TAKEN_MAX: u32 = 1 << 14;
/// Most replies read in a row: a server that always claims to have more does not hold the program.
const ANSWERS_MAX: u32 = 1 << 12;
/// Number of calls after which work is taken without a request: the server keeps a million pieces
/// at most.
const CALLS_UNTAKEN_MAX: u32 = 1 << 17;
/// `CUPTI_ACTIVITY_OVERHEAD_CUPTI_BUFFER_FLUSH`, `CUPTI_ACTIVITY_OBJECT_THREAD`.
const OVERHEAD_FLUSH: u32 = 1 << 16;
const OBJECT_THREAD: u32 = 2;
/// `CUPTI_ACTIVITY_FLAG_FLUSH_FORCED`.
const FLUSH_FORCED: u32 = 1;

/// The served kinds. Those whose records come from the server have their bits of the request.
const SERVED: [(u32, u32); 11] = [
    (records::MEMCPY, ACTIVITY_COPIES),
    (records::MEMCPY2, ACTIVITY_PEER_COPIES),
    (records::MEMSET, ACTIVITY_MEMSETS),
    (records::KERNEL, ACTIVITY_KERNELS),
    (records::CONCURRENT_KERNEL, ACTIVITY_KERNELS),
    (records::DRIVER, 0),
    (records::RUNTIME, 0),
    (records::OVERHEAD, 0),
    (records::CUDA_EVENT, ACTIVITY_NUMBERS),
    (records::SYNCHRONIZATION, ACTIVITY_NUMBERS),
    (records::EXTERNAL_CORRELATION, 0),
];

static WANTED: [AtomicBool; KINDS] = [const { AtomicBool::new(false) }; KINDS];
/// Calls for which the program has disabled records.
static DRIVER_OFF: [AtomicBool; CALLS] = [const { AtomicBool::new(false) }; CALLS];
static RUNTIME_OFF: [AtomicBool; CALLS] = [const { AtomicBool::new(false) }; CALLS];
/// Memory for records on the server until they are taken; 0 is the server's own maximum.
/// Records of events bear the time at which the GPU passed them.
static EVENTS_TIMED: AtomicBool = AtomicBool::new(false);
static KEPT_BYTES_MAX: AtomicU64 = AtomicU64::new(0);
static UNTAKEN: AtomicU32 = AtomicU32::new(0);
static THREAD_ID_TYPE: AtomicU8 = AtomicU8::new(0);
/// The kinds last requested from the server. Locked during a request, so that requests of two
/// threads keep their order.
static ASKED: Mutex<Option<u32>> = Mutex::new(None);
/// Held while work is taken, so that records are written in order.
static TAKING: Mutex<()> = Mutex::new(());

pub(crate) fn wants(kind: u32) -> bool {
    WANTED
        .get(kind as usize)
        .is_some_and(|wanted| wanted.load(Ordering::Relaxed))
}

pub(crate) fn wants_driver(cbid: u32) -> bool {
    wants(records::DRIVER) && !is_set(&DRIVER_OFF, cbid)
}

pub(crate) fn wants_runtime(cbid: u32) -> bool {
    wants(records::RUNTIME) && !is_set(&RUNTIME_OFF, cbid)
}

fn is_set(flags: &[AtomicBool], cbid: u32) -> bool {
    flags
        .get(cbid as usize)
        .is_some_and(|flag| flag.load(Ordering::Relaxed))
}

/// Enables or disables records of a kind.
pub(crate) fn enable(kind: u32, on: bool) -> Result<(), Status> {
    let wanted = WANTED.get(kind as usize).ok_or(Status::INVALID_KIND)?;
    if !SERVED.iter().any(|(served, _)| *served == kind) {
        static SAID: [AtomicBool; KINDS] = [const { AtomicBool::new(false) }; KINDS];
        if on && let Some(said) = SAID.get(kind as usize) {
            log::warn_once(
                said,
                format_args!(
                    "cuptiActivityEnable: CUPTI_ACTIVITY_KIND_{} is not supported",
                    KIND_NAMES.get(kind as usize).unwrap_or(&"unknown")
                ),
            );
        }
        return Err(Status::NOT_SUPPORTED);
    }
    driver::table()?;
    wanted.store(on, Ordering::Relaxed);
    apply()
}

/// Applies the enabled kinds to the server, libcuda and the CUDA runtimes.
fn apply() -> Result<(), Status> {
    let mut kinds = SERVED
        .iter()
        .filter(|(kind, _)| wants(*kind))
        .fold(0, |kinds, (_, bit)| kinds | bit);
    if are_events_timed() {
        kinds |= ACTIVITY_EVENTS;
    }
    let mut asked = ASKED.lock();
    if asked.unwrap_or(0) != kinds {
        let (source, reason) = driver::enable(kinds, KEPT_BYTES_MAX.load(Ordering::Relaxed))?;
        if kinds != 0 && asked.is_none_or(|before| before == 0) {
            clock::compare()?;
        }
        *asked = Some(kinds);
        static SAID: AtomicBool = AtomicBool::new(false);
        if kinds != 0 && source == ACTIVITY_NONE {
            log::warn_once(
                &SAID,
                format_args!("calls are profiled, the GPU's work is not: {reason}"),
            );
        }
    }
    drop(asked);
    let is_called_back = callbacks::any();
    let any = SERVED.iter().any(|(kind, _)| wants(*kind));
    driver::attach((any || is_called_back).then_some(&HOOKS))?;
    choose_runtime_calls(is_called_back)
}

/// Sets the words that tell CUDA runtimes which calls to report.
fn choose_runtime_calls(is_called_back: bool) -> Result<(), Status> {
    let words = driver::table()?.runtime_calls;
    // The work of a call has the number of the call.
    let numbers = wants(records::RUNTIME) || wants(records::EXTERNAL_CORRELATION);
    for cbid in 1..RUNTIME_CALLS as u32 {
        let known = name(RUNTIME, cbid).is_some();
        let wanted = known
            && (numbers && !is_set(&RUNTIME_OFF, cbid)
                || is_called_back && callbacks::wants(DOMAIN_RUNTIME, cbid));
        // SAFETY: an array of libcuda's with a word per call, never freed; runtimes read it at any
        // time.
        unsafe { AtomicU32::from_ptr(words.add(cbid as usize)) }
            .store(u32::from(wanted), Ordering::Relaxed);
    }
    Ok(())
}

/// Enables or disables records of one call of the driver or the runtime.
pub(crate) fn enable_call(domain: u32, cbid: u32, on: bool) -> Result<(), Status> {
    let (flags, known) = match domain {
        DOMAIN_RUNTIME => (&RUNTIME_OFF, name(RUNTIME, cbid)),
        _ => (&DRIVER_OFF, name(DRIVER, cbid)),
    };
    let flag = flags.get(cbid as usize).filter(|_| known.is_some());
    flag.ok_or(Status::INVALID_PARAMETER)?
        .store(!on, Ordering::Relaxed);
    match domain == DOMAIN_RUNTIME && wants(records::RUNTIME) {
        true => apply(),
        false => Ok(()),
    }
}

/// Ends the subscription and its callbacks.
pub(crate) fn unsubscribe() -> Result<(), Status> {
    callbacks::unsubscribe()?;
    apply()
}

/// Enables or disables the subscriber's callback for one call of a domain, or for all.
pub(crate) fn call_back(domain: u32, cbid: Option<u32>, on: bool) -> Result<(), Status> {
    callbacks::choose(domain, cbid, on)?;
    apply()
}

/// Sets the memory limit of records on the server, which applies from the next kind that is
/// enabled.
pub(crate) fn keep_bytes(max: u64) {
    KEPT_BYTES_MAX.store(max, Ordering::Relaxed);
}

/// Returns whether records of events are written, with the time at which the GPU passed the event.
pub(crate) fn are_events_timed() -> bool {
    EVENTS_TIMED.load(Ordering::Relaxed)
        && (wants(records::CUDA_EVENT) || wants(records::SYNCHRONIZATION))
}

/// Sets whether records of events bear the time at which the GPU passed the event.
pub(crate) fn time_events(on: bool) -> Result<(), Status> {
    driver::table()?;
    EVENTS_TIMED.store(on, Ordering::Relaxed);
    apply()
}

pub(crate) fn thread_id_type() -> u8 {
    THREAD_ID_TYPE.load(Ordering::Relaxed)
}

pub(crate) fn set_thread_id_type(to: u8) {
    THREAD_ID_TYPE.store(to, Ordering::Relaxed);
}

/// Returns the number of the calling thread in records: its number in the system, or the low half
/// of its `pthread_t`.
pub(crate) fn thread_number(tid: libc::pid_t) -> u32 {
    const BY_SYSTEM: u8 = 1;
    match thread_id_type() {
        BY_SYSTEM => tid.cast_unsigned(),
        // SAFETY: only returns the thread's handle.
        _ => unsafe { libc::pthread_self() as u32 },
    }
}

/// Notes the end of a call. Now and then it takes finished work, so that the server need not keep
/// it.
pub(crate) fn call_ended() {
    if UNTAKEN.fetch_add(1, Ordering::Relaxed) >= CALLS_UNTAKEN_MAX && !buffers::is_in_callback() {
        // `take` reports its own errors; the program's call has succeeded.
        let _ = take(0);
    }
}

/// Writes records of all finished work.
///
/// It refuses in the program's buffer callbacks: this very function may have called them.
pub(crate) fn take(flags: u32) -> Result<(), Status> {
    if buffers::is_in_callback() {
        return Err(Status::INVALID_OPERATION);
    }
    let _taking = TAKING.lock();
    if ASKED.lock().is_none() {
        return Ok(());
    }
    UNTAKEN.store(0, Ordering::Relaxed);
    let start = clock::program();
    clock::compare()?;
    let map = clock::map().ok_or(Status::UNKNOWN)?;
    // The last copy of the reply; its next piece may be in the next reply.
    let mut copy = None;
    let mut is_late = driver::is_late();
    for _ in 0..ANSWERS_MAX {
        let taken = driver::take(flags, TAKEN_MAX)?;
        if taken.dropped > 0 {
            log::warn(format_args!(
                "{} pieces of the GPU's work are missing: nobody took them in time",
                taken.dropped
            ));
            buffers::add_dropped(taken.dropped);
        }
        write_all(&taken, &mut copy, &map);
        // More is asked for once more after an answer to an earlier question.
        if !taken.more && !std::mem::take(&mut is_late) {
            break;
        }
    }
    copy.iter().for_each(|whole| write(whole, &[], &map));
    if flags & FLUSH_FORCED != 0 {
        waits::write_unpassed();
    }
    if wants(records::OVERHEAD) {
        write_overhead(start);
    }
    Ok(())
}

/// Writes a record for each piece of work, but for a copy whose next piece may follow.
fn write_all(taken: &Activities, copy: &mut Option<Activity>, map: &clock::Map) {
    for activity in &taken.done {
        if copy
            .as_mut()
            .is_some_and(|whole| copies::join(whole, activity))
        {
            continue;
        }
        copy.take().iter().for_each(|whole| write(whole, &[], map));
        match activity.what {
            ActivityWhat::Copy { .. } => *copy = Some(copies::with_host_memory(*activity)),
            _ => write(activity, &taken.names, map),
        }
    }
}

/// Reads the bytes as a server's answer and writes records of it, as [`take`] does. For the fuzzer.
pub(crate) fn fuzz(data: &[u8]) {
    let Ok(taken) = doc::from_bytes::<Activities>(data) else {
        return;
    };
    let mut copy = None;
    let map = clock::Map::fuzz(taken.dropped);
    write_all(&taken, &mut copy, &map);
    copy.iter().for_each(|whole| write(whole, &[], &map));
    buffers::add_dropped(taken.dropped);
}

fn write_overhead(start: u64) {
    // SAFETY: only returns the thread's number.
    let thread = unsafe { libc::gettid() };
    buffers::write(&Overhead {
        kind: records::OVERHEAD,
        overheadKind: OVERHEAD_FLUSH,
        objectKind: OBJECT_THREAD,
        processId: std::process::id(),
        threadId: thread_number(thread),
        objectPad: 0,
        start,
        end: clock::program(),
        correlationId: 0,
        reserved0: 0,
        overheadData: 0,
    });
}

fn write(activity: &Activity, names: &[String], map: &clock::Map) {
    let start = map.program(activity.start_ns);
    let end = map.program(activity.end_ns);
    match activity.what {
        ActivityWhat::Kernel { name, .. } => {
            let name = names.get(name as usize).map_or("", String::as_str);
            write_kernel(activity, name, start, end);
        }
        ActivityWhat::Copy {
            bytes,
            kind,
            source,
            destination,
            flags,
        } => buffers::write(&Memcpy {
            kind: records::MEMCPY,
            copyKind: kind,
            srcKind: source,
            dstKind: destination,
            flags,
            bytes,
            start,
            end,
            deviceId: activity.device,
            contextId: activity.context,
            streamId: activity.stream,
            correlationId: activity.call,
            runtimeCorrelationId: 0,
            pad: 0,
            reserved0: 0,
            graphNodeId: activity.graph_node,
            graphId: activity.graph,
            channelID: 0,
            channelType: 0,
            isDeviceLaunched: 0,
            pad2: [0; 3],
            copyCount: 1,
        }),
        ActivityWhat::EventRecorded => waits::passed(activity.call, end),
        ActivityWhat::PeerCopy { .. } => write_peer(activity, start, end),
        ActivityWhat::Memset {
            bytes,
            value,
            memory,
            flags,
        } => buffers::write(&Memset {
            kind: records::MEMSET,
            value,
            bytes,
            start,
            end,
            deviceId: activity.device,
            contextId: activity.context,
            streamId: activity.stream,
            correlationId: activity.call,
            flags: flags.into(),
            memoryKind: memory.into(),
            pad: 0,
            reserved0: 0,
            graphNodeId: activity.graph_node,
            graphId: activity.graph,
            channelID: 0,
            channelType: 0,
            isDeviceLaunched: 0,
            pad2: [0; 3],
        }),
    }
}

fn write_peer(activity: &Activity, start: u64, end: u64) {
    let ActivityWhat::PeerCopy {
        bytes,
        kind,
        source,
        destination,
        flags,
        source_device,
        source_context,
        destination_device,
        destination_context,
    } = activity.what
    else {
        return;
    };
    buffers::write(&Peer {
        kind: records::MEMCPY2,
        copyKind: kind,
        srcKind: source,
        dstKind: destination,
        flags,
        bytes,
        start,
        end,
        deviceId: activity.device,
        contextId: activity.context,
        streamId: activity.stream,
        srcDeviceId: source_device,
        srcContextId: source_context,
        dstDeviceId: destination_device,
        dstContextId: destination_context,
        correlationId: activity.call,
        reserved0: 0,
        graphNodeId: activity.graph_node,
        graphId: activity.graph,
        channelID: 0,
        channelType: 0,
        tail: 0,
    });
}

fn write_kernel(activity: &Activity, name: &str, start: u64, end: u64) {
    let ActivityWhat::Kernel {
        grid,
        block,
        cluster,
        static_shared_bytes,
        dynamic_shared_bytes,
        shared_executed_bytes,
        registers,
        local_bytes_per_thread,
        local_bytes_total,
        launch_type,
        grid_id,
        ..
    } = activity.what
    else {
        return;
    };
    let kind = match wants(records::KERNEL) && !wants(records::CONCURRENT_KERNEL) {
        true => records::KERNEL,
        false => records::CONCURRENT_KERNEL,
    };
    buffers::write(&Kernel {
        kind,
        cacheConfig: 0,
        sharedMemoryConfig: 0,
        registersPerThread: registers,
        partitionedGlobalCacheRequested: 0,
        partitionedGlobalCacheExecuted: 0,
        start,
        end,
        completed: 0,
        deviceId: activity.device,
        contextId: activity.context,
        streamId: activity.stream,
        gridX: grid[0],
        gridY: grid[1],
        gridZ: grid[2],
        blockX: block[0],
        blockY: block[1],
        blockZ: block[2],
        staticSharedMemory: static_shared_bytes,
        dynamicSharedMemory: dynamic_shared_bytes,
        localMemoryPerThread: local_bytes_per_thread,
        localMemoryTotal: u32::try_from(local_bytes_total).unwrap_or(u32::MAX),
        correlationId: activity.call,
        gridId: grid_id,
        name: names::keep(name).as_ptr() as u64,
        reserved0: 0,
        queued: 0,
        submitted: 0,
        launchType: launch_type,
        isSharedMemoryCarveoutRequested: 0,
        sharedMemoryCarveoutRequested: 0,
        padding: 0,
        sharedMemoryExecuted: shared_executed_bytes,
        graphNodeId: activity.graph_node,
        shmemLimitConfig: 0,
        graphId: activity.graph,
        pAccessPolicyWindow: 0,
        channelID: 0,
        channelType: 0,
        clusterX: cluster[0],
        clusterY: cluster[1],
        clusterZ: cluster[2],
        clusterSchedulingPolicy: 0,
        localMemoryTotal_v2: local_bytes_total,
        maxPotentialClusterSize: 0,
        maxActiveClusters: 0,
        isDeviceLaunched: 0,
        padding3: [0; 7],
    });
}

/// Ends everything that was enabled.
pub(crate) fn finalize() -> Result<(), Status> {
    let taken = take(1);
    for wanted in &WANTED {
        wanted.store(false, Ordering::Relaxed);
    }
    callbacks::forget();
    EVENTS_TIMED.store(false, Ordering::Relaxed);
    for flag in DRIVER_OFF.iter().chain(&RUNTIME_OFF) {
        flag.store(false, Ordering::Relaxed);
    }
    buffers::flush();
    taken.and(apply())
}
