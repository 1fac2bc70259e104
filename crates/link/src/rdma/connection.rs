//! A rdma link: two rings, one per direction, each with a reliable connection of its own, so that
//! the halves of a link never share a queue. This file has also what a half does while there is
//! nothing to read or no room to write.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use outboard_wire::limits::{HANDSHAKE_MS_MAX, PEER_VANISHED_MS_MAX, RDMA_LINGER_MS_MAX};

use super::{
    RdmaOptions,
    bulk::Kept,
    counts::RdmaCounts,
    device::AckTimeout,
    endpoint::Endpoint,
    grants::{Given, Granting},
    layout::SeparateData,
    prepared::{Prepared, TO_CLIENT, TO_SERVER},
    queue::{RETRIES, STALLED_MS_MAX},
    registry::Registrar,
    ring::{Consumer, Found, Port, Producer},
    setup,
    shared::Shared,
};
use crate::{Error, Stream, Wait, spin::Spin, stream::deadline_after, sys, tcp::liveness::Watch};

/// Interval at which a sleeping side looks whether the peer's host answers.
const TICK: Duration = Duration::from_millis(100);
/// Longest time that a sleeping side relies on a silent device. A device that has nothing to send
/// would never learn that its peer cannot reach it, while the tcp connection takes another way.
const HEARTBEAT: Duration = Duration::from_millis(5_000);
const LINGER: Duration = Duration::from_millis(RDMA_LINGER_MS_MAX);

const _: () = {
    assert!(AckTimeout::ADAPTER.unanswered_ms(RETRIES) < STALLED_MS_MAX);
    assert!((HEARTBEAT.as_millis() as u64 + STALLED_MS_MAX) < PEER_VANISHED_MS_MAX);
};

/// An established rdma link.
pub struct Connection {
    pub(super) sender: Box<Sender>,
    pub(super) receiver: Box<Receiver>,
}

impl Connection {
    /// Sets up the server's side, over a `stream` after its handshake.
    pub(crate) fn serve(mut stream: Stream, options: &RdmaOptions) -> Result<Self, Error> {
        let deadline = deadline_after(Duration::from_millis(HANDSHAKE_MS_MAX));
        let theirs = setup::receive(&mut stream, deadline)?;
        let prepared = Prepared::new(&stream, options, Some(&theirs))
            .and_then(|prepared| prepared.connect(&theirs).map(|()| prepared));
        let prepared = match prepared {
            Ok(prepared) => prepared,
            Err(error) => {
                // The peer may or may not receive the reason.
                let _ = setup::send(&mut stream, Err(&error.to_string()), deadline);
                return Err(error);
            }
        };
        setup::send(&mut stream, Ok(&prepared.setup()), deadline)?;
        setup::receive_ready(&mut stream, deadline)?;
        prepared.finish(stream, &theirs, TO_CLIENT)
    }

    /// Sets up the client's side.
    pub(crate) fn join(
        mut stream: Stream,
        options: &RdmaOptions,
        deadline: Instant,
    ) -> Result<Self, Error> {
        let prepared = Prepared::new(&stream, options, None)?;
        setup::send(&mut stream, Ok(&prepared.setup()), deadline)?;
        let theirs = setup::receive(&mut stream, deadline)?;
        prepared.connect(&theirs)?;
        setup::send_ready(&mut stream, deadline)?;
        prepared.finish(stream, &theirs, TO_SERVER)
    }

    pub(crate) fn split(self) -> (Box<Sender>, Box<Receiver>) {
        (self.sender, self.receiver)
    }
}

