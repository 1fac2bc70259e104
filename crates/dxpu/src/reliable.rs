//! Loss and repetition, as PCIe's own links do it: packets are numbered, the receiver takes them in
//! order alone, says up to where it has them, and the sender sends the rest again.
//!
//! A sender keeps at most `packets_max` packets that are not acknowledged: the bounded number that
//! a proxy holds. More are refused, which holds up the link before it.

use std::collections::VecDeque;

/// Refusal of a packet: the sender holds as many as it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0} packets are not acknowledged, and no more are held")]
pub struct Full(pub usize);

/// Packets that are sent and not yet acknowledged, in order.
#[derive(Debug)]
pub struct Sender {
    held: VecDeque<Vec<u8>>,
    /// Sequence of the first packet that is held.
    first: u32,
    packets_max: usize,
    again_after_ns: u64,
    /// Time of the last progress.
    since_ns: u64,
    repeated: u64,
}

impl Sender {
    pub fn new(packets_max: usize, again_after_ns: u64) -> Sender {
        Sender {
            held: VecDeque::new(),
            first: 0,
            packets_max,
            again_after_ns,
            since_ns: 0,
            repeated: 0,
        }
    }

    /// Sequence of the next packet.
    pub fn next(&self) -> u32 {
        self.first.wrapping_add(self.held.len() as u32)
    }

    /// Returns true if there is room for that many more packets.
    pub fn has_room(&self, packets: usize) -> bool {
        self.held.len() + packets <= self.packets_max
    }

    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// Packets that were sent again.
    pub fn repeated(&self) -> u64 {
        self.repeated
    }

    /// Keeps a packet, whose sequence is [`Sender::next`], until it is acknowledged.
    pub fn hold(&mut self, packet: &[u8], now_ns: u64) -> Result<(), Full> {
        if !self.has_room(1) {
            return Err(Full(self.packets_max));
        }
        if self.held.is_empty() {
            self.since_ns = now_ns;
        }
        self.held.push_back(packet.to_vec());
        Ok(())
    }

    /// Takes an acknowledgement of all packets before `sequence`. One that is out of range is of
    /// an earlier time, or forged, and changes nothing.
    pub fn acknowledged(&mut self, sequence: u32, now_ns: u64) {
        let count = sequence.wrapping_sub(self.first) as usize;
        if count > 0 && count <= self.held.len() {
            self.held.drain(..count);
            self.first = sequence;
            self.since_ns = now_ns;
        }
    }

    /// Returns all packets, to be sent again at once, after the receiver missed one.
    pub fn missing(&mut self, sequence: u32, now_ns: u64) -> impl Iterator<Item = &[u8]> {
        self.acknowledged(sequence, now_ns);
        self.since_ns = now_ns;
        self.repeated += self.held.len() as u64;
        self.held.iter().map(Vec::as_slice)
    }

    /// Returns the packets to send again if nothing was acknowledged for too long.
    pub fn overdue(&mut self, now_ns: u64) -> impl Iterator<Item = &[u8]> {
        let is_due =
            !self.held.is_empty() && now_ns.saturating_sub(self.since_ns) >= self.again_after_ns;
        let count = if is_due { self.held.len() } else { 0 };
        if is_due {
            self.since_ns = now_ns;
            self.repeated += count as u64;
        }
        self.held.iter().take(count).map(Vec::as_slice)
    }
}

/// Verdict about a packet that arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// The next one: to be used, and acknowledged.
    Next,
    /// Was here before: to be acknowledged again.
    Again,
    /// One before it was lost. True for the first such one: to be reported as missing.
    Early(bool),
}

/// The end of a connection that takes packets in order.
#[derive(Debug, Default)]
pub struct Receiver {
    next: u32,
    has_reported: bool,
}

/// Sequences that are less than this behind are repetitions.
const HALF: u32 = 1 << 31;

impl Receiver {
    /// Sequence of the packet that is expected: the one to acknowledge with.
    pub fn next(&self) -> u32 {
        self.next
    }

    pub fn arrived(&mut self, sequence: u32) -> Arrival {
        let ahead = sequence.wrapping_sub(self.next);
        if ahead == 0 {
            self.next = self.next.wrapping_add(1);
            self.has_reported = false;
            Arrival::Next
        } else if ahead >= HALF {
            Arrival::Again
        } else {
            Arrival::Early(!std::mem::replace(&mut self.has_reported, true))
        }
    }
}
