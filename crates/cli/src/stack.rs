//! The stack of this process's main thread, if the shell limits it (`ulimit -s`).

use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Least stack that the command needs, and the stack that it takes where it may, in bytes.
const BYTES_MIN: u64 = 1 << 20;
const BYTES_WANTED: u64 = 8 << 20;

static BEFORE: OnceLock<Rlimit> = OnceLock::new();

/// Raises a limit that is too low. The error says why it cannot be raised.
pub(crate) fn raise() -> Result<(), String> {
    let before = getrlimit(Resource::Stack);
    if before.current.is_none_or(|bytes| bytes >= BYTES_MIN) {
        return Ok(());
    }
    let bytes = before
        .maximum
        .map_or(BYTES_WANTED, |most| most.min(BYTES_WANTED));
    let raised = Rlimit {
        current: Some(bytes),
        ..before
    };
    if bytes < BYTES_MIN || setrlimit(Resource::Stack, raised).is_err() {
        return Err(format!(
            "the stack is limited to {} KiB (ulimit -s), and {} KiB are needed",
            before.current.unwrap_or(bytes) >> 10,
            BYTES_MIN >> 10
        ));
    }
    let _ = BEFORE.set(before);
    Ok(())
}

/// Restores the limit for a program that this process becomes.
pub(crate) fn restore() {
    if let Some(before) = BEFORE.get() {
        // Lowering a limit is always allowed.
        let _ = setrlimit(Resource::Stack, *before);
    }
}
