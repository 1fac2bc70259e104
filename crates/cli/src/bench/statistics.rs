//! Medians and percentiles.

use serde::Serialize;

/// Results of all rounds of one case on one side, in nanoseconds per call.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct Figures {
    /// The median of the rounds' medians.
    pub(super) median_ns: f64,
    /// Percentiles of all samples.
    pub(super) p10_ns: f64,
    pub(super) p90_ns: f64,
    /// The median of each round.
    pub(super) rounds_ns: Vec<f64>,
    pub(super) samples: usize,
}

impl Figures {
    /// Returns `None` without a sample.
    pub(super) fn new(rounds: &[Vec<f64>]) -> Option<Figures> {
        let rounds_ns: Vec<f64> = rounds.iter().filter_map(|round| median(round)).collect();
        let all = sorted(&rounds.concat());
        Some(Figures {
            median_ns: median(&rounds_ns)?,
            p10_ns: quantile(&all, 0.1)?,
            p90_ns: quantile(&all, 0.9)?,
            rounds_ns,
            samples: all.len(),
        })
    }

    /// Returns the ratio to the other's time: the median of the ratios within each round, so that a
    /// round in which the machine was slower counts alike for both.
    pub(super) fn ratio_to(&self, other: &Figures) -> Option<f64> {
        let both = self.rounds_ns.iter().zip(&other.rounds_ns);
        let ratios: Vec<f64> = both
            .filter(|(_, o)| **o > 0.0)
            .map(|(s, o)| s / o)
            .collect();
        median(&ratios)
    }
}

pub(crate) fn median(values: &[f64]) -> Option<f64> {
    quantile(&sorted(values), 0.5)
}

/// Interpolates linearly between the two nearest values.
pub(crate) fn quantile(sorted: &[f64], at: f64) -> Option<f64> {
    let position = at * sorted.len().checked_sub(1)? as f64;
    let (low, high) = (position.floor() as usize, position.ceil() as usize);
    let share = position - position.floor();
    Some(sorted[low] * (1.0 - share) + sorted[high] * share)
}

pub(crate) fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), Some(2.5));
        assert_eq!(quantile(&[0.0, 10.0], 0.9), Some(9.0));
    }

    #[test]
    fn a_slow_round_changes_no_ratio() {
        let ours = Figures::new(&[vec![2.0, 2.0], vec![20.0], vec![2.0]]).unwrap();
        let local = Figures::new(&[vec![1.0], vec![10.0], vec![1.0]]).unwrap();
        assert_eq!(ours.ratio_to(&local), Some(2.0));
        assert_eq!((ours.median_ns, ours.samples), (2.0, 4));
        assert_eq!(Figures::new(&[vec![]]), None);
    }
}
