//! Tests of what a server shows of itself: `outboard top`, metrics, the audit file, the log as
//! JSON.
use std::{
    collections::BTreeMap,
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use crate::common::*;
use outboard_link::{Endpoint, Link, Receiver, Sender, Wait, dial};
use outboard_wire::{frame, handshake::Purpose, messages::Ping};
use serde_json::Value;
use tempfile::TempDir;

fn session(endpoint: &Endpoint) -> Link {
    dial(endpoint, &hello(Purpose::Session), PATIENCE)
        .unwrap()
        .0
}

fn top(endpoint: &Endpoint, flags: &[&str]) -> std::process::Output {
    output(outboard().arg("top").arg(endpoint.to_string()).args(flags))
}

fn status(endpoint: &Endpoint) -> Value {
    let output = top(endpoint, &["--json"]);
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}", text(&output.stderr)))
}

/// Sends pings without a reply, then one with.
fn ping(link: Link, count: u32) -> (Sender, Receiver) {
    let (mut sender, mut receiver) = link.split();
    for token in (0..count).rev().map(|left| u32::from(left == 0)) {
        let mut to = sender.reserve(frame::request_len(&Ping {})).unwrap();
        frame::encode_request(&mut to, token, 0, &Ping {}).unwrap();
        to.commit().unwrap();
    }
    sender.flush().unwrap();
    let deadline = Wait::Until(Instant::now() + PATIENCE);
    assert!(receiver.recv(deadline).unwrap().is_some());
    (sender, receiver)
}

#[test]
fn top_shows_sessions_and_ends_them() {
    let server = Server::start(&["--sessions-max", "5", "--devices", "2"]);
    server.ready_spare(1);
    let before = status(&server.tcp);
    assert_eq!(before["sessions"], Value::Array(Vec::new()));
    assert_eq!(
        (&before["sessions_max"], &before["device"]),
        (&5.into(), &"soft".into())
    );
    assert_eq!(before["gpus"].as_array().unwrap().len(), 2);
    let over_shm = session(&server.shm);
    let over_tcp = session(&server.tcp);
    let sessions = status(&server.tcp)["sessions"].clone();
    let [first, second] = &sessions.as_array().unwrap()[..] else {
        panic!("{sessions}");
    };
    assert_eq!(
        (&first["link"], &second["link"]),
        (&"shm".into(), &"tcp".into())
    );
    assert_eq!(first["uid"], rustix::process::getuid().as_raw());
    assert_eq!(
        (&first["pid"], &first["program"]),
        (&std::process::id().into(), &"test".into())
    );
    assert!(
        second["address"]
            .as_str()
            .unwrap()
            .starts_with("127.0.0.1:")
    );
    let screen = text(&top(&server.shm, &["--once"]).stdout);
    assert!(screen.contains("2 of 5 sessions"), "{screen}");
    assert!(screen.lines().all(|line| line.len() <= 80), "{screen}");

    let number = second["session"].to_string();
    let refused = top(&server.tcp, &["--end", &number]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("only over a local socket"));
    let unknown = text(&top(&server.shm, &["--end", "999999"]).stderr);
    assert!(unknown.contains("there is no session 999999"), "{unknown}");
    assert_eq!(top(&server.shm, &["--end", &number]).status.code(), Some(0));
    let (_sender, mut receiver) = over_tcp.split();
    let end = receiver.recv(Wait::Until(Instant::now() + PATIENCE));
    assert!(end.unwrap_err().is_disconnect());
    eventually("the end of the session", || {
        let now = status(&server.shm);
        now["sessions"].as_array().unwrap().len() == 1 && now["totals"]["ends"][4] == 1
    });
    drop(over_shm);
}

