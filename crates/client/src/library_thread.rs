//! Threads of the library that run no function of the program.

use outboard_api::signals::FAULTS;

use crate::log;

/// Blocks the signals that are for the program's threads, and returns those that were blocked
/// before.
pub(crate) fn block_signals() -> libc::sigset_t {
    // SAFETY: signal sets filled by the calls themselves.
    unsafe {
        let (mut all, mut old) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        for signal in FAULTS {
            libc::sigdelset(&mut all, signal);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut old);
        old
    }
}

/// Blocks these signals alone.
pub(crate) fn block_again(signals: &libc::sigset_t) {
    // SAFETY: a signal set that `block_signals` returned.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, signals, std::ptr::null_mut()) };
}

/// Starts a thread of the library. It blocks signals, which are for the program, but for those of
/// its own faults.
pub(crate) fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> bool {
    let old = block_signals();
    let spawned = std::thread::Builder::new().name(name.into()).spawn(body);
    block_again(&old);
    if let Err(error) = &spawned {
        log::warn(format_args!("the thread {name} cannot be started: {error}"));
    }
    spawned.is_ok()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_thread_takes_the_signals_of_its_own_faults_alone() {
        let (tell, told) = mpsc::channel();
        assert!(spawn("test", move || {
            // SAFETY: a signal set that the call fills; no mask is changed.
            let is_blocked = unsafe {
                let mut mask = std::mem::zeroed();
                libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut mask);
                move |signal| libc::sigismember(&mask, signal) == 1
            };
            let faults = FAULTS.map(&is_blocked);
            let others = [libc::SIGINT, libc::SIGTERM, libc::SIGCHLD, libc::SIGPROF];
            let _ = tell.send((faults, others.map(is_blocked)));
        }));
        assert_eq!(told.recv(), Ok(([false; FAULTS.len()], [true; 4])));
    }
}
