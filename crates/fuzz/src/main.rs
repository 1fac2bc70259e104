//! Fuzzes every decoder with random bytes and with mutated real input.
//!
//! A run is determined by its seed, and uses stable Rust: no coverage feedback, many cheap tries. A
//! target fails by panicking or by being slow. The target `canary` must fail, so a run without
//! findings has shown that it can find something.

mod mutate;
mod targets;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    process::ExitCode,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use clap::Parser;

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
    if fuzz(&targets::canary(), canary, args.seed).is_ok() {
        eprintln!("the canary survived: this fuzzer finds nothing");
        return ExitCode::FAILURE;
    }
    let chosen: Vec<&Target> = targets
        .iter()
        .filter(|t| args.target.as_deref().is_none_or(|wanted| wanted == t.name))
        .collect();
    let failed = fuzz_all(&chosen, args.until(), args.seed);
    println!("{} passed, {failed} failed", chosen.len() - failed);
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Fuzzes targets, as many at a time as there are cores, and counts those that failed.
fn fuzz_all(targets: &[&Target], until: Until, seed: u64) -> usize {
    let (next, failed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let cores = outboard_link::cores::count();
    thread::scope(|scope| {
        for _ in 0..cores.min(targets.len()) {
            scope.spawn(|| {
                while let Some(target) = targets.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match fuzz(target, until, seed) {
                        Ok(tries) => println!("{:12} {tries} tries", target.name),
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

/// Tries inputs until the end; returns the number of tries, or the failure and its input.
fn fuzz(target: &Target, until: Until, seed: u64) -> Result<u64, String> {
    let mut mutator = Mutator::new(seed, &target.seeds);
    let begin = Instant::now();
    let mut tries = 0;
    while !until.is_reached(tries, begin) {
        let input = mutator.next();
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
        tries += 1;
    }
    Ok(tries)
}

/// Tries a slow input again: the first time may have been the machine's, which ran something else.
fn is_slow_again(target: &Target, input: &[u8]) -> bool {
    (0..SLOW_AGAIN).all(|_| {
        let start = Instant::now();
        let _ = catch_unwind(AssertUnwindSafe(|| (target.run)(input)));
        start.elapsed() > TRY_MAX
    })
}

/// Saves the input that failed, for a test.
fn saved(target: &Target, input: &[u8]) -> String {
    let path = std::env::temp_dir().join(format!("outboard-fuzz-{}.bin", target.name));
    match std::fs::write(&path, input) {
        Ok(()) => format!("try {}", path.display()),
        Err(error) => format!("bytes that could not be saved: {error}"),
    }
}
