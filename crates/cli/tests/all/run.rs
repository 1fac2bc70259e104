//! Tests of `outboard run` and the command line: exit codes, environment, and addresses without a
//! server.
// The helpers of tests are no `#[test]`s, which clippy.toml exempts.
use std::{
    fs::{self, Permissions},
    io::{self, Read, Write},
    net::TcpListener,
    os::unix::{fs::PermissionsExt, net::UnixListener, process::CommandExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use crate::common::*;
use rustix::{
    process::{Pid, Signal, Uid, kill_process},
    thread::set_thread_res_uid,
};
use tempfile::TempDir;

/// An installation with some libraries, and a server that answers.
struct Setting {
    executable: PathBuf,
    server: FakeServer,
    dir: TempDir,
}

impl Setting {
    fn new() -> Setting {
        let dir = TempDir::new().unwrap();
        let library = some_library();
        let libraries = [
            ("libcuda.so.1", library.as_path()),
            ("libnvidia-ml.so.1", &library),
            ("libcupti.so.13", &library),
        ];
        let executable = install(dir.path(), &libraries);
        Setting {
            executable,
            server: FakeServer::start(),
            dir,
        }
    }

    fn outboard(&self) -> Command {
        let mut command = clean(Command::new(&self.executable));
        command.env("XDG_RUNTIME_DIR", self.dir.path());
        command
    }

    fn run(&self, program: &[&str]) -> Command {
        let mut command = self.outboard();
        command
            .args(["run", "--gpu", &self.server.endpoint.to_string(), "--"])
            .args(program);
        command
    }
}

#[test]
fn the_exit_code_is_the_programs_own() {
    let setting = Setting::new();
    for code in [0, 1, 42, 255] {
        let script = format!("exit {code}");
        let output = output(&mut setting.run(&["sh", "-c", &script]));
        assert_eq!(output.status.code(), Some(code), "{}", text(&output.stderr));
        assert_eq!(text(&output.stderr), "");
    }
    let output = output(&mut setting.run(&["sh", "-c", "kill -9 $$"]));
    assert_eq!(killed_by(output.status), Some(9));
}

#[test]
fn programs_that_cannot_be_started() {
    let setting = Setting::new();
    let file = setting.dir.path().join("no-program");
    fs::write(&file, "#!/nonexistent/interpreter\n").unwrap();
    let file = file.to_str().unwrap();
    let missing = output(&mut setting.run(&["no-such-program-anywhere"]));
    assert_eq!(missing.status.code(), Some(127));
    assert!(text(&missing.stderr).contains("no-such-program-anywhere"));
    let forbidden = output(&mut setting.run(&[file]));
    assert_eq!(forbidden.status.code(), Some(126));
    assert!(text(&forbidden.stderr).contains("Permission denied"));
    let folder = output(&mut setting.run(&["/"]));
    assert_eq!(folder.status.code(), Some(126));
}

#[test]
fn the_program_finds_our_libraries_and_the_server() {
    let setting = Setting::new();
    let script = r#"echo "$OUTBOARD_GPU|$LD_LIBRARY_PATH|$TRITON_LIBCUDA_PATH|$NUMBA_CUDA_DRIVER|$OUTBOARD_STATS|$CUDA_HOME"
        ls -L "$TRITON_LIBCUDA_PATH"; cat - | wc -c"#;
    let output = output(
        setting
            .run(&["sh", "-c", script])
            .env("LD_LIBRARY_PATH", "/before")
            .env("CUDA_HOME", "/cuda")
            .env_remove("OUTBOARD_STATS"),
    );
    let stdout = text(&output.stdout);
    let mut lines = stdout.lines();
    let fields: Vec<_> = lines.next().unwrap().split('|').collect();
    let [gpu, path, folder, driver, stats, cuda] = fields[..] else {
        panic!("{stdout}");
    };
    assert_eq!(gpu, setting.server.endpoint.to_string());
    assert_eq!(path, format!("{folder}:/before"));
    assert_eq!(driver, format!("{folder}/libcuda.so.1"));
    assert_eq!((stats, cuda), ("", "/cuda"));
    let names: Vec<_> = lines.by_ref().take(6).collect();
    assert_eq!(
        names,
        [
            "libcuda.so",
            "libcuda.so.1",
            "libcupti.so",
            "libcupti.so.13",
            "libnvidia-ml.so",
            "libnvidia-ml.so.1"
        ]
    );
    // Nothing was read from standard input before the program started.
    assert_eq!(lines.next().map(str::trim), Some("0"));
    let mode = fs::metadata(folder).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}

#[test]
fn stats_are_asked_of_the_client_library() {
    let setting = Setting::new();
    let endpoint = setting.server.endpoint.to_string();
    let output = output(setting.outboard().env("OUTBOARD_GPU", endpoint).args([
        "run",
        "--stats",
        "--",
        "sh",
        "-c",
        "echo $OUTBOARD_STATS",
    ]));
    assert_eq!(text(&output.stdout), "-\n", "{}", text(&output.stderr));
}

#[test]
fn a_folder_that_others_may_write_to_is_not_used() {
    let setting = Setting::new();
    let folder = setting.dir.path().join("outboard");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
    let output = output(&mut setting.run(&["true"]));
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("only you can write to"));
}

/// Makes a command end by SIGINT, as at a terminal, even if this process inherited that SIGINT is
/// ignored: a shell starts background jobs so.
fn interruptible(command: &Command) -> Command {
    let mut by_env = Command::new("env");
    by_env
        .arg("--default-signal=INT")
        .arg(command.get_program())
        .args(command.get_args())
        .stdin(Stdio::null());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => by_env.env(name, value),
            None => by_env.env_remove(name),
        };
    }
    by_env
}

