//! Generates the unserved functions, and CUPTI's names and numbers of traced calls, from
//! `outboard-api`.

use std::{env, error::Error, fmt::Write, fs, path::Path};

use outboard_api::cupti::{self, Traced};

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcupti.so.13");
    // Programs request each function with a symbol version, which is the library's name.
    println!("cargo:rustc-cdylib-link-arg=-fuse-ld=bfd");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--default-symver");
    // Programs close the library and open it again. libcuda holds pointers into it that must stay
    // valid.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
    let calls = cupti::calls()?;
    let mut out = String::new();
    for (number, call) in calls.iter().enumerate() {
        let name = &call.name;
        match call.is_served {
            // A function that is declared as served but not written is a compile error here.
            true => writeln!(
                out,
                "const _: *const () = crate::calls::{name} as *const ();"
            )?,
            // The arguments are not read, so they need no types. NVTX takes 0 for a refusal.
            false if name.starts_with("InitializeInjection") => writeln!(
                out,
                "#[unsafe(no_mangle)]\npub extern \"C\" fn {name}() -> i32 {{ let _ = crate::log::unsupported({number}); 0 }}"
            )?,
            false => writeln!(
                out,
                "#[unsafe(no_mangle)]\npub extern \"C\" fn {name}() -> Status {{ crate::log::unsupported({number}) }}"
            )?,
        }
    }
    writeln!(
        out,
        "/// Every exported function.\npub static CALLS: [&str; {}] = [",
        calls.len()
    )?;
    for call in &calls {
        writeln!(out, "    \"{}\",", call.name)?;
    }
    writeln!(out, "];")?;
    table(&mut out, "DRIVER", &cupti::traced("driver")?)?;
    table(&mut out, "RUNTIME", &cupti::traced("runtime")?)?;
    fs::write(Path::new(&env::var("OUT_DIR")?).join("entry.rs"), out)?;
    Ok(())
}

fn table(out: &mut String, name: &str, traced: &[Traced]) -> Result<(), Box<dyn Error>> {
    writeln!(
        out,
        "/// CUPTI's numbers and names, by number.\npub static {name}: &[(u32, &CStr)] = &["
    )?;
    for Traced { number, name } in traced {
        writeln!(out, "    ({number}, c\"{name}\"),")?;
    }
    writeln!(out, "];")?;
    Ok(())
}
