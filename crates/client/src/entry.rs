//! Every symbol that libcuda.so.1 exports, generated from the declarations.

#![allow(
    non_snake_case,
    non_camel_case_types,
    unused_imports,
    unused_unsafe,
    unreachable_pub,
    clippy::too_many_arguments,
    clippy::missing_safety_doc,
    clippy::redundant_closure,
    clippy::unnecessary_cast,
    clippy::useless_conversion
)]

use std::ffi::{c_char, c_void};

use outboard_api::{CUresult, cuda::*, decl::Class};
use outboard_trace::live::Subject;
use outboard_wire::messages;

use crate::{calls, guard, state::driver};

/// The address of an exported function.
#[derive(Clone, Copy)]
pub(crate) struct Export(pub(crate) *const c_void);

// SAFETY: the address of a function, never written through.
unsafe impl Sync for Export {}

include!(concat!(env!("OUT_DIR"), "/entry.rs"));
