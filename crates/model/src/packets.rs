//! Replays an iteration on a PCIe whose traffic something else plays, to the packet.
//!
//! The traffic of a unit of work depends on when it is submitted, and the reverse. So both are
//! repeated in turn: the replay says when each unit is submitted, the [`Fabric`] plays the
//! traffic of all of them at these times and says how late each is, and the replay goes by that. It
//! ends when the iteration's time stays.

use outboard_trace::GpuWork;

use crate::{Late, Observer, Outcome, Replay, Where, iteration::Iteration};

/// Part of an iteration's time by which two rounds may differ.
const SETTLED_PART: f64 = 5e-4;
const ROUNDS_MAX: usize = 12;

/// Traffic of a unit of work.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Traffic {
    pub kind: GpuWork,
    pub bytes: u64,
    /// Time for which the unit ran as it was recorded.
    pub duration_ns: f64,
    /// Kernels, memsets and copies of it: more than one in a graph.
    pub nodes: u32,
    /// The unit waits for work of another stream.
    pub waits_for_others: bool,
    /// Time of the driver's call, which rings the doorbell.
    pub called_ns: f64,
    /// Time at which the unit would begin if the PCIe were not longer.
    pub due_ns: f64,
}

/// A PCIe that plays traffic.
pub trait Fabric {
    /// Plays all units, which may overlap. Returns for each how late it is.
    fn play(&mut self, traffic: &[Traffic]) -> Vec<Late>;
}

/// Result of a replay with packets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Played {
    pub outcome: Outcome,
    pub rounds: usize,
    /// The iteration's time was the same in the last two rounds.
    pub is_settled: bool,
}

impl Played {
    /// Replays an iteration on a PCIe.
    pub fn new(iteration: &Iteration, fabric: &mut impl Fabric) -> Played {
        let mut replay = Replay::new(iteration);
        let undelayed = iteration.units.iter().map(|unit| Late {
            duration_ns: unit.duration_ns,
            ..Late::default()
        });
        let mut late: Vec<Late> = undelayed.collect();
        let mut before_ns = f64::INFINITY;
        let mut played = Played {
            outcome: Outcome::default(),
            rounds: 0,
            is_settled: false,
        };
        while !played.is_settled && played.rounds < ROUNDS_MAX {
            let mut submitted = Submitted::default();
            played.outcome = replay.run_observed(Where::Late(&late), &mut submitted);
            played.rounds += 1;
            let total_ns = played.outcome.total_ns;
            played.is_settled = (total_ns - before_ns).abs() <= SETTLED_PART * total_ns;
            before_ns = total_ns;
            if !played.is_settled {
                let traffic = submitted.traffic(iteration);
                let found = fabric.play(&traffic);
                for ((index, _, _), found) in submitted.units.iter().zip(found) {
                    late[*index as usize] = found;
                }
            }
        }
        played
    }
}

/// Units that a replay has submitted: index, time of the call, and time at which each is due.
#[derive(Default)]
struct Submitted {
    units: Vec<(u32, f64, f64)>,
}

impl Submitted {
    fn traffic(&self, iteration: &Iteration) -> Vec<Traffic> {
        let traffic = |&(index, called_ns, due_ns): &(u32, f64, f64)| {
            let unit = &iteration.units[index as usize];
            Traffic {
                kind: unit.kind,
                bytes: unit.bytes,
                duration_ns: unit.duration_ns,
                nodes: unit.nodes,
                waits_for_others: unit.after.len > 0,
                called_ns,
                due_ns,
            }
        };
        self.units.iter().map(traffic).collect()
    }
}

impl Observer for Submitted {
    fn submitted(&mut self, unit: u32, called_ns: f64, due_ns: f64) {
        self.units.push((unit, called_ns, due_ns));
    }
}
