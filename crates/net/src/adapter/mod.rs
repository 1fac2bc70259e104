//! The engine of the software adapter. A message is one packet: it arrives whole or not at all.
//!
//! ```text
//!  send ring ─fetch─► pending, in order ─► wire (faults) ─► execute at the peer, by sequence
//!                        ▲    └─ timeout, not ready: again ─┘        │
//!                        └────────── answer ◄── wire (faults) ◄──────┘
//!                     front is answered: completion
//! ```

mod by_verbs;
mod carried;
mod execute;
mod receiver;
mod remote;
mod sender;
mod setup;
mod work;

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    sync::{
        Arc,
        atomic::{Ordering, fence},
    },
};

use smallvec::SmallVec;

use crate::{
    completions::{CQN_FIRST, Completions, CompletionsSetup, Watch},
    cqe::Completion,
    distant::Registered,
    doorbell::Sharer,
    error::Error,
    faults::{Network, Wire},
    keys::{Access, Keys},
    memory::Mapped,
    ring::Ring,
    wqe::MESSAGE_BYTES_MAX,
};
pub(crate) use by_verbs::Ask;
use by_verbs::{AtDevice, ByVerbs};
pub(crate) use carried::Call;
use carried::Carried;
pub(crate) use receiver::Receiver;
pub use receiver::{RECEIVE_BYTES, SharedReceives};
pub use remote::REMOTE_BYTES_MAX;
pub(crate) use remote::{HEADER_BYTES, Header, Sink};
use remote::{Outgoing, TIMEOUT_NS};
pub use sender::Retries;
use sender::Sender;
pub use setup::PairSetup;
use work::Answer;

/// Queue pairs of an adapter.
const PAIRS_MAX: usize = 65_536;
/// Completion queues of an adapter.
const COMPLETIONS_MAX: usize = 131_072;
/// Number of the first queue pair; smaller ones are special on real adapters.
const QPN_FIRST: u32 = 0x100;

/// State of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Not connected: nothing is fetched.
    Reset,
    Ready,
    /// All that is posted is flushed, until it is reset.
    Error,
}

/// The other end of a connection: a queue pair, and how often it was reset before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    pub qpn: u32,
    pub epoch: u32,
}

/// Counts of a queue pair since its last reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    pub state: State,
    pub epoch: u32,
    /// Entries of the send queue that succeeded.
    pub succeeded: u64,
    /// Entries that were flushed.
    pub flushed: u64,
    /// Index and syndrome of the entry that failed first.
    pub failure: Option<(u16, u8)>,
    /// Messages that were sent again.
    pub retries: u64,
    /// Doorbells with another queue pair's number.
    pub foreign_doorbells: u64,
}

/// Properties of a queue pair that both of its halves need.
#[derive(Clone, Copy, Debug)]
struct Pair {
    qpn: u32,
    domain: u32,
    epoch: u32,
    state: State,
    peer: Option<Peer>,
    /// The peer is in another process.
    is_remote: bool,
    /// A device executes what is sent to it.
    is_by_verbs: bool,
    /// Nothing that is sent to it arrives.
    unreachable: bool,
    /// Messages are sent once, and nobody answers.
    is_unreliable: bool,
    /// Remote operations that it takes.
    access: Access,
    send_completions: usize,
    receive_completions: usize,
}

/// A message on its way.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    at_ns: u64,
    /// Makes the order of messages with one time that in which they were sent.
    order: u64,
    /// The queue pair that sent the request, and its epoch then.
    pair: usize,
    epoch: u32,
    sequence: u64,
    answer: Option<Answer>,
}

/// An adapter without thread and clock.
#[derive(Debug)]
pub struct Adapter {
    now_ns: u64,
    /// The peer of the message that is executed is to be told of it.
    is_solicited: bool,
    qpn_first: u32,
    /// Most bytes of a message, which longer ones are refused for.
    message_bytes_max: u64,
    /// Connections of the device, by the number of the queue pair. They end before the memory does.
    by_verbs: HashMap<usize, ByVerbs>,
    at_device: Option<AtDevice>,
    keys: Keys,
    completions: Vec<Option<Completions>>,
    pairs: Vec<Option<Pair>>,
    senders: Vec<Option<Box<Sender>>>,
    receivers: Vec<Option<Receiver>>,
    wire: Wire,
    events: BinaryHeap<Reverse<Event>>,
    order: u64,
    /// Frames for other processes, by the number of the queue pair.
    outgoing: HashMap<usize, Outgoing>,
    /// Rings that carry such frames.
    carried: Vec<Carried>,
    /// Words by which posters see that they have to rouse.
    told: Vec<Mapped>,
    /// The pair whose turn is first: behind the last one of a poll that was left early.
    first_served: usize,
}

