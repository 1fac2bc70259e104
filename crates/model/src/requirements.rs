//! The whole answer: the network that one iteration of a recording needs, by both models.

use std::collections::BTreeMap;

use outboard_api::{decl::Class, optimise::Level};
use outboard_trace::About;
use outboard_wire::network::KNOWN;
use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::{
    Both, Budget, Confidence, Constants, Error, FoundBy, Judge, LEVELS, Limit, Margin, Mode,
    Network, Observer, Remote, Replay, Step, Where, WithoutNetwork, Workload,
    advice::advice,
    check_level,
    confidence::model_error,
    iteration::{Iteration, median},
    network::{BITS_PER_S_MIN, RTT_NS_MAX},
    search::{never_fall, never_need_less},
};

/// Round-trip times of Figure 9, and longer ones.
pub const RTTS_NS: [f64; 11] = [1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 1e7];
pub const BANDWIDTHS_BPS: [f64; 9] = [1e8, 5e8, 1e9, 5e9, 1e10, 2.5e10, 4e10, 1e11, 2e11];
/// Figure 10: bandwidth and round-trip times at which the growth of the overhead is shown.
pub const SLOPE_BPS: f64 = 2e11;
pub(crate) const SLOPE_RTTS_NS: [f64; 9] = [0.0, 5e3, 1e4, 2e4, 3e4, 4e4, 6e4, 8e4, 1e5];
/// Round-trip time at which levels are compared by their smallest bandwidth.
pub const LEVELS_RTT_NS: f64 = 1e4;
/// Functions that are listed by their cost, at most.
pub(crate) const CALLS_MAX: usize = 12;

/// A question to the models.
#[derive(Debug, Clone)]
pub struct Question<'a> {
    pub budget: Budget,
    pub confidence: Confidence,
    pub level: Level,
    pub constants: &'a Constants,
    /// Network at which the cost of calls is shown.
    pub at: Network,
    /// Number of the iteration, from 1; `None` for the typical one.
    pub iteration: Option<usize>,
    /// Time without a network, if it was measured.
    pub without_network: Option<&'a WithoutNetwork>,
}

/// An answer of the models. Overheads are shares of the local time: 0.05 is 5 %.
#[derive(Debug, Clone, Serialize)]
pub struct Requirements {
    pub recording: Recording,
    pub budget: Budget,
    /// Margin kept below the budget in every limit of this answer.
    pub margin: Margin,
    pub level: String,
    pub constants: Constants,
    /// Number of times that the iteration waits for the GPU.
    pub waits: usize,
    /// Overhead of a network that costs nothing.
    pub perfect: Both<f64>,
    /// The overhead that was measured without a network, and the replay's for the same link.
    pub without_network: Option<Measured>,
    /// True if the simulation can meet the budget.
    pub can_be_met: bool,
    /// The largest round-trip time at each bandwidth.
    pub rtt_max: Vec<RttMax>,
    /// The round-trip time at each bandwidth from which on the budget is exceeded, with the same
    /// confidence. Between the two nothing is sure.
    pub rtt_beyond: Vec<RttMax>,
    /// The smallest bandwidth at each round-trip time.
    pub bandwidth_min: Vec<BandwidthMin>,
    pub slope: Slope,
    /// Overheads on the grid of both: a row for each bandwidth.
    pub grid: Grid,
    pub known: Vec<KnownNetwork>,
    pub levels: Vec<LevelNeeds>,
    pub at: Network,
    /// Overhead at that network, of this iteration.
    pub at_overhead: Both<f64>,
    /// Overhead at that network, simulated, over all iterations.
    pub at_spread: Spread,
    /// Functions at that network, those that add most first.
    pub calls: Vec<CallCost>,
}

#[derive(Debug, Clone, Serialize)]
pub struct Recording {
    pub program: String,
    pub devices: Vec<String>,
    pub found_by: FoundBy,
    pub iterations: usize,
    /// Number of the iteration of the answer.
    pub iteration: usize,
    pub calls: usize,
    pub threads: usize,
    pub handoffs: usize,
    pub works: usize,
    pub step_ns: f64,
    /// Time in which the GPU is busy.
    pub gpu_busy_ns: f64,
    pub step_ns_min: f64,
    pub step_ns_max: f64,
    /// Duration of the local replay, which should be close to the recorded one.
    pub replayed_ns: f64,
    /// Largest difference between the two over all iterations, as a share of the recorded one.
    pub replay_error_max: f64,
    pub classes: Vec<ClassCount>,
    pub notes: Vec<String>,
}