/// The sending half of a rdma link. The functions that every message calls are kept out of line:
/// inlined beside those of other links they would cost these some instructions a message.
pub struct Sender {
    pub(super) producer: Producer<Endpoint>,
    pub(super) is_shut: bool,
    /// Time at which the consumer was told that this end sleeps, if it has not answered.
    asleep: Option<Instant>,
    spin: Spin,
    pub(super) shared: Arc<Shared>,
    pub(super) registrar: Registrar,
    /// The peer's grants.
    pub(super) given: Given,
    /// Memory that the adapter may still read.
    pub(super) kept: VecDeque<Kept>,
    /// Number of the last request that reads GPU memory.
    pub(super) device_read_behind: u64,
}

impl Sender {
    pub(super) fn new(
        producer: Producer<Endpoint>,
        shared: Arc<Shared>,
        registrar: Registrar,
        given: Given,
    ) -> Self {
        Self {
            producer,
            is_shut: false,
            asleep: None,
            spin: Spin::remote(),
            shared,
            registrar,
            given,
            kept: VecDeque::new(),
            device_read_behind: 0,
        }
    }

    #[cold]
    pub(crate) fn reserve(&mut self, len: usize) -> Result<&mut [u8], Error> {
        let at = self.place(len)?;
        Ok(self.producer.reserve(at, len))
    }

    /// Returns the start of a frame of `len` bytes, once there is room for it.
    #[inline]
    pub(super) fn place(&mut self, len: usize) -> Result<u64, Error> {
        if self.is_shut || self.shared.is_closed() || self.producer.is_refused() {
            return Err(Error::Closed);
        }
        match self.producer.place(len)? {
            Some(at) => Ok(at),
            None => self.wait_for_room(len).inspect_err(|_| self.is_shut = true),
        }
    }

    #[cold]
    pub(crate) fn commit(&mut self, len: usize) -> Result<(), Error> {
        let result = self.producer.commit(len);
        self.after(result)
    }

    #[cold]
    pub(crate) fn flush(&mut self) -> Result<(), Error> {
        if self.is_shut {
            return Ok(());
        }
        let result = self.producer.flush();
        self.after(result)
    }

    /// After an error, nothing that was not posted may follow later.
    #[inline]
    pub(super) fn after(&mut self, result: Result<(), Error>) -> Result<(), Error> {
        result.inspect_err(|error| {
            self.is_shut |= !matches!(error, Error::Misuse(_));
        })
    }

    /// Returns the counts of what was posted.
    pub fn counts(&self) -> RdmaCounts {
        self.producer.port.queue.counts()
    }

    pub(crate) fn shutdown(&mut self) {
        if std::mem::replace(&mut self.is_shut, true) || !self.shared.is_ours() {
            return;
        }
        // If the peer is gone, it needs no notice.
        if self.producer.end().is_ok() {
            self.producer.port.settle(LINGER);
        }
    }

    pub(crate) fn closer(&self) -> Closer {
        Closer(Arc::clone(&self.shared))
    }

    #[cold]
    fn wait_for_room(&mut self, len: usize) -> Result<u64, Error> {
        // Flushed first, or the consumer would wait for frames that this end has not posted.
        self.producer.flush()?;
        let start = Instant::now();
        let mut watch = Watch::default();
        let producer = &mut self.producer;
        self.spin.until(start, || producer.has_news());
        loop {
            if let Some(at) = self.producer.place(len)? {
                self.asleep = None;
                self.spin.ended(start);
                return Ok(at);
            }
            if self.shared.is_closed() || self.producer.is_refused() {
                return Err(Error::Closed);
            }
            if let Some(end) = self.shared.peer_end() {
                return Err(end);
            }
            self.shared.watch(&mut watch)?;
            let told_at = match self.asleep {
                Some(at) if !is_due(at, &self.producer.port) => at,
                _ => {
                    self.producer.begin_sleep()?;
                    *self.asleep.insert(Instant::now())
                }
            };
            let port = &mut self.producer.port;
            port.queue.check_progress(told_at)?;
            port.queue.arm()?;
            port.poll()?;
            if port.is_idle() && !self.producer.may_sleep() {
                // The consumer is being told.
                self.asleep = None;
                continue;
            }
            if self.producer.place(len)?.is_none() {
                self.producer.port.sleep(false, TICK)?;
            }
        }
    }
}

