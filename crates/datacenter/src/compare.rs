//! Comparison of servers with GPUs and a pool, which get equal tasks, by each policy.

use outboard_dxpu::random::Random;

use crate::{Architecture, Machine, Outcome, Policy, Task, arrivals, play};

/// One row of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    pub name: &'static str,
    pub architecture: Architecture,
    pub policy: Policy,
}

pub const RUNS: [Run; 5] = [
    run("servers, random", Architecture::Servers, Policy::Random),
    run("servers, best fit", Architecture::Servers, Policy::BestFit),
    run("servers, FGD", Architecture::Servers, Policy::Fgd),
    run("pool, best fit", Architecture::Pool, Policy::BestFit),
    run(
        "pool with groups, best fit",
        Architecture::Groups,
        Policy::BestFit,
    ),
];

const fn run(name: &'static str, architecture: Architecture, policy: Policy) -> Run {
    Run {
        name,
        architecture,
        policy,
    }
}

/// Tasks that arrive.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Arriving {
    /// Those of the trace, in their order.
    AsTheyAre,
    /// So many of them at random that they ask for this share of all GPUs; a mean over seeds.
    Share { asked: f64, seeds: u64 },
}

/// Plays the tasks of a trace by this run's architecture and policy. Returns means over the seeds.
pub fn mean(run: Run, machines: &[Machine], trace: &[Task], arriving: Arriving) -> Outcome {
    let seeds = match arriving {
        Arriving::AsTheyAre => 1,
        Arriving::Share { seeds, .. } => seeds.max(1),
    };
    let mut sum = Outcome::default();
    for seed in 0..seeds {
        let mut random = Random::new(seed);
        let drawn;
        let tasks = match arriving {
            Arriving::AsTheyAre => trace,
            Arriving::Share { asked, .. } => {
                drawn = arrivals(trace, machines, asked, &mut random);
                &drawn[..]
            }
        };
        let how = (run.architecture, run.policy);
        let one = play(machines, trace, tasks, how, &mut random);
        sum.at_all_asked += one.at_all_asked;
        sum.gpus_used += one.gpus_used;
        sum.cpus_used += one.cpus_used;
        sum.placed += one.placed;
        sum.refused += one.refused;
    }
    let count = seeds as f64;
    let whole = usize::try_from(seeds).unwrap_or(1);
    Outcome {
        at_all_asked: sum.at_all_asked / count,
        gpus_used: sum.gpus_used / count,
        cpus_used: sum.cpus_used / count,
        placed: sum.placed / whole,
        refused: sum.refused / whole,
    }
}
