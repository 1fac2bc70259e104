//! Tests of `outboard require`: its answers, its exit codes, and that files are whole or absent.
#[path = "../../../model/tests/builder/mod.rs"]
mod builder;

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use builder::{Builder, call, random};
use outboard_trace::{Class, Trace};
use serde_json::Value;

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn recording(&self, trace: &Trace) -> PathBuf {
        let path = self.path("recording");
        std::fs::write(&path, outboard_trace::to_bytes(trace)).unwrap();
        path
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.path()).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

fn require(file: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_outboard"))
        .arg("require")
        .arg(file)
        .args(arguments)
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

fn sample() -> Trace {
    let mut trace = random(4, 3, 200, 2);
    trace.about.argv = vec!["python".into(), "train.py".into()];
    trace
}

/// A program that waits for every call: no network keeps it near local.
fn hopeless() -> Trace {
    let mut b = Builder::new();
    b.mark(0, false);
    for _ in 0..10 {
        b.call(call("cuModuleGetGlobal_v2", Class::Synchronous, 100));
    }
    b.mark(0, true);
    b.build()
}

#[test]
fn people_and_programs_get_the_same_answer() {
    let folder = Folder::new();
    let file = folder.recording(&sample());
    let (json, csv, page) = (
        folder.path("a.json"),
        folder.path("a.csv"),
        folder.path("a.html"),
    );
    let arguments = [
        "--budget",
        "100%",
        "--json",
        json.to_str().unwrap(),
        "--csv",
        csv.to_str().unwrap(),
        "--report",
        page.to_str().unwrap(),
    ];
    let (code, text, error) = require(&file, &arguments);
    assert_eq!(code, Some(0), "{error}");
    for part in [
        "python train.py",
        "iteration ",
        "RTT at most",
        "the budget is kept up to",
        "it is exceeded from",
        "rack-rdma",
        "or+sr+local",
        "cuLaunchKernel",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let found: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert_eq!(found["can_be_met"], true);
    assert_eq!(found["recording"]["found_by"]["how"], "marks");
    assert_eq!(found["known"].as_array().unwrap().len(), 9);
    let table = std::fs::read_to_string(&csv).unwrap();
    let lines: Vec<Vec<&str>> = table
        .lines()
        .map(|line| line.split(',').collect())
        .collect();
    assert!(lines.iter().all(|line| line.len() == lines[0].len()));
    assert_eq!(lines.len(), 1 + 9 * 11 + 9);
    for known in found["known"].as_array().unwrap() {
        let line = lines.iter().find(|line| known["name"] == line[0]).unwrap();
        let overhead: f64 = line[3].parse().unwrap();
        assert!((known["overhead"]["simulated"].as_f64().unwrap() - overhead).abs() < 1e-8);
        assert_eq!(known["fits"]["simulated"].to_string(), line[5]);
    }
    assert!(
        std::fs::read_to_string(&page)
            .unwrap()
            .ends_with("</html>\n")
    );
    assert_eq!(folder.names(), ["a.csv", "a.html", "a.json", "recording"]);
    let (_, out, _) = require(&file, &["--budget", "100%", "--json", "-"]);
    assert_eq!(serde_json::from_str::<Value>(&out).unwrap(), found);
}

#[test]
fn how_it_ends() {
    let folder = Folder::new();
    let file = folder.recording(&sample());
    for (arguments, expected, says) in [
        (&["--budget", "1000%"][..], 0, "RTT at most"),
        (&["--budget", "-1%"], 2, "out of range"),
        (&["--budget", "1001%"], 2, "out of range"),
        (&["--budget", "five"], 2, "such as 5%"),
        (&["--confidence", "49%"], 2, "out of range"),
        (&["--confidence", "sure"], 2, "such as 90%"),
        (&["--budget", "0.05"], 2, "such as 5%"),
        (&["--at", "fast"], 2, "bad network"),
        (&["--optimise", "all"], 2, "no level"),
        (&["--optimise", "batch=8"], 1, "do not know batches"),
        (&["--iteration", "9"], 1, "has 3 iterations"),
        (
            &["--budget", "1000%", "--iterations", "none such"],
            0,
            "not told apart",
        ),
        (
            &["--constants", "/proc/nowhere/c.json"],
            1,
            "reading the constants",
        ),
        (&["--constants", "/dev/zero"], 1, "no file"),
        (&["--level", "pcie", "--budget", "1000%"], 0, "reads, GB/s"),
        (
            &["--level", "pcie", "--iteration", "0"],
            1,
            "has 3 iterations",
        ),
    ] {
        let (code, out, error) = require(&file, arguments);
        assert_eq!(code, Some(expected), "{arguments:?}: {out}{error}");
        assert!(
            out.contains(says) || error.contains(says),
            "{arguments:?}: {out}{error}"
        );
    }
    let file = folder.recording(&hopeless());
    let (code, out, _) = require(&file, &["--budget", "5%"]);
    assert_eq!(code, Some(3), "{out}");
    assert!(out.contains("no network keeps it within 5 %"), "{out}");
    let (code, out, _) = require(&file, &["--budget", "0%"]);
    assert_eq!(code, Some(3), "{out}");
}

#[test]
fn a_measurement_that_says_nothing_is_refused() {
    let folder = Folder::new();
    let file = folder.recording(&sample());
    for (arguments, expected, says) in [
        (
            &["--without-network", "-7%"][..],
            2,
            "--without-network-error",
        ),
        (
            &["--without-network", "0.93", "--without-network-error", "1%"],
            2,
            "such as -9.3%",
        ),
        (
            &["--without-network=-100%", "--without-network-error=1%"],
            1,
            "must be more than -100",
        ),
        (
            &[
                "--without-network=-7%",
                "--without-network-error=1%",
                "--without-network-at=rtt=1ms",
            ],
            1,
            "over rtt=1ms, it is not without",
        ),
        (
            &[
                "--without-network=-7%",
                "--without-network-error=1%",
                "--level=pcie",
            ],
            1,
            "there is no server",
        ),
        (&["--here", "/dev/null"], 2, "--through"),
        (&["--through", "/dev/null"], 1, "/dev/null"),
    ] {
        let (code, out, error) = require(&file, arguments);
        assert_eq!(code, Some(expected), "{arguments:?}: {out}{error}");
        assert!(error.contains(says), "{arguments:?}: {error}");
    }
}

#[test]
fn what_is_no_recording_is_an_error_and_leaves_nothing() {
    let folder = Folder::new();
    let out = folder.path("out.json");
    let mut local = Builder::new();
    local.call(call("cuCtxGetDevice", Class::Local, 50));
    let whole = outboard_trace::to_bytes(&sample());
    for (bytes, says) in [
        (Vec::new(), "empty"),
        (b"{\"not\": \"a recording\"}".repeat(10), "not a recording"),
        (
            outboard_trace::to_bytes(&Trace::default()),
            "no driver call",
        ),
        (
            outboard_trace::to_bytes(&local.build()),
            "no network is needed",
        ),
    ] {
        let file = folder.path("recording");
        std::fs::write(&file, bytes).unwrap();
        let (code, _, error) = require(&file, &["--json", out.to_str().unwrap()]);
        assert_eq!(code, Some(1), "{error}");
        assert!(error.contains(says), "{says}: {error}");
        assert_eq!(folder.names(), ["recording"]);
    }
    // A cut recording gives an answer for the rest, or the reason why not.
    let file = folder.path("recording");
    std::fs::write(&file, &whole[..whole.len() - 7]).unwrap();
    let (code, out, error) = require(&file, &["--budget", "1000%"]);
    assert!(matches!(code, Some(0 | 1 | 3)), "{out}{error}");
    assert!(
        out.contains("not whole") || error.contains("recording"),
        "{out}{error}"
    );
}

#[test]
fn outputs_are_all_written_or_none() {
    let folder = Folder::new();
    let file = folder.recording(&sample());
    let (json, page) = (folder.path("a.json"), folder.path("no/such/folder.html"));
    std::fs::write(&json, "what was there").unwrap();
    let arguments = [
        "--json",
        json.to_str().unwrap(),
        "--report",
        page.to_str().unwrap(),
    ];
    let (code, _, error) = require(&file, &arguments);
    assert_eq!(code, Some(1));
    assert!(error.contains("no/such/folder.html"), "{error}");
    assert_eq!(std::fs::read_to_string(&json).unwrap(), "what was there");
    assert_eq!(folder.names(), ["a.json", "recording"]);
}

#[test]
fn constants_are_read_and_checked() {
    let folder = Folder::new();
    let file = folder.recording(&sample());
    let constants = folder.path("constants.json");
    let write = |start: &str| {
        let text =
            format!("{{\"source\": \"here\", \"start_ns\": {start}, \"time_local_ns\": 20}}");
        std::fs::write(&constants, text).unwrap();
    };
    let ask = || {
        require(
            &file,
            &[
                "--budget",
                "1000%",
                "--constants",
                constants.to_str().unwrap(),
            ],
        )
    };
    write("300");
    let (code, out, error) = ask();
    assert_eq!(code, Some(0), "{error}");
    assert!(
        out.contains("sending costs 300ns a call") && out.contains("(from: here)"),
        "{out}"
    );
    for (start, says) in [
        ("-1", "start_ns must be 0 or more"),
        ("\"x\"", "outboard calibrate"),
        ("3, \"waits\": 7", "outboard calibrate"),
        ("3, \"waits\": [{\"gpu_ns\": 1}]", "outboard calibrate"),
        (
            "3, \"waits\": [{\"gpu_ns\": NaN, \"more_ns\": 1}]",
            "outboard calibrate",
        ),
        (
            "3, \"waits\": [{\"gpu_ns\": 1, \"more_ns\": -1}]",
            "more_ns of waits must be 0 or more",
        ),
        (
            "3, \"waits\": [{\"gpu_ns\": 2, \"more_ns\": 1}, {\"gpu_ns\": 1, \"more_ns\": 1}]",
            "the waits' gpu_ns must rise; 1 comes after 2",
        ),
    ] {
        write(start);
        let (code, _, error) = ask();
        assert_eq!(code, Some(1));
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn a_measurement_without_a_network_replaces_the_models_error() {
    let folder = Folder::new();
    let file = folder.recording(&sample());
    let (code, out, error) = require(&file, &["--budget", "1%"]);
    assert!(matches!(code, Some(0 | 3)), "{error}");
    assert!(
        out.contains("more than half of the budget; recorded without a network"),
        "{out}"
    );
    let arguments = [
        "--without-network",
        "-7%",
        "--without-network-error",
        "0.5%",
        "--without-network-at",
        "rtt=1ns",
    ];
    let (code, out, error) = require(&file, &arguments);
    assert_eq!(code, Some(0), "{out}{error}");
    for part in [
        "without a network it takes 7.00 % shorter than locally, as given; the replay alone says",
        // Of the time through the server.
        "raised from 90 %: as sure as double the figure exceeds it: that measurement is off by 0.5 %, what the network adds by",
        "a perfect one: 7.00 % shorter than locally",
    ] {
        assert!(out.contains(part), "{part} in {out}");
    }
    let (_, out, _) = require(&file, &[&arguments[..], &["--json", "-"]].concat());
    let found: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(found["without_network"]["overhead"], -0.07);
    assert_eq!(found["without_network"]["pairs"], 0);
    let noise = found["margin"]["noise"].as_f64().unwrap();
    assert!((noise - 0.005 / 0.93).abs() < 1e-9, "{noise}");
    assert_eq!(found["without_network"]["level"], Value::Null);
    let share = |name: &str| found["margin"][name].as_f64().unwrap();
    assert_eq!(share("asked"), 0.9);
    assert!(share("confidence") > 0.9 && share("double_exceeds") > 0.9);
    let page = folder.path("a.html");
    let report = ["--report", page.to_str().unwrap()];
    let (_, out, _) = require(&file, &[&arguments[..], &report].concat());
    assert!(!out.contains("more pairs of recordings"), "{out}");
    let page = std::fs::read_to_string(&page).unwrap();
    assert!(page.contains("Without a network -7.00"), "{page}");
    let unsure = ["--without-network=-7%", "--without-network-error=5%"];
    let (_, out, _) = require(&file, &unsure);
    assert!(out.contains("more pairs of recordings"), "{out}");
    assert!(
        out.contains("for a confidence of 90 % (double the figure exceeds it with only"),
        "{out}"
    );
    // A confidence that was asked for needs no reason.
    let asked = [&arguments[..], &["--confidence", "90%"]].concat();
    let (_, out, _) = require(&file, &asked);
    assert!(
        out.contains("for a confidence of 90 %: that measurement"),
        "{out}"
    );
    // More recordings through the server than here are no pairs.
    let path = file.to_str().unwrap();
    let (code, _, error) = require(&file, &["--through", path, "--through", path]);
    assert_eq!(code, Some(1));
    assert!(
        error.contains("1 recordings here and 2 through the server"),
        "{error}"
    );
}
