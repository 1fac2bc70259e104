//! Fuzzes every decoder with random bytes and with mutated real input.
//!
//! A run is determined by its seed and the corpora. It tries each input of a target's corpus as it
//! is, then many that it mutates from them, cheaply, without coverage feedback: `--collect` has
//! that, in a build with counters, and makes the corpora (`make fuzz-corpora`). A target fails by
//! panicking or by being slow. The target `canary` must fail, so a run without findings has shown
//! that it can find something.

#[cfg(feature = "counters")]
mod collect;
mod corpus;
#[cfg(feature = "counters")]
mod counters;
mod mutate;
mod targets;

#[cfg(feature = "counters")]
use std::path::PathBuf;
use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    process::ExitCode,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use clap::Parser;
use rustix::time::{ClockId, clock_gettime};

use crate::{mutate::Mutator, targets::Target};

/// Time after which one input counts as too slow, if it takes that long each time.
const TRY_MAX: Duration = Duration::from_millis(2_000);
/// Further times that a slow input is tried.
const SLOW_AGAIN: usize = 2;

/// Seconds for each target, if nothing else is asked for.
const SECONDS: u64 = 4;
/// Tries after which the canary must have failed.
const CANARY_TRIES: u64 = 10_000_000;

/// Fuzz every decoder of Outboard for a while.
#[derive(Parser)]
struct Args {
    /// Seconds for each target [default: 4, with --tries as many as they take].
    #[arg(long)]
    seconds: Option<u64>,
    /// Tries of each target; with --seconds the end is what comes first.
    #[arg(long)]
    tries: Option<u64>,
    /// One target only.
    #[arg(long)]
    target: Option<String>,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Fuzz with the seeds alone that are written in the program.
    #[arg(long)]
    without_corpus: bool,
    /// Make a corpus of each target, of what reaches new code, one target after the other.
    #[cfg(feature = "counters")]
    #[arg(long)]
    collect: bool,
    /// With --collect, files to begin with, besides seeds and corpora.
    #[cfg(feature = "counters")]
    #[arg(long = "with")]
    files: Vec<PathBuf>,
}

/// The end of one target's tries: what comes first.
#[derive(Clone, Copy)]
struct Until {
    elapsed: Option<Duration>,
    tries: Option<u64>,
}

impl Until {
    fn is_reached(self, tries: u64, begin: Instant) -> bool {
        self.tries.is_some_and(|wanted| tries >= wanted)
            || self.elapsed.is_some_and(|time| begin.elapsed() >= time)
    }
}

