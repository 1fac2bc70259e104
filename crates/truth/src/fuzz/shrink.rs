//! Shortens a program on which two devices differ: everything is removed that the difference does
//! not need.

use super::{Program, Step};

/// Shortens a program. `differs` runs one on both devices, some ten times the number of steps.
pub fn shrink(program: &Program, mut differs: impl FnMut(&Program) -> bool) -> Program {
    let mut best = program.clone();
    loop {
        let before = best.clone();
        let mut place = 0;
        while place < size(&best.steps) {
            let smaller = variants(&best, place).into_iter().find(|p| differs(p));
            match smaller {
                Some(smaller) => best = smaller,
                None => place += 1,
            }
        }
        if best == before {
            return best;
        }
    }
}

fn size(steps: &[Step]) -> usize {
    let inner = |step: &Step| match step {
        Step::Code(_) => 0,
        Step::If(_, yes, no) => size(yes) + size(no),
        Step::Loop(_, body) => size(body),
    };
    steps.iter().map(|step| 1 + inner(step)).sum()
}

/// Returns the program without step `place` (counted through all levels), or with its contents in
/// its place.
fn variants(program: &Program, place: usize) -> Vec<Program> {
    let mut out = Vec::new();
    for way in [replace_by_nothing, replace_by_inside] {
        let mut steps = program.steps.clone();
        if change(&mut steps, &mut place.clone(), way) && steps != program.steps {
            out.push(Program {
                seed: program.seed,
                steps,
            });
        }
    }
    out
}

fn replace_by_nothing(_: &Step) -> Vec<Step> {
    Vec::new()
}

fn replace_by_inside(step: &Step) -> Vec<Step> {
    match step {
        Step::Code(_) => vec![step.clone()],
        Step::If(_, yes, no) => [yes.as_slice(), no].concat(),
        Step::Loop(_, body) => body.clone(),
    }
}

fn change(steps: &mut Vec<Step>, place: &mut usize, way: fn(&Step) -> Vec<Step>) -> bool {
    for index in 0..steps.len() {
        if *place == 0 {
            let instead = way(&steps[index]);
            steps.splice(index..=index, instead);
            return true;
        }
        *place -= 1;
        let done = match &mut steps[index] {
            Step::Code(_) => false,
            Step::If(_, yes, no) => change(yes, place, way) || change(no, place, way),
            Step::Loop(_, body) => change(body, place, way),
        };
        if done {
            return true;
        }
    }
    false
}
