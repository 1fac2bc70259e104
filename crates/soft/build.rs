//! Generates the software device's operations.

use outboard_generate::{Failure, device, soft, write};

fn main() -> Result<(), Failure> {
    println!("cargo:rerun-if-changed=build.rs");
    write("soft_device.rs", soft::device(&device::sources("src")?)?)
}
