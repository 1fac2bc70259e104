//! The interface of every link: a [`Sender`] and a [`Receiver`], each an enum of the kinds.
//!
//! Every link can reserve, commit, send, flush and receive frames. What only one kind can do is
//! asked for, and `None` says that this link cannot: [`Sender::fds`], [`Sender::remote_memory`],
//! [`Sender::emulation`], [`Receiver::fds`], [`Receiver::remote_memory`],
//! [`Link::data_connections`].

use std::{fmt, ops::DerefMut, ptr::NonNull, time::Instant};

use outboard_wire::{
    EncodeError, Room,
    limits::{FRAME_BYTES_MAX, PLACED_BYTES_MIN},
    network::Network,
};

use crate::{
    copying::{self, CopyHelper},
    credentials::Way,
    deadline::Wait,
    emulated::{self, Attachment, Carrier, End},
    error::Error,
    handles::{Closer, CloserKind, Waker, WakerKind},
    kind::LinkKind,
    rdma,
    segment::{ChooseDestination, Frame},
    shm, spin, tcp,
};

/// An established link, which the caller [`split`](Link::split)s.
#[non_exhaustive]
pub enum Link {
    Shm(shm::Connection),
    Tcp(tcp::Connection),
    Rdma(Box<rdma::Connection>),
    Emulated(emulated::Connection),
}

impl Link {
    /// Puts an emulated `network` between the link's ends; the peer must do so at its end.
    pub fn emulated(self, network: &Network, end: End) -> Result<Link, Error> {
        self.attached(&Attachment::new(network, end))
    }

    /// Puts the network of this attachment between the link's ends; the peer must do so at its end,
    /// with an attachment that has the same links.
    pub fn attached(self, attachment: &Attachment) -> Result<Link, Error> {
        let carrier = match self {
            Self::Shm(link) => Carrier::Shm(link),
            Self::Tcp(link) => Carrier::Tcp(link),
            link => return Err(Error::lacks("emulating a network", link.kind())),
        };
        let link = emulated::Connection::new(carrier, attachment);
        Ok(Link::Emulated(link))
    }

    pub fn kind(&self) -> LinkKind {
        match self {
            Self::Shm(_) => LinkKind::Shm,
            Self::Tcp(_) => LinkKind::Tcp,
            Self::Rdma(_) => LinkKind::Rdma,
            Self::Emulated(_) => LinkKind::Emulated,
        }
    }

    /// Returns the kind that moves the bytes: the link's own, or the one below an emulated network.
    pub fn carrier(&self) -> LinkKind {
        match self {
            Self::Emulated(link) => link.carrier(),
            link => link.kind(),
        }
    }

    /// Returns the way to the peer if the session can have data connections: over tcp.
    pub fn data_connections(&self) -> Option<Way> {
        match self {
            Self::Shm(_) | Self::Rdma(_) => None,
            Self::Tcp(link) => link.way(),
            Self::Emulated(link) => link.way(),
        }
    }

    /// Returns this end of the emulated network, for further links of the session.
    pub fn attachment(&self) -> Option<&Attachment> {
        match self {
            Self::Emulated(link) => Some(link.attachment()),
            Self::Shm(_) | Self::Tcp(_) | Self::Rdma(_) => None,
        }
    }

    /// Returns the helpers with which this process should copy long frames, if the link copies them
    /// all: with an emulated network over shm. The process has them for all its links, so later
    /// calls return none.
    pub fn copy_helpers(&self) -> impl Iterator<Item = CopyHelper> + use<> {
        let copies_all = (self.kind(), self.carrier()) == (LinkKind::Emulated, LinkKind::Shm);
        let helpers = copies_all.then(CopyHelper::all);
        helpers.into_iter().flatten()
    }

