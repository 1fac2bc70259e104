//! The program's advice for managed memory. It only changes what `cuMemRangeGetAttribute` answers.

use std::ops::Range;

use outboard_api::cuda::CUdevice;
use parking_lot::Mutex;

/// A processor: the host, or a device by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Processor {
    Host,
    /// `CU_MEM_LOCATION_TYPE_HOST_NUMA`, by the node's number
    Node(i32),
    Device(CUdevice),
}

/// The program's advice for a part of managed memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Advice {
    pub(crate) is_read_mostly: bool,
    pub(crate) preferred: Option<Processor>,
    pub(crate) accessed_by: Vec<Processor>,
    pub(crate) prefetched_to: Option<Processor>,
}

/// Advice for one allocation: the offset at which each part begins, in ascending order from 0, and
/// its advice.
#[derive(Debug)]
pub(crate) struct Advices(Mutex<Vec<(u64, Advice)>>);

impl Default for Advices {
    fn default() -> Self {
        Advices(Mutex::new(vec![(0, Advice::default())]))
    }
}

impl Advices {
    /// Changes the advice for these offsets.
    pub(crate) fn change(&self, at: Range<u64>, change: impl Fn(&mut Advice)) {
        let mut parts = self.0.lock();
        split(&mut parts, at.start);
        split(&mut parts, at.end);
        for (_, advice) in parts.iter_mut().filter(|(from, _)| at.contains(from)) {
            change(advice);
        }
        parts.dedup_by(|later, earlier| later.1 == earlier.1);
    }

    /// Returns the advice for each part of these offsets.
    pub(crate) fn of(&self, at: Range<u64>) -> Vec<Advice> {
        let parts = self.0.lock();
        let first = parts.partition_point(|(from, _)| *from <= at.start) - 1;
        let inside = parts[first..].iter().take_while(|(from, _)| *from < at.end);
        inside.map(|(_, advice)| advice.clone()).collect()
    }
}

/// Splits parts so that one begins at this offset.
fn split(parts: &mut Vec<(u64, Advice)>, at: u64) {
    let next = parts.partition_point(|(from, _)| *from < at);
    if parts.get(next).is_none_or(|(from, _)| *from != at) && next > 0 {
        let advice = parts[next - 1].1.clone();
        parts.insert(next, (at, advice));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_is_kept_for_parts() {
        let advices = Advices::default();
        advices.change(100..200, |a| a.is_read_mostly = true);
        advices.change(150..300, |a| a.preferred = Some(Processor::Device(0)));
        let mostly = |range| {
            advices
                .of(range)
                .iter()
                .map(|a| a.is_read_mostly)
                .collect::<Vec<_>>()
        };
        assert_eq!(mostly(0..1000), [false, true, true, false, false]);
        assert_eq!(mostly(100..200), [true, true]);
        assert_eq!(mostly(199..200), [true]);
        assert_eq!(
            advices.of(250..260)[0].preferred,
            Some(Processor::Device(0))
        );
        advices.change(0..1000, |a| *a = Advice::default());
        assert_eq!(advices.of(0..1000), [Advice::default()]);
    }
}
