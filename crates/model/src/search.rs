//! Searches for the requirement: the networks that keep an iteration within a budget.

use outboard_api::optimise::Level;
use serde::Serialize;

use crate::{
    Closed, Constants, Network, Remote, Replay, Where, WithoutNetwork,
    iteration::Iteration,
    network::{BITS_PER_S_MAX, BITS_PER_S_MIN, RTT_NS_MAX},
};

/// Accuracy of a limit, as a share of it.
pub const RESOLUTION: f64 = 1e-3;
/// First round-trip time of the search.
const RTT_NS_FIRST: f64 = 100.0;

/// A result of both models.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Both<T> {
    pub simulated: T,
    pub closed_form: T,
}

/// Limit of a quantity.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "limit", content = "value")]
pub enum Limit {
    /// Even the best possible value is not enough.
    Never,
    At(f64),
    /// Even the worst value of the search is enough.
    Any,
}

/// One iteration at one level.
#[derive(Debug)]
pub struct Judge<'a> {
    replay: Replay<'a>,
    closed: Closed,
    constants: &'a Constants,
    level: Level,
    /// Simulated; overheads are shares of it.
    pub local_ns: f64,
    /// Time that a measurement without a network adds to each replay over one.
    more_ns: f64,
}

impl<'a> Judge<'a> {
    pub fn new(iteration: &'a Iteration, level: Level, constants: &'a Constants) -> Judge<'a> {
        let mut replay = Replay::new(iteration);
        let local_ns = replay.run(Where::Here).total_ns;
        Judge {
            replay,
            closed: Closed::new(iteration, level, constants),
            constants,
            level,
            local_ns,
            more_ns: 0.0,
        }
    }

    /// Makes replays at the measured link take what was measured, and all others that much more or
    /// less. The measurement is of the level `at`, as the question has been checked to be.
    pub(crate) fn measured(mut self, known: Option<&WithoutNetwork>, at: Level) -> Judge<'a> {
        if let Some(known) = known {
            let level = std::mem::replace(&mut self.level, at);
            let foreseen = self.simulated(known.network);
            self.more_ns = (known.overhead - foreseen) * self.local_ns;
            self.level = level;
        }
        self
    }

    pub fn closed(&self) -> &Closed {
        &self.closed
    }

    /// Returns the extra time of the iteration, as a share of the local time.
    pub fn overhead(&mut self, network: Network) -> Both<f64> {
        Both {
            simulated: self.simulated(network),
            closed_form: self.closed.cost_ns(&network) / self.local_ns,
        }
    }

    fn simulated(&mut self, network: Network) -> f64 {
        self.total_ns(network, None) / self.local_ns - 1.0
    }

    /// Returns the duration of the iteration if calls of the function `freed` are not waited for.
    pub fn total_ns(&mut self, network: Network, freed: Option<u32>) -> f64 {
        let place = Where::Remote(Remote {
            network,
            level: self.level,
            constants: self.constants,
            freed,
        });
        self.replay.run(place).total_ns + self.more_ns
    }

    /// Returns the largest round-trip time with an overhead of at most `part` of the local time.
    pub fn rtt_max(&mut self, part: f64, bits_per_s: f64) -> Both<Limit> {
        let closed = match self.closed.rtt_max_ns(part * self.local_ns, bits_per_s) {
            None => Limit::Never,
            Some(rtt_ns) if rtt_ns >= RTT_NS_MAX => Limit::Any,
            Some(rtt_ns) => Limit::At(rtt_ns),
        };
        let mut fits = |rtt_ns: f64| self.simulated(Network { rtt_ns, bits_per_s }) <= part;
        Both {
            simulated: largest(RTT_NS_FIRST, RTT_NS_MAX, &mut fits),
            closed_form: closed,
        }
    }

    /// Returns the smallest bandwidth with an overhead of at most `part` of the local time.
    pub fn bandwidth_min(&mut self, part: f64, rtt_ns: f64) -> Both<Limit> {
        let closed = match self.closed.bandwidth_min(part * self.local_ns, rtt_ns) {
            Some(bits_per_s) if bits_per_s <= BITS_PER_S_MIN => Limit::Any,
            Some(bits_per_s) if bits_per_s <= BITS_PER_S_MAX => Limit::At(bits_per_s),
            _ => Limit::Never,
        };
        // In terms of the time per bit it is the same search.
        let mut fits = |s_per_bit: f64| {
            let bits_per_s = match s_per_bit > 0.0 {
                true => 1.0 / s_per_bit,
                false => BITS_PER_S_MAX,
            };
            self.simulated(Network { rtt_ns, bits_per_s }) <= part
        };
        let simulated = largest(1.0 / BITS_PER_S_MAX, 1.0 / BITS_PER_S_MIN, &mut fits);
        Both {
            simulated: match simulated {
                Limit::At(s_per_bit) if s_per_bit > 0.0 => Limit::At(1.0 / s_per_bit),
                Limit::At(_) => Limit::At(BITS_PER_S_MAX),
                other => other,
            },
            closed_form: closed,
        }
    }
}

