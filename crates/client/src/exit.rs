//! Handlers for a fork and for the end of the process.

use std::sync::{
    Once,
    atomic::{AtomicU32, Ordering},
};

use crate::{callbacks, guard, log, state, stats};

/// The process that the session belongs to.
static OWNER_PID: AtomicU32 = AtomicU32::new(0);

/// Installs the handlers. Called once there is a session.
pub(crate) fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        OWNER_PID.store(std::process::id(), Ordering::Relaxed);
        // SAFETY: the handlers take no locks and touch only atomics and file descriptors.
        unsafe {
            libc::pthread_atfork(None, None, Some(in_child));
            libc::atexit(at_exit);
        }
    });
}

/// Closes the parent's sockets in a forked child, which has no session. So the server can notice
/// the parent's end, and the child does not write to the shared rings.
extern "C" fn in_child() {
    guard::mark_forked();
    state::abandon_after_fork();
}

/// Ends the program's callbacks, sends messages that were kept back and writes statistics, in the
/// process that the session belongs to. A forked child does nothing: it has its parent's frames and
/// counts, and locks in any state.
extern "C" fn at_exit() {
    if OWNER_PID.load(Ordering::Relaxed) != std::process::id() {
        return;
    }
    callbacks::skip_all();
    state::send_all_at_exit();
    let Some(target) = std::env::var_os("OUTBOARD_STATS") else {
        return;
    };
    let written = if target == "-" {
        log::warn(stats::to_line());
        Ok(())
    } else {
        std::fs::write(&target, stats::to_json())
    };
    if let Err(error) = written {
        log::warn(format_args!("OUTBOARD_STATS={}: {error}", target.display()));
    }
}