#[test]
fn a_screen_follows_another_where_there_are_no_escapes() {
    let server = Server::start(&[]);
    let mut command = outboard();
    command.args(["top", &server.shm.to_string(), "--interval", "1"]);
    let mut child = command
        .env("TERM", "dumb")
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = child.stdout.take().unwrap();
    let mut seen = String::new();
    eventually("two screens", || {
        let mut piece = [0; 4096];
        let count = out.read(&mut piece).unwrap();
        seen.push_str(&text(&piece[..count]));
        seen.matches("PROGRAM").count() >= 2
    });
    assert!(!seen.contains('\x1b'), "{seen:?}");
    rustix::process::kill_process(
        rustix::process::Pid::from_child(&child),
        rustix::process::Signal::TERM,
    )
    .unwrap();
    assert_eq!(wait(&mut child, PATIENCE).code(), Some(0));
}

/// Starts a server with metrics at a port of the system's choice.
fn with_metrics(flags: &[&str]) -> (Server, String) {
    let server = Server::start(&[flags, &["--metrics", "0"]].concat());
    server.expect_log("metrics are answered");
    let log = server.log();
    let at = log.split("http://").nth(1).unwrap();
    let address = at.split("/metrics").next().unwrap().to_string();
    (server, address)
}

fn get(address: &str, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut all = String::new();
    stream.read_to_string(&mut all).unwrap();
    let (head, body) = all.split_once("\r\n\r\n").unwrap();
    (head.lines().next().unwrap().into(), body.into())
}

fn metrics(address: &str) -> BTreeMap<String, f64> {
    let (line, body) = get(address, "/metrics");
    assert_eq!(line, "HTTP/1.1 200 OK");
    let samples = body.lines().filter(|line| !line.starts_with('#'));
    let parsed = samples.map(|line| line.rsplit_once(' ').unwrap());
    parsed
        .map(|(name, value)| (name.into(), value.parse().unwrap()))
        .collect()
}

#[test]
fn metrics_count_what_sessions_do() {
    let (server, address) = with_metrics(&["--sessions-max", "1"]);
    let before = metrics(&address);
    assert_eq!(before["outboard_sessions"], 0.0);
    let link = ping(session(&server.tcp), 500);
    let refused = dial(&server.tcp, &hello(Purpose::Session), PATIENCE);
    assert!(refused.is_err());
    let now = metrics(&address);
    assert_eq!(now["outboard_sessions"], 1.0);
    assert_eq!(now["outboard_refusals_total{reason=\"sessions\"}"], 1.0);
    eventually("the messages of a session that goes on", || {
        metrics(&address)["outboard_session_messages_total"] == 500.0
    });
    drop(link);
    eventually("the session's end", || {
        metrics(&address)["outboard_sessions_ended_total{reason=\"left\"}"] == 1.0
    });
    let after = metrics(&address);
    assert_eq!(after["outboard_session_messages_total"], 500.0);
    assert_eq!(after["outboard_sessions"], 0.0);
    TcpStream::connect(server.tcp.to_string().trim_start_matches("tcp://"))
        .unwrap()
        .write_all(b"GET / HTTP/1.1\r\nHost: this is another protocol\r\n\r\n")
        .unwrap();
    eventually("a stranger", || {
        metrics(&address)["outboard_refusals_total{reason=\"stranger\"}"] == 1.0
    });
}

