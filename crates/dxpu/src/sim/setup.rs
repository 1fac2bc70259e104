//! Numbers of a simulated machine: links, proxies, network. All times in picoseconds.

/// One nanosecond.
pub const NS: u64 = 1_000;

/// A PCIe link and the reader at its end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pcie {
    /// 3 to 5; each doubles the rate of the one before.
    pub generation: u32,
    pub lanes: u32,
    /// Most data in a write or completion.
    pub mps_bytes: u32,
    /// Most data that a read asks for.
    pub mrrs_bytes: u32,
    /// Completions end at multiples of this, unless they end their read.
    pub rcb_bytes: u32,
    /// Reads in flight of each GPU.
    pub tags: u32,
    /// Round trip of a read without proxies.
    pub rtt_ps: u64,
}

/// Lane rate of generation 3 after its 128b/130b code, in bits a second.
const LANE_BITS_PER_S: f64 = 8e9 * 128.0 / 130.0;
/// Share of a link that acknowledgements and credits leave to transactions: 57.88 of 62.96 Gb/s
/// ("Understanding PCIe performance for end host networking", SIGCOMM 2018, section 3).
const TRANSACTION_SHARE: f64 = 57.88 / 62.96;
/// Framing, sequence number and LCRC beside a transaction's header.
const FRAME_BYTES: u64 = 8;

impl Pcie {
    /// PCIe 3.0 x16 with the paper's V100: 140 tags of 128 bytes, 1.2 us.
    pub const PAPER: Pcie = Pcie {
        generation: 3,
        lanes: 16,
        mps_bytes: 256,
        mrrs_bytes: 128,
        rcb_bytes: 64,
        tags: 140,
        rtt_ps: 1_200 * NS,
    };

    /// Time for which a transaction with these bytes keeps the link busy.
    pub(super) fn busy_ps(&self, header_bytes: u64, data_bytes: u64) -> u64 {
        let factor = f64::from(1_u32 << self.generation.saturating_sub(3).min(8));
        let bits_per_s = LANE_BITS_PER_S * f64::from(self.lanes) * factor * TRANSACTION_SHARE;
        let bytes = (FRAME_BYTES + header_bytes + data_bytes) as f64;
        (bytes * 8e12 / bits_per_s) as u64
    }
}

/// Two proxies and the network between them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Proxies {
    /// Time to convert a transaction to packets, or back: one of four in a round trip.
    pub conversion_ps: u64,
    /// Time from one proxy to the other: one of two in a round trip.
    pub crossing_ps: u64,
    /// Transactions that a proxy has in conversion at the same time, both directions together.
    pub held_max: u32,
    /// Pairs of proxies over which the GPUs are spread.
    pub pairs: u32,
    pub ports: u32,
    pub port_bits_per_s: u64,
    /// Probability that a packet is lost.
    pub loss: f64,
    /// Time after which a lost packet is sent again.
    pub again_ps: u64,
    /// Time for encryption, and again for decryption, of each byte and of each transaction.
    pub cipher_ps_per_byte: f64,
    pub cipher_ps: u64,
    /// Bytes that encryption adds to each packet.
    pub cipher_bytes: u64,
}

impl Proxies {
    /// Round trips of 6.8 us as in Table 6: 1.2 native, two crossings 1.9, four conversions 3.7.
    /// `held_max` is the one fitted number: from the 9.44 GB/s of writes of 64 bytes (section 5.1).
    pub const PAPER: Proxies = Proxies {
        conversion_ps: 925 * NS,
        crossing_ps: 950 * NS,
        held_max: 136,
        pairs: 1,
        ports: 2,
        port_bits_per_s: 100_000_000_000,
        loss: 0.0,
        again_ps: 10_000 * NS,
        cipher_ps_per_byte: 0.0,
        cipher_ps: 0,
        cipher_bytes: 0,
    };

    /// Proxies whose round trip, with this native one, is `rtt_ps`, in Table 6's proportions.
    pub fn with_rtt(rtt_ps: u64, native_ps: u64) -> Proxies {
        let paper = Proxies::PAPER;
        let own = 4 * paper.conversion_ps + 2 * paper.crossing_ps;
        let more = rtt_ps.saturating_sub(native_ps);
        let scaled = |part: u64| (u128::from(part) * u128::from(more) / u128::from(own)) as u64;
        let (conversion_ps, crossing_ps) = (scaled(paper.conversion_ps), scaled(paper.crossing_ps));
        Proxies {
            conversion_ps,
            crossing_ps,
            ..paper
        }
    }
}

/// A host, its GPUs, and what is between them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Setup {
    pub pcie: Pcie,
    /// None: the GPUs are in the host.
    pub proxies: Option<Proxies>,
    pub gpus: u32,
    pub seed: u64,
}

/// Work of a GPU, done one after the other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Work {
    /// The GPU reads the host's memory: a copy to the device, or a command.
    Read { bytes: u64 },
    /// The GPU writes the host's memory: a copy to the host, or an event.
    Write { bytes: u64 },
    /// The processor writes the GPU's memory, `unit_bytes` at a time: a doorbell, or copies.
    HostWrite { bytes: u64, unit_bytes: u32 },
    /// The GPU writes the memory of another one.
    PeerWrite { peer: u32, bytes: u64 },
    /// Kernels that touch no PCIe.
    Compute { ps: u64 },
}
