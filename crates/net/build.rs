//! Turns the feature `loom` into `cfg(loom)`. The compiler's flag `--cfg loom` would do the same,
//! but builds every other crate again. The library has a name of its own, which programs note
//! wherever they were linked from.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,liboutboard_net.so");
    println!("cargo::rustc-check-cfg=cfg(loom)");
    if std::env::var_os("CARGO_FEATURE_LOOM").is_some() {
        println!("cargo::rustc-cfg=loom");
    }
}
