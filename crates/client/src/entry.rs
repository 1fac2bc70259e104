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

use outboard_api::{CUresult, argument::Argument, cuda::*};
use outboard_trace::live::Subject;
use outboard_wire::messages;

use crate::{
    calls,
    exports::{self, Export},
    observe::{guard, servers::Named},
    state::driver,
};

include!(concat!(env!("OUT_DIR"), "/entry.rs"));

extern "C" fn at_load() {
    exports::set(EXPORTS);
}

// SAFETY: the loader calls it once; it only sets a static.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;
