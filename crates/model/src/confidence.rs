//! How sure an answer is: the margin that is kept below the budget.
//!
//! ```text
//!  local time ──────────────┬── predicted ──┬─ margin ─┬
//!                           0              what counts  budget
//! ```
//!
//! Three things make a step differ from its prediction, and are taken to be independent: iterations
//! of one recording differ (noise), the replay without a network differs from what was recorded,
//! and the model leaves things out. The margin is their sum's quantile at the confidence.
//!
//! The model's error was measured for each part that can determine a program's time: the GPU, whose
//! work takes as long anywhere, the program's own code, its copies, and its waits. A replay in
//! which these are slower by the measured error tells how much of it reaches the end of a step.
//!
//! The answer is about the iteration of median duration. How far the recorded median is off cannot
//! be told from iterations that one slow second has in common, so noise counts in full. If the
//! step's duration is known besides, that is no longer in question, and what is left of the noise
//! is the median's own error.
//!
//! If the program was measured without a network ([`crate::measured`]), all three are in that
//! measurement. What is left is its error, and that of what the network adds, which grows with it.

use std::{fmt, str::FromStr};

use outboard_api::optimise::Level;
use serde::Serialize;

use crate::{
    Constants, Error, Network, WithoutNetwork,
    iteration::{Iteration, median},
    replay::{Remote, Replay, Where},
};

/// Standard deviations of the model's measured errors, apart from noise
/// (docs/requirements.md): of a step that the GPU determines, of the speed of a program's
/// own code, of the time of its long copies, and of that of a wait.
const MODEL_ERROR: f64 = 0.01;
const PROCESSOR_ERROR: f64 = 0.045;
const COPIES_ERROR: f64 = 0.15;
const WAIT_ERROR_NS: f64 = 7_000.0;
/// Standard deviations of the model's errors that are left if the time without a network was
/// measured: a part of what the network adds, and a part of the program's own code that is there as
/// soon as there is any network.
const NETWORK_ERROR: f64 = 0.16;
const ANY_NETWORK_ERROR: f64 = 0.01;
const HALVINGS: u32 = 60;
/// Standard deviation of a normal distribution, in median absolute deviations.
const DEVIATIONS: f64 = 1.4826;
/// Standard deviation of the median of n numbers of a normal distribution, in standard deviations
/// of one over the root of n.
pub(crate) const MEDIAN_DEVIATIONS: f64 = 1.2533;
const PERCENT_MIN: f64 = 50.0;
const PERCENT_MAX: f64 = 99.9;

/// The probability with which an answer holds: `90%`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Confidence {
    share: f64,
    /// True if it may be more.
    #[serde(skip)]
    is_least: bool,
}

/// The margin, and what it is made of, as shares of an iteration's time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Margin {
    pub confidence: Confidence,
    /// The confidence that the question asked for, or the least if it named none.
    pub asked: Confidence,
    /// The probability with which double the figure exceeds the budget, if the program was measured
    /// without a network and has a figure.
    pub double_exceeds: Option<f64>,
    /// Standard deviation of the recorded iterations; that of their median if their duration is
    /// known; that of the measurement if the program was measured without a network.
    pub noise: f64,
    /// Median error of replaying the iterations without a network.
    pub replay_error: f64,
    pub model_error: f64,
    /// The part of the model's error that comes from the waits.
    pub waits_error: f64,
    /// The part by which an iteration may be longer than predicted.
    pub margin: f64,
    /// The part by which it may be shorter than predicted.
    pub margin_beyond: f64,
}

impl Confidence {
    /// Asks for no margin: the prediction may err to either side.
    pub const EVEN: Confidence = Confidence {
        share: 0.5,
        is_least: false,
    };

    /// The one of questions that name none: as much more as a measurement without a network allows.
    pub const USUAL: Confidence = Confidence {
        share: 0.9,
        is_least: true,
    };

    pub fn percent(percent: f64) -> Result<Confidence, Error> {
        match (PERCENT_MIN..=PERCENT_MAX).contains(&percent) {
            true => Ok(Confidence {
                share: percent / 100.0,
                is_least: false,
            }),
            false => Err(Error::ConfidenceRange {
                percent,
                percent_min: PERCENT_MIN,
                percent_max: PERCENT_MAX,
            }),
        }
    }

    /// Returns the confidence with which a figure keeps the budget as surely as twice that figure
    /// exceeds it; this one if that is less, or if it is what was asked for. `exceeds` is how sure
    /// that is, in standard deviations, if a figure has a confidence.
    fn balanced(self, exceeds: impl Fn(Confidence) -> f64) -> Confidence {
        let (mut low, mut high) = (self.share, PERCENT_MAX / 100.0);
        if !self.is_least {
            return self;
        }
        for _ in 0..HALVINGS {
            let share = (low + high) / 2.0;
            let middle = Confidence { share, ..self };
            match middle.deviations() < exceeds(middle) {
                true => low = share,
                false => high = share,
            }
        }
        Confidence { share: low, ..self }
    }

