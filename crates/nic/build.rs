//! Makes the two libraries that programs load: a jump for each function, under its symbol version.
//! They jump to this crate's own library, `liboutboard_nic.so`.

#[path = "src/functions.rs"]
#[allow(dead_code, unreachable_pub)]
mod functions;

use std::{
    env,
    error::Error,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use functions::{Answer, LIBRARIES, Library};

const TARGET: &str = "liboutboard_nic.so";
/// Sources of the library that is preloaded.
const PRELOADED: [&str; 2] = ["src/files.c", "src/io_memory.c"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/functions.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,{TARGET}");
    // NCCL closes plugins, whose threads live on.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    if env::var("CARGO_CFG_TARGET_ARCH")? != "x86_64" {
        return Err("the libraries for programs without an adapter are made for x86-64".into());
    }
    preload(&out)?;
    // An empty library of that name, so that the linker notes what is to be loaded.
    let empty = out.join("empty.s");
    fs::write(&empty, "")?;
    link(&empty, &out.join(TARGET), TARGET, &[])?;
    for library in LIBRARIES {
        let (source, script) = (out.join("jumps.s"), out.join("versions"));
        fs::write(&source, jumps(&library))?;
        fs::write(&script, versions(&library))?;
        let script = format!("-Wl,--version-script={}", script.display());
        let target = out.join(TARGET).display().to_string();
        let needs = ["-Wl,-z,now", "-Wl,--no-as-needed", &script, &target];
        link(&source, &out.join(library.name), library.name, &needs)?;
    }
    Ok(())
}

/// Makes the library that is preloaded, for the adapter's files and its doorbells.
fn preload(out: &Path) -> Result<(), Box<dyn Error>> {
    for source in PRELOADED {
        println!("cargo::rerun-if-changed={source}");
    }
    let compiler = compiler();
    let done = Command::new(&compiler)
        .args(["-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o"])
        .arg(out.join("liboutboard_nic_files.so"))
        .args(PRELOADED)
        .status()
        .map_err(|error| format!("{compiler}: {error}"))?;
    match done.success() {
        true => Ok(()),
        false => Err(format!("{compiler} has not compiled {}", PRELOADED.join(", ")).into()),
    }
}

fn compiler() -> String {
    env::var("CC").unwrap_or_else(|_| "cc".into())
}

/// A jump for each function. Those that are not served name themselves on their way.
fn jumps(library: &Library) -> String {
    let mut source = String::from(".section .note.GNU-stack,\"\",@progbits\n.text\n");
    for function in library.functions {
        let name = function.name;
        let _ = writeln!(
            source,
            ".globl {name}\n.type {name},@function\n.balign 16\n{name}:"
        );
        let to = match function.answer {
            Answer::Served => format!("outboard_nic_{name}"),
            Answer::NoPointer => "outboard_nic_no_pointer".into(),
            Answer::NoStatus => "outboard_nic_no_status".into(),
            Answer::NoCount => "outboard_nic_no_count".into(),
        };
        if function.answer != Answer::Served {
            let _ = writeln!(source, "    leaq .L{name}(%rip), %rdi");
        }
        let _ = writeln!(source, "    jmp {to}@PLT\n.size {name}, . - {name}");
    }
    source.push_str(".section .rodata\n");
    for function in library.functions {
        let name = function.name;
        let _ = writeln!(source, ".L{name}: .asciz \"{name}\"");
    }
    source
}

/// Symbol versions in the order of their first function, each after the one before.
fn versions(library: &Library) -> String {
    let mut script = String::new();
    let mut earlier = String::new();
    for group in library.functions.chunk_by(|a, b| a.version == b.version) {
        let [first, ..] = group else { continue };
        let names: String = group.iter().map(|one| format!(" {};", one.name)).collect();
        let hidden = if earlier.is_empty() { " local: *;" } else { "" };
        let _ = writeln!(
            script,
            "{} {{ global:{names}{hidden} }}{earlier};",
            first.version
        );
        earlier = format!(" {}", first.version);
    }
    script
}

fn link(source: &Path, target: &Path, name: &str, more: &[&str]) -> Result<(), Box<dyn Error>> {
    let linker = compiler();
    let done = Command::new(&linker)
        .args(["-shared", "-nostdlib", "-o"])
        .args([target, source])
        .arg(format!("-Wl,-soname,{name}"))
        .args(more)
        .status()
        .map_err(|error| format!("{linker}: {error}"))?;
    match done.success() {
        true => Ok(()),
        false => Err(format!("{linker} has not made {name}").into()),
    }
}
