//! A tcp link: buffers before a socket, and what a half does while the socket is full or empty.
//!
//! The socket is never put into non-blocking mode, which all holders of the socket share; every
//! call says DONTWAIT instead.

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
use rustix::net::{SendFlags, Shutdown, getpeername, send, shutdown};

use super::{
    deframer::PREFIX_BYTES,
    kernel::{self, Opening},
    liveness,
    outgoing::{Batch, Leaving, Outgoing, Write},
    receiving::Receiver,
    sealing::{Seal, Sealing},
    shared::Shared,
};
use crate::{
    Error, KernelTls, Way, credentials::Credentials, kernel_tls, parts::scatter, socket::Records,
    stamp::STAMP_BYTES, wake::WakeUp,
};

/// Length from which a part is not copied into the send buffer first.
const DIRECT_BYTES_MIN: usize = 16 << 10;
/// Parts of one frame that go to the kernel in one call, including the buffered bytes and the
/// length.
const PARTS_MAX: usize = 16;

/// Bytes before a frame that has a stamp.
const STAMPED_BYTES: usize = PREFIX_BYTES + STAMP_BYTES + PREFIX_BYTES;

/// Looks of a helper for posted bytes between two looks at the clock.
const HELPER_LOOKS: u32 = 16;

/// An established tcp link.
pub struct Connection {
    sender: Sender,
    receiver: Receiver,
    /// A client's secrets, for its data connections.
    credentials: Credentials,
}

impl Connection {
    pub(crate) fn new(socket: OwnedFd, records: Option<Records>) -> Result<Self, Error> {
        liveness::configure(&socket)?;
        let shared = Arc::new(Shared {
            socket,
            wake: WakeUp::new()?,
            is_closed: AtomicBool::new(false),
            owner_pid: std::process::id(),
        });
        let in_kernel = records.is_some() && kernel_tls() == KernelTls::Used;
        Ok(Self::over(shared, records, in_kernel))
    }

    fn over(shared: Arc<Shared>, records: Option<Records>, in_kernel: bool) -> Self {
        let (seal, opening) = match records {
            None => (Seal::Open, Opening::Open),
            Some(records) if in_kernel => kernel::hand_over(&shared.socket, records),
            Some((sealer, opener)) => (
                Seal::Own(Sealing::new(sealer)),
                Opening::Own(Box::new(opener)),
            ),
        };
        let writer = Writer {
            socket: Arc::clone(&shared),
            seal,
            sends: 0,
            since: None,
        };
        Self {
            sender: Sender {
                batch: Batch::default(),
                is_shut: false,
                outgoing: Arc::new(Outgoing::new(writer)),
                shared: Arc::clone(&shared),
            },
            receiver: Receiver::new(shared, opening),
            credentials: Credentials::default(),
        }
    }

    /// Encrypts what follows, as if a handshake had come before, here or in the kernel.
    #[cfg(feature = "conformance")]
    pub(crate) fn encrypted(mut self, records: Records, in_kernel: bool) -> Self {
        // The old half ends without a word to the peer.
        self.sender.is_shut = true;
        Self::over(Arc::clone(&self.sender.shared), Some(records), in_kernel)
    }

    /// Returns whether the kernel encrypts both directions.
    #[cfg(feature = "conformance")]
    pub(crate) fn is_in_kernel(&self) -> bool {
        let mut is_sealing = false;
        // Nothing is posted before the first frame, so nothing can fail.
        let _ = self.sender.outgoing.send_with(|writer, _| {
            is_sealing = matches!(writer.seal, Seal::Kernel(_));
            Ok(())
        });
        is_sealing && self.receiver.is_in_kernel()
    }

    pub(crate) fn use_credentials(&mut self, credentials: Credentials) {
        self.credentials = credentials;
    }

    /// Returns the way to the peer, if it still is there.
    pub(crate) fn way(&self) -> Option<Way> {
        let peer = getpeername(&self.sender.shared.socket).ok()??;
        Some(Way {
            address: SocketAddr::try_from(peer).ok()?,
            credentials: self.credentials.clone(),
        })
    }

    pub(crate) fn split(self) -> (Sender, Receiver) {
        (self.sender, self.receiver)
    }
}