    /// Splits the link into its halves, which may be used by different threads.
    pub fn split(self) -> (Sender, Receiver) {
        match self {
            Self::Shm(link) => {
                let (sender, receiver) = link.split();
                (Sender::Shm(sender), Receiver::Shm(receiver))
            }
            Self::Tcp(link) => {
                let (sender, receiver) = link.split();
                (Sender::Tcp(sender), Receiver::Tcp(receiver))
            }
            Self::Rdma(link) => {
                let (sender, receiver) = link.split();
                (Sender::Rdma(sender), Receiver::Rdma(receiver))
            }
            Self::Emulated(link) => (
                Sender::Emulated(link.sender),
                Receiver::Emulated(link.receiver),
            ),
        }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Link({})", self.kind())
    }
}

/// The sending half of a link. Dropping it shuts it down.
///
/// `repr(u8)` gives the enum a tag of its own. Every message reads it several times, and working it
/// out from a field's values costs more.
#[non_exhaustive]
#[repr(u8)]
pub enum Sender {
    Shm(shm::Sender),
    Tcp(tcp::Sender),
    Rdma(Box<rdma::Sender>),
    Emulated(Box<emulated::Sender>),
}

impl Sender {
    /// Returns room for a frame of up to `len` bytes, 1 to [`FRAME_BYTES_MAX`]. Blocks while the
    /// peer does not keep up, for as long as the peer lives.
    #[inline(always)]
    pub fn reserve(&mut self, len: usize) -> Result<Reservation<&mut Self>, Error> {
        Reservation::new(self, len)
    }

    /// Returns the start of `len` contiguous bytes for a frame, writable until the sender is used
    /// again.
    #[inline(always)]
    pub(crate) fn room(&mut self, len: usize) -> Result<NonNull<u8>, Error> {
        if len > FRAME_BYTES_MAX {
            let max = FRAME_BYTES_MAX;
            return Err(Error::FrameTooLarge { len, max });
        }
        if len == 0 {
            return Err(Error::Misuse("a frame of no bytes"));
        }
        match self {
            Self::Shm(sender) => sender.reserve(len),
            Self::Tcp(sender) => sender.reserve(len).map(start),
            other => other.reserve_elsewhere(len),
        }
    }

    /// Publishes the first `len` bytes of the room as a frame: at least 1, and no more than it has.
    #[inline(always)]
    pub(crate) fn commit(&mut self, len: usize) -> Result<(), Error> {
        match self {
            Self::Shm(sender) => sender.commit(len),
            Self::Tcp(sender) => sender.commit(len),
            other => other.commit_elsewhere(len),
        }
    }

    /// Sends one frame made of `parts`, for data that is already in memory: over tcp, long parts go
    /// to the kernel without a copy.
    pub fn send(&mut self, parts: &[&[u8]]) -> Result<(), Error> {
        let len = parts.iter().map(|part| part.len()).sum();
        match (&mut *self, len) {
            (Self::Tcp(sender), 1..=FRAME_BYTES_MAX) => return sender.send(parts, len),
            (Self::Emulated(sender), 1..=FRAME_BYTES_MAX) => {
                if let Some(sent) = sender.send_over_tcp(parts, len) {
                    return sent;
                }
            }
            (Self::Rdma(sender), PLACED_BYTES_MIN..=FRAME_BYTES_MAX) => {
                if let Some((data, head)) = parts.split_last()
                    && data.len() >= PLACED_BYTES_MIN
                    && (1..=rdma::BULK_HEAD_BYTES_MAX).contains(&(len - data.len()))
                {
                    return sender.send_long(head, rdma::Bulk::copied(data)).map(drop);
                }
            }
            _ => {}
        }
        let mut frame = self.reserve(len)?;
        for part in parts {
            let to = frame
                .take(part.len())
                .map_err(|_| Error::Misuse("parts longer than their sum"))?;
            // SAFETY: `take` found room for the part. They cannot overlap, since no slice of the
            // room exists.
            unsafe { copying::copy(part.as_ptr(), to, part.len()) };
        }
        frame.commit()
    }

