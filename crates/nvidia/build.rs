//! Generates the device's table of driver functions and its derived operations.

use std::fs;

use outboard_generate::{Failure, nvidia, write};

/// The device's source, which tells the operations written by hand from the others.
const SOURCE: &str = "src";

fn main() -> Result<(), Failure> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={SOURCE}");
    let mut sources = String::new();
    for file in fs::read_dir(SOURCE)? {
        let path = file?.path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            sources.push_str(&fs::read_to_string(path)?);
        }
    }
    write("nvidia_table.rs", nvidia::table()?)?;
    write("nvidia_device.rs", nvidia::device(&sources)?)
}
