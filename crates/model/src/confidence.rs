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

use std::{fmt, str::FromStr};

use outboard_api::optimise::Level;
use serde::Serialize;

use crate::{
    Constants, Error, Network,
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
/// Standard deviation of a normal distribution, in median absolute deviations.
const DEVIATIONS: f64 = 1.4826;
/// Standard deviation of the median of n numbers of a normal distribution, in standard deviations
/// of one over the root of n.
const MEDIAN_DEVIATIONS: f64 = 1.2533;
const PERCENT_MIN: f64 = 50.0;
const PERCENT_MAX: f64 = 99.9;

/// The probability with which an answer holds: `90%`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Confidence {
    share: f64,
}

/// The margin, and what it is made of, as shares of an iteration's time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Margin {
    pub confidence: Confidence,
    /// Standard deviation of the recorded iterations; that of their median if their duration is
    /// known.
    pub noise: f64,
    /// Median error of replaying the iterations without a network.
    pub replay_error: f64,
    pub model_error: f64,
    /// The part of the model's error that comes from the waits.
    pub waits_error: f64,
    /// The part by which an iteration may be longer than predicted.
    pub margin: f64,
}

impl Confidence {
    /// Asks for no margin: the prediction may err to either side.
    pub const EVEN: Confidence = Confidence { share: 0.5 };

    /// The one of questions that name none.
    pub const USUAL: Confidence = Confidence { share: 0.9 };

    pub fn percent(percent: f64) -> Result<Confidence, Error> {
        match (PERCENT_MIN..=PERCENT_MAX).contains(&percent) {
            true => Ok(Confidence {
                share: percent / 100.0,
            }),
            false => Err(Error::ConfidenceRange {
                percent,
                percent_min: PERCENT_MIN,
                percent_max: PERCENT_MAX,
            }),
        }
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
        Margin {
            confidence,
            noise,
            replay_error,
            model_error: model.all,
            waits_error: model.waits,
            margin: confidence.deviations() * deviation,
        }
    }

    /// Returns the predicted overhead at which `part` is kept with this confidence.
    pub(crate) fn within(&self, part: f64) -> f64 {
        (1.0 + part) / (1.0 + self.margin) - 1.0
    }

    /// Returns the predicted overhead from which `part` is exceeded with this confidence.
    pub(crate) fn beyond(&self, part: f64) -> f64 {
        (1.0 + part) * (1.0 + self.margin) - 1.0
    }
}

/// Standard deviation of the model's error for an iteration, as a share of its time: all of it, and
/// what comes from waits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ModelError {
    all: f64,
    waits: f64,
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
    let squares = MODEL_ERROR.powi(2)
        + share(&constants.off_by(PROCESSOR_ERROR, 0.0)).powi(2)
        + share(&constants.off_by(0.0, COPIES_ERROR)).powi(2)
        + waits.powi(2);
    ModelError {
        all: squares.sqrt(),
        waits,
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
            noise: self.noise * MEDIAN_DEVIATIONS / (self.iterations.max(1) as f64).sqrt(),
            ..self
        }
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
        write!(f, "{} %", (self.share * 1e5).round() / 1e3)
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
        };
        let margin = |errors| Margin::new(Confidence::USUAL, errors, model).margin;
        assert!(margin(known) < margin(recorded));
    }

    #[test]
    fn a_margin_is_kept_below_the_budget() {
        let margin = |margin| Margin {
            confidence: Confidence::EVEN,
            noise: 0.0,
            replay_error: 0.0,
            model_error: 0.0,
            waits_error: 0.0,
            margin,
        };
        assert!((margin(0.0).within(0.05) - 0.05).abs() < 1e-12);
        assert!((margin(0.02).within(0.05) - (1.05 / 1.02 - 1.0)).abs() < 1e-12);
        assert!(margin(0.1).within(0.05) < 0.0);
        assert!((margin(0.02).beyond(0.05) - (1.05 * 1.02 - 1.0)).abs() < 1e-12);
    }
}
