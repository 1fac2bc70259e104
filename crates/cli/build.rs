//! Compresses the kernel of `outboard bench net`: as text it would be a fiftieth of the command.

use std::{env, fs, io, path::PathBuf};

fn main() -> io::Result<()> {
    let kernel = "src/bench/net.ptx";
    println!("cargo::rerun-if-changed={kernel}");
    let out = env::var_os("OUT_DIR")
        .map(PathBuf::from)
        .unwrap_or_default();
    let packed = lz4_flex::compress_prepend_size(&fs::read(kernel)?);
    fs::write(out.join("net.ptx.lz4"), packed)
}