/// A measurement without a network beside its prediction.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Measured {
    #[serde(flatten)]
    pub known: WithoutNetwork,
    pub foreseen: f64,
}

/// Differences between iterations.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Spread {
    pub iterations: usize,
    pub min: f64,
    pub median: f64,
    pub max: f64,
}

#[derive(Debug, Clone, Serialize)]
pub struct ClassCount {
    pub class: &'static str,
    pub calls: usize,
    pub time_ns: f64,
    pub request_bytes: u64,
    pub response_bytes: u64,
}

#[derive(Debug, Clone, Serialize)]
pub struct RttMax {
    pub bits_per_s: f64,
    pub rtt_ns: Both<Limit>,
}

#[derive(Debug, Clone, Serialize)]
pub struct BandwidthMin {
    pub rtt_ns: f64,
    pub bits_per_s: Both<Limit>,
}

#[derive(Debug, Clone, Serialize)]
pub struct Slope {
    pub bits_per_s: f64,
    pub rtts_ns: Vec<f64>,
    /// One for each level, among them that of the question, in the order of [`LEVELS`].
    pub levels: Vec<LevelSlope>,
}

#[derive(Debug, Clone, Serialize)]
pub struct LevelSlope {
    pub level: String,
    pub overhead: Vec<Both<f64>>,
    /// Share of the local time that a microsecond of round-trip time adds, from the first to the
    /// last.
    pub per_us: Both<f64>,
}

#[derive(Debug, Clone, Serialize)]
pub struct Grid {
    pub rtts_ns: Vec<f64>,
    pub bandwidths: Vec<f64>,
    pub overhead: Vec<Vec<Both<f64>>>,
}

#[derive(Debug, Clone, Serialize)]
pub struct KnownNetwork {
    pub name: &'static str,
    pub what: &'static str,
    pub source: &'static str,
    pub network: Network,
    pub overhead: Both<f64>,
    pub fits: Both<bool>,
}

#[derive(Debug, Clone, Serialize)]
pub struct LevelNeeds {
    pub level: String,
    pub async_calls: u64,
    pub sync_calls: u64,
    pub local_calls: u64,
    pub perfect: Both<f64>,
    /// At the bandwidth [`SLOPE_BPS`].
    pub rtt_ns_max: Both<Limit>,
    /// At the round-trip time [`LEVELS_RTT_NS`].
    pub bits_per_s_min: Both<Limit>,
}

/// Cost of the calls of one function.
#[derive(Debug, Clone, Serialize)]
pub struct CallCost {
    pub function: String,
    pub class: &'static str,
    pub mode: Mode,
    pub calls: usize,
    pub bytes: u64,
    /// Sum of the times from call to return: here, and over the network.
    pub local_ns: f64,
    pub remote_ns: f64,
    /// Time by which the iteration would end sooner if they were not waited for; 0 if they are not.
    pub freed_ns: f64,
    /// Advice on how to make them cheaper.
    pub advice: String,
}

impl<'a> Question<'a> {
    /// Returns what judges networks for an iteration at a level, by what was measured as well.
    fn judge(&self, iteration: &'a Iteration, level: Level) -> Judge<'a> {
        let judge = Judge::new(iteration, level, self.constants);
        judge.measured(self.without_network, self.level)
    }
}

impl Requirements {
    /// Returns true if a perfect network would keep the budget, but for the margin.
    pub fn is_uncertain(&self) -> bool {
        !self.can_be_met && self.perfect.simulated <= self.budget.part()
    }