#[test]
fn ctrl_c_reaches_the_program() {
    let setting = Setting::new();
    let mut child = interruptible(&setting.run(&["sh", "-c", "echo started; exec sleep 60"]))
        .process_group(0)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut started = [0; 8];
    child
        .stdout
        .take()
        .unwrap()
        .read_exact(&mut started)
        .unwrap();
    // `run` has become the program: there is no process between the terminal and the program.
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(killed_by(wait(&mut child, PATIENCE)), Some(2));
}

#[test]
fn a_missing_library_is_named_with_where_it_was_looked_for() {
    let setting = Setting::new();
    fs::remove_file(setting.dir.path().join("lib/outboard/libcuda.so.1")).unwrap();
    let output = output(&mut setting.run(&["true"]));
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr.contains("libcuda.so.1 was not found"), "{stderr}");
    assert!(stderr.contains("lib/outboard/libcuda.so.1"), "{stderr}");
}

#[test]
fn no_server() {
    let setting = Setting::new();
    let socket = setting.dir.path().join("nobody");
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    for url in [
        format!("shm://{}", socket.display()),
        format!("tcp://127.0.0.1:{port}"),
    ] {
        let output = output(
            setting
                .outboard()
                .args(["run", "--gpu", &url, "--", "true"]),
        );
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(
            stderr.contains(&format!("no server at {url}: ")),
            "{stderr}"
        );
        assert!(
            stderr.contains(&format!("start one with outboard serve --listen {url}")),
            "{stderr}"
        );
    }
}

/// Listens, and does this with each connection.
fn listener(with: impl Fn(std::net::TcpStream) + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("tcp://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            with(stream.unwrap());
        }
    });
    url
}

#[test]
fn servers_of_another_kind() {
    let setting = Setting::new();
    let garbage = listener(|mut stream| {
        let _ = stream.write_all(b"SSH-2.0-OpenSSH_9.6 and some more bytes of it\r\n");
    });
    let hangs_up = listener(drop);
    for (url, reason) in [
        (garbage, "speaks another protocol (it said \"SSH-2.0-\")"),
        (hangs_up, "hung up"),
    ] {
        let output = output(
            setting
                .outboard()
                .args(["run", "--gpu", &url, "--", "true"]),
        );
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains(reason), "{stderr}");
    }
}

