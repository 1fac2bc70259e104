//! Calls of the driver and of CUDA runtimes: each gets its number at its begin and its record at
//! its end.

use outboard_api::{
    activity::{DriverCall, Hooks, RuntimeCall},
    cupti_records::{
        API_ENTER, API_EXIT, Api, DRIVER, EXTERNAL_CORRELATION, ExternalCorrelation, RUNTIME,
    },
};

use crate::{
    buffers,
    call_stack::{self, Frame, enter, leave},
    callbacks, clock, copies, driver,
    known::known,
    taken::call_ended,
    waits, wanted,
};

pub(crate) static HOOKS: Hooks = Hooks {
    driver_begins,
    driver_ends,
    runtime,
};

unsafe extern "C" fn driver_begins(call: *mut DriverCall) -> u32 {
    // SAFETY: libcuda's record, which outlives this function.
    let Some(call) = (unsafe { call.as_mut() }) else {
        return 0;
    };
    if driver::is_own() {
        return 0;
    }
    let number = enter(0);
    if let Some(known) = known(call.number) {
        // SAFETY: libcuda's record, which outlives this function.
        unsafe {
            callbacks::driver(known, call, API_ENTER, number);
            callbacks::graph(known, call, API_ENTER);
        }
    }
    number
}

unsafe extern "C" fn driver_ends(call: *mut DriverCall) {
    // SAFETY: libcuda's record, which outlives this function.
    let Some(call) = (unsafe { call.as_mut() }) else {
        return;
    };
    if driver::is_own() {
        return;
    }
    let Some((frame, is_outermost)) = leave(0) else {
        return;
    };
    let Some(known) = known(call.number) else {
        return;
    };
    // SAFETY: libcuda's record, which outlives this function.
    unsafe {
        waits::ended(known.what, call, &frame);
        callbacks::graph(known, call, API_EXIT);
        callbacks::driver(known, call, API_EXIT, frame.call);
    }
    // CUPTI reports driver calls that the program makes, but not those that a runtime makes for it.
    if is_outermost {
        write(frame, DRIVER, known.cbid, call.result.0, is_outermost);
        call_ended();
    }
}

/// Called by a CUDA runtime at the begin and the end of each of its calls.
unsafe extern "C" fn runtime(cbid: u32, call: *mut RuntimeCall) {
    // SAFETY: the runtime's record, valid while this function runs.
    let Some(call) = (unsafe { call.as_ref() }) else {
        return;
    };
    if (call.bytes as usize) < size_of::<RuntimeCall>() {
        return;
    }
    if call.site == API_ENTER {
        let number = enter(cbid);
        // SAFETY: the record and its parameters are valid while this function runs.
        unsafe {
            copies::note(cbid, call.params, number);
            callbacks::runtime(cbid, call, number);
        }
        return;
    }
    let Some((frame, is_outermost)) = leave(cbid) else {
        return;
    };
    // SAFETY: the record is valid while this function runs.
    unsafe { callbacks::runtime(cbid, call, frame.call) };
    // SAFETY: the runtime's result, if it has one.
    let result = unsafe { call.result.as_ref() }.copied().unwrap_or(0);
    write(frame, RUNTIME, cbid, result.cast_unsigned(), is_outermost);
    call_ended();
}

/// Writes the records that the program has enabled of a call that has ended.
fn write(frame: Frame, kind: u32, cbid: u32, result: u32, is_outermost: bool) {
    let is_wanted = match kind {
        DRIVER => wanted::wants_driver(cbid),
        _ => wanted::wants_runtime(cbid),
    };
    // The program's pushed numbers belong to all work with this call's number, even if the call
    // itself needs no record.
    if is_outermost && wanted::wants(EXTERNAL_CORRELATION) {
        write_external(frame.call);
    }
    if !is_wanted {
        return;
    }
    // SAFETY: only returns the thread's number.
    let thread = unsafe { libc::gettid() };
    buffers::write(&Api {
        kind,
        cbid,
        start: frame.start,
        end: clock::program(),
        processId: std::process::id(),
        threadId: wanted::thread_number(thread),
        correlationId: frame.call,
        returnValue: result,
    });
}

fn write_external(call: u32) {
    for (kind, id) in call_stack::tops().into_iter().enumerate() {
        if let Some(id) = id {
            buffers::write(&ExternalCorrelation {
                kind: EXTERNAL_CORRELATION,
                externalKind: kind as u32,
                externalId: id,
                correlationId: call,
                reserved: 0,
            });
        }
    }
}
