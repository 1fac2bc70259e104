//! Generates Rust from the declarations in `outboard-api`, for the build scripts of the crates that
//! include it. Does no I/O but [`write`].
//!
//! `samples/` holds a small part of each generator's output, to read and to find names in. The test
//! `samples` keeps it up to date.

pub mod client;
pub mod cupti;
pub mod device;
pub mod driver;
mod ffi;
pub mod messages;
pub mod model;
pub mod nvidia;
pub mod nvml;
pub mod recorder;
pub mod samples;
pub mod soft;
mod tokens;

use std::{env, error::Error, fs, path::Path};

use proc_macro2::TokenStream;

/// A declaration that cannot be generated from.
pub type Failure = Box<dyn Error>;

/// Formats code. A doc comment that begins with "SAFETY:" is a plain comment in the result: tokens
/// have no plain comments.
pub fn formatted(code: TokenStream) -> Result<String, Failure> {
    let text = prettyplease::unparse(&syn::parse2(code)?);
    Ok(text.replace("/// SAFETY:", "// SAFETY:"))
}

/// Writes a file of the including crate's `OUT_DIR`.
pub fn write(name: &str, code: TokenStream) -> Result<(), Failure> {
    let path = Path::new(&env::var("OUT_DIR")?).join(name);
    Ok(fs::write(path, formatted(code)?)?)
}
