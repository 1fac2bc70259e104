//! Generates the exported entry points and the stubs of derived calls.

use outboard_generate::{Failure, client, write};

/// Functions of libc that the library has its own forms of (`cancellation.rs`).
const CANCELLATION_POINTS: [&str; 16] = [
    "clock_nanosleep",
    "close",
    "connect",
    "getrandom",
    "nanosleep",
    "open",
    "open64",
    "poll",
    "read",
    "readv",
    "recv",
    "recvmsg",
    "send",
    "sendmsg",
    "write",
    "writev",
];

fn main() -> Result<(), Failure> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // Programs close the library and open it again; its threads, handlers and sessions stay.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    for name in CANCELLATION_POINTS {
        println!("cargo:rustc-cdylib-link-arg=-Wl,--wrap={name}");
    }
    write("entry.rs", client::entry()?)?;
    write("call_table.rs", client::call_table()?)
}
