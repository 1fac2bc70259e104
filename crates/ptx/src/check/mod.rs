//! Checks that a real GPU does not make: races, reads of memory that was never written, barriers
//! that threads of a block reach at different places. Also launches whose order is drawn from a
//! seed, so that a failure can be repeated.
//!
//! A watched launch runs on one thread, through functions that check every lane; other launches do
//! not pay for that. [`race`] defines a race, [`crate::written`] tracks which bytes were written.

pub(crate) mod race;
pub(crate) mod seed;
mod source;
pub(crate) mod watch;

use std::str::FromStr;

use parking_lot::Mutex;
use rustc_hash::FxHashSet;

pub(crate) use self::{source::Sources, watch::Watching};

/// Reports of a checker, at most; further findings are only counted.
pub const REPORTS_MAX: usize = 100;

/// The mistakes to look for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checks {
    /// Accesses beyond the bytes of an allocation. Kernels never leave mapped memory; with this the
    /// device maps every allocation by itself.
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

/// Parses `memory,race`: any of [`Checks::NAMES`], or `all`.
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

/// Prints the form that is parsed.
impl std::fmt::Display for Checks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let on = [self.memory, self.race, self.uninitialised, self.barrier];
        let names = Checks::NAMES.iter().zip(on).filter(|(_, on)| *on);
        let names: Vec<_> = names.map(|(name, _)| *name).collect();
        f.write_str(&names.join(","))
    }
}

/// Settings of watched launches, and the findings.
#[derive(Debug, Default)]
pub struct Checker {
    pub checks: Checks,
    /// Seed for the order of blocks, warps and lanes.
    pub seed: Option<u64>,
    found: Mutex<Found>,
}

#[derive(Debug, Default)]
struct Found {
    /// Keyed by kind and instructions: each pair of instructions is reported once.
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

    /// Returns the reports since the last call; at most [`REPORTS_MAX`] are made in all.
    pub fn take_reports(&self) -> Vec<String> {
        std::mem::take(&mut self.found.lock().reports)
    }

    /// Counts the findings so far, each pair of instructions once.
    pub fn count(&self) -> usize {
        self.found.lock().count
    }

    /// Returns the seed of the next launch.
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