/// Listens as another user at a path; every client's connection is closed.
fn stranger(path: &Path, uid: u32) -> rustix::io::Result<()> {
    let (path, nobody) = (path.to_owned(), Uid::from_raw(uid));
    let listening = thread::spawn(move || {
        // Of this thread alone.
        set_thread_res_uid(nobody, nobody, nobody)?;
        Ok(UnixListener::bind(path).unwrap())
    });
    let listener = listening.join().unwrap()?;
    thread::spawn(move || listener.incoming().for_each(drop));
    Ok(())
}

#[test]
fn a_server_of_another_user_gets_nothing_unless_the_user_is_named() {
    const UID: u32 = 65_534;
    let setting = Setting::new();
    let folder = setting.dir.path().join("shared");
    fs::create_dir(&folder).unwrap();
    for open in [&folder, setting.dir.path()] {
        fs::set_permissions(open, Permissions::from_mode(0o777)).unwrap();
    }
    let path = folder.join("socket");
    if let Err(error) = stranger(&path, UID) {
        let name = "a_server_of_another_user_gets_nothing_unless_the_user_is_named";
        // Past libtest, which would keep it.
        let _ = writeln!(
            io::stderr().lock(),
            "NOT RUN: {name}: another user: {error}"
        );
        return;
    }
    let url = format!("shm://{}", path.display());
    for (named, reason) in [
        (None, "is served by user 65534, who is neither you nor root"),
        (Some("1"), "set OUTBOARD_SERVER_UID=65534"),
        (Some("65534"), "hung up"),
    ] {
        let mut command = setting.outboard();
        command.envs(named.map(|uid| ("OUTBOARD_SERVER_UID", uid)));
        let output = output(command.args(["run", "--gpu", &url, "--", "true"]));
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains(reason), "{stderr}");
    }
}

#[test]
fn a_server_that_says_nothing_is_not_waited_for_for_ever() {
    let setting = Setting::new();
    let held = std::sync::Mutex::new(Vec::new());
    let url = listener(move |stream| held.lock().unwrap().push(stream));
    let start = Instant::now();
    let output = output(
        setting
            .outboard()
            .args(["run", "--gpu", &url, "--", "true"]),
    );
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(
        stderr.contains("took the connection but has said nothing"),
        "{stderr}"
    );
    assert!(!stderr.contains("firewall"), "{stderr}");
    assert!(start.elapsed() < Duration::from_secs(15));
}

#[test]
fn a_server_with_a_full_backlog_says_so() {
    let setting = Setting::new();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("full.sock");
    let kind = rustix::net::SocketType::STREAM;
    let socket = rustix::net::socket(rustix::net::AddressFamily::UNIX, kind, None).unwrap();
    rustix::net::bind(&socket, &rustix::net::SocketAddrUnix::new(&path).unwrap()).unwrap();
    rustix::net::listen(&socket, 0).unwrap();
    let _in_the_backlog = std::os::unix::net::UnixStream::connect(&path).unwrap();
    let url = format!("shm://{}", path.display());
    let output = output(
        setting
            .outboard()
            .args(["run", "--gpu", &url, "--", "true"]),
    );
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("too many clients wait there"), "{stderr}");
    assert!(!stderr.contains("firewall"), "{stderr}");
    assert_eq!(stderr.matches("full.sock").count(), 1, "{stderr}");
}

#[test]
fn what_is_no_server_is_not_to_be_started() {
    let setting = Setting::new();
    let folder = tempfile::tempdir().unwrap();
    for (url, reason) in [
        (
            format!("shm://{}", folder.path().display()),
            "is not a socket",
        ),
        (
            "tcp://no-such-host.invalid:1".into(),
            "is the address right?",
        ),
    ] {
        let output = output(
            setting
                .outboard()
                .args(["run", "--gpu", &url, "--", "true"]),
        );
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains(reason), "{stderr}");
        assert!(!stderr.contains("start one"), "{stderr}");
    }
}

