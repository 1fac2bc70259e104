//! Comparison of the software device with a recording, form by form.

use crate::bounds;
use crate::declare::{Check, Line, Open};
use crate::form::{Form, Operand, PtxType};
use crate::job::{Job, Outcome, cases};
use crate::kernel;
use crate::recording::Recording;
use crate::soft::Soft;
use crate::values;

/// The result of comparing one form.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// All results are as they should be.
    Agrees {
        /// Results that differ from the recorded ones in bits, within what is allowed; and the
        /// number of results.
        differing: usize,
        of: usize,
    },
    Differs(Vec<Difference>),
    /// Refused by the software device, with the reason.
    Refused(String),
    /// It loads; nothing is compared.
    Loads,
    /// It loads; the recording has nothing for it.
    NotRecorded,
    /// It faulted on the software device.
    Fault(String),
}

/// A result that is wrong.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    pub inputs: Vec<u64>,
    pub operand: String,
    pub here: u64,
    pub there: u64,
}

/// A result, its position and its type.
struct Element<'f> {
    operand: &'f Operand,
    kind: PtxType,
    at: usize,
    bytes: usize,
}

pub fn form(line: &Line, form: &Form, recording: &Recording, soft: &Soft) -> Verdict {
    let job = Job::of_form(form);
    if matches!(line.check, Check::Control | Check::Beyond(_)) {
        return match soft.load(&job) {
            Ok(()) => Verdict::Loads,
            Err(why) => Verdict::Refused(why.to_string()),
        };
    }
    let here = match soft.run(&job) {
        Outcome::Results(here) => here,
        Outcome::Refused(why) => return Verdict::Refused(why),
        other => return Verdict::Fault(format!("{other:?}")),
    };
    let there = match recording.outcome(job.key) {
        Some(Outcome::Results(there)) if there.len() == here.len() => there,
        _ => return Verdict::NotRecorded,
    };
    compare(line, form, &here, there)
}

fn compare(line: &Line, form: &Form, here: &[u8], there: &[u8]) -> Verdict {
    let columns = values::columns(form);
    let count = cases(&columns);
    let (mut differing, mut of, mut differences) = (0, 0, Vec::new());
    for case in 0..count {
        let inputs: Vec<u64> = columns.iter().map(|c| c[case]).collect();
        for element in elements(form, count, case) {
            let (x, y) = (word(here, &element), word(there, &element));
            of += 1;
            differing += usize::from(x != y);
            if !agree(&line.check, form, &inputs, &element, x, y) {
                differences.push(Difference {
                    inputs: inputs.clone(),
                    operand: element.operand.name.clone(),
                    here: x,
                    there: y,
                });
            }
        }
    }
    if differences.is_empty() {
        Verdict::Agrees { differing, of }
    } else {
        Verdict::Differs(differences)
    }
}

/// Returns the results of one case.
fn elements(form: &Form, count: usize, case: usize) -> Vec<Element<'_>> {
    let (starts, _) = kernel::layout(form, count);
    let mut out = Vec::new();
    for (start, (operand, kind, per_case)) in starts.into_iter().zip(form.results()) {
        let bytes = kernel::result_bytes(operand, kind);
        for index in 0..per_case {
            let at = start + (case * per_case + index) * bytes;
            out.push(Element {
                operand,
                kind,
                at,
                bytes,
            });
        }
    }
    out
}

fn word(results: &[u8], element: &Element<'_>) -> u64 {
    let mut word = [0; 8];
    word[..element.bytes].copy_from_slice(&results[element.at..element.at + element.bytes]);
    u64::from_le_bytes(word)
}

fn agree(
    check: &Check,
    form: &Form,
    inputs: &[u64],
    element: &Element<'_>,
    x: u64,
    y: u64,
) -> bool {
    match check {
        // Both results must keep the bound: a bound that the GPU itself exceeds would not be the
        // manual's.
        Check::Within(function) => [x, y].iter().all(|&result| {
            let ftz = form.opcode().contains(".ftz");
            bounds::holds(function, ftz, element.kind, inputs, result)
        }),
        Check::Near => x == y || bounds::near(element.kind, x, y),
        Check::Open(Open::Nan, _) => {
            x == y || bounds::is_nan(element.kind, x) && bounds::is_nan(element.kind, y)
        }
        Check::Open(Open::Results, _) => true,
        Check::Open(Open::Subnormal, _) => {
            let kinds = form.inputs();
            let subnormal =
                |(&(kind, _), &bits): (&(PtxType, &str), &u64)| bounds::is_subnormal(kind, bits);
            x == y || kinds.iter().zip(inputs).any(subnormal)
        }
        Check::Exact | Check::Control | Check::Beyond(_) => x == y,
    }
}
