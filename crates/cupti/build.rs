//! Generates the unserved functions, CUPTI's names and numbers of traced calls, and the driver
//! calls whose parameters are read.

use outboard_generate::{Failure, cupti, write};

fn main() -> Result<(), Failure> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcupti.so.13");
    // Programs request each function with a symbol version, which is the library's name.
    println!("cargo:rustc-cdylib-link-arg=-fuse-ld=bfd");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--default-symver");
    // Programs close the library and open it again. libcuda holds pointers into it that must stay
    // valid.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    write("entry.rs", cupti::entry()?)?;
    write("known.rs", cupti::known()?)
}
