//! Generates the exported functions from their declarations.

use outboard_generate::{Failure, nvml, write};

fn main() -> Result<(), Failure> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnvidia-ml.so.1");
    // Programs close the library and open it again; its threads, handlers and sessions stay.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    write("entry.rs", nvml::entry()?)?;
    write("call_table.rs", nvml::call_table()?)?;
    write("slots.rs", nvml::private_slots())
}