    pub fn new(
        about: &About,
        workload: &Workload,
        question: &Question,
    ) -> Result<Requirements, Error> {
        let (iteration, mut judge) = judge(workload, question)?;
        let margin = margin(workload, iteration, question);
        let part = margin.within(question.budget.part());
        let perfect = judge.overhead(Network::PERFECT);
        Ok(Requirements {
            recording: recording(about, workload, iteration, judge.local_ns),
            budget: question.budget,
            margin,
            level: question.level.to_string(),
            constants: question.constants.clone(),
            waits: waits(iteration),
            perfect,
            without_network: measured(iteration, question),
            can_be_met: perfect.simulated <= part,
            rtt_max: rtt_max(&mut judge, part),
            rtt_beyond: rtt_max(&mut judge, margin.beyond(question.budget.part())),
            bandwidth_min: bandwidth_min(&mut judge, part),
            slope: slope(iteration, question),
            grid: grid(&mut judge),
            known: known(&mut judge, part),
            levels: levels(iteration, question, part),
            at: question.at,
            at_overhead: judge.overhead(question.at),
            at_spread: spread(workload, question),
            calls: calls(workload, iteration, &mut judge, question),
        })
    }
}

/// Returns the iteration that a question is about, and what judges networks for it.
fn judge<'a>(
    workload: &'a Workload,
    question: &Question<'a>,
) -> Result<(&'a Iteration, Judge<'a>), Error> {
    check_level(question.level)?;
    question.constants.check()?;
    let iteration = match question.iteration {
        Some(number) => workload.iteration(number)?,
        None => workload.typical(),
    };
    if let (Some(_), Some(gpu)) = (question.without_network, &workload.gpu) {
        return Err(Error::NotLocal { gpu: gpu.clone() });
    }
    if let Some(known) = question.without_network {
        known.check_level(question.level)?;
    }
    let judge = question.judge(iteration, question.level);
    if judge.local_ns <= 0.0 {
        return Err(Error::NoTime);
    }
    Ok((iteration, judge))
}

fn waits(iteration: &Iteration) -> usize {
    let waits = |step: &&Step| step.is_wait() && step.class == Class::Synchronous;
    iteration.steps().filter(waits).count()
}

fn measured(iteration: &Iteration, question: &Question) -> Option<Measured> {
    let known = *question.without_network?;
    let mut judge = Judge::new(iteration, question.level, question.constants);
    let foreseen = judge.overhead(known.network).simulated;
    Some(Measured { known, foreseen })
}

fn margin(workload: &Workload, iteration: &Iteration, question: &Question) -> Margin {
    let model_error = model_error(iteration, question.level, question.constants);
    let (confidence, budget) = (question.confidence, question.budget.part());
    match question.without_network {
        None => Margin::new(confidence, workload.errors, model_error),
        Some(known) => Margin::measured(confidence, known, model_error, budget),
    }
}

/// Returns the networks that just keep an iteration within the budget, by simulation: round trips
/// at most, bandwidths at least. None is as good as another one in both. Without any no network
/// is good enough.
pub fn frontier(workload: &Workload, question: &Question) -> Result<Vec<Network>, Error> {
    let (iteration, mut judge) = judge(workload, question)?;
    let part = margin(workload, iteration, question).within(question.budget.part());
    let by_bandwidth = rtt_max(&mut judge, part).into_iter().filter_map(|point| {
        let rtt_ns = match point.rtt_ns.simulated {
            Limit::Never => return None,
            Limit::At(rtt_ns) => rtt_ns,
            Limit::Any => RTT_NS_MAX,
        };
        let bits_per_s = point.bits_per_s;
        Some(Network { rtt_ns, bits_per_s })
    });
    let by_rtt = bandwidth_min(&mut judge, part)
        .into_iter()
        .filter_map(|point| {
            let bits_per_s = match point.bits_per_s.simulated {
                Limit::Never => return None,
                Limit::At(bits_per_s) => bits_per_s,
                Limit::Any => BITS_PER_S_MIN,
            };
            let rtt_ns = point.rtt_ns;
            Some(Network { rtt_ns, bits_per_s })
        });
    Ok(without_stricter(by_bandwidth.chain(by_rtt).collect()))
}

/// Leaves out networks that have to be as good as another one in both, and sorts by bandwidth.
fn without_stricter(mut networks: Vec<Network>) -> Vec<Network> {
    networks.sort_by(|a, b| {
        let by_bandwidth = a.bits_per_s.total_cmp(&b.bits_per_s);
        by_bandwidth.then(b.rtt_ns.total_cmp(&a.rtt_ns))
    });
    let mut rtt_ns = f64::MIN;
    networks.retain(|network| {
        let is_laxer = network.rtt_ns > rtt_ns;
        rtt_ns = rtt_ns.max(network.rtt_ns);
        is_laxer
    });
    networks
}

