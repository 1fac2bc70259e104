//! Generates the table of the effects of the driver's calls.

use outboard_generate::{Failure, model, write};

fn main() -> Result<(), Failure> {
    println!("cargo:rerun-if-changed=build.rs");
    write("effects.rs", model::effects()?)
}
