//! Messages between the bench and its workers: a line of JSON for each request, one for its reply.

use serde::{Deserialize, Serialize};

use super::{
    cases::Operation,
    net_case::{NetCase, NetFigures},
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Request {
    /// Times the work until there are `samples` samples or the time is used up; one sample at
    /// least.
    Run {
        work: Operation,
        samples: usize,
        budget_ms: u64,
    },
    /// Returns the free memory of the device.
    Memory,
    /// Has a kernel post to an adapter in the worker.
    Net(NetCase),
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Reply {
    /// Sent once without a request, when the first result of the device is on the host.
    Ready(Ready),
    /// Durations of one call in nanoseconds, a number per sample; and the duration of the whole.
    Samples {
        ns: Vec<f64>,
        span_ns: u64,
    },
    Memory {
        free_bytes: u64,
    },
    Net(NetFigures),
    Failed {
        why: String,
    },
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Ready {
    pub(super) device: String,
    /// Result of cuDriverGetVersion: 13000 is CUDA 13.0.
    pub(super) driver_version: u32,
    /// The file of the driver's library.
    pub(super) library: String,
    /// Nanoseconds from the start of the worker to a current context.
    pub(super) connect_ns: u64,
    /// Nanoseconds from the start of the worker to the first result of a kernel on the host.
    pub(super) first_result_ns: u64,
}
