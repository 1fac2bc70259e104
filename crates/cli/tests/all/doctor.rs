//! Tests of `outboard doctor`: it finds each problem, and exits with 0 if there is none.
// The helpers of tests are no `#[test]`s, which clippy.toml exempts.
use std::{fs, process::Command};

use crate::common::*;
use serde_json::Value;
use tempfile::TempDir;

fn doctor(command: &mut Command) -> (Option<i32>, Vec<Value>) {
    let output = output(command.arg("--json"));
    let findings = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", text(&output.stderr)));
    (output.status.code(), findings)
}

fn verdict<'f>(findings: &'f [Value], what: &str) -> (&'f str, String) {
    let finding = findings.iter().find(|f| f["what"] == what).expect(what);
    let said = format!("{} {}", finding["found"], finding["remedy"]);
    (finding["verdict"].as_str().unwrap(), said)
}

#[test]
fn all_is_well() {
    let dir = TempDir::new().unwrap();
    let library = some_library();
    let libraries = [
        ("libcuda.so.1", library.as_path()),
        ("libnvidia-ml.so.1", &library),
    ];
    let executable = install(dir.path(), &libraries);
    let server = FakeServer::start();
    let url = server.endpoint.to_string();
    let (code, findings) = doctor(clean(Command::new(&executable)).args(["doctor", "--gpu", &url]));
    assert_eq!(code, Some(0), "{findings:#?}");
    for what in [
        "release",
        "client library",
        "management library",
        "shared memory",
        "server",
        "round trip",
    ] {
        assert_eq!(verdict(&findings, what).0, "ok", "{what}");
    }
    let providers: Vec<(&str, &str)> = findings
        .iter()
        .filter(|finding| finding["what"] == "net provider")
        .map(|finding| {
            let found = finding["found"].as_str().unwrap();
            (found.split(':').next().unwrap(), found)
        })
        .collect();
    let names: Vec<&str> = providers.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["mlx5", "nic", "nvlink", "proxy"]);
    assert!(providers[1].1.contains("the adapter in software"));
    let (_, device) = verdict(&findings, "device");
    assert!(
        device.contains("Test device, 8.0 GiB, of which a program may have 4.0 GiB"),
        "{device}"
    );
    // As text.
    let output = output(clean(Command::new(&executable)).args(["doctor", "--gpu", &url]));
    assert_eq!(output.status.code(), Some(0));
    assert!(text(&output.stdout).contains("ok    server"));
}

#[test]
fn a_broken_library_and_no_server_are_found() {
    let dir = TempDir::new().unwrap();
    let broken = dir.path().join("broken");
    fs::write(&broken, "not a library").unwrap();
    let executable = install(dir.path(), &[("libcuda.so.1", &broken)]);
    let url = format!("shm://{}", dir.path().join("nobody").display());
    let (code, findings) = doctor(clean(Command::new(&executable)).args(["doctor", "--gpu", &url]));
    assert_eq!(code, Some(1));
    let (library, said) = verdict(&findings, "client library");
    assert_eq!(library, "fail");
    assert!(said.contains("cannot be loaded"), "{said}");
    assert_eq!(verdict(&findings, "management library").0, "note");
    let (server, said) = verdict(&findings, "server");
    assert_eq!(server, "fail");
    assert!(
        said.contains(&format!("outboard serve --listen {url}")),
        "{said}"
    );
}

#[test]
fn a_limited_address_space_is_found() {
    let mut shell = clean(Command::new("sh"));
    let script =
        format!("ulimit -v 8000000; exec '{OUTBOARD}' doctor --gpu shm:///nobody/there --json");
    let output = output(shell.args(["-c", &script]));
    let findings: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let (space, said) = verdict(&findings, "address space");
    assert_eq!(space, "note");
    assert!(said.contains("ulimit -v unlimited"), "{said}");
}

#[test]
fn reasons_of_slowness_are_told_with_what_helps() {
    let server = Server::start(&["--check", "all", "--seed", "1", "--spare", "0"]);
    let url = server.shm.to_string();
    // One core, a forgotten variable, and a server that checks.
    let mut command = clean(Command::new("taskset"));
    command.args(["-c", "0", OUTBOARD, "doctor", "--gpu", &url]);
    command.env("OUTBOARD_OPTIMISE", "sync");
    let (code, findings) = doctor(&mut command);
    assert_eq!(code, Some(i32::from(has_failure(&findings))));
    for (what, said) in [
        ("data connections", "with 1 cores"),
        ("environment", "unset OUTBOARD_OPTIMISE"),
        ("build", "debug build"),
        (
            "speed of the server",
            "--check watches what kernels do; --seed",
        ),
    ] {
        let (verdict, text) = verdict(&findings, what);
        assert_eq!(verdict, "note", "{what}: {text}");
        assert!(text.contains(said), "{what}: {text}");
    }
}

fn has_failure(findings: &[Value]) -> bool {
    findings.iter().any(|finding| finding["verdict"] == "fail")
}
