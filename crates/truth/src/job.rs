//! What a device is asked to run: one kernel over one input. Forms become jobs, and programs do.

use serde::{Deserialize, Serialize};

use crate::form::{Form, TARGET};
use crate::fuzz;
use crate::kernel;
use crate::textures::Setup;
use crate::values::{self, BLOCK};

/// One kernel `(out, in)`, its input and how much it gives.
#[derive(Clone, Debug)]
pub struct Job {
    /// Names text and input: a recorded result is that of the same key.
    pub key: u64,
    /// For people.
    pub what: String,
    /// PTX of the kernel, without the header of a module. The kernel's name is [`Job::kernel`].
    pub text: String,
    /// The architecture that it is for.
    pub target: u32,
    pub blocks: u32,
    pub threads: u32,
    pub input: Vec<u8>,
    /// That the kernel writes.
    pub output_bytes: usize,
    /// A texture or surface, whose number is the kernel's third argument.
    pub setup: Option<Setup>,
    /// Whether a GPU's driver may optimise it, as it does unless told otherwise.
    pub optimised: bool,
}

impl Job {
    /// The job that tries a form with all its cases.
    pub fn of_form(form: &Form) -> Job {
        let columns = values::columns(form);
        let cases = cases(&columns);
        let input: Vec<u8> = columns
            .iter()
            .flatten()
            .flat_map(|v| v.to_le_bytes())
            .collect();
        // Not the kernel's text: how a case is fetched may change, what is asked may not.
        let key = values::hash(form.declared.as_bytes()) ^ values::hash(&input).rotate_left(1);
        let (_, output_bytes) = kernel::layout(form, cases);
        Job {
            key,
            what: form.declared.clone(),
            text: kernel::text(form, &Job::name(key), cases),
            target: form.target,
            blocks: (cases / BLOCK) as u32,
            threads: BLOCK as u32,
            input,
            output_bytes,
            setup: None,
            optimised: true,
        }
    }

    /// The job of a random program with this body.
    pub fn of_program(key: u64, seed: u64, body: &str) -> Job {
        Job {
            key,
            what: format!("program {seed}"),
            text: fuzz::kernel(&Job::name(key), body),
            target: TARGET,
            blocks: fuzz::BLOCKS,
            threads: fuzz::THREADS,
            input: fuzz::input(seed),
            output_bytes: fuzz::output_bytes(),
            setup: None,
            optimised: true,
        }
    }

    /// A module of this kernel alone.
    pub fn module(&self) -> String {
        format!("{}{}", kernel::header(self.target), self.text)
    }

    /// The kernel's name.
    pub fn kernel(&self) -> String {
        Job::name(self.key)
    }

    pub fn name(key: u64) -> String {
        format!("k{key:016x}")
    }
}

/// Cases of a form with these columns: one block where nothing goes in.
pub fn cases(columns: &[Vec<u64>]) -> usize {
    columns.first().map_or(BLOCK, Vec::len)
}

/// Threads of which a digest keeps the results.
const DIGEST_THREADS: usize = 4;

impl Outcome {
    /// Of a random program.
    pub fn digest(self) -> Outcome {
        match self {
            Outcome::Results(bytes) => {
                let head = bytes[..bytes.len().min(DIGEST_THREADS * fuzz::THREAD_BYTES)].to_vec();
                Outcome::Digest(values::hash(&bytes), head)
            }
            other => other,
        }
    }
}

/// What came of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    Results(Vec<u8>),
    /// Of a random program, of which only this is kept: a hash of the results, and those of the first threads.
    Digest(u64, Vec<u8>),
    /// Not accepted: the compiler's words.
    Refused(String),
    /// It did not end well.
    Fault(String),
}
