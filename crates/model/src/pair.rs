//! Recordings of a program here and through a server without a network, made one after the other.

use outboard_trace::{About, Trace};
use outboard_wire::network::Network as Emulated;

use crate::{
    Error, Iteration, Network, Replay, Where, WithoutNetwork, Workload, iteration::median,
    measured::without_delay,
};

/// Standard deviation of the ratio of two recordings, one after the other, beyond what their own
/// iterations show: machines have slow and fast moments.
const PAIR_ERROR: f64 = 0.03;
/// Shares by which the number of calls of an iteration here and through a server may differ.
const CALLS_PART_MAX: f64 = 0.02;
const CALLS_MORE_MAX: usize = 8;

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
        let mut network = Network::PERFECT;
        for pair in pairs {
            network = link(&pair.through.about)?;
            check_machine(&pair.here.about, &pair.through.about)?;
            compared.push(Compared::new(pair)?);
        }
        let count = compared.len().max(1) as f64;
        let mut ratios: Vec<f64> = compared.iter().map(|pair| pair.ratio).collect();
        let mean = ratios.iter().sum::<f64>() / count;
        let spread = ratios.iter().map(|ratio| (ratio / mean - 1.0).powi(2));
        let between = match compared.len() {
            0 | 1 => 0.0,
            _ => (spread.sum::<f64>() / (count - 1.0)).sqrt(),
        };
        let within = compared.iter().map(|pair| pair.error).fold(0.0, f64::max);
        // A few pairs that happen to agree show less than what moments differ by.
        let single = PAIR_ERROR.hypot(within).max(between);
        ratios.sort_by(f64::total_cmp);
        let middle = ratios.len() / 2;
        let typical = match ratios.len() {
            0 => 1.0,
            count if count % 2 == 1 => ratios[middle],
            _ => (ratios[middle - 1] + ratios[middle]) / 2.0,
        };
        Ok(WithoutNetwork {
            overhead: typical - 1.0,
            error: single / count.sqrt(),
            network,
            pairs: compared.len(),
        })
    }
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

/// Returns the link of a recording that was made through a server without a network.
fn link(through: &About) -> Result<Network, Error> {
    let Some(gpu) = &through.gpu else {
        return Err(Error::NotThroughServer);
    };
    if !gpu.starts_with("shm://") {
        return Err(Error::NotOverShm { gpu: gpu.clone() });
    }
    let named = through.emulated.as_deref();
    let emulated: Option<Emulated> = named.and_then(|named| named.parse().ok());
    without_delay(&emulated.ok_or(Error::NotEmulated)?)
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
