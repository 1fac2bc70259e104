//! What happens when the process forks or ends.

use std::sync::Once;

use crate::{guard, log, state, stats};

/// Called once, when the session is there.
pub(crate) fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
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

extern "C" fn at_exit() {
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
