//! Textures and surfaces give an H200's results, probe by probe.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::HashSet;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use outboard_truth::form::TARGET;
use outboard_truth::job::Outcome;
use outboard_truth::kernel::header;
use outboard_truth::recording::Recording;
use outboard_truth::soft::Soft;
use outboard_truth::textures::compare::{self, Difference, Verdict};
use outboard_truth::textures::corpus;
use outboard_truth::textures::exceptions::EXCEPTIONS;

#[test]
fn each_probe_is_its_own() {
    let (mut keys, mut twice) = (HashSet::new(), String::new());
    for probe in corpus::probes() {
        if !keys.insert(probe.job().key) {
            twice += &format!("twice: {}\n", probe.name());
        }
        assert!(!probe.points.is_empty(), "{}", probe.name());
    }
    assert!(twice.is_empty(), "{twice}");
    assert!(keys.len() > 1_000, "{} probes", keys.len());
}

/// NVIDIA's assembler, which `make` puts into `.toolchain`, accepts all of them.
#[test]
fn each_instruction_is_one_of_ptx() {
    let ptxas = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.toolchain/bin/ptxas");
    if !ptxas.exists() {
        let why = format!("no {}", ptxas.display());
        // Written past the test harness, which would capture it.
        let mut said = std::io::stderr().lock();
        let _ = writeln!(said, "NOT RUN: each_instruction_is_one_of_ptx: {why}");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (mut seen, mut text) = (HashSet::new(), header(TARGET));
    for probe in corpus::probes() {
        if seen.insert(probe.instruction.clone()) {
            text.push_str(&probe.job().text);
        }
    }
    let file = folder.path().join("probes.ptx");
    std::fs::write(&file, text).unwrap();
    let mut command = Command::new(&ptxas);
    command.args(["-arch=sm_80", "-O0", "-o"]);
    let output = command
        .arg(folder.path().join("out"))
        .arg(&file)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// The software device's results are reproducible, and one wrong bit is noticed.
#[test]
fn a_wrong_result_is_noticed() {
    let soft = Soft::new().unwrap();
    let probes = corpus::probes();
    let nearest = probes
        .iter()
        .find(|p| p.name().contains("Wrap normalised"))
        .unwrap();
    let stores = probes
        .iter()
        .find(|p| p.name().contains("sust.b.2d.b32"))
        .unwrap();
    for probe in [nearest, stores] {
        let (mut recording, key) = (Recording::default(), probe.job().key);
        recording.entries.insert(key, soft.run(&probe.job()));
        assert_eq!(compare::probe(probe, &recording, &soft), Verdict::Agrees);
        let Some(Outcome::Results(bytes)) = recording.entries.get_mut(&key) else {
            panic!("{} did not run", probe.name());
        };
        *bytes.last_mut().unwrap() ^= 1;
        bytes[0] ^= 0x80;
        let Verdict::Differs(differences) = compare::probe(probe, &recording, &soft) else {
            panic!("not noticed: {}", probe.name());
        };
        assert_eq!(differences.len(), 2);
        assert!(matches!(differences[0], Difference::Result { .. }));
    }
}

#[test]
fn probes_give_what_was_recorded() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("recorded/h200-textures.zst");
    let recording = Recording::read(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let soft = Soft::new().unwrap();
    let (mut wrong, mut agreed) = (String::new(), 0);
    let mut used = HashSet::new();
    for probe in corpus::probes() {
        let name = probe.name();
        match compare::probe(&probe, &recording, &soft) {
            Verdict::Agrees => agreed += 1,
            Verdict::Excepted(why, _) => {
                used.insert(why);
            }
            Verdict::Differs(differences) => {
                let first = &differences[..differences.len().min(2)];
                wrong += &format!("{name}: {} differ: {first:x?}\n", differences.len());
            }
            Verdict::Refused(why) => wrong += &format!("{name}: refused: {why}\n"),
            Verdict::Ends(how) => wrong += &format!("{name}: {how}\n"),
            Verdict::NotRecorded => wrong += &format!("{name}: not recorded\n"),
        }
    }
    for exception in EXCEPTIONS {
        if !used.contains(exception.why) {
            wrong += &format!("an exception without a difference: {}\n", exception.why);
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(agreed > 850, "only {agreed} probes agreed");
}
