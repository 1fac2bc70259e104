//! Requirements of a GPU with a longer PCIe: the largest round trip within the budget.

use serde::Serialize;

use crate::{
    Both, Budget, Error, Limit, Pcie, Replay, Where, Workload, iteration::Iteration,
    network::RTT_NS_MAX, pcie::RTT_ORIGINAL_NS, search::largest_from,
};

/// Round trips of the paper's two systems, those that it finds for 90 % and 80 % of a ResNet-50's
/// speed, and others around them.
pub(crate) const PCIE_RTTS_NS: [f64; 9] = [2e3, 4.9e3, 6.8e3, 8e3, 1e4, 1.5e4, 1.9e4, 3e4, 5e4];

#[derive(Debug, Clone, Serialize)]
pub struct PcieRequirements {
    pub program: String,
    pub iteration: usize,
    pub step_ns: f64,
    pub replayed_ns: f64,
    pub budget: Budget,
    pub notes: Vec<String>,
    /// `simulated` replays the iteration; `closed_form` adds up all delays, as if none were hidden.
    pub rtt_ns_max: Both<Limit>,
    /// True if the simulation meets the budget at the round trip of a local GPU.
    pub can_be_met: bool,
    pub points: Vec<PciePoint>,
}

#[derive(Debug, Clone, Serialize)]
pub struct PciePoint {
    pub rtt_ns: f64,
    pub read_bytes_per_s: f64,
    pub overhead: Both<f64>,
}

impl PcieRequirements {
    pub fn new(
        program: String,
        workload: &Workload,
        budget: Budget,
        number: Option<usize>,
    ) -> Result<PcieRequirements, Error> {
        let iteration = match number {
            Some(number) => workload.iteration(number)?,
            None => workload.typical(),
        };
        if iteration.works().next().is_none() {
            return Err(Error::NoGpuTimes);
        }
        let mut replay = Replay::new(iteration);
        let local_ns = replay.run(Where::Here).total_ns;
        let mut overhead = |rtt_ns: f64| -> Result<Both<f64>, Error> {
            let pcie = Pcie::new(rtt_ns)?;
            Ok(Both {
                simulated: replay.run(Where::Pcie(&pcie)).total_ns / local_ns - 1.0,
                closed_form: added_ns(iteration, &pcie) / local_ns,
            })
        };
        let mut points = Vec::new();
        for rtt_ns in PCIE_RTTS_NS {
            points.push(PciePoint {
                rtt_ns,
                read_bytes_per_s: Pcie::new(rtt_ns)?.read_bytes_per_s(),
                overhead: overhead(rtt_ns)?,
            });
        }
        let part = budget.part();
        let mut rtt_max = |of: fn(Both<f64>) -> f64| {
            let mut fits = |delta_ns: f64| {
                overhead(RTT_ORIGINAL_NS + delta_ns).is_ok_and(|overhead| of(overhead) <= part)
            };
            match largest_from(RTT_NS_MAX - RTT_ORIGINAL_NS, &mut fits) {
                Limit::At(delta_ns) => Limit::At(RTT_ORIGINAL_NS + delta_ns),
                other => other,
            }
        };
        let rtt_ns_max = Both {
            simulated: rtt_max(|both| both.simulated),
            closed_form: rtt_max(|both| both.closed_form),
        };
        Ok(PcieRequirements {
            can_be_met: rtt_ns_max.simulated != Limit::Never,
            program,
            iteration: iteration.number,
            step_ns: iteration.step_ns,
            replayed_ns: local_ns,
            budget,
            notes: workload.notes.iter().map(|note| note.text()).collect(),
            rtt_ns_max,
            points,
        })
    }
}

/// Returns the sum of all delays of a longer PCIe, as if none were hidden.
pub fn added_ns(iteration: &Iteration, pcie: &Pcie) -> f64 {
    let own = iteration.units.iter().filter(|unit| !unit.is_carried);
    own.map(|unit| {
        let (delay_ns, duration_ns) = pcie.cost(unit);
        delay_ns + duration_ns - unit.duration_ns
    })
    .sum()
}