    /// Returns the probability that a normally distributed error is less than this many standard
    /// deviations.
    fn share_of(deviations: f64) -> f64 {
        let (mut low, mut high) = (0.5, 1.0);
        for _ in 0..HALVINGS {
            let share = (low + high) / 2.0;
            let middle = Confidence {
                share,
                ..Confidence::EVEN
            };
            match middle.deviations() < deviations.abs() {
                true => low = share,
                false => high = share,
            }
        }
        match deviations < 0.0 {
            true => 1.0 - low,
            false => low,
        }
    }

    /// Returns whether nobody asked for it: it may be more where the errors allow it.
    pub fn is_least(self) -> bool {
        self.is_least
    }

    /// Returns whether it is more than another one, as they are shown.
    pub fn is_above(self, other: Confidence) -> bool {
        self.to_string() != other.to_string() && self.share > other.share
    }

    /// Returns the normal distribution's quantile in standard deviations (Abramowitz and Stegun,
    /// 26.2.23, within 0.0005).
    fn deviations(self) -> f64 {
        if self.share <= 0.5 {
            return 0.0;
        }
        let t = (-2.0 * (1.0 - self.share).ln()).sqrt();
        let above = 2.515_517 + t * (0.802_853 + t * 0.010_328);
        let below = 1.0 + t * (1.432_788 + t * (0.189_269 + t * 0.001_308));
        t - above / below
    }
}

impl Margin {
    pub(crate) fn new(confidence: Confidence, errors: Errors, model: ModelError) -> Margin {
        let Errors {
            noise,
            replay_error,
            ..
        } = errors;
        let deviation = (noise.powi(2) + replay_error.powi(2) + model.all.powi(2)).sqrt();
        let margin = confidence.deviations() * deviation;
        Margin {
            confidence,
            asked: confidence,
            double_exceeds: None,
            noise,
            replay_error,
            model_error: model.all,
            waits_error: model.waits,
            margin,
            margin_beyond: margin,
        }
    }

    /// Returns the margin of a program that was measured without a network, if an iteration may
    /// take `budget` longer than locally.
    pub(crate) fn measured(
        asked: Confidence,
        known: &WithoutNetwork,
        model: ModelError,
        budget: f64,
    ) -> Margin {
        let any = ANY_NETWORK_ERROR * model.own_code;
        let model = |part: f64| {
            let added = (part - known.overhead).max(0.0) / (1.0 + part);
            (NETWORK_ERROR * added).hypot(any)
        };
        let deviation = |part: f64| model(part).hypot(known.error);
        let within = |confidence: Confidence| {
            let margin = |part: f64| confidence.deviations() * deviation(part);
            rising(budget, |part| (1.0 + part) * (1.0 + margin(part)) - 1.0)
        };
        let exceeds = |confidence: Confidence| {
            let double = 2.0 * within(confidence) - known.overhead;
            ((1.0 + double) / (1.0 + budget) - 1.0) / deviation(double)
        };
        let confidence = asked.balanced(exceeds);
        let margin = |part: f64| confidence.deviations() * deviation(part);
        let part = within(confidence);
        let beyond = rising(budget, |part| (1.0 + part) / (1.0 + margin(part)) - 1.0);
        Margin {
            confidence,
            asked,
            double_exceeds: (part > known.overhead)
                .then(|| Confidence::share_of(exceeds(confidence))),
            noise: known.error,
            replay_error: 0.0,
            model_error: model(part),
            waits_error: 0.0,
            margin: margin(part),
            margin_beyond: margin(beyond),
        }
    }

    /// Returns the predicted overhead at which `part` is kept with this confidence.
    pub(crate) fn within(&self, part: f64) -> f64 {
        (1.0 + part) / (1.0 + self.margin) - 1.0
    }

    /// Returns the predicted overhead from which `part` is exceeded with this confidence.
    pub(crate) fn beyond(&self, part: f64) -> f64 {
        (1.0 + part) * (1.0 + self.margin_beyond) - 1.0
    }
}

/// Returns the overhead at which a rising function has this value.
fn rising(value: f64, function: impl Fn(f64) -> f64) -> f64 {
    let (mut low, mut high) = (-1.0 + f64::EPSILON, 1.0 + value);
    while function(high) < value && high < f64::MAX / 2.0 {
        high *= 2.0;
    }
    for _ in 0..HALVINGS {
        let middle = (low + high) / 2.0;
        match function(middle) < value {
            true => low = middle,
            false => high = middle,
        }
    }
    low
}

