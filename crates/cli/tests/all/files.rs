//! Files that are not what a command wants: what it says, and that nothing is left behind.
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

fn outboard(arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_outboard"))
        .args(arguments)
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    (output.status.code(), stderr)
}

fn recording() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recordings/h200/bert_infer_b1.trace")
}

/// The error names the file once, and has no empty part.
fn assert_clear(stderr: &str, file: &str) {
    assert!(
        !stderr.contains(": :") && !stderr.contains("::"),
        "{stderr}"
    );
    assert_eq!(stderr.matches(file).count(), 1, "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
}

#[test]
fn what_cannot_be_read_is_named_once() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    fs::create_dir(at("a-folder")).unwrap();
    fs::write(at("text"), "not a recording").unwrap();
    fs::write(at("nothing"), "").unwrap();
    let out = at("out");
    for (name, why) in [
        ("a-folder", "Is a directory"),
        ("missing", "No such file"),
        ("text", "not a recording"),
        ("nothing", "nothing was recorded"),
    ] {
        let file = at(name);
        for arguments in [
            &["trace", "show", &file][..],
            &["trace", "cut", &file, "-o", &out],
            &["trace", "export", "--chrome", &file, "-o", &out],
            &["require", &file],
        ] {
            let (code, stderr) = outboard(arguments);
            assert_eq!(code, Some(1), "{arguments:?}: {stderr}");
            assert!(stderr.contains(why), "{arguments:?}: {stderr}");
            assert_clear(&stderr, &file);
        }
    }
    assert!(!Path::new(&out).exists());
}

#[test]
fn a_time_line_goes_to_standard_output_as_to_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let (recording, file) = (recording(), folder.path().join("file"));
    let export = |out: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_outboard"));
        let named = command.args(["trace", "export", "--chrome", "-o"]).arg(out);
        let done = named.arg(&recording).current_dir(folder.path()).output();
        let done = done.unwrap();
        assert_eq!(done.status.code(), Some(0));
        done.stdout
    };
    assert_eq!(export(&file), Vec::<u8>::new());
    assert_eq!(export(Path::new("-")), fs::read(&file).unwrap());
    assert!(!folder.path().join("-").exists());
}

#[test]
fn what_cannot_be_written_is_named_once() {
    let folder = tempfile::tempdir().unwrap();
    let recording = recording().display().to_string();
    let a_folder = folder.path().join("a-folder");
    fs::create_dir(&a_folder).unwrap();
    for file in [&a_folder, &folder.path().join("missing/out")] {
        let file = file.display().to_string();
        for arguments in [
            &["trace", "cut", &recording, "-o", &file][..],
            &["trace", "export", "--chrome", &recording, "-o", &file],
            &["require", &recording, "--json", &file],
            &["require", &recording, "--report", &file],
            // Before anything is measured, which takes longer than a test may.
            &["calibrate", "--json", &file],
        ] {
            let (code, stderr) = outboard(arguments);
            assert_eq!(code, Some(1), "{arguments:?}: {stderr}");
            assert!(stderr.contains("writing "), "{arguments:?}: {stderr}");
            assert_clear(&stderr, &file);
        }
    }
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

/// Opening a pipe waits for its other end, and a device may have no end.
#[test]
fn what_is_no_file_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let recording = recording();
    let recording = recording.to_str().unwrap();
    let key = folder.path().join("key").display().to_string();
    assert_eq!(outboard(&["keygen", &key]).0, Some(0));
    let serve = ["serve", "--no-config", "--device", "soft", "--listen"];
    let socket = format!("shm://{}", folder.path().join("socket").display());
    let serving = |more: &[&str]| [&serve[..], &[&socket], more].concat().join("\n");
    let tls = ["--listen", "tcp://127.0.0.1:0", "--tls", "--tls-key", &key];
    for file in [pipe.to_str().unwrap(), "/dev/zero"] {
        for line in [
            serving(&[&tls[..], &["--authorized", file]].concat()),
            serving(&[&tls[..], &["--client-ca", file]].concat()),
            serving(&[&tls[..2], &["--certificate", file, "--key", &key]].concat()),
            serving(&["--tokens", file]),
            [
                "run",
                "--gpu",
                "tcps://127.0.0.1:9",
                "--ca",
                file,
                "--",
                "true",
            ]
            .join("\n"),
            ["serve", "--check-config", "--config", file].join("\n"),
            ["require", file].join("\n"),
            ["require", recording, "--constants", file].join("\n"),
            ["trace", "show", file].join("\n"),
            ["trace", "cut", recording, "-o", file].join("\n"),
            ["token", "list", "--tokens", file].join("\n"),
        ] {
            let mut command = Command::new("timeout");
            command.args(["10", env!("CARGO_BIN_EXE_outboard")]);
            let output = command.args(line.split('\n')).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(
                matches!(output.status.code(), Some(1 | 2)),
                "{line}: {said}"
            );
            assert!(said.contains("is no file"), "{line}: {said}");
        }
    }
    // A pipe that nobody reads would be waited for.
    let pipe = pipe.to_str().unwrap();
    let audit = serving(&["--audit", pipe]);
    for line in [
        &audit.split('\n').collect::<Vec<_>>()[..],
        &["trace", "export", "--chrome", recording, "-o", pipe],
        &["require", recording, "--json", pipe],
    ] {
        let (_, said) = outboard(line);
        assert!(said.contains("nobody reads this pipe"), "{said}");
    }
}

