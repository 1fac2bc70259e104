//! Tensor maps encoded before. The encoding depends only on the arguments, and matrix products
//! request the same few maps again and again.

use rustc_hash::FxHashMap;

use outboard_api::cuda::CUtensorMap;

/// Maps kept in each of two generations; each takes about half a kilobyte with its arguments.
const MAPS_MAX: usize = 2048;

/// The encoder's number and its encoded arguments.
pub(crate) type Question = (u32, Vec<u8>);

/// Maps in two generations. A used map moves to the young one; when that is full, the old one is
/// dropped, so the least recently used maps go.
#[derive(Default)]
pub(crate) struct TensorMaps {
    young: FxHashMap<Question, [u64; 16]>,
    old: FxHashMap<Question, [u64; 16]>,
}

impl TensorMaps {
    pub(crate) fn get(&mut self, question: &Question) -> Option<CUtensorMap> {
        if let Some(opaque) = self.young.get(question) {
            return Some(CUtensorMap { opaque: *opaque });
        }
        let (question, opaque) = self.old.remove_entry(question)?;
        self.keep(question, opaque);
        Some(CUtensorMap { opaque })
    }

    pub(crate) fn insert(&mut self, question: Question, map: &CUtensorMap) {
        self.keep(question, map.opaque);
    }

    fn keep(&mut self, question: Question, opaque: [u64; 16]) {
        if self.young.len() >= MAPS_MAX {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(question, opaque);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(n: usize) -> Question {
        (0, n.to_le_bytes().to_vec())
    }

    #[test]
    fn what_is_used_stays_and_the_rest_is_bounded() {
        let mut maps = TensorMaps::default();
        for n in 0..10 * MAPS_MAX {
            maps.insert(
                question(n),
                &CUtensorMap {
                    opaque: [n as u64; 16],
                },
            );
            assert_eq!(
                maps.get(&question(0)).map(|m| m.opaque[3]),
                Some(0),
                "after {n}"
            );
        }
        assert!(maps.young.len() + maps.old.len() <= 2 * MAPS_MAX);
        assert!(maps.get(&question(1)).is_none());
        assert_eq!(
            maps.get(&question(10 * MAPS_MAX - 1)).map(|m| m.opaque[0]),
            Some(10 * MAPS_MAX as u64 - 1)
        );
    }
}
