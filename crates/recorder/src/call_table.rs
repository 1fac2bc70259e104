//! Name, cost and role of every call, by the number that calls have in this library.

use outboard_api::decl::Class;

/// Meaning of a call for the times of the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// None.
    Other,
    Init,
    StartsWork,
    Waits,
    EndsModule,
    EndsContext,
}

/// The messages that remoting a call takes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cost {
    pub(crate) class: Class,
    pub(crate) request_bytes: u64,
    pub(crate) response_bytes: u64,
}

impl Cost {
    pub(crate) const NONE: Cost = Cost::new(Class::Local, 0, 0);

    pub(crate) const fn new(class: Class, request_bytes: u64, response_bytes: u64) -> Cost {
        Cost {
            class,
            request_bytes,
            response_bytes,
        }
    }
}

include!(concat!(env!("OUT_DIR"), "/call_table.rs"));
