//! Constants of the cost model: the cost of remoting apart from the network.

use serde::{Deserialize, Serialize};

use crate::Error;

/// Measured by `outboard calibrate` on the machines in question, or taken from the literature.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Constants {
    /// Source of the numbers.
    pub source: String,
    /// `Start(api)`: time to prepare a request and post it, during which the program's thread is
    /// busy.
    pub start_ns: f64,
    /// Time that each byte adds to `start_ns`.
    #[serde(default)]
    pub start_ns_per_byte: f64,
    /// `Time_local(api)`: time of a call that the client answers itself.
    pub time_local_ns: f64,
    /// Time from the arrival of a reply to the call's return.
    #[serde(default)]
    pub receive_ns: f64,
    /// Time that the server spends on a request apart from the driver call.
    #[serde(default)]
    pub server_ns: f64,
    /// Least time of a byte of a long copy from the program's memory into the GPU's, whatever the
    /// network: all parts that move it work at the same time, and the slowest counts.
    #[serde(default)]
    pub copy_ns_per_byte: f64,
    /// Time of a byte from the server's pinned memory into the GPU's; 0 means as long as in the
    /// recording.
    #[serde(default)]
    pub device_ns_per_byte: f64,
    /// True if a wait for copies to the device alone asks the server, as it did in Outboard before
    /// such waits became a message.
    #[serde(default)]
    pub waits_for_copies: bool,
    /// The share by which a program's own code is slower between calls that are sent than between
    /// the driver's.
    #[serde(default)]
    pub processor_more: f64,
    /// Addition to that if threads of the program wait for each other.
    #[serde(default)]
    pub handoff_more: f64,
    /// Additional time of a wait, by the GPU's time that is left when it begins; those times rise.
    /// Between two of them it is interpolated, outside it is that of the nearest.
    #[serde(default)]
    pub waits: Vec<WaitCost>,
}

/// The cost of waits of one length.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WaitCost {
    /// Time that the GPU works on when the server has the request.
    pub gpu_ns: f64,
    pub more_ns: f64,
}

impl Constants {
    /// From Table 2 of "Characterizing Network Requirements for GPU API Remoting in AI
    /// Applications": GPT-2 with shadow resources spends 14.49 ms on 6,104 asynchronous calls and
    /// 1.05 ms on 37,634 local ones. The paper has no cost for the server and for a reply's way
    /// into the program.
    pub fn published() -> Constants {
        Constants {
            source: "Wang et al., Table 2, GPT-2 over RDMA".into(),
            start_ns: 14.49e6 / 6_104.0,
            start_ns_per_byte: 0.0,
            time_local_ns: 1.05e6 / 37_634.0,
            receive_ns: 0.0,
            server_ns: 0.0,
            copy_ns_per_byte: 0.0,
            device_ns_per_byte: 0.0,
            waits_for_copies: false,
            processor_more: 0.0,
            handoff_more: 0.0,
            waits: Vec::new(),
        }
    }

    /// For recordings whose calls include all of these costs.
    pub(crate) const NONE: Constants = Constants {
        source: String::new(),
        start_ns: 0.0,
        start_ns_per_byte: 0.0,
        time_local_ns: 0.0,
        receive_ns: 0.0,
        server_ns: 0.0,
        copy_ns_per_byte: 0.0,
        device_ns_per_byte: 0.0,
        waits_for_copies: false,
        processor_more: 0.0,
        handoff_more: 0.0,
        waits: Vec::new(),
    };

    /// Returns the same costs if a program's own code were slower by `processor` more, and its
    /// copies by `copies`, as shares.
    pub(crate) fn off_by(&self, processor: f64, copies: f64) -> Constants {
        Constants {
            processor_more: self.processor_more + processor,
            start_ns_per_byte: self.start_ns_per_byte * (1.0 + copies),
            copy_ns_per_byte: self.copy_ns_per_byte * (1.0 + copies),
            ..self.clone()
        }
    }

    /// Returns the same costs if each wait took `more_ns` longer.
    pub(crate) fn with_longer_waits(&self, more_ns: f64) -> Constants {
        let mut made = self.clone();
        for wait in &mut made.waits {
            wait.more_ns += more_ns;
        }
        if made.waits.is_empty() {
            let gpu_ns = 0.0;
            made.waits.push(WaitCost { gpu_ns, more_ns });
        }
        made
    }