/// Access for tests.
#[cfg(test)]
impl Sender {
    pub(super) fn mirror(&self) -> std::ops::Range<u64> {
        range(&self.producer.port.memory)
    }

    /// Collects the results of what was posted.
    pub(super) fn poll(&mut self) -> Result<(), Error> {
        self.producer.port.poll()
    }
}

#[cfg(test)]
impl Receiver {
    pub(super) fn counts(&self) -> RdmaCounts {
        self.consumer.port.queue.counts()
    }

    pub(super) fn ring(&self) -> std::ops::Range<u64> {
        range(&self.consumer.port.memory)
    }

    pub(super) fn ring_window(&self) -> setup::Window {
        let ring = &self.consumer.port.memory;
        setup::Window {
            address: ring.memory.address(),
            bytes: ring.memory.len() as u64,
            key: ring.rkey,
        }
    }
}

#[cfg(test)]
fn range(region: &super::domain::Region) -> std::ops::Range<u64> {
    let start = region.address();
    start..start + region.len() as u64
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.shutdown();
    }
}

/// The receiving half of a rdma link.
pub struct Receiver {
    pub(super) consumer: Consumer<Endpoint>,
    /// Bytes in the ring of the frame handed out last.
    held: u64,
    /// Time at which the producer was told that this end sleeps, if no frame has come since.
    asleep: Option<Instant>,
    /// An error that was met, returned once everything before it has been received.
    broken: Option<Error>,
    spin: Spin,
    looked_at: Instant,
    watch: Watch,
    shared: Arc<Shared>,
    pub(super) registrar: Registrar,
    /// Grants of this side.
    pub(super) granting: Granting,
    /// The frame handed out last, copied out of the ring.
    pub(super) frame: Vec<u8>,
}

impl Receiver {
    pub(super) fn new(
        consumer: Consumer<Endpoint>,
        shared: Arc<Shared>,
        registrar: Registrar,
        granting: Granting,
    ) -> Self {
        Self {
            consumer,
            held: 0,
            asleep: None,
            broken: None,
            spin: Spin::remote(),
            looked_at: Instant::now(),
            watch: Watch::default(),
            shared,
            registrar,
            granting,
            frame: Vec::new(),
        }
    }

    /// Returns the next frame's offset and length, and the description of its data if that is
    /// elsewhere.
    #[inline(always)]
    pub(super) fn next(
        &mut self,
        wait: Wait,
    ) -> Result<Option<(usize, usize, Option<SeparateData>)>, Error> {
        let held = std::mem::take(&mut self.held);
        if held > 0 {
            let taken = self.consumer.take(held);
            self.note(taken);
        }
        let mut found = self.consumer.look()?;
        if !matches!(found, Found::Frame { .. }) {
            if !self.wait_for_frame(wait)? {
                return Ok(None);
            }
            found = self.consumer.look()?;
        }
        let Found::Frame {
            offset,
            len,
            footprint,
            separate,
        } = found
        else {
            return Err(Error::Closed);
        };
        self.asleep = None;
        self.held = footprint;
        Ok(Some((offset, len, separate)))
    }

    pub(crate) fn waker(&self) -> Waker {
        Waker(Arc::clone(&self.shared))
    }

    fn note(&mut self, result: Result<(), Error>) {
        if let Err(error) = result {
            self.broken.get_or_insert(error);
        }
    }

