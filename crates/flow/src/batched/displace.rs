//! Makes room in two full buckets: entries move to their other buckets, one after the other.

use super::bucket::SLOTS;
use super::table::Batched;
use crate::FlowKey;
use crate::prefetch::prefetch;

/// Buckets that one search looks at. Below 97 % load a few suffice; the bound keeps an insertion
/// into a full table below some microseconds.
const SEARCHED_MAX: usize = 256;

/// Both buckets and those that one move leads to. One of them nearly always has room, and so few
/// nodes are made at once in a fraction of the time of all.
const FEW: usize = 2 + 2 * SLOTS;

/// A bucket that the search reached: by moving the entry in `slot` of node `parent`.
#[derive(Clone, Copy)]
struct Node {
    bucket: u32,
    parent: u16,
    slot: u8,
}

impl<K: FlowKey> Batched<K> {
    /// Frees a slot in one of two full buckets. Returns its bucket and number; `None`, and nothing
    /// has moved, if the search finds no way.
    #[cold]
    pub(super) fn make_room(&mut self, first: usize, second: usize) -> Option<(usize, usize)> {
        self.search::<FEW>(first, second)
            .or_else(|| self.search::<SEARCHED_MAX>(first, second))
    }

    fn search<const N: usize>(&mut self, first: usize, second: usize) -> Option<(usize, usize)> {
        let root = |bucket: usize| Node {
            bucket: bucket as u32,
            parent: u16::MAX,
            slot: 0,
        };
        let mut nodes = [root(first); N];
        nodes[1] = root(second);
        let mut count = 2;
        let mut next = 0;
        while next < count {
            let others = self.others(nodes[next].bucket as usize);
            for (slot, other) in others.into_iter().enumerate() {
                let node = Node {
                    bucket: other as u32,
                    parent: next as u16,
                    slot: slot as u8,
                };
                if let Some(free) = self.buckets[other].free().first() {
                    return Some(self.shift(&nodes, node, free));
                }
                if count < N {
                    nodes[count] = node;
                    count += 1;
                }
            }
            next += 1;
        }
        None
    }

    /// Returns the other bucket of each entry of a full bucket, all of them on their way.
    fn others(&self, index: usize) -> [usize; SLOTS] {
        let bucket = &self.buckets[index];
        std::array::from_fn(|slot| {
            let place = self.place(self.hash(bucket.key(slot)));
            let other = if place.first == index {
                place.second
            } else {
                place.first
            };
            prefetch(&self.buckets[other]);
            other
        })
    }

    /// Moves entries along the way from a root to `node`, the last first, into slot `free` of
    /// `node`. Returns the slot that becomes free in the root.
    fn shift(&mut self, nodes: &[Node], mut node: Node, mut free: usize) -> (usize, usize) {
        while let Some(parent) = nodes.get(usize::from(node.parent)) {
            let (from, slot) = (parent.bucket as usize, usize::from(node.slot));
            self.relocate(from, slot, node.bucket as usize, free);
            (node, free) = (*parent, slot);
        }
        (node.bucket as usize, free)
    }

    fn relocate(&mut self, from: usize, slot: usize, to: usize, free: usize) {
        let (key, value) = (
            *self.buckets[from].key(slot),
            self.buckets[from].value(slot),
        );
        let place = self.place(self.hash(&key));
        self.buckets[to].put(free, place.tag, key, value);
        self.buckets[from].clear(slot);
        if to == place.first {
            self.buckets[to].uncount_overflow(place.counter);
        } else {
            self.buckets[from].count_overflow(place.counter);
        }
    }
}
