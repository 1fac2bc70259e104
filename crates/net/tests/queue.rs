//! The CPU threads of `net.cuh`'s programs beside them: errors and resets, and two processes.

#![allow(clippy::unwrap_used)]

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    path::Path,
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

/// Compiles a program of this folder, runs it with each provider, and expects success.
fn run(name: &str, providers: &[&str], environment: &[(&str, &str)], arguments: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join(name);
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
        .args([&program, &crate_folder.join(format!("tests/{name}.cpp"))])
        .arg(library.join("liboutboard_net.so"))
        .arg(format!("-Wl,-rpath,{}", library.display()))
        .status()
        .unwrap();
    assert!(compiled.success());
    for provider in providers {
        // Cargo's LD_LIBRARY_PATH goes before the program's path, and may have an older library.
        let done = Command::new(&program)
            .args(arguments)
            .env_remove("LD_LIBRARY_PATH")
            .envs(environment.iter().copied())
            .env("OUTBOARD_NET_PROVIDER", provider)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&done.stdout);
        assert!(done.status.success(), "{provider}: {said}");
    }
}

#[test]
fn errors_reach_waiting_threads_and_a_reset_begins_again() {
    // Threads that load and store themselves fail as an adapter does.
    run("reset", &["nic", "nvlink"], &[], &[]);
}

#[test]
fn two_processes_exchange_data_and_survive_each_other_by_shared_memory() {
    meet("shm");
}

#[test]
fn two_processes_exchange_data_and_survive_each_other_over_tcp() {
    meet("tcp");
}

#[test]
fn what_either_of_two_processes_refuses_has_its_syndrome() {
    for way in ["shm", "tcp"] {
        let environment = [("OUTBOARD_NET_WAY", way)];
        run("refused", &["nic"], &environment, &[&free_port()]);
    }
}

#[test]
fn a_limit_of_files_takes_the_shared_memory_of_a_meeting_and_not_the_program() {
    run("limits", &["nic"], &[], &[&free_port(), "auto"]);
    let alone = [("OUTBOARD_NET_WAY", "shm")];
    run("limits", &["nic"], &alone, &[&free_port(), "shm"]);
}

fn free_port() -> String {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    free.local_addr().unwrap().port().to_string()
}

fn meet(way: &str) {
    let port = free_port();
    let environment = [
        ("OUTBOARD_NET_WAY", way),
        // An adapter that nobody wakes would make each first message late.
        ("OUTBOARD_NET_SLEEP_US", "1000000"),
    ];
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| strangers(&port, &over));
        // A test that fails ends, too.
        let _ends = Ends(&over);
        run("meet", &["nic"], &environment, &[&port, way]);
    });
}

/// Says that it is over when it is dropped.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Says something else than a hello to whoever listens there.
fn strangers(port: &str, over: &AtomicBool) {
    while !over.load(Ordering::Acquire) {
        if let Ok(mut stream) = TcpStream::connect(format!("127.0.0.1:{port}"))
            && stream.local_addr().ok() != stream.peer_addr().ok()
            && stream.write_all(b"GET / HTTP/1.1\r\n\r\n").is_ok()
        {
            // It is hung up on; a port that meets itself would say the same.
            let _ = stream.read(&mut [0]);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
