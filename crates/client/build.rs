//! Generates the exported entry points and the stubs of derived calls.

use outboard_generate::{Failure, client, write};

fn main() -> Result<(), Failure> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // Programs close the library and open it again; its threads, handlers and sessions stay.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    write("entry.rs", client::entry()?)?;
    write("call_table.rs", client::call_table()?)
}
