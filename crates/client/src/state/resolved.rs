//! The stream argument that a thread resolved last. Most calls name the same stream again, and need
//! neither the table of streams nor a count that threads share.

use std::{
    cell::{Cell, RefCell, UnsafeCell},
    mem::ManuallyDrop,
    ops::Deref,
    ptr::{self, NonNull},
    sync::Arc,
};

use outboard_api::{
    CUresult,
    cuda::{CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, CUstream},
};
use outboard_wire::messages;
use rustc_hash::FxHashMap;

use super::{Driver, HandleKind, StreamRef, current_context, streams::Stream};
use crate::{context::Context, thread};

/// Number of destroyed streams while a thread remembers none.
const NONE: u64 = u64::MAX;

/// A thread's last stream argument, and what it meant.
struct Remembered {
    argument: Cell<CUstream>,
    /// The context that was current; NULL for none.
    context: Cell<*const Context>,
    /// Number of destroyed streams at that time, or [`NONE`].
    gone: Cell<u64>,
    /// Is `Some` unless `gone` is [`NONE`]. It changes only while `borrows` is 0. It is never
    /// dropped by itself, so that a thread's state needs no look whether it still exists.
    stream: UnsafeCell<ManuallyDrop<Option<StreamRef>>>,
    /// Number of [`Resolved`] that point to `stream`.
    borrows: Cell<usize>,
}

/// A resolved stream argument, for the length of a call. It points to what its thread remembers, so
/// it cannot leave the thread.
pub(crate) struct Resolved {
    stream: NonNull<StreamRef>,
    /// NULL if this owns its stream, in a box.
    lender: *const Remembered,
}

impl Remembered {
    const fn nothing() -> Remembered {
        Remembered {
            argument: Cell::new(CUstream::NULL),
            context: Cell::new(ptr::null()),
            gone: Cell::new(NONE),
            stream: UnsafeCell::new(ManuallyDrop::new(None)),
            borrows: Cell::new(0),
        }
    }

    /// Returns the stream if the argument means the same as last time.
    #[inline(always)]
    fn recall(
        &self,
        argument: CUstream,
        context: Option<&'static Context>,
        gone: u64,
    ) -> Option<Resolved> {
        let context = context.map_or(ptr::null(), ptr::from_ref);
        let is_known = self.argument.get() == argument
            && self.gone.get() == gone
            && ptr::eq(self.context.get(), context);
        is_known.then(|| self.lend()).flatten()
    }

    /// Lends the stream, unless there is none.
    #[inline(always)]
    fn lend(&self) -> Option<Resolved> {
        // SAFETY: only `remember` and `forget` change the option, in this thread, and neither while
        // this shared borrow lasts, which ends in this function.
        let stream = unsafe { &*self.stream.get() }.as_ref()?;
        self.borrows.set(self.borrows.get() + 1);
        Some(Resolved {
            stream: NonNull::from(stream),
            lender: self,
        })
    }

    /// Remembers what an argument means, and returns that. An outer call of this thread may still
    /// use the stream before; then nothing is remembered.
    fn remember(
        &self,
        argument: CUstream,
        context: Option<&'static Context>,
        gone: u64,
        stream: StreamRef,
    ) -> Resolved {
        if self.borrows.get() > 0 || !release_at_exit() {
            let stream = NonNull::from(Box::leak(Box::new(stream)));
            return Resolved {
                stream,
                lender: ptr::null(),
            };
        }
        self.argument.set(argument);
        self.context.set(context.map_or(ptr::null(), ptr::from_ref));
        self.gone.set(gone);
        self.borrows.set(1);
        // SAFETY: `borrows` was 0, so nothing points to the old stream. It is dropped at the end,
        // when the new one is in place: its end may use this thread's streams.
        let _before = unsafe { (*self.stream.get()).replace(stream) };
        // SAFETY: nothing changes the option while it is borrowed.
        let stream = unsafe { &*self.stream.get() }.as_ref();
        Resolved {
            // It was written just now.
            stream: stream.map_or(NonNull::dangling(), NonNull::from),
            lender: self,
        }
    }

    /// Gives the stream up, at the end of the thread.
    fn forget(&self) {
        if self.borrows.get() == 0 {
            self.gone.set(NONE);
            // SAFETY: `borrows` is 0, so nothing points to the stream.
            drop(unsafe { (*self.stream.get()).take() });
        }
    }
}

impl Deref for Resolved {
    type Target = StreamRef;

    #[inline(always)]
    fn deref(&self) -> &StreamRef {
        // SAFETY: a box that this owns, or the option of this thread's `Remembered`, which is
        // `Some` and does not change while it is borrowed, and exists until the thread ends.
        unsafe { self.stream.as_ref() }
    }
}

impl Drop for Resolved {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: NULL, or the state of this thread, which exists until the thread ends.
        match unsafe { self.lender.as_ref() } {
            Some(lender) => lender.borrows.set(lender.borrows.get() - 1),
            None => drop_box(self.stream),
        }
    }
}

thread_local! {
    // It has no destructor, so that it exists until the thread ends.
    static REMEMBERED: Remembered = const { Remembered::nothing() };
    /// The thread's own default stream in each context.
    static PER_THREAD: RefCell<FxHashMap<usize, Arc<Stream>>> = RefCell::default();
}

