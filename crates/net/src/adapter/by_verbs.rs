//! Queue pairs whose entries a device executes, by verbs: the adapter reads and checks them, posts
//! each to a connection of a real queue pair, and writes the completions.
//!
//! ```text
//!  ring ─► adapter: checks ─► ibv_post_send ─► device ═════════► device ─► memory by its key
//!  completions ◄── adapter ◄── ibv_poll_cq ◄──┘                    └──► receives ─► adapter ─► ...
//!                     └── the device's key for a key of the peer? ── tcp ──► adapter
//! ```
//!
//! Programs know memory by the adapters' keys. A device's key for a key of the peer's is asked for
//! at its first use. Nothing of the peer is trusted: an answer that was not asked for ends the
//! connection, and what devices reach is what is registered.

use std::{collections::HashMap, fmt, os::fd::OwnedFd, sync::Arc, time::Duration};

use outboard_verbs::{NotReady, Piece};

use crate::{
    cqe::{Completion, Kind},
    device::Device,
    distant::Registered,
    error::Error,
    keys::Access,
    poster::{Arrived, Poster, pieces},
    syndrome::Syndrome,
    wqe::{Operation, Segment},
};

use super::{
    Adapter, Pair, Peer, State,
    carried::Call,
    remote::TIMEOUT_NS,
    sender::Sender,
    work::{Answer, Posted},
};

/// A key of a device that opens nothing.
const NO_KEY: u32 = u32::MAX;
/// Time within which a peer says what key its device has.
const ANSWER_NS_MAX: u64 = 8 * TIMEOUT_NS;
/// Longest sleep of an adapter with a queue that is not patient, as its peer is not then: receives
/// reach the device within a message's tries, 61 ms of [`NotReady::ForSomeTime`].
const SLEEP_MAX: Duration = Duration::from_millis(10);

/// A device, and what of the adapter's memory is registered there: its keys, by the adapter's.
#[derive(Debug)]
pub(super) struct AtDevice {
    device: Arc<Device>,
    keys: HashMap<u32, u32>,
}

/// Asks the peer for its device's key without waiting. Returns false if the connection takes
/// nothing.
pub(crate) type Ask = Box<dyn Fn(u32) -> bool + Send>;

/// A queue pair's connection of the device.
pub(super) struct ByVerbs {
    poster: Poster,
    ask: Ask,
    hang_up: Call,
    /// Keys of the peer's device, by its adapter's; none for those that it does not have.
    theirs: HashMap<u32, Option<u32>>,
    /// The key that was asked for, and when.
    asked: Option<(u32, u64)>,
    has_failed: bool,
}

impl fmt::Debug for ByVerbs {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("ByVerbs")
            .field("poster", &self.poster)
            .finish_non_exhaustive()
    }
}

impl Drop for ByVerbs {
    fn drop(&mut self) {
        (self.hang_up)();
    }
}

/// A key of the peer's.
enum Theirs {
    Known(u32),
    /// Nothing is registered by it.
    Nothing,
    Awaited,
    /// The peer does not say.
    Late,
}

impl AtDevice {
    fn register(&mut self, key: u32, memory: &Registered, access: Access) -> Result<(), Error> {
        let Some(memory) = memory.mapped() else {
            let why = "memory that is reached by calls alone cannot be registered by verbs";
            return Err(Error::Device(why.into()));
        };
        let there = self.device.register_mapped(memory, access)?;
        self.keys.insert(key, there);
        Ok(())
    }

    /// Returns bytes whose registration with the adapter was checked.
    fn piece(&self, segment: &Segment) -> Option<Piece> {
        let key = self.device.local_key(*self.keys.get(&segment.lkey)?)?;
        Some(Piece {
            address: segment.address,
            len: segment.bytes() as u32,
            lkey: key,
        })
    }
}

