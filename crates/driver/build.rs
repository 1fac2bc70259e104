//! Generates the types of the driver's functions from their declarations.

use outboard_generate::{Failure, driver, write};

fn main() -> Result<(), Failure> {
    println!("cargo:rerun-if-changed=build.rs");
    write("types.rs", driver::types()?)
}
