//! A bound on the work that a stream holds behind a host function.
//!
//! A driver's stream takes some 1,020 pieces of work behind a host function that runs, and 28
//! launches of a graph with a host function in it (on an H100, driver 580); then the next call
//! waits. On a server that call would be the session's, which could no longer receive that the
//! function is done. So the client's call waits first, for its stream alone.

use std::sync::atomic::{AtomicU32, Ordering};

use outboard_api::cuda::CUstream;

use super::{Done, copy::MemoryKind};
use crate::{
    observe::guard,
    state::{Driver, StreamRef, host_functions},
};

/// Pieces of work in a stream, sent while a host function was registered, after which a call waits
/// for the stream. One message can be two pieces for the driver.
pub(crate) const WORKS_BEHIND_MAX: u32 = 500;
/// Launches of graphs in a stream, if any graph has a host function, after which one waits.
const GRAPHS_BEHIND_MAX: u32 = 24;
/// Longest copy, in bytes, that is one piece of work.
const PIECE_BYTES: usize = 1 << 20;
/// Further pieces of work of a copy from host memory to host memory: the server allocates device
/// memory, copies twice, and frees it.
const WORKS_ON_HOST: usize = 3;

impl Driver {
    /// Waits for a stream that may hold too much work behind a host function, before one more
    /// piece is sent. The caller holds no lock.
    #[inline(always)]
    pub(crate) fn keep_pace(&self, stream: &StreamRef) -> Done {
        match host_functions::any_registered() {
            false => Ok(()),
            true => self.work_behind(stream, 1),
        }
    }

    /// Does the same before a copy between memory of these kinds.
    #[inline(always)]
    pub(super) fn keep_pace_of_copy(
        &self,
        stream: &StreamRef,
        (to, from): (MemoryKind, MemoryKind),
        bytes: usize,
    ) -> Done {
        if !host_functions::any_registered() {
            return Ok(());
        }
        let is_on_host = to != MemoryKind::Device && from != MemoryKind::Device;
        let more = if is_on_host { WORKS_ON_HOST } else { 0 };
        self.work_behind(stream, bytes.div_ceil(PIECE_BYTES).max(1) + more)
    }

    /// Does the same before a memset, whose stream is not resolved yet.
    #[inline(always)]
    pub(super) fn keep_pace_of_memset(&self, stream: Option<CUstream>) -> Done {
        match host_functions::any_registered() {
            false => Ok(()),
            true => self.work_behind(
                &*self.work_stream(stream.unwrap_or_else(guard::default_stream))?,
                1,
            ),
        }
    }

    /// Does the same before a graph's launch.
    pub(super) fn keep_pace_of_graph(&self, stream: &StreamRef) -> Done {
        let (any, in_graph) = (
            host_functions::any_registered(),
            host_functions::any_in_graphs(),
        );
        match (any, in_graph) {
            (false, _) => Ok(()),
            (true, false) => self.work_behind(stream, 1),
            (true, true) => {
                self.work_behind(stream, (WORKS_BEHIND_MAX / GRAPHS_BEHIND_MAX) as usize)
            }
        }
    }

    #[cold]
    fn work_behind(&self, stream: &StreamRef, pieces: usize) -> Done {
        if stream.is_capturing() {
            return Ok(());
        }
        let behind = &stream.stream().behind;
        if has_room(behind, pieces) {
            return Ok(());
        }
        self.synchronize_stream(stream)
    }
}

/// Counts pieces of work behind a host function. Returns false if the stream is to be waited for
/// first: always, if they are more than may be behind one at all.
fn has_room(behind: &AtomicU32, pieces: usize) -> bool {
    let pieces = u32::try_from(pieces).unwrap_or(u32::MAX);
    let counted = pieces.min(WORKS_BEHIND_MAX);
    let before = behind.fetch_add(counted, Ordering::Relaxed);
    if pieces <= WORKS_BEHIND_MAX && before + counted <= WORKS_BEHIND_MAX {
        return true;
    }
    behind.store(counted, Ordering::Relaxed);
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_never_fits_behind_a_host_function_waits() {
        let behind = AtomicU32::new(0);
        assert!(!has_room(&behind, WORKS_BEHIND_MAX as usize + 1));
        assert!(!has_room(&behind, usize::MAX));
        behind.store(0, Ordering::Relaxed);
        assert!(has_room(&behind, WORKS_BEHIND_MAX as usize));
        assert!(!has_room(&behind, 1));
        assert!(has_room(&behind, 1));
    }
}
