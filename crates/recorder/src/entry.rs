//! Every symbol that libcuda.so.1 exports, generated from the declarations.

#![allow(
    non_snake_case,
    non_camel_case_types,
    unused_imports,
    unused_unsafe,
    clippy::too_many_arguments,
    clippy::missing_safety_doc,
    clippy::missing_transmute_annotations,
    clippy::unnecessary_cast
)]

use std::{
    ffi::{CStr, c_char, c_void},
    sync::atomic::{AtomicPtr, Ordering},
};

use outboard_api::{CUresult, cuda::*, decl::Class};
use outboard_trace::live::Subject;

use crate::{
    call_table::CALLS,
    cost,
    driver::{Export, missing},
    events,
    guard::{self, Passed},
    pcie, procaddr,
};

include!(concat!(env!("OUT_DIR"), "/entry.rs"));
