//! The keyed hash of all tables.
//!
//! A hash without a secret lets a client choose connections that all fall into one bucket. The hash
//! here has two stages, one or three multiplications and one more:
//!
//! 1. NH: the words of the key, each added to a secret word, are multiplied in pairs and summed to
//!    128 bits. For any two keys, chosen without sight of the secret, the sums are equal with a
//!    probability of at most 2^-64.
//! 2. The two halves of the sum, each added to a secret word, are multiplied, and the halves of the
//!    product folded into 64 bits. This stage spreads the bits; nothing is proved about it.
//!
//! Hashes never leave the process, so nobody sees what the secret does.

/// Words that only this process knows.
#[derive(Clone)]
pub struct Secret([u64; 8]);

impl Secret {
    /// Draws a secret from the kernel's random numbers.
    pub fn random() -> Result<Secret, Unavailable> {
        let mut words = [0; 8];
        for word in &mut words {
            let mut bytes = [0; 8];
            let flags = rustix::rand::GetRandomFlags::empty();
            // Up to 256 bytes are returned whole once the kernel has seeded its generator.
            match rustix::rand::getrandom(&mut bytes, flags) {
                Ok(8) => *word = u64::from_le_bytes(bytes),
                Ok(_) => return Err(Unavailable(rustix::io::Errno::IO)),
                Err(errno) => return Err(Unavailable(errno)),
            }
        }
        Ok(Secret(words))
    }

    /// Derives a secret from a seed: for tests and measurements, which should repeat.
    pub fn from_seed(seed: u64) -> Secret {
        let mut state = crate::random::Random::new(seed);
        Secret(std::array::from_fn(|_| state.next_u64()))
    }

    #[inline]
    pub(crate) fn hash_2(&self, [a, b]: [u64; 2]) -> u64 {
        let k = &self.0;
        self.finish(product(a.wrapping_add(k[0]), b.wrapping_add(k[1])))
    }

    #[inline]
    pub(crate) fn hash_5(&self, [a, b, c, d, e]: [u64; 5]) -> u64 {
        let k = &self.0;
        let sum = product(a.wrapping_add(k[0]), b.wrapping_add(k[1]))
            .wrapping_add(product(c.wrapping_add(k[2]), d.wrapping_add(k[3])))
            .wrapping_add(product(e.wrapping_add(k[4]), k[5]));
        self.finish(sum)
    }

    #[inline]
    fn finish(&self, sum: u128) -> u64 {
        let low = (sum as u64).wrapping_add(self.0[6]);
        let high = ((sum >> 64) as u64).wrapping_add(self.0[7]);
        let folded = product(low, high);
        folded as u64 ^ (folded >> 64) as u64
    }
}

#[inline]
fn product(a: u64, b: u64) -> u128 {
    u128::from(a) * u128::from(b)
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Secret")
    }
}

/// The kernel gives no random numbers.
#[derive(Debug, thiserror::Error)]
#[error("getrandom: {0}")]
pub struct Unavailable(rustix::io::Errno);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FlowKey, V4, V6};

    /// Keys that differ in few bits, which an attacker would choose, spread like random ones: each
    /// of 1,024 buckets gets its share, by the high bits and by the low bits.
    #[test]
    fn similar_keys_spread() {
        let secret = Secret::from_seed(7);
        let count = if cfg!(miri) { 4_096 } else { 65_536 };
        for shift in [0, 54] {
            let mut v4 = [0u32; 1024];
            let mut v6 = [0u32; 1024];
            for i in 0..count {
                let [high, low] = (i as u16).to_be_bytes();
                let a = V4::from_bytes([10, 0, high, low, 10, 0, 0, 1, 0, 80, 0, 80, 6]);
                v4[(a.keyed_hash(&secret) >> shift) as usize & 1023] += 1;
                let address = std::net::Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, i as u16);
                let b = V6::new((address, 80), (address, 80), 6);
                v6[(b.keyed_hash(&secret) >> shift) as usize & 1023] += 1;
            }
            let mean = f64::from(count) / 1024.0;
            for counts in [v4, v6] {
                let squares = counts.map(|n| (f64::from(n) - mean).powi(2) / mean);
                let chi: f64 = squares.iter().sum();
                // 1,023 degrees of freedom: standard deviation 45.
                assert!((800.0..1250.0).contains(&chi), "chi squared {chi}");
            }
        }
    }

    #[test]
    fn each_byte_and_the_secret_change_the_hash() {
        let secret = Secret::from_seed(1);
        let zero = V4::from_bytes([0; 13]);
        for at in 0..13 {
            let mut bytes = [0; 13];
            bytes[at] = 1;
            assert_ne!(
                V4::from_bytes(bytes).keyed_hash(&secret),
                zero.keyed_hash(&secret),
                "byte {at}"
            );
        }
        let unspecified = std::net::Ipv6Addr::UNSPECIFIED;
        let zero_6 = V6::new((unspecified, 0), (unspecified, 0), 0);
        let other = V6::new((unspecified, 0), (unspecified, 0), 1);
        assert_ne!(zero_6.keyed_hash(&secret), other.keyed_hash(&secret));
        assert_ne!(
            zero.keyed_hash(&secret),
            zero.keyed_hash(&Secret::from_seed(2))
        );
    }

    /// Miri knows no system calls.
    #[cfg(not(miri))]
    #[test]
    fn two_secrets_of_the_kernel_differ() {
        let zero = V4::from_bytes([0; 13]);
        let drawn = [Secret::random(), Secret::random()].map(|one| one.expect("getrandom"));
        assert_ne!(zero.keyed_hash(&drawn[0]), zero.keyed_hash(&drawn[1]));
    }
}