    /// Sends everything buffered. Blocks while the peer does not keep up, for as long as the peer
    /// lives.
    #[inline(always)]
    pub fn flush(&mut self) -> Result<(), Error> {
        match self {
            Self::Shm(_) => Ok(()),
            Self::Tcp(sender) => sender.flush(),
            other => other.flush_elsewhere(),
        }
    }

    /// Reserves over other links than shm and tcp. Kept apart, since inlining it would cost
    /// messages over shm and tcp some instructions.
    #[cold]
    fn reserve_elsewhere(&mut self, len: usize) -> Result<NonNull<u8>, Error> {
        match self {
            Self::Shm(sender) => sender.reserve(len),
            Self::Tcp(sender) => sender.reserve(len).map(start),
            Self::Rdma(sender) => sender.reserve(len).map(start),
            Self::Emulated(sender) => sender.reserve(len),
        }
    }

    #[cold]
    fn commit_elsewhere(&mut self, len: usize) -> Result<(), Error> {
        match self {
            Self::Shm(sender) => sender.commit(len),
            Self::Tcp(sender) => sender.commit(len),
            Self::Rdma(sender) => sender.commit(len),
            Self::Emulated(sender) => sender.commit(len),
        }
    }

    #[cold]
    fn send_elsewhere(&mut self, len: usize) -> Result<(), Error> {
        self.commit_elsewhere(len)?;
        self.flush_elsewhere()
    }

    #[cold]
    fn flush_elsewhere(&mut self) -> Result<(), Error> {
        match self {
            Self::Shm(_) => Ok(()),
            Self::Tcp(sender) => sender.flush(),
            Self::Rdma(sender) => sender.flush(),
            Self::Emulated(sender) => sender.flush(),
        }
    }

    /// Makes what is buffered visible to the next flush, by [`flush`](Sender::flush) or a
    /// [`Flusher`]. Blocks while too much waits to be sent.
    #[inline]
    pub fn post(&mut self) -> Result<(), Error> {
        match self {
            Self::Shm(_) => Ok(()),
            Self::Tcp(sender) => sender.post(),
            // Over rdma posting is sending.
            Self::Rdma(sender) => sender.flush(),
            Self::Emulated(sender) => sender.post(),
        }
    }

    /// Returns a handle with which any thread sends what was [posted](Sender::post), without the
    /// sender.
    pub fn flusher(&self) -> Flusher {
        match self {
            Self::Shm(_) | Self::Rdma(_) => Flusher(None),
            Self::Tcp(sender) => Flusher(Some(sender.flusher())),
            Self::Emulated(sender) => Flusher(sender.flusher()),
        }
    }

    /// Tells the peer that no more frames come; all frames sent before are delivered first.
    pub fn shutdown(&mut self) {
        match self {
            Self::Shm(sender) => sender.shutdown(),
            Self::Tcp(sender) => sender.shutdown(),
            Self::Rdma(sender) => sender.shutdown(),
            Self::Emulated(sender) => sender.shutdown(),
        }
    }

    /// Returns a handle with which any thread ends this side of the link: blocked calls of both
    /// halves return [`Error::Closed`].
    pub fn closer(&self) -> Closer {
        match self {
            Self::Shm(sender) => Closer(CloserKind::Shm(sender.closer())),
            Self::Tcp(sender) => Closer(CloserKind::Tcp(sender.closer())),
            Self::Rdma(sender) => Closer(CloserKind::Rdma(sender.closer())),
            Self::Emulated(sender) => Closer(CloserKind::Emulated(sender.closer())),
        }
    }

    /// Returns the half that passes file descriptors, if both processes are on one machine: over
    /// shm.
    pub fn fds(&mut self) -> Option<&mut shm::Sender> {
        match self {
            Self::Shm(sender) => Some(sender),
            Self::Tcp(_) | Self::Rdma(_) | Self::Emulated(_) => None,
        }
    }

