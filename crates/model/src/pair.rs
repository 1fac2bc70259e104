//! Recordings of a program here and through a server without a network, made one after the other.

use outboard_api::optimise::Level;
use outboard_trace::{About, Trace};
use outboard_wire::network::Network as Emulated;

use crate::{
    Error, Iteration, Network, Replay, Where, WithoutNetwork, Workload,
    confidence::MEDIAN_DEVIATIONS, iteration::median, measured::without_delay,
};

/// Standard deviation of the ratio of two recordings, one after the other, beyond what their own
/// iterations show: machines have slow and fast moments.
const PAIR_ERROR: f64 = 0.03;
/// Shares by which the number of calls of an iteration here and through a server may differ.
const CALLS_PART_MAX: f64 = 0.02;
const CALLS_MORE_MAX: usize = 8;
/// The quantile at 90 % of Student's t over that of the normal distribution, for 2 and more pairs:
/// so much more is a deviation that so few pairs show.
const STUDENT: [f64; 7] = [2.402, 1.471, 1.278, 1.196, 1.152, 1.123, 1.104];
/// Excess over 1 of that for more pairs, times their number less one.
const STUDENT_PART: f64 = 0.7;

/// Two recordings of a program, with the local one's iterations.
#[derive(Debug, Clone, Copy)]
pub struct Pair<'a> {
    pub here: &'a Trace,
    pub through: &'a Trace,
}

impl WithoutNetwork {
    /// Compares recordings, of which each pair was made one after the other.
    pub fn of(pairs: &[Pair]) -> Result<WithoutNetwork, Error> {
        let mut compared = Vec::new();
        let mut first = None;
        for pair in pairs {
            let made = Made::of(&pair.through.about)?;
            check_machine(&pair.here.about, &pair.through.about)?;
            first.get_or_insert(made).check_same(&made)?;
            compared.push(Compared::new(pair)?);
        }
        let Made { network, level, .. } = first.ok_or(Error::NotThroughServer)?;
        let mut ratios: Vec<f64> = compared.iter().map(|pair| pair.ratio).collect();
        let within = compared.iter().map(|pair| pair.error).fold(0.0, f64::max);
        let error = error_of_median(&ratios, within);
        Ok(WithoutNetwork {
            overhead: middle(&mut ratios) - 1.0,
            error,
            network,
            level: Some(level),
            pairs: compared.len(),
        })
    }
}

/// Returns the median, of which two numbers have their mean.
fn middle(ratios: &mut [f64]) -> f64 {
    ratios.sort_by(f64::total_cmp);
    let at = ratios.len() / 2;
    match ratios.len() {
        0 => 1.0,
        count if count % 2 == 1 => ratios[at],
        _ => (ratios[at - 1] + ratios[at]) / 2.0,
    }
}

/// Returns the standard deviation of the median of pairs' ratios, as a share of it, if iterations
/// of a pair tell its ratio within `within`. Pairs are taken to be independent.
fn error_of_median(ratios: &[f64], within: f64) -> f64 {
    let count = ratios.len() as f64;
    let mean = ratios.iter().sum::<f64>() / count;
    let squares: f64 = ratios
        .iter()
        .map(|ratio| (ratio / mean - 1.0).powi(2))
        .sum();
    let between = match ratios.len() {
        0 | 1 => 0.0,
        _ => student(ratios.len()) * (squares / (count - 1.0)).sqrt(),
    };
    // A few pairs that happen to agree show less than what moments differ by.
    let single = PAIR_ERROR.hypot(within).max(between);
    // The median of two is their mean.
    let of_median = match ratios.len() {
        0..=2 => 1.0,
        _ => MEDIAN_DEVIATIONS,
    };
    of_median * single / count.sqrt()
}

/// Returns by how much more a deviation counts that this many pairs show, 2 or more.
fn student(pairs: usize) -> f64 {
    let more = pairs.saturating_sub(2);
    let beyond = || 1.0 + STUDENT_PART / pairs.saturating_sub(1).max(1) as f64;
    STUDENT.get(more).copied().unwrap_or_else(beyond)
}

/// The times of a pair.
struct Compared {
    ratio: f64,
    error: f64,
}

impl Compared {
    fn new(pair: &Pair) -> Result<Compared, Error> {
        let (here, through) = (Workload::new(pair.here)?, Workload::new(pair.through)?);
        let calls = |workload: &Workload| workload.typical().steps().count();
        let (calls_here, calls_through) = (calls(&here), calls(&through));
        let more = calls_here.abs_diff(calls_through);
        if more > CALLS_MORE_MAX && more as f64 > CALLS_PART_MAX * calls_here as f64 {
            return Err(Error::AnotherProgram {
                calls_here,
                calls_through,
            });
        }
        let (here_ns, through_ns) = (replayed_ns(&here), replayed_ns(&through));
        if here_ns <= 0.0 {
            return Err(Error::NoTime);
        }
        let errors = [&here, &through].map(|one| one.errors.of_median());
        Ok(Compared {
            ratio: through_ns / here_ns,
            error: errors[0].hypot(errors[1]),
        })
    }
}

/// Returns the median of the iterations' times without the cost of recording them.
fn replayed_ns(workload: &Workload) -> f64 {
    let replayed = |i: &Iteration| Replay::new(i).run(Where::Here).total_ns;
    let mut all: Vec<f64> = workload.iterations.iter().map(replayed).collect();
    median(&mut all)
}

/// How a recording was made through a server without a network.
#[derive(Clone, Copy)]
struct Made<'a> {
    network: Network,
    level: Level,
    emulated: &'a str,
}

impl Made<'_> {
    fn of(through: &About) -> Result<Made<'_>, Error> {
        let Some(gpu) = &through.gpu else {
            return Err(Error::NotThroughServer);
        };
        if !gpu.starts_with("shm://") {
            return Err(Error::NotOverShm { gpu: gpu.clone() });
        }
        let emulated = through.emulated.as_deref().ok_or(Error::NotEmulated)?;
        let link: Emulated = emulated.parse().map_err(|_| Error::NotEmulated)?;
        let level = through.optimise.as_deref();
        let level = level.and_then(|level| level.parse().ok());
        Ok(Made {
            network: without_delay(&link)?,
            level: level.ok_or(Error::NoLevel)?,
            emulated,
        })
    }

    /// Refuses another link or level than this one's.
    fn check_same(&self, other: &Made) -> Result<(), Error> {
        if self.network != other.network {
            return Err(Error::AnotherLink {
                first: self.emulated.into(),
                other: other.emulated.into(),
            });
        }
        if self.level != other.level {
            return Err(Error::OtherLevels {
                first: self.level.to_string(),
                other: other.level.to_string(),
            });
        }
        Ok(())
    }
}

/// Refuses recordings of different machines or GPUs.
fn check_machine(here: &About, through: &About) -> Result<(), Error> {
    if let Some(gpu) = &here.gpu {
        return Err(Error::NotLocal { gpu: gpu.clone() });
    }
    let names = |about: &About| {
        let named = about.devices.iter().map(|device| device.name.clone());
        named.collect::<Vec<String>>().join(", ")
    };
    let host = |about: &About| format!("{} cores of {}", about.host.cores, about.host.cpu);
    for (here, through) in [(names(here), names(through)), (host(here), host(through))] {
        if here != through {
            return Err(Error::AnotherMachine { here, through });
        }
    }
    Ok(())
}