fn recording(
    about: &About,
    workload: &Workload,
    iteration: &Iteration,
    replayed_ns: f64,
) -> Recording {
    let steps = workload.iterations.iter().map(|i| i.step_ns);
    let error = |i: &Iteration| {
        let total_ns = Replay::new(i).run(Where::Here).total_ns;
        (total_ns - i.step_ns).abs() / i.step_ns
    };
    let mut classes: BTreeMap<Class, ClassCount> = BTreeMap::new();
    for step in iteration.steps() {
        let count = classes.entry(step.class).or_insert(ClassCount {
            class: step.class.name(),
            calls: 0,
            time_ns: 0.0,
            request_bytes: 0,
            response_bytes: 0,
        });
        count.calls += 1;
        count.time_ns += step.duration_ns;
        count.request_bytes = count.request_bytes.saturating_add(step.request_bytes);
        count.response_bytes = count.response_bytes.saturating_add(step.response_bytes);
    }
    Recording {
        program: about.argv.join(" "),
        devices: about.devices.iter().map(|d| d.name.clone()).collect(),
        found_by: workload.found_by,
        iterations: workload.present,
        iteration: iteration.number,
        calls: iteration.steps().count(),
        threads: iteration.threads.len(),
        handoffs: iteration.handoffs,
        works: iteration.works().count(),
        step_ns: iteration.step_ns,
        gpu_busy_ns: iteration.gpu_busy_ns(),
        step_ns_min: steps.clone().fold(f64::MAX, f64::min),
        step_ns_max: steps.fold(0.0, f64::max),
        replayed_ns,
        replay_error_max: workload.iterations.iter().map(error).fold(0.0, f64::max),
        classes: classes.into_values().collect(),
        notes: workload.notes.iter().map(|note| note.text()).collect(),
    }
}

fn spread(workload: &Workload, question: &Question) -> Spread {
    let overhead = |iteration: &Iteration| {
        let mut judge = question.judge(iteration, question.level);
        judge.overhead(question.at).simulated
    };
    let mut overheads: Vec<f64> = workload.iterations.iter().map(overhead).collect();
    Spread {
        iterations: overheads.len(),
        min: overheads.iter().copied().fold(f64::MAX, f64::min),
        max: overheads.iter().copied().fold(f64::MIN, f64::max),
        median: median(&mut overheads),
    }
}

fn rtt_max(judge: &mut Judge, part: f64) -> Vec<RttMax> {
    let mut limits: Vec<Both<Limit>> = BANDWIDTHS_BPS
        .iter()
        .map(|bits_per_s| judge.rtt_max(part, *bits_per_s))
        .collect();
    never_fall(&mut limits);
    let points = BANDWIDTHS_BPS.iter().zip(limits);
    points
        .map(|(bits_per_s, rtt_ns)| RttMax {
            bits_per_s: *bits_per_s,
            rtt_ns,
        })
        .collect()
}

fn bandwidth_min(judge: &mut Judge, part: f64) -> Vec<BandwidthMin> {
    let mut limits: Vec<Both<Limit>> = RTTS_NS
        .iter()
        .map(|rtt_ns| judge.bandwidth_min(part, *rtt_ns))
        .collect();
    never_need_less(&mut limits);
    let points = RTTS_NS.iter().zip(limits);
    points
        .map(|(rtt_ns, bits_per_s)| BandwidthMin {
            rtt_ns: *rtt_ns,
            bits_per_s,
        })
        .collect()
}

fn slope(iteration: &Iteration, question: &Question) -> Slope {
    let levels = LEVELS.map(|level| {
        let mut judge = question.judge(iteration, level);
        let overhead: Vec<Both<f64>> = SLOPE_RTTS_NS
            .iter()
            .map(|rtt_ns| {
                judge.overhead(Network {
                    rtt_ns: *rtt_ns,
                    bits_per_s: SLOPE_BPS,
                })
            })
            .collect();
        let (first, last) = (overhead[0], overhead[overhead.len() - 1]);
        let us = (SLOPE_RTTS_NS[SLOPE_RTTS_NS.len() - 1] - SLOPE_RTTS_NS[0]) / 1e3;
        LevelSlope {
            level: level.to_string(),
            per_us: Both {
                simulated: (last.simulated - first.simulated) / us,
                closed_form: (last.closed_form - first.closed_form) / us,
            },
            overhead,
        }
    });
    Slope {
        bits_per_s: SLOPE_BPS,
        rtts_ns: SLOPE_RTTS_NS.to_vec(),
        levels: levels.into(),
    }
}

fn grid(judge: &mut Judge) -> Grid {
    let row = |judge: &mut Judge, bits_per_s: f64| {
        let network = |rtt_ns: &f64| Network {
            rtt_ns: *rtt_ns,
            bits_per_s,
        };
        let row = RTTS_NS.iter().map(|rtt_ns| judge.overhead(network(rtt_ns)));
        row.collect::<Vec<_>>()
    };
    Grid {
        rtts_ns: RTTS_NS.to_vec(),
        bandwidths: BANDWIDTHS_BPS.to_vec(),
        overhead: BANDWIDTHS_BPS.iter().map(|b| row(judge, *b)).collect(),
    }
}

