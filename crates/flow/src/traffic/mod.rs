//! Packets from a seed: sizes, new connections and repetitions as measured on two networks, and
//! what attackers send.
//!
//! The thesis' traces are not to be had. [`Profile::CAMPUS`] and [`Profile::CAIDA`] meet the
//! numbers that its authors published of them: new connections a packet, packets that follow one of
//! their own connection, mean frame length.

mod frame;
pub mod pcap;
mod zipf;

pub use frame::{Frame, Parsed, TCP, UDP, parse};
pub use zipf::Zipf;

use crate::V4;
use crate::aging::{ACK, FIN, SYN};
use crate::random::Random;

/// One packet: whose, how long, and its TCP flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    pub key: V4,
    /// Length of the frame without its checksum.
    pub bytes: u16,
    pub tcp_flags: u8,
}

/// Numbers that traffic is to meet.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    pub name: &'static str,
    /// New connections a packet.
    pub births: f64,
    /// Packets that follow one of the same connection.
    pub trains: f64,
    pub frame_bytes_mean: f64,
    /// Connections open at a time in one window of the trace.
    pub open_a_window: usize,
    /// Million packets a second of 100 Gbit/s at this mix, by the authors' account.
    pub full_link_mpps: f64,
}

impl Profile {
    /// A campus network: 1.72 million connections in 55.8 million packets at 16 windows.
    pub const CAMPUS: Profile = Profile {
        name: "campus",
        births: 0.0295,
        trains: 0.05,
        frame_bytes_mean: 990.0,
        open_a_window: 5000,
        full_link_mpps: 12.1,
    };

    /// A backbone link: 6.8 to 10.6 new connections in a hundred packets.
    pub const CAIDA: Profile = Profile {
        name: "caida",
        births: 0.088,
        trains: 0.03,
        frame_bytes_mean: 956.0,
        open_a_window: 12_000,
        full_link_mpps: 12.4,
    };
}

const SMALL_BYTES: (u64, u64) = (60, 128);
const MIDDLE_BYTES: (u64, u64) = (128, 1400);
const LARGE_BYTES: u16 = 1514;
const MIDDLE_SHARE: f64 = 0.12;
/// Connections that are UDP.
const UDP_SHARE: f64 = 0.1;
/// Exponent of the tail of connections' sizes.
const TAIL: f64 = 1.3;
/// Packets of one connection at most.
const PACKETS_MAX: f64 = 1e6;

/// An endless stream of packets of a profile.
pub struct Traffic {
    profile: Profile,
    random: Random,
    open: Vec<Open>,
    target: usize,
    born: u64,
    network: u8,
    large_share: f64,
    scale: f64,
    last: Option<Packet>,
}

#[derive(Clone, Copy)]
struct Open {
    key: V4,
    left: u32,
}

impl Traffic {
    /// Makes the stream of `windows` windows of the profile's trace at once.
    pub fn new(profile: Profile, windows: usize, seed: u64) -> Traffic {
        let middle = |(low, high): (u64, u64)| (low + high - 1) as f64 / 2.0;
        let rest = profile.frame_bytes_mean
            - MIDDLE_SHARE * middle(MIDDLE_BYTES)
            - (1.0 - MIDDLE_SHARE) * middle(SMALL_BYTES);
        // The first packets of connections over TCP are never large.
        let can_be_large = 1.0 - profile.births * (1.0 - UDP_SHARE);
        let large_share = rest / (f64::from(LARGE_BYTES) - middle(SMALL_BYTES)) / can_be_large;
        // A packet of a train also uses one up, and opens nothing.
        let mean = (1.0 - profile.trains) / profile.births * (1.0 + profile.trains);
        let target = profile.open_a_window * windows.max(1);
        let scale = pareto_scale(mean);
        let random = Random::new(seed);
        let open = Vec::with_capacity(target);
        Traffic {
            profile,
            random,
            open,
            target,
            born: 0,
            network: 0,
            large_share,
            scale,
            last: None,
        }
    }

    /// Takes clients of another network, so that no connection is one of another stream's. There
    /// are 32 networks.
    pub fn from_network(self, network: u8) -> Traffic {
        Traffic {
            network: network % 32,
            ..self
        }
    }

    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Number of connections that there have been.
    pub fn born(&self) -> u64 {
        self.born
    }

    fn bear(&mut self) -> Packet {
        let left = pareto(self.random.unit(), self.scale) as u32;
        let mut key = *client_key(self.born, &mut self.random).bytes();
        key[0] += 4 * self.network;
        let key = V4::from_bytes(key);
        self.born += 1;
        if left > 1 {
            self.open.push(Open {
                key,
                left: left - 1,
            });
        }
        let tcp_flags = if key.bytes()[12] == TCP { SYN } else { 0 };
        self.packet(key, tcp_flags)
    }

