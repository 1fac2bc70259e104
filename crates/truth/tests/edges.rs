//! The software device gives an H200's results, form by form, for the edge values of each type.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::Path;

use outboard_truth::compare::{self, Verdict};
use outboard_truth::declare;
use outboard_truth::recording::Recording;
use outboard_truth::soft::Soft;
use outboard_truth::table;

fn recording() -> Recording {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("recorded/h200.zst");
    Recording::read(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()))
}

#[test]
fn forms_give_what_was_recorded() {
    let (lines, recording, soft) = (declare::lines().unwrap(), recording(), Soft::new().unwrap());
    let (mut wrong, mut agreed) = (String::new(), 0);
    for line in &lines {
        for form in &line.forms {
            match compare::form(line, form, &recording, &soft) {
                Verdict::Agrees { .. } => agreed += 1,
                Verdict::Differs(differences) => {
                    wrong += &format!(
                        "{}: {:x?}\n",
                        form.declared,
                        &differences[..differences.len().min(4)]
                    );
                }
                Verdict::Fault(why) => wrong += &format!("{}: {why}\n", form.declared),
                Verdict::NotRecorded => wrong += &format!("{}: not recorded\n", form.declared),
                Verdict::Refused(_) | Verdict::Loads => {}
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert_eq!(said_in_the_specification(), [agreed, agreed]);
}

/// Numbers of compared forms that SPECIFICATION.md gives: on its first page and in its section.
fn said_in_the_specification() -> [usize; 2] {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../SPECIFICATION.md");
    let text = std::fs::read_to_string(&file).unwrap();
    [("H200's in ", " forms"), ("(", " are compared, ")].map(|(before, after)| {
        let number = |part: &str| part.rsplit_once(before)?.1.replace(',', "").parse().ok();
        let mut said = text
            .match_indices(after)
            .filter_map(|(at, _)| number(&text[..at]));
        match (said.next(), said.next()) {
            (Some(one), None) => one,
            _ => panic!("SPECIFICATION.md does not say once: {before}N{after}"),
        }
    })
}

#[test]
fn a_wrong_result_is_noticed() {
    let (lines, mut recording, soft) =
        (declare::lines().unwrap(), recording(), Soft::new().unwrap());
    let line = lines.iter().find(|l| l.title == "add").unwrap();
    let form = &line.forms[0];
    let key = outboard_truth::job::Job::of_form(form).key;
    assert!(matches!(
        compare::form(line, form, &recording, &soft),
        Verdict::Agrees { .. }
    ));
    let Some(outboard_truth::job::Outcome::Results(bytes)) = recording.entries.get_mut(&key) else {
        panic!("{} is not recorded", form.declared);
    };
    *bytes.last_mut().unwrap() ^= 1;
    let Verdict::Differs(differences) = compare::form(line, form, &recording, &soft) else {
        panic!("not noticed");
    };
    assert_eq!(differences.len(), 1);
}

#[test]
fn the_table_is_up_to_date() {
    let (lines, recording, soft) = (declare::lines().unwrap(), recording(), Soft::new().unwrap());
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/ptx-instructions.md");
    let written = std::fs::read_to_string(&file).unwrap_or_default();
    let now = table::text(&lines, &recording, &soft);
    let differs = now.lines().zip(written.lines()).find(|(a, b)| a != b);
    assert!(
        now == written,
        "docs/ptx-instructions.md is out of date (make ptx-table): {differs:?}"
    );
}
