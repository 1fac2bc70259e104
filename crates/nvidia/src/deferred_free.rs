//! Deferred free: objects that the client has freed while the GPU may still use them.
//!
//! A program frees memory as soon as it has submitted the last work on it, and the driver's own
//! `cuMemFree` then waits for the whole device. The session's thread must not wait, because the
//! work may itself need a message that this thread has yet to receive: the end of a host function,
//! or a copy that a kernel spins on. So a freed object is kept with marks in every busy stream. It
//! is released at the first `reap` after the marks are reached.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::{mapping::Mapping, owned::Mark};

/// Marks in all busy streams at one moment, shared by everything freed then.
pub(super) type Marks = Arc<Vec<Arc<Mark>>>;

pub(super) enum Retired {
    /// A mapping, stored by itself because its range is often mapped again at once.
    Mapping(Mapping),
    Other(#[allow(dead_code)] Box<dyn Send>),
}

impl Retired {
    /// Whether the driver waits for all of the device's work when it releases the object, and holds
    /// up launches meanwhile: so do `cuMemHostUnregister` and `cuMemFreeHost`, but not `cuMemUnmap`
    /// and `cuMemRelease` (580.159, H100).
    fn waits(&self) -> bool {
        matches!(self, Retired::Other(_))
    }
}

pub(super) struct DeferredFree {
    since: Instant,
    /// `None` if freed during a capture, when nothing could be marked.
    marks: Option<Marks>,
    retired: Retired,
    range: Option<(u64, u64)>,
}

#[derive(Default)]
pub(super) struct DeferredFrees {
    frees: Vec<DeferredFree>,
}

impl DeferredFrees {
    pub(super) fn push(
        &mut self,
        retired: Retired,
        range: Option<(u64, u64)>,
        marks: Option<Marks>,
    ) {
        self.frees.push(DeferredFree {
            since: Instant::now(),
            marks,
            retired,
            range,
        });
    }

    pub(super) fn len(&self) -> usize {
        self.frees.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frees.is_empty()
    }

    /// Whether any is released when its marks are reached. Without marks are those that were freed
    /// during a capture that has not ended.
    pub(super) fn is_any_marked(&self) -> bool {
        self.frees.iter().any(|free| free.marks.is_some())
    }

    /// Marks objects that could not be marked when they were freed. Later marks cover more work and
    /// so are safe.
    pub(super) fn mark(&mut self, mut now: impl FnMut() -> Option<Marks>) {
        let unmarked = self.frees.iter_mut().filter(|free| free.marks.is_none());
        for free in unmarked {
            match now() {
                Some(marks) => free.marks = Some(marks),
                None => return,
            }
        }
    }

    /// Whether the release of any waits for the device.
    pub(super) fn any_waits(&self) -> bool {
        self.frees.iter().any(|free| free.retired.waits())
    }

    /// Whether any whose release waits for the device is as old.
    pub(super) fn is_any_older(&self, age: Duration) -> bool {
        let mut waiting = self.frees.iter().filter(|free| free.retired.waits());
        waiting.any(|free| free.since.elapsed() >= age)
    }

    /// Releases objects that the GPU no longer uses, and returns whether any are left. Those whose
    /// release waits for the device are released only if it is idle.
    pub(super) fn reap(&mut self, is_idle: bool) -> bool {
        self.frees.retain(|free| {
            let may = is_idle || !free.retired.waits();
            !(may && done(free.marks.as_ref()))
        });
        !self.frees.is_empty()
    }

    /// Takes out the objects that the GPU no longer uses and whose release waits for the device.
    pub(super) fn take_waiting(&mut self) -> Vec<DeferredFree> {
        let is_taken = |free: &mut DeferredFree| free.retired.waits() && done(free.marks.as_ref());
        self.frees.extract_if(.., is_taken).collect()
    }

    /// Puts objects back that were taken out and not released.
    pub(super) fn put_back(&mut self, taken: Vec<DeferredFree>) {
        self.frees.extend(taken);
    }

    /// Takes back the mapping of exactly this range, with the marks that its next use must wait
    /// for.
    pub(super) fn take_mapping(&mut self, va: u64, len: u64) -> Option<(Mapping, Marks)> {
        let at = self.frees.iter().position(|free| {
            free.range == Some((va, len))
                && free.marks.is_some()
                && matches!(&free.retired, Retired::Mapping(mapping) if mapping.is_private)
        })?;
        let free = self.frees.swap_remove(at);
        match (free.retired, free.marks) {
            (Retired::Mapping(mapping), Some(marks)) => Some((mapping, marks)),
            _ => None,
        }
    }

    /// Whether a freed mapping still holds part of a range.
    pub(super) fn overlaps(&self, va: u64, len: u64) -> bool {
        self.frees
            .iter()
            .filter_map(|free| free.range)
            .any(|(start, size)| start < va.saturating_add(len) && va < start.saturating_add(size))
    }
}

fn done(marks: Option<&Marks>) -> bool {
    // An error of the GPU ends its work as well.
    marks.is_some_and(|marks| marks.iter().all(|mark| mark.reached().unwrap_or(true)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    struct Counted(Arc<AtomicUsize>);

    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn unmarked_frees_wait_until_they_can_be_marked() {
        let freed = Arc::new(AtomicUsize::new(0));
        let mut deferred_frees = DeferredFrees::default();
        let retired = || Retired::Other(Box::new(Counted(freed.clone())));
        deferred_frees.push(retired(), Some((0x1000, 0x1000)), None);
        deferred_frees.push(retired(), None, Some(Arc::new(Vec::new())));
        assert!(deferred_frees.is_any_marked());
        assert!(deferred_frees.reap(true), "the unmarked one stays");
        assert!(!deferred_frees.is_any_marked());
        assert_eq!(freed.load(Ordering::Relaxed), 1);
        assert!(deferred_frees.overlaps(0x1fff, 1));
        assert!(!deferred_frees.overlaps(0x2000, 1));
        deferred_frees.mark(|| None);
        assert!(deferred_frees.reap(true));
        deferred_frees.mark(|| Some(Arc::new(Vec::new())));
        assert!(!deferred_frees.reap(true));
        assert_eq!(freed.load(Ordering::Relaxed), 2);
    }
}
