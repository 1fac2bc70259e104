//! Compresses the description of the API: as text it would be a hundredth of the command.

use std::{env, fs, io, path::PathBuf};

fn main() -> io::Result<()> {
    let document = "src/openapi.json";
    println!("cargo::rerun-if-changed={document}");
    let out = env::var_os("OUT_DIR")
        .map(PathBuf::from)
        .unwrap_or_default();
    let packed = lz4_flex::compress_prepend_size(&fs::read(document)?);
    fs::write(out.join("openapi.json.lz4"), packed)
}
