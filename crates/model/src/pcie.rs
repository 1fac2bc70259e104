//! A GPU that is disaggregated at the level of PCIe: the performance model of "DxPU: Large Scale Disaggregated GPU Pools
//! in the Datacenter", section 3.4.
//!
//! Nothing changes for the program and its driver; what travels between CPU and GPU takes longer. By the paper:
//!
//! * a kernel, and a memset, begins `RTT_delta` later: the GPU reads host memory for it;
//! * a copy to the host takes half an `RTT_delta` more: writes are posted, nothing comes back, their rate stays;
//! * a copy to the device takes `RTT_delta` more while the tags suffice for all of it; beyond that it goes at
//!   `RdTP = #tags * MRS / RTT`.
//!
//! Left out, as in the paper: copies between GPUs; all other traffic, such as events and doorbells; other users of the
//! same network.

use outboard_trace::GpuWork;
use serde::Serialize;

use crate::{Error, iteration::Unit};

/// Reads in flight of a GPU, as the paper measured them on a V100.
pub const TAGS: u32 = 140;
/// Max_Read_Request_Size, there.
pub const MRS_BYTES: u32 = 128;
/// The round trip of a PCIe read where nothing is disaggregated (Table 6).
pub const RTT_ORIGINAL_NS: f64 = 1_200.0;

/// The round trips of a PCIe, and what a GPU can have under way on it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Pcie {
    /// Of a read, with what lies between: `RTT_DxPU`.
    pub rtt_ns: f64,
    /// Of a read without that: `RTT_ori`.
    pub rtt_original_ns: f64,
    pub tags: u32,
    pub mrs_bytes: u32,
}

impl Pcie {
    /// With the numbers of the paper's GPU.
    pub fn new(rtt_ns: f64) -> Result<Pcie, Error> {
        match rtt_ns.is_finite() && rtt_ns >= RTT_ORIGINAL_NS {
            true => Ok(Pcie {
                rtt_ns,
                rtt_original_ns: RTT_ORIGINAL_NS,
                tags: TAGS,
                mrs_bytes: MRS_BYTES,
            }),
            false => Err(Error::Number {
                what: "the round-trip time of a PCIe read in ns",
                must: "1200, that of a local GPU, or more",
                value: rtt_ns,
            }),
        }
    }

    /// `RTT_delta`.
    pub fn delta_ns(&self) -> f64 {
        self.rtt_ns - self.rtt_original_ns
    }

    /// `RdTP`: what copies to the device reach at most, by equation 1.
    pub fn read_bytes_per_s(&self) -> f64 {
        self.in_flight_bytes() * 1e9 / self.rtt_ns
    }

    fn in_flight_bytes(&self) -> f64 {
        f64::from(self.tags) * f64::from(self.mrs_bytes)
    }

    /// By how much work begins later, and how long it takes.
    pub(crate) fn cost(&self, unit: &Unit) -> (f64, f64) {
        let (delta_ns, duration_ns) = (self.delta_ns(), unit.duration_ns);
        match unit.kind {
            GpuWork::Kernel | GpuWork::Memset | GpuWork::Graph => (delta_ns, duration_ns),
            GpuWork::CopyOnDevice => (0.0, duration_ns),
            GpuWork::CopyToHost => (0.0, duration_ns + delta_ns / 2.0),
            GpuWork::CopyToDevice => {
                let late_ns = duration_ns + delta_ns;
                let read_ns = match unit.bytes as f64 > self.in_flight_bytes() {
                    true => unit.bytes as f64 * 1e9 / self.read_bytes_per_s(),
                    false => 0.0,
                };
                (0.0, late_ns.max(read_ns))
            }
        }
    }
}
