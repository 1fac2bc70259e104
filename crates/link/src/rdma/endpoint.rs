//! One end of one direction: its queue, its memory and the peer's windows. Posts what a ring asks
//! for.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use outboard_verbs::{
    AckTimeout, OwnRegion, POSTED_MAX, Piece, Queue, RETRIES, Request, STALLED_MS_MAX, Verb,
};
use outboard_wire::limits::{PEER_VANISHED_MS_MAX, RDMA_LINGER_MS_MAX};

use super::{
    control::{BLOCK_BYTES, OWN, READ_BUFFER, TOLD},
    grants::{GRANT_BYTES, OUR_GRANTS, TOLD_GRANTS},
    ring::{Op, Port},
    shared::Shared,
    window::Window,
};
use crate::Error;

/// Interval at which a sleeping side looks whether the peer's host answers.
pub(super) const TICK: Duration = Duration::from_millis(100);
/// Longest time that a sleeping side relies on a silent device. A device that has nothing to send
/// would never learn that its peer cannot reach it, while the tcp connection takes another way.
const HEARTBEAT: Duration = Duration::from_millis(5_000);
/// Longest time that a side which ends waits for its peer's device.
pub(super) const LINGER: Duration = Duration::from_millis(RDMA_LINGER_MS_MAX);

const _: () = {
    assert!(AckTimeout::ADAPTER.unanswered_ms(RETRIES) < STALLED_MS_MAX);
    assert!((HEARTBEAT.as_millis() as u64 + STALLED_MS_MAX) < PEER_VANISHED_MS_MAX);
};

/// Time that the device is asked for room without pause, and length of each sleep between two looks
/// afterwards.
const ROOM_SPIN: Duration = Duration::from_micros(20);
const ROOM_BACKOFF: Duration = Duration::from_micros(50);

pub(super) struct Endpoint {
    pub(super) queue: Queue,
    /// The producer's mirror, or the consumer's ring.
    pub(super) memory: Arc<OwnRegion>,
    pub(super) control: Arc<OwnRegion>,
    /// Offset of this direction in both sides' control words.
    pub(super) control_at: usize,
    pub(super) remote_ring: Window,
    pub(super) remote_control: Window,
    pub(super) shared: Arc<Shared>,
}

impl Port for Endpoint {
    #[inline]
    fn post(
        &mut self,
        ops: &[Op],
        wakes: bool,
        is_signalled: bool,
        mark: u64,
    ) -> Result<(), Error> {
        let Some((first, rest)) = ops.split_first() else {
            return Ok(());
        };
        if rest.len() >= POSTED_MAX {
            return Err(Error::Misuse("more requests than one doorbell is for"));
        }
        if !self.queue.has_room(ops.len()) {
            self.wait_for_room(ops.len())?;
        }
        let woken = |request: Request| match wakes {
            true => Request {
                verb: Verb::WriteAndWake,
                ..request
            },
            false => request,
        };
        if rest.is_empty() {
            let request = woken(self.request(*first));
            self.queue.post(&[request], is_signalled, mark)?;
            return Ok(());
        }
        let mut requests = [self.request(*first); POSTED_MAX];
        for (request, op) in requests[1..].iter_mut().zip(rest) {
            *request = self.request(*op);
        }
        requests[rest.len()] = woken(requests[rest.len()]);
        let requests = &requests[..ops.len()];
        self.queue.post(requests, is_signalled, mark)?;
        Ok(())
    }

    #[inline]
    fn done(&self) -> u64 {
        self.queue.done()
    }

    fn is_idle(&self) -> bool {
        self.queue.is_idle()
    }

    fn poll(&mut self) -> Result<(), Error> {
        Ok(self.queue.poll()?)
    }
}

impl Endpoint {
    #[inline]
    fn request(&self, op: Op) -> Request {
        let at = self.control_at;
        let (ring, control) = (self.remote_ring, self.remote_control);
        let write = |piece: Piece, remote: u64, rkey: u32| Request {
            verb: Verb::Write,
            piece,
            remote,
            rkey,
        };
        match op {
            Op::Ring { offset, len } => write(
                self.memory.piece(offset, len),
                ring.address + offset as u64,
                ring.key,
            ),
            Op::Fill { from, offset } => write(from, ring.address + offset as u64, ring.key),
            Op::Place { offset, len, to } => {
                write(self.memory.piece(offset, len), to.address, to.key)
            }
            Op::Carry { from, to } => write(from, to.address, to.key),
            Op::Grant { index } => {
                let at = index * GRANT_BYTES;
                write(
                    self.control.piece(OUR_GRANTS + at, GRANT_BYTES),
                    control.address + (TOLD_GRANTS + at) as u64,
                    control.key,
                )
            }
            Op::Tell => write(
                self.control.piece(at + OWN, BLOCK_BYTES),
                control.address + (at + TOLD) as u64,
                control.key,
            ),
            Op::Look => Request {
                verb: Verb::Read,
                piece: self.control.piece(at + READ_BUFFER, BLOCK_BYTES),
                remote: control.address + (at + OWN) as u64,
                rkey: control.key,
            },
        }
    }

    /// Waits until `count` requests may be posted. Earlier requests complete when the peer's device
    /// answers, or when the device gives the peer up.
    #[cold]
    fn wait_for_room(&mut self, count: usize) -> Result<(), Error> {
        let start = Instant::now();
        loop {
            self.queue.poll()?;
            if self.queue.has_room(count) {
                return Ok(());
            }
            self.wait_a_moment(start)?;
        }
    }

    /// Waits a moment for something to complete, on behalf of a caller that has waited since
    /// `start`. Returns an error if nothing can complete any more.
    pub(super) fn wait_a_moment(&mut self, start: Instant) -> Result<(), Error> {
        if self.shared.is_closed() {
            return Err(Error::Closed);
        }
        if start.elapsed() < ROOM_SPIN {
            std::hint::spin_loop();
            return Ok(());
        }
        self.queue.check_progress(start)?;
        std::thread::sleep(ROOM_BACKOFF);
        // The look is a system call, cheaper than the sleep.
        self.shared.peer_end().map_or(Ok(()), Err)
    }

    /// Returns true if it is time to tell the peer again that this end sleeps, which shows whether
    /// the peer's device still answers.
    pub(super) fn is_due(&self, told_at: Instant) -> bool {
        self.is_idle() && told_at.elapsed() >= HEARTBEAT
    }

    /// Sleeps until something completes; a receiver also until a wake-up. The caller armed the
    /// queue before it looked there last.
    pub(super) fn sleep(&mut self, is_receiver: bool, timeout: Duration) -> Result<(), Error> {
        let news = self
            .shared
            .sleep(self.queue.channel(), is_receiver, timeout)?;
        if news.is_completion {
            self.queue.take_event();
        }
        Ok(())
    }

    /// Waits, for `longest` at most, until the peer's device has received all that was posted.
    pub(super) fn settle(&mut self, longest: Duration) {
        let start = Instant::now();
        while self.queue.poll().is_ok() && !self.queue.is_idle() {
            let spent = start.elapsed();
            if spent >= longest || self.shared.is_closed() {
                return;
            }
            if spent >= ROOM_SPIN {
                std::thread::sleep(ROOM_BACKOFF);
                if self.shared.peer_end().is_some() {
                    return;
                }
            }
        }
    }
}
