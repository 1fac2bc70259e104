//! What the bench and its workers say to each other: a line of JSON for each question, one for its
//! answer.

use serde::{Deserialize, Serialize};

use super::cases::Work;

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Request {
    /// Times the work until there are so many samples or the time is used up; one sample at least.
    Run {
        work: Work,
        samples: usize,
        budget_ms: u64,
    },
    /// How much of the device's memory is free.
    Memory,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Reply {
    /// Said once, unasked, when the first result of the device is on the host.
    Ready(Ready),
    /// Nanoseconds of one call, a number a sample; and how long the whole took.
    Samples {
        ns: Vec<f64>,
        span_ns: u64,
    },
    Memory {
        free_bytes: u64,
    },
    Failed {
        why: String,
    },
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Ready {
    pub(super) device: String,
    /// As cuDriverGetVersion answers it: 13000 is CUDA 13.0.
    pub(super) driver_version: u32,
    /// The file of the driver's library.
    pub(super) library: String,
    /// From the start of the worker to a current context.
    pub(super) connect_ns: u64,
    /// From the start of the worker to the first result of a kernel on the host.
    pub(super) first_result_ns: u64,
}