/// The sending half of a tcp link.
pub struct Sender {
    /// Frames not posted yet.
    batch: Batch,
    /// True after an error or a shutdown; `batch` then has no room.
    is_shut: bool,
    outgoing: Arc<Outgoing<Writer>>,
    shared: Arc<Shared>,
}

impl Sender {
    #[inline(always)]
    pub(crate) fn reserve(&mut self, len: usize) -> Result<&mut [u8], Error> {
        self.reserve_behind(PREFIX_BYTES, len)
    }

    /// Like [`reserve`](Self::reserve), for [`commit_stamped`](Self::commit_stamped).
    pub(crate) fn reserve_stamped(&mut self, len: usize) -> Result<&mut [u8], Error> {
        self.reserve_behind(STAMPED_BYTES, len)
    }

    #[inline(always)]
    fn reserve_behind(&mut self, front: usize, len: usize) -> Result<&mut [u8], Error> {
        let need = front + len;
        if self.shared.is_closed() || self.batch.unused().len() < need {
            self.make_room(need)?;
        }
        let room = self.batch.unused().get_mut(front..need);
        // Not `ok_or`: an error that is made only to be dropped costs each message ten
        // instructions.
        match room {
            Some(room) => Ok(room),
            None => Err(Error::Misuse("a batch without room")),
        }
    }

    /// Makes room for a frame and its length if there is none.
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
        self.add(len);
        self.flush_if_full()
    }

    /// Commits the stamp as a frame of its own, and the frame after it.
    pub(crate) fn commit_stamped(&mut self, stamp: u64, len: usize) -> Result<(), Error> {
        self.add_stamped(stamp, len);
        self.flush_if_full()
    }

    #[inline(always)]
    fn flush_if_full(&mut self) -> Result<(), Error> {
        if self.batch.len() >= TCP_SEND_BUFFER_BYTES {
            self.flush()?;
        }
        Ok(())
    }

    /// Adds the first `len` bytes of the reservation to the batch as its last frame.
    #[inline(always)]
    fn add(&mut self, len: usize) {
        self.batch.add_after((len as u32).to_le_bytes(), len);
    }

    fn add_stamped(&mut self, stamp: u64, len: usize) {
        self.batch.add_after(stamped(stamp, len), len);
    }

    pub(crate) fn send(&mut self, parts: &[&[u8]], len: usize) -> Result<(), Error> {
        if !is_direct(parts, len) {
            scatter(self.reserve(len)?, parts);
            return self.commit(len);
        }
        self.send_direct(&(len as u32).to_le_bytes(), parts)
    }

    /// Like [`send`](Self::send), after a stamp.
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

    /// Sends `front`, then the frame's parts without a copy.
    fn send_direct(&mut self, front: &[u8], parts: &[&[u8]]) -> Result<(), Error> {
        if self.is_shut || self.shared.is_closed() {
            return Err(Error::Closed);
        }
        self.post_batch()?;
        let result = self.outgoing.send_with(|writer, posted| {
            let mut slices = [IoSlice::new(&[]); PARTS_MAX];
            slices[0] = IoSlice::new(posted);
            slices[1] = IoSlice::new(front);
            for (slice, part) in slices[2..].iter_mut().zip(parts) {
                *slice = IoSlice::new(part);
            }
            let until = None;
            writer.write_all(&mut slices[..parts.len() + 2], until)
        });
        self.after_write(result)
    }

    /// Posts what is buffered: the next flush of any thread sends it.
    #[inline]
    pub(crate) fn post(&mut self) -> Result<(), Error> {
        if self.batch.is_empty() {
            return Ok(());
        }
        match self.post_batch()? {
            ..=TCP_SEND_BUFFER_BYTES => Ok(()),
            // The peer does not keep up, so this thread waits.
            _ => self.send_posted(),
        }
    }

    #[inline]
    pub(crate) fn flush(&mut self) -> Result<(), Error> {
        if self.batch.is_empty() {
            return Ok(());
        }
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

    /// Waits until everything posted has been sent.
    fn send_posted(&mut self) -> Result<(), Error> {
        let result = self.outgoing.send_with(Write::write);
        self.after_write(result)
    }

    /// After an error part of a frame may have been sent: the link is broken and the rest must not
    /// follow.
    fn after_write(&mut self, result: Result<(), Error>) -> Result<(), Error> {
        result.inspect_err(|_| self.shut())
    }

    /// Removes the room in the batch, so that no frame can follow.
    #[cold]
    fn shut(&mut self) {
        self.is_shut = true;
        self.batch = Batch::default();
    }

    pub(crate) fn shutdown(&mut self) {
        if self.is_shut || !self.shared.is_ours() {
            return;
        }
        // If the peer is gone, it needs no notice.
        let _ = self.post_batch().and_then(|_| {
            self.outgoing.send_with(|writer, posted| {
                writer.write(posted)?;
                writer.end()
            })
        });
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

/// Returns true if the parts of a frame go to the kernel without a copy.
fn is_direct(parts: &[&[u8]], len: usize) -> bool {
    len >= DIRECT_BYTES_MIN && parts.len() + 2 <= PARTS_MAX
}

/// The length of a stamp, the stamp, and the length of the frame after it.
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

    /// Commits a frame, and fixes its place in the order of sending; `sender` is this link's.
    #[inline(always)]
    pub(crate) fn commit(
        &self,
        sender: &mut Sender,
        len: usize,
    ) -> Result<Option<Leaving<'_, Writer>>, Error> {
        debug_assert!(Arc::ptr_eq(&self.outgoing, &sender.outgoing));
        sender.add(len);
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
            writer.write_all(&mut [IoSlice::new(posted)], until)
        })
    }

    pub(crate) fn helper(&self) -> Helper {
        Helper(Arc::clone(&self.outgoing))
    }
}

