//! Providers of `outboard-net` for adapters, on the stand-ins: the programs of that crate's tests,
//! which know nothing of it.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::{
    fs,
    net::TcpListener,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use outboard_nic::{LIBRARIES, SERVING, devx::COMMANDS_VARIABLE, fabric::VARIABLE};
use tempfile::TempDir;

/// A folder with the libraries of this build, and where those lie that it is made of.
fn folder() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in LIBRARIES {
        fs::write(folder.path().join(name), bytes).unwrap();
    }
    let test = std::env::current_exe().unwrap();
    let built = test.parent().unwrap().to_owned();
    symlink(built.join(SERVING), folder.path().join(SERVING)).unwrap();
    (folder, built)
}

/// Compiles a program of the net crate's tests, runs it with each provider, all at once, and
/// expects success.
fn run(name: &str, arguments: impl Fn() -> Vec<String>) {
    let (folder, built) = folder();
    let net = Path::new(env!("CARGO_MANIFEST_DIR")).join("../net");
    let program = folder.path().join(name);
    let compiled = Command::new("g++")
        .args(["-std=c++17", "-O1", "-pthread", "-o"])
        .arg(&program)
        .arg(net.join(format!("tests/{name}.cpp")))
        .arg(format!("-I{}", net.join("../../include").display()))
        .arg(built.join("liboutboard_net.so"))
        .arg(format!("-Wl,-rpath,{}", built.display()))
        .status();
    assert!(compiled.unwrap().success());
    // An adapter of mlx5 takes commands, or none.
    let started = [("mlx5", "1"), ("mlx5", "0"), ("proxy", "1")].map(|(provider, commands)| {
        let child = Command::new(&program)
            .env(COMMANDS_VARIABLE, commands)
            .args(arguments())
            .env("LD_LIBRARY_PATH", folder.path())
            .env(VARIABLE, folder.path().join("fabric"))
            .env("OUTBOARD_NET_PROVIDER", provider)
            // A proxy that nobody wakes would be late after each pause.
            .env("OUTBOARD_NET_SLEEP_US", "1000000")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        ((provider, commands), child.unwrap())
    });
    let done = started.map(|(provider, child)| (provider, child.wait_with_output().unwrap()));
    for (provider, done) in done {
        let said = [done.stdout, done.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(done.status.success(), "{provider:?}: {said}");
    }
}

fn free_port() -> String {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    free.local_addr().unwrap().port().to_string()
}

#[test]
fn errors_reach_waiting_threads_and_a_reset_begins_again() {
    run("reset", Vec::new);
}

#[test]
fn two_processes_exchange_data_and_survive_each_other() {
    run("meet", || vec![free_port(), "none".into()]);
}
