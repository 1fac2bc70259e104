//! What a real GPU does not tell: races, reads of memory that nobody wrote, barriers that threads of a block reach at
//! different places. And launches whose order is drawn from a seed, so that what was seen once is seen again.
//!
//! A watched launch runs on one thread, by functions that look at every lane; launches that are not watched do not pay for it.
//! [`race`] says what counts as a race, [`written`] knows which bytes hold something.

pub(crate) mod race;
pub(crate) mod seed;
mod source;
pub(crate) mod watch;
pub(crate) mod written;

use std::str::FromStr;

use parking_lot::Mutex;
use rustc_hash::FxHashSet;

pub(crate) use self::{source::Sources, watch::Watching};

/// Reports of a checker; what comes behind them is only counted.
pub const REPORTS_MAX: usize = 100;

/// What to look for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checks {
    /// Accesses beyond the bytes of an allocation. Kernels never reach beyond what is mapped; this is for whoever maps.
    pub memory: bool,
    pub race: bool,
    pub uninitialised: bool,
    pub barrier: bool,
}

impl Checks {
    pub const NAMES: [&str; 4] = ["memory", "race", "uninitialised", "barrier"];

    pub fn any(self) -> bool {
        self.memory || self.race || self.uninitialised || self.barrier
    }
}

/// `memory,race`: any of [`Checks::NAMES`], or `all`.
impl FromStr for Checks {
    type Err = String;

    fn from_str(list: &str) -> Result<Checks, String> {
        let mut checks = Checks::default();
        for name in list.split(',') {
            match name.trim() {
                "memory" => checks.memory = true,
                "race" => checks.race = true,
                "uninitialised" => checks.uninitialised = true,
                "barrier" => checks.barrier = true,
                "all" => {
                    checks = Checks {
                        memory: true,
                        race: true,
                        uninitialised: true,
                        barrier: true,
                    }
                }
                other => {
                    return Err(format!(
                        "there is no check {other:?}; known are {} and all",
                        Checks::NAMES.join(", ")
                    ));
                }
            }
        }
        Ok(checks)
    }
}

/// As it is parsed.
impl std::fmt::Display for Checks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let on = [self.memory, self.race, self.uninitialised, self.barrier];
        let names = Checks::NAMES.iter().zip(on).filter(|(_, on)| *on);
        let names: Vec<_> = names.map(|(name, _)| *name).collect();
        f.write_str(&names.join(","))
    }
}

/// How launches are watched, and what was found.
#[derive(Debug, Default)]
pub struct Checker {
    pub checks: Checks,
    /// Draws the order of blocks, warps and lanes.
    pub seed: Option<u64>,
    found: Mutex<Found>,
}

#[derive(Debug, Default)]
struct Found {
    /// By the instructions and the kind: each pair of instructions is reported once.
    known: FxHashSet<(&'static str, String, u32, u32)>,
    reports: Vec<String>,
    count: usize,
    launches: u64,
}

impl Checker {
    pub fn new(checks: Checks, seed: Option<u64>) -> Checker {
        Checker {
            checks,
            seed,
            found: Mutex::default(),
        }
    }

    /// Reports since the last call, at most [`REPORTS_MAX`] in all.
    pub fn take_reports(&self) -> Vec<String> {
        std::mem::take(&mut self.found.lock().reports)
    }

    /// Findings so far, each pair of instructions once.
    pub fn count(&self) -> usize {
        self.found.lock().count
    }

    /// The seed of the next launch.
    fn next_seed(&self) -> Option<u64> {
        let mut found = self.found.lock();
        found.launches += 1;
        self.seed.map(|seed| seed::mixed(seed, found.launches))
    }

    fn report(
        &self,
        kind: &'static str,
        kernel: &str,
        lines: [u32; 2],
        text: impl FnOnce() -> String,
    ) {
        let mut found = self.found.lock();
        if found.count >= REPORTS_MAX * 10
            || !found
                .known
                .insert((kind, kernel.to_owned(), lines[0], lines[1]))
        {
            return;
        }
        found.count += 1;
        if found.count <= REPORTS_MAX {
            let text = format!("{kind}: kernel `{kernel}`: {}", text());
            tracing::warn!("{text}");
            found.reports.push(text);
        } else if found.count == REPORTS_MAX + 1 {
            tracing::warn!("more than {REPORTS_MAX} findings: the rest is only counted");
        }
    }
}
