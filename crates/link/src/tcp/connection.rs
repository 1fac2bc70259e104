//! A tcp link: buffers in front of a socket, and what to do while the socket is full or empty.
//!
//! The socket is never put into non-blocking mode, which it shares with whoever else holds it; every call says
//! DONTWAIT instead.

use std::{
    io::IoSlice,
    net::SocketAddr,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use outboard_wire::limits::{
    SEND_SPIN_NS_MAX, SENDS_CLOSE_MIN, SENDS_CLOSE_NS_MAX, TCP_SEND_BUFFER_BYTES,
};
use rustix::{
    event::{EventfdFlags, eventfd},
    net::{SendFlags, Shutdown, getpeername, getsockname, send, shutdown},
};

use super::{
    deframer::PREFIX_BYTES,
    liveness,
    outgoing::{Batch, Leaving, Outgoing, Write},
    receiving::Receiver,
    shared::Shared,
};
use crate::{Error, emulated::STAMP_BYTES, link::scatter};

/// A part at least this long is not copied into the send buffer first.
const DIRECT_BYTES_MIN: usize = 16 << 10;
/// Parts of one frame that go to the kernel in one call, the buffered bytes and the length included.
const PARTS_MAX: usize = 16;

/// What is in front of a frame that has a stamp.
const STAMPED_BYTES: usize = PREFIX_BYTES + STAMP_BYTES + PREFIX_BYTES;

/// Looks of a helper at what is posted between two at the clock.
const HELPER_LOOKS: u32 = 16;

/// An established tcp link.
pub struct Connection {
    sender: Sender,
    receiver: Receiver,
}

impl Connection {
    pub(crate) fn new(socket: OwnedFd) -> Result<Self, Error> {
        liveness::configure(&socket)?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let shared = Arc::new(Shared {
            socket,
            wake: eventfd(0, flags).map_err(Error::io("making an eventfd"))?,
            is_closed: AtomicBool::new(false),
            owner_pid: std::process::id(),
        });
        let writer = Writer {
            socket: Arc::clone(&shared),
            sends: 0,
            since: None,
        };
        Ok(Self {
            sender: Sender {
                batch: Batch::default(),
                reserved: 0,
                is_shut: false,
                outgoing: Arc::new(Outgoing::new(writer)),
                shared: Arc::clone(&shared),
            },
            receiver: Receiver::new(shared),
        })
    }

    pub(crate) fn addresses(&self) -> Option<(SocketAddr, SocketAddr)> {
        let socket = &self.sender.shared.socket;
        let ours = SocketAddr::try_from(getsockname(socket).ok()?).ok()?;
        let theirs = SocketAddr::try_from(getpeername(socket).ok()??).ok()?;
        Some((ours, theirs))
    }

    pub(crate) fn split(self) -> (Sender, Receiver) {
        (self.sender, self.receiver)
    }
}

/// The sending half of a tcp link.
pub struct Sender {
    /// Frames not posted yet.
    batch: Batch,
    reserved: usize,
    /// And there is no room in `batch` then.
    is_shut: bool,
    outgoing: Arc<Outgoing<Writer>>,
    shared: Arc<Shared>,
}

impl Sender {
    #[inline(always)]
    pub(crate) fn reserve(&mut self, len: usize) -> Result<&mut [u8], Error> {
        self.reserve_behind(PREFIX_BYTES, len)
    }

    /// As [`reserve`](Self::reserve), for [`commit_stamped`](Self::commit_stamped).
    pub(crate) fn reserve_stamped(&mut self, len: usize) -> Result<&mut [u8], Error> {
        self.reserve_behind(STAMPED_BYTES, len)
    }

    #[inline(always)]
    fn reserve_behind(&mut self, front: usize, len: usize) -> Result<&mut [u8], Error> {
        let need = front + len;
        if self.shared.is_closed() || self.batch.unused().len() < need {
            self.make_room(need)?;
        }
        self.reserved = len;
        let room = self.batch.unused().get_mut(front..need);
        // An error that is made to be thrown away costs each message ten instructions.
        match room {
            Some(room) => Ok(room),
            None => Err(Error::Misuse("a batch without room")),
        }
    }

    /// Room for a frame and its length, where there is none yet.
    #[cold]
    fn make_room(&mut self, need: usize) -> Result<(), Error> {
        if self.is_shut || self.shared.is_closed() {
            return Err(Error::Closed);
        }
        if !self.batch.is_empty() && self.batch.len() + need > TCP_SEND_BUFFER_BYTES {
            self.flush()?;
        }
        self.batch.room(need);
        Ok(())
    }

    #[inline(always)]
    pub(crate) fn commit(&mut self, len: usize) -> Result<(), Error> {
        self.add(len)?;
        self.flush_if_full()
    }

    /// The stamp as a frame of its own, and the frame behind it.
    pub(crate) fn commit_stamped(&mut self, stamp: u64, len: usize) -> Result<(), Error> {
        self.add_stamped(stamp, len)?;
        self.flush_if_full()
    }

    #[inline(always)]
    fn flush_if_full(&mut self) -> Result<(), Error> {
        if self.batch.len() >= TCP_SEND_BUFFER_BYTES {
            self.flush()?;
        }
        Ok(())
    }

    /// The first `len` bytes of the reservation, as a frame behind those in the batch.
    #[inline(always)]
    fn add(&mut self, len: usize) -> Result<(), Error> {
        if len == 0 || len > self.reserved {
            return Err(Error::Misuse("commit of more than was reserved"));
        }
        self.reserved = 0;
        let prefix = (len as u32).to_le_bytes();
        if let Some(room) = self.batch.unused().first_chunk_mut() {
            *room = prefix;
        }
        self.batch.add(PREFIX_BYTES + len);
        Ok(())
    }

    fn add_stamped(&mut self, stamp: u64, len: usize) -> Result<(), Error> {
        if len == 0 || len > self.reserved {
            return Err(Error::Misuse("commit of more than was reserved"));
        }
        self.reserved = 0;
        if let Some(room) = self.batch.unused().first_chunk_mut() {
            *room = stamped(stamp, len);
        }
        self.batch.add(STAMPED_BYTES + len);
        Ok(())
    }

    pub(crate) fn send(&mut self, parts: &[&[u8]], len: usize) -> Result<(), Error> {
        if !is_direct(parts, len) {
            scatter(self.reserve(len)?, parts);
            return self.commit(len);
        }
        self.send_direct(&(len as u32).to_le_bytes(), parts)
    }

    /// As [`send`](Self::send), behind a stamp.
    pub(crate) fn send_stamped(
        &mut self,
        stamp: u64,
        parts: &[&[u8]],
        len: usize,
    ) -> Result<(), Error> {
        if !is_direct(parts, len) {
            scatter(self.reserve_stamped(len)?, parts);
            return self.commit_stamped(stamp, len);
        }
        self.send_direct(&stamped(stamp, len), parts)
    }

    /// What is in front of a frame, and its parts from where they lie.
    fn send_direct(&mut self, front: &[u8], parts: &[&[u8]]) -> Result<(), Error> {
        if self.is_shut || self.shared.is_closed() {
            return Err(Error::Closed);
        }
        self.reserved = 0;
        self.post_batch()?;
        let result = self.outgoing.send_with(|writer, posted| {
            let mut slices = [IoSlice::new(&[]); PARTS_MAX];
            slices[0] = IoSlice::new(posted);
            slices[1] = IoSlice::new(front);
            for (slice, part) in slices[2..].iter_mut().zip(parts) {
                *slice = IoSlice::new(part);
            }
            let until = None;
            writer
                .socket
                .write_all(&mut slices[..parts.len() + 2], until)
        });
        self.after_write(result)
    }

    /// Posts what is buffered: it leaves with the next flush, of whichever thread.
    #[inline]
    pub(crate) fn post(&mut self) -> Result<(), Error> {
        if self.batch.is_empty() {
            return Ok(());
        }
        self.reserved = 0;
        match self.post_batch()? {
            ..=TCP_SEND_BUFFER_BYTES => Ok(()),
            // The peer does not keep up, and so this thread waits.
            _ => self.send_posted(),
        }
    }

    #[inline]
    pub(crate) fn flush(&mut self) -> Result<(), Error> {
        if self.batch.is_empty() {
            return Ok(());
        }
        self.reserved = 0;
        let result = match self.outgoing.begin(&mut self.batch, TCP_SEND_BUFFER_BYTES) {
            Ok(Some(leaving)) => leaving.send(),
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        self.after_write(result)
    }

    #[inline]
    fn post_batch(&mut self) -> Result<usize, Error> {
        let posted = self.outgoing.post(&mut self.batch);
        posted.inspect_err(|_| self.shut())
    }

    /// Waits until all that was posted has been sent.
    fn send_posted(&mut self) -> Result<(), Error> {
        let result = self.outgoing.send_with(Write::write);
        self.after_write(result)
    }

    /// After an error part of a frame may have gone: the link is broken and the rest must not follow later.
    fn after_write(&mut self, result: Result<(), Error>) -> Result<(), Error> {
        result.inspect_err(|_| self.shut())
    }

    /// Nothing follows: there is no room for it any more.
    #[cold]
    fn shut(&mut self) {
        self.is_shut = true;
        self.batch = Batch::default();
        self.reserved = 0;
    }

    pub(crate) fn shutdown(&mut self) {
        if self.is_shut || !self.shared.is_ours() {
            return;
        }
        // A peer that is gone does not miss it.
        let _ = self.post_batch().and_then(|_| self.send_posted());
        self.shut();
        self.outgoing.end();
        let _ = shutdown(&self.shared.socket, Shutdown::Write);
    }

    pub(crate) fn flusher(&self) -> Flusher {
        Flusher {
            outgoing: Arc::clone(&self.outgoing),
            shared: Arc::clone(&self.shared),
        }
    }

    pub(crate) fn closer(&self) -> Closer {
        Closer {
            outgoing: Arc::clone(&self.outgoing),
            shared: Arc::clone(&self.shared),
        }
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.shutdown();
        if self.shared.is_ours() {
            self.outgoing.end();
        }
    }
}

/// Whether a frame goes to the kernel from where its parts lie.
fn is_direct(parts: &[&[u8]], len: usize) -> bool {
    len >= DIRECT_BYTES_MIN && parts.len() + 2 <= PARTS_MAX
}

/// The length of a stamp, the stamp, and the length of the frame behind it.
fn stamped(stamp: u64, len: usize) -> [u8; STAMPED_BYTES] {
    let mut front = [0; STAMPED_BYTES];
    front[..PREFIX_BYTES].copy_from_slice(&(STAMP_BYTES as u32).to_le_bytes());
    front[PREFIX_BYTES..PREFIX_BYTES + STAMP_BYTES].copy_from_slice(&stamp.to_le_bytes());
    front[PREFIX_BYTES + STAMP_BYTES..].copy_from_slice(&(len as u32).to_le_bytes());
    front
}

/// Sends what was posted.
#[derive(Clone)]
pub struct Flusher {
    outgoing: Arc<Outgoing<Writer>>,
    shared: Arc<Shared>,
}

impl Flusher {
    #[inline]
    pub(crate) fn flush(&self) -> Result<(), Error> {
        self.outgoing.flush()
    }

    /// Commits, and settles where it comes in the order of what is sent; `sender` is that of this link.
    #[inline(always)]
    pub(crate) fn commit(
        &self,
        sender: &mut Sender,
        len: usize,
    ) -> Result<Option<Leaving<'_, Writer>>, Error> {
        debug_assert!(Arc::ptr_eq(&self.outgoing, &sender.outgoing));
        sender.add(len)?;
        let begun = self
            .outgoing
            .begin(&mut sender.batch, TCP_SEND_BUFFER_BYTES);
        begun.inspect_err(|_| sender.shut())
    }

    pub(crate) fn flush_until(&self, deadline: Instant) -> Result<(), Error> {
        if !self.shared.is_ours() {
            return Ok(());
        }
        let is_late = || {
            std::thread::yield_now();
            Instant::now() >= deadline
        };
        self.outgoing.try_send_with(is_late, |writer, posted| {
            let until = Some(deadline);
            writer.socket.write_all(&mut [IoSlice::new(posted)], until)
        })
    }

    pub(crate) fn helper(&self) -> Helper {
        Helper(Arc::clone(&self.outgoing))
    }
}

/// The work of a thread that sends what others post.
pub struct Helper(Arc<Outgoing<Writer>>);

impl Helper {
    pub(crate) fn run(self) {
        let longest = Duration::from_nanos(SEND_SPIN_NS_MAX);
        let (mut since, mut looks) = (Instant::now(), 0u32);
        self.0.help(|has_sent| {
            looks = looks.wrapping_add(1);
            if has_sent {
                since = Instant::now();
            } else if looks.is_multiple_of(HELPER_LOOKS) && since.elapsed() >= longest {
                return false;
            }
            std::hint::spin_loop();
            true
        });
    }
}

/// The socket, for the thread whose turn it is.
pub(crate) struct Writer {
    socket: Arc<Shared>,
    /// How often senders have sent by themselves since the clock was looked at, and when that was.
    sends: u32,
    since: Option<Instant>,
}

impl Write for Writer {
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        // Nearly always the socket takes it all. An error is met again below.
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let sent = send(&self.socket.socket, bytes, flags).unwrap_or(0);
        if sent == bytes.len() {
            return Ok(());
        }
        self.write_rest(&bytes[sent..])
    }

    fn wants_help(&mut self) -> bool {
        self.sends += 1;
        if self.sends < SENDS_CLOSE_MIN {
            return false;
        }
        // The clock is looked at once for so many sends.
        self.sends = 0;
        let now = Instant::now();
        let before = self.since.replace(now);
        let longest = Duration::from_nanos(SENDS_CLOSE_NS_MAX * u64::from(SENDS_CLOSE_MIN));
        before.is_some_and(|before| now - before < longest)
    }
}

impl Writer {
    #[cold]
    fn write_rest(&self, bytes: &[u8]) -> Result<(), Error> {
        self.socket.write_all(&mut [IoSlice::new(bytes)], None)
    }
}

/// Ends both halves.
#[derive(Clone)]
pub struct Closer {
    outgoing: Arc<Outgoing<Writer>>,
    shared: Arc<Shared>,
}

impl Closer {
    pub(crate) fn close(&self) {
        self.shared.is_closed.store(true, Ordering::Release);
        if self.shared.is_ours() {
            // Wakes whoever waits for the socket.
            let _ = shutdown(&self.shared.socket, Shutdown::Both);
            self.outgoing.end();
        }
        self.shared.wake();
    }
}
