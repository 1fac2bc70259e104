//! Generates, for every declared function, its export, its entry in the table of the driver's
//! functions, and its cost when remoted.

use outboard_generate::{Failure, recorder, write};

fn main() -> Result<(), Failure> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // Programs close the library and open it again; its threads, handlers and sessions stay.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    write("call_table.rs", recorder::call_table()?)?;
    write("entry.rs", recorder::entry()?)
}