#[test]
fn wrong_command_lines_are_usage_errors() {
    for (args, part) in [
        (vec![], "Usage"),
        (vec!["frobnicate"], "frobnicate"),
        (vec!["run"], "PROGRAM"),
        (
            vec!["run", "--gpu", "http://x", "--", "true"],
            "no link of kind",
        ),
        (
            vec!["run", "--gpu", "tcp://h:99999", "--", "true"],
            "above 65535",
        ),
        (
            vec!["run", "--gpu", "shm://x", "--", "true"],
            "three slashes",
        ),
        (vec!["serve", "--listen", ""], "bad server address"),
        (vec!["serve", "--memory", "1.5GiB"], "not a whole number"),
        (vec!["serve", "--memory", "8XiB"], "no unit"),
        (
            vec!["serve", "--memory", "99999999999999999999GiB"],
            "more bytes than",
        ),
        (
            vec![
                "sweep", "--rtt", "1us", "--out", "/x", "--metric", "step", "--", "true",
            ],
            "no group",
        ),
        (vec!["serve", "--device", "abacus"], "abacus"),
        (vec!["serve", "--threads", "0"], "--threads"),
        (vec!["serve", "--sessions-max", "0"], "--sessions-max"),
        (
            vec!["serve", "--cache", "/x", "--no-cache"],
            "cannot be used with",
        ),
        (vec!["doctor", "--gpu", "tcp://"], "host is missing"),
        (vec!["completions", "cobol"], "cobol"),
    ] {
        let output = output(outboard().args(&args));
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
        assert!(stderr.contains(part), "{args:?}: {stderr}");
        assert!(output.stdout.is_empty());
    }
    for (args, part) in [
        (["serve", "--memory", "1"], "less than 2 MiB"),
        (["serve", "--cache", "/dev/null"], "not a folder"),
        (["serve", "--cache", "/dev/null/below"], "--cache"),
    ] {
        let output = output(outboard().args(args).args(["--device", "soft"]));
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
        assert!(stderr.contains(part), "{args:?}: {stderr}");
    }
    let output = output(
        outboard()
            .env("OUTBOARD_GPU", "nonsense")
            .args(["run", "--", "true"]),
    );
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn help_manual_completions_and_version_come_from_the_declaration() {
    for (args, parts) in [
        (
            vec!["--version"],
            vec![concat!("outboard ", env!("CARGO_PKG_VERSION"))],
        ),
        (vec!["--help"], vec!["serve", "run", "doctor", "Examples:"]),
        (
            vec!["serve", "--help"],
            vec!["--sessions-max", "--insecure", "Examples:"],
        ),
        (
            vec!["man"],
            vec![
                ".TH outboard",
                "serve",
                "\\-\\-sessions\\-max",
                "OUTBOARD_GPU",
            ],
        ),
        (vec!["completions", "bash"], vec!["_outboard", "--no-cache"]),
        (
            vec!["completions", "zsh"],
            vec!["#compdef outboard", "--no-cache"],
        ),
        (vec!["completions", "fish"], vec!["complete -c outboard"]),
    ] {
        let output = output(outboard().args(&args));
        let stdout = text(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        for part in parts {
            assert!(
                stdout.contains(part),
                "{args:?}: {part} is missing in {stdout}"
            );
        }
        if args[0] == "--help" || args[0] == "man" {
            assert!(!stdout.contains("try-library"), "a hidden command is shown");
        }
    }
}

#[test]
fn what_cannot_be_printed_is_an_error_unless_nobody_reads() {
    for args in [
        &["man"][..],
        &["completions", "bash"],
        &["--help"],
        &["--version"],
        &["serve", "--help"],
    ] {
        let full = std::fs::File::options().write(true).open("/dev/full");
        let full = outboard()
            .args(args)
            .stdout(full.unwrap())
            .output()
            .unwrap();
        assert_eq!(full.status.code(), Some(1), "{args:?}");
        let stderr = text(&full.stderr);
        assert!(
            stderr.starts_with("outboard: writing to standard output: "),
            "{stderr}"
        );

        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let unread = outboard().args(args).stdout(writer).output().unwrap();
        assert_eq!(unread.status.code(), Some(0), "{args:?}");
        assert_eq!(text(&unread.stderr), "");
    }
}
