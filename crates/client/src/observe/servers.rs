//! The server that a call is for, in a process that uses several.
//!
//! Each call tells which of its arguments name something of a server. The state, which knows what
//! they name, chooses one of the servers by them; the call then finds that server's driver.

use std::sync::OnceLock;

use outboard_api::cuda::{CUdevice, CUdeviceptr, CUstream};

use crate::{context::Context, thread};

/// An argument that may name something of a server.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Named {
    /// A stream chooses before all other arguments; a default stream chooses the current context.
    Stream(CUstream),
    /// An object of any other kind.
    Handle(u64),
    /// Memory of a device, or pinned memory.
    Address(CUdeviceptr),
    Device(CUdevice),
}

impl Named {
    /// Returns the stream of a call; a launch whose configuration is NULL has none.
    pub(crate) fn of_stream(stream: Option<CUstream>) -> Named {
        Named::Stream(stream.unwrap_or(CUstream::NULL))
    }
}

/// A server, and a context to work in if the current one belongs to another server.
pub(crate) struct Chosen {
    pub(crate) server: u8,
    /// Takes the place of the current context during the call.
    pub(crate) context: Option<Option<&'static Context>>,
}

type Choose = fn(&[Named]) -> Chosen;

static CHOOSE: OnceLock<Choose> = OnceLock::new();

/// Sets the function that chooses, once there are several servers.
pub(crate) fn choose_by(choose: Choose) {
    let _ = CHOOSE.set(choose);
}

/// The thread's earlier choice, which returns when this is dropped.
pub(crate) struct Selected {
    server: Option<u8>,
    /// The current context, and the one that took its place.
    context: Option<(Option<&'static Context>, Option<&'static Context>)>,
}

/// Makes the server that the arguments name that of the thread's call.
#[cold]
pub(super) fn select(named: &[Named]) -> Option<Selected> {
    CHOOSE.get().map(|choose| enter(choose(named)))
}

/// Makes a server that of the thread's calls, until the result is dropped.
pub(crate) fn enter(chosen: Chosen) -> Selected {
    let thread = thread::here();
    let server = thread.server.replace(Some(chosen.server));
    let context = chosen
        .context
        .map(|instead| (thread.context.replace(instead), instead));
    Selected { server, context }
}

impl Drop for Selected {
    /// Out of line: nothing of it is in the way of calls in a process with one server.
    #[cold]
    #[inline(never)]
    fn drop(&mut self) {
        let thread = thread::here();
        thread.server.set(self.server);
        if let Some((before, instead)) = self.context {
            let address = |context: Option<&'static Context>| context.map(std::ptr::from_ref);
            // A call that changed the thread's stack has made another context current.
            if address(thread.context.get()) == address(instead) {
                thread.context.set(before);
            }
        }
    }
}