/// Standard deviation of the model's error for an iteration, as a share of its time: all of it, and
/// what comes from waits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ModelError {
    all: f64,
    waits: f64,
    /// The share of a step that the program's own code determines.
    own_code: f64,
}

/// Returns the model's error for an iteration.
pub(crate) fn model_error(
    iteration: &Iteration,
    level: Level,
    constants: &Constants,
) -> ModelError {
    let mut replay = Replay::new(iteration);
    let mut total_ns = |constants: &Constants| {
        let place = Where::Remote(Remote {
            network: Network::PERFECT,
            level,
            constants,
            freed: None,
        });
        replay.run(place).total_ns
    };
    let as_it_is = total_ns(constants);
    let mut share = |constants: &Constants| match as_it_is > 0.0 {
        true => total_ns(constants) / as_it_is - 1.0,
        false => 0.0,
    };
    let waits = share(&constants.with_longer_waits(WAIT_ERROR_NS));
    let processor = share(&constants.off_by(PROCESSOR_ERROR, 0.0));
    let squares = MODEL_ERROR.powi(2)
        + processor.powi(2)
        + share(&constants.off_by(0.0, COPIES_ERROR)).powi(2)
        + waits.powi(2);
    ModelError {
        all: squares.sqrt(),
        waits,
        own_code: processor / PROCESSOR_ERROR,
    }
}

/// Errors of a recording, as shares of an iteration's time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Errors {
    noise: f64,
    replay_error: f64,
    iterations: usize,
}

impl Errors {
    /// Of iterations as they were recorded, before their processor's times are scaled.
    pub(crate) fn of(iterations: &[Iteration]) -> Errors {
        let mut steps: Vec<f64> = iterations.iter().map(|i| i.step_ns).collect();
        let typical_ns = median(&mut steps);
        let mut off: Vec<f64> = steps.iter().map(|ns| (ns - typical_ns).abs()).collect();
        let noise = DEVIATIONS * median(&mut off) / typical_ns;
        let replayed = |i: &Iteration| Replay::new(i).run(Where::Here).total_ns / i.step_ns - 1.0;
        let mut errors: Vec<f64> = iterations.iter().map(|i| replayed(i).abs()).collect();
        Errors {
            noise,
            replay_error: median(&mut errors),
            iterations: iterations.len(),
        }
    }

    /// Returns the errors that are left if the duration of an iteration is known.
    pub(crate) fn of_known_step(self) -> Errors {
        Errors {
            noise: self.of_median(),
            ..self
        }
    }

    /// Returns the standard deviation of the iterations' median.
    pub(crate) fn of_median(self) -> f64 {
        self.noise * MEDIAN_DEVIATIONS / (self.iterations.max(1) as f64).sqrt()
    }
}

impl FromStr for Confidence {
    type Err = Error;

    fn from_str(text: &str) -> Result<Confidence, Error> {
        let error = || Error::Confidence { text: text.into() };
        let number = text.trim().strip_suffix('%').ok_or_else(error)?;
        let percent: f64 = number.trim().parse().map_err(|_| error())?;
        match percent.is_nan() {
            true => Err(error()),
            false => Confidence::percent(percent),
        }
    }
}

