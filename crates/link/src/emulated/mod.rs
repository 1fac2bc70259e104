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
//! * A frame is never handed over early. Over shm the receiver copies its bytes to their place
//!   while it waits for that time, as an adapter would. It is late if the carrying link takes
//!   longer than the network: some hundred nanoseconds over shm, some ten microseconds over
//!   loopback tcp.
//! * With cores to spare, a receiver at first watches for frames and for their time without a
//!   sleep: threads that have slept are late and slow, and that is no property of the network.
//! * Frames in flight are stored in the carrier. A ring is made as large as the network needs, up
//!   to [`RING_BYTES_MAX`](outboard_wire::limits::RING_BYTES_MAX); when the ring, or the buffer of
//!   a tcp connection, is full, senders wait as they do for a full window.
//! * Nothing bypasses the network: file descriptors cannot be passed, and
//!   [`data_connections`](crate::Link::data_connections) says that the session can have none.
//! * Both ends must be on one machine, since they share one clock: see [`Clock`].

mod asked;
mod carrier;
mod clock;
mod wire;

use std::{
    hint,
    ptr::NonNull,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use outboard_wire::{
    limits::{ARRIVAL_KEEP_CORE_NS, ARRIVAL_SPIN_NS, ARRIVAL_WATCH_NS, RING_BYTES, RING_BYTES_MAX},
    network::Network,
};
use parking_lot::{Condvar, Mutex};

use self::clock::now_ns;
pub use self::{
    asked::{AskedError, VARIABLE, asked, emulation},
    clock::{Clock, ClockError},
    wire::{End, Wire},
};
use crate::{
    deadline::Wait,
    error::Error,
    kind::LinkKind,
    segment::{ChooseDestination, Frame, Tail},
    spin,
    stamp::read_stamp,
    tcp,
};
pub(crate) use carrier::Carrier;

/// A link over an emulated network.
pub struct Connection {
    pub(crate) sender: Box<Sender>,
    pub(crate) receiver: Box<Receiver>,
}

impl Connection {
    /// Delays what `carrier` carries; the peer must do so too.
    pub(crate) fn new(carrier: Carrier, network: &Network, end: End) -> Self {
        let (sender, receiver) = carrier.split();
        let rest = Arc::new(Rest::default());
        Self {
            sender: Box::new(Sender {
                inner: sender,
                wire: Wire::new(network, end),
                end,
                rest: Arc::clone(&rest),
            }),
            receiver: Box::new(Receiver {
                inner: receiver,
                due_ns: None,
                early: None,
                last_ns: 0,
                rest,
            }),
        }
    }

    /// Returns the kind of the link that moves the bytes.
    pub(crate) fn carrier(&self) -> LinkKind {
        self.receiver.carrier()
    }
}

/// Size of the ring that holds what is in flight over a network.
pub(crate) fn ring_bytes(network: &Network) -> usize {
    /// Bandwidth assumed for a network without a limit: about what one core copies.
    const BPS_UNBOUND: u64 = 100_000_000_000;
    let bps = network
        .bandwidth()
        .map_or(BPS_UNBOUND, |bandwidth| bandwidth.bps());
    let in_flight = network.rtt().as_secs_f64() / 2.0 * bps as f64 / 8.0;
    // A quarter more for the stamp before each frame. A cast of a float saturates, so none is too
    // large.
    let bytes = (1.25 * in_flight) as usize;
    bytes
        .saturating_add(RING_BYTES)
        .min(RING_BYTES_MAX)
        .next_power_of_two()
}

/// The sending half: sends a stamp before every frame of the carrying link.
pub struct Sender {
    inner: carrier::Sender,
    wire: Wire,
    end: End,
    rest: Arc<Rest>,
}

impl Sender {
    /// Sends over another network from now on.
    pub fn change(&mut self, network: &Network) {
        self.wire.change(network, self.end);
    }

    #[cold]
    pub(crate) fn reserve(&mut self, len: usize) -> Result<NonNull<u8>, Error> {
        self.inner.reserve(len)
    }

    /// Publishes the first `len` bytes of the room, stamped with the time at which they arrive if
    /// they are sent now.
    #[cold]
    pub(crate) fn commit(&mut self, len: usize) -> Result<(), Error> {
        let stamp = self.wire.arrival_ns(now_ns(), len);
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
        let stamp = self.wire.arrival_ns(now_ns(), len);
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

/// The receiving half: hands out no frame of the carrying link before its time.
pub struct Receiver {
    inner: carrier::Receiver,
    /// The next frame's stamp, if it has been read.
    due_ns: Option<u64>,
    /// The next frame, if it has been taken out of the carrier: what of it is in other memory.
    early: Option<Option<Tail>>,
    /// Time at which a frame was last handed over.
    last_ns: u64,
    rest: Arc<Rest>,
}

/// Looks at the clock or the link for each look for a waker.
const LOOKS: u32 = 64;

impl Receiver {
    #[cold]
    pub(crate) fn recv(&mut self, wait: Wait) -> Result<Option<&[u8]>, Error> {
        if self.stamped(wait)?.is_none() || !self.is_due(wait)? {
            return Ok(None);
        }
        if let Some(tail) = self.early.take() {
            (self.due_ns, self.last_ns) = (None, now_ns());
            return Ok(Some(self.inner.taken(tail, true).head));
        }
        let frame = self.inner.recv(wait)?;
        if frame.is_some() {
            (self.due_ns, self.last_ns) = (None, now_ns());
        }
        Ok(frame)
    }

    #[cold]
    pub(crate) fn recv_placed(
        &mut self,
        wait: Wait,
        place: &mut ChooseDestination<'_>,
    ) -> Result<Option<Frame<'_>>, Error> {
        let Some(due_ns) = self.stamped(wait)? else {
            return Ok(None);
        };
        if self.early.is_none() && now_ns() < due_ns {
            self.early = self.inner.take_early(place)?;
        }
        if !self.is_due(wait)? {
            return Ok(None);
        }
        if let Some(tail) = self.early.take() {
            (self.due_ns, self.last_ns) = (None, now_ns());
            return Ok(Some(self.inner.taken(tail, false)));
        }
        let frame = self.inner.recv_placed(wait, place)?;
        if frame.is_some() {
            (self.due_ns, self.last_ns) = (None, now_ns());
        }
        Ok(frame)
    }

    /// Returns the next frame's stamp; waits for that as `wait` says.
    fn stamped(&mut self, wait: Wait) -> Result<Option<u64>, Error> {
        if self.due_ns.is_none() {
            self.due_ns = self.next_stamp(wait)?;
        }
        Ok(self.due_ns)
    }

    /// Returns true if the frame whose stamp was read may be handed over; waits for that as `wait`
    /// says.
    fn is_due(&mut self, wait: Wait) -> Result<bool, Error> {
        let Some(due_ns) = self.due_ns else {
            return Ok(false);
        };
        if now_ns() >= due_ns {
            return Ok(true);
        }
        let until_ns = match wait {
            Wait::Poll => return Ok(false),
            Wait::Forever => due_ns,
            Wait::Until(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now());
                let left_ns = u64::try_from(left.as_nanos()).unwrap_or(u64::MAX);
                now_ns().saturating_add(left_ns).min(due_ns)
            }
        };
        Ok(self.wait_until(until_ns)? && until_ns == due_ns)
    }

    /// Takes the next stamp out of the link; `None` if none came as `wait` says.
    fn next_stamp(&mut self, wait: Wait) -> Result<Option<u64>, Error> {
        let until = match wait {
            Wait::Poll => return self.stamp(wait),
            Wait::Until(deadline) => Some(deadline),
            Wait::Forever => None,
        };
        let watch_until_ns = match spin::has_cores_to_spare() {
            true => self.last_ns.saturating_add(ARRIVAL_WATCH_NS),
            false => 0,
        };
        while now_ns() < watch_until_ns {
            for _ in 0..LOOKS {
                if let Some(due_ns) = self.stamp(Wait::Poll)? {
                    return Ok(Some(due_ns));
                }
                hint::spin_loop();
            }
            if self.take_wake()? || until.is_some_and(|until| Instant::now() >= until) {
                return Ok(None);
            }
        }
        self.stamp(wait)
    }

    fn stamp(&mut self, wait: Wait) -> Result<Option<u64>, Error> {
        match self.inner.recv(wait)? {
            Some(frame) => read_stamp(frame, now_ns()).map(Some),
            None => Ok(None),
        }
    }

    /// Sleeps until shortly before `until_ns`, then watches the clock. Returns false if a waker
    /// ended it.
    fn wait_until(&mut self, until_ns: u64) -> Result<bool, Error> {
        let has_cores = spin::has_cores_to_spare();
        let spin_ns = match has_cores {
            true => ARRIVAL_WATCH_NS,
            false => ARRIVAL_SPIN_NS,
        };
        loop {
            let left_ns = until_ns.saturating_sub(now_ns());
            if left_ns <= spin_ns {
                break;
            }
            if self.rest_for(Duration::from_nanos(left_ns - spin_ns))? {
                return Ok(false);
            }
        }
        // On few cores the peer may need this core; but a core that is given away comes back late.
        let yield_until_ns = match has_cores {
            true => 0,
            false => until_ns.saturating_sub(ARRIVAL_KEEP_CORE_NS),
        };
        loop {
            for _ in 0..LOOKS {
                match now_ns() {
                    now if now >= until_ns => return Ok(true),
                    now if now < yield_until_ns => thread::yield_now(),
                    _ => hint::spin_loop(),
                }
            }
            if self.take_wake()? {
                return Ok(false);
            }
        }
    }

    /// Sleeps for at most `time`. Returns true if a waker has woken it, an error if this side was
    /// closed.
    fn rest_for(&mut self, time: Duration) -> Result<bool, Error> {
        let rest = Arc::clone(&self.rest);
        let mut guard = rest.lock.lock();
        // Under the lock: a waker that comes later finds this thread asleep.
        if self.take_wake()? {
            return Ok(true);
        }
        rest.woken.wait_for(&mut guard, time);
        self.take_wake()
    }

    fn take_wake(&mut self) -> Result<bool, Error> {
        self.inner.take_wake()
    }

    pub(crate) fn waker(&self) -> Waker {
        Waker {
            inner: self.inner.waker(),
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
