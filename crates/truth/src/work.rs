//! The jobs to record: every form that a GPU's results can judge, and random programs.

use outboard_ptx::MemoryError;
use thiserror::Error;

use crate::declare::{self, Check, DeclarationError, Line};
use crate::form::{Form, TARGET};
use crate::fuzz::{self, generate::Generator};
use crate::job::{Job, Outcome};
use crate::recording::{Recorded, Recording};
use crate::soft::Soft;

/// Random programs to record.
const PROGRAMS: u64 = 500;
/// Steps of the programs, from the shortest to the longest.
const STEPS_MIN: usize = 8;
const STEPS_MAX: usize = 88;

#[derive(Debug, Error)]
pub enum WorkError {
    #[error(transparent)]
    Declaration(#[from] DeclarationError),
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

/// Returns the forms that are compared with a GPU.
pub fn forms(lines: &[Line]) -> impl Iterator<Item = &Form> {
    let compared = |line: &&Line| !matches!(line.check, Check::Beyond(_) | Check::Control);
    lines.iter().filter(compared).flat_map(|line| &line.forms)
}

/// Makes a generator of programs from the declared forms that run here.
pub fn generator(lines: &[Line]) -> Result<Generator<'_>, MemoryError> {
    let soft = Soft::new()?;
    Ok(Generator::new(lines, |form| {
        form.target == TARGET && soft.load(&Job::of_form(form)).is_ok()
    }))
}

/// All jobs: forms, then programs, then programs without optimisation.
pub struct Jobs {
    pub jobs: Vec<Job>,
    /// Seed and text of the programs.
    programs: Vec<(u64, String)>,
}

impl Jobs {
    pub fn new() -> Result<Jobs, WorkError> {
        let lines = declare::lines()?;
        let generator = generator(&lines)?;
        let programs: Vec<(u64, String)> = (0..PROGRAMS)
            .map(|seed| {
                let steps = STEPS_MIN + seed as usize % (STEPS_MAX - STEPS_MIN);
                (seed, generator.program(seed, steps).body())
            })
            .collect();
        let mut jobs: Vec<Job> = forms(&lines).map(Job::of_form).collect();
        jobs.extend(programs.iter().map(|(seed, body)| fuzz::job(*seed, body)));
        let unoptimised = |(seed, body): &(u64, String)| fuzz::job_unoptimised(*seed, body);
        jobs.extend(programs.iter().map(unoptimised));
        Ok(Jobs { jobs, programs })
    }

    /// Replaces the programs' results by digests. Programs that were not run both ways are dropped.
    pub fn sort_out(self, recording: &mut Recording) {
        for (seed, body) in self.programs {
            let (job, plain) = (fuzz::job(seed, &body), fuzz::job_unoptimised(seed, &body));
            let both = [job, plain].map(|job| recording.entries.remove(&job.key));
            let [
                Some(outcome @ Outcome::Results(_)),
                Some(unoptimised @ Outcome::Results(_)),
            ] = both
            else {
                continue;
            };
            recording.programs.push(Recorded {
                seed,
                body,
                outcome: outcome.digest(),
                unoptimised: unoptimised.digest(),
            });
        }
    }
}
