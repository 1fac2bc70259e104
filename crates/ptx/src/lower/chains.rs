//! Local memory of a thread that calls need.

use crate::limits::LOCAL_BYTES_MAX;

/// Returns, for each function, the bytes that the longest chain of calls from it needs. Functions
/// that call each other in a circle count once each. Takes time in proportion to the calls: texts
/// of strangers have any number of functions.
pub(super) fn bytes(callees: &[Vec<u32>], frame_bytes: &[u32]) -> Vec<u32> {
    let mut walk = Walk {
        callees,
        frame_bytes,
        order: vec![0; callees.len()],
        lowest: vec![0; callees.len()],
        seen: 0,
        open: Vec::new(),
        bytes: vec![None; callees.len()],
    };
    for function in 0..callees.len() {
        if walk.order[function] == 0 {
            walk.visit(function);
        }
    }
    walk.bytes
        .into_iter()
        .map(Option::unwrap_or_default)
        .collect()
}

/// Tarjan's search for circles: one is complete when all that it calls is.
struct Walk<'c> {
    callees: &'c [Vec<u32>],
    frame_bytes: &'c [u32],
    /// When a function was first seen, from 1 on.
    order: Vec<u32>,
    /// The earliest function that is still open and can be reached.
    lowest: Vec<u32>,
    seen: u32,
    /// Functions whose circle is not complete.
    open: Vec<usize>,
    bytes: Vec<Option<u32>>,
}

impl Walk<'_> {
    fn visit(&mut self, first: usize) {
        self.see(first);
        // Functions, and how many of their calls were followed.
        let mut path = vec![(first, 0)];
        while let Some((function, followed)) = path.last_mut() {
            let function = *function;
            if let Some(callee) = self.callees[function].get(*followed) {
                *followed += 1;
                let callee = *callee as usize;
                if self.order[callee] == 0 {
                    self.see(callee);
                    path.push((callee, 0));
                } else if self.bytes[callee].is_none() {
                    self.lowest[function] = self.lowest[function].min(self.order[callee]);
                }
                continue;
            }
            path.pop();
            if self.lowest[function] == self.order[function] {
                self.complete(function);
            }
            if let Some((caller, _)) = path.last() {
                self.lowest[*caller] = self.lowest[*caller].min(self.lowest[function]);
            }
        }
    }

    fn see(&mut self, function: usize) {
        self.seen += 1;
        self.order[function] = self.seen;
        self.lowest[function] = self.seen;
        self.open.push(function);
    }

    /// Computes the bytes of a circle, which begins with `first`; mostly a single function.
    fn complete(&mut self, first: usize) {
        let from = self.open.iter().rposition(|f| *f == first).unwrap_or(0);
        let circle = self.open.split_off(from);
        let own = circle
            .iter()
            .map(|f| u64::from(self.frame_bytes[*f]))
            .sum::<u64>();
        let called = circle.iter().flat_map(|f| &self.callees[*f]);
        let below = called.filter_map(|f| self.bytes[*f as usize]).max();
        let all = own + u64::from(below.unwrap_or(0));
        let bytes = all.min(LOCAL_BYTES_MAX.into()) as u32;
        for function in circle {
            self.bytes[function] = Some(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_chain_counts() {
        let callees = [vec![1, 2], vec![3], vec![3], vec![], vec![0]];
        assert_eq!(
            bytes(&callees, &[1, 10, 20, 100, 1000]),
            [121, 110, 120, 100, 1121]
        );
        assert_eq!(bytes(&[vec![]], &[LOCAL_BYTES_MAX + 1]), [LOCAL_BYTES_MAX]);
        assert_eq!(bytes(&[], &[]), [0_u32; 0]);
    }

    #[test]
    fn functions_in_a_circle_count_once_wherever_it_is_entered() {
        // 0 -> 1 -> 2 -> 1, 2 -> 3; 4 -> 2; 5 calls itself.
        let callees = [vec![1], vec![2], vec![1, 3], vec![], vec![2], vec![5, 3]];
        let found = bytes(&callees, &[1, 2, 4, 8, 16, 32]);
        assert_eq!(found, [15, 14, 14, 8, 30, 40]);
    }

    #[test]
    fn many_functions_take_time_in_proportion() {
        // Each calls the next, and so needs all that follow.
        let count = 200_000_u32;
        let callees: Vec<Vec<u32>> = (0..count)
            .map(|f| (f + 1..count.min(f + 3)).collect())
            .collect();
        let found = bytes(&callees, &vec![1; count as usize]);
        assert_eq!(
            found[(count - 10) as usize..],
            [10, 9, 8, 7, 6, 5, 4, 3, 2, 1]
        );
        assert_eq!(found[0], count);
    }
}
