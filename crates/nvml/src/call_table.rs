//! The name of every call, by the number that calls have in this library.

include!(concat!(env!("OUT_DIR"), "/call_table.rs"));
