//! A GPU that is disaggregated at the level of PCIe: the performance model of "DxPU: Large Scale
//! Disaggregated GPU Pools in the Datacenter", section 3.4.
//!
//! Program and driver are unchanged; traffic between CPU and GPU takes longer. By the paper:
//!
//! * a kernel, and a memset, begins `RTT_delta` later: the GPU reads host memory for it;
//! * a copy to the host takes half an `RTT_delta` more: writes are posted and need no answer, their
//!   rate stays;
//! * a copy to the device takes `RTT_delta` more if the tags suffice for all of it; a longer one
//!   runs at `RdTP = #tags * MRS / RTT`.
//!
//! Left out, as in the paper: copies between GPUs; other traffic, such as events and doorbells;
//! other users of the network.

use std::str::FromStr;

use outboard_trace::GpuWork;
use outboard_wire::network::parse_duration;
use serde::Serialize;

use crate::{Error, iteration::Unit};

/// Reads of a GPU in flight, as the paper measured them on a V100.
pub const TAGS: u32 = 140;
/// Max_Read_Request_Size of that GPU.
pub const MRS_BYTES: u32 = 128;
/// Round trip of a PCIe read without disaggregation (Table 6).
pub const RTT_ORIGINAL_NS: f64 = 1_200.0;

const NUMBER_MAX: u32 = 1 << 20;

/// Round trips of a PCIe, and the reads that a GPU can have in flight on it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Pcie {
    /// Round trip of a read, disaggregated: `RTT_DxPU`.
    pub rtt_ns: f64,
    /// Round trip of a read, not disaggregated: `RTT_ori`.
    pub rtt_original_ns: f64,
    pub tags: u32,
    pub mrs_bytes: u32,
}

/// `rtt=6.8us`, with `tags=140`, `mrs=128` and `native=1.2us` if they differ from the paper's.
impl FromStr for Pcie {
    type Err = PcieError;

    fn from_str(text: &str) -> Result<Pcie, PcieError> {
        parse(text).map_err(|reason| PcieError {
            text: text.into(),
            reason,
        })
    }
}

/// Times by which a longer PCIe makes a unit late.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Late {
    /// Of the doorbell.
    pub doorbell_ns: f64,
    /// Of the unit's beginning, after what it waits for.
    pub begin_ns: f64,
    /// Time for which it runs.
    pub duration_ns: f64,
    /// Of its event: the time from its end until the processor sees that.
    pub seen_ns: f64,
}

/// Reason why a text describes no PCIe.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "bad PCIe {text:?}: {reason}; a longer PCIe is rtt=6.8us, with tags=140, mrs=128 (bytes) and native=1.2us if they are others"
)]
pub struct PcieError {
    pub text: String,
    pub reason: String,
}

fn parse(text: &str) -> Result<Pcie, String> {
    let (mut rtt, mut native, mut tags, mut mrs) = (None, None, None, None);
    let number = |value: &str| match value.parse::<u32>() {
        Ok(number) if (1..=NUMBER_MAX).contains(&number) => Ok(number),
        _ => Err(format!("{value:?} is no number from 1 to {NUMBER_MAX}")),
    };
    let ns = |value: &str| parse_duration(value).map(|time| time.as_nanos() as f64);
    for part in text.split(',') {
        let (key, value) = part
            .split_once('=')
            .ok_or_else(|| format!("{part:?} is no key=value"))?;
        let is_twice = match key {
            "rtt" => rtt.replace(ns(value)?).is_some(),
            "native" => native.replace(ns(value)?).is_some(),
            "tags" => tags.replace(number(value)?).is_some(),
            "mrs" => mrs.replace(number(value)?).is_some(),
            _ => return Err(format!("there is no {key:?}")),
        };
        if is_twice {
            return Err(format!("{key} is given twice"));
        }
    }
    let rtt_ns = rtt.ok_or("it has no rtt")?;
    let rtt_original_ns = native.unwrap_or(RTT_ORIGINAL_NS);
    if rtt_ns < rtt_original_ns {
        return Err("its rtt is shorter than the native one".into());
    }
    Ok(Pcie {
        rtt_ns,
        rtt_original_ns,
        tags: tags.unwrap_or(TAGS),
        mrs_bytes: mrs.unwrap_or(MRS_BYTES),
    })
}

impl Pcie {
    /// Makes a PCIe with the numbers of the paper's GPU.
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

    /// `RdTP`: the highest rate of copies to the device, by equation 1.
    pub fn read_bytes_per_s(&self) -> f64 {
        self.in_flight_bytes() * 1e9 / self.rtt_ns
    }

    /// Returns the numbers for injection (section 3.4.2 of the paper): `RTT_delta`, the bytes for
    /// which the tags suffice, and the nanoseconds that each byte of a longer copy to the device
    /// takes longer.
    pub fn injected(&self) -> (f64, f64, f64) {
        let original_ns_per_byte = self.rtt_original_ns / self.in_flight_bytes();
        let ns_per_byte = self.rtt_ns / self.in_flight_bytes();
        (
            self.delta_ns(),
            self.in_flight_bytes(),
            ns_per_byte - original_ns_per_byte,
        )
    }

    fn in_flight_bytes(&self) -> f64 {
        f64::from(self.tags) * f64::from(self.mrs_bytes)
    }

    /// Returns how late a unit is: at its beginning, and by its duration.
    pub(crate) fn late(&self, unit: &Unit) -> Late {
        let (begin_ns, duration_ns) = self.cost(unit);
        Late {
            begin_ns,
            duration_ns,
            ..Late::default()
        }
    }

    /// Returns the delay of a unit's beginning, and its duration.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pcie_is_read_as_it_is_written() {
        let papers: Pcie = "rtt=6.8us,tags=140,mrs=128".parse().unwrap();
        assert_eq!(papers, Pcie::new(6_800.0).unwrap());
        assert_eq!("rtt=6.8us".parse(), Ok(papers));
        let (delta_ns, in_flight_bytes, ns_per_byte) = papers.injected();
        assert_eq!((delta_ns, in_flight_bytes), (5_600.0, 17_920.0));
        // A copy at the native rate plus this much per byte is a copy at RdTP.
        let whole = 1_200.0 / 17_920.0 + ns_per_byte;
        assert!((1.0 / whole - papers.read_bytes_per_s() / 1e9).abs() < 1e-9);
        for (text, reason) in [
            ("", "no key=value"),
            ("tags=140", "no rtt"),
            ("rtt=6.8", "6.8"),
            ("rtt=1us", "shorter than the native"),
            ("rtt=6us,rtt=7us", "twice"),
            ("rtt=6us,tags=0", "no number from 1"),
            ("rtt=6us,mrs=x", "no number from 1"),
            ("rtt=6us,lanes=16", "there is no \"lanes\""),
        ] {
            let error = text.parse::<Pcie>().unwrap_err();
            assert!(error.reason.contains(reason), "{text}: {error}");
        }
    }
}
