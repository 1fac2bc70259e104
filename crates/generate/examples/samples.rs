//! Writes `samples/`.

use std::{fs, path::Path};

fn main() -> Result<(), outboard_generate::Failure> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("samples");
    for (name, text) in outboard_generate::samples::all()? {
        fs::write(folder.join(name), text)?;
    }
    Ok(())
}