#[test]
fn requests_for_metrics_are_bounded() {
    let (mut server, address) = with_metrics(&[]);
    assert_eq!(get(&address, "/").0, "HTTP/1.1 404 Not Found");
    let mut stream = TcpStream::connect(&address).unwrap();
    stream.write_all(b"POST /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    // Silent connections take all places, for two seconds.
    let silent: Vec<_> = (0..8)
        .map(|_| TcpStream::connect(&address).unwrap())
        .collect();
    let start = Instant::now();
    assert!(metrics(&address).contains_key("outboard_sessions"));
    assert!(
        start.elapsed() < Duration::from_secs(15),
        "{:?}",
        start.elapsed()
    );
    drop(silent);
    let mut endless = TcpStream::connect(&address).unwrap();
    let line = [b'a'; 1 << 16];
    let sent = (0..1_000).take_while(|_| endless.write_all(&line).is_ok());
    assert!(sent.count() < 1_000, "a request without end is read");
    assert!(server.is_running());
    // The process that answers is killed, and another comes.
    let exporter = children(&server)
        .into_iter()
        .find(|pid| name_of(*pid) == "outboard-metric")
        .unwrap();
    rustix::process::kill_process(exporter, rustix::process::Signal::KILL).unwrap();
    server.expect_log("it starts again");
    assert!(metrics(&address).contains_key("outboard_sessions"));
}

fn name_of(pid: rustix::process::Pid) -> String {
    let name = fs::read(format!("/proc/{}/comm", pid.as_raw_nonzero()));
    text(name.unwrap_or_default().trim_ascii())
}

fn children(server: &Server) -> Vec<rustix::process::Pid> {
    let pid = server.child.id();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let pids = children.split_whitespace();
    pids.filter_map(|pid| rustix::process::Pid::from_raw(pid.parse().ok()?))
        .collect()
}

fn audited(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn the_audit_file_has_a_line_for_each_session() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("audit");
    let mut server = Server::start(&["--audit", path.to_str().unwrap()]);
    drop(ping(session(&server.shm), 3));
    eventually("a line", || audited(&path).len() == 1);
    let killed = session(&server.tcp);
    let pid = server.only_worker();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    eventually("another line", || audited(&path).len() == 2);
    let _last = session(&server.tcp);
    server.signal(rustix::process::Signal::TERM);
    assert_eq!(server.wait().code(), Some(0));
    let lines = audited(&path);
    let reasons: Vec<_> = lines
        .iter()
        .map(|line| line["reason"].as_str().unwrap())
        .collect();
    assert_eq!(reasons, ["left", "worker", "stopped"]);
    assert_eq!(
        (&lines[0]["messages"], &lines[0]["program"]),
        (&3.into(), &"test".into())
    );
    assert_eq!(lines[0]["uid"], rustix::process::getuid().as_raw());
    assert_eq!(lines[1]["uid"], Value::Null);
    assert!(lines[0]["end"].as_f64() >= lines[0]["start"].as_f64());
    drop(killed);
}

#[test]
fn a_server_goes_on_without_its_audit_file() {
    let server = Server::start(&["--audit", "/dev/full"]);
    for _ in 0..3 {
        drop(ping(session(&server.shm), 1));
    }
    server.expect_log("the audit file cannot be written");
    eventually("the end of all sessions", || {
        status(&server.shm)["totals"]["ends"][0] == 3
    });
    assert_eq!(
        server.log().matches("audit file cannot").count(),
        1,
        "said once"
    );
    let missing =
        output(outboard().args(["serve", "--device", "soft", "--audit", "/proc/nowhere/a"]));
    assert_eq!(missing.status.code(), Some(2));
    assert!(text(&missing.stderr).contains("--audit: /proc/nowhere/a: No such file"));
}

#[test]
fn the_log_can_be_json() {
    let mut command = Command::new(OUTBOARD);
    let command = clean_serve(&mut command);
    let server = Server::start_with(command);
    drop(ping(session(&server.shm), 1));
    server.expect_log("ended after");
    thread::sleep(Duration::from_millis(50));
    let log = server.log();
    let lines: Vec<Value> = log
        .lines()
        .filter(|line| line.ends_with('}'))
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
        .collect();
    let of_worker = lines
        .iter()
        .find(|l| l["message"].as_str().unwrap_or("").contains("ended after"));
    assert_eq!(of_worker.unwrap()["span"]["id"], 1, "{log}");
}

fn clean_serve(command: &mut Command) -> &mut Command {
    command.env_remove("XDG_RUNTIME_DIR").args([
        "--log-format",
        "json",
        "serve",
        "--device",
        "soft",
        "--threads",
        "1",
        "--spare",
        "0",
    ])
}