    fn packet(&mut self, key: V4, tcp_flags: u8) -> Packet {
        let place = self.random.unit();
        let mut between = |(low, high)| (low + self.random.below(high - low)) as u16;
        let bytes = if place < MIDDLE_SHARE {
            between(MIDDLE_BYTES)
        } else if tcp_flags & SYN == 0 && place < MIDDLE_SHARE + self.large_share {
            LARGE_BYTES
        } else {
            between(SMALL_BYTES)
        };
        Packet {
            key,
            bytes,
            tcp_flags,
        }
    }
}

impl Iterator for Traffic {
    type Item = Packet;

    fn next(&mut self) -> Option<Packet> {
        if let Some(last) = self.last
            && self.random.unit() < self.profile.trains
        {
            return Some(Packet {
                tcp_flags: last.tcp_flags & !(SYN | FIN) | ack(&last.key),
                ..last
            });
        }
        // Where few are open, as at the start, more are born than end.
        let wanted = self.profile.births
            * if self.open.len() < self.target {
                1.15
            } else {
                0.95
            };
        let packet = if self.open.is_empty() || self.random.unit() < wanted {
            self.bear()
        } else {
            let at = self.random.below(self.open.len() as u64) as usize;
            let key = self.open[at].key;
            self.open[at].left -= 1;
            let ends = self.open[at].left == 0;
            if ends {
                self.open.swap_remove(at);
            }
            let flags = ack(&key);
            self.packet(
                key,
                if ends && flags != 0 {
                    FIN | flags
                } else {
                    flags
                },
            )
        };
        self.last = Some(packet);
        Some(packet)
    }
}

fn ack(key: &V4) -> u8 {
    if key.bytes()[12] == TCP { ACK } else { 0 }
}

/// Returns the key of connection number `number`: clients of a few networks, one address of the
/// service. All are different.
fn client_key(number: u64, random: &mut Random) -> V4 {
    let mut bytes = [0; 13];
    // Bijective over 40 bits, so that numbers in a row are not neighbours.
    let mixed = number.wrapping_mul(0x9e_3779_b97f | 1) & 0xff_ffff_ffff;
    bytes[..3].copy_from_slice(&[
        10 + (mixed >> 38) as u8,
        (mixed >> 30) as u8,
        (mixed >> 22) as u8,
    ]);
    bytes[3] = (mixed >> 14) as u8;
    bytes[4..8].copy_from_slice(&[198, 18, 0, 1]);
    bytes[8..10].copy_from_slice(&(1024 + (mixed & 0x3fff) as u16).to_be_bytes());
    bytes[10..12].copy_from_slice(&443u16.to_be_bytes());
    bytes[12] = if random.unit() < UDP_SHARE { UDP } else { TCP };
    V4::from_bytes(bytes)
}

/// Returns a number of packets: at least one, heavy-tailed.
fn pareto(unit: f64, scale: f64) -> f64 {
    (scale * (1.0 - unit).powf(-1.0 / TAIL)).clamp(1.0, PACKETS_MAX)
}

/// Returns the scale at which the mean of [`pareto`], rounded down, is `mean`.
fn pareto_scale(mean: f64) -> f64 {
    let (mut low, mut high) = (1e-3, mean);
    for _ in 0..60 {
        let scale = (low + high) / 2.0;
        // P(size >= n) = (scale / n)^TAIL for n above the scale; the mean is the sum over n.
        let sum: f64 = (1..2000)
            .map(|n| (scale / f64::from(n)).min(1.0).powf(TAIL))
            .sum();
        let tail = |from: f64| scale.powf(TAIL) * from.powf(1.0 - TAIL) / (TAIL - 1.0);
        let found = sum + tail(1999.5) - tail(PACKETS_MAX);
        if found < mean {
            low = scale
        } else {
            high = scale
        }
    }
    (low + high) / 2.0
}

/// First packets of connections that never go on: addresses and ports at random.
pub fn syn_flood(seed: u64) -> impl Iterator<Item = Packet> {
    let mut random = Random::new(seed);
    std::iter::repeat_with(move || {
        let mut bytes = [0; 13];
        bytes[..4].copy_from_slice(&(random.next_u64() as u32).to_be_bytes());
        bytes[4..8].copy_from_slice(&[198, 18, 0, 1]);
        bytes[8..10].copy_from_slice(&(random.next_u64() as u16).to_be_bytes());
        bytes[10..12].copy_from_slice(&443u16.to_be_bytes());
        bytes[12] = TCP;
        Packet {
            key: V4::from_bytes(bytes),
            bytes: 60,
            tcp_flags: SYN,
        }
    })
}

/// One client that tries each port of each address of a network.
pub fn port_scan() -> impl Iterator<Item = Packet> {
    (0..).map(|i: u64| {
        let mut bytes = [198, 51, 100, 7, 198, 18, 0, 0, 0xc0, 0x01, 0, 0, TCP];
        bytes[6..8].copy_from_slice(&((i >> 16) as u16).to_be_bytes());
        bytes[10..12].copy_from_slice(&(i as u16).to_be_bytes());
        Packet {
            key: V4::from_bytes(bytes),
            bytes: 60,
            tcp_flags: SYN,
        }
    })
}

