//! Generates the exported entry points and the stubs of derived calls.

use outboard_generate::{Failure, client, write};

/// The source that declares the library's own forms of functions of libc.
const OWN_FORMS: &str = include_str!("src/cancellation.rs");

/// Returns the names of libc's functions in place of which the linker takes the library's own.
fn replaced() -> impl Iterator<Item = &'static str> {
    OWN_FORMS
        .split("\"__wrap_")
        .skip(1)
        .filter_map(|after| after.split('"').next())
}

fn main() -> Result<(), Failure> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=src/cancellation.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // Programs close the library and open it again; its threads, handlers and sessions stay.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    for name in replaced() {
        println!("cargo:rustc-cdylib-link-arg=-Wl,--wrap={name}");
    }
    write("entry.rs", client::entry()?)?;
    write("call_table.rs", client::call_table()?)
}
