//! Jobs: one kernel with one input, to run on a device. Forms and programs become jobs.

use serde::{Deserialize, Serialize};

use crate::form::Form;
use crate::kernel;
use crate::setup::Setup;
use crate::values::{self, BLOCK};

/// A kernel `(out, in)`, its input, and the length of its output.
#[derive(Clone, Debug)]
pub struct Job {
    /// Identifies text and input: a recorded result belongs to the job with its key.
    pub key: u64,
    /// Description for people.
    pub what: String,
    /// PTX of the kernel, without a module's header. The kernel's name is [`Job::kernel`].
    pub text: String,
    /// The architecture that the text is for.
    pub target: u32,
    pub blocks: u32,
    pub threads: u32,
    pub input: Vec<u8>,
    /// Bytes that the kernel writes.
    pub output_bytes: usize,
    /// A texture or surface, whose number is the kernel's third argument.
    pub setup: Option<Setup>,
    /// Whether a GPU's driver may optimise it, which is its default.
    pub optimised: bool,
}

impl Job {
    /// Makes the job that tries a form with all its cases.
    pub fn of_form(form: &Form) -> Job {
        let columns = values::columns(form);
        let cases = cases(&columns);
        let input: Vec<u8> = columns
            .iter()
            .flatten()
            .flat_map(|v| v.to_le_bytes())
            .collect();
        // The kernel's text is not part of the key: how a case is fetched may change, but not the
        // case.
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

    /// Returns a module of this kernel alone.
    pub fn module(&self) -> String {
        format!("{}{}", kernel::header(self.target), self.text)
    }

    /// Returns the kernel's name.
    pub fn kernel(&self) -> String {
        Job::name(self.key)
    }

    pub fn name(key: u64) -> String {
        format!("k{key:016x}")
    }
}

/// Returns the number of cases for these columns: one block if there is no input.
pub fn cases(columns: &[Vec<u64>]) -> usize {
    columns.first().map_or(BLOCK, Vec::len)
}

/// The outcome of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    Results(Vec<u8>),
    /// A random program's results in short: their hash, and the results of the first threads.
    Digest(u64, Vec<u8>),
    /// Refused, with the compiler's message.
    Refused(String),
    /// Ended with a fault.
    Fault(String),
}