    /// Returns the half that reads and writes memory of both sides without a copy, if an adapter
    /// can: over rdma.
    pub fn remote_memory(&mut self) -> Option<&mut rdma::Sender> {
        match self {
            Self::Rdma(sender) => Some(sender),
            Self::Shm(_) | Self::Tcp(_) | Self::Emulated(_) => None,
        }
    }

    /// Returns the half that delays frames, if a network is emulated.
    pub fn emulation(&mut self) -> Option<&mut emulated::Sender> {
        match self {
            Self::Emulated(sender) => Some(sender),
            Self::Shm(_) | Self::Tcp(_) | Self::Rdma(_) => None,
        }
    }

    pub fn kind(&self) -> LinkKind {
        match self {
            Self::Shm(_) => LinkKind::Shm,
            Self::Tcp(_) => LinkKind::Tcp,
            Self::Rdma(_) => LinkKind::Rdma,
            Self::Emulated(_) => LinkKind::Emulated,
        }
    }

    /// See [`Link::carrier`].
    pub fn carrier(&self) -> LinkKind {
        match self {
            Self::Emulated(sender) => sender.carrier(),
            sender => sender.kind(),
        }
    }
}

/// Returns the start of room in memory of this process.
#[inline(always)]
fn start(room: &mut [u8]) -> NonNull<u8> {
    NonNull::from(room).cast()
}

/// Exclusive use of a sender: a reference, or a lock's guard.
///
/// # Safety
///
/// It stands for the same sender for as long as it lives, and nothing else uses that sender.
pub unsafe trait Exclusive: DerefMut<Target = Sender> {}

// SAFETY: an exclusive reference.
unsafe impl Exclusive for &mut Sender {}
// SAFETY: a guard stands for what its lock protects, and holds the lock.
unsafe impl Exclusive for parking_lot::MutexGuard<'_, Sender> {}
// SAFETY: a guard stands for what its lock protects, and holds the lock.
unsafe impl Exclusive for std::sync::MutexGuard<'_, Sender> {}

/// Room for one frame of a sender. [`commit`](Self::commit) publishes what was written; a
/// reservation that is dropped leaves no trace.
///
/// Over shm the room is memory that the peer can change at any time, so it is never a slice: bytes
/// are copied into it through a pointer, and nothing reads it.
pub struct Reservation<S> {
    sender: S,
    start: NonNull<u8>,
    /// Bytes written, at most `len`.
    written: usize,
    len: usize,
}

impl<S: Exclusive> Reservation<S> {
    /// Reserves room for a frame of `len` bytes; see [`Sender::reserve`].
    #[inline(always)]
    pub fn new(mut sender: S, len: usize) -> Result<Self, Error> {
        let start = sender.room(len)?;
        Ok(Self {
            sender,
            start,
            written: 0,
            len,
        })
    }

    /// Publishes the bytes written as a frame. Over shm the peer sees it at once; over tcp it is
    /// sent by [`Sender::flush`], or earlier if much is buffered.
    #[inline(always)]
    pub fn commit(self) -> Result<(), Error> {
        let (mut sender, len) = self.finish()?;
        sender.commit(len)
    }

    /// Returns the sender, and the length of the frame to commit.
    #[inline(always)]
    pub(crate) fn finish(self) -> Result<(S, usize), Error> {
        match self.written {
            0 => Err(Error::Misuse("a frame of no bytes")),
            written => Ok((self.sender, written)),
        }
    }
}

