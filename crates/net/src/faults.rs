//! The network between queue pairs: loss, delay and bandwidth, the same again from one seed.

use crate::error::Error;

const MILLION: u32 = 1_000_000;
/// Longest time of a message: an hour.
const DELAY_NS_MAX: u64 = 3_600_000_000_000;

/// A network's properties. The default loses nothing and takes no time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Network {
    pub seed: u64,
    /// Messages lost of each million, requests and answers alike.
    pub loss_ppm: u32,
    pub delay_ns_min: u64,
    pub delay_ns_max: u64,
    /// 0 does not limit it.
    pub bytes_per_s: u64,
}

impl Network {
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.loss_ppm > MILLION {
            return Err(Error::Loss(self.loss_ppm));
        }
        let (min_ns, max_ns) = (self.delay_ns_min, self.delay_ns_max);
        if min_ns > max_ns || max_ns > DELAY_NS_MAX {
            let limit_ns = DELAY_NS_MAX;
            return Err(Error::Delay {
                min_ns,
                max_ns,
                limit_ns,
            });
        }
        Ok(())
    }

    /// Returns true if it loses nothing and takes no time, whatever its seed.
    pub(crate) fn is_perfect(&self) -> bool {
        let Network { seed, .. } = *self;
        *self
            == Network {
                seed,
                ..Network::default()
            }
    }
}

/// A network in use.
#[derive(Debug)]
pub(crate) struct Wire {
    network: Network,
    state: u64,
    free_at_ns: u64,
}

impl Wire {
    pub(crate) fn new(network: Network) -> Wire {
        Wire {
            network,
            state: network.seed,
            free_at_ns: 0,
        }
    }

    /// True if every message arrives at once.
    pub(crate) fn is_perfect(&self) -> bool {
        self.network
            == Network {
                seed: self.network.seed,
                ..Network::default()
            }
    }

    /// Returns when a message that is sent now arrives; `None` if it is lost.
    pub(crate) fn arrival_ns(&mut self, now_ns: u64, bytes: u64) -> Option<u64> {
        let Network {
            loss_ppm,
            delay_ns_min,
            delay_ns_max,
            bytes_per_s,
            ..
        } = self.network;
        let lost = self.next() % u64::from(MILLION) < u64::from(loss_ppm);
        let spread_ns = delay_ns_max.saturating_sub(delay_ns_min);
        let delay_ns = delay_ns_min + self.next() % (spread_ns + 1);
        if let Some(ns) = (bytes.saturating_mul(1_000_000_000)).checked_div(bytes_per_s) {
            self.free_at_ns = self.free_at_ns.max(now_ns).saturating_add(ns);
        }
        (!lost).then_some(self.free_at_ns.max(now_ns).saturating_add(delay_ns))
    }

    /// SplitMix64.
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ self.state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
}
