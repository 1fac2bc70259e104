//! Generates the messages of a session from the declarations in `outboard-api`.

use std::{fs, path::Path};

use outboard_api::documents;
use outboard_generate::{Failure, messages, write};

fn main() -> Result<(), Failure> {
    println!("cargo:rerun-if-changed=build.rs");
    write("messages.rs", messages::all(&declared_documents()?)?)
}

/// Returns the declarations in this crate's sources of the documents of handshake and messages.
fn declared_documents() -> Result<String, Failure> {
    let mut out = String::new();
    let mut folders = vec![Path::new("src").to_path_buf()];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        println!("cargo:rerun-if-changed={}", folder.display());
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            match path.is_dir() {
                true => folders.push(path),
                false => files.push(path),
            }
        }
    }
    files.sort();
    for file in files {
        let is_document = file.starts_with("src/doc") || file == Path::new("src/doc.rs");
        out.push_str(&documents::declarations(
            &fs::read_to_string(file)?,
            is_document,
        ));
    }
    Ok(out)
}
