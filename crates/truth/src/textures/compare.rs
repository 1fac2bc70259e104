//! Comparison of the software device with a recording, probe by probe.

use super::exceptions::{self, Tolerance};
use super::probe::{POINT_WORDS, Probe, RESULT_WORDS};
use crate::job::Outcome;
use crate::recording::Recording;
use crate::soft::Soft;

#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    Agrees,
    /// Differs within an exception: its reason, and the number of results that differ.
    Excepted(&'static str, usize),
    Differs(Vec<Difference>),
    /// Refused by the software device although a GPU gave results; with the reason.
    Refused(String),
    /// The GPU refused or faulted, the software device did not. Both outcomes.
    Ends(String),
    NotRecorded,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Difference {
    Result {
        point: [u32; POINT_WORDS],
        word: usize,
        here: u32,
        there: u32,
    },
    /// A texel of the surface after the kernel.
    Texel { byte: usize, here: u8, there: u8 },
}

pub fn probe(probe: &Probe, recording: &Recording, soft: &Soft) -> Verdict {
    let job = probe.job();
    let Some(there) = recording.outcome(job.key) else {
        return Verdict::NotRecorded;
    };
    let exception = exceptions::of(probe);
    match (soft.run(&job), there) {
        (Outcome::Results(here), Outcome::Results(there)) if here.len() == there.len() => {
            let differences = differences(probe, &here, there);
            match exception {
                _ if differences.is_empty() => Verdict::Agrees,
                Some(e) if differences.iter().all(|d| within(d, e.tolerance)) => {
                    Verdict::Excepted(e.why, differences.len())
                }
                _ => Verdict::Differs(differences),
            }
        }
        (Outcome::Refused(_), Outcome::Refused(_)) | (Outcome::Fault(_), Outcome::Fault(_)) => {
            Verdict::Agrees
        }
        (here, there) => match (exception, here) {
            (Some(e), _) if e.tolerance == Tolerance::NoResult => Verdict::Excepted(e.why, 0),
            (_, Outcome::Refused(why)) => Verdict::Refused(why),
            (_, here) => Verdict::Ends(format!("{} here, {} there", short(&here), short(there))),
        },
    }
}

fn short(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Results(bytes) => format!("results of {} bytes", bytes.len()),
        other => format!("{other:?}"),
    }
}

fn differences(probe: &Probe, here: &[u8], there: &[u8]) -> Vec<Difference> {
    let count = probe.points.len();
    let results = count * RESULT_WORDS * 4;
    let (words_here, _) = here[..results].as_chunks::<4>();
    let (words_there, _) = there[..results].as_chunks::<4>();
    let words = words_here.iter().zip(words_there).enumerate();
    let mut found: Vec<Difference> = words
        .filter(|(_, (here, there))| here != there)
        .map(|(i, (here, there))| Difference::Result {
            point: probe.points[i % count],
            word: i / count,
            here: u32::from_le_bytes(*here),
            there: u32::from_le_bytes(*there),
        })
        .collect();
    let texels = here[results..].iter().zip(&there[results..]).enumerate();
    found.extend(
        texels
            .filter(|(_, (here, there))| here != there)
            .map(|(byte, (&here, &there))| Difference::Texel { byte, here, there }),
    );
    found
}

fn within(difference: &Difference, tolerance: Tolerance) -> bool {
    match (tolerance, difference) {
        (Tolerance::AnyResult | Tolerance::NoResult, _) => true,
        (Tolerance::AtMost(most), &Difference::Result { here, there, .. }) => {
            let [here, there] = [here, there].map(f32::from_bits);
            here.is_nan() && there.is_nan() || f64::from((here - there).abs()) <= most
        }
        (Tolerance::AtMost(_), Difference::Texel { .. }) => false,
    }
}
