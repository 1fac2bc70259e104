//! Random programs give an H200's results, and a difference is shrunk.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::Path;

use outboard_truth::declare;
use outboard_truth::fuzz::shrink::shrink;
use outboard_truth::fuzz::{self, Program, Step};
use outboard_truth::job::Outcome;
use outboard_truth::recording::Recording;
use outboard_truth::soft::Soft;
use outboard_truth::work;

/// Percentage of programs, at most, whose results the driver's optimiser may change.
const DISPUTED_PERCENT_MAX: usize = 2;

#[test]
fn programs_give_what_was_recorded() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("recorded/h200.zst");
    let recording = Recording::read(&file).unwrap();
    let soft = Soft::new().unwrap();
    let (mut wrong, mut ran, mut disputed) = (String::new(), 0, 0);
    for program in &recording.programs {
        let outcome = soft.run(&fuzz::job(program.seed, &program.body)).digest();
        ran += 1;
        disputed += usize::from(program.outcome != program.unoptimised);
        if outcome != program.unoptimised {
            wrong += &format!(
                "program {}: {outcome:x?}, recorded {:x?}\n",
                program.seed, program.unoptimised
            );
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(ran > 480, "only {ran} programs");
    assert!(disputed * 100 <= ran * DISPUTED_PERCENT_MAX, "{disputed}");
}

fn run(soft: &Soft, program: &Program) -> Outcome {
    soft.run(&program.job())
}

#[test]
fn a_seed_is_a_program_and_its_results() {
    let lines = declare::lines().unwrap();
    let soft = Soft::new().unwrap();
    let generator = work::generator(&lines).unwrap();
    for seed in 0..40 {
        let program = generator.program(seed, 30);
        assert_eq!(program, generator.program(seed, 30));
        let outcome = run(&soft, &program);
        assert!(
            matches!(outcome, Outcome::Results(_)),
            "program {seed}: {outcome:?}"
        );
        assert_eq!(outcome, run(&soft, &program));
    }
}

/// A device that executes `xor` as `or`: the difference is found, and reduced to the `xor`.
#[test]
fn what_differs_is_made_small() {
    let lines = declare::lines().unwrap();
    let soft = Soft::new().unwrap();
    let generator = work::generator(&lines).unwrap();
    let differs = |program: &Program| {
        let mut broken = program.clone();
        break_xor(&mut broken.steps);
        run(&soft, program) != run(&soft, &broken)
    };
    let program = (0..1_000)
        .map(|seed| generator.program(seed, 60))
        .find(&differs)
        .unwrap();
    let small = shrink(&program, differs);
    assert!(differs(&small));
    let [Step::Code(text)] = small.steps.as_slice() else {
        panic!("{:#?}", small.steps);
    };
    assert!(text.contains("xor"), "{text}");
}

fn break_xor(steps: &mut [Step]) {
    for step in steps {
        match step {
            Step::Code(text) => *text = text.replace("xor.b32 %r", "or.b32 %r"),
            Step::If(_, yes, no) => {
                break_xor(yes);
                break_xor(no);
            }
            Step::Loop(_, body) => break_xor(body),
        }
    }
}
