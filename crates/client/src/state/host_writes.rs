//! Work under way that reads or writes host memory: copies of pinned memory, graphs with such
//! copies, host functions, kernels.
//!
//! A synchronous copy to the device does not wait for the GPU. In CUDA it does, and so everything
//! that it waits for is done when it returns. Streams cannot tell the difference, since the server
//! keeps their order. The program could tell, by host memory that such work writes or has yet to
//! read; so could a copy whose bytes are taken too early. Only in these cases is the work waited
//! for: any work, once kernels may reach host memory, since they need not name it.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use outboard_api::{CUresult, cuda::CUcontext, enums::CU_STREAM_NON_BLOCKING};

use super::{Driver, StreamRef, host_functions, host_memory::HostRange};

#[derive(Default)]
pub(crate) struct HostWrites {
    /// Mark of the session's work after the last such work.
    last: AtomicU64,
    /// Some graph contains such work: any launch counts.
    by_graphs: AtomicBool,
    /// Number of ranges of host memory that kernels may reach without naming them: managed memory,
    /// mapped memory, memory whose address on the device the program asked for.
    reached: AtomicUsize,
}

impl Driver {
    /// Notes that such work was sent to a stream, or captured.
    pub(crate) fn host_is_used(&self, stream: &StreamRef) {
        match stream.is_capturing() {
            true => self.graph_uses_host(),
            false => self.note_host_write(),
        }
    }

    /// Notes that a graph contains such work.
    pub(crate) fn graph_uses_host(&self) {
        self.host_writes.by_graphs.store(true, Ordering::Release);
    }

    /// Notes that kernels may reach this range until it is freed.
    pub(super) fn kernels_reach(&self, range: &HostRange) {
        if !range.is_reached.swap(true, Ordering::AcqRel) {
            self.host_writes.reached.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Notes that this range is freed.
    pub(super) fn kernels_leave(&self, range: &HostRange) {
        if range.is_reached.swap(false, Ordering::AcqRel) {
            self.host_writes.reached.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Returns whether kernels may write host memory.
    #[inline]
    fn may_kernels_use_host(&self) -> bool {
        self.has_mirrors() || self.host_writes.reached.load(Ordering::Acquire) > 0
    }

    /// Notes a launch of a graph.
    #[inline]
    pub(crate) fn graph_was_launched(&self) {
        if self.host_writes.by_graphs.load(Ordering::Acquire) {
            self.note_host_write();
        }
    }

    fn note_host_write(&self) {
        let mark = self.session.progress.mark();
        self.host_writes.last.fetch_max(mark, Ordering::AcqRel);
    }

    /// Waits for the work that a copy in this stream would wait for, if some of it may use host
    /// memory that the program later reads or changes, or that the copy reads. Kernels count only
    /// for a copy that is synchronous (`wait`).
    pub(crate) fn settle_host(&self, stream: &StreamRef, wait: bool) -> Result<(), CUresult> {
        let last = self.host_writes.last.load(Ordering::Acquire);
        let hazard = !self.session.progress.is_complete(last)
            || host_functions::host_functions_pending()
            || self.session.expects_detached()
            || wait && self.may_kernels_use_host();
        match hazard {
            true => self.settle_stream(stream),
            false => Ok(()),
        }
    }

    /// Waits for all work that a copy in this stream would wait for. Inlined into copies to the
    /// device it would cost each of them 17 instructions.
    #[inline(never)]
    pub(crate) fn settle_stream(&self, stream: &StreamRef) -> Result<(), CUresult> {
        match self.is_quiet(stream) {
            true => Ok(()),
            false => self.settle_followed(stream),
        }
    }

    /// Waits for a stream's work, and for that of the default stream if this one waits for it.
    pub(crate) fn settle_followed(&self, stream: &StreamRef) -> Result<(), CUresult> {
        self.synchronize_stream(stream)?;
        if let StreamRef::Own(own) = stream
            && own.flags & CU_STREAM_NON_BLOCKING == 0
            && let Some(legacy) = self.streams.legacy_of(own.context)
            && !legacy.progress.is_idle()
        {
            // A blocking stream without work of its own still waits for the default stream.
            return self.settle_default(own.context);
        }
        Ok(())
    }

    /// Waits for a context's default stream, which waits for all blocking streams of the context.
    pub(crate) fn settle_default(&self, context: CUcontext) -> Result<(), CUresult> {
        let legacy = StreamRef::Legacy(self.streams.legacy(context));
        if self.is_quiet(&legacy) {
            return Ok(());
        }
        self.push_visible()?;
        let group = self.fence_in(self.wire_context(context)?, &legacy)?;
        self.session.wait(&group)?;
        self.session.take_fault(|| context.0 as u64)
    }
}