impl ByVerbs {
    /// Finds the key of the peer's device, which is asked for once.
    fn key_of_theirs(&mut self, key: u32, now_ns: u64) -> Theirs {
        match (self.theirs.get(&key), self.asked) {
            (Some(Some(there)), _) => Theirs::Known(*there),
            (Some(None), _) => Theirs::Nothing,
            (None, Some((_, since_ns))) if now_ns.saturating_sub(since_ns) > ANSWER_NS_MAX => {
                Theirs::Late
            }
            (None, Some(_)) => Theirs::Awaited,
            (None, None) => {
                self.asked = Some((key, now_ns));
                if !(self.ask)(key) {
                    (self.hang_up)();
                }
                Theirs::Awaited
            }
        }
    }

    /// Has the next message wake the adapter.
    pub(super) fn arm(&self) {
        self.poster.arm();
    }

    fn fail(&mut self) {
        if !self.has_failed {
            self.has_failed = true;
            self.poster.fail();
        }
    }
}

impl Adapter {
    /// Returns the device that entries travel by, if there is one.
    pub(crate) fn device(&self) -> Option<Arc<Device>> {
        self.at_device.as_ref().map(|at| at.device.clone())
    }

    /// Registers all memory with a device, and what is registered from now on.
    pub(crate) fn use_device(&mut self, device: Arc<Device>) -> Result<(), Error> {
        let keys = HashMap::new();
        let mut at = AtDevice { device, keys };
        for (key, memory, access) in self.keys.all() {
            at.register(key, memory, access)?;
        }
        self.at_device = Some(at);
        Ok(())
    }

    pub(super) fn register_at_device(&mut self, key: u32, access: Access) -> Result<(), Error> {
        match (&mut self.at_device, self.keys.memory(key)) {
            (Some(at), Some(memory)) => at.register(key, memory, access),
            _ => Ok(()),
        }
    }

    pub(super) fn forget_at_device(&mut self, key: u32) {
        if let Some(at) = &mut self.at_device
            && let Some(there) = at.keys.remove(&key)
        {
            at.device.unregister(there);
        }
    }

    /// Connects a queue pair to one of another process, by a connection of the device. Nothing is
    /// fetched before [`begin_by_verbs`](Adapter::begin_by_verbs).
    pub(crate) fn connect_by_verbs(
        &mut self,
        qpn: u32,
        peer: Peer,
        poster: Poster,
        ask: Ask,
        hang_up: Call,
    ) -> Result<(), Error> {
        let (number, mut pair) = self.pair(qpn)?;
        pair.peer = Some(peer);
        (pair.is_remote, pair.is_by_verbs) = (true, true);
        self.pairs[number] = Some(pair);
        self.forget_link(number);
        let by = ByVerbs {
            poster,
            ask,
            hang_up,
            theirs: HashMap::new(),
            asked: None,
            has_failed: false,
        };
        self.by_verbs.insert(number, by);
        // The peer's first message finds what was posted before.
        self.post_receives(number, &pair);
        Ok(())
    }

    /// Lets entries travel: both sides are connected.
    pub(crate) fn begin_by_verbs(&mut self, qpn: u32, epoch: u32) -> Result<(), Error> {
        let (number, mut pair) = self.remote_pair(qpn, epoch)?;
        if pair.state != State::Reset {
            return Err(Error::Connected(qpn));
        }
        pair.state = State::Ready;
        self.pairs[number] = Some(pair);
        Ok(())
    }

    /// Ends the connection of a meeting that has failed before anything could travel. The queue
    /// pair may meet again, with the receives that the device had.
    pub(crate) fn forget_by_verbs(&mut self, qpn: u32, epoch: u32) {
        let Ok((number, mut pair)) = self.remote_pair(qpn, epoch) else {
            return;
        };
        if let Some(by) = self.by_verbs.remove(&number)
            && let Some(receiver) = &mut self.receivers[number]
        {
            receiver.give_back(by.poster.receives());
        }
        (pair.peer, pair.is_remote, pair.is_by_verbs) = (None, false, false);
        self.pairs[number] = Some(pair);
    }

    /// Returns the longest time for which nobody need look at the rings. A message that finds no
    /// receive at the device wakes nobody.
    pub(crate) fn sleep_max(&self) -> Duration {
        let patiences = self.by_verbs.values().map(|by| by.poster.patience());
        sleep_max(patiences)
    }

