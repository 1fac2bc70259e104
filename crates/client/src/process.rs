//! The process: it opens the session, and handles forks and its own end.

use std::{
    fs::OpenOptions,
    io::{self, Write as _},
    path::Path,
    sync::{
        Once,
        atomic::{AtomicU32, Ordering},
    },
};

use crate::{
    callbacks,
    done::Done,
    log,
    observe::{conditions, crossings, stats, times},
    state,
};

/// The process that the session belongs to.
static OWNER_PID: AtomicU32 = AtomicU32::new(0);

/// Opens the session, if it is not open.
pub(crate) fn start() -> Done {
    state::connect()?;
    install_handlers();
    Ok(())
}

fn install_handlers() {
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
    conditions::mark_forked();
    state::abandon_after_fork();
}

/// Ends the program's callbacks, sends messages that were kept back, handles those that have
/// arrived and writes statistics, in the process that the session belongs to. A forked child does
/// nothing: it has its parent's frames and counts, and locks in any state.
extern "C" fn at_exit() {
    if OWNER_PID.load(Ordering::Relaxed) != std::process::id() {
        return;
    }
    callbacks::skip_all();
    state::finish_at_exit();
    let Some(target) = std::env::var_os("OUTBOARD_STATS") else {
        return;
    };
    let written = if target == "-" {
        log::warn(stats::to_line() + &crossings::to_line());
        Ok(())
    } else {
        let times =
            times::to_json().map_or(String::new(), |times| format!(",\n  \"times\": {times}"));
        let figures = state::figures() + &times;
        write(target.as_ref(), &stats::to_json(&figures))
    };
    if let Err(error) = written {
        log::warn(format_args!("OUTBOARD_STATS={}: {error}", target.display()));
    }
}

/// Replaces the contents of a file, which is made if there is none. A pipe could keep the program
/// from ending.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let mut file = outboard_files::open_with(OpenOptions::new().write(true).create(true), path)?;
    file.set_len(0)?;
    file.write_all(text.as_bytes())
}