/// Sends, on a thread of its own, what other threads post.
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

/// The socket, for the thread that has the turn.
pub(crate) struct Writer {
    socket: Arc<Shared>,
    seal: Seal,
    /// Sends of the senders themselves since the last look at the clock, and the time of that look.
    sends: u32,
    since: Option<Instant>,
}

impl Write for Writer {
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        if !matches!(self.seal, Seal::Open) {
            return self.write_all(&mut [IoSlice::new(bytes)], None);
        }
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
        // One look at the clock per `SENDS_CLOSE_MIN` sends.
        self.sends = 0;
        let now = Instant::now();
        let before = self.since.replace(now);
        let longest = Duration::from_nanos(SENDS_CLOSE_NS_MAX * u64::from(SENDS_CLOSE_MIN));
        before.is_some_and(|before| now - before < longest)
    }
}

impl Writer {
    /// Sends all of `slices`, or what the peer takes before the deadline.
    fn write_all(
        &mut self,
        slices: &mut [IoSlice<'_>],
        deadline: Option<Instant>,
    ) -> Result<(), Error> {
        let socket = &self.socket;
        match &mut self.seal {
            Seal::Open => socket.write_all(slices, deadline).map(|_| ()),
            Seal::Own(sealing) => sealing.seal(slices, |sealed| {
                let sent = socket.write_all(&mut [IoSlice::new(sealed)], deadline);
                sent.map(|_| ())
            }),
            Seal::Kernel(sealer) => {
                if sealer.is_used_up() {
                    kernel::update(&socket.socket, sealer, deadline, || socket.is_closed())?;
                }
                let bytes = slices.iter().map(|slice| slice.len()).sum();
                let calls = socket.write_all(slices, deadline)?;
                sealer.count(bytes, calls);
                Ok(())
            }
        }
    }

    /// Sees to it that the kernel sends all that it was given before the connection ends.
    fn end(&self) -> Result<(), Error> {
        let socket = &self.socket;
        match self.seal {
            Seal::Kernel(_) => kernel::end(&socket.socket, || socket.is_closed()),
            Seal::Open | Seal::Own(_) => Ok(()),
        }
    }

    #[cold]
    fn write_rest(&self, bytes: &[u8]) -> Result<(), Error> {
        let sent = self.socket.write_all(&mut [IoSlice::new(bytes)], None);
        sent.map(|_| ())
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
            // Wakes threads that wait for the socket.
            let _ = shutdown(&self.shared.socket, Shutdown::Both);
            self.outgoing.end();
        }
        self.shared.wake.wake();
    }
}
