//! The pages of adapters' queues with the counters and the doorbell, in what is sent of mirrors.
//!
//! A thread that posts writes data and entries first and the doorbell last. Another thread may
//! look for changes in the midst of that. If it found the doorbell and not yet the entry, the
//! adapter would take what was in the entry before. So these pages are read before the kernel is
//! asked which others were written, and what is written there later waits for the next look.

use std::sync::{Arc, atomic::Ordering};

use outboard_pages::{PAGE_BYTES, Tracker};

use super::host_memory::HostRange;

/// A run of bytes: first address and end.
type Run = (u64, u64);

#[derive(Default)]
pub(super) struct Controls {
    /// In the order of their addresses.
    runs: Vec<Run>,
    /// Pages of them that were written after they were last read.
    written: Vec<Run>,
}

/// Returns the part of a run that is in another one.
pub(super) fn within(run: Run, other: Run) -> Option<Run> {
    let (from, to) = (run.0.max(other.0), run.1.min(other.1));
    (from < to).then_some((from, to))
}

impl Controls {
    pub(super) fn add(&mut self, run: Run) {
        if let Err(at) = self.runs.binary_search(&run) {
            self.runs.insert(at, run);
            self.written.push(run);
        }
    }

    /// Forgets those in memory whose mirror is closed.
    pub(super) fn forget(&mut self, closed: Run) {
        self.runs.retain(|run| within(*run, closed).is_none());
        self.written.retain(|run| within(*run, closed).is_none());
    }

    /// Returns the pages of queues that may have been written since they were last returned, those
    /// with the doorbells first.
    pub(super) fn take_written(
        &mut self,
        ranges: &[Arc<HostRange>],
        tracker: Option<&Tracker>,
    ) -> Vec<Run> {
        let mut written = std::mem::take(&mut self.written);
        for run in &self.runs {
            let range = ranges.iter().find(|range| range.contains(run.0));
            let is_tracked = range.is_some_and(|r| r.mirror.is_tracked.load(Ordering::Acquire));
            match tracker.filter(|_| is_tracked) {
                Some(tracker) => scan(tracker, *run, &mut written),
                None => written.push(*run),
            }
        }
        pages_of(written)
    }

    /// Keeps parts of these pages for the next time, and removes them from `written`.
    pub(super) fn set_aside(&mut self, written: &mut Vec<Run>) {
        if self.runs.is_empty() {
            return;
        }
        let mut others = Vec::with_capacity(written.len());
        for run in written.drain(..) {
            let parts = self.runs.iter().filter_map(|own| within(run, *own));
            self.written.extend(parts);
            others.extend(self.around(run));
        }
        *written = others;
    }

    /// Returns what of a run is in none of these pages.
    pub(super) fn around(&self, run: Run) -> Vec<Run> {
        let (mut at, mut parts) = (run.0, Vec::new());
        for own in self.runs.iter().filter_map(|own| within(run, *own)) {
            if at < own.0 {
                parts.push((at, own.0));
            }
            at = at.max(own.1);
        }
        if at < run.1 {
            parts.push((at, run.1));
        }
        parts
    }
}

/// Adds the pages of a run that were written, or all of it if that cannot be said.
fn scan(tracker: &Tracker, run: Run, written: &mut Vec<Run>) {
    let found = tracker.take_written(run.0, run.1, &mut |from, to| written.push((from, to)));
    if found.is_err() {
        written.push(run);
    }
}

/// Returns single pages, each once, in falling order: a queue's doorbell is on its second.
fn pages_of(runs: Vec<Run>) -> Vec<Run> {
    let mut pages: Vec<u64> = runs
        .into_iter()
        .flat_map(|(from, to)| (from / PAGE_BYTES * PAGE_BYTES..to).step_by(PAGE_BYTES as usize))
        .collect();
    pages.sort_unstable_by(|a, b| b.cmp(a));
    pages.dedup();
    pages
        .iter()
        .map(|page| (*page, page + PAGE_BYTES))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_queues_are_set_aside_and_returned_once_the_last_first() {
        let mut controls = Controls::default();
        controls.add((0x10_000, 0x12_000));
        controls.add((0x20_000, 0x22_000));
        controls.add((0x10_000, 0x12_000));
        assert_eq!(
            controls.take_written(&[], None),
            [0x21_000, 0x20_000, 0x11_000, 0x10_000].map(|at| (at, at + PAGE_BYTES))
        );
        let mut written = vec![
            (0xf_000, 0x13_000),
            (0x21_000, 0x22_000),
            (0x30_000, 0x31_000),
        ];
        controls.set_aside(&mut written);
        let others = [
            (0xf_000, 0x10_000),
            (0x12_000, 0x13_000),
            (0x30_000, 0x31_000),
        ];
        assert_eq!(written, others);
        assert_eq!(
            controls.written,
            [(0x10_000, 0x12_000), (0x21_000, 0x22_000)]
        );
        controls.forget((0x20_000, 0x40_000));
        assert_eq!(controls.written, [(0x10_000, 0x12_000)]);
        assert_eq!(
            controls.around((0x11_800, 0x14_000)),
            [(0x12_000, 0x14_000)]
        );
        assert_eq!(controls.around((0x11_000, 0x12_000)), []);
    }
}
