//! Calls reported to the `libcupti.so.13` beside this library, at their begin and end.
//!
//! While hooks are attached every message of a call bears the call's number
//! (`wire::frame::of_call`), by which the server relates each piece of work to its call.

use std::{
    ffi::c_void,
    ptr,
    sync::atomic::{AtomicPtr, Ordering},
};

use outboard_api::{
    CUresult,
    activity::{DriverCall, Hooks},
};
use outboard_wire::frame;

use super::conditions;
use crate::thread;

static HOOKS: AtomicPtr<Hooks> = AtomicPtr::new(ptr::null_mut());

/// A call that is being reported.
pub(crate) struct Begun {
    call: DriverCall,
    /// The number of the call that made this call.
    outer: u32,
}

/// Returns the hooks, if libcupti has attached any.
pub(crate) fn hooks() -> Option<&'static Hooks> {
    // SAFETY: NULL, or hooks that stay valid for ever.
    unsafe { HOOKS.load(Ordering::Acquire).as_ref() }
}

/// Begins a call.
///
/// # Safety
/// `params` must be valid until [`end`] has returned.
#[cold]
pub(crate) unsafe fn begin(number: usize, params: *const c_void) -> Option<Begun> {
    let hooks = hooks()?;
    let mut call = DriverCall {
        number: number as u32,
        result: CUresult::CUDA_SUCCESS,
        params,
        context: current(),
        correlation_data: 0,
    };
    // SAFETY: the record outlives the hook.
    let number = unsafe { (hooks.driver_begins)(&mut call) };
    let outer = thread::here().call.replace(number);
    Some(Begun { call, outer })
}

/// Returns the thread's current context, or NULL.
fn current() -> *mut c_void {
    let context = thread::here().context.get();
    context.map_or(ptr::null_mut(), |context| context.handle.0 as *mut c_void)
}

/// Ends a call.
#[cold]
pub(crate) fn end(begun: Begun, result: CUresult) {
    thread::here().call.set(begun.outer);
    if let Some(hooks) = hooks() {
        let mut call = DriverCall {
            result,
            context: current(),
            ..begun.call
        };
        // SAFETY: the record outlives the hook, and `params` is valid by `begin`'s contract.
        unsafe { (hooks.driver_ends)(&mut call) };
    }
}

/// Returns the number of the current call, for threads that help with it.
pub(crate) fn call() -> u32 {
    thread::here().call.get()
}

/// Marks a thread that helps with another thread's call, until this is dropped.
pub(crate) struct Helping {
    outer: u32,
}

pub(crate) fn help(call: u32) -> Helping {
    Helping {
        outer: thread::here().call.replace(call),
    }
}

impl Drop for Helping {
    fn drop(&mut self) {
        thread::here().call.set(self.outer);
    }
}

/// Returns the context of a message, with the number of the current call if calls have numbers.
#[inline]
pub(crate) fn tagged(context: u64) -> u64 {
    match conditions::is_profiled() {
        true => frame::of_call(context, thread::here().call.get()),
        false => context,
    }
}

/// Attaches hooks, which stay valid for ever; NULL detaches them.
pub(crate) fn attach(hooks: *const Hooks) {
    HOOKS.store(hooks.cast_mut(), Ordering::Release);
    conditions::mark_profiled(!hooks.is_null());
}
