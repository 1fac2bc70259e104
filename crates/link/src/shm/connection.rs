//! A shm link: frames in rings, and what a half does while there is nothing to read or no room to
//! write.
//!
//! In the ring a frame is eight bytes (its length in the lower half, 0 in the upper half), then its
//! bytes, padded to a multiple of eight. So frames and their first bytes are aligned to eight.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use outboard_wire::limits::{FRAME_BYTES_MAX, PLACED_BYTES_MIN, PLACED_HEAD_BYTES};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::{
    map::{Direction, Mapping, Reader, Ring, Writer},
    peer::{Inbox, Peer, TICK, receive_setup, send_setup},
    ring::{ALIGN, Consumer, Interrupt, Producer},
};
use crate::{
    Error, Wait,
    deadline::deadline_after,
    segment::{ChooseDestination, Destination, Tail},
    spin::Spin,
    stamp::STAMP_BYTES,
    sys,
};

const HEADER_BYTES: u64 = 8;
/// Bytes in the ring of a frame that is a stamp: [`Sender::commit_stamped`].
const STAMP_FOOTPRINT: u64 = HEADER_BYTES + STAMP_BYTES as u64;

/// An established shm link.
pub struct Connection {
    sender: Sender,
    receiver: Receiver,
}

/// State that both halves and their handles share.
struct Shared {
    peer: Peer,
    is_closed: AtomicBool,
    send_interrupt: Interrupt,
    receive_interrupt: Interrupt,
    outgoing: Ring,
    incoming: Ring,
}

impl Connection {
    /// Makes the server's side. `ring_bytes` is a power of two, at most what a client maps.
    pub(crate) fn serve(socket: OwnedFd, ring_bytes: usize) -> Result<Self, Error> {
        // If neither call works, only the socket shows the client's death.
        let client = sys::peer_pidfd(socket.as_fd()).ok().or_else(|| {
            let pid = sys::peer_credentials(socket.as_fd()).ok()?.pid;
            pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()
        });
        let (mapping, file) = Mapping::create(ring_bytes)?;
        let own = pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).ok();
        let own = own.as_ref().map(AsFd::as_fd);
        send_setup(&socket, ring_bytes as u64, file.as_fd(), own)?;
        Ok(Self::new(
            mapping,
            Peer::new(socket, client),
            Direction::ToClient,
            Direction::ToServer,
        ))
    }

    pub(crate) fn join(socket: OwnedFd, deadline: Instant) -> Result<Self, Error> {
        let setup = receive_setup(&socket, deadline)?;
        let mapping = Mapping::open(setup.file.as_fd(), setup.ring_bytes)?;
        Ok(Self::new(
            mapping,
            Peer::new(socket, setup.pidfd),
            Direction::ToServer,
            Direction::ToClient,
        ))
    }

    pub(super) fn new(
        mapping: Mapping,
        peer: Peer,
        outgoing: Direction,
        incoming: Direction,
    ) -> Self {
        let mapping = Arc::new(mapping);
        // SAFETY: the mapping is fresh, and this is its only writer.
        let writer = unsafe { mapping.writer(outgoing) };
        let reader = mapping.reader(incoming);
        let shared = Arc::new(Shared {
            peer,
            is_closed: AtomicBool::new(false),
            send_interrupt: Interrupt::new(),
            receive_interrupt: Interrupt::new(),
            outgoing: writer.ring().clone(),
            incoming: reader.ring().clone(),
        });
        let capacity = writer.ring().capacity();
        let sender = Sender {
            producer: Producer::new(writer.ring().clone(), capacity),
            writer,
            is_shut: false,
            spin: Spin::new(),
            shared: Arc::clone(&shared),
        };
        let receiver = Receiver {
            consumer: Consumer::new(reader.ring().clone(), capacity),
            reader,
            frame: Vec::new(),
            spin: Spin::new(),
            alive_at: Instant::now(),
            inbox: Inbox::default(),
            shared,
        };
        Self { sender, receiver }
    }

    pub(crate) fn split(self) -> (Sender, Receiver) {
        (self.sender, self.receiver)
    }
}

/// The sending half of a shm link.
pub struct Sender {
    producer: Producer<Ring>,
    writer: Writer,
    is_shut: bool,
    spin: Spin,
    shared: Arc<Shared>,
}

impl Sender {
    #[inline(always)]
    pub(crate) fn reserve(&mut self, len: usize) -> Result<NonNull<u8>, Error> {
        self.reserve_behind(0, len)
    }

    /// Like [`reserve`](Self::reserve), for [`commit_stamped`](Self::commit_stamped).
    pub(crate) fn reserve_stamped(&mut self, len: usize) -> Result<NonNull<u8>, Error> {
        self.reserve_behind(STAMP_FOOTPRINT, len)
    }