impl Adapter {
    #[must_use]
    pub fn new(network: Network) -> Adapter {
        Adapter {
            now_ns: 0,
            is_solicited: false,
            qpn_first: QPN_FIRST,
            message_bytes_max: MESSAGE_BYTES_MAX,
            by_verbs: HashMap::new(),
            at_device: None,
            keys: Keys::default(),
            completions: Vec::new(),
            pairs: Vec::new(),
            senders: Vec::new(),
            receivers: Vec::new(),
            wire: Wire::new(network),
            events: BinaryHeap::new(),
            order: 0,
            outgoing: HashMap::new(),
            carried: Vec::new(),
            told: Vec::new(),
            first_served: 0,
        }
    }

    /// Numbers queue pairs from here on, so that those of several adapters differ. Called before
    /// the first is made.
    pub fn number_from(&mut self, qpn_first: u32) {
        self.qpn_first = qpn_first;
    }

    /// Limits messages within this process, too, to the bytes of those to other processes.
    pub fn limit_messages(&mut self) {
        self.message_bytes_max = REMOTE_BYTES_MAX as u64;
    }

    /// Registers memory. Queue pairs of the domain use it by the key, locally and remotely.
    pub fn register(
        &mut self,
        domain: u32,
        memory: impl Into<Registered>,
        access: Access,
    ) -> Result<u32, Error> {
        let key = self.keys.add(domain, memory.into(), access)?;
        if let Err(error) = self.register_at_device(key, access) {
            self.keys.remove(key)?;
            return Err(error);
        }
        Ok(key)
    }

    /// Ends a registration. Operations that name the key fail from now on.
    pub fn unregister(&mut self, key: u32) -> Result<(), Error> {
        self.forget_at_device(key);
        self.keys.remove(key)
    }

    pub fn create_completions(&mut self, setup: CompletionsSetup) -> Result<u32, Error> {
        let new = Some(Completions::new(setup)?);
        let free = self.completions.iter().position(Option::is_none);
        let number = free.unwrap_or(self.completions.len());
        if number >= COMPLETIONS_MAX {
            return Err(Error::TooMany {
                what: "completion queues",
                count_max: COMPLETIONS_MAX,
            });
        }
        if free.is_none() {
            self.completions.push(None);
        }
        self.completions[number] = new;
        Ok(number as u32)
    }

    /// Makes a completion queue start again, in other memory.
    pub fn reset_completions(&mut self, number: u32, setup: CompletionsSetup) -> Result<(), Error> {
        let place = self
            .completions
            .get_mut(number as usize)
            .ok_or(Error::NoCompletions(number))?;
        *place = Some(Completions::new(setup)?);
        Ok(())
    }

    pub fn destroy_completions(&mut self, number: u32) -> Result<(), Error> {
        let place = self
            .completions
            .get_mut(number as usize)
            .ok_or(Error::NoCompletions(number))?;
        *place = None;
        Ok(())
    }

    /// Makes a queue pair, which is [`State::Reset`] until it is connected. Returns its number.
    pub fn create_pair(&mut self, setup: PairSetup) -> Result<u32, Error> {
        let (sender, receiver) = setup.parts()?;
        for number in [setup.send_completions, setup.receive_completions] {
            if self
                .completions
                .get(number as usize)
                .is_none_or(Option::is_none)
            {
                return Err(Error::NoCompletions(number));
            }
        }
        let free = self.pairs.iter().position(Option::is_none);
        let number = free.unwrap_or(self.pairs.len());
        if number >= PAIRS_MAX {
            return Err(Error::TooMany {
                what: "queue pairs",
                count_max: PAIRS_MAX,
            });
        }
        if free.is_none() {
            self.pairs.push(None);
            self.senders.push(None);
            self.receivers.push(None);
        }
        let qpn = self.qpn_first + number as u32;
        self.pairs[number] = Some(Pair {
            qpn,
            domain: setup.domain,
            // An epoch of the slot's last queue pair must not fit this one.
            epoch: self.order as u32,
            state: State::Reset,
            peer: None,
            is_remote: false,
            is_by_verbs: false,
            unreachable: false,
            is_unreliable: false,
            access: Access::ALL,
            send_completions: setup.send_completions as usize,
            receive_completions: setup.receive_completions as usize,
        });
        self.senders[number] = Some(Box::new(sender));
        self.receivers[number] = Some(receiver);
        self.order += 1;
        self.note_sharers(number);
        Ok(qpn)
    }

