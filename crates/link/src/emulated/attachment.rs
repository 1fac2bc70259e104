//! A process's attachment to an emulated network.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use outboard_wire::{
    limits::{READ_AHEAD_BYTES_MAX, READ_AHEAD_BYTES_MIN},
    network::Network,
};
use parking_lot::Mutex;

use super::{End, Wire, clock::now_ns};

/// One end of an emulated network. All links of a session share it: their frames wait for one wire,
/// and what they receive before its time has one bound.
#[derive(Clone)]
pub struct Attachment(Arc<State>);

struct State {
    end: End,
    wire: Mutex<Wire>,
    /// Bytes of frames that were received before their time.
    ahead_bytes: AtomicUsize,
    ahead_bytes_max: AtomicUsize,
}

impl Attachment {
    pub fn new(network: &Network, end: End) -> Self {
        Self(Arc::new(State {
            end,
            wire: Mutex::new(Wire::new(network, end)),
            ahead_bytes: AtomicUsize::new(0),
            ahead_bytes_max: AtomicUsize::new(ahead_bytes_max(network)),
        }))
    }

    /// Uses another network from now on.
    pub(super) fn change(&self, network: &Network) {
        let State { end, wire, .. } = &*self.0;
        wire.lock().change(network, *end);
        let max = ahead_bytes_max(network);
        self.0.ahead_bytes_max.store(max, Ordering::Relaxed);
    }

    /// Returns when a message of `bytes` arrives that is sent now.
    #[inline]
    pub(super) fn arrival_ns(&self, bytes: usize) -> u64 {
        let mut wire = self.0.wire.lock();
        wire.arrival_ns(now_ns(), bytes)
    }

    /// Returns whether more may be received before its time.
    pub(super) fn has_room_ahead(&self) -> bool {
        let State {
            ahead_bytes,
            ahead_bytes_max,
            ..
        } = &*self.0;
        ahead_bytes.load(Ordering::Relaxed) < ahead_bytes_max.load(Ordering::Relaxed)
    }

    pub(super) fn hold_ahead(&self, bytes: usize) {
        self.0.ahead_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn release_ahead(&self, bytes: usize) {
        self.0.ahead_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl fmt::Debug for Attachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Attachment").field(&self.0.end).finish()
    }
}

/// Returns how much is received before its time: about what is under way over the network.
fn ahead_bytes_max(network: &Network) -> usize {
    /// Bandwidth assumed for a network without a limit.
    const BPS_UNBOUND: u64 = 100_000_000_000;
    let bps = network
        .bandwidth()
        .map_or(BPS_UNBOUND, |bandwidth| bandwidth.bps());
    let tail_s = network
        .tail()
        .map_or(0.0, |tail| tail.extra().as_secs_f64());
    // Of exponential delays 98 % are below four times their mean.
    let way_s = network.rtt().as_secs_f64() / 2.0 + 4.0 * network.jitter().as_secs_f64() + tail_s;
    // A quarter more for what is counted beside the bytes. A cast of a float saturates, so none is
    // too large.
    let bytes = (1.25 * way_s * bps as f64 / 8.0) as usize;
    bytes
        .saturating_add(READ_AHEAD_BYTES_MIN)
        .min(READ_AHEAD_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_received_early_has_a_bound() {
        let max = |network: &str| ahead_bytes_max(&network.parse().unwrap());
        assert_eq!(max("bandwidth=100Gbps"), READ_AHEAD_BYTES_MIN);
        // 187.5 MB are under way.
        let long = max("rtt=30ms,bandwidth=100Gbps");
        assert!(
            (187_500_000..READ_AHEAD_BYTES_MAX).contains(&long),
            "{long}"
        );
        assert!(max("rtt=30ms,bandwidth=50Gbps") < long);
        assert!(max("rtt=30ms,bandwidth=100Gbps,tail=1ms@1%") > long);
        assert_eq!(max("rtt=10s"), READ_AHEAD_BYTES_MAX);
        assert_eq!(max("rtt=1us,jitter=10s"), READ_AHEAD_BYTES_MAX);
    }

    #[test]
    fn all_links_share_a_wire_and_a_bound() {
        let ours = Attachment::new(&"bandwidth=8Mbps".parse().unwrap(), End::Client);
        let other = ours.clone();
        let first = ours.arrival_ns(1_000);
        // A microsecond a byte.
        assert!(other.arrival_ns(1) >= first + 1_000);
        ours.hold_ahead(READ_AHEAD_BYTES_MIN);
        assert!(!other.has_room_ahead());
        other.release_ahead(1);
        assert!(ours.has_room_ahead());
    }
}