    /// Returns the device's key for one of this adapter's, for the peer of a queue pair.
    pub(crate) fn key_for_peer(
        &self,
        qpn: u32,
        epoch: u32,
        key: u32,
    ) -> Result<Option<u32>, Error> {
        let (_, pair) = self.remote_pair(qpn, epoch)?;
        let of_pair = self.keys.is_of(pair.domain, key);
        let at = self.at_device.as_ref().filter(|_| of_pair);
        Ok(at.and_then(|at| at.keys.get(&key).copied()))
    }

    /// Notes the peer's answer to a question for a key.
    pub(crate) fn learn_key(
        &mut self,
        qpn: u32,
        epoch: u32,
        key: u32,
        there: Option<u32>,
    ) -> Result<(), Error> {
        let (number, _) = self.remote_pair(qpn, epoch)?;
        let by = self.by_verbs.get_mut(&number);
        let by = by.ok_or(Error::Peer("no more"))?;
        if by.asked.take().is_none_or(|(asked, _)| asked != key) {
            return Err(Error::Peer("a key that nobody has asked for"));
        }
        by.theirs.insert(key, there);
        Ok(())
    }

    /// Notes that the meeting's connection is over, or that the device is gone. What the device has
    /// comes back at once.
    pub(super) fn verbs_down(&mut self, number: usize, is_lost: bool) {
        if let Some(pair) = &mut self.pairs[number] {
            pair.unreachable = true;
        }
        let by = self.by_verbs.get_mut(&number);
        let Some(by) = by else { return };
        if is_lost {
            by.poster.lose();
        }
        // Receives stay: the queue fails by what is posted.
        if by.poster.has_sends() {
            by.fail();
        }
    }

    /// Notes that the device of a queue pair's connection is gone.
    pub(crate) fn device_down(&mut self, qpn: u32, epoch: u32) {
        if let Ok((number, _)) = self.remote_pair(qpn, epoch) {
            self.verbs_down(number, true);
        }
    }

    /// Returns the channel that is readable when a message has come to an adapter that sleeps.
    pub(crate) fn verbs_channel(&self, qpn: u32, epoch: u32) -> Result<OwnedFd, Error> {
        let (number, _) = self.remote_pair(qpn, epoch)?;
        let by = self.by_verbs.get(&number);
        by.ok_or(Error::Peer("no more"))?.poster.channel()
    }

    /// Takes what has made the channel readable. Returns false if there is nothing, or no queue
    /// pair any more.
    pub(crate) fn take_verbs_event(&mut self, qpn: u32, epoch: u32) -> bool {
        let Ok((number, _)) = self.remote_pair(qpn, epoch) else {
            return false;
        };
        let by = self.by_verbs.get_mut(&number);
        by.is_some_and(|by| by.poster.take_event())
    }

    /// Posts an entry, which was checked, to the device.
    pub(super) fn post_by_verbs(
        &mut self,
        number: usize,
        sequence: u64,
        operation: &Operation,
    ) -> Posted {
        // What a dump reads does not travel.
        if let Operation::Nop | Operation::Dump { .. } | Operation::Wait { .. } = operation {
            return Posted::Answered(Answer::Done);
        }
        let failed = |syndrome| Posted::Answered(Answer::Failed(syndrome));
        let by = self.by_verbs.get_mut(&number);
        let (Some(by), Some(at)) = (by, &self.at_device) else {
            return failed(Syndrome::RETRIES_EXCEEDED);
        };
        if !by.poster.has_room() {
            return Posted::NotYet;
        }
        // No key is looked at for 0 bytes.
        let remote = operation.remote().filter(|_| operation.bytes() > 0);
        let theirs = remote.map(|remote| by.key_of_theirs(remote.rkey, self.now_ns));
        let rkey = match theirs.unwrap_or(Theirs::Known(0)) {
            Theirs::Known(key) => key,
            Theirs::Nothing => return failed(Syndrome::REMOTE_ACCESS),
            Theirs::Awaited => return Posted::NotYet,
            Theirs::Late => return failed(Syndrome::RETRIES_EXCEEDED),
        };
        let (segments, _) = operation.local();
        let posted = pieces(segments, |segment| at.piece(segment)).and_then(|pieces| {
            // A fence was kept when the entry was fetched.
            let how = (sequence, false);
            by.poster.post(&at.device, how, operation, &pieces, rkey)
        });
        match posted {
            Ok(()) => Posted::AtDevice,
            Err(syndrome) => failed(syndrome),
        }
    }

