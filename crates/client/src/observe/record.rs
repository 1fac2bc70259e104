//! `OUTBOARD_RECORD=FILE`: records every call of the program, with the bytes it sent and received.
//!
//! The environment is read when the library is loaded; the file is opened at the first call. A copy
//! counts the bytes that it takes over a network, even if they are in shared memory.

#![allow(non_snake_case)]

use std::ffi::c_char;

use outboard_api::{CUresult, decl::Class};
use outboard_link::emulated;
use outboard_trace::{
    Device, RecordedServer, Ticks,
    live::{self, Live, Made, Numbered, Subject},
    nvtx,
};
use outboard_wire::{
    doc::DeviceCard,
    frame::{HEADER_BYTES, copy_in_len, copy_out_len},
};

use super::{conditions, optimise};
use crate::{call_table::CALLS, thread};

/// A call that is being recorded.
pub(crate) struct RecordedCall {
    live: &'static Live,
    start: Ticks,
    about: Numbered,
    /// Bytes sent and received so far by the call that made this one.
    outer: (u64, u64),
}

extern "C" fn at_load() {
    if live::is_wanted() {
        conditions::mark_recorded();
    }
}

// SAFETY: the loader calls it once; it only reads the environment.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

/// Begins a call.
#[cold]
pub(crate) fn begin(subject: &Subject) -> Option<RecordedCall> {
    let live = live::begin(CALLS.len())?;
    let here = thread::here();
    let outer = (
        here.request_bytes.replace(0),
        here.response_bytes.replace(0),
    );
    Some(RecordedCall {
        live,
        about: live.numbered(subject),
        outer,
        // Read last, so that the call's time is its own.
        start: live.now(),
    })
}

/// Ends a call of this kind.
#[cold]
pub(crate) fn end(number: usize, kind: usize, begun: RecordedCall, result: CUresult) {
    const CLASSES: [Class; 4] = [
        Class::Local,
        Class::Outstanding,
        Class::Shadowed,
        Class::Synchronous,
    ];
    make(number, CLASSES[kind % CLASSES.len()], begun, result);
}

/// Records a call that was refused because Outboard does not serve it.
#[cold]
pub(crate) fn refused(number: usize, result: CUresult) {
    if let Some(begun) = begin(&Subject::NONE) {
        make(number, Class::Unsupported, begun, result);
    }
}

fn make(number: usize, class: Class, begun: RecordedCall, result: CUresult) {
    let here = thread::here();
    let made = Made {
        start: begun.start,
        end: begun.live.now(),
        class,
        request_bytes: here.request_bytes.replace(begun.outer.0),
        response_bytes: here.response_bytes.replace(begun.outer.1),
        about: begun.about,
        correlation: 0,
        status: result.0,
        // The call's server stays selected until it has ended.
        server: here.server.get().unwrap_or(0),
    };
    begun.live.call(number, CALLS[number].0, &made);
}

/// Counts a frame that the current call sends.
pub(crate) fn sent(bytes: usize) {
    let here = thread::here();
    here.request_bytes
        .set(here.request_bytes.get() + bytes as u64);
}

/// Counts the bytes with which the current call will be answered, besides the header.
pub(crate) fn answered(bytes: usize, headers: usize) {
    let here = thread::here();
    let more = (bytes + headers * HEADER_BYTES) as u64;
    here.response_bytes.set(here.response_bytes.get() + more);
}

/// Direction of a copy.
#[derive(Clone, Copy)]
pub(crate) enum Way {
    ToDevice,
    ToHost,
}

/// Runs a copy, and counts the bytes that it takes over a network.
#[cold]
pub(crate) fn copying<R>(way: Way, bytes: usize, copy: impl FnOnce() -> R) -> R {
    let here = thread::here();
    let (request, response) = (here.request_bytes.get(), here.response_bytes.get());
    let result = copy();
    let (out, back) = match way {
        Way::ToDevice => (copy_in_len(bytes as u64), 0),
        Way::ToHost => copy_out_len(bytes as u64),
    };
    here.request_bytes.set(request + out);
    here.response_bytes.set(response + back);
    result
}

/// Records the servers and their devices, once there are sessions.
pub(crate) fn connected<'a>(
    url: &str,
    driver_version: u32,
    servers: impl Iterator<Item = (&'a str, Vec<DeviceCard>)>,
) {
    let Some(live) = live::live() else {
        return;
    };
    let device = |card: &DeviceCard| Device {
        name: card.name.clone(),
        memory_bytes: card.memory_bytes,
    };
    let servers: Vec<RecordedServer> = servers
        .map(|(gpu, cards)| RecordedServer {
            gpu: gpu.into(),
            devices: cards.iter().map(device).collect(),
        })
        .collect();
    live.know(|about| {
        about.gpu = Some(url.into());
        about.optimise = Some(optimise::level().to_string());
        about.emulated = emulated::asked()
            .ok()
            .flatten()
            .map(|asked| asked.network.to_string());
        about.driver_version = driver_version;
        let devices = servers.iter().flat_map(|server| &server.devices);
        about.devices = devices.cloned().collect();
        if servers.len() > 1 {
            about.servers = servers;
        }
    });
}

/// Marks the beginning or the end of a range that the program names. For `outboard.mark` of the
/// Python module.
///
/// # Safety
/// `name` must be NULL or a C string.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn outboard_mark(name: *const c_char, is_end: i32) {
    if !conditions::is_recorded() {
        return;
    }
    // SAFETY: NULL or a C string, by this function's contract.
    unsafe { live::mark(name, is_end != 0, CALLS.len()) };
}

/// Entry point for NVTX, which loads the library that `NVTX_INJECTION64_PATH` names.
///
/// # Safety
/// `get_table` must be NVTX's function: NVTX calls this.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn InitializeInjectionNvtx2(
    get_table: Option<nvtx::GetExportTable>,
) -> i32 {
    // SAFETY: NVTX's function, by this function's contract.
    unsafe { nvtx::initialize(get_table, CALLS.len()) }
}
