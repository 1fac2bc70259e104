//! The real executable as a server, and helpers for tests of it.
#![allow(dead_code, unreachable_pub)]

pub mod authority;

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    os::unix::{
        net::UnixStream,
        process::{CommandExt, ExitStatusExt},
    },
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use outboard_link::{Endpoint, Link, Listener, Wait};
use outboard_wire::{
    codec::Writer,
    doc::DeviceCard,
    frame::{HEADER_BYTES, ReplyHeader, RequestHeader},
    handshake::{
        ClientHello, PREAMBLE_BYTES, Preamble, Purpose, ServerWelcome, decode_hello, encode_welcome,
    },
};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

pub const OUTBOARD: &str = env!("CARGO_BIN_EXE_outboard");
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Returns `outboard` without the settings of the user who runs the tests.
pub fn outboard() -> Command {
    clean(Command::new(OUTBOARD))
}

pub fn clean(mut command: Command) -> Command {
    command
        .env_remove("OUTBOARD_GPU")
        .env_remove("OUTBOARD_EMULATE")
        .env_remove("OUTBOARD_LOG")
        .env_remove("XDG_RUNTIME_DIR")
        .stdin(Stdio::null());
    command
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs a command, which must end in time.
pub fn output(command: &mut Command) -> Output {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut pipes = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let out = thread::spawn(move || {
        let mut out = Vec::new();
        pipes.0.read_to_end(&mut out).unwrap();
        out
    });
    let err = thread::spawn(move || {
        let mut err = Vec::new();
        pipes.1.read_to_end(&mut err).unwrap();
        err
    });
    let status = wait(&mut child, 2 * PATIENCE);
    Output {
        status,
        stdout: out.join().unwrap(),
        stderr: err.join().unwrap(),
    }
}

pub fn wait(child: &mut Child, patience: Duration) -> ExitStatus {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if start.elapsed() > patience {
            child.kill().unwrap();
            panic!("the process did not end within {patience:?}");
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until a condition holds.
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "{what} did not come about");
        thread::sleep(Duration::from_millis(5));
    }
}

/// `outboard serve` on a unix socket and a tcp port.
pub struct Server {
    pub child: Child,
    pub shm: Endpoint,
    pub tcp: Endpoint,
    log: Arc<Mutex<String>>,
    pub dir: TempDir,
}

impl Server {
    pub fn start(flags: &[&str]) -> Server {
        let device = ["--device", "soft", "--threads", "1"];
        Server::start_with(outboard().arg("serve").args(device).args(flags))
    }

    /// Starts a server with the command's own device and environment.
    pub fn start_with(command: &mut Command) -> Server {
        let dir = TempDir::new().unwrap();
        let socket = format!("shm://{}", dir.path().join("socket").display());
        let mut child = command
            .args(["--no-cache", "--listen", &socket])
            .args(["--listen", "tcp://127.0.0.1:0"])
            .env("OUTBOARD_LOG", "debug")
            .process_group(0)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut next = || -> Endpoint {
            let line = lines.next().expect("a line for each listener").unwrap();
            let url = line.strip_prefix("listening on ").expect(&line);
            url.parse().unwrap()
        };
        let (shm, tcp) = (next(), next());
        let log = Arc::new(Mutex::new(String::new()));
        let (mut stderr, sink) = (child.stderr.take().unwrap(), Arc::clone(&log));
        thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(count @ 1..) = stderr.read(&mut piece) {
                sink.lock().unwrap().push_str(&text(&piece[..count]));
            }
        });
        Server {
            child,
            shm,
            tcp,
            log,
            dir,
        }
    }

    pub fn endpoints(&self) -> [Endpoint; 2] {
        [self.shm.clone(), self.tcp.clone()]
    }

    pub fn socket_path(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    pub fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    pub fn expect_log(&self, part: &str) {
        eventually(&format!("{part:?} in the log"), || {
            self.log().contains(part)
        });
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Returns the workers that have a client.
    pub fn workers(&self) -> Vec<Pid> {
        let mut children = self.children();
        // A worker that has yet to learn what it is for does not count.
        children.retain(|pid| process_name(*pid) == "outboard-worker");
        children
    }

    pub fn spares(&self) -> Vec<Pid> {
        let mut children = self.children();
        children.retain(|pid| process_name(*pid) == "outboard-spare");
        children
    }

    /// Returns the one spare, once it is ready for the `nth` time.
    pub fn ready_spare(&self, nth: usize) -> Pid {
        eventually("a spare that is ready", || {
            self.log().matches("a spare worker is ready").count() >= nth
        });
        assert_eq!(self.spares().len(), 1);
        self.spares()[0]
    }

    pub fn only_worker(&self) -> Pid {
        eventually("one worker", || self.workers().len() == 1);
        self.workers()[0]
    }

    fn children(&self) -> Vec<Pid> {
        let pid = self.child.id();
        let path = format!("/proc/{pid}/task/{pid}/children");
        let children = fs::read_to_string(path).unwrap_or_default();
        children
            .split_whitespace()
            .filter_map(|pid| Pid::from_raw(pid.parse().ok()?))
            .collect()
    }

    pub fn wait(&mut self) -> ExitStatus {
        wait(&mut self.child, PATIENCE)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The workers end with it.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("the server's log:\n{}", self.log());
        }
    }
}

