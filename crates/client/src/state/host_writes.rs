//! Work under way that reads or writes memory of the host: copies of pinned memory, graphs that have such copies, host functions.
//!
//! A synchronous copy to the device does not wait for the GPU, although CUDA's is over when it returns, and with it all that it
//! waited for. Streams cannot tell the difference: the server keeps their order. The program itself could, by memory that such
//! work writes or has yet to read, and so could a copy whose bytes are taken along too early. Only then is that work waited for.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use outboard_api::{CUresult, enums::CU_STREAM_NON_BLOCKING};

use super::{Driver, StreamRef};
use crate::notes;

#[derive(Default)]
pub(crate) struct HostWrites {
    /// Of everything sent: a mark behind the last such work.
    last: AtomicU64,
    /// Some graph contains such work: any launch counts.
    by_graphs: AtomicBool,
}

impl Driver {
    /// Such work was just sent to a stream, or captured.
    pub(crate) fn host_is_used(&self, stream: &StreamRef) {
        match stream.is_capturing() {
            true => self.graph_uses_host(),
            false => self.note_host_write(),
        }
    }

    /// A graph contains such work.
    pub(crate) fn graph_uses_host(&self) {
        self.host_writes.by_graphs.store(true, Ordering::Release);
    }

    /// A graph was launched.
    #[inline]
    pub(crate) fn graph_was_launched(&self) {
        if self.host_writes.by_graphs.load(Ordering::Acquire) {
            self.note_host_write();
        }
    }

    fn note_host_write(&self) {
        let mark = self.progress.mark();
        self.host_writes.last.fetch_max(mark, Ordering::AcqRel);
    }

    /// Waits for all that a copy in this stream would wait for, if some of it may use memory of the host that the program
    /// looks at or changes afterwards, or that the copy reads.
    pub(crate) fn settle_host(&self, stream: &StreamRef) -> Result<(), CUresult> {
        let last = self.host_writes.last.load(Ordering::Acquire);
        let hazard = !self.progress.is_complete(last)
            || notes::host_functions_pending()
            || self.session.expects_detached();
        match hazard {
            true => self.settle_stream(stream),
            false => Ok(()),
        }
    }

    /// Waits for all that a copy in this stream would wait for.
    pub(crate) fn settle_stream(&self, stream: &StreamRef) -> Result<(), CUresult> {
        if self.is_quiet(stream) {
            return Ok(());
        }
        self.synchronize_stream(stream)?;
        if let StreamRef::Own(own) = stream
            && own.flags & CU_STREAM_NON_BLOCKING == 0
            && let Some(legacy) = self.streams.legacy_of(own.context)
            && !legacy.progress.is_idle()
        {
            // A blocking stream with nothing of its own left waits for the default stream all the same.
            return self.synchronize_stream(&StreamRef::Legacy(legacy));
        }
        Ok(())
    }
}