    /// Returns true if there is a frame; otherwise waits as `wait` says.
    #[cold]
    fn wait_for_frame(&mut self, wait: Wait) -> Result<bool, Error> {
        let deadline = match wait {
            Wait::Poll => return self.look_again(false),
            Wait::Until(deadline) => Some(deadline),
            Wait::Forever => None,
        };
        let start = Instant::now();
        let consumer = &mut self.consumer;
        self.spin
            .until(start, || !matches!(consumer.look(), Ok(Found::Nothing)));
        loop {
            if self.look_again(true)? {
                self.spin.ended(start);
                return Ok(true);
            }
            if self.shared.take_wake() {
                return match self.shared.is_closed() {
                    true => Err(Error::Closed),
                    false => Ok(false),
                };
            }
            let left = sys::left(deadline).unwrap_or(TICK);
            if left.is_zero() {
                return Ok(false);
            }
            let slept = self.sleep(left.min(TICK));
            self.note(slept);
        }
    }

    /// Sleeps until something may have come.
    fn sleep(&mut self, longest: Duration) -> Result<(), Error> {
        let told_at = match self.asleep {
            Some(at) if !is_due(at, &self.consumer.port) => at,
            _ => {
                self.consumer.begin_sleep()?;
                *self.asleep.insert(Instant::now())
            }
        };
        self.consumer.port.queue.check_progress(told_at)?;
        let wakes = self.consumer.port.queue.wakes();
        self.consumer.port.queue.arm()?;
        self.consumer.port.poll()?;
        if self.consumer.port.queue.wakes() != wakes {
            self.asleep = None;
            return Ok(());
        }
        if self.consumer.port.is_idle() && !self.consumer.may_sleep() {
            // A frame is coming, or is being written.
            self.asleep = None;
            return Ok(());
        }
        if self.consumer.look()? != Found::Nothing {
            return Ok(());
        }
        self.consumer.port.sleep(true, longest)?;
        self.consumer.port.poll()?;
        if self.consumer.port.queue.wakes() != wakes {
            self.asleep = None;
        }
        Ok(())
    }

    /// Returns true if there is a frame, and an error if there will never be one.
    fn look_again(&mut self, has_slept: bool) -> Result<bool, Error> {
        // The order matters: what was sent before the end must be found after the end was seen.
        if self.broken.is_none() {
            let polled = self.consumer.port.poll();
            self.note(polled);
            if self.shared.is_closed() {
                self.note(Err(Error::Closed));
            }
            if has_slept || self.looked_at.elapsed() >= TICK {
                self.looked_at = Instant::now();
                let end = self.shared.peer_end();
                self.note(end.map_or(Ok(()), Err));
                let watched = self.shared.watch(&mut self.watch);
                self.note(watched);
            }
        }
        match (self.consumer.look()?, &self.broken) {
            (Found::Frame { .. }, _) => Ok(true),
            (Found::End, _) => Err(Error::Closed),
            (Found::Nothing, None) => Ok(false),
            (Found::Nothing, Some(error)) => Err(again(error)),
        }
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        if self.shared.is_ours() && self.broken.is_none() && self.consumer.close().is_ok() {
            self.consumer.port.settle(LINGER);
        }
    }
}

/// Wakes a blocked [`Receiver`].
#[derive(Clone)]
pub struct Waker(Arc<Shared>);

impl Waker {
    pub(crate) fn wake(&self) {
        self.0.wake();
    }
}

/// Ends both halves.
#[derive(Clone)]
pub struct Closer(Arc<Shared>);

impl Closer {
    pub(crate) fn close(&self) {
        self.0.close();
    }
}

/// Returns true if it is time to tell the peer again that this end sleeps, which shows whether the
/// peer's device still answers.
fn is_due(told_at: Instant, port: &Endpoint) -> bool {
    port.is_idle() && told_at.elapsed() >= HEARTBEAT
}

/// Copies an error, which every later call returns again.
fn again(error: &Error) -> Error {
    match error {
        Error::Rdma(error) => Error::Rdma(error.clone()),
        Error::Vanished { ms } => Error::Vanished { ms: *ms },
        Error::PeerMisbehaved { what, got, allowed } => Error::PeerMisbehaved {
            what,
            got: *got,
            allowed: *allowed,
        },
        _ => Error::Closed,
    }
}
