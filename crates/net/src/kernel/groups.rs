//! Queue pairs that one block has to serve: each other's peers, and those of one completion queue.

/// Sets of queue pairs and completion queues, each known by its lowest number.
pub(super) struct Groups {
    pairs: usize,
    lower: Vec<usize>,
}

impl Groups {
    /// Makes sets of one each.
    pub(super) fn new(pairs: usize, completions: usize) -> Groups {
        Groups {
            pairs,
            lower: (0..pairs + completions).collect(),
        }
    }

    fn lowest(&self, mut of: usize) -> usize {
        while self.lower[of] != of {
            of = self.lower[of];
        }
        of
    }

    fn unite(&mut self, one: usize, other: usize) {
        let (one, other) = (self.lowest(one), self.lowest(other));
        self.lower[one.max(other)] = one.min(other);
    }

    /// Joins two queue pairs. Those that there are not join nothing.
    pub(super) fn join(&mut self, one: usize, other: usize) {
        if one < self.pairs && other < self.pairs {
            self.unite(one, other);
        }
    }

    pub(super) fn join_completions(&mut self, pair: usize, completions: usize) {
        let at = self.pairs + completions;
        if pair < self.pairs && at < self.lower.len() {
            self.unite(pair, at);
        }
    }

    /// Spreads the sets over blocks. Returns the block of each queue pair and completion queue.
    pub(super) fn spread(&self, blocks: u32) -> (Vec<u32>, Vec<u32>) {
        let (mut next, mut of) = (0, vec![0; self.lower.len()]);
        for at in 0..self.lower.len() {
            let lowest = self.lowest(at);
            of[at] = if lowest == at {
                next += 1;
                (next - 1) % blocks
            } else {
                of[lowest]
            };
        }
        let of_completions = of.split_off(self.pairs);
        (of, of_completions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_and_those_of_one_completion_queue_are_together_and_others_are_spread() {
        let mut groups = Groups::new(6, 4);
        groups.join(0, 3);
        groups.join_completions(3, 1);
        groups.join_completions(5, 1);
        groups.join_completions(1, 0);
        groups.join(2, 4);
        groups.join(2, 9);
        let (pairs, completions) = groups.spread(2);
        assert_eq!(pairs, [0, 1, 0, 0, 0, 0]);
        assert_eq!(completions, [1, 0, 1, 0]);
    }
}
