//! Reading the program's memory in looks for its changes, where some of it cannot be read.
//!
//! A page that is mapped, and that the program has forbidden to read for now, counts as written
//! until it is read: the kernel has reported its changes, and does so no more.

use outboard_pages::{Unread, pages_around};

/// A run of pages: first address and end.
type Run = (u64, u64);

/// Room for what is read, and the pages that could not be read.
#[derive(Default)]
pub(super) struct Reading {
    pub(super) buffer: Vec<u8>,
    unread: Vec<Run>,
}

impl Reading {
    /// Returns the pages that were left, as few runs of them.
    pub(super) fn take_unread(&mut self) -> Vec<Run> {
        let mut runs = std::mem::take(&mut self.unread);
        runs.sort_unstable();
        runs.dedup_by(|next, run| {
            let is_one = next.0 <= run.1;
            if is_one {
                run.1 = run.1.max(next.1);
            }
            is_one
        });
        runs
    }

    /// Notes memory at `at` that could not be read. Returns where the next is that may be, `to` at
    /// most. Memory that is not tracked is read in each look anyway.
    pub(super) fn pass(&mut self, is_tracked: bool, at: u64, to: u64) -> u64 {
        let next_page = pages_around(at, 1).1.min(to);
        let (is_mapped, next) = match outboard_pages::unread(at, to) {
            // Other memory there is reported as not watched, and all of it is compared.
            Unread::Unmapped(end) => (false, end),
            Unread::Forbidden(end) => (true, end),
            Unread::Allowed(_) => (true, next_page),
        };
        let next = next.max(next_page);
        if is_mapped && is_tracked {
            self.unread.push((at, next));
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_could_not_be_read_are_few_runs() {
        let mut reading = Reading {
            unread: vec![(8, 12), (0, 4), (4, 6), (9, 10), (20, 24), (20, 24)],
            ..Reading::default()
        };
        assert_eq!(reading.take_unread(), [(0, 6), (8, 12), (20, 24)]);
        assert!(reading.take_unread().is_empty());
        // A page that can be read by now, of which nobody knows more.
        let here = [0u8; 64].as_ptr() as u64;
        let page = pages_around(here, 1);
        assert_eq!(reading.pass(false, page.0, page.1), page.1);
        assert!(reading.take_unread().is_empty());
        assert_eq!(reading.pass(true, here, here + 1), here + 1);
        assert_eq!(reading.take_unread(), [(here, here + 1)]);
    }
}
