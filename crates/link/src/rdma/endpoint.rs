//! One end of one direction: its queue, its memory and the peer's windows. What it posts for a ring.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    control::{BLOCK_BYTES, LANDING, OWN, TOLD},
    domain::Region,
    queue::{POSTED_MAX, Queue, Request, Verb},
    ring::{Op, Port},
    setup::Window,
    shared::Shared,
};
use crate::Error;

/// How long the device is asked again and again for room before the core is given away, and how long for at a time then.
const ROOM_SPIN: Duration = Duration::from_micros(20);
const ROOM_NAP: Duration = Duration::from_micros(50);
/// How often the peer is looked at meanwhile.
const ROOM_TICK: Duration = Duration::from_millis(100);

pub(super) struct Endpoint {
    pub(super) queue: Queue,
    /// The producer's mirror, the consumer's ring.
    pub(super) memory: Arc<Region>,
    pub(super) control: Arc<Region>,
    /// Of this direction, in both sides' control words.
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
        let mut requests = [self.request(*first); POSTED_MAX];
        for (request, op) in requests[1..].iter_mut().zip(rest) {
            *request = self.request(*op);
        }
        if wakes {
            requests[rest.len()].verb = Verb::WriteAndWake;
        }
        let count = ops.len();
        self.queue.post(&requests[..count], is_signalled, mark)?;
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
        self.queue.poll()
    }
}

impl Endpoint {
    #[inline]
    fn request(&self, op: Op) -> Request {
        let at = self.control_at;
        let control = self.remote_control;
        match op {
            Op::Ring { offset, len } => Request {
                verb: Verb::Write,
                piece: self.memory.piece(offset, len),
                remote: self.remote_ring.address + offset as u64,
                rkey: self.remote_ring.key,
            },
            Op::Tell => Request {
                verb: Verb::Write,
                piece: self.control.piece(at + OWN, BLOCK_BYTES),
                remote: control.address + (at + TOLD) as u64,
                rkey: control.key,
            },
            Op::Look => Request {
                verb: Verb::Read,
                piece: self.control.piece(at + LANDING, BLOCK_BYTES),
                remote: control.address + (at + OWN) as u64,
                rkey: control.key,
            },
        }
    }

    /// Until `count` requests may be posted. The device has done those before it when the peer's answers, or it gives the peer up.
    #[cold]
    fn wait_for_room(&mut self, count: usize) -> Result<(), Error> {
        let start = Instant::now();
        let mut looked = start;
        loop {
            self.queue.poll()?;
            if self.queue.has_room(count) {
                return Ok(());
            }
            if self.shared.is_closed() {
                return Err(Error::Closed);
            }
            if start.elapsed() < ROOM_SPIN {
                std::hint::spin_loop();
                continue;
            }
            self.queue.check_progress(start)?;
            std::thread::sleep(ROOM_NAP);
            if looked.elapsed() >= ROOM_TICK {
                looked = Instant::now();
                if let Some(end) = self.shared.peer_end() {
                    return Err(end);
                }
            }
        }
    }

    /// Sleeps until something completes; a receiver until a wake-up, too. The queue was armed before it was last looked at.
    pub(super) fn sleep(&mut self, is_receiver: bool, timeout: Duration) -> Result<(), Error> {
        let news = self
            .shared
            .sleep(self.queue.channel(), is_receiver, timeout)?;
        if news.is_completion {
            self.queue.take_event();
        }
        Ok(())
    }

    /// Waits, for `longest` at most, until the peer's device has all that was posted.
    pub(super) fn settle(&mut self, longest: Duration) {
        let start = Instant::now();
        while self.queue.poll().is_ok() && !self.queue.is_idle() {
            let spent = start.elapsed();
            if spent >= longest || self.shared.is_closed() {
                return;
            }
            if spent >= ROOM_SPIN {
                std::thread::sleep(ROOM_NAP);
                if self.shared.peer_end().is_some() {
                    return;
                }
            }
        }
    }
}
