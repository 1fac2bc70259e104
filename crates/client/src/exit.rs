//! What happens when the process forks or ends.

use std::sync::{
    Once,
    atomic::{AtomicU32, Ordering},
};

use crate::{guard, log, state, stats};

/// The process that the session belongs to.
static OWNER_PID: AtomicU32 = AtomicU32::new(0);

/// Called once, when the session is there.
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

/// A forked child has no session. It lets go of the parent's sockets, so that the server notices the parent's end by
/// itself, and must not write to the shared rings.
extern "C" fn in_child() {
    guard::mark_forked();
    state::abandon_after_fork();
}

/// Sends what is kept back and writes what was counted, in the process that the session belongs to. A forked child has
/// its parent's frames, locks in whatever state the parent's threads had them, and its parent's counts: it does nothing.
extern "C" fn at_exit() {
    if OWNER_PID.load(Ordering::Relaxed) != std::process::id() {
        return;
    }
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
