//! The software device beside a recording, probe by probe.

use super::exceptions;
use super::probe::{POINT_WORDS, Probe, RESULT_WORDS};
use crate::job::Outcome;
use crate::recording::Recording;
use crate::soft::Soft;

#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    Agrees,
    /// Differs as far as an exception says: why, and how many results do.
    Excepted(&'static str, usize),
    Differs(Vec<Difference>),
    /// Not accepted here, though a GPU gave results: why.
    Refused(String),
    /// A GPU refused or faulted; here it did not. Both outcomes.
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
    /// Of a surface, afterwards.
    Texel { byte: usize, here: u8, there: u8 },
}

pub fn probe(probe: &Probe, recording: &Recording, soft: &Soft) -> Verdict {
    let job = probe.job();
    let Some(there) = recording.outcome(job.key) else {
        return Verdict::NotRecorded;
    };
    match (soft.run(&job), there) {
        (Outcome::Results(here), Outcome::Results(there)) if here.len() == there.len() => {
            let differences = differences(probe, &here, there);
            if differences.is_empty() {
                return Verdict::Agrees;
            }
            match exceptions::of(probe) {
                Some(e) if differences.iter().all(|d| within(d, e.ulps_max)) => {
                    Verdict::Excepted(e.why, differences.len())
                }
                _ => Verdict::Differs(differences),
            }
        }
        (Outcome::Refused(why), Outcome::Results(_)) => Verdict::Refused(why),
        (Outcome::Refused(_), Outcome::Refused(_)) | (Outcome::Fault(_), Outcome::Fault(_)) => {
            Verdict::Agrees
        }
        (here, there) => Verdict::Ends(format!("{} here, {} there", short(&here), short(there))),
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

fn within(difference: &Difference, ulps_max: Option<u32>) -> bool {
    let (Some(ulps_max), &Difference::Result { here, there, .. }) = (ulps_max, difference) else {
        return ulps_max.is_none();
    };
    // Sign and magnitude, in order.
    let place = |bits: u32| match bits >> 31 {
        0 => i64::from(bits),
        _ => -i64::from(bits & 0x7fff_ffff),
    };
    place(here).abs_diff(place(there)) <= ulps_max.into()
}
