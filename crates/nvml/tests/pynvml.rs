//! Runs the unmodified nvidia-ml-py with the built library: its answers are right, no function that
//! it uses is missing, and none crashes.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::{
    io::Write as _,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use common::{Answer, Server, built_library, two_devices};
use outboard_link::LinkKind;

#[test]
fn nvidia_ml_py() {
    let Some(python) = python() else { return };
    for kind in [LinkKind::Shm, LinkKind::Tcp] {
        let server = Server::start(kind, Answer::Snapshot(Box::new(two_devices())));
        let output = run(&python, "pynvml_checks.py", &server.endpoint.to_string());
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.trim_end().ends_with("everything checked"), "{said}");
        let complaints = String::from_utf8_lossy(&output.stderr);
        assert!(
            complaints
                .lines()
                .all(|line| line.ends_with(" is not supported")),
            "{complaints}"
        );
    }
}

#[test]
fn what_is_not_supported_is_logged_by_name_and_once() {
    let Some(python) = python() else { return };
    let server = Server::start(LinkKind::Shm, Answer::Snapshot(Box::new(two_devices())));
    let script = "
import pynvml as n
n.nvmlInit()
gpu = n.nvmlDeviceGetHandleByIndex(0)
for _ in range(3):
    try: n.nvmlDeviceGetFanControlPolicy_v2(gpu, 0)
    except n.NVMLError_NotSupported: pass
";
    let output = command(&python, &server.endpoint.to_string())
        .env("OUTBOARD_LOG", "debug")
        .args(["-c", script])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(
        said.matches("nvmlDeviceGetFanControlPolicy_v2").count(),
        1,
        "{said}"
    );
}

#[test]
fn without_a_server_it_says_why_once() {
    let Some(python) = python() else { return };
    let script = "
import pynvml as n
for _ in range(3):
    try: n.nvmlInit()
    except n.NVMLError_DriverNotLoaded: continue
    raise SystemExit('initialised without a server')
";
    let output = command(&python, "tcp://127.0.0.1:1")
        .args(["-c", script])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("tcp://127.0.0.1:1"), "{said}");
}

/// Returns the Python of the checkout's toolchain.
fn python() -> Option<PathBuf> {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.toolchain/bin/python");
    if !python.exists() {
        let test = std::thread::current();
        let test = test.name().unwrap_or("pynvml");
        let why = "no nvidia-ml-py; tools/toolchain.py installs it";
        // Past the test harness, which would keep it to itself.
        let _ = writeln!(std::io::stderr().lock(), "NOT RUN: {test}: {why}");
        return None;
    }
    Some(python)
}

fn run(python: &Path, script: &str, url: &str) -> Output {
    let script = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests")
        .join(script);
    command(python, url).arg(script).output().unwrap()
}

/// Returns a command that runs Python with our library under NVIDIA's name.
fn command(python: &Path, url: &str) -> Command {
    let library = built_library();
    let folder =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("nvml-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    match symlink(&library, folder.join("libnvidia-ml.so.1")) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => panic!("{error}"),
        _ => {}
    }
    let mut command = Command::new(python);
    command
        .env("LD_LIBRARY_PATH", &folder)
        .env("OUTBOARD_GPU", url)
        .env_remove("OUTBOARD_LOG")
        .env("PYTHONDONTWRITEBYTECODE", "1");
    command
}
