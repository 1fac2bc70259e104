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

    /// Refuses values that are not durations.
    pub fn check(&self) -> Result<(), Error> {
        for (what, value) in [
            ("start_ns", self.start_ns),
            ("start_ns_per_byte", self.start_ns_per_byte),
            ("time_local_ns", self.time_local_ns),
            ("receive_ns", self.receive_ns),
            ("server_ns", self.server_ns),
            ("copy_ns_per_byte", self.copy_ns_per_byte),
            ("device_ns_per_byte", self.device_ns_per_byte),
            ("processor_more", self.processor_more),
            ("handoff_more", self.handoff_more),
        ] {
            if !(value.is_finite() && value >= 0.0) {
                return Err(Error::Number {
                    what,
                    must: "0 or more",
                    value,
                });
            }
        }
        Ok(())
    }
}
