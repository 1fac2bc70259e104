//! A network as the models see it: a round-trip time and a bandwidth.

use std::time::Duration;

use outboard_wire::network::{
    BANDWIDTH_BPS_MAX, BANDWIDTH_BPS_MIN, Bandwidth, DELAY_NS_MAX, show_duration,
};
use serde::Serialize;

use crate::Error;

/// Bounds of the search for requirements: those of the networks that `outboard` accepts.
pub const RTT_NS_MAX: f64 = DELAY_NS_MAX as f64;
pub const BITS_PER_S_MIN: f64 = BANDWIDTH_BPS_MIN as f64;
pub const BITS_PER_S_MAX: f64 = BANDWIDTH_BPS_MAX as f64;

const NS_PER_S: f64 = 1e9;
const BITS_PER_BYTE: f64 = 8.0;

/// A network whose directions are alike and independent. No loss, no jitter, no other traffic.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Network {
    /// Round trip between the program and the GPU's host.
    pub rtt_ns: f64,
    pub bits_per_s: f64,
}

impl Network {
    /// No round-trip time and unlimited bandwidth: only the cost of remoting itself remains.
    pub const PERFECT: Network = Network {
        rtt_ns: 0.0,
        bits_per_s: f64::INFINITY,
    };

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

    /// Returns the time for which `bytes` keep one direction busy.
    pub fn serialisation_ns(&self, bytes: u64) -> f64 {
        bytes as f64 * BITS_PER_BYTE * NS_PER_S / self.bits_per_s
    }
}

/// Leaves out jitter and tails: the models compute one run, not a distribution.
impl From<&outboard_wire::network::Network> for Network {
    fn from(network: &outboard_wire::network::Network) -> Network {
        let bandwidth = network.bandwidth();
        Network {
            rtt_ns: network.rtt().as_nanos() as f64,
            bits_per_s: bandwidth.map_or(f64::INFINITY, |bandwidth| bandwidth.bps() as f64),
        }
    }
}

/// Shows a time with three digits: `1.38us`, `12.3ms`.
pub fn show_ns(ns: f64) -> String {
    let sign = if ns < 0.0 { "-" } else { "" };
    let rounded = three_digits(ns.abs());
    match rounded < 1.0 {
        true => "0".into(),
        false => format!(
            "{sign}{}",
            show_duration(Duration::from_nanos(rounded as u64))
        ),
    }
}

/// Shows a bandwidth with three digits.
pub fn show_bits_per_s(bits_per_s: f64) -> String {
    let rounded = three_digits(bits_per_s);
    match Bandwidth::from_bps(rounded as u64) {
        Some(bandwidth) => bandwidth.to_string(),
        None => format!("{rounded:.0}bps"),
    }
}

fn three_digits(number: f64) -> f64 {
    if number <= 0.0 || !number.is_finite() {
        return 0.0;
    }
    let unit = 10_f64.powf((number.log10().floor() - 2.0).max(0.0));
    (number / unit).round() * unit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_are_shown() {
        for (ns, text) in [
            (0.4, "0"),
            (7.0, "7ns"),
            (1_384.0, "1.38us"),
            (12_345_678.0, "12.3ms"),
            (-1_500.0, "-1.5us"),
        ] {
            assert_eq!(show_ns(ns), text);
        }
        for (bits, text) in [
            (1e9, "1Gbps"),
            (2.5e9, "2.5Gbps"),
            (123_456_789.0, "123Mbps"),
            (10.0, "10bps"),
        ] {
            assert_eq!(show_bits_per_s(bits), text);
        }
    }

    #[test]
    fn what_is_no_network_is_refused() {
        for (rtt, bits) in [
            (-1.0, 1e9),
            (f64::NAN, 1e9),
            (f64::INFINITY, 1e9),
            (0.0, 0.0),
            (0.0, f64::NAN),
        ] {
            assert!(Network::new(rtt, bits).is_err(), "{rtt} {bits}");
        }
        assert!(Network::new(0.0, f64::INFINITY).is_ok());
    }
}
