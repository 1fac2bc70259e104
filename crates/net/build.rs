//! Turns the feature `loom` into `cfg(loom)`. The compiler's flag `--cfg loom` would do the same,
//! but builds every other crate again.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(loom)");
    if std::env::var_os("CARGO_FEATURE_LOOM").is_some() {
        println!("cargo::rustc-cfg=loom");
    }
}
