//! Generates the device's table of driver functions and its derived operations.

use outboard_generate::{Failure, device, nvidia, write};

fn main() -> Result<(), Failure> {
    println!("cargo:rerun-if-changed=build.rs");
    write("nvidia_table.rs", nvidia::table()?)?;
    write(
        "nvidia_device.rs",
        nvidia::device(&device::sources("src")?)?,
    )
}