impl fmt::Display for Confidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} %", (self.share * 1e3).round() / 10.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_tables() {
        for (text, deviations) in [
            ("50%", 0.0),
            ("75%", 0.674_5),
            ("90%", 1.281_6),
            ("97.5 %", 1.96),
        ] {
            let confidence: Confidence = text.parse().unwrap();
            assert!(
                (confidence.deviations() - deviations).abs() < 1e-3,
                "{text}"
            );
        }
        for text in ["", "%", "90", "0.9", "nan%", "49%", "100%", "-90%"] {
            assert!(text.parse::<Confidence>().is_err(), "{text}");
        }
        assert_eq!(Confidence::percent(97.5).unwrap().to_string(), "97.5 %");
    }

    #[test]
    fn a_known_step_leaves_the_medians_error() {
        let recorded = Errors {
            noise: 0.04,
            replay_error: 0.01,
            iterations: 16,
        };
        let known = recorded.of_known_step();
        assert!((known.noise - 0.01 * MEDIAN_DEVIATIONS).abs() < 1e-12);
        assert!((known.replay_error - 0.01).abs() < 1e-12);
        let model = ModelError {
            all: MODEL_ERROR,
            waits: 0.0,
            own_code: 0.0,
        };
        let margin = |errors| Margin::new(Confidence::USUAL, errors, model).margin;
        assert!(margin(known) < margin(recorded));
    }

    fn known(overhead: f64, error: f64) -> WithoutNetwork {
        WithoutNetwork {
            overhead,
            error,
            network: Network::PERFECT,
            level: None,
            pairs: 0,
        }
    }

    #[test]
    fn a_measurement_leaves_its_error_and_the_networks() {
        let model = ModelError {
            all: 0.05,
            waits: 0.0,
            own_code: 1.0,
        };
        let ask = |text: &str, overhead, error| {
            let asked = text.parse().unwrap();
            Margin::measured(asked, &known(overhead, error), model, 0.05)
        };
        // By hand: the margin is 1.2816 deviations at the overhead that it leaves.
        let margin = ask("90%", -0.1, 0.01);
        let part = margin.within(0.05);
        let added = NETWORK_ERROR * (part + 0.1) / (1.0 + part);
        let deviation = (0.01_f64.powi(2) + ANY_NETWORK_ERROR.powi(2) + added.powi(2)).sqrt();
        assert!(
            (margin.margin - 1.2816 * deviation).abs() < 1e-4,
            "{margin:?}"
        );
        assert!((0.025..0.035).contains(&margin.margin), "{margin:?}");
        // Further beyond the budget the network adds more, and so does its error.
        assert!(margin.margin_beyond > margin.margin);
        assert!(ask("90%", -0.1, 0.03).margin > margin.margin);
        assert!(ask("90%", 0.0, 0.01).margin < margin.margin);
        assert!(ask("99%", -0.1, 0.01).margin > margin.margin);
        assert_eq!(ask("50%", -0.1, 0.01).margin, 0.0);
        // One that is slower than the budget without a network has no room for one.
        assert!(ask("90%", 0.06, 0.01).within(0.05) < 0.06);
    }

    #[test]
    fn a_figure_is_as_surely_kept_as_double_exceeds() {
        let model = ModelError {
            all: 0.05,
            waits: 0.0,
            own_code: 1.0,
        };
        for (overhead, error) in [(-0.2, 0.01), (-0.1, 0.01), (-0.05, 0.005), (0.0, 0.002)] {
            let known = known(overhead, error);
            let margin = Margin::measured(Confidence::USUAL, &known, model, 0.05);
            let part = margin.within(0.05);
            let double = 2.0 * part - overhead;
            let added = NETWORK_ERROR * (double - overhead) / (1.0 + double);
            let deviation = (error.powi(2) + ANY_NETWORK_ERROR.powi(2) + added.powi(2)).sqrt();
            let exceeds = ((1.0 + double) / 1.05 - 1.0) / deviation;
            let keeps = margin.confidence.deviations();
            match margin.confidence.share > 0.9 {
                true => assert!((keeps - exceeds).abs() < 1e-3, "{overhead}: {margin:?}"),
                false => assert!(exceeds <= keeps, "{overhead}: {margin:?}"),
            }
        }
        let sure = Margin::measured(Confidence::USUAL, &known(-0.2, 0.01), model, 0.05);
        assert!(sure.confidence.share > 0.95, "{sure:?}");
        // Where errors leave no such room, what was asked for counts.
        let unsure = Margin::measured(Confidence::USUAL, &known(0.03, 0.01), model, 0.05);
        assert!((unsure.confidence.share - 0.9).abs() < 1e-9, "{unsure:?}");
        // The margin tells both, and how sure double is to exceed.
        assert!(sure.confidence.is_above(sure.asked) && !unsure.confidence.is_above(unsure.asked));
        let double = sure.double_exceeds.unwrap();
        assert!((double - sure.confidence.share).abs() < 1e-3, "{sure:?}");
        assert!(unsure.double_exceeds.unwrap() < 0.7, "{unsure:?}");
        let none = Margin::measured(Confidence::USUAL, &known(0.06, 0.01), model, 0.05);
        assert_eq!(none.double_exceeds, None);
        for (deviations, share) in [(-1.2816, 0.1), (0.0, 0.5), (1.96, 0.975)] {
            assert!((Confidence::share_of(deviations) - share).abs() < 1e-3);
        }
    }

    #[test]
    fn a_margin_is_kept_below_the_budget() {
        let margin = |margin| Margin {
            confidence: Confidence::EVEN,
            asked: Confidence::EVEN,
            double_exceeds: None,
            noise: 0.0,
            replay_error: 0.0,
            model_error: 0.0,
            waits_error: 0.0,
            margin,
            margin_beyond: margin,
        };
        assert!((margin(0.0).within(0.05) - 0.05).abs() < 1e-12);
        assert!((margin(0.02).within(0.05) - (1.05 / 1.02 - 1.0)).abs() < 1e-12);
        assert!(margin(0.1).within(0.05) < 0.0);
        assert!((margin(0.02).beyond(0.05) - (1.05 * 1.02 - 1.0)).abs() < 1e-12);
    }
}
