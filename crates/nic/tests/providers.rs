//! Providers of `outboard-net` for adapters, on the stand-ins: the programs of that crate's tests,
//! which know nothing of it.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::{
    fs,
    net::TcpListener,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use outboard_nic::{LIBRARIES, SERVING, fabric::VARIABLE};
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

/// Compiles a program of the net crate's tests, runs it with a provider, and expects success.
fn run(name: &str, provider: &str, arguments: &[&str]) {
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
    let done = Command::new(&program)
        .args(arguments)
        .env("LD_LIBRARY_PATH", folder.path())
        .env(VARIABLE, folder.path().join("fabric"))
        .env("OUTBOARD_NET_PROVIDER", provider)
        .output()
        .unwrap();
    let said = [done.stdout, done.stderr].concat();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&said));
}

fn free_port() -> String {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    free.local_addr().unwrap().port().to_string()
}

#[test]
fn errors_of_mlx5_reach_waiting_threads_and_a_reset_begins_again() {
    run("reset", "mlx5", &[]);
}

#[test]
fn two_processes_with_mlx5_exchange_data_and_survive_each_other() {
    run("meet", "mlx5", &[&free_port()]);
}
