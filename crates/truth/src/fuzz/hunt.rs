//! Random programs on a GPU and on the software device, as long as there is time.

use std::time::{Duration, Instant};

use super::generate::Generator;
use super::shrink::shrink;
use super::{Program, THREAD_BYTES};
use crate::gpu::Gpu;
use crate::job::{Job, Outcome};
use crate::soft::Soft;

/// Results shown of a program.
const SHOWN_MAX: usize = 6;

/// What to try.
#[derive(Clone, Copy, Debug)]
pub struct Hunt {
    pub first_seed: u64,
    pub time: Duration,
    /// Steps of a program.
    pub steps: usize,
    /// Differences after which it ends.
    pub differences_max: usize,
}

/// Prints what the two disagree on, made small. Returns how many programs that were.
pub fn hunt(generator: &Generator<'_>, hunt: Hunt, soft: &Soft, gpu: &mut Gpu) -> usize {
    let started = Instant::now();
    let (mut tried, mut found) = (0, 0);
    while started.elapsed() < hunt.time && found < hunt.differences_max {
        let seed = hunt.first_seed + tried;
        let program = generator.program(seed, hunt.steps);
        tried += 1;
        if differences(&program, soft, gpu).is_empty() {
            continue;
        }
        found += 1;
        let small = shrink(&program, |p| !differences(p, soft, gpu).is_empty());
        println!(
            "program {seed} differs; what is left of it:\n{:#?}",
            small.steps
        );
        for line in differences(&small, soft, gpu).iter().take(SHOWN_MAX) {
            println!("  {line}");
        }
    }
    println!("{tried} programs, {found} differ");
    found
}

/// Results that are not the same, told; none where one of the two does not run the program.
fn differences(program: &Program, soft: &Soft, gpu: &mut Gpu) -> Vec<String> {
    let job = program.job();
    let (Outcome::Results(here), Some(there)) = (soft.run(&job), on_gpu(&job, gpu)) else {
        return Vec::new();
    };
    let words = here.chunks(4).zip(there.chunks(4)).enumerate();
    words
        .filter(|(_, (a, b))| a != b)
        .map(|(word, (a, b))| {
            let (thread, byte) = (word * 4 / THREAD_BYTES, word * 4 % THREAD_BYTES);
            format!("thread {thread} byte {byte}: {a:02x?} here, {b:02x?} there")
        })
        .collect()
}

fn on_gpu(job: &Job, gpu: &mut Gpu) -> Option<Vec<u8>> {
    let kernel = gpu.compile(std::slice::from_ref(job)).pop()?.ok()?;
    match gpu.run(kernel, job) {
        Outcome::Results(results) => Some(results),
        _ => None,
    }
}
