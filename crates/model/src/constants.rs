//! What remoting costs beside the network: the constants of the cost model.

use serde::{Deserialize, Serialize};

use crate::Error;

/// Measured on the machines in question by `outboard calibrate`, or taken from the literature.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Constants {
    /// Where the numbers are from.
    pub source: String,
    /// `Start(api)`: preparing a request and posting it; the program's thread is busy with it.
    pub start_ns: f64,
    /// What a byte adds to that.
    #[serde(default)]
    pub start_ns_per_byte: f64,
    /// `Time_local(api)`: a call that the client answers by itself.
    pub time_local_ns: f64,
    /// From the arrival of an answer to the call's return.
    #[serde(default)]
    pub receive_ns: f64,
    /// What the server spends on a request beside the driver call.
    #[serde(default)]
    pub server_ns: f64,
    /// What a byte of a long copy takes at least from the program's memory into the GPU's, whatever the network: all that
    /// move it do so at the same time, and the slowest of them counts.
    #[serde(default)]
    pub copy_ns_per_byte: f64,
    /// What a byte takes from pinned memory of the server into the GPU's; 0: as long as in the recording.
    #[serde(default)]
    pub device_ns_per_byte: f64,
}

impl Constants {
    /// From Table 2 of "Characterizing Network Requirements for GPU API Remoting in AI Applications": GPT-2 with
    /// shadow resources spends 14.49 ms on 6,104 asynchronous calls and 1.05 ms on 37,634 local ones.
    /// The paper counts nothing for the answer's way into the program and for the server.
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
        }
    }

    /// For recordings that have all of it in their calls.
    pub(crate) const NONE: Constants = Constants {
        source: String::new(),
        start_ns: 0.0,
        start_ns_per_byte: 0.0,
        time_local_ns: 0.0,
        receive_ns: 0.0,
        server_ns: 0.0,
        copy_ns_per_byte: 0.0,
        device_ns_per_byte: 0.0,
    };

    /// Refuses what is no duration.
    pub fn check(&self) -> Result<(), Error> {
        for (what, value) in [
            ("start_ns", self.start_ns),
            ("start_ns_per_byte", self.start_ns_per_byte),
            ("time_local_ns", self.time_local_ns),
            ("receive_ns", self.receive_ns),
            ("server_ns", self.server_ns),
            ("copy_ns_per_byte", self.copy_ns_per_byte),
            ("device_ns_per_byte", self.device_ns_per_byte),
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
