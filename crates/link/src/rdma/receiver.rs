//! The receiving half of a rdma link, with what it does while there is nothing to read.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    endpoint::{Endpoint, LINGER, TICK},
    grants::Granting,
    layout::SeparateData,
    registry::Registrar,
    ring::{Consumer, Found, Port},
    shared::Shared,
};
use crate::{Error, Wait, spin::Spin, sys, tcp::liveness::Watch};

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
            Some(at) if !self.consumer.port.is_due(at) => at,
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

/// Access for tests.
#[cfg(test)]
impl Receiver {
    pub(super) fn counts(&self) -> outboard_verbs::Counts {
        self.consumer.port.queue.counts()
    }

    pub(super) fn ring(&self) -> std::ops::Range<u64> {
        self.consumer.port.memory.addresses()
    }

    pub(super) fn ring_window(&self) -> super::window::Window {
        let ring = &self.consumer.port.memory;
        super::window::Window {
            address: ring.address(),
            bytes: ring.len() as u64,
            key: ring.rkey(),
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