/// A few connections that send nothing but full frames, in turns by a Zipf distribution.
pub fn elephants(count: u32, seed: u64) -> impl Iterator<Item = Packet> {
    zipf_packets(count, 1.0, seed).map(|packet| Packet {
        bytes: LARGE_BYTES,
        ..packet
    })
}

/// Packets of a fixed number of connections, the n-th of which sends in proportion to n^-exponent.
pub fn zipf_packets(count: u32, exponent: f64, seed: u64) -> impl Iterator<Item = Packet> {
    let mut random = Random::new(seed);
    let zipf = Zipf::new(count.max(1), exponent);
    let mut protocols = Random::new(seed);
    std::iter::repeat_with(move || {
        let number = u64::from(zipf.draw(random.unit()));
        let mut key = *client_key(number, &mut protocols).bytes();
        key[12] = TCP;
        Packet {
            key: V4::from_bytes(key),
            bytes: 128,
            tcp_flags: ACK,
        }
    })
}

/// Connections of a fixed number of packets each, of which `open` are open at a time.
pub fn churn(open: usize, packets_each: u32, seed: u64) -> impl Iterator<Item = Packet> {
    let mut random = Random::new(seed);
    let mut slots = vec![(0u64, 0u32); open.max(1)];
    let mut born = 0;
    std::iter::repeat_with(move || {
        let slot = &mut slots[random.below(open.max(1) as u64) as usize];
        let first = slot.1 == 0;
        if first {
            *slot = (born, packets_each.max(1));
            born += 1;
        }
        slot.1 -= 1;
        let mut key = *client_key(slot.0, &mut Random::new(slot.0)).bytes();
        key[12] = TCP;
        let last = if slot.1 == 0 { FIN | ACK } else { ACK };
        Packet {
            key: V4::from_bytes(key),
            bytes: 60,
            tcp_flags: if first { SYN } else { last },
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn measured(profile: Profile, count: usize) -> (f64, f64, f64) {
        let mut traffic = Traffic::new(profile, 16, 1);
        let mut seen = HashSet::new();
        let (mut bytes, mut trains) = (0.0, 0);
        let mut last = None;
        for packet in traffic.by_ref().take(count) {
            seen.insert(packet.key);
            bytes += f64::from(packet.bytes);
            trains += usize::from(last == Some(packet.key));
            last = Some(packet.key);
        }
        assert_eq!(seen.len() as u64, traffic.born());
        let count = count as f64;
        (
            seen.len() as f64 / count,
            trains as f64 / count,
            bytes / count,
        )
    }

    /// The published numbers: 1.72 of 55.8 million packets are the first of a connection on the
    /// campus, 6.8 to 10.6 % on the backbone; 6 % follow one of their own on the campus.
    #[cfg(not(miri))]
    #[test]
    fn profiles_meet_the_published_numbers() {
        let (births, trains, bytes) = measured(Profile::CAMPUS, 3_000_000);
        assert!((0.029..0.034).contains(&births), "campus: births {births}");
        assert!((0.055..0.065).contains(&trains), "campus: trains {trains}");
        assert!((970.0..1010.0).contains(&bytes), "campus: bytes {bytes}");
        let (births, _, bytes) = measured(Profile::CAIDA, 3_000_000);
        assert!((0.068..0.106).contains(&births), "caida: births {births}");
        assert!((936.0..976.0).contains(&bytes), "caida: bytes {bytes}");
    }

    #[test]
    fn a_seed_repeats_and_another_differs() {
        let packets = |seed| {
            Traffic::new(Profile::CAMPUS, 1, seed)
                .take(500)
                .collect::<Vec<_>>()
        };
        assert_eq!(packets(1), packets(1));
        assert_ne!(packets(1), packets(2));
        assert_eq!(syn_flood(3).nth(99), syn_flood(3).nth(99));
        assert_ne!(syn_flood(3).nth(99), syn_flood(4).nth(99));
    }

    #[test]
    fn attacks_are_what_they_say() {
        let flood: HashSet<_> = syn_flood(1).take(1000).map(|packet| packet.key).collect();
        let scan: HashSet<_> = port_scan().take(1000).map(|packet| packet.key).collect();
        assert_eq!((flood.len(), scan.len()), (1000, 1000));
        let large: HashSet<_> = elephants(8, 1)
            .take(1000)
            .map(|packet| packet.key)
            .collect();
        assert_eq!(large.len(), 8);
        let opened = churn(10, 5, 1)
            .take(5000)
            .filter(|packet| packet.tcp_flags == SYN)
            .count();
        let closed = churn(10, 5, 1)
            .take(5000)
            .filter(|packet| packet.tcp_flags & FIN != 0)
            .count();
        assert!(
            (1000..=1010).contains(&opened) && opened - closed <= 10,
            "{opened}, {closed}"
        );
    }
}
