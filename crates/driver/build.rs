//! Generates the types of the driver's functions from their declarations.

use std::{env, error::Error, fmt::Write, fs, path::Path};

use outboard_api::{
    decl::{self, Call, Class},
    ffi::rust_type,
};

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    let calls = decl::driver()?;
    let mut out = String::new();
    for call in &calls {
        let target = match &call.same_as {
            Some(other) => calls
                .iter()
                .find(|c| &c.symbol == other)
                .ok_or("alias of nothing")?,
            None => call,
        };
        // Not all types of unsupported calls are known.
        if target.class != Class::Unsupported {
            for export in call.exports() {
                write_type(&mut out, &export, target)?;
            }
        }
    }
    fs::write(Path::new(&env::var("OUT_DIR")?).join("types.rs"), out)?;
    Ok(())
}

fn write_type(out: &mut String, export: &str, call: &Call) -> Result<(), Box<dyn Error>> {
    let params: Vec<String> = call.params.iter().map(|p| rust_type(&p.ctype)).collect();
    writeln!(
        out,
        "/// `{export}`\npub type {export} = unsafe extern \"C\" fn({}) -> CUresult;",
        params.join(", ")
    )?;
    Ok(())
}
