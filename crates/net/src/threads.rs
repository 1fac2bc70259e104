//! Threads that run no function of the program.

use std::{
    io::Result as IoResult,
    mem::zeroed,
    ptr::null_mut,
    thread::{Builder, JoinHandle},
};

/// Starts a thread of the library. It blocks all signals, which are for the program: one that the
/// program waits for in a thread of its own does not come here, and no handler interrupts a read.
pub fn spawn<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> IoResult<JoinHandle<T>> {
    let thread = Builder::new().name(name.into());
    // SAFETY: signal sets that the calls fill themselves; the thread's own mask is put back.
    unsafe {
        let (mut all, mut old) = (zeroed(), zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut old);
        let spawned = thread.spawn(body);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const old, null_mut());
        spawned
    }
}
