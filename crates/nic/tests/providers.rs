//! Providers of `outboard-net` for adapters, on the stand-ins: the programs of that crate's tests,
//! which know nothing of it.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::{
    fs,
    io::{ErrorKind, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
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

/// Providers, and whether an adapter of mlx5 takes commands.
const OF_DEVICES: [(&str, &str); 3] = [("mlx5", "1"), ("mlx5", "0"), ("proxy", "1")];
/// The adapter in software, whose entries travel by verbs between processes.
const BY_VERBS: (&str, &str) = ("nic", "1");

/// A program of the net crate's tests, compiled, in a folder with the libraries.
struct Program {
    folder: TempDir,
    path: PathBuf,
}

impl Program {
    fn compiled(name: &str) -> Program {
        let (folder, built) = folder();
        let net = Path::new(env!("CARGO_MANIFEST_DIR")).join("../net");
        let path = folder.path().join(name);
        let compiled = Command::new("g++")
            .args(["-std=c++17", "-O1", "-pthread", "-o"])
            .arg(&path)
            .arg(net.join(format!("tests/{name}.cpp")))
            .arg(format!("-I{}", net.join("../../include").display()))
            .arg(built.join("liboutboard_net.so"))
            .arg(format!("-Wl,-rpath,{}", built.display()))
            .status();
        assert!(compiled.unwrap().success());
        Program { folder, path }
    }

    fn start(&self, (provider, commands): (&str, &str), arguments: &[String]) -> Child {
        let child = Command::new(&self.path)
            .env(COMMANDS_VARIABLE, commands)
            .args(arguments)
            .env("LD_LIBRARY_PATH", self.folder.path())
            .env(VARIABLE, self.folder.path().join("fabric"))
            .env("OUTBOARD_NET_PROVIDER", provider)
            .env("OUTBOARD_NET_WAY", "verbs")
            // A proxy that nobody wakes would be late after each pause.
            .env("OUTBOARD_NET_SLEEP_US", "1000000")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        child.unwrap()
    }
}

/// Runs a program with each provider, all at once, and expects success.
fn run(name: &str, providers: &[(&str, &str)], arguments: impl Fn(&str) -> Vec<String>) {
    let program = Program::compiled(name);
    let start = |one: &(&str, &str)| program.start(*one, &arguments(one.0));
    let started: Vec<Child> = providers.iter().map(start).collect();
    for (provider, child) in providers.iter().zip(started) {
        let done = child.wait_with_output().unwrap();
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
    run("reset", &OF_DEVICES, |_| Vec::new());
}

#[test]
fn two_processes_exchange_data_and_survive_each_other() {
    let all = [&OF_DEVICES[..], &[BY_VERBS]].concat();
    run("meet", &all, |provider| {
        let way = match provider {
            "nic" => "verbs",
            _ => "none",
        };
        vec![free_port(), way.into()]
    });
}

#[test]
fn what_either_of_two_processes_refuses_has_its_syndrome() {
    let all = [&OF_DEVICES[..], &[BY_VERBS]].concat();
    run("refused", &all, |provider| {
        let kind = match provider {
            "proxy" => "endless",
            "mlx5" => "unseen",
            _ => "",
        };
        vec![free_port(), kind.into()]
    });
}

/// Steps of a process that says what it likes to one whose entries travel by verbs.
enum Says {
    /// A hello of a queue whose entries travel by other means, then this.
    Otherwise,
    /// No way to its queue pair.
    Nowhere,
    /// All that a meeting needs, then these bytes.
    Then(&'static [u32]),
    /// All that a meeting needs, and an answer to the question for this key.
    Answers(fn(u32) -> [u32; 3]),
    /// All but that it is connected. Nothing of a queue comes, and the connection ends.
    Waits,
    /// All that a meeting needs, but another last byte.
    Last(u8),
    /// All that a meeting needs, and questions without end, whose answers it does not read.
    Asks,
}

fn says(port: &str, says: &Says) {
    let begin = Instant::now();
    let mut stream = loop {
        match TcpStream::connect(format!("127.0.0.1:{port}")) {
            Ok(stream) if stream.local_addr().unwrap() != stream.peer_addr().unwrap() => {
                break stream;
            }
            _ => assert!(begin.elapsed() < Duration::from_secs(60)),
        }
        sleep(Duration::from_millis(2));
    };
    let (mut hello, mut reached) = ([0; 40], [0; 32]);
    hello[..8].copy_from_slice(b"OBNET\0\0\x01");
    hello[8..12].copy_from_slice(&0x7f_0123_u32.to_le_bytes());
    hello[16..24].copy_from_slice(&0x1000_u64.to_le_bytes());
    hello[32..36].copy_from_slice(&0x77_u32.to_le_bytes());
    hello[36] = if matches!(says, Says::Otherwise) {
        0
    } else {
        4
    };
    stream.write_all(&hello).unwrap();
    stream.read_exact(&mut hello).unwrap();
    if stream.read_exact(&mut reached).is_err() {
        return;
    }
    if matches!(says, Says::Nowhere) {
        reached[0] ^= 1;
    }
    // It is reached as the other is.
    stream.write_all(&reached).unwrap();
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect();
    match says {
        Says::Waits => {
            let mut said = Vec::new();
            stream.read_to_end(&mut said).unwrap();
            assert_eq!(said, [0]);
        }
        Says::Last(byte) => {
            stream.write_all(&[*byte]).unwrap();
            let _ = stream.read_to_end(&mut Vec::new());
        }
        Says::Asks => asks(&mut stream),
        Says::Then(of) => {
            let bytes: Vec<u8> = words(of);
            stream.write_all(&[&[0][..], &bytes].concat()).unwrap();
            let _ = stream.read_to_end(&mut Vec::new());
        }
        Says::Answers(answer) => {
            stream.write_all(&[0]).unwrap();
            let mut asked = [0; 13];
            stream.read_exact(&mut asked).unwrap();
            assert_eq!(asked[1..5], 1_u32.to_le_bytes());
            let key = u32::from_le_bytes(*asked[5..].first_chunk().unwrap());
            let bytes: Vec<u8> = words(&answer(key));
            stream.write_all(&bytes).unwrap();
            if bytes[0] == 2 {
                let _ = stream.read_to_end(&mut Vec::new());
            }
        }
        Says::Otherwise | Says::Nowhere => {}
    }
}

/// Asks for keys without end, and reads no answer, until the other hangs up.
fn asks(stream: &mut TcpStream) {
    let question = [1_u32, 0x77, 0].map(u32::to_le_bytes).concat();
    let questions = question.repeat(1 << 14);
    // The other's own question, which nobody answers, ends its connection only after 8 s.
    let patience = Some(Duration::from_secs(3));
    stream.set_write_timeout(patience).unwrap();
    stream.write_all(&[0]).unwrap();
    let error = loop {
        if let Err(error) = stream.write_all(&questions) {
            break error;
        }
    };
    assert_ne!(error.kind(), ErrorKind::WouldBlock, "nobody hangs up");
}

#[test]
fn a_peer_that_forges_what_it_says_ends_its_own_connection() {
    let meetings = [
        (Says::Otherwise, "OUTBOARD_NET_WAY=verbs"),
        (Says::Nowhere, "is not of a provider with RDMA devices"),
        (Says::Waits, "timed out"),
        (Says::Last(1), "something else than that it is connected"),
        (Says::Then(&[9, 9, 9]), "syndrome 15"),
        (Says::Then(&[3, 0x99, 1]), "syndrome 15"),
        (Says::Answers(|key| [3, key + 1, 1]), "syndrome 15"),
        // Its queue pair is not there, and it hangs up.
        (Says::Answers(|key| [3, key, 1]), "syndrome 15"),
        (Says::Answers(|key| [2, key, 0]), "syndrome 13"),
        (Says::Asks, "syndrome 15"),
    ];
    let program = Program::compiled("forged");
    let port = free_port();
    let child = program.start(BY_VERBS, &[port.clone(), meetings.len().to_string()]);
    for (what, _) in &meetings {
        says(&port, what);
    }
    let done = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{said}");
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), meetings.len(), "{said}");
    for ((_, expected), line) in meetings.iter().zip(lines) {
        assert!(line.contains(expected), "{expected}: {said}");
    }
}
