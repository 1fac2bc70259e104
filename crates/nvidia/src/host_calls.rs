//! Host functions: a stream that reaches one waits until the client has run it.
//!
//! The driver calls back on a thread of its own, which holds the stream until it returns. That
//! thread announces the call to the session and sleeps until the client has answered. The session's
//! thread never waits here.

use std::{
    collections::VecDeque,
    ffi::c_void,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use outboard_api::{CUresult, cuda::CUDA_HOST_NODE_PARAMS};
use outboard_device::{Cx, Failure, HeldUp, Printed, Service};
use outboard_wire::messages;
use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    Nvidia, REST_MS_MAX,
    graph_calls::NodeWork,
    host_memory::HostRanges,
    owned::Mark,
    printed::{Captured, Printing},
    table::{Driver, Refused, real},
};

/// Host functions submitted and not done, at most; a further one is refused.
const OUTSTANDING_MAX: usize = 1 << 20;
/// Status with which the process ends if its session is over and a driver call does not return.
pub const HELD_UP_STATUS: i32 = 3;

/// State shared with the driver's callback threads.
#[derive(Default)]
struct Calls {
    state: Mutex<CallState>,
    answered: Condvar,
    ended: AtomicBool,
}

#[derive(Default)]
struct CallState {
    /// Reached by their streams, and not yet sent to the client.
    reached: VecDeque<u64>,
    /// Sent to the client or about to be, with how many run at once.
    running: FxHashMap<u64, u32>,
    /// Done by the client, and not yet noticed by the callback.
    done: FxHashMap<u64, u32>,
}

impl Calls {
    fn state(&self) -> MutexGuard<'_, CallState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Announces a call and waits for the client. Runs on the driver's thread.
    fn reached(&self, call: u64) {
        let mut state = self.state();
        state.reached.push_back(call);
        *state.running.entry(call).or_default() += 1;
        while !self.ended.load(Ordering::Acquire) && !take_one(&mut state.done, call) {
            state = self
                .answered
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn take_one(counts: &mut FxHashMap<u64, u32>, call: u64) -> bool {
    match counts.get_mut(&call) {
        None => false,
        Some(1) => counts.remove(&call).is_some(),
        Some(count) => {
            *count -= 1;
            true
        }
    }
}

/// Argument of a callback.
struct Announce {
    calls: Arc<Calls>,
    call: u64,
}

/// A session's host functions.
#[derive(Default)]
pub(super) struct HostCalls {
    calls: Arc<Calls>,
    /// Submitted to streams directly, and not yet done.
    direct: FxHashSet<u64>,
    /// Whether any graph of the session has host functions.
    repeated: bool,
    /// Marks of graph launches that may reach host functions.
    launches: Vec<Mark>,
}

impl HostCalls {
    /// Whether the GPU may be waiting for the client.
    pub(super) fn is_outstanding(&self) -> bool {
        !self.direct.is_empty()
            || self
                .launches
                .iter()
                .any(|mark| !mark.reached().unwrap_or(true))
    }

    pub(super) fn take(&mut self, out: &mut Vec<(u64, CUresult)>) {
        self.launches.retain(|mark| !mark.reached().unwrap_or(true));
        let mut state = self.calls.state();
        out.extend(
            state
                .reached
                .drain(..)
                .map(|call| (call, CUresult::CUDA_SUCCESS)),
        );
    }

    /// Marks a graph launch, if any graph of the session has host functions.
    pub(super) fn launched(
        &mut self,
        mark: impl FnOnce() -> Result<Mark, Refused>,
    ) -> Result<(), Refused> {
        if self.repeated {
            self.launches.push(mark()?);
        }
        Ok(())
    }

    fn done(&mut self, call: u64) -> Result<(), Failure> {
        let mut state = self.calls.state();
        if !take_one(&mut state.running, call) {
            return Err(Failure::wild("running host function", call));
        }
        *state.done.entry(call).or_default() += 1;
        drop(state);
        self.calls.answered.notify_all();
        self.direct.remove(&call);
        Ok(())
    }

    /// Makes the argument for a graph's host function. It is never freed: clones of the graph may
    /// use it until the process ends, which serves one session.
    fn repeat(&mut self, call: u64) -> *mut c_void {
        self.repeated = true;
        Box::into_raw(Box::new(Announce {
            calls: self.calls.clone(),
            call,
        }))
        .cast()
    }

    /// Returns the number of the function that a graph's node calls, if the node is one of ours.
    pub(super) fn call_of(&self, host: &CUDA_HOST_NODE_PARAMS) -> Option<u64> {
        let is_ours = host.func.is_some_and(|func| {
            let ours: unsafe extern "C" fn(*mut c_void) = again;
            std::ptr::fn_addr_eq(func, ours)
        });
        if !is_ours || host.user_data.is_null() {
            return None;
        }
        // SAFETY: `repeat` made the argument for this function, and it is never freed.
        Some(unsafe { &*host.user_data.cast::<Announce>() }.call)
    }

    /// Releases every waiting stream, because the client will not answer any more.
    pub(super) fn end(&mut self) {
        self.calls.ended.store(true, Ordering::Release);
        let _state = self.calls.state();
        self.calls.answered.notify_all();
    }
}

impl Drop for HostCalls {
    fn drop(&mut self) {
        self.end();
    }
}

/// Interval at which the client is served while a driver call is held up.
const ASIDE_US: u64 = 50;

/// The parts of a device that its client needs while a driver call is held up.
pub(super) struct Aside<'d> {
    host_calls: &'d mut HostCalls,
    host: &'d mut HostRanges,
    printed: Option<&'d Captured>,
    printing: &'d mut Printing,
}

impl<'d> Aside<'d> {
    pub(super) fn new(
        host_calls: &'d mut HostCalls,
        host: &'d mut HostRanges,
        printed: &'d Option<Captured>,
        printing: &'d mut Printing,
    ) -> Aside<'d> {
        Aside {
            host_calls,
            host,
            printed: printed.as_ref(),
            printing,
        }
    }

    /// Returns whether work may wait for the client: for the end of a host function, or for a
    /// word of its memory.
    pub(super) fn may_wait_for_client(&self) -> bool {
        self.host_calls.is_outstanding() || self.host.is_any_mirrored()
    }

    /// Serves the client once. Returns whether it is there: if it has left, its host functions
    /// count as done.
    pub(super) fn serve(&mut self, service: &mut Service<'_>) -> bool {
        let mut done = Vec::new();
        let is_there = service(self, &mut done);
        if !is_there {
            self.host_calls.end();
        }
        for call in done {
            if let Err(failure) = self.host_calls.done(call) {
                tracing::warn!(%failure, "an answer to no host function");
            }
        }
        is_there
    }
}

impl HeldUp for Aside<'_> {
    fn take_printed(&mut self, out: &mut Printed) {
        if let Some(printed) = self.printed
            && self.printing.is_news()
        {
            printed.take(&mut out.stdout);
        }
    }

