//! Generates `trait Device`, one method per message, the dispatch of messages to it, and the nvidia
//! device's table of driver functions and derived operations.

use std::fs;

use outboard_generate::{Failure, device, nvidia, write};

/// The nvidia device's source, which tells the operations written by hand from the others.
const NVIDIA: &str = "src/nvidia";

fn main() -> Result<(), Failure> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={NVIDIA}");
    let mut sources = String::new();
    for file in fs::read_dir(NVIDIA)? {
        let path = file?.path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            sources.push_str(&fs::read_to_string(path)?);
        }
    }
    write("device.rs", device::device()?)?;
    write("nvidia_table.rs", nvidia::table()?)?;
    write("nvidia_device.rs", nvidia::device(&sources)?)
}
