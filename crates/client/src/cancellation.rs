//! Cancellation (`pthread_cancel`) of the program's threads: none is cancelled within a call, where
//! it would keep a lock of the library, and glibc would end the program. The linker turns the
//! library's calls of libc that are cancellation points, the standard library's too, into those
//! below; `build.rs` reads their names here. System calls of rustix are no such points.

use std::{
    arch::global_asm,
    ffi::{c_char, c_int, c_void},
};

use libc::{clockid_t, iovec, msghdr, nfds_t, pollfd, sockaddr, socklen_t, timespec};

const PTHREAD_CANCEL_DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

fn uncancelled<R>(call: impl FnOnce() -> R) -> R {
    let mut before = 0;
    // SAFETY: a local output. Both calls leave errno as it is.
    unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut before) };
    let result = call();
    // SAFETY: the state of before, and a local output.
    unsafe { pthread_setcancelstate(before, &raw mut before) };
    result
}

#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    () => {
        "jmp"
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    () => {
        "b"
    };
}

/// Declares functions that are called in place of libc's of the same name. The symbol that the
/// linker looks for is hidden: no program finds it.
macro_rules! in_place_of {
    ($($name:ident, $wrap:literal, $real:literal: ($($arg:ident: $type:ty),*) -> $result:ty;)*) => {$(
        unsafe extern "C" fn $name($($arg: $type),*) -> $result {
            unsafe extern "C" {
                #[link_name = $real]
                fn real($($arg: $type),*) -> $result;
            }
            // SAFETY: libc's function with the arguments that its caller gave.
            uncancelled(|| unsafe { real($($arg),*) })
        }

        global_asm!(
            concat!(".globl ", $wrap),
            concat!(".hidden ", $wrap),
            concat!($wrap, ": ", jump!(), " {name}"),
            name = sym $name,
        );
    )*};
}

in_place_of! {
    clock_nanosleep, "__wrap_clock_nanosleep", "__real_clock_nanosleep":
        (clock: clockid_t, flags: c_int, time: *const timespec, rest: *mut timespec) -> c_int;
    close, "__wrap_close", "__real_close": (fd: c_int) -> c_int;
    connect, "__wrap_connect", "__real_connect":
        (fd: c_int, address: *const sockaddr, bytes: socklen_t) -> c_int;
    getrandom, "__wrap_getrandom", "__real_getrandom":
        (to: *mut c_void, bytes: usize, flags: u32) -> isize;
    nanosleep, "__wrap_nanosleep", "__real_nanosleep":
        (time: *const timespec, rest: *mut timespec) -> c_int;
    open, "__wrap_open", "__real_open": (path: *const c_char, flags: c_int, mode: c_int) -> c_int;
    open64, "__wrap_open64", "__real_open64":
        (path: *const c_char, flags: c_int, mode: c_int) -> c_int;
    poll, "__wrap_poll", "__real_poll": (fds: *mut pollfd, count: nfds_t, ms: c_int) -> c_int;
    read, "__wrap_read", "__real_read": (fd: c_int, to: *mut c_void, bytes: usize) -> isize;
    readv, "__wrap_readv", "__real_readv":
        (fd: c_int, to: *const iovec, count: c_int) -> isize;
    recv, "__wrap_recv", "__real_recv":
        (fd: c_int, to: *mut c_void, bytes: usize, flags: c_int) -> isize;
    recvmsg, "__wrap_recvmsg", "__real_recvmsg":
        (fd: c_int, message: *mut msghdr, flags: c_int) -> isize;
    send, "__wrap_send", "__real_send":
        (fd: c_int, from: *const c_void, bytes: usize, flags: c_int) -> isize;
    sendmsg, "__wrap_sendmsg", "__real_sendmsg":
        (fd: c_int, message: *const msghdr, flags: c_int) -> isize;
    write, "__wrap_write", "__real_write":
        (fd: c_int, from: *const c_void, bytes: usize) -> isize;
    writev, "__wrap_writev", "__real_writev":
        (fd: c_int, from: *const iovec, count: c_int) -> isize;
}
