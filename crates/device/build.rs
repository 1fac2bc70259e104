//! Generates `trait Device`, one method per message, and the dispatch of messages to it.

use outboard_generate::{Failure, device, write};

fn main() -> Result<(), Failure> {
    println!("cargo:rerun-if-changed=build.rs");
    write("device.rs", device::device()?)
}
