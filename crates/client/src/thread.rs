//! State of each of the program's threads, in one place. In a library loaded at run time every
//! access to thread-local variables is a call, and the compiler merges several accesses to one
//! variable.

use std::{cell::Cell, ops::Deref};

use outboard_api::optimise::Did;

use crate::context::Context;

pub(crate) struct Local {
    /// The top of the thread's stack of contexts.
    pub(crate) context: Cell<Option<&'static Context>>,
    /// The number of the server that the current call is for, if there are several.
    pub(crate) server: Cell<Option<u8>>,
    /// Whether the current call has sent something or waited.
    pub(crate) did: Cell<Did>,
    /// Tells if the current call has begun with a look at the mirrors, for held launches.
    pub(crate) has_looked: Cell<bool>,
    /// Bytes that the current call has sent and will receive, if calls are recorded.
    pub(crate) request_bytes: Cell<u64>,
    pub(crate) response_bytes: Cell<u64>,
    /// The number of the current call, if the program is being profiled.
    pub(crate) call: Cell<u32>,
}

impl Local {
    /// Notes that the current call has sent something.
    #[inline(always)]
    pub(crate) fn has_sent(&self) {
        if self.did.get() == Did::Nothing {
            self.did.set(Did::Sent);
        }
    }
}

thread_local! {
    // It has no destructor, so that it exists until the thread ends.
    static LOCAL: Local = const {
        Local {
            context: Cell::new(None),
            server: Cell::new(None),
            did: Cell::new(Did::Nothing),
            has_looked: Cell::new(false),
            request_bytes: Cell::new(0),
            response_bytes: Cell::new(0),
            call: Cell::new(0),
        }
    };
}

/// The calling thread's state, looked up once for several accesses. It cannot leave the thread.
#[derive(Clone, Copy)]
pub(crate) struct Here(*const Local);

#[inline(always)]
pub(crate) fn here() -> Here {
    Here(LOCAL.with(std::ptr::from_ref))
}

impl Deref for Here {
    type Target = Local;

    #[inline(always)]
    fn deref(&self) -> &Local {
        // SAFETY: the pointer stays in the thread that it belongs to, being neither Send nor kept
        // in a static. Its target lives until the thread ends, since it has no destructor.
        unsafe { &*self.0 }
    }
}
