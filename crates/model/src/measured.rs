//! A program's time through a server without a network, measured beside its time here.
//!
//! ```text
//!  here      ├──────────────┤
//!  through   ├────────────┤        rtt=1ns: only remoting itself; the ratio is measured
//!  at rtt    ├────────────┼─────┤  what the network adds: the replay's difference of the two
//! ```
//!
//! Most of what the model does not know of a program is there without any network, and is the same
//! at every network: what a replay with the measured link takes more or less than was measured is
//! added to, or taken from, every other replay. What is left is the error of that measurement, and
//! that of what the network adds.

use outboard_api::optimise::Level;
use outboard_wire::network::Network as Emulated;
use serde::{Serialize, Serializer};

use crate::{BUDGET_PERCENT_MAX, Budget, Error, Network, show_bits_per_s, show_ns};

/// Longest round trip and least bandwidth of an emulated link that counts as no network.
const RTT_NS_MAX: f64 = 10_000.0;
const BITS_PER_S_MIN: f64 = 100e9;

/// The extra time of a program whose GPU is behind a server, without a network.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct WithoutNetwork {
    /// As a share of the local time; below 0 if it is faster than locally.
    pub overhead: f64,
    /// Standard deviation of that, as a share of the time through the server.
    pub error: f64,
    /// Link over which it was measured.
    pub network: Network,
    /// Level of optimisation at which it was measured; `None` for that of the question.
    #[serde(serialize_with = "as_text")]
    pub level: Option<Level>,
    /// Pairs of recordings that it is from; 0 if it was given as a number.
    pub pairs: usize,
}

impl WithoutNetwork {
    /// Takes an overhead that was measured otherwise, and its standard deviation, in percent of the
    /// local time.
    pub fn given(
        percent: f64,
        error_percent: f64,
        emulated: &Emulated,
    ) -> Result<WithoutNetwork, Error> {
        if !(percent > -100.0 && percent <= BUDGET_PERCENT_MAX) {
            return Err(Error::Number {
                what: "an overhead without a network, in percent,",
                must: "more than -100, and no more than a budget may be",
                value: percent,
            });
        }
        if !(0.0..=100.0).contains(&error_percent) {
            return Err(Error::Number {
                what: "the error of an overhead without a network, in percent,",
                must: "0 to 100",
                value: error_percent,
            });
        }
        Ok(WithoutNetwork {
            overhead: percent / 100.0,
            error: error_percent / (100.0 + percent),
            network: without_delay(emulated)?,
            level: None,
            pairs: 0,
        })
    }

    /// Refuses a question about another level than the measurement's.
    pub(crate) fn check_level(&self, asked: Level) -> Result<(), Error> {
        match self.level {
            Some(measured) if measured != asked => Err(Error::AnotherLevel {
                measured: measured.to_string(),
                asked: asked.to_string(),
            }),
            _ => Ok(()),
        }
    }

    /// Returns true if a margin of this size is worth a measurement.
    pub fn is_worth(margin: f64, budget: Budget) -> bool {
        margin > budget.part() / 2.0
    }
}

/// Returns an emulated network that is none, or refuses it.
pub(crate) fn without_delay(emulated: &Emulated) -> Result<Network, Error> {
    let network = Network::from(emulated);
    if network.rtt_ns > RTT_NS_MAX || network.bits_per_s < BITS_PER_S_MIN {
        return Err(Error::WithNetwork {
            network: emulated.to_string(),
            rtt_max: show_ns(RTT_NS_MAX),
            bandwidth_min: show_bits_per_s(BITS_PER_S_MIN),
        });
    }
    Ok(network)
}

/// Writes a level as it is written on the command line.
fn as_text<S: Serializer>(level: &Option<Level>, serializer: S) -> Result<S::Ok, S::Error> {
    level.map(|level| level.to_string()).serialize(serializer)
}
