//! Threads that run no function of the program.

use std::{
    io::Result as IoResult,
    mem::zeroed,
    ptr::null_mut,
    thread::{Builder, JoinHandle},
};

use outboard_api::signals::FAULTS;

/// Starts a thread of the library. It blocks all signals but those of its own faults: they are for
/// the program. One that the program waits for in a thread of its own does not come here, and no
/// handler interrupts a read.
pub fn spawn<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> IoResult<JoinHandle<T>> {
    let thread = Builder::new().name(name.into());
    // SAFETY: signal sets that the calls fill themselves; the thread's own mask is put back.
    unsafe {
        let (mut blocked, mut old) = (zeroed(), zeroed());
        libc::sigfillset(&raw mut blocked);
        for fault in FAULTS {
            libc::sigdelset(&raw mut blocked, fault);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const blocked, &raw mut old);
        let spawned = thread.spawn(body);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const old, null_mut());
        spawned
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::atomic::{AtomicU32, Ordering};

    use libc::SIGTRAP;

    use super::*;

    static HANDLED: AtomicU32 = AtomicU32::new(0);

    extern "C" fn handle(_: i32) {
        HANDLED.fetch_add(1, Ordering::Relaxed);
    }

    fn is_blocked(signal: i32) -> bool {
        // SAFETY: a signal set that the call fills.
        unsafe {
            let mut mask = zeroed();
            libc::pthread_sigmask(libc::SIG_BLOCK, null_mut(), &raw mut mask);
            libc::sigismember(&raw const mask, signal) == 1
        }
    }

    /// A blocked fault would end the process, whatever handler there is.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_fault_of_a_library_thread_comes_to_the_programs_handler() {
        // SAFETY: a handler that adds to an atomic alone.
        unsafe { libc::signal(SIGTRAP, handle as *const () as usize) };
        let thread = spawn("outboard-net-t", || {
            // SAFETY: the handler returns to the next instruction, and nothing is changed.
            unsafe { std::arch::asm!("int3") };
            FAULTS.map(is_blocked)
        });
        assert_eq!(thread.unwrap().join().unwrap(), [false; FAULTS.len()]);
        assert_eq!(HANDLED.load(Ordering::Relaxed), 1);
        // SAFETY: the default is put back.
        unsafe { libc::signal(SIGTRAP, libc::SIG_DFL) };
    }

    #[test]
    fn a_library_thread_blocks_what_is_the_programs() {
        let signals = [libc::SIGINT, libc::SIGTERM, libc::SIGUSR1, libc::SIGCHLD];
        let thread = spawn("outboard-net-t", move || signals.map(is_blocked));
        assert_eq!(thread.unwrap().join().unwrap(), [true; 4]);
        assert_eq!(signals.map(is_blocked), [false; 4]);
    }
}
