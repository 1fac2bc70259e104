//! What each thread of the program has to itself, in one place: in a library that is loaded at run time every look at a
//! thread's own variables is a call, and the compiler makes one of several looks at the same one.

use std::{cell::Cell, ops::Deref};

use outboard_api::optimise::Did;

use crate::state::Context;

pub(crate) struct Local {
    /// The top of the thread's stack of contexts.
    pub(crate) context: Cell<Option<&'static Context>>,
    /// What the call at hand has done so far.
    pub(crate) did: Cell<Did>,
    /// What it has sent and will be answered, where calls are recorded.
    pub(crate) request_bytes: Cell<u64>,
    pub(crate) response_bytes: Cell<u64>,
    /// The number of the call at hand, where somebody profiles.
    pub(crate) call: Cell<u32>,
}

impl Local {
    /// The call at hand has sent something.
    #[inline(always)]
    pub(crate) fn has_sent(&self) {
        if self.did.get() == Did::Nothing {
            self.did.set(Did::Sent);
        }
    }
}

thread_local! {
    // Nothing in it has to be dropped, so that it is there until the thread is gone.
    static LOCAL: Local = const {
        Local {
            context: Cell::new(None),
            did: Cell::new(Did::Nothing),
            request_bytes: Cell::new(0),
            response_bytes: Cell::new(0),
            call: Cell::new(0),
        }
    };
}

/// The calling thread's own, looked up once for several looks. It cannot leave the thread.
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
        // SAFETY: the pointer is used in the thread that it belongs to, being neither Send nor kept in a static; there
        // what it points to lives until the thread is gone, since it has no destructor.
        unsafe { &*self.0 }
    }
}