    /// Posts the receives of a queue pair to the device.
    pub(super) fn post_receives(&mut self, number: usize, pair: &Pair) -> usize {
        let by = self.by_verbs.get_mut(&number);
        let (Some(by), Some(at), Some(receiver)) =
            (by, &self.at_device, &mut self.receivers[number])
        else {
            return 0;
        };
        let mut count = 0;
        while by.poster.has_room_to_receive()
            && let Some((index, into)) = receiver.next()
        {
            let piece = into.map(|segment| {
                let Segment { lkey, address, .. } = segment;
                let bytes = segment.bytes();
                let access = Access::LOCAL_WRITE;
                let place = self.keys.find(pair.domain, lkey, address, bytes, access);
                let known = place.and_then(|_| at.piece(&segment));
                // The device refuses it when a message takes it.
                known.unwrap_or(Piece {
                    address,
                    len: bytes as u32,
                    lkey: NO_KEY,
                })
            });
            if !by.poster.post_receive(index, piece) {
                break;
            }
            receiver.take();
            count += 1;
        }
        count
    }

    /// Takes what the device has done for a queue pair: answers to its entries, and messages.
    pub(super) fn take_by_verbs(
        &mut self,
        sender: &mut Sender,
        number: usize,
        pair: &Pair,
    ) -> usize {
        let by = self.by_verbs.get_mut(&number);
        let Some(by) = by else { return 0 };
        let mut count = 0;
        let is_there = by.poster.take_sends(|sequence, result| {
            count += 1;
            let answer = match result {
                Ok(()) => Answer::Done,
                Err(Syndrome::FLUSHED) if pair.unreachable => {
                    Answer::Failed(Syndrome::RETRIES_EXCEEDED)
                }
                Err(syndrome) => Answer::Failed(syndrome),
            };
            sender.answered(sequence, answer, self.now_ns);
        });
        if !is_there {
            count += sender.lose();
        }
        let mut arrived = Vec::new();
        by.poster
            .take_receives(|index, result| arrived.push((index, result)));
        count += arrived.len();
        for (index, result) in arrived {
            match result {
                Ok(Arrived { kind, imm, bytes }) => {
                    self.received(pair, kind, index, bytes.into(), imm);
                }
                Err(syndrome) => {
                    let kind = Kind::ResponderError;
                    let of = Completion::failure(kind, pair.qpn, 0, index, syndrome);
                    self.complete(pair.receive_completions, &of);
                    self.set_error(number);
                }
            }
        }
        count
    }

    /// Returns true if a queue pair in error has back what its device had: nothing of it is
    /// written to, or read, any more.
    pub(super) fn has_all_back(&mut self, sender: &mut Sender, number: usize, pair: &Pair) -> bool {
        if !pair.is_by_verbs {
            return true;
        }
        if let Some(by) = self.by_verbs.get_mut(&number) {
            by.fail();
        }
        self.take_by_verbs(sender, number, pair);
        let by = self.by_verbs.get(&number);
        by.is_none_or(|by| !by.poster.has_sends() && !by.poster.has_receives())
    }
}

fn sleep_max(mut patiences: impl Iterator<Item = NotReady>) -> Duration {
    match patiences.all(|one| one == NotReady::WithoutEnd) {
        true => Duration::MAX,
        false => SLEEP_MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_adapter_sleeps_shortly_where_a_receive_may_come_too_late() {
        let (with, without) = (NotReady::ForSomeTime, NotReady::WithoutEnd);
        for (patiences, longest) in [
            (&[][..], Duration::MAX),
            (&[without], Duration::MAX),
            (&[without, with], SLEEP_MAX),
        ] {
            assert_eq!(sleep_max(patiences.iter().copied()), longest);
        }
    }
}
