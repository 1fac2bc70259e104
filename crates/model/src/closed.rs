//! The cost model in closed form: equations 1 to 3 of "Characterizing Network Requirements for GPU
//! API Remoting in AI Applications", as printed there.
//!
//! ```text
//!  C_async(api) = Start(api) + RTT/2 + Payload(api)/Bandwidth                             (1)
//!  C_sync(api)  = Start(api) + RTT   + Payload(api)/Bandwidth      the answer's payload included
//!  E_local(api) = Time(api) - Time_local(api)                                             (2)
//!  E_async(api) = Time(api)
//!  Cost(APP)    = sum over async (C_async - E_async) + sum over sync C_sync
//!                 - sum over local E_local                                               (3)
//! ```
//!
//! It assumes that calls are sequential and that the GPU is the bottleneck: every delay of a call
//! counts in full, even while the GPU is busy. It has no queues, no threads, and a server that
//! takes no time.

use outboard_api::optimise::Level;
use serde::Serialize;

use crate::{
    Constants, Network,
    iteration::{Iteration, Step},
    mode::{Mode, SMALL_MESSAGE_BYTES},
    replay::request_bytes,
};

/// `C_async`.
pub fn c_async(start_ns: f64, payload_bytes: u64, network: &Network) -> f64 {
    start_ns + network.rtt_ns / 2.0 + network.serialisation_ns(payload_bytes)
}

/// `C_sync`.
pub fn c_sync(start_ns: f64, payload_bytes: u64, network: &Network) -> f64 {
    start_ns + network.rtt_ns + network.serialisation_ns(payload_bytes)
}

/// `E_local`.
pub fn e_local(time_ns: f64, time_local_ns: f64) -> f64 {
    time_ns - time_local_ns
}

/// `E_async`.
pub fn e_async(time_ns: f64) -> f64 {
    time_ns
}

/// `Cost(APP)` of an iteration at a level, with its sums computed once: cost = fixed + RTT * rtts +
/// bytes / bandwidth.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Closed {
    pub async_calls: u64,
    pub sync_calls: u64,
    pub local_calls: u64,
    /// The part that does not depend on the network; negative if remoting gains more than it costs.
    pub fixed_ns: f64,
    /// Round trips in the cost, halves included.
    pub rtts: f64,
    pub payload_bytes: u64,
}

impl Closed {
    pub fn new(iteration: &Iteration, level: Level, constants: &Constants) -> Closed {
        let mut closed = Closed::default();
        let constants = match iteration.is_remote {
            true => &Constants::NONE,
            false => constants,
        };
        for step in iteration.steps() {
            closed.add(step, Mode::of(step.class, level), constants);
        }
        closed
    }

    fn add(&mut self, step: &Step, mode: Mode, constants: &Constants) {
        let time_ns = step.duration_ns;
        let request = request_bytes(step);
        let start_ns =
            constants.start_ns + constants.start_ns_per_byte * request as f64 + step.client_ns;
        match mode {
            Mode::Local => {
                self.local_calls += 1;
                self.fixed_ns -= e_local(time_ns, constants.time_local_ns + step.client_ns);
            }
            Mode::Async => {
                self.async_calls += 1;
                self.fixed_ns += c_async(start_ns, 0, &Network::PERFECT) - e_async(time_ns);
                self.rtts += 0.5;
                self.payload_bytes += request;
            }
            Mode::Sync => {
                self.sync_calls += 1;
                self.fixed_ns += c_sync(start_ns, 0, &Network::PERFECT);
                self.rtts += 1.0;
                self.payload_bytes += request + step.response_bytes.max(SMALL_MESSAGE_BYTES);
            }
        }
    }

    /// `Cost(APP)`.
    pub fn cost_ns(&self, network: &Network) -> f64 {
        self.fixed_ns + network.rtt_ns * self.rtts + network.serialisation_ns(self.payload_bytes)
    }

    /// Returns the largest round-trip time at which the cost is at most `cost_ns`; `None` if even 0
    /// is too much, infinity if no call depends on it.
    pub fn rtt_max_ns(&self, cost_ns: f64, bits_per_s: f64) -> Option<f64> {
        let network = Network {
            rtt_ns: 0.0,
            bits_per_s,
        };
        let left_ns = cost_ns - self.cost_ns(&network);
        match self.rtts > 0.0 {
            _ if left_ns < 0.0 => None,
            true => Some(left_ns / self.rtts),
            false => Some(f64::INFINITY),
        }
    }

    /// Returns the smallest bandwidth at which the cost is at most `cost_ns`; `None` if no
    /// bandwidth is enough, 0 if any is.
    pub fn bandwidth_min(&self, cost_ns: f64, rtt_ns: f64) -> Option<f64> {
        let left_ns = cost_ns - self.fixed_ns - rtt_ns * self.rtts;
        match self.payload_bytes {
            0 => (left_ns >= 0.0).then_some(0.0),
            bytes => (left_ns > 0.0).then(|| bytes as f64 * 8e9 / left_ns),
        }
    }
}