impl<S: Exclusive> Room for Reservation<S> {
    #[inline(always)]
    fn put(&mut self, bytes: &[u8]) -> Result<(), EncodeError> {
        let to = self.take(bytes.len())?;
        // SAFETY: `take` found room for the bytes. They cannot overlap it, since no slice of the
        // room exists.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    #[inline(always)]
    fn take(&mut self, len: usize) -> Result<*mut u8, EncodeError> {
        let left = self.left();
        if len > left {
            return Err(EncodeError::NoRoom { wanted: len, left });
        }
        // SAFETY: the sender's room has `self.len` writable bytes until the sender is used again,
        // which this object keeps, and `written` is at most that.
        let to = unsafe { self.start.add(self.written) };
        self.written += len;
        Ok(to.as_ptr())
    }

    #[inline(always)]
    fn left(&self) -> usize {
        self.len - self.written
    }
}

/// Sends frames that were posted.
#[derive(Clone)]
pub struct Flusher(Option<tcp::Flusher>);

impl Flusher {
    /// Sends what was posted, or leaves it to a thread that is sending already. An error that the
    /// other thread meets is returned by the next [`Sender::post`].
    #[inline]
    pub fn flush(&self) -> Result<(), Error> {
        self.0.as_ref().map_or(Ok(()), tcp::Flusher::flush)
    }

    /// Does [`Reservation::commit`] and [`Sender::flush`] for a frame of the same link, and unlocks
    /// the sender as soon as the frame has its place in the order: other threads need not wait for
    /// the kernel.
    #[inline(always)]
    pub fn commit(&self, frame: Reservation<impl Exclusive>) -> Result<(), Error> {
        let (mut sender, len) = frame.finish()?;
        match &mut *sender {
            Sender::Shm(shm) => shm.commit(len),
            _ => self.commit_elsewhere(sender, len),
        }
    }

    /// Commits over other links than shm. Kept out of line: it is too long to be part of every call
    /// that sends.
    #[inline(never)]
    fn commit_elsewhere(&self, mut sender: impl Exclusive, len: usize) -> Result<(), Error> {
        let tcp = match &mut *sender {
            Sender::Tcp(tcp) => tcp,
            other => return other.send_elsewhere(len),
        };
        let Some(flusher) = &self.0 else {
            return Err(Error::Misuse("a flusher of another link"));
        };
        let leaving = flusher.commit(tcp, len)?;
        drop(sender);
        match leaving {
            Some(leaving) => leaving.send(),
            None => Ok(()),
        }
    }

    /// Adds a frame of the same link to what leaves with the next one over tcp, or with the next
    /// [`Sender::flush`]. Other links send it at once.
    #[inline(always)]
    pub fn commit_resting(&self, frame: Reservation<impl Exclusive>) -> Result<(), Error> {
        let (mut sender, len) = frame.finish()?;
        match &mut *sender {
            Sender::Shm(shm) => shm.commit(len),
            Sender::Tcp(tcp) => tcp.commit(len),
            _ => self.commit_elsewhere(sender, len),
        }
    }

    /// Waits, until `deadline` at most, until the kernel has everything that was posted.
    pub fn flush_until(&self, deadline: Instant) -> Result<(), Error> {
        self.0
            .as_ref()
            .map_or(Ok(()), |flusher| flusher.flush_until(deadline))
    }

    /// Returns a [`Helper`] for a thread of the caller, which makes sending cheap for all others,
    /// if this link gains by it and the machine has a core for it. One thread per link.
    pub fn helper(&self) -> Option<Helper> {
        self.any_helper().filter(|_| spin::has_cores_to_spare())
    }

    /// Like [`helper`](Self::helper), whatever the machine.
    pub(crate) fn any_helper(&self) -> Option<Helper> {
        self.0.as_ref().map(|flusher| Helper(flusher.helper()))
    }
}

/// Sends for threads that send in quick succession. They wake it; it then looks for what they post,
/// and sleeps again after [`SEND_SPIN_NS_MAX`](outboard_wire::limits::SEND_SPIN_NS_MAX) without
/// any.
pub struct Helper(tcp::Helper);

impl Helper {
    /// Sends until the link ends.
    pub fn run(self) {
        self.0.run();
    }
}

/// The receiving half of a link.
#[non_exhaustive]
pub enum Receiver {
    Shm(shm::Receiver),
    Tcp(tcp::Receiver),
    Rdma(Box<rdma::Receiver>),
    Emulated(Box<emulated::Receiver>),
}

impl Receiver {
    /// Returns the next frame, valid until the next call; `None` if `wait` ran out or a [`Waker`]
    /// woke it. Returns [`Error::Closed`] once the peer is gone and everything that it sent was
    /// delivered.
    /// The peer can no longer change its bytes.
    #[inline]
    pub fn recv(&mut self, wait: Wait) -> Result<Option<&[u8]>, Error> {
        match self {
            Self::Shm(receiver) => receiver.recv(wait),
            Self::Tcp(receiver) => receiver.recv(wait),
            Self::Rdma(receiver) => receiver.recv(wait),
            Self::Emulated(receiver) => receiver.recv(wait),
        }
    }

