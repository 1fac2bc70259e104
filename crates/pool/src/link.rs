//! Networks between programs and boxes: what a box has, and what a claim needs.

use std::time::Duration;

use outboard_wire::network::{
    BANDWIDTH_BPS_MAX, BANDWIDTH_BPS_MIN, Bandwidth, DELAY_NS_MAX, show_duration,
};
#[cfg(feature = "schemas")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::limits;

/// Network of a box: what programs have to and from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(JsonSchema))]
pub struct LinkFacts {
    /// Median round trip of one message each way, with nothing else under way.
    pub rtt_ns: u64,
    /// Bandwidth of one connection, in the slower direction.
    pub bits_per_s: u64,
    pub source: LinkSource,
}

/// Origin of what is known of a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum LinkSource {
    /// The box has measured it when it began.
    Measured,
    /// The box's operator says so.
    Told,
}

/// Network that is good enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct LinkNeed {
    pub rtt_ns_max: u64,
    pub bits_per_s_min: u64,
}

impl LinkNeed {
    fn is_met_by(&self, link: &LinkFacts) -> bool {
        link.rtt_ns <= self.rtt_ns_max && link.bits_per_s >= self.bits_per_s_min
    }
}

/// Returns whether a network is as good as one of those that are needed. One that is not known is
/// good enough only if nothing is needed.
pub fn meets(link: Option<&LinkFacts>, needs: &[LinkNeed]) -> bool {
    needs.is_empty() || link.is_some_and(|link| needs.iter().any(|need| need.is_met_by(link)))
}

/// Returns a network as errors and lists show it.
pub fn show_link(link: &LinkFacts) -> String {
    format!("{} and {}", ns(link.rtt_ns), bps(link.bits_per_s))
}

/// Returns networks that are good enough as errors show them, the first few of them.
pub fn show_needs(needs: &[LinkNeed]) -> String {
    let shown = needs.iter().take(limits::LINK_NEEDS_SHOWN).map(|need| {
        let (rtt, bandwidth) = (ns(need.rtt_ns_max), bps(need.bits_per_s_min));
        format!("at most {rtt} with at least {bandwidth}")
    });
    let mut text = shown.collect::<Vec<_>>().join(", or ");
    if needs.len() > limits::LINK_NEEDS_SHOWN {
        text.push_str(", or one of some between");
    }
    text
}

/// Checks what a claim needs.
pub(crate) fn check_needs(needs: &[LinkNeed]) -> Result<(), String> {
    if needs.len() > limits::LINK_NEEDS_MAX {
        return Err(format!(
            "a claim has at most {} networks that are good enough, not {}",
            limits::LINK_NEEDS_MAX,
            needs.len()
        ));
    }
    for need in needs {
        check_rtt(need.rtt_ns_max)?;
        check_bandwidth(need.bits_per_s_min)?;
    }
    Ok(())
}

/// Checks what a box says of its network.
pub(crate) fn check_link(link: &LinkFacts) -> Result<(), String> {
    check_rtt(link.rtt_ns)?;
    check_bandwidth(link.bits_per_s)
}

fn check_rtt(rtt_ns: u64) -> Result<(), String> {
    match rtt_ns <= DELAY_NS_MAX {
        true => Ok(()),
        false => Err(format!(
            "a round trip is 0 to {DELAY_NS_MAX} ns, not {rtt_ns}"
        )),
    }
}

fn check_bandwidth(bits_per_s: u64) -> Result<(), String> {
    match (BANDWIDTH_BPS_MIN..=BANDWIDTH_BPS_MAX).contains(&bits_per_s) {
        true => Ok(()),
        false => Err(format!(
            "a bandwidth is {BANDWIDTH_BPS_MIN} to {BANDWIDTH_BPS_MAX} bits a second, not {bits_per_s}"
        )),
    }
}

/// Shows a time with three digits.
fn ns(ns: u64) -> String {
    show_duration(Duration::from_nanos(three_digits(ns)))
}

fn bps(bits_per_s: u64) -> String {
    let rounded = three_digits(bits_per_s);
    Bandwidth::from_bps(rounded).map_or_else(|| format!("{rounded}bps"), |it| it.to_string())
}

fn three_digits(number: u64) -> u64 {
    let digits = number.checked_ilog10().unwrap_or(0);
    let unit = 10_u64.pow(digits.saturating_sub(2));
    (number + unit / 2) / unit * unit
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(rtt_ns: u64, bits_per_s: u64) -> LinkFacts {
        LinkFacts {
            rtt_ns,
            bits_per_s,
            source: LinkSource::Told,
        }
    }

    #[test]
    fn one_need_is_enough_and_an_unknown_link_never_is() {
        let need = |rtt_ns_max, bits_per_s_min| LinkNeed {
            rtt_ns_max,
            bits_per_s_min,
        };
        let needs = [need(10_000, 1_000_000_000), need(50_000, 10_000_000_000)];
        for (rtt_ns, bits_per_s, is_met) in [
            (10_000, 1_000_000_000, true),
            (10_001, 1_000_000_000, false),
            (10_000, 999_999_999, false),
            (50_000, 10_000_000_000, true),
            (50_001, 400_000_000_000, false),
            (30_000, 9_999_999_999, false),
        ] {
            let link = link(rtt_ns, bits_per_s);
            assert_eq!(meets(Some(&link), &needs), is_met, "{link:?}");
        }
        assert!(!meets(None, &needs));
        assert!(meets(None, &[]));
        let text = show_needs(&needs);
        assert_eq!(
            text,
            "at most 10us with at least 1Gbps, or at most 50us with at least 10Gbps"
        );
        assert_eq!(
            show_link(&link(1_234_567, 9_876_543_210)),
            "1.23ms and 9.88Gbps"
        );
    }

    #[test]
    fn numbers_beyond_the_limits_are_refused() {
        for (rtt_ns, bits_per_s) in [
            (DELAY_NS_MAX + 1, BANDWIDTH_BPS_MIN),
            (u64::MAX, BANDWIDTH_BPS_MAX),
            (0, 0),
            (0, BANDWIDTH_BPS_MIN - 1),
            (0, BANDWIDTH_BPS_MAX + 1),
        ] {
            let need = LinkNeed {
                rtt_ns_max: rtt_ns,
                bits_per_s_min: bits_per_s,
            };
            assert!(check_needs(&[need]).is_err(), "{need:?}");
            assert!(check_link(&link(rtt_ns, bits_per_s)).is_err());
        }
        let need = LinkNeed {
            rtt_ns_max: 0,
            bits_per_s_min: BANDWIDTH_BPS_MIN,
        };
        assert!(check_needs(&[need; limits::LINK_NEEDS_MAX]).is_ok());
        assert!(check_needs(&[need; limits::LINK_NEEDS_MAX + 1]).is_err());
    }
}
