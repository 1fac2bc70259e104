//! Each form is declared once, and either runs or is refused with its line.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::HashSet;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use outboard_ptx::Error;
use outboard_truth::declare::{self, Check};
use outboard_truth::form::TARGET;
use outboard_truth::job::Job;
use outboard_truth::kernel::header;
use outboard_truth::soft::Soft;

#[test]
fn each_form_is_declared_once() {
    let mut seen = HashSet::new();
    let lines = declare::lines().unwrap();
    for form in lines.iter().flat_map(|line| &line.forms) {
        assert!(seen.insert(&form.declared), "twice: {}", form.declared);
    }
    assert!(seen.len() > 5_000, "{} forms", seen.len());
}

#[test]
fn each_form_loads_or_is_refused_with_its_line() {
    let soft = Soft::new().unwrap();
    let lines = declare::lines().unwrap();
    for form in lines.iter().flat_map(|line| &line.forms) {
        let job = Job::of_form(form);
        let Err(refusal) = soft.load(&job) else {
            continue;
        };
        let (Error::Unsupported { at, .. } | Error::Invalid { at, .. } | Error::Syntax { at, .. }) =
            &refusal
        else {
            panic!("{}: {refusal}", form.declared);
        };
        let text = job.module();
        let line = text.lines().nth(at.line as usize - 1).unwrap();
        let of_form = form.text.replace("KERNEL", &job.kernel());
        let before = form.before.replace("KERNEL", &job.kernel());
        assert!(
            line == format!("{of_form};") || !before.is_empty() && line == before,
            "{}: {refusal}: {line}",
            form.declared
        );
        if let Error::Unsupported { instruction, .. } = &refusal {
            assert!(
                line.contains(instruction.as_str()),
                "{}: {refusal}",
                form.declared
            );
        }
    }
}

/// NVIDIA's assembler, which `make` puts into `.toolchain`, agrees on which forms sm_80 has.
#[test]
fn what_is_not_compared_is_what_the_assembler_says() {
    let ptxas = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.toolchain/bin/ptxas");
    if !ptxas.exists() {
        let why = format!("no {}", ptxas.display());
        // Written past the test harness, which would capture it.
        let mut said = std::io::stderr().lock();
        let _ = writeln!(
            said,
            "NOT RUN: what_is_not_compared_is_what_the_assembler_says: {why}"
        );
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let assembles = |text: String| {
        let file = folder.path().join("form.ptx");
        std::fs::write(&file, text).unwrap();
        let mut command = Command::new(&ptxas);
        command
            .arg("-arch=sm_80")
            .arg("-O0")
            .arg("-o")
            .arg(folder.path().join("out"));
        let output = command.arg(&file).output().unwrap();
        (
            output.status.success(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    let lines = declare::lines().unwrap();
    let mut control = header(TARGET);
    for line in &lines {
        for form in &line.forms {
            let text = Job::of_form(form).text;
            if form.target > TARGET {
                let (accepted, _) = assembles(format!("{}{text}", header(TARGET)));
                assert!(!accepted, "{} is declared to be new", form.declared);
                continue;
            }
            match &line.check {
                Check::Control => control.push_str(&text),
                Check::Beyond(needs) => {
                    let (accepted, _) = assembles(format!("{}{text}", header(TARGET)));
                    assert!(!accepted, "{} is declared to need {needs}", form.declared);
                }
                _ => {}
            }
        }
    }
    let (accepted, why) = assembles(control);
    assert!(accepted, "{why}");
}
