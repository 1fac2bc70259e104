//! Name and class of every call, by the number that calls have in this library.

use outboard_api::decl::Class;

include!(concat!(env!("OUT_DIR"), "/call_table.rs"));