/// Searches from 0 to `last`.
pub(crate) fn largest_from(last: f64, fits: &mut impl FnMut(f64) -> bool) -> Limit {
    largest(RTT_NS_FIRST, last, fits)
}

/// Returns the largest number up to which `fits` holds, from 0: doubles it until it does not fit,
/// then bisects. If threads compete, the numbers that fit may not form one range; numbers after the
/// first step that does not fit are then ignored.
fn largest(first: f64, last: f64, fits: &mut impl FnMut(f64) -> bool) -> Limit {
    if !fits(0.0) {
        return Limit::Never;
    }
    let (mut good, mut next) = (0.0, first);
    loop {
        if !fits(next) {
            break;
        }
        good = next;
        if next >= last {
            return Limit::Any;
        }
        next = (next * 2.0).min(last);
    }
    let mut bad = next;
    // Below the first step, the accuracy is a share of that step.
    while bad - good > RESOLUTION * bad.max(first) {
        let middle = (good + bad) / 2.0;
        if fits(middle) {
            good = middle;
        } else {
            bad = middle;
        }
    }
    Limit::At(good)
}

/// Corrects largest round-trip times at growing bandwidths. If threads compete, more bandwidth may
/// seem to allow less: then all smaller bandwidths get that limit, too.
pub(crate) fn never_fall(limits: &mut [Both<Limit>]) {
    for index in (0..limits.len().saturating_sub(1)).rev() {
        let next = limits[index + 1];
        let here = &mut limits[index];
        here.simulated = here.simulated.no_more_than(next.simulated);
        here.closed_form = here.closed_form.no_more_than(next.closed_form);
    }
}

/// Corrects smallest bandwidths at growing round-trip times in the same way.
pub(crate) fn never_need_less(limits: &mut [Both<Limit>]) {
    for index in 1..limits.len() {
        let before = limits[index - 1];
        let here = &mut limits[index];
        here.simulated = here.simulated.no_less_needed_than(before.simulated);
        here.closed_form = here.closed_form.no_less_needed_than(before.closed_form);
    }
}

impl Limit {
    pub fn at(self) -> Option<f64> {
        match self {
            Limit::At(value) => Some(value),
            Limit::Never | Limit::Any => None,
        }
    }

    fn no_more_than(self, other: Limit) -> Limit {
        match (self, other) {
            (Limit::Never, _) | (_, Limit::Never) => Limit::Never,
            (Limit::Any, other) | (other, Limit::Any) => other,
            (Limit::At(a), Limit::At(b)) => Limit::At(a.min(b)),
        }
    }

    fn no_less_needed_than(self, other: Limit) -> Limit {
        match (self, other) {
            (Limit::Never, _) | (_, Limit::Never) => Limit::Never,
            (Limit::Any, other) | (other, Limit::Any) => other,
            (Limit::At(a), Limit::At(b)) => Limit::At(a.max(b)),
        }
    }
}