    /// Tells queue pairs that have one doorbell, of which `number` is new.
    fn note_sharers(&mut self, number: usize) {
        let doorbell = self.senders[number].as_mut().map(|of| of.ring().doorbell());
        let rings = self.senders.iter_mut().enumerate();
        let rings = rings.filter_map(|(at, of)| Some((at, of.as_mut()?.ring())));
        let of_it = rings.filter(|(_, ring)| Some(ring.doorbell()) == doorbell);
        let mut rings: SmallVec<[(usize, &mut Ring); 2]> = of_it.collect();
        if rings.len() < 2 {
            return;
        }
        // Those that share it already know one another.
        rings.sort_by_key(|(_, ring)| ring.sharer().is_none());
        for new in 0..rings.len() {
            if rings[new].1.sharer().is_none() {
                let qpn = self.qpn_first + rings[new].0 as u32;
                let sharer = Sharer::new(qpn, rings[0].1.sharer());
                rings[new].1.share_doorbell(sharer);
            }
        }
    }

    /// Returns what a peer's [`Adapter::connect`] needs.
    pub fn end_of(&self, qpn: u32) -> Result<Peer, Error> {
        let pair = self.pair(qpn)?.1;
        Ok(Peer {
            qpn,
            epoch: pair.epoch,
        })
    }

    /// Returns what the peer of a queue pair needs that is not connected.
    pub(crate) fn unconnected(&self, qpn: u32) -> Result<Peer, Error> {
        let (number, pair) = self.pair(qpn)?;
        match pair.state {
            // A meeting by verbs may be under way.
            State::Reset if !self.by_verbs.contains_key(&number) => self.end_of(qpn),
            _ => Err(Error::Connected(qpn)),
        }
    }

    /// Makes a queue pair ready to send and receive.
    pub fn connect(&mut self, qpn: u32, peer: Peer) -> Result<(), Error> {
        let number = self.pair(qpn)?.0;
        if let Some(pair) = &mut self.pairs[number] {
            (pair.peer, pair.state) = (Some(peer), State::Ready);
            (pair.is_remote, pair.is_by_verbs) = (false, false);
        }
        Ok(())
    }

    /// Puts a queue pair back to its start, in other memory, with a new epoch: what was sent to or
    /// by the old one is dropped. It has to be connected again, and its peer, too.
    pub fn reset(&mut self, qpn: u32, setup: PairSetup) -> Result<(), Error> {
        let number = self.pair(qpn)?.0;
        let (sender, receiver) = setup.parts()?;
        if let Some(pair) = &mut self.pairs[number] {
            (pair.peer, pair.state, pair.epoch) = (None, State::Reset, pair.epoch.wrapping_add(1));
            if pair.is_remote {
                (pair.is_remote, pair.unreachable) = (false, false);
                pair.is_by_verbs = false;
            }
            let queue = self.completions.get_mut(pair.send_completions);
            if let Some(queue) = queue.and_then(Option::as_mut) {
                queue.forget_error();
            }
        }
        self.forget_link(number);
        self.senders[number] = Some(Box::new(sender));
        self.receivers[number] = Some(receiver);
        self.note_sharers(number);
        Ok(())
    }

    /// Lets a queue pair take shared receives in place of its own, until it is reset. They are not
    /// flushed.
    pub fn share_receives(&mut self, qpn: u32, shared: Arc<SharedReceives>) -> Result<(), Error> {
        let number = self.pair(qpn)?.0;
        if let Some(receiver) = &mut self.receivers[number] {
            receiver.shared = Some(shared);
        }
        Ok(())
    }