fn known(judge: &mut Judge, part: f64) -> Vec<KnownNetwork> {
    let fit = |known: &outboard_wire::network::Known| {
        let network = Network::from(&known.network());
        let overhead = judge.overhead(network);
        KnownNetwork {
            name: known.name,
            what: known.what,
            source: known.source,
            network,
            overhead,
            fits: Both {
                simulated: overhead.simulated <= part,
                closed_form: overhead.closed_form <= part,
            },
        }
    };
    KNOWN.iter().map(fit).collect()
}

fn levels(iteration: &Iteration, question: &Question, part: f64) -> Vec<LevelNeeds> {
    let needs = LEVELS.map(|level| {
        let mut judge = question.judge(iteration, level);
        let closed = *judge.closed();
        LevelNeeds {
            level: level.to_string(),
            async_calls: closed.async_calls,
            sync_calls: closed.sync_calls,
            local_calls: closed.local_calls,
            perfect: judge.overhead(Network::PERFECT),
            rtt_ns_max: judge.rtt_max(part, SLOPE_BPS),
            bits_per_s_min: judge.bandwidth_min(part, LEVELS_RTT_NS),
        }
    });
    needs.into()
}

#[derive(Debug, Default)]
struct Costs {
    by_call: FxHashMap<(u32, Class), Cost>,
}

#[derive(Debug, Clone, Copy)]
struct Cost {
    mode: Mode,
    calls: usize,
    bytes: u64,
    local_ns: f64,
    remote_ns: f64,
}

impl Observer for Costs {
    fn call(&mut self, _thread: usize, step: &Step, mode: Mode, from_ns: f64, to_ns: f64) {
        let key = (step.function, step.class);
        let cost = self.by_call.entry(key).or_insert(Cost {
            mode,
            calls: 0,
            bytes: 0,
            local_ns: 0.0,
            remote_ns: 0.0,
        });
        let bytes = step.request_bytes.saturating_add(step.response_bytes);
        cost.calls += 1;
        cost.bytes = cost.bytes.saturating_add(bytes);
        cost.local_ns += step.duration_ns;
        cost.remote_ns += to_ns - from_ns;
    }
}

fn calls(
    workload: &Workload,
    iteration: &Iteration,
    judge: &mut Judge,
    question: &Question,
) -> Vec<CallCost> {
    let place = Where::Remote(Remote {
        network: question.at,
        level: question.level,
        constants: question.constants,
        freed: None,
    });
    let mut costs = Costs::default();
    Replay::new(iteration).run_observed(place, &mut costs);
    let total_ns = judge.total_ns(question.at, None);
    let mut costs: Vec<_> = costs.by_call.into_iter().collect();
    costs.sort_by(|((a_name, a_class), a), ((b_name, b_class), b)| {
        let added = |cost: &Cost| cost.remote_ns - cost.local_ns;
        let by_cost = added(b).total_cmp(&added(a));
        by_cost.then_with(|| (a_name, a_class).cmp(&(b_name, b_class)))
    });
    costs.truncate(CALLS_MAX);
    let show = |((function, class), cost): ((u32, Class), Cost)| CallCost {
        function: workload.name(function).into(),
        class: class.name(),
        mode: cost.mode,
        calls: cost.calls,
        bytes: cost.bytes,
        local_ns: cost.local_ns,
        remote_ns: cost.remote_ns,
        freed_ns: match cost.mode {
            Mode::Sync => (total_ns - judge.total_ns(question.at, Some(function))).max(0.0),
            Mode::Async | Mode::Local => 0.0,
        },
        advice: advice(workload.name(function), class, cost.mode),
    };
    costs.into_iter().map(show).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stricter_networks_are_left_out() {
        let network = |(rtt_ns, bits_per_s)| Network { rtt_ns, bits_per_s };
        let all = [
            (5e3, 1e9),
            (2e4, 1e10),
            (2e4, 2e10),
            (1e4, 1e10),
            (9e3, 5e9),
            (3e4, 1e11),
            (4e3, 2e9),
        ];
        let kept = without_stricter(all.map(network).to_vec());
        let expected = [(5e3, 1e9), (9e3, 5e9), (2e4, 1e10), (3e4, 1e11)];
        assert_eq!(kept, expected.map(network));
    }
}
