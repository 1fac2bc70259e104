//! The receiving half: takes frames out of the carrying link before their time, and hands out none
//! before it.

use std::{
    hint, mem,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use outboard_wire::limits::{
    ARRIVAL_KEEP_CORE_NS, ARRIVAL_SPIN_NS, ARRIVAL_WATCH_NS, PLACED_BYTES_MIN,
};

use super::{
    Attachment, Rest, Waker,
    ahead::{Ahead, Early},
    carrier,
    clock::now_ns,
};
use crate::{
    deadline::Wait,
    error::Error,
    kind::LinkKind,
    segment::{ChooseDestination, Frame, Tail},
    spin,
    stamp::read_stamp,
};

/// Looks at the clock or the link for each look for a waker.
const LOOKS: u32 = 64;
/// Time before a short frame's arrival in which no other is received, since a long one would make
/// it late.
const NEAR_NS: u64 = 100_000;
/// Time between two looks for further frames while none comes.
const LOOK_NS: u64 = 5_000;
/// Shortest and longest sleep between two such looks.
const NAP_NS_MIN: u64 = 50_000;
const NAP_NS_MAX: u64 = 1_000_000;

/// The receiving half of a link over an emulated network.
pub struct Receiver {
    inner: carrier::Receiver,
    /// Stamp of the carrier's next frame, if it has been read.
    stamp_ns: Option<u64>,
    ahead: Ahead,
    /// Error that the carrier returned after the last of those frames.
    ended: Option<Error>,
    /// The frame handed out last, if it was among those.
    current: Vec<u8>,
    /// Time at which a frame was last handed over.
    last_ns: u64,
    /// Time before which no further frames are looked for.
    look_at_ns: u64,
    /// Time until which frames are looked for without a sleep: many bytes have come.
    busy_until_ns: u64,
    nap_ns: u64,
    rest: Arc<Rest>,
}

impl Receiver {
    pub(super) fn new(inner: carrier::Receiver, attachment: Attachment, rest: Arc<Rest>) -> Self {
        Self {
            inner,
            stamp_ns: None,
            ahead: Ahead::new(attachment),
            ended: None,
            current: Vec::new(),
            last_ns: 0,
            look_at_ns: 0,
            busy_until_ns: 0,
            nap_ns: NAP_NS_MIN,
            rest,
        }
    }

    #[cold]
    pub(crate) fn recv(&mut self, wait: Wait) -> Result<Option<&[u8]>, Error> {
        let Some(tail) = self.next(wait, &mut |_, _| None)? else {
            return Ok(None);
        };
        if let Some(tail) = tail {
            self.current.extend_from_slice(&tail.copied());
        }
        Ok(Some(&self.current))
    }

    #[cold]
    pub(crate) fn recv_placed(
        &mut self,
        wait: Wait,
        place: &mut ChooseDestination<'_>,
    ) -> Result<Option<Frame<'_>>, Error> {
        let tail = self.next(wait, place)?;
        let head = &self.current;
        Ok(tail.map(|tail| Frame { head, tail }))
    }

    /// Makes the next frame the current one, and returns what of it is in other memory.
    fn next(
        &mut self,
        wait: Wait,
        place: &mut ChooseDestination<'_>,
    ) -> Result<Option<Option<Tail>>, Error> {
        if !self.may_hand_over(wait, place)?
            || self.ahead.is_empty() && self.take(wait, place)?.is_none()
        {
            return Ok(None);
        }
        let Some(Early { head, tail, .. }) = self.ahead.pop() else {
            return Ok(None);
        };
        self.ahead.keep(mem::replace(&mut self.current, head));
        self.last_ns = now_ns();
        Ok(Some(tail))
    }

    /// Returns true if the next frame's time has come; waits for that as `wait` says, and receives
    /// further frames meanwhile.
    fn may_hand_over(
        &mut self,
        wait: Wait,
        place: &mut ChooseDestination<'_>,
    ) -> Result<bool, Error> {
        if self.ahead.is_empty() {
            let due_ns = match self.ended.take() {
                Some(error) => return Err(error),
                None if self.stamp_ns.is_some() => self.stamp_ns,
                None => self.next_stamp(wait)?,
            };
            self.stamp_ns = due_ns;
            if due_ns.is_some_and(|due_ns| now_ns() < due_ns) {
                self.read_ahead(place);
            }
            if self.ahead.is_empty()
                && let Some(error) = self.ended.take()
            {
                return Err(error);
            }
        }
        let Some(due_ns) = self.ahead.due_ns().or(self.stamp_ns) else {
            return Ok(false);
        };
        self.look(now_ns(), due_ns, place);
        let now = now_ns();
        if now >= due_ns {
            return Ok(true);
        }
        let until_ns = match wait {
            Wait::Poll => return Ok(false),
            Wait::Forever => due_ns,
            Wait::Until(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now());
                let left_ns = u64::try_from(left.as_nanos()).unwrap_or(u64::MAX);
                now.saturating_add(left_ns).min(due_ns)
            }
        };
        Ok(self.wait_until(until_ns, due_ns, place)? && until_ns == due_ns)
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

    /// Looks for further frames, unless the time of a short one is near. Of a stream of long ones,
    /// one is received for each that is handed over at least, or the sender would be held back.
    /// Returns true if many bytes came.
    fn look(&mut self, seen_ns: u64, due_ns: u64, place: &mut ChooseDestination<'_>) -> bool {
        let is_near = due_ns.saturating_sub(seen_ns) < NEAR_NS;
        if seen_ns < self.look_at_ns || is_near && !self.ahead.is_long() {
            return false;
        }
        let bytes = self.read_ahead(place);
        // A part of a frame says that the rest of it is coming.
        if bytes >= PLACED_BYTES_MIN || self.stamp_ns.is_some() {
            self.nap_ns = NAP_NS_MIN;
        }
        let now = now_ns();
        self.look_at_ns = now + LOOK_NS;
        if bytes < PLACED_BYTES_MIN {
            return false;
        }
        self.busy_until_ns = now + ARRIVAL_WATCH_NS;
        self.look_at_ns = now;
        true
    }

    /// Receives the frames that are in the carrying link: one if none has been received before its
    /// time, and more while the first one's time is not near. Returns their bytes.
    fn read_ahead(&mut self, place: &mut ChooseDestination<'_>) -> usize {
        let mut bytes = 0;
        while self.ended.is_none() && self.ahead.has_room() {
            match self.take(Wait::Poll, place) {
                Ok(Some(more)) => bytes += more,
                Ok(None) => break,
                Err(error) => self.ended = Some(error),
            }
            let due_ns = self.ahead.due_ns().unwrap_or(0);
            if due_ns.saturating_sub(now_ns()) < NEAR_NS {
                break;
            }
        }
        bytes
    }

    /// Receives one frame, if all of it comes as `wait` says. Returns its bytes.
    fn take(
        &mut self,
        wait: Wait,
        place: &mut ChooseDestination<'_>,
    ) -> Result<Option<usize>, Error> {
        if self.stamp_ns.is_none() {
            self.stamp_ns = self.stamp(wait)?;
        }
        let Some(due_ns) = self.stamp_ns else {
            return Ok(None);
        };
        let ahead = &mut self.ahead;
        let mut place = |head: &[u8], len: usize| {
            let wanted = place(head, len);
            Some(wanted.unwrap_or_else(|| ahead.place_whole(len)))
        };
        let Some(Frame { head, tail }) = self.inner.recv_placed(wait, &mut place)? else {
            return Ok(None);
        };
        self.stamp_ns = None;
        Ok(Some(self.ahead.push(due_ns, head, tail)))
    }

    /// Sleeps until shortly before `until_ns`, then watches the clock; receives further frames
    /// meanwhile. Returns false if a waker ended it.
    fn wait_until(
        &mut self,
        until_ns: u64,
        due_ns: u64,
        place: &mut ChooseDestination<'_>,
    ) -> Result<bool, Error> {
        let has_cores = spin::has_cores_to_spare();
        let spin_ns = match has_cores {
            true => ARRIVAL_WATCH_NS,
            false => ARRIVAL_SPIN_NS,
        };
        loop {
            let now = now_ns();
            if now >= until_ns {
                return Ok(true);
            }
            if self.look(now, due_ns, place) {
                if self.take_wake()? {
                    return Ok(false);
                }
                continue;
            }
            let left_ns = until_ns - now;
            let is_busy = has_cores && now < self.busy_until_ns;
            if left_ns > spin_ns && !is_busy {
                let nap_ns = self.nap_ns.min(left_ns - spin_ns);
                self.nap_ns = (self.nap_ns * 2).min(NAP_NS_MAX);
                if self.rest_for(Duration::from_nanos(nap_ns))? {
                    return Ok(false);
                }
            } else if watch_clock(until_ns, has_cores) {
                return Ok(true);
            } else if self.take_wake()? {
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
        // Memory of the caller that was filled early is given back at once.
        self.inner.take_wake().inspect_err(|_| self.ahead.clear())
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

/// Looks at the clock some times. Returns true if it has reached `until_ns`.
fn watch_clock(until_ns: u64, has_cores: bool) -> bool {
    // On few cores the peer may need this core; but a core that is given away comes back late.
    let yield_until_ns = match has_cores {
        true => 0,
        false => until_ns.saturating_sub(ARRIVAL_KEEP_CORE_NS),
    };
    for _ in 0..LOOKS {
        match now_ns() {
            now if now >= until_ns => return true,
            now if now < yield_until_ns => thread::yield_now(),
            _ => hint::spin_loop(),
        }
    }
    false
}