    /// Makes a queue pair's connection an unreliable one: an entry succeeds when it is sent, and
    /// reads and atomics are refused. Called before it is connected.
    pub fn set_unreliable(&mut self, qpn: u32) -> Result<(), Error> {
        let number = self.pair(qpn)?.0;
        if let Some(pair) = &mut self.pairs[number] {
            pair.is_unreliable = true;
        }
        Ok(())
    }

    /// Puts a queue pair into [`State::Error`]: all that is posted is flushed.
    pub fn fail(&mut self, qpn: u32) -> Result<(), Error> {
        let number = self.pair(qpn)?.0;
        self.set_error(number);
        Ok(())
    }

    /// Limits the remote operations that a queue pair takes; others are refused with 12.
    pub fn set_access(&mut self, qpn: u32, access: Access) -> Result<(), Error> {
        let number = self.pair(qpn)?.0;
        if let Some(pair) = &mut self.pairs[number] {
            pair.access = access;
        }
        Ok(())
    }

    /// Sets a queue pair's patience with its peer.
    pub fn set_retries(&mut self, qpn: u32, retries: Retries) -> Result<(), Error> {
        let (number, pair) = self.pair(qpn)?;
        if let Some(sender) = &mut self.senders[number] {
            sender.set_retries(retries);
            if pair.is_remote {
                sender.wait_longer(TIMEOUT_NS);
            }
        }
        Ok(())
    }

    /// Calls a program at the next completion for which it has armed the watch.
    pub fn watch(&mut self, number: u32, watch: Arc<Watch>) -> Result<(), Error> {
        let queue = self.completions.get_mut(number as usize);
        let queue = queue.and_then(Option::as_mut);
        queue.ok_or(Error::NoCompletions(number))?.watch = Some(watch);
        Ok(())
    }

    /// Makes a queue pair unreachable, or reachable again: a cable that is pulled.
    pub fn set_unreachable(&mut self, qpn: u32, unreachable: bool) -> Result<(), Error> {
        let number = self.pair(qpn)?.0;
        if let Some(pair) = &mut self.pairs[number] {
            pair.unreachable = unreachable;
        }
        Ok(())
    }

    pub fn destroy_pair(&mut self, qpn: u32) -> Result<(), Error> {
        let number = self.pair(qpn)?.0;
        self.order += 1;
        self.forget_link(number);
        (
            self.pairs[number],
            self.senders[number],
            self.receivers[number],
        ) = (None, None, None);
        Ok(())
    }

    pub fn status(&self, qpn: u32) -> Result<Status, Error> {
        let (number, pair) = self.pair(qpn)?;
        let sender = self.senders[number].as_ref().ok_or(Error::NoPair(qpn))?;
        Ok(sender.status(&pair))
    }

    /// Serves all queues once. Returns the number of entries fetched and messages delivered.
    pub fn poll(&mut self, now_ns: u64) -> usize {
        self.poll_while(now_ns, || true)
    }

    /// Polls as long as a function says so, which is asked after each queue pair. The next poll
    /// goes on behind it. To have left any counts as work.
    pub fn poll_while(&mut self, now_ns: u64, goes_on: impl Fn() -> bool) -> usize {
        self.now_ns = now_ns;
        let mut done = self.deliver_due() + self.carry_in();
        let (first, count) = (std::mem::take(&mut self.first_served), self.pairs.len());
        for turn in 1..=count {
            let number = (first + turn - 1) % count;
            done += self.serve(number);
            if turn < count && !goes_on() {
                self.first_served = (number + 1) % count;
                done += 1;
                break;
            }
        }
        done + self.carry_out()
    }

    /// Lets posters see by a word that the adapter sleeps.
    pub(crate) fn tell_posters(&mut self, word: Mapped) {
        self.told.push(word);
    }

