//! The work taken from the server for the kinds that the program has enabled, and its records.

use std::sync::atomic::{AtomicU32, Ordering};

use outboard_api::cupti_records::{self as records, Kernel, Memcpy, Memset, Overhead, Peer};
use outboard_wire::doc::{self, Activities, Activity, ActivityWhat};
use parking_lot::Mutex;

use crate::{
    buffers, clock, copies, driver, log, names,
    status::Status,
    waits,
    wanted::{ASKED, thread_number, wants},
};

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

static UNTAKEN: AtomicU32 = AtomicU32::new(0);
/// Held while work is taken, so that records are written in order.
static TAKING: Mutex<()> = Mutex::new(());

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
        registersPerThread: registers,
        start,
        end,
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
        launchType: launch_type,
        sharedMemoryExecuted: shared_executed_bytes,
        graphNodeId: activity.graph_node,
        graphId: activity.graph,
        clusterX: cluster[0],
        clusterY: cluster[1],
        clusterZ: cluster[2],
        localMemoryTotal_v2: local_bytes_total,
        ..Kernel::default()
    });
}
