//! A queue's errors and its reset, seen by the CPU threads of `net.cuh`'s program beside it.

#![allow(clippy::unwrap_used)]

use std::{path::Path, process::Command};

#[test]
fn errors_reach_waiting_threads_and_a_reset_begins_again() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("reset");
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    // The test's own executable and the library of this build lie in one folder.
    let library = std::env::current_exe()
        .unwrap()
        .parent()
        .unwrap()
        .to_owned();
    let compiled = Command::new("g++")
        .args([
            "-std=c++17",
            "-O1",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-pthread",
        ])
        .arg(format!(
            "-I{}",
            crate_folder.join("../../include").display()
        ))
        .arg("-o")
        .args([&program, &crate_folder.join("tests/reset.cpp")])
        .arg(library.join("liboutboard_net.so"))
        .arg(format!("-Wl,-rpath,{}", library.display()))
        .status()
        .unwrap();
    assert!(compiled.success());
    let done = Command::new(&program).output().unwrap();
    assert!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stdout)
    );
}