    /// Says to posters that this adapter sleeps, or does not. A post before it is seen by a poll.
    pub(crate) fn lie_down(&self, is_asleep: bool) {
        for word in &self.told {
            word.u64(0).store(is_asleep.into(), Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
    }

    /// Returns true if something is going to happen by itself, after a time or at another thread's
    /// next step: only posts and peers wake an adapter that waits for neither.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.events.is_empty()
            || self.outgoing.values().any(|one| !one.is_empty())
            || self.pairs.iter().zip(&self.senders).any(|(pair, sender)| {
                // One that is not connected looks at nothing.
                let is_looking = pair.is_some_and(|pair| pair.state != State::Reset);
                is_looking && sender.as_ref().is_some_and(|one| one.is_waiting())
            })
    }

    fn pair(&self, qpn: u32) -> Result<(usize, Pair), Error> {
        let number = qpn.checked_sub(self.qpn_first).ok_or(Error::NoPair(qpn))? as usize;
        let pair = self
            .pairs
            .get(number)
            .copied()
            .flatten()
            .ok_or(Error::NoPair(qpn))?;
        Ok((number, pair))
    }

    fn set_error(&mut self, number: usize) {
        if let Some(pair) = &mut self.pairs[number] {
            pair.state = State::Error;
        }
    }

    fn complete(&mut self, completions: usize, completion: &Completion) {
        let queue = self
            .completions
            .get_mut(completions)
            .and_then(Option::as_mut);
        if let Some(queue) = queue {
            queue.push(completion);
        }
    }

    /// Counts a completion over which another is written before anybody sees it.
    fn pass_over(&mut self, completions: usize) {
        let queue = self.completions.get_mut(completions);
        if let Some(queue) = queue.and_then(Option::as_mut) {
            queue.pass_over();
        }
    }

    /// Returns true if a completion queue, by the number of it in entries, has had this completion;
    /// `None` if there is no such queue.
    fn has_completed(&self, completions: u32, number: u32) -> Option<bool> {
        let at = completions.checked_sub(CQN_FIRST)? as usize;
        Some(self.completions.get(at)?.as_ref()?.has_had(number))
    }

    fn is_collapsed(&self, completions: usize) -> bool {
        self.completions
            .get(completions)
            .and_then(Option::as_ref)
            .is_some_and(Completions::is_collapsed)
    }

    fn overrun(&self, completions: usize) -> bool {
        self.completions
            .get(completions)
            .and_then(Option::as_ref)
            .is_none_or(|queue| queue.overrun)
    }

    /// Sends a message, or an answer. Returns false if it is lost.
    fn send(
        &mut self,
        pair: usize,
        epoch: u32,
        sequence: u64,
        answer: Option<Answer>,
        bytes: u64,
    ) -> bool {
        let arrival = self.wire.arrival_ns(self.now_ns, bytes);
        if let Some(at_ns) = arrival {
            self.order += 1;
            let order = self.order;
            self.events.push(Reverse(Event {
                at_ns,
                order,
                pair,
                epoch,
                sequence,
                answer,
            }));
        }
        arrival.is_some()
    }

    fn deliver_due(&mut self) -> usize {
        let mut done = 0;
        while self
            .events
            .peek()
            .is_some_and(|Reverse(event)| event.at_ns <= self.now_ns)
        {
            let Some(Reverse(event)) = self.events.pop() else {
                break;
            };
            done += 1;
            let Some(mut sender) = self.senders[event.pair].take() else {
                continue;
            };
            let is_current = self.pairs[event.pair].is_some_and(|pair| pair.epoch == event.epoch);
            if is_current {
                match event.answer {
                    Some(answer) => {
                        self.take_answer(&mut sender, event.pair, event.sequence, answer);
                    }
                    None => self.arrive(&mut sender, &event),
                }
            }
            self.senders[event.pair] = Some(sender);
        }
        done
    }

    /// Executes a request at its peer, and sends the answer back.
    fn arrive(&mut self, sender: &mut Sender, event: &Event) {
        let Some(work) = sender.pending(event.sequence) else {
            return;
        };
        let answer = self.execute(event.pair, event.sequence, work);
        if self.pairs[event.pair].is_some_and(|pair| pair.is_unreliable) {
            // No answer travels: the entry was done when it was sent.
            if let Some(answer) = answer {
                sender.answered(event.sequence, answer, self.now_ns);
            }
        } else if let Some(answer) = answer {
            let bytes = if work.reads() { work.bytes() } else { 0 };
            self.send(event.pair, event.epoch, event.sequence, Some(answer), bytes);
        }
    }
}
