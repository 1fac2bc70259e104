//! Networks that have a name.

use super::{Bandwidth, Network};

/// A network with its name, and the source of its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    pub name: &'static str,
    pub rtt_ns: u64,
    pub bandwidth_bps: u64,
    pub what: &'static str,
    pub source: &'static str,
}

/// All named networks, the fastest first. "The paper" is "Characterizing Network Requirements for
/// GPU API Remoting in AI Applications" (Wang et al., 2024).
pub const KNOWN: &[Known] = &[
    Known {
        name: "shm",
        rtt_ns: 200,
        bandwidth_bps: 4_800_000_000_000,
        what: "shared memory as a network",
        source: "the paper, 5.2: 100 ns latency and 600 GB/s, the latency taken twice",
    },
    Known {
        name: "rack-rdma",
        rtt_ns: 1_380,
        bandwidth_bps: 200_000_000_000,
        what: "RDMA within a rack",
        source: "the paper, 5.3: 1.38 us RTT after Gao et al. (OSDI 2016); 200 Gbps as in its clusters",
    },
    Known {
        name: "inter-rack-rdma",
        rtt_ns: 3_140,
        bandwidth_bps: 200_000_000_000,
        what: "RDMA between racks",
        source: "the paper, 5.3: 3.14 us RTT after Gao et al. (OSDI 2016); 200 Gbps as in its clusters",
    },
    Known {
        name: "paper-v100",
        rtt_ns: 5_200,
        bandwidth_bps: 180_000_000_000,
        what: "the paper's V100 cluster",
        source: "the paper, Table 6: 2.6 us latency (ib_send_lat says one way, so taken twice), 180 Gbps measured",
    },
    Known {
        name: "paper-a100",
        rtt_ns: 9_000,
        bandwidth_bps: 180_000_000_000,
        what: "the paper's A100 cluster",
        source: "the paper, Table 6: 4.5 us latency (ib_send_lat says one way, so taken twice), 180 Gbps measured",
    },
    Known {
        name: "100gbe-tcp",
        rtt_ns: 30_000,
        bandwidth_bps: 100_000_000_000,
        what: "100 GbE and the kernel's TCP, within a rack",
        source: "the bandwidth of IEEE 802.3; the round trip is an assumption, mostly the two kernels",
    },
    Known {
        name: "25gbe-tcp",
        rtt_ns: 30_000,
        bandwidth_bps: 25_000_000_000,
        what: "25 GbE and the kernel's TCP, within a rack",
        source: "the bandwidth of IEEE 802.3; the round trip is an assumption, mostly the two kernels",
    },
    Known {
        name: "metro",
        rtt_ns: 1_000_000,
        bandwidth_bps: 10_000_000_000,
        what: "another site of the same town",
        source: "100 km of fibre at 5 ns/m (the paper, 5.3); the bandwidth is an assumption",
    },
    Known {
        name: "wan",
        rtt_ns: 30_000_000,
        bandwidth_bps: 1_000_000_000,
        what: "another part of the country",
        source: "3,000 km of fibre at 5 ns/m (the paper, 5.3); the bandwidth is an assumption",
    },
];

impl Known {
    pub fn network(&self) -> Network {
        Network {
            rtt_ns: self.rtt_ns,
            bandwidth: Bandwidth::from_bps(self.bandwidth_bps),
            ..Network::default()
        }
    }
}

pub(super) fn find(name: &str) -> Option<Network> {
    KNOWN
        .iter()
        .find(|known| known.name == name)
        .map(Known::network)
}

pub(super) fn names() -> String {
    let names: Vec<&str> = KNOWN.iter().map(|known| known.name).collect();
    names.join(", ")
}