    /// Returns what a wait costs beyond the rest if the GPU has `left_ns` to work.
    pub(crate) fn wait_more_ns(&self, left_ns: f64) -> f64 {
        let next = self.waits.partition_point(|cost| cost.gpu_ns < left_ns);
        match (self.waits.get(next.wrapping_sub(1)), self.waits.get(next)) {
            (Some(before), Some(after)) => {
                let part = (left_ns - before.gpu_ns) / (after.gpu_ns - before.gpu_ns);
                before.more_ns + part * (after.more_ns - before.more_ns)
            }
            (Some(nearest), None) | (None, Some(nearest)) => nearest.more_ns,
            (None, None) => 0.0,
        }
    }

    /// Refuses values that are not durations, and waits that are out of order.
    pub fn check(&self) -> Result<(), Error> {
        let waits = self.waits.iter().flat_map(|wait| {
            [
                ("gpu_ns of waits", wait.gpu_ns),
                ("more_ns of waits", wait.more_ns),
            ]
        });
        let numbers = [
            ("start_ns", self.start_ns),
            ("start_ns_per_byte", self.start_ns_per_byte),
            ("time_local_ns", self.time_local_ns),
            ("receive_ns", self.receive_ns),
            ("server_ns", self.server_ns),
            ("copy_ns_per_byte", self.copy_ns_per_byte),
            ("device_ns_per_byte", self.device_ns_per_byte),
            ("processor_more", self.processor_more),
            ("handoff_more", self.handoff_more),
        ];
        for (what, value) in numbers.into_iter().chain(waits) {
            if !(value.is_finite() && value >= 0.0) {
                return Err(Error::Number {
                    what,
                    must: "0 or more",
                    value,
                });
            }
        }
        let mut pairs = self.waits.iter().zip(self.waits.iter().skip(1));
        match pairs.find(|(before, after)| before.gpu_ns >= after.gpu_ns) {
            Some((before, after)) => Err(Error::WaitsOutOfOrder {
                before_ns: before.gpu_ns,
                after_ns: after.gpu_ns,
            }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(waits: &[(f64, f64)]) -> Constants {
        let cost = |&(gpu_ns, more_ns): &(f64, f64)| WaitCost { gpu_ns, more_ns };
        Constants {
            waits: waits.iter().map(cost).collect(),
            ..Constants::NONE
        }
    }

    #[test]
    fn a_waits_cost_is_interpolated() {
        let known = with(&[(1e3, 10.0), (2e3, 20.0), (4e3, 16.0)]);
        for (left_ns, more_ns) in [
            (0.0, 10.0),
            (1e3, 10.0),
            (1.5e3, 15.0),
            (2e3, 20.0),
            (3e3, 18.0),
            (4e3, 16.0),
            (1e9, 16.0),
        ] {
            assert_eq!(known.wait_more_ns(left_ns), more_ns, "{left_ns}");
        }
        assert_eq!(with(&[]).wait_more_ns(5e6), 0.0);
        assert_eq!(with(&[(1e6, 3.0)]).wait_more_ns(0.0), 3.0);
    }

    #[test]
    fn every_wait_is_longer() {
        for waits in [&[][..], &[(0.0, 4.0), (1e6, 9.0)]] {
            let (known, longer) = (with(waits), with(waits).with_longer_waits(5.0));
            for left_ns in [0.0, 3e5, 2e6] {
                let more_ns = longer.wait_more_ns(left_ns) - known.wait_more_ns(left_ns);
                assert!((more_ns - 5.0).abs() < 1e-9, "{left_ns}: {more_ns}");
            }
        }
    }

    #[test]
    fn waits_are_durations_in_order() {
        assert_eq!(with(&[(0.0, 0.0), (1e5, 7.0)]).check(), Ok(()));
        for (waits, says) in [
            (&[(-1.0, 0.0)][..], "gpu_ns of waits must be 0 or more"),
            (&[(0.0, -1.0)], "more_ns of waits must be 0 or more"),
            (&[(f64::NAN, 0.0)], "gpu_ns of waits"),
            (&[(0.0, f64::NAN)], "more_ns of waits"),
            (&[(0.0, 0.0), (f64::INFINITY, 0.0)], "gpu_ns of waits"),
            (&[(2e5, 0.0), (1e5, 0.0)], "100000 comes after 200000"),
            (&[(1e5, 0.0), (1e5, 1.0)], "must rise"),
        ] {
            let error = with(waits).check().unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
