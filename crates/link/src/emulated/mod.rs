//! Emulates a network between processes of one machine: a message arrives when it would over the
//! real network.
//!
//! ```text
//!   sender                                            receiver
//!     now = CLOCK_MONOTONIC                             takes the stamp out of the link
//!     stamp = Wire::arrival_ns(now, length)             waits until CLOCK_MONOTONIC has reached it
//!        │   ┌───────┐ ┌──────────────────┐             hands the frame over, from where it lies
//!        └──►│ stamp │ │ frame            ├──► any link ──►
//!            └───────┘ └──────────────────┘
//! ```
//!
//! The stamp is a frame of its own, before the frame that it belongs to, and both are published
//! together. So frames keep their lengths, their alignment and their limits.
//!
//! * Each direction has its own [`Wire`]. A frame is sent when it is committed; the time to write
//!   its bytes is no part of the network.
//! * A frame is never handed over early. A [`Receiver`] that waits for a frame's time takes frames
//!   out of the link meanwhile, straight to their places, as an adapter would. One is late if the
//!   carrying link takes longer than the network: some hundred nanoseconds over shm, some ten
//!   microseconds over loopback tcp.
//! * With cores to spare, a receiver at first watches for frames and for their time without a
//!   sleep: threads that have slept are late and slow, and that is no property of the network.
//! * Frames in flight are in the carrier, and in the receiver's memory once it has taken them:
//!   about as many bytes as the network holds, up to
//!   [`READ_AHEAD_BYTES_MAX`](outboard_wire::limits::READ_AHEAD_BYTES_MAX) for all links of an
//!   [`Attachment`]. Beyond that, or while nobody receives, senders wait as they do for a full
//!   window.
//! * Nothing bypasses the network: file descriptors cannot be passed, and data connections share
//!   the session's attachment, so that all frames of a session wait for one wire.
//! * Both ends must be on one machine, since they share one clock: see [`Clock`].

mod ahead;
mod asked;
mod attachment;
mod carrier;
mod clock;
mod receiver;
mod wire;

use std::{ptr::NonNull, sync::Arc};

use outboard_wire::network::Network;
use parking_lot::{Condvar, Mutex};

pub use self::{
    asked::{AskedError, VARIABLE, asked, emulation},
    attachment::Attachment,
    clock::{Clock, ClockError},
    receiver::Receiver,
    wire::{End, Wire},
};
use crate::{credentials::Way, error::Error, kind::LinkKind, tcp};
pub(crate) use carrier::Carrier;

/// A link over an emulated network.
pub struct Connection {
    pub(crate) sender: Box<Sender>,
    pub(crate) receiver: Box<Receiver>,
    /// The way to the peer, over tcp.
    way: Option<Way>,
}

impl Connection {
    /// Delays what `carrier` carries; the peer must do so too.
    pub(crate) fn new(carrier: Carrier, attachment: &Attachment) -> Self {
        let way = carrier.way();
        let (sender, receiver) = carrier.split();
        let rest = Arc::new(Rest::default());
        Self {
            sender: Box::new(Sender {
                inner: sender,
                attachment: attachment.clone(),
                rest: Arc::clone(&rest),
            }),
            receiver: Box::new(Receiver::new(receiver, attachment.clone(), rest)),
            way,
        }
    }

    pub(crate) fn way(&self) -> Option<Way> {
        self.way.clone()
    }

    pub(crate) fn attachment(&self) -> &Attachment {
        &self.sender.attachment
    }

    /// Returns the kind of the link that moves the bytes.
    pub(crate) fn carrier(&self) -> LinkKind {
        self.receiver.carrier()
    }
}

/// The sending half: sends a stamp before every frame of the carrying link.
pub struct Sender {
    inner: carrier::Sender,
    attachment: Attachment,
    rest: Arc<Rest>,
}

impl Sender {
    /// Sends over another network from now on, on all links of the attachment.
    pub fn change(&mut self, network: &Network) {
        self.attachment.change(network);
    }

    #[cold]
    pub(crate) fn reserve(&mut self, len: usize) -> Result<NonNull<u8>, Error> {
        self.inner.reserve(len)
    }

    /// Publishes the first `len` bytes of the room, stamped with the time at which they arrive if
    /// they are sent now.
    #[cold]
    pub(crate) fn commit(&mut self, len: usize) -> Result<(), Error> {
        let stamp = self.attachment.arrival_ns(len);
        self.inner.commit(stamp, len)
    }

    /// Sends a frame of `len` bytes, which is the sum of all parts and within the limits, if the
    /// carrier is tcp: there long parts go to the kernel without a copy.
    pub(crate) fn send_over_tcp(
        &mut self,
        parts: &[&[u8]],
        len: usize,
    ) -> Option<Result<(), Error>> {
        let carrier::Sender::Tcp(sender) = &mut self.inner else {
            return None;
        };
        let stamp = self.attachment.arrival_ns(len);
        Some(sender.send_stamped(stamp, parts, len))
    }

    pub(crate) fn flush(&mut self) -> Result<(), Error> {
        self.inner.flush()
    }

    pub(crate) fn post(&mut self) -> Result<(), Error> {
        self.inner.post()
    }

    pub(crate) fn flusher(&self) -> Option<tcp::Flusher> {
        self.inner.flusher()
    }

    pub(crate) fn shutdown(&mut self) {
        self.inner.shutdown();
    }

    pub(crate) fn closer(&self) -> Closer {
        Closer {
            inner: self.inner.closer(),
            rest: Arc::clone(&self.rest),
        }
    }

    /// Returns the kind of the link that moves the bytes.
    pub(crate) fn carrier(&self) -> LinkKind {
        self.inner.kind()
    }
}

/// Wakes a blocked [`Receiver`].
#[derive(Clone)]
pub struct Waker {
    inner: carrier::Waker,
    rest: Arc<Rest>,
}

impl Waker {
    pub(crate) fn wake(&self) {
        self.inner.wake();
        self.rest.wake();
    }
}

/// Ends both halves.
#[derive(Clone)]
pub struct Closer {
    inner: carrier::Closer,
    rest: Arc<Rest>,
}

impl Closer {
    pub(crate) fn close(&self) {
        self.inner.close();
        self.rest.wake();
    }
}

/// Lets a receiver sleep whose next frame is not due yet, without being woken by every frame sent.
#[derive(Default)]
struct Rest {
    lock: Mutex<()>,
    woken: Condvar,
}

impl Rest {
    /// Wakes the receiver. Called after the receiver of the carrying link was woken.
    fn wake(&self) {
        drop(self.lock.lock());
        self.woken.notify_all();
    }
}
