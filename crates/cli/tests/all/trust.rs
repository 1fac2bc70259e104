//! Tests of who may use a server: other users of this machine, and other machines.
// The helpers of tests are no `#[test]`s, which clippy.toml exempts.
use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::{
        fs::{MetadataExt, PermissionsExt},
        process::CommandExt,
    },
    process::Stdio,
};

use crate::common::*;

/// A user and a group that own nothing.
const OTHER: u32 = 61_234;

#[test]
fn beyond_this_machine_a_server_listens_only_if_told_that_it_is_insecure() {
    for url in [
        "tcp://0.0.0.0:0",
        "tcp://192.0.2.1:4833",
        "tcp://[::]:0",
        "tcp://some-host:0",
        "rdma://10.0.0.7",
        "rdma://0.0.0.0",
    ] {
        let mut command = outboard();
        command.args(["serve", "--device", "soft", "--listen", "tcp://127.0.0.1:0"]);
        let output = output(command.args(["--listen", url]));
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{url}: {stderr}");
        assert_eq!(text(&output.stdout), "", "{url}");
        // Of RDMA no tunnel helps, and --tls alone does not.
        let way = match url.starts_with("rdma") {
            true => "add --insecure, and --tls with",
            false => "tunnel",
        };
        for part in [url, "--insecure", way] {
            assert!(stderr.contains(part), "{url}: {part}: {stderr}");
        }
    }
    let mut command = outboard();
    command.args(["serve", "--device", "soft", "--insecure"]);
    let mut child = command
        .args(["--spare", "0", "--listen", "tcp://0.0.0.0:0"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    lines.read_line(&mut line).unwrap();
    assert!(line.starts_with("listening on tcp://0.0.0.0:"), "{line}");
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Runs a program through the server as another user; returns its exit code and what it was told.
fn as_another_user(server: &Server) -> (Option<i32>, String) {
    let mut command = outboard();
    command
        .args(["run", "--gpu", &server.shm.to_string(), "--", "true"])
        .uid(OTHER)
        .gid(OTHER)
        .env_remove("HOME")
        .current_dir("/");
    let output = output(&mut command);
    (output.status.code(), text(&output.stderr))
}

/// Returns whether this test can act as another user who finds the executable.
fn can_be_others(server: &Server) -> bool {
    // The folder is open, so that only the socket keeps others out.
    fs::set_permissions(server.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    rustix::process::geteuid().is_root()
        && outboard()
            .arg("--version")
            .uid(OTHER)
            .gid(OTHER)
            .current_dir("/")
            .output()
            .is_ok_and(|done| done.status.success())
}

#[test]
fn other_users_may_use_a_local_server_if_they_are_named() {
    let server = Server::start(&[]);
    let mode = |server: &Server| fs::metadata(server.socket_path()).unwrap().mode() & 0o777;
    assert_eq!(mode(&server), 0o600);
    if !can_be_others(&server) {
        return;
    }
    let (code, said) = as_another_user(&server);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("--allow-uid"), "{said}");

    let (user, group) = (OTHER.to_string(), OTHER.to_string());
    let server = Server::start(&[
        "--allow-uid",
        "7",
        "--allow-uid",
        &user,
        "--socket-group",
        &group,
    ]);
    assert_eq!(mode(&server), 0o660);
    assert_eq!(fs::metadata(server.socket_path()).unwrap().gid(), OTHER);
    assert!(can_be_others(&server));
    assert_eq!(as_another_user(&server), (Some(0), String::new()));

    // A user who can open the file but is not named is told so.
    let server = Server::start(&["--allow-uid", "7", "--socket-group", &group]);
    assert!(can_be_others(&server));
    let (code, said) = as_another_user(&server);
    assert_eq!(code, Some(1), "{said}");
    let why = format!("user {OTHER} may not use this server");
    assert!(
        said.contains(&why) && said.contains("--allow-uid"),
        "{said}"
    );
    server.expect_log("may not use this server");
}

#[test]
fn a_group_without_other_users_is_a_mistake() {
    let mut command = outboard();
    let output = output(command.args(["serve", "--socket-group", "7"]));
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--allow-uid"));
}