    fn take_host_calls(&mut self, out: &mut Vec<(u64, CUresult)>) {
        self.host_calls.take(out);
    }

    fn take_host_pages(&mut self, changed: &mut dyn FnMut(u64, &[u8])) {
        self.host.take_changed(changed);
    }

    fn host_write(&mut self, va: u64, data: &[u8]) -> bool {
        self.host.write(va, data).is_ok()
    }
}

/// Makes a driver call that may wait for the GPU's streams. While these may wait for the client,
/// for the end of a host function or for a word of its memory, the call runs on another thread, and
/// this one goes on serving the client; otherwise each would wait for the other.
pub(super) fn aside<T: Send>(
    driver: &Driver,
    context: real::Context,
    device: Aside<'_>,
    service: &mut Service<'_>,
    call: impl FnOnce(&Driver) -> Result<T, Refused> + Send,
) -> Result<T, Refused> {
    match device.may_wait_for_client() {
        true => held_up(driver, context, device, service, call),
        false => call(driver),
    }
}

/// Makes a driver call on another thread, while this one goes on serving the client. If the session
/// is over, its host functions count as done; a call that does not return then ends the process,
/// with a status of its own. No handlers of exits run: the driver's might wait for the call.
pub(super) fn held_up<T: Send>(
    driver: &Driver,
    context: real::Context,
    mut device: Aside<'_>,
    service: &mut Service<'_>,
    call: impl FnOnce(&Driver) -> Result<T, Refused> + Send,
) -> Result<T, Refused> {
    std::thread::scope(|scope| {
        let held_up = std::thread::Builder::new().spawn_scoped(scope, || {
            driver.cuCtxSetCurrent(context)?;
            call(driver)
        });
        let Ok(held_up) = held_up else {
            return Err(Refused::without_thread());
        };
        let mut alone_since = None;
        while !held_up.is_finished() {
            if !device.serve(service) {
                let since = *alone_since.get_or_insert_with(Instant::now);
                if since.elapsed() > Duration::from_millis(REST_MS_MAX) {
                    tracing::warn!("the session is over, and a driver call does not return");
                    // SAFETY: ends the process, and returns to nothing here.
                    unsafe { libc::_exit(HELD_UP_STATUS) };
                }
            }
            std::thread::sleep(Duration::from_micros(ASIDE_US));
        }
        match held_up.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Callback for a stream's host function: called once, with a box that it owns.
unsafe extern "C" fn once(data: *mut c_void) {
    // SAFETY: `Box::into_raw` made the pointer for this one call.
    let announce = unsafe { Box::from_raw(data.cast::<Announce>()) };
    announce.calls.reached(announce.call);
}

/// Callback for a graph's host function: called at every launch, with a box that is never freed.
unsafe extern "C" fn again(data: *mut c_void) {
    // SAFETY: the box is never freed.
    let announce = unsafe { &*data.cast::<Announce>() };
    announce.calls.reached(announce.call);
}

impl Nvidia {
    /// Splits off the parts that the client needs while a driver call is held up.
    pub(super) fn aside(&mut self) -> (&Driver, Aside<'_>) {
        let aside = Aside::new(
            &mut self.host_calls,
            &mut self.host,
            &self.printed,
            &mut self.printing,
        );
        (&self.driver, aside)
    }

    pub(super) fn host_func(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::HostFunc,
    ) -> Result<(), Failure> {
        self.enter(cx)?;
        let stream = self.real_stream(m.stream)?;
        if self.capturing(stream)? {
            let data = self.host_calls.repeat(m.call);
            // SAFETY: `data` points to a box that is never freed.
            return Ok(unsafe { self.driver.host_func(stream, again, data) }?);
        }
        if self.host_calls.direct.len() >= OUTSTANDING_MAX {
            return Err(Failure::new(
                CUresult::CUDA_ERROR_OUT_OF_MEMORY,
                format!("more than {OUTSTANDING_MAX} host functions at a time"),
            ));
        }
        let data = Box::into_raw(Box::new(Announce {
            calls: self.host_calls.calls.clone(),
            call: m.call,
        }));
        // SAFETY: the box is handed over for the one call.
        let submitted = unsafe { self.driver.host_func(stream, once, data.cast()) };
        if let Err(refused) = submitted {
            // SAFETY: the driver refused, so it will not call, and the box is still ours.
            drop(unsafe { Box::from_raw(data) });
            return Err(refused.into());
        }
        self.host_calls.direct.insert(m.call);
        Ok(())
    }

    pub(super) fn host_func_done(
        &mut self,
        _cx: &mut Cx<'_>,
        m: &messages::HostFuncDone,
    ) -> Result<(), Failure> {
        self.host_calls.done(m.call)
    }

    /// Makes a graph node that calls a host function at every launch.
    pub(super) fn host_node(&mut self, call: u64) -> NodeWork<'static> {
        NodeWork::Host(CUDA_HOST_NODE_PARAMS {
            func: Some(again),
            user_data: self.host_calls.repeat(call),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_callback_sleeps_until_the_client_has_answered() {
        let mut host_calls = HostCalls::default();
        let calls = host_calls.calls.clone();
        let callback = std::thread::spawn(move || calls.reached(7));
        let mut told = Vec::new();
        while told.is_empty() {
            host_calls.take(&mut told);
        }
        assert_eq!(told, [(7, CUresult::CUDA_SUCCESS)]);
        std::thread::sleep(Duration::from_millis(20));
        assert!(!callback.is_finished());
        assert!(host_calls.done(8).is_err(), "8 is not running");
        host_calls.done(7).expect("7 runs");
        callback.join().expect("let go");
        assert!(host_calls.done(7).is_err(), "answered twice");
    }

    #[test]
    fn the_end_of_a_session_lets_callbacks_go() {
        let mut host_calls = HostCalls::default();
        let calls = host_calls.calls.clone();
        let callback = std::thread::spawn(move || calls.reached(7));
        let mut told = Vec::new();
        while told.is_empty() {
            host_calls.take(&mut told);
        }
        host_calls.end();
        callback.join().expect("let go");
    }
}
