//! Chooses the backend of a new connection so that most connections keep theirs when backends come
//! and go (Maglev's table).

use crate::random::Random;

/// Entries of the table, a prime.
pub const ENTRIES: usize = 65_537;

/// A table from hashes to backends.
pub struct Maglev(Vec<u16>);

impl Maglev {
    /// Makes the table for backends with these names, each as often as its weight says. A backend
    /// of weight 0 gets no new connection. `None` if no weight is above 0, or there are more
    /// backends than entries of the table.
    pub fn new(backends: &[(u64, u32)]) -> Option<Maglev> {
        let heaviest = backends
            .iter()
            .map(|(_, weight)| *weight)
            .max()
            .filter(|max| *max > 0)?;
        if backends.len() >= ENTRIES {
            return None;
        }
        let mut table = vec![u16::MAX; ENTRIES];
        let mut walks: Vec<_> = backends.iter().map(|(name, _)| Walk::new(*name)).collect();
        let mut credits = vec![0u64; backends.len()];
        let mut filled = 0;
        loop {
            for (index, (_, weight)) in backends.iter().enumerate() {
                credits[index] += u64::from(*weight);
                if credits[index] < u64::from(heaviest) {
                    continue;
                }
                credits[index] -= u64::from(heaviest);
                let Some(place) = walks[index].find(|place| table[*place] == u16::MAX) else {
                    continue;
                };
                table[place] = index as u16;
                filled += 1;
                if filled == ENTRIES {
                    return Some(Maglev(table));
                }
            }
        }
    }

    /// Returns the number of the backend for a connection with this hash.
    #[inline]
    pub fn choose(&self, hash: u64) -> u16 {
        self.0[(((hash >> 32) * ENTRIES as u64) >> 32) as usize]
    }
}

/// A backend's preferences, each entry of the table once.
struct Walk {
    next: usize,
    skip: usize,
    left: usize,
}

impl Walk {
    fn new(name: u64) -> Walk {
        let mut random = Random::new(name);
        let next = random.below(ENTRIES as u64) as usize;
        let skip = random.below(ENTRIES as u64 - 1) as usize + 1;
        Walk {
            next,
            skip,
            left: ENTRIES,
        }
    }
}

impl Iterator for Walk {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        self.left = self.left.checked_sub(1)?;
        let place = self.next;
        self.next = (self.next + self.skip) % ENTRIES;
        Some(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(table: &Maglev, count: usize) -> Vec<f64> {
        let mut counts = vec![0u32; count];
        table
            .0
            .iter()
            .for_each(|backend| counts[usize::from(*backend)] += 1);
        counts
            .into_iter()
            .map(|n| f64::from(n) / ENTRIES as f64)
            .collect()
    }

    #[test]
    fn shares_follow_the_weights() {
        let backends: Vec<_> = (0..20)
            .map(|i| (i, if i % 2 == 0 { 1 } else { 3 }))
            .collect();
        let table = Maglev::new(&backends).expect("backends");
        for (i, share) in shares(&table, 20).into_iter().enumerate() {
            let expected = if i % 2 == 0 { 1.0 / 40.0 } else { 3.0 / 40.0 };
            assert!(
                (share / expected - 1.0).abs() < 0.01,
                "{i}: {share}, {expected}"
            );
        }
    }

    #[test]
    fn few_connections_move_when_one_backend_leaves() {
        let mut backends: Vec<_> = (0..100).map(|i| (i, 1)).collect();
        let all = Maglev::new(&backends).expect("backends");
        backends[7].1 = 0;
        let without = Maglev::new(&backends).expect("backends");
        let stays = all
            .0
            .iter()
            .zip(&without.0)
            .filter(|(before, _)| **before != 7);
        let moved = stays.filter(|(before, after)| before != after).count();
        assert!(!without.0.contains(&7));
        assert!(moved * 100 <= 3 * ENTRIES, "{moved} moved");
    }

    #[test]
    fn no_backends_are_no_table() {
        assert!(Maglev::new(&[]).is_none());
        assert!(Maglev::new(&[(1, 0)]).is_none());
        assert!(Maglev::new(&vec![(1, 1); ENTRIES]).is_none());
    }
}
