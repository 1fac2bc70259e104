//! Jobs on the software device.

mod objects;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use outboard_ptx::launch::STACK_BYTES_DEFAULT;
use outboard_ptx::output::Discard;
use outboard_ptx::{Launch, Memory, MemoryError, Module};

use crate::job::{Job, Outcome};

const BASE: u64 = 0x5000_0000_0000;
const WINDOW_BYTES: u64 = 1 << 30;
const VARIABLES_BYTES: u64 = 1 << 24;
/// Longer than any job's input or output, in bytes.
const BUFFER_BYTES: u64 = 1 << 22;

/// A device with one memory, used for one job after another.
pub struct Soft {
    memory: Memory,
    base: u64,
}

impl Soft {
    pub fn new() -> Result<Soft, MemoryError> {
        // Devices of one process have separate windows.
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let base = BASE + NEXT.fetch_add(1, Ordering::Relaxed) * WINDOW_BYTES;
        let memory = Memory::reserve(base, WINDOW_BYTES, VARIABLES_BYTES)?;
        memory.map(base, 2 * BUFFER_BYTES)?;
        Ok(Soft { memory, base })
    }

    /// Loads a job's text; the error tells why it is refused.
    pub fn load(&self, job: &Job) -> Result<(), outboard_ptx::Error> {
        Module::load(&job.module(), &self.memory).map(drop)
    }

    pub fn run(&self, job: &Job) -> Outcome {
        let module = match Module::load(&job.module(), &self.memory) {
            Ok(module) => module,
            Err(refusal) => return Outcome::Refused(refusal.to_string()),
        };
        let Some(setup) = &job.setup else {
            return self
                .launch(&module, job)
                .map_or_else(Outcome::Fault, Outcome::Results);
        };
        let object = match objects::bind(&self.memory, setup) {
            Ok(object) => object,
            Err(refusal) => return Outcome::Refused(refusal),
        };
        let results = self.launch(&module, job);
        let texels = object.unbind(&self.memory, setup);
        match (results, texels) {
            (Ok(mut results), Ok(texels)) => {
                results.extend(texels);
                Outcome::Results(results)
            }
            (Err(fault), _) | (_, Err(fault)) => Outcome::Fault(fault),
        }
    }

    fn launch(&self, module: &Module, job: &Job) -> Result<Vec<u8>, String> {
        let (output, input) = (self.base, self.base + BUFFER_BYTES);
        let mut results = vec![0; job.output_bytes];
        self.memory
            .write(output, &results)
            .map_err(|e| e.to_string())?;
        self.memory
            .write(input, &job.input)
            .map_err(|e| e.to_string())?;
        let count = if job.setup.is_some() { 3 } else { 2 };
        let params: Vec<u8> = [output, input, objects::NUMBER][..count]
            .iter()
            .flat_map(|p| p.to_le_bytes())
            .collect();
        Launch {
            module,
            kernel: &job.kernel(),
            grid: [job.blocks, 1, 1],
            block: [job.threads, 1, 1],
            dynamic_shared_bytes: 0,
            params: &params,
            workers: 1,
            stack_bytes: STACK_BYTES_DEFAULT,
            cooperative: false,
            envregs: [0; 32],
            output: &Discard,
            heap: None,
            cancel: &AtomicBool::new(false),
            execution: None,
        }
        .run()
        .map_err(|e| e.to_string())?;
        self.memory
            .read(output, &mut results)
            .map_err(|e| e.to_string())?;
        Ok(results)
    }
}