    /// Acknowledges what has arrived, if the link leaves that to the next frame: over tcp, where an
    /// acknowledgement made by [`recv`](Receiver::recv) delays the frame that it returns.
    pub fn acknowledge(&self) {
        match self {
            Self::Tcp(receiver) => receiver.acknowledge(),
            Self::Shm(_) | Self::Rdma(_) | Self::Emulated(_) => {}
        }
    }

    /// Like [`recv`](Receiver::recv), but a long frame over tcp is received straight into the
    /// memory that `place` returns. Over shm and rdma frames are copied out of the ring, or their
    /// data is in [granted](rdma::Receiver::grant) memory, and `place` is never called.
    ///
    /// A frame that has begun to be placed goes on there in the next call, whatever that call's
    /// `place`. Over an emulated network, also over shm, `place` is called for later frames too,
    /// which are received before their time.
    #[inline]
    pub fn recv_placed(
        &mut self,
        wait: Wait,
        place: &mut ChooseDestination<'_>,
    ) -> Result<Option<Frame<'_>>, Error> {
        match self {
            Self::Shm(receiver) => {
                let frame = receiver.recv(wait)?;
                Ok(frame.map(|head| Frame { head, tail: None }))
            }
            Self::Tcp(receiver) => receiver.recv_placed(wait, place),
            Self::Rdma(receiver) => receiver.recv_placed(wait),
            Self::Emulated(receiver) => receiver.recv_placed(wait, place),
        }
    }

    /// Returns the half that receives file descriptors: over shm.
    pub fn fds(&mut self) -> Option<&mut shm::Receiver> {
        match self {
            Self::Shm(receiver) => Some(receiver),
            Self::Tcp(_) | Self::Rdma(_) | Self::Emulated(_) => None,
        }
    }

    /// Returns the half that grants memory to the peer's adapter: over rdma.
    pub fn remote_memory(&mut self) -> Option<&mut rdma::Receiver> {
        match self {
            Self::Rdma(receiver) => Some(receiver),
            Self::Shm(_) | Self::Tcp(_) | Self::Emulated(_) => None,
        }
    }

    /// Returns a handle with which any thread makes a blocked [`recv`](Receiver::recv), or else the
    /// next that would block, return `None`.
    pub fn waker(&self) -> Waker {
        match self {
            Self::Shm(receiver) => Waker(WakerKind::Shm(receiver.waker())),
            Self::Tcp(receiver) => Waker(WakerKind::Tcp(receiver.waker())),
            Self::Rdma(receiver) => Waker(WakerKind::Rdma(receiver.waker())),
            Self::Emulated(receiver) => Waker(WakerKind::Emulated(receiver.waker())),
        }
    }

    pub fn kind(&self) -> LinkKind {
        match self {
            Self::Shm(_) => LinkKind::Shm,
            Self::Tcp(_) => LinkKind::Tcp,
            Self::Rdma(_) => LinkKind::Rdma,
            Self::Emulated(_) => LinkKind::Emulated,
        }
    }

    /// See [`Link::carrier`].
    pub fn carrier(&self) -> LinkKind {
        match self {
            Self::Emulated(receiver) => receiver.carrier(),
            receiver => receiver.kind(),
        }
    }
}
