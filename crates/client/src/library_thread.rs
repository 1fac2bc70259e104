//! Threads of the library that run no function of the program.

use crate::log;

/// Starts a thread of the library. It blocks all signals, which are for the program.
pub(crate) fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> bool {
    // SAFETY: a signal set filled by the calls themselves; the old mask is restored.
    let spawned = unsafe {
        let (mut all, mut old) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut old);
        let spawned = std::thread::Builder::new().name(name.into()).spawn(body);
        libc::pthread_sigmask(libc::SIG_SETMASK, &old, std::ptr::null_mut());
        spawned
    };
    if let Err(error) = &spawned {
        log::warn(format_args!("the thread {name} cannot be started: {error}"));
    }
    spawned.is_ok()
}