    #[inline(always)]
    fn reserve_behind(&mut self, front: u64, len: usize) -> Result<NonNull<u8>, Error> {
        let need = front + footprint(len);
        if self.is_shut || self.producer.is_refused() || self.shared.is_closed() {
            return Err(Error::Closed);
        }
        if !self.producer.has_room(need)? {
            self.wait_for_room(need)?;
        }
        let position = self.producer.position() + front + HEADER_BYTES;
        // The ring goes on after each of its addresses, and `has_room` found that the frame fits.
        Ok(self.writer.room(position))
    }

    #[inline(always)]
    pub(crate) fn commit(&mut self, len: usize) -> Result<(), Error> {
        self.writer.put_u64(self.producer.position(), len as u64);
        self.producer.publish(footprint(len));
        Ok(())
    }

    /// Publishes the stamp as a frame of its own, together with the frame after it.
    pub(crate) fn commit_stamped(&mut self, stamp: u64, len: usize) -> Result<(), Error> {
        let position = self.producer.position();
        self.writer.put_u64(position, STAMP_BYTES as u64);
        self.writer.put_u64(position + HEADER_BYTES, stamp);
        self.writer.put_u64(position + STAMP_FOOTPRINT, len as u64);
        self.producer.publish(STAMP_FOOTPRINT + footprint(len));
        Ok(())
    }

    /// Passes a file descriptor to a [`Receiver::recv_fd`] with the same `tag`. It is not ordered
    /// with frames.
    pub fn send_fd(&mut self, tag: u64, fd: BorrowedFd<'_>) -> Result<(), Error> {
        let shared = &self.shared;
        shared.peer.send_fd(tag, fd, || shared.is_closed())
    }

    pub(crate) fn shutdown(&mut self) {
        if self.shared.peer.is_ours() {
            self.producer.close();
        }
        self.is_shut = true;
    }

    pub(crate) fn closer(&self) -> Closer {
        Closer(Arc::clone(&self.shared))
    }

    #[cold]
    fn wait_for_room(&mut self, need: u64) -> Result<(), Error> {
        debug_assert!(need <= self.writer.ring().capacity());
        let start = Instant::now();
        let mut alive_at = start;
        let producer = &self.producer;
        self.spin.until(start, || producer.has_news());
        loop {
            if self.producer.has_room(need)? {
                self.spin.ended(start);
                return Ok(());
            }
            if self.shared.is_closed() || self.producer.is_refused() {
                return Err(Error::Closed);
            }
            if alive_at.elapsed() >= TICK {
                if self.shared.peer.is_gone() {
                    return Err(Error::Closed);
                }
                alive_at = Instant::now();
            }
            self.producer.sleep(&self.shared.send_interrupt, Some(TICK));
        }
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.shutdown();
    }
}

/// The receiving half of a shm link.
pub struct Receiver {
    consumer: Consumer<Ring>,
    reader: Reader,
    /// The frame handed out last, copied out of the ring.
    frame: Vec<u8>,
    spin: Spin,
    alive_at: Instant,
    inbox: Inbox,
    shared: Arc<Shared>,
}

impl Receiver {
    #[inline]
    pub(crate) fn recv(&mut self, wait: Wait) -> Result<Option<&[u8]>, Error> {
        let Some(len) = self.next_len(wait)? else {
            return Ok(None);
        };
        let position = self.consumer.position() + HEADER_BYTES;
        self.reader.copy(position, len, &mut self.frame);
        self.consumer.take(footprint(len));
        Ok(Some(&self.frame))
    }

    /// Takes the next frame out of the ring: the end of a long one to the memory that `place`
    /// chooses. Returns that memory; all other bytes are what [`taken`](Self::taken) returns.
    pub(crate) fn take_placed(
        &mut self,
        wait: Wait,
        place: &mut ChooseDestination<'_>,
    ) -> Result<Option<Option<Tail>>, Error> {
        let Some(len) = self.next_len(wait)? else {
            return Ok(None);
        };
        let position = self.consumer.position() + HEADER_BYTES;
        if len < PLACED_BYTES_MIN {
            self.reader.copy(position, len, &mut self.frame);
            self.consumer.take(footprint(len));
            return Ok(Some(None));
        }
        // The head of a frame with a place is copied once: the choice is about what it says,
        // whatever the peer writes there later.
        self.reader
            .copy(position, PLACED_HEAD_BYTES, &mut self.frame);
        let (at, tail) = match place(&self.frame, len) {
            Some(Destination { skip, mut memory }) => {
                let room = memory.room();
                if skip > PLACED_HEAD_BYTES || room.len() != len - skip {
                    return Err(Error::Misuse("a place that does not fit the frame"));
                }
                self.reader.copy_to(position + skip as u64, room);
                (skip, Some(Tail::Own(memory)))
            }
            None => {
                self.reader.copy(position, len, &mut self.frame);
                (len, None)
            }
        };
        self.frame.truncate(at);
        self.consumer.take(footprint(len));
        Ok(Some(tail))
    }

