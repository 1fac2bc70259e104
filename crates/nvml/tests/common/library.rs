//! The library loaded into this process and called as from C.

use std::{
    ffi::{CStr, c_char},
    mem::MaybeUninit,
    time::Duration,
};

use outboard_link::LinkKind;
use outboard_nvml::{clock::advance, entry::*, types::*};

use super::{Answer, Server, two_devices};

pub(crate) const KINDS: [LinkKind; 2] = [LinkKind::Shm, LinkKind::Tcp];

/// A server, and the library initialised for it until this is dropped.
pub(crate) struct Session {
    pub(crate) server: Server,
}

impl Session {
    pub(crate) fn start(kind: LinkKind) -> Session {
        let server = Server::start(kind, well());
        use_server(&server.endpoint.to_string());
        assert_eq!(init(), nvmlReturn_t::SUCCESS);
        Session { server }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        while shutdown() == nvmlReturn_t::SUCCESS {}
    }
}

pub(crate) fn well() -> Answer {
    Answer::Snapshot(Box::new(two_devices()))
}

pub(crate) fn use_server(url: &str) {
    // SAFETY: tests take turns, and the server's threads do not read the environment.
    unsafe { std::env::set_var("OUTBOARD_GPU", url) };
}

pub(crate) fn init() -> nvmlReturn_t {
    // SAFETY: no pointers.
    unsafe { nvmlInit_v2() }
}

pub(crate) fn shutdown() -> nvmlReturn_t {
    // SAFETY: no pointers.
    unsafe { nvmlShutdown() }
}

pub(crate) fn device(index: u32) -> nvmlDevice_t {
    let mut device = nvmlDevice_t(0);
    // SAFETY: a variable for the answer.
    let result = unsafe { nvmlDeviceGetHandleByIndex_v2(index, &mut device) };
    assert_eq!(result, nvmlReturn_t::SUCCESS);
    device
}

pub(crate) fn ask<T>(
    call: unsafe extern "C" fn(nvmlDevice_t, *mut T) -> nvmlReturn_t,
    of: nvmlDevice_t,
) -> Result<T, nvmlReturn_t> {
    let mut out = MaybeUninit::<T>::zeroed();
    // SAFETY: a variable for the answer, of a type for which zero is valid.
    match unsafe { call(of, out.as_mut_ptr()) } {
        // SAFETY: zeroed, then written.
        nvmlReturn_t::SUCCESS => Ok(unsafe { out.assume_init() }),
        error => Err(error),
    }
}

pub(crate) type TextCall = unsafe extern "C" fn(nvmlDevice_t, *mut c_char, u32) -> nvmlReturn_t;

pub(crate) fn text(call: TextCall, of: nvmlDevice_t, room: u32) -> Result<String, nvmlReturn_t> {
    let mut buffer = [0x55 as c_char; 128];
    // SAFETY: `room` is within the buffer.
    let result = unsafe { call(of, buffer.as_mut_ptr(), room) };
    assert!(
        buffer[room as usize..].iter().all(|c| *c == 0x55),
        "written past {room}"
    );
    match result {
        // SAFETY: the library ends it with a NUL.
        nvmlReturn_t::SUCCESS => Ok(unsafe { CStr::from_ptr(buffer.as_ptr()) }
            .to_str()
            .unwrap()
            .into()),
        error => Err(error),
    }
}

/// Moves the clock on until a failed server is asked again.
pub(crate) fn let_it_rest() {
    advance(Duration::from_millis(1_050));
}

/// Moves the clock on until a snapshot is too old.
pub(crate) fn pause_until_stale() {
    advance(Duration::from_millis(120));
}
