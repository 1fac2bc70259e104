//! A network as the models see it: a round-trip time, a bandwidth, nothing else.

use serde::Serialize;

use crate::Error;

const NS_PER_S: f64 = 1e9;
const BITS_PER_BYTE: f64 = 8.0;

/// Both directions are alike and do not disturb each other. No loss, no jitter, no other traffic.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Network {
    /// From the program to the GPU's host and back.
    pub rtt_ns: f64,
    pub bits_per_s: f64,
}

impl Network {
    pub fn new(rtt_ns: f64, bits_per_s: f64) -> Result<Network, Error> {
        if !(rtt_ns.is_finite() && rtt_ns >= 0.0) {
            return Err(Error::Number {
                what: "a round-trip time in ns",
                must: "0 or more",
                value: rtt_ns,
            });
        }
        if bits_per_s.is_nan() || bits_per_s <= 0.0 {
            return Err(Error::Number {
                what: "a bandwidth in bits a second",
                must: "more than 0",
                value: bits_per_s,
            });
        }
        Ok(Network { rtt_ns, bits_per_s })
    }

    /// No round-trip time, no end of bandwidth: what is left is the cost of remoting itself.
    pub const PERFECT: Network = Network {
        rtt_ns: 0.0,
        bits_per_s: f64::INFINITY,
    };

    /// How long so many bytes keep one direction busy.
    pub fn serialisation_ns(&self, bytes: u64) -> f64 {
        bytes as f64 * BITS_PER_BYTE * NS_PER_S / self.bits_per_s
    }
}

/// A network that exists, and where its numbers are from.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Known {
    pub name: String,
    pub about: String,
    #[serde(flatten)]
    pub network: Network,
}
