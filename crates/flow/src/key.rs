//! Keys: the five fields that name a connection, packed without padding.

use crate::hash::Secret;
use crate::memory::Zeroable;
use std::net::{Ipv4Addr, Ipv6Addr};

/// A key of a table.
///
/// Each version of IP has its own key type, so a table of IPv4 connections neither stores nor
/// compares the longer addresses of IPv6.
pub trait FlowKey: Copy + Eq + std::hash::Hash + std::fmt::Debug + Zeroable + Send + Sync {
    /// Returns the key's hash under `secret`.
    fn keyed_hash(&self, secret: &Secret) -> u64;
}

/// Source, destination, both ports and protocol of an IPv4 packet: 13 bytes.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct V4([u8; 13]);

/// Source, destination, both ports and protocol of an IPv6 packet: 37 bytes.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct V6([u8; 37]);

// SAFETY: an array of bytes.
unsafe impl Zeroable for V4 {}
// SAFETY: an array of bytes.
unsafe impl Zeroable for V6 {}

impl V4 {
    pub fn new(source: (Ipv4Addr, u16), destination: (Ipv4Addr, u16), protocol: u8) -> V4 {
        let mut bytes = [0; 13];
        bytes[..4].copy_from_slice(&source.0.octets());
        bytes[4..8].copy_from_slice(&destination.0.octets());
        bytes[8..10].copy_from_slice(&source.1.to_be_bytes());
        bytes[10..12].copy_from_slice(&destination.1.to_be_bytes());
        bytes[12] = protocol;
        V4(bytes)
    }

    /// Makes a key of its packed bytes: source, destination, source port, destination port (as on
    /// the wire), protocol.
    #[inline]
    pub const fn from_bytes(bytes: [u8; 13]) -> V4 {
        V4(bytes)
    }

    pub const fn bytes(&self) -> &[u8; 13] {
        &self.0
    }

    /// Returns two words that overlap by three bytes and together hold the whole key.
    #[inline]
    pub(crate) fn words(&self) -> [u64; 2] {
        [word(&self.0, 0), word(&self.0, 5)]
    }

    pub(crate) fn from_words(words: [u64; 2]) -> V4 {
        let mut bytes = [0; 13];
        bytes[..8].copy_from_slice(&words[0].to_le_bytes());
        bytes[5..].copy_from_slice(&words[1].to_le_bytes());
        V4(bytes)
    }
}

impl V6 {
    pub fn new(source: (Ipv6Addr, u16), destination: (Ipv6Addr, u16), protocol: u8) -> V6 {
        let mut bytes = [0; 37];
        bytes[..16].copy_from_slice(&source.0.octets());
        bytes[16..32].copy_from_slice(&destination.0.octets());
        bytes[32..34].copy_from_slice(&source.1.to_be_bytes());
        bytes[34..36].copy_from_slice(&destination.1.to_be_bytes());
        bytes[36] = protocol;
        V6(bytes)
    }

    pub const fn bytes(&self) -> &[u8; 37] {
        &self.0
    }

    #[inline]
    pub(crate) fn words(&self) -> [u64; 5] {
        [0, 8, 16, 24, 29].map(|at| word(&self.0, at))
    }

    pub(crate) fn from_words(words: [u64; 5]) -> V6 {
        let mut bytes = [0; 37];
        for (word, at) in words.iter().zip([0, 8, 16, 24, 29]) {
            bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        V6(bytes)
    }
}

#[inline]
fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

impl FlowKey for V4 {
    #[inline]
    fn keyed_hash(&self, secret: &Secret) -> u64 {
        secret.hash_2(self.words())
    }
}

impl FlowKey for V6 {
    #[inline]
    fn keyed_hash(&self, secret: &Secret) -> u64 {
        secret.hash_5(self.words())
    }
}

impl PartialEq for V4 {
    #[inline]
    fn eq(&self, other: &V4) -> bool {
        let [a, b] = self.words();
        let [c, d] = other.words();
        (a ^ c) | (b ^ d) == 0
    }
}

impl PartialEq for V6 {
    #[inline]
    fn eq(&self, other: &V6) -> bool {
        let pairs = self.words().into_iter().zip(other.words());
        pairs.fold(0, |different, (a, b)| different | (a ^ b)) == 0
    }
}

impl Eq for V4 {}
impl Eq for V6 {}

impl Ord for V4 {
    fn cmp(&self, other: &V4) -> std::cmp::Ordering {
        self.0.cmp(&other.0)
    }
}

impl PartialOrd for V4 {
    fn partial_cmp(&self, other: &V4) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl std::hash::Hash for V4 {
    #[inline]
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.words()
            .into_iter()
            .for_each(|word| state.write_u64(word));
    }
}

impl std::hash::Hash for V6 {
    #[inline]
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.words()
            .into_iter()
            .for_each(|word| state.write_u64(word));
    }
}

impl std::fmt::Debug for V4 {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let b = &self.0;
        let ports = [
            u16::from_be_bytes([b[8], b[9]]),
            u16::from_be_bytes([b[10], b[11]]),
        ];
        let [source, destination] =
            [0, 4].map(|at| Ipv4Addr::new(b[at], b[at + 1], b[at + 2], b[at + 3]));
        write!(
            out,
            "{source}:{} > {destination}:{} ({})",
            ports[0], ports[1], b[12]
        )
    }
}

impl std::fmt::Debug for V6 {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let b = &self.0;
        let ports = [
            u16::from_be_bytes([b[32], b[33]]),
            u16::from_be_bytes([b[34], b[35]]),
        ];
        let [source, destination] = [0, 16].map(|at| {
            let mut octets = [0; 16];
            octets.copy_from_slice(&b[at..at + 16]);
            Ipv6Addr::from(octets)
        });
        write!(
            out,
            "[{source}]:{} > [{destination}]:{} ({})",
            ports[0], ports[1], b[36]
        )
    }
}