impl Driver {
    /// Resolves a stream argument: one of the program's streams, or a default one.
    #[inline(always)]
    pub(crate) fn stream(&self, stream: CUstream) -> Result<Resolved, CUresult> {
        let context = thread::here().context.get();
        // Read before the tables, so that a stream destroyed meanwhile is not remembered as
        // existing.
        let gone = self.streams.gone();
        // SAFETY: the thread's own, which exists until the thread ends and is never moved.
        let remembered = unsafe { &*REMEMBERED.with(ptr::from_ref) };
        match remembered.recall(stream, context, gone) {
            Some(known) => Ok(known),
            None => {
                let found = self.resolve_stream(stream)?;
                Ok(remembered.remember(stream, context, gone, found))
            }
        }
    }

    #[cold]
    fn resolve_stream(&self, stream: CUstream) -> Result<StreamRef, CUresult> {
        if stream.is_null() || stream == CU_STREAM_LEGACY {
            return Ok(StreamRef::Legacy(self.streams.legacy(current_context()?)));
        }
        if stream == CU_STREAM_PER_THREAD {
            return self.per_thread_stream().map(StreamRef::Own);
        }
        let known = self.streams.get(stream.0 as u64);
        known
            .map(StreamRef::Own)
            .ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
    }

    fn per_thread_stream(&self) -> Result<Arc<Stream>, CUresult> {
        let context = current_context()?;
        let own = PER_THREAD
            .try_with(|p| p.borrow().get(&context.0).cloned())
            .ok()
            .flatten();
        if let Some(stream) = own.filter(|s| self.streams.get(s.handle).is_some()) {
            return Ok(stream);
        }
        let handle = self.handles.mint(HandleKind::Stream);
        self.submit(&messages::StreamCreate {
            stream: handle,
            flags: 0,
            priority: 0,
        })?;
        let stream = self.streams.insert(handle, context, 0, 0);
        let _ = PER_THREAD.try_with(|p| p.borrow_mut().insert(context.0, stream.clone()));
        Ok(stream)
    }
}

#[cold]
fn drop_box(stream: NonNull<StreamRef>) {
    // SAFETY: a `Resolved` without a lender was made from a box, and is being dropped.
    drop(unsafe { Box::from_raw(stream.as_ptr()) });
}

/// Lets the thread give up its stream when it ends. Returns false if it is ending already.
fn release_at_exit() -> bool {
    struct Release;
    impl Drop for Release {
        fn drop(&mut self) {
            REMEMBERED.with(Remembered::forget);
        }
    }
    thread_local! {
        static RELEASE: Release = const { Release };
    }
    RELEASE.try_with(|_| ()).is_ok()
}

#[cfg(test)]
mod tests {
    use outboard_api::cuda::CUcontext;

    use super::*;
    use crate::state::Streams;

    const FIRST: CUstream = CUstream(1 << 4);
    const SECOND: CUstream = CUstream(2 << 4);

    fn stream(handle: u64) -> (Arc<Stream>, StreamRef) {
        let stream = Streams::default().insert(handle, CUcontext::NULL, 0, 0);
        (stream.clone(), StreamRef::Own(stream))
    }

    #[test]
    fn a_borrowed_stream_outlives_another_call_within_the_call() {
        let remembered = Remembered::nothing();
        let ((first, one), (second, two)) = (stream(1), stream(2));
        let outer = remembered.remember(FIRST, None, 0, one);
        // A host function within the call names another stream: that one is not remembered.
        let inner = remembered.remember(SECOND, None, 0, two);
        assert_eq!((outer.wire(), inner.wire()), (1, 2));
        drop(inner);
        assert_eq!(Arc::strong_count(&second), 1);
        assert!(remembered.recall(SECOND, None, 0).is_none());
        let again = remembered.recall(FIRST, None, 0).expect("it is known");
        drop(outer);
        assert_eq!(again.wire(), 1);
        // Nothing is given up while it is borrowed.
        remembered.forget();
        assert_eq!(Arc::strong_count(&first), 2);
        drop(again);
        remembered.forget();
        assert_eq!(Arc::strong_count(&first), 1);
        assert!(remembered.recall(FIRST, None, 0).is_none());
    }

    #[test]
    fn a_stream_is_forgotten_once_any_is_destroyed_or_the_next_is_named() {
        let remembered = Remembered::nothing();
        let ((first, one), (_second, two)) = (stream(1), stream(2));
        drop(remembered.remember(FIRST, None, 0, one));
        assert!(remembered.recall(FIRST, None, 1).is_none());
        drop(remembered.remember(SECOND, None, 1, two));
        assert_eq!(Arc::strong_count(&first), 1);
        drop(remembered.recall(SECOND, None, 1).expect("it is known"));
        remembered.forget();
    }

    #[test]
    fn a_thread_that_ends_gives_its_stream_up() {
        let (first, one) = stream(1);
        std::thread::spawn(move || {
            REMEMBERED.with(|own| drop(own.remember(FIRST, None, 0, one)));
        })
        .join()
        .expect("a thread");
        assert_eq!(Arc::strong_count(&first), 1);
    }
}