    /// Returns what was last taken out of the ring, without what went to other memory.
    pub(crate) fn taken(&self) -> &[u8] {
        &self.frame
    }

    /// Returns the length of the next frame, all of which is in the ring.
    #[inline]
    fn next_len(&mut self, wait: Wait) -> Result<Option<usize>, Error> {
        let mut available = self.consumer.available()?;
        if available == 0 {
            if !self.wait_for_frame(wait)? {
                return Ok(None);
            }
            available = self.consumer.available()?;
        }
        let len = self.reader.get_u64(self.consumer.position());
        if len == 0 || len > FRAME_BYTES_MAX as u64 {
            return Err(Error::PeerMisbehaved {
                what: "a frame of that length",
                got: len,
                allowed: FRAME_BYTES_MAX as u64,
            });
        }
        let len = len as usize;
        if footprint(len) > available {
            return Err(Error::PeerMisbehaved {
                what: "a frame longer than what was sent",
                got: footprint(len),
                allowed: available,
            });
        }
        Ok(Some(len))
    }

    /// Returns the file descriptor that the peer sent with `tag`; [`Error::TimedOut`] if it did not
    /// come within `wait`.
    pub fn recv_fd(&mut self, tag: u64, wait: Duration) -> Result<OwnedFd, Error> {
        let shared = &self.shared;
        let deadline = deadline_after(wait);
        self.inbox
            .receive(&shared.peer, tag, deadline, || shared.is_closed())
    }

    pub(crate) fn waker(&self) -> Waker {
        Waker(Arc::clone(&self.shared))
    }

    /// Returns true if a [`Waker`] has woken since a wait last ended; an error if this side was
    /// closed.
    pub(crate) fn take_wake(&mut self) -> Result<bool, Error> {
        match self.shared.receive_interrupt.take() {
            true if self.shared.is_closed() => Err(Error::Closed),
            is_woken => Ok(is_woken),
        }
    }

    /// Returns true if there is a frame; otherwise waits as `wait` says.
    #[cold]
    fn wait_for_frame(&mut self, wait: Wait) -> Result<bool, Error> {
        self.consumer.give_back();
        let deadline = match wait {
            Wait::Poll => return self.look_again(),
            Wait::Until(deadline) => Some(deadline),
            Wait::Forever => None,
        };
        let start = Instant::now();
        let consumer = &self.consumer;
        if self.spin.until(start, || consumer.has_news()) {
            return Ok(true);
        }
        loop {
            if self.look_again()? {
                self.spin.ended(start);
                return Ok(true);
            }
            if self.shared.receive_interrupt.take() {
                return if self.shared.is_closed() {
                    Err(Error::Closed)
                } else {
                    Ok(false)
                };
            }
            let left = sys::left(deadline).unwrap_or(TICK);
            if left.is_zero() {
                return Ok(false);
            }
            let interrupt = &self.shared.receive_interrupt;
            self.consumer.sleep(interrupt, Some(left.min(TICK)));
        }
    }

    /// Returns true if there is a frame, and an error if there will never be one.
    fn look_again(&mut self) -> Result<bool, Error> {
        // The order matters: what was sent before the end must be found after the end was seen.
        let is_finished =
            self.consumer.is_finished() || self.shared.is_closed() || self.is_peer_gone();
        if self.consumer.available()? > 0 {
            return Ok(true);
        }
        if is_finished {
            return Err(Error::Closed);
        }
        Ok(false)
    }

    /// Asks the kernel, once per tick.
    fn is_peer_gone(&mut self) -> bool {
        if self.alive_at.elapsed() < TICK {
            return false;
        }
        if self.shared.peer.is_gone() {
            return true;
        }
        self.alive_at = Instant::now();
        false
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        if self.shared.peer.is_ours() {
            self.consumer.close();
        }
    }
}

/// Wakes a blocked [`Receiver`].
#[derive(Clone)]
pub struct Waker(Arc<Shared>);

impl Waker {
    pub(crate) fn wake(&self) {
        self.0.receive_interrupt.raise();
        self.0.incoming.wake_consumer();
    }
}

/// Ends both halves.
#[derive(Clone)]
pub struct Closer(Arc<Shared>);

impl Closer {
    pub(crate) fn close(&self) {
        self.0.is_closed.store(true, Ordering::Release);
        if self.0.peer.is_ours() {
            self.0.outgoing.close_producer();
            self.0.incoming.close_consumer();
        }
        self.0.send_interrupt.raise();
        self.0.outgoing.wake_producer();
        self.0.receive_interrupt.raise();
        self.0.incoming.wake_consumer();
    }
}

impl Shared {
    #[inline]
    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }
}

/// Bytes of a frame in the ring.
#[inline]
fn footprint(len: usize) -> u64 {
    // `next_multiple_of` also looks for overflow, in three more instructions.
    (HEADER_BYTES + len as u64 + (ALIGN - 1)) & !(ALIGN - 1)
}
