//! The description of a network to emulate:
//! `rtt=10us,bandwidth=1Gbps,jitter=2us,tail=50us@0.1%,seed=7`.
//!
//! As everywhere, the letter alone says bits or bytes: `1Gbps` and `1Gbit/s` are bits, `125MB/s` is
//! bytes.

mod known;
mod units;

use std::{fmt, num::NonZeroU64, str::FromStr, time::Duration};

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use self::known::{KNOWN, Known};
pub use self::units::{parse_duration, show_duration};

/// Longest round trip, and longest delay of any other kind, that a description may have.
pub const DELAY_NS_MAX: u64 = 10_000_000_000;
/// Least and most bits a second that a description may have.
pub const BANDWIDTH_BPS_MIN: u64 = 1_000_000;
pub const BANDWIDTH_BPS_MAX: u64 = 10_000_000_000_000;
/// Tails are given in millionths of the messages.
pub const TAIL_PPM_MAX: u32 = 1_000_000;

/// A network as its two ends see it. [`FromStr`] reads what [`Display`](fmt::Display) writes as an
/// equal value. The default network delays nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Network {
    rtt_ns: u64,
    bandwidth: Option<Bandwidth>,
    jitter_ns: u64,
    tail: Option<Tail>,
    seed: u64,
}

/// Bits a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bandwidth(NonZeroU64);

/// Share of the messages that take much longer, like a message that was lost and sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tail {
    pub(crate) extra_ns: u64,
    pub(crate) ppm: u32,
}

/// Reason why a text describes no network, and what would describe one.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "bad network {text:?}: {reason}; a network is rtt=10us,bandwidth=1Gbps (one of the two at least), with jitter=2us, \
     tail=50us@0.1% and seed=7 if wanted, or a known one, which such parts may follow: {}",
    known::names()
)]
pub struct NetworkError {
    pub text: String,
    pub reason: String,
}

impl Network {
    /// Creates a network without jitter. With a zero round trip and no bandwidth it delays nothing.
    pub fn new(rtt: Duration, bandwidth: Option<Bandwidth>) -> Result<Network, NetworkError> {
        let ns = u64::try_from(rtt.as_nanos()).unwrap_or(u64::MAX);
        if ns > DELAY_NS_MAX {
            return Err(NetworkError {
                text: format!("rtt={rtt:?}"),
                reason: units::too_long(),
            });
        }
        Ok(Network {
            rtt_ns: ns,
            bandwidth,
            ..Network::default()
        })
    }

    /// Time that an empty message takes there and back.
    pub fn rtt(&self) -> Duration {
        Duration::from_nanos(self.rtt_ns)
    }

    /// Bits a second in each direction; `None` if there is no limit.
    pub fn bandwidth(&self) -> Option<Bandwidth> {
        self.bandwidth
    }

    /// Mean of the extra time of each message, exponentially distributed, in each direction.
    pub fn jitter(&self) -> Duration {
        Duration::from_nanos(self.jitter_ns)
    }

    pub fn tail(&self) -> Option<Tail> {
        self.tail
    }

    /// Seed of jitter and tail: equal seeds delay the same messages.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Applies one `key=value`.
    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "rtt" => self.rtt_ns = units::parse_ns(value)?,
            "bandwidth" => self.bandwidth = Some(value.parse()?),
            "jitter" => self.jitter_ns = units::parse_ns(value)?,
            "tail" => self.tail = Some(value.parse()?),
            "seed" => {
                self.seed = value
                    .parse()
                    .map_err(|_| format!("the seed {value:?} is no whole number below 2^64"))?;
            }
            _ => {
                return Err(format!(
                    "there is no {key:?}; there are rtt, bandwidth, jitter, tail and seed"
                ));
            }
        }
        Ok(())
    }
}

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Network, NetworkError> {
        parse(text).map_err(|reason| NetworkError {
            text: text.into(),
            reason,
        })
    }
}

fn parse(text: &str) -> Result<Network, String> {
    let mut parts = text.split(',').map(str::trim).peekable();
    let mut network = Network::default();
    let known = parts.next_if(|part| !part.is_empty() && !part.contains('='));
    if let Some(name) = known {
        network = known::find(name).ok_or_else(|| no_such_name(name))?;
    }
    let mut keys: Vec<&str> = Vec::new();
    for part in parts {
        let Some((key, value)) = part.split_once('=') else {
            return Err(match part {
                "" => "a part is empty".into(),
                _ => format!("{part:?} is no key=value, as in rtt=10us"),
            });
        };
        let (key, value) = (key.trim(), value.trim());
        if keys.contains(&key) {
            return Err(format!("{key} is given twice"));
        }
        keys.push(key);
        network.set(key, value)?;
    }
    if known.is_none() && !keys.contains(&"rtt") && !keys.contains(&"bandwidth") {
        return Err("it has neither rtt nor bandwidth".into());
    }
    Ok(network)
}

fn no_such_name(name: &str) -> String {
    match name.starts_with(|first: char| first.is_ascii_digit()) {
        true => format!("{name:?} does not say what it is, as rtt=10us and bandwidth=1Gbps do"),
        false => format!("no network is known as {name:?}"),
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = |ns: u64| show_duration(Duration::from_nanos(ns));
        let parts = [
            (self.rtt_ns > 0).then(|| format!("rtt={}", time(self.rtt_ns))),
            self.bandwidth
                .map(|bandwidth| format!("bandwidth={bandwidth}")),
            (self.jitter_ns > 0).then(|| format!("jitter={}", time(self.jitter_ns))),
            self.tail.map(|tail| format!("tail={tail}")),
            (self.seed > 0).then(|| format!("seed={}", self.seed)),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        f.write_str(&parts.join(","))
    }
}

impl TryFrom<String> for Network {
    type Error = NetworkError;

    fn try_from(text: String) -> Result<Network, NetworkError> {
        match text.as_str() {
            "" => Ok(Network::default()),
            text => text.parse(),
        }
    }
}

impl From<Network> for String {
    fn from(network: Network) -> String {
        network.to_string()
    }
}

impl Bandwidth {
    /// Returns `None` outside of [`BANDWIDTH_BPS_MIN`] to [`BANDWIDTH_BPS_MAX`].
    pub fn from_bps(bps: u64) -> Option<Bandwidth> {
        let is_meant = (BANDWIDTH_BPS_MIN..=BANDWIDTH_BPS_MAX).contains(&bps);
        NonZeroU64::new(bps).filter(|_| is_meant).map(Bandwidth)
    }

    pub fn bps(self) -> u64 {
        self.0.get()
    }
}

impl Tail {
    /// Extra time of a message in the tail.
    pub fn extra(self) -> Duration {
        Duration::from_nanos(self.extra_ns)
    }

    /// Messages in the tail, per million.
    pub fn ppm(self) -> u32 {
        self.ppm
    }
}

#[cfg(test)]
mod tests;