impl Args {
    fn until(&self) -> Until {
        let seconds = match self.tries {
            Some(_) => self.seconds,
            None => Some(self.seconds.unwrap_or(SECONDS)),
        };
        Until {
            elapsed: seconds.map(Duration::from_secs),
            tries: self.tries,
        }
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let targets = targets::all();
    if let Some(wanted) = &args.target
        && !targets.iter().any(|t| t.name == wanted)
    {
        let names: Vec<_> = targets.iter().map(|t| t.name).collect();
        eprintln!("no target {wanted}; there are {}", names.join(", "));
        return ExitCode::from(2);
    }
    // Failures are reported below, once.
    std::panic::set_hook(Box::new(|_| {}));
    let canary = Until {
        elapsed: None,
        tries: Some(CANARY_TRIES),
    };
    if fuzz(&targets::canary(), &[], canary, args.seed).is_ok() {
        eprintln!("the canary survived: this fuzzer finds nothing");
        return ExitCode::FAILURE;
    }
    let chosen: Vec<&Target> = targets
        .iter()
        .filter(|t| args.target.as_deref().is_none_or(|wanted| wanted == t.name))
        .collect();
    match run(&chosen, &args) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("corpora: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Does what is asked for; returns the number of targets that failed.
fn run(chosen: &[&Target], args: &Args) -> io::Result<usize> {
    let corpora = chosen
        .iter()
        .map(|target| match args.without_corpus {
            true => Ok(Vec::new()),
            false => corpus::read(&corpus::folder(), target.name),
        })
        .collect::<io::Result<Vec<_>>>()?;
    #[cfg(feature = "counters")]
    if args.collect {
        let files = args.files.iter().map(std::fs::read);
        let files = files.collect::<io::Result<Vec<_>>>()?;
        for (target, mut inputs) in chosen.iter().zip(corpora) {
            inputs.extend_from_slice(&files);
            let inputs = collect::collect(target, &inputs, args.until(), args.seed);
            let bytes = corpus::write(&corpus::folder(), target.name, inputs)?;
            println!("{:12} {bytes} bytes", target.name);
        }
        return Ok(0);
    }
    #[cfg(feature = "counters")]
    counters::clear();
    let failed = fuzz_all(chosen, &corpora, args.until(), args.seed);
    println!("{} passed, {failed} failed", chosen.len() - failed);
    Ok(failed)
}

/// Fuzzes targets, as many at a time as there are cores, and counts those that failed.
fn fuzz_all(targets: &[&Target], corpora: &[Vec<Vec<u8>>], until: Until, seed: u64) -> usize {
    let (next, failed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let cores = outboard_link::cores::count();
    thread::scope(|scope| {
        for _ in 0..cores.min(targets.len()) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let (Some(target), Some(corpus)) = (targets.get(at), corpora.get(at)) else {
                        return;
                    };
                    let begin = Instant::now();
                    match fuzz(target, corpus, until, seed) {
                        Ok(tries) => {
                            let seconds = begin.elapsed().as_secs();
                            println!("{:12} {tries} tries in {seconds} s", target.name);
                        }
                        Err(failure) => {
                            failed.fetch_add(1, Ordering::Relaxed);
                            println!("{:12} FAILED: {failure}", target.name);
                        }
                    }
                }
            });
        }
    });
    failed.into_inner()
}

/// Tries a corpus, then inputs made of it and of the target's seeds until the end; returns the
/// number of tries, or the failure and its input.
fn fuzz(target: &Target, corpus: &[Vec<u8>], until: Until, seed: u64) -> Result<u64, String> {
    let begin = Instant::now();
    let mut tries = 0;
    for input in target.seeds.iter().chain(corpus) {
        attempt(target, input)?;
        tries += 1;
    }
    let mut mutator = Mutator::new(seed, &target.seeds, corpus);
    while !until.is_reached(tries, begin) {
        attempt(target, mutator.next())?;
        tries += 1;
    }
    Ok(tries)
}

fn attempt(target: &Target, input: &[u8]) -> Result<(), String> {
    let start = Instant::now();
    let outcome = catch_unwind(AssertUnwindSafe(|| (target.run)(input)));
    let took = start.elapsed();
    if let Err(panic) = outcome {
        let why = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_string()));
        return Err(format!(
            "panicked ({}) at {}",
            why.unwrap_or_default(),
            saved(target, input)
        ));
    }
    if took > TRY_MAX && is_slow_again(target, input) {
        return Err(format!(
            "took {} ms at {}",
            took.as_millis(),
            saved(target, input)
        ));
    }
    Ok(())
}

/// Tries a slow input again, by this thread's processor time: by the clock a machine that runs
/// something else is slow, too.
fn is_slow_again(target: &Target, input: &[u8]) -> bool {
    (0..SLOW_AGAIN).all(|_| {
        let start = processor_time();
        let _ = catch_unwind(AssertUnwindSafe(|| (target.run)(input)));
        processor_time().saturating_sub(start) > TRY_MAX
    })
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Saves the input that failed, for a test.
fn saved(target: &Target, input: &[u8]) -> String {
    let path = std::env::temp_dir().join(format!("outboard-fuzz-{}.bin", target.name));
    match std::fs::write(&path, input) {
        Ok(()) => format!("try {}", path.display()),
        Err(error) => format!("bytes that could not be saved: {error}"),
    }
}
