//! A completion queue, with the channel that wakes a thread which sleeps on it.

use std::{
    os::fd::BorrowedFd,
    ptr::{self, NonNull},
    sync::Arc,
};

use crate::{Error, abi::*, device::Context};

/// A completion queue and its channel, which one thread uses at a time.
pub(crate) struct Completions {
    raw: NonNull<ibv_cq>,
    channel: Channel,
    /// Events taken, which the library waits for before it destroys the queue.
    events: u32,
}

// SAFETY: libibverbs's objects may be used from any thread, by its documentation.
unsafe impl Send for Completions {}

impl Completions {
    /// Makes a queue with room for `entries` completions.
    pub(crate) fn new(context: &Arc<Context>, entries: usize) -> Result<Self, Error> {
        let channel = Channel::new(context)?;
        // SAFETY: the context is open and the channel is its.
        let raw = unsafe {
            (context.verbs.ibv_create_cq)(
                context.raw,
                entries as i32,
                ptr::null_mut(),
                channel.raw.as_ptr(),
                0,
            )
        };
        let raw =
            NonNull::new(raw).ok_or_else(|| Error::last("making an RDMA completion queue"))?;
        Ok(Self {
            raw,
            channel,
            events: 0,
        })
    }

    pub(crate) fn raw(&self) -> *mut ibv_cq {
        self.raw.as_ptr()
    }

    /// Takes completions, as many as there is room for, and returns their number.
    #[inline]
    pub(crate) fn poll(&self, found: &mut [ibv_wc]) -> Result<usize, Error> {
        let Some(poll) = self.ops().poll_cq else {
            return Err(Error::Incomplete {
                what: "has no call to poll completions",
            });
        };
        // SAFETY: there is room for as many completions as are asked for, and the queue is ours.
        let count = unsafe { poll(self.raw.as_ptr(), found.len() as i32, found.as_mut_ptr()) };
        usize::try_from(count).map_err(|_| Error::last("polling RDMA completions"))
    }

    /// Makes the next completion turn [`channel`](Self::channel) readable.
    pub(crate) fn arm(&self) -> Result<(), Error> {
        self.channel.context.check()?;
        let rc = match self.ops().req_notify_cq {
            // SAFETY: the queue is ours.
            Some(notify) => unsafe { notify(self.raw.as_ptr(), 0) },
            None => libc::ENOSYS,
        };
        Error::of(rc, "asking for RDMA completion events")
    }

    /// Readable after something has completed since [`arm`](Self::arm).
    pub(crate) fn channel(&self) -> BorrowedFd<'_> {
        self.channel.fd()
    }

    /// Takes the event that made the channel readable. Returns false if there is none.
    pub(crate) fn take_event(&mut self) -> bool {
        if !self.channel.context.is_ours() {
            return false;
        }
        let (mut cq, mut cookie) = (ptr::null_mut(), ptr::null_mut());
        let verbs = self.channel.context.verbs;
        // SAFETY: both pointers outlive the call, which does not block.
        let rc =
            unsafe { (verbs.ibv_get_cq_event)(self.channel.raw.as_ptr(), &mut cq, &mut cookie) };
        self.events += u32::from(rc == 0);
        rc == 0
    }

    fn ops(&self) -> &ibv_context_ops {
        // SAFETY: the queue and its context live; the library fills the table before it returns
        // them.
        unsafe { &(*self.raw.as_ref().context).ops }
    }
}

impl Drop for Completions {
    fn drop(&mut self) {
        let context = &self.channel.context;
        if context.is_ours() {
            // SAFETY: `new` made it, the queue pairs that use it are gone, and every event was
            // taken, which the library waits for.
            unsafe {
                (context.verbs.ibv_ack_cq_events)(self.raw.as_ptr(), self.events);
                let _ = (context.verbs.ibv_destroy_cq)(self.raw.as_ptr());
            }
        }
    }
}

/// A channel of completion events, which does not block.
struct Channel {
    raw: NonNull<ibv_comp_channel>,
    context: Arc<Context>,
}

impl Channel {
    fn new(context: &Arc<Context>) -> Result<Self, Error> {
        // SAFETY: the context is open.
        let raw = unsafe { (context.verbs.ibv_create_comp_channel)(context.raw) };
        let raw =
            NonNull::new(raw).ok_or_else(|| Error::last("making an RDMA completion channel"))?;
        let channel = Self {
            raw,
            context: Arc::clone(context),
        };
        let flags = rustix::fs::OFlags::NONBLOCK;
        rustix::fs::fcntl_setfl(channel.fd(), flags)
            .map_err(Error::kernel("preparing an RDMA completion channel"))?;
        Ok(channel)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel lives as long as `self`, and so does its descriptor.
        unsafe { BorrowedFd::borrow_raw(self.raw.as_ref().fd) }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if self.context.is_ours() {
            // SAFETY: `new` made it, and its completion queue is gone.
            let _ = unsafe { (self.context.verbs.ibv_destroy_comp_channel)(self.raw.as_ptr()) };
        }
    }
}
