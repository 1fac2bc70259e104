//! Keys for the measurements: packed for this project's tables, 16 bytes for the others, as in the
//! comparison.

use outboard_flow::V4;
use outboard_flow::random::Random;

/// A key of 16 bytes, of which 13 are used.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
#[repr(C, align(16))]
pub struct K16 {
    low: u64,
    high: u64,
}

impl From<&V4> for K16 {
    #[inline]
    fn from(key: &V4) -> K16 {
        let b = key.bytes();
        let low = u64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]);
        let high = u64::from_le_bytes([b[8], b[9], b[10], b[11], b[12], 0, 0, 0]);
        K16 { low, high }
    }
}

/// Keys in both forms.
pub struct Keys {
    pub v4: Vec<V4>,
    #[cfg_attr(not(foreign), allow(dead_code))]
    pub k16: Vec<K16>,
}

impl Keys {
    pub fn new(v4: Vec<V4>) -> Keys {
        let k16 = v4.iter().map(K16::from).collect();
        Keys { v4, k16 }
    }

    /// Makes different keys: `space` names a set, none of whose keys is in another.
    pub fn made(count: usize, space: u8) -> Keys {
        let mut random = Random::new(space.into());
        let keys = (0..count as u32).map(|i| {
            let mut bytes = [0; 13];
            // A bijection of the number: client and port look random and are all different.
            bytes[..4].copy_from_slice(&i.wrapping_mul(0x9e37_79b1).to_be_bytes());
            bytes[4..8].copy_from_slice(&[198, 18, space, 1]);
            bytes[8..10].copy_from_slice(&(random.next_u64() as u16).to_be_bytes());
            bytes[10..12].copy_from_slice(&443u16.to_be_bytes());
            bytes[12] = 6;
            V4::from_bytes(bytes)
        });
        Keys::new(keys.collect())
    }

    /// Draws keys in a stream, as packets bring them.
    pub fn drawn(&self, from: usize, count: usize, seed: u64) -> Keys {
        let mut random = Random::new(seed);
        let pick = |_| self.v4[random.below(from as u64) as usize];
        Keys::new((0..count).map(pick).collect())
    }
}