/// Returns the name that a worker gives itself: `outboard-worker` or `outboard-spare`.
fn process_name(pid: Pid) -> String {
    let name = fs::read(format!("/proc/{}/comm", pid.as_raw_nonzero()));
    text(name.unwrap_or_default().trim_ascii())
}

pub fn is_alive(pid: Pid) -> bool {
    // A zombie that has not been reaped is dead, too.
    fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or("").starts_with(" Z"))
}

pub fn hello(purpose: Purpose) -> ClientHello {
    ClientHello {
        release: outboard_wire::handshake::RELEASE.into(),
        purpose,
        pid: std::process::id(),
        program: "test".into(),
        emulation: None,
        is_rdma: false,
        token: None,
        grant: None,
        window: 0,
    }
}

pub fn raw_unix(server: &Server) -> UnixStream {
    UnixStream::connect(server.socket_path()).unwrap()
}

/// A server of this release with one device, in this process and without a worker.
pub struct FakeServer {
    pub endpoint: Endpoint,
    pub dir: TempDir,
}

impl FakeServer {
    pub fn start() -> FakeServer {
        let dir = TempDir::new().unwrap();
        let url = format!("shm://{}", dir.path().join("socket").display());
        let endpoint: Endpoint = url.parse().unwrap();
        let listener = Listener::bind(&endpoint).unwrap();
        thread::spawn(move || {
            while let Ok((mut stream, _)) = listener.accept(None) {
                thread::spawn(move || {
                    let deadline = Instant::now() + PATIENCE;
                    let mut preamble = [0; PREAMBLE_BYTES];
                    stream.read_exact_deadline(&mut preamble, deadline).unwrap();
                    let preamble = Preamble::decode(&preamble).unwrap();
                    let mut document = vec![0; preamble.document_bytes];
                    stream.read_exact_deadline(&mut document, deadline).unwrap();
                    let purpose = decode_hello(&document).unwrap().purpose;
                    assert_ne!(purpose, Purpose::Session);
                    if purpose == Purpose::Status {
                        return;
                    }
                    let welcome = encode_welcome(&welcome()).unwrap();
                    stream.write_all_deadline(&welcome, deadline).unwrap();
                    answer_pings(stream.into_link_server().unwrap());
                });
            }
        });
        FakeServer { endpoint, dir }
    }
}

fn welcome() -> ServerWelcome {
    ServerWelcome {
        release: env!("CARGO_PKG_VERSION").into(),
        session: 1,
        driver_version: 13_000,
        ptx_only: false,
        window_base: 0,
        window_bytes: 0,
        exact_memory: false,
        confirms_memory: false,
        devices: vec![DeviceCard {
            name: "Test device".into(),
            memory_bytes: 8 << 30,
            quota_bytes: 4 << 30,
            ..DeviceCard::default()
        }],
        key: None,
    }
}

fn answer_pings(link: Link) {
    let (mut sender, mut receiver) = link.split();
    while let Ok(Some(frame)) = receiver.recv(Wait::Forever) {
        let mut reader = outboard_wire::Reader::new(frame);
        let token = RequestHeader::decode(&mut reader).unwrap().token;
        let mut header = [0; HEADER_BYTES];
        ReplyHeader {
            note: 0,
            placed: 0,
            token,
            status: 0,
            replies_before: 0,
        }
        .encode(&mut Writer::new(&mut header))
        .unwrap();
        sender.send(&[&header]).unwrap();
        sender.flush().unwrap();
    }
}

/// Creates an installation: the executable, and a library in lib/outboard for each given name.
pub fn install(dir: &Path, libraries: &[(&str, &Path)]) -> PathBuf {
    let bin = dir.join("bin");
    let lib = dir.join("lib/outboard");
    fs::create_dir_all(&bin).unwrap();
    fs::create_dir_all(&lib).unwrap();
    let executable = bin.join("outboard");
    if fs::hard_link(OUTBOARD, &executable).is_err() {
        fs::copy(OUTBOARD, &executable).unwrap();
    }
    for (name, from) in libraries {
        fs::copy(from, lib.join(name)).unwrap();
    }
    executable
}

/// Returns a shared library of this system that can be loaded by itself.
pub fn some_library() -> PathBuf {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let path = maps
        .lines()
        .filter_map(|line| line.split_whitespace().nth(5))
        .find(|path| {
            path.contains("libgcc_s") || path.contains("libm.so") || path.contains("libc.so")
        })
        .expect("a shared library in this process");
    PathBuf::from(path)
}

pub fn killed_by(status: ExitStatus) -> Option<i32> {
    status.signal()
}
