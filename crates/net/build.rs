//! Turns the feature `loom` into `cfg(loom)`. The compiler's flag `--cfg loom` would do the same,
//! but builds every other crate again. The library has a name of its own, which programs note
//! wherever they were linked from. The kernel that is an adapter is packed: as text it would be a
//! hundredth of the command.

use std::{env, fs, io, path::PathBuf};

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,liboutboard_net.so");
    println!("cargo::rustc-check-cfg=cfg(loom)");
    if env::var_os("CARGO_FEATURE_LOOM").is_some() {
        println!("cargo::rustc-cfg=loom");
    }
    let kernel = "device/adapter.ptx";
    println!("cargo::rerun-if-changed={kernel}");
    let out = env::var_os("OUT_DIR").map(PathBuf::from);
    let packed = lz4_flex::compress_prepend_size(&fs::read(kernel)?);
    fs::write(out.unwrap_or_default().join("adapter.ptx.lz4"), packed)
}
