//! Parts of the simulated machine. Each takes transactions in the order of time and says when they
//! leave: links, ports, and proxies that hold a bounded number.

use std::collections::VecDeque;

use super::setup::Proxies;
use crate::{
    packet::{CRC_BYTES, PREFIX_BYTES},
    random::Random,
};

/// One direction of a link: busy with one transaction at a time.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Link {
    free_ps: u64,
    pub(super) busy_ps: u64,
}

impl Link {
    /// Returns the time at which a transaction begins.
    pub(super) fn begin(&mut self, at_ps: u64, busy_ps: u64) -> u64 {
        let begins_ps = at_ps.max(self.free_ps);
        self.free_ps = begins_ps + busy_ps;
        self.busy_ps += busy_ps;
        begins_ps
    }

    pub(super) fn free_ps(&self) -> u64 {
        self.free_ps
    }
}

/// Conversion in a proxy: each transaction takes a place for a while, and waits if none is free.
#[derive(Debug, Default)]
pub(super) struct Held {
    places_max: usize,
    leave_ps: VecDeque<u64>,
    last_ps: u64,
    pub(super) waited_ps: u64,
}

impl Held {
    pub(super) fn new(places_max: u32) -> Held {
        Held {
            places_max: places_max.max(1) as usize,
            ..Held::default()
        }
    }

    /// Returns the time at which conversion begins.
    pub(super) fn admit(&mut self, at_ps: u64, takes_ps: u64) -> u64 {
        let mut begins_ps = at_ps.max(self.last_ps);
        if self.leave_ps.len() == self.places_max {
            begins_ps = begins_ps.max(self.leave_ps.pop_front().unwrap_or(0));
        }
        self.leave_ps.push_back(begins_ps + takes_ps);
        self.last_ps = begins_ps;
        self.waited_ps += begins_ps - at_ps;
        begins_ps
    }
}

/// Preamble, header, check and gap of an Ethernet frame, and its shortest length with them.
const FRAME_BYTES: u64 = 38;
const FRAME_BYTES_MIN: u64 = 84;
/// Most bytes of packets in one frame.
const FRAME_BYTES_MAX: u64 = 1_500;
const SECOND_PS: u128 = 1_000_000_000_000;

/// One direction of an Ethernet port. Packets that wait for it share frames, as many as fit.
#[derive(Debug, Clone, Copy, Default)]
struct Port {
    link: Link,
    /// Bytes of packets in the frame that is being sent.
    frame_bytes: u64,
}

impl Port {
    fn begin(&mut self, at_ps: u64, bytes: u64, bits_per_s: u64) -> u64 {
        let is_shared = at_ps < self.link.free_ps() && self.frame_bytes + bytes <= FRAME_BYTES_MAX;
        let sent_bytes = match is_shared {
            true => bytes,
            false => (bytes + FRAME_BYTES).max(FRAME_BYTES_MIN),
        };
        self.frame_bytes = bytes + if is_shared { self.frame_bytes } else { 0 };
        let busy_ps = u128::from(sent_bytes * 8) * SECOND_PS / u128::from(bits_per_s);
        self.link.begin(at_ps, busy_ps as u64)
    }
}

/// One direction of the network between two proxies.
#[derive(Debug)]
pub(super) struct Network {
    ports: Vec<Port>,
    random: Random,
    last_ps: u64,
    pub(super) packets: u64,
    pub(super) lost: u64,
}

impl Network {
    pub(super) fn new(proxies: &Proxies, seed: u64) -> Network {
        Network {
            ports: vec![Port::default(); proxies.ports.max(1) as usize],
            random: Random::new(seed),
            last_ps: 0,
            packets: 0,
            lost: 0,
        }
    }

    /// Returns the time at which all packets of a transaction have arrived, in order.
    pub(super) fn cross(
        &mut self,
        proxies: &Proxies,
        at_ps: u64,
        header_bytes: u64,
        data_bytes: u64,
    ) -> u64 {
        let fixed = (PREFIX_BYTES + CRC_BYTES) as u64 + proxies.cipher_bytes;
        let header = fixed + header_bytes + CRC_BYTES as u64;
        let mut arrived_ps = self.packet(proxies, at_ps, header);
        if data_bytes > 0 {
            arrived_ps = arrived_ps.max(self.packet(proxies, at_ps, fixed + data_bytes));
        }
        self.last_ps = self.last_ps.max(arrived_ps);
        self.last_ps
    }

    fn packet(&mut self, proxies: &Proxies, at_ps: u64, bytes: u64) -> u64 {
        let bits_per_s = proxies.port_bits_per_s.max(1);
        let mut at_ps = at_ps;
        loop {
            let first = self.ports.iter_mut().min_by_key(|port| port.link.free_ps());
            let begins_ps = first.map_or(at_ps, |port| port.begin(at_ps, bytes, bits_per_s));
            self.packets += 1;
            if proxies.loss <= 0.0 || !self.random.chance(proxies.loss.min(0.9)) {
                return begins_ps + proxies.crossing_ps;
            }
            self.lost += 1;
            at_ps = begins_ps + proxies.again_ps;
        }
    }
}