/// The disk is full after 8 KiB: a limit of the process on the size of files acts as one.
#[test]
fn a_full_disk_leaves_the_files_as_they_were() {
    let folder = tempfile::tempdir().unwrap();
    let recording = recording().display().to_string();
    let file = folder.path().join("out");
    let out = file.display().to_string();
    let cut = ["trace", "cut", &recording, "-o", &out];
    let export = ["trace", "export", "--chrome", &recording, "-o", &out];
    for (arguments, before) in [(&cut[..], None), (&export, None), (&export, Some("before"))] {
        if let Some(before) = before {
            fs::write(&file, before).unwrap();
        }
        let output = Command::new("bash")
            .args(["-c", "ulimit -f 8; trap '' XFSZ; exec \"$@\"", "bash"])
            .arg(env!("CARGO_BIN_EXE_outboard"))
            .args(arguments)
            .output()
            .unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {stderr}");
        assert!(stderr.contains("File too large"), "{stderr}");
        assert_clear(&stderr, &out);
        assert_eq!(fs::read_to_string(&file).ok().as_deref(), before);
        let left: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
        assert_eq!(left.len(), usize::from(before.is_some()), "{left:?}");
    }
}

#[test]
fn a_recording_is_not_written_over() {
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("mine.trace");
    fs::copy(recording(), &copy).unwrap();
    let file = copy.display().to_string();
    let other = recording().display().to_string();
    for arguments in [
        &["trace", "export", "--chrome", &file, "-o", &file][..],
        &["require", &file, "--report", &file],
        // Its own input is a wrong command line already (args/json.rs).
        &["require", &other, "--json", &file],
    ] {
        let (code, stderr) = outboard(arguments);
        assert_eq!(code, Some(1), "{arguments:?}: {stderr}");
        assert!(stderr.contains("this is a recording"), "{stderr}");
        assert!(fs::read(&copy).unwrap() == fs::read(recording()).unwrap());
    }
}

#[test]
fn a_name_that_no_range_has_is_said() {
    let recording = recording().display().to_string();
    let arguments = ["trace", "show", &recording, "--iterations", "nobody"];
    let (code, stderr) = outboard(&arguments);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(
        stderr.contains("no range that is named \"nobody\""),
        "{stderr}"
    );
}

#[test]
fn a_sweep_without_a_server_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("s.json");
    let nowhere = format!("shm://{}", folder.path().join("none.sock").display());
    let (code, stderr) = outboard(&[
        "sweep",
        "--gpu",
        &nowhere,
        "--rtt",
        "1us",
        "--out",
        &out.display().to_string(),
        "--",
        "true",
    ]);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("no server"), "{stderr}");
    assert!(!out.exists());
}
