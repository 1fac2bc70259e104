//! The requesting half of a queue pair: what was rung, fetched, sent, and is not answered yet.

use std::collections::VecDeque;

use crate::{
    cqe::{Completion, Kind},
    ring::Ring,
    syndrome::Syndrome,
    wqe::{ENTRIES_MAX, Operation},
};

use super::{
    Adapter, Pair, State, Status,
    remote::{Outgoing, READING_BYTES_MAX},
    work::{Answer, Posted, Work},
};

/// Entries that are fetched and not complete.
const PENDING_MAX: usize = 256;
/// Reads and atomics among them.
const READS_PENDING_MAX: usize = 16;
/// Entries fetched from one queue before the next queue has its turn.
const TURN_MAX: usize = 16;
/// Bytes that one queue moves in this process before the next has its turn, unless one entry moves
/// more.
const TURN_BYTES_MAX: u64 = 16 << 20;
const NOT_READY_WITHOUT_END: u32 = 7;

/// Patience with a silent peer, and with one that has no receive posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retries {
    pub timeout_ns: u64,
    pub count_max: u32,
    pub not_ready_ns: u64,
    /// 7 is without end, as on real adapters.
    pub not_ready_count_max: u32,
}

impl Default for Retries {
    fn default() -> Retries {
        Retries {
            timeout_ns: 20_000_000,
            count_max: 7,
            not_ready_ns: 100_000,
            not_ready_count_max: 6,
        }
    }
}

#[derive(Debug)]
pub(super) struct Sender {
    ring: Ring,
    retries: Retries,
    /// A wrong entry was fetched: nothing behind it is.
    is_broken: bool,
    /// An entry has failed before it was sent by verbs: nothing behind it is sent.
    is_stopped: bool,
    pending: VecDeque<Work>,
    /// Sequence number of the first pending entry.
    first: u64,
    /// Pending entries that were sent.
    sent: usize,
    reads_pending: usize,
    resume_at_ns: u64,
    progress_at_ns: u64,
    timeouts: u32,
    /// Movement of the stream to the peer at the last timeout.
    movement: (u64, usize),
    not_ready: u32,
    succeeded: u64,
    flushed: u64,
    failure: Option<(u16, u8)>,
    resent: u64,
}

impl Sender {
    pub(super) fn new(ring: Ring, retries: Retries) -> Sender {
        Sender {
            ring,
            retries,
            is_broken: false,
            is_stopped: false,
            pending: VecDeque::new(),
            first: 0,
            sent: 0,
            reads_pending: 0,
            resume_at_ns: 0,
            progress_at_ns: 0,
            timeouts: 0,
            movement: (0, 0),
            not_ready: 0,
            succeeded: 0,
            flushed: 0,
            failure: None,
            resent: 0,
        }
    }

    pub(super) fn status(&self, pair: &Pair) -> Status {
        Status {
            state: pair.state,
            epoch: pair.epoch,
            succeeded: self.succeeded,
            flushed: self.flushed,
            failure: self.failure,
            retries: self.resent,
            foreign_doorbells: self.ring.foreign_doorbells,
        }
    }

    pub(super) fn pending(&self, sequence: u64) -> Option<&Work> {
        self.pending
            .get(usize::try_from(sequence.checked_sub(self.first)?).ok()?)
    }

    /// Notes the peer's answer. Answers to what is complete, or twice, change nothing.
    pub(super) fn answered(&mut self, sequence: u64, answer: Answer, now_ns: u64) {
        let Some(at) = sequence
            .checked_sub(self.first)
            .and_then(|at| usize::try_from(at).ok())
        else {
            return;
        };
        let Some(work) = self.pending.get_mut(at) else {
            return;
        };
        if work.answer.is_some() {
            return;
        }
        if answer == Answer::NotReady {
            self.not_ready += 1;
            let limit = self.retries.not_ready_count_max;
            if limit != NOT_READY_WITHOUT_END && self.not_ready > limit {
                work.answer = Some(Answer::Failed(Syndrome::RECEIVER_NOT_READY));
            } else {
                self.sent = self.sent.min(at);
                self.resume_at_ns = now_ns + self.retries.not_ready_ns;
                self.resent += 1;
            }
        } else {
            (self.not_ready, self.timeouts) = (0, 0);
            work.answer = Some(answer);
        }
        self.progress_at_ns = now_ns;
    }

    pub(super) fn ring(&mut self) -> &mut Ring {
        &mut self.ring
    }

    pub(super) fn set_retries(&mut self, retries: Retries) {
        self.retries = retries;
    }

    pub(super) fn wait_longer(&mut self, timeout_ns: u64) {
        self.retries.timeout_ns = self.retries.timeout_ns.max(timeout_ns);
    }

    /// Returns true if an entry is not answered, or rung for and not yet in the record.
    pub(super) fn is_waiting(&self) -> bool {
        self.ring.is_ahead() || !self.pending.is_empty()
    }

    /// Returns true if the answer to an entry, if it reads, has room beside those that are to come.
    fn may_read(&self, operation: &Operation) -> bool {
        let read = |operation: &Operation| match operation {
            Operation::Read { .. } => operation.bytes(),
            _ => 0,
        };
        let bytes = read(operation);
        // The entry itself counts as sent already.
        let sent = self.pending.iter().take(self.sent.saturating_sub(1));
        let awaited = sent.filter(|work| work.answer.is_none());
        let awaited = awaited.filter_map(|work| work.operation.as_ref());
        let coming = if bytes == 0 {
            0
        } else {
            awaited.map(read).sum()
        };
        coming == 0 || coming + bytes <= READING_BYTES_MAX
    }

    /// Makes all that is not answered be looked at again.
    pub(super) fn send_again(&mut self) {
        (self.sent, self.resume_at_ns) = (0, 0);
    }

    fn push_wrong(&mut self, opcode: u8, syndrome: Syndrome) {
        let answer = Some(Answer::Failed(syndrome));
        let index = self.ring.consumer();
        self.pending.push_back(Work {
            index,
            opcode,
            signalled: true,
            is_solicited: false,
            operation: None,
            answer,
        });
        self.is_broken = true;
    }

    /// Notes what has become of an entry. Returns false if nothing behind it may be sent now.
    fn note_posted(&mut self, sequence: u64, posted: Posted, now_ns: u64) -> bool {
        match posted {
            Posted::AtDevice => true,
            Posted::NotYet => {
                self.sent -= 1;
                false
            }
            Posted::Answered(answer) => {
                self.answered(sequence, answer, now_ns);
                self.is_stopped = matches!(answer, Answer::Failed(_));
                !self.is_stopped
            }
        }
    }

    /// Fails all that was sent and has no answer: the device is gone. Returns how many.
    pub(super) fn lose(&mut self) -> usize {
        let sent = self.pending.iter_mut().take(self.sent);
        let lost = sent.filter(|work| work.answer.is_none());
        lost.map(|work| work.answer = Some(Answer::Failed(Syndrome::LOCAL_OPERATION)))
            .count()
    }

    fn is_late(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.progress_at_ns) > self.retries.timeout_ns
    }

    /// Fails what is not answered if a peer in another process is silent for too long: it answers
    /// nothing, and no byte moves. Nothing is sent again, since what carries it loses nothing.
    fn check_silence(&mut self, now_ns: u64, outgoing: Option<&Outgoing>) {
        if self.sent == 0 || !self.is_late(now_ns) {
            return;
        }
        self.progress_at_ns = now_ns;
        let movement = outgoing.map_or(self.movement, Outgoing::movement);
        if movement != self.movement {
            (self.movement, self.timeouts) = (movement, 0);
            return;
        }
        self.timeouts += 1;
        if self.timeouts > self.retries.count_max {
            self.fail_late();
        }
    }

    fn fail_late(&mut self) {
        let late = self.pending.iter_mut().find(|work| work.answer.is_none());
        if let Some(work) = late {
            work.answer = Some(Answer::Failed(Syndrome::RETRIES_EXCEEDED));
        }
    }

    /// Sends unanswered entries again if nothing was answered for too long.
    fn check_time(&mut self, now_ns: u64) {
        // After a timeout there may be no room to send them again: their time goes on.
        let has_unanswered = self.sent > 0 || self.timeouts > 0 && !self.pending.is_empty();
        if !has_unanswered || !self.is_late(now_ns) {
            return;
        }
        self.progress_at_ns = now_ns;
        self.timeouts += 1;
        if self.timeouts > self.retries.count_max {
            self.fail_late();
        } else {
            self.resent += self.sent as u64;
            self.sent = 0;
        }
    }
}

impl Adapter {
    /// Serves the send queue of one pair: fetches, sends, completes, or flushes.
    pub(super) fn serve(&mut self, number: usize) -> usize {
        let Some(pair) = self.pairs[number] else {
            return 0;
        };
        let Some(mut sender) = self.senders[number].take() else {
            return 0;
        };
        let done = match pair.state {
            State::Reset => 0,
            State::Ready if self.overrun(pair.send_completions) => {
                self.set_error(number);
                0
            }
            State::Ready => {
                // What a message needs is posted before what may need it.
                let posted = self.post_receives(number, &pair);
                let fetched = self.fetch(&mut sender, &pair);
                self.send_pending(&mut sender, number, &pair);
                let taken = self.take_by_verbs(&mut sender, number, &pair);
                posted + fetched + taken + self.complete_front(&mut sender, number, &pair)
            }
            State::Error => self.flush(&mut sender, number, &pair),
        };
        self.senders[number] = Some(sender);
        done
    }

    fn fetch(&mut self, sender: &mut Sender, pair: &Pair) -> usize {
        let mut fetched = 0;
        while fetched < TURN_MAX && sender.pending.len() < PENDING_MAX && !sender.is_broken {
            let posted = sender.ring.posted(pair.qpn);
            if posted == 0 {
                break;
            }
            let (entry, blocks) = match sender.ring.fetch(pair.qpn, posted) {
                Ok(fetched) => fetched,
                Err((opcode, syndrome)) => {
                    sender.push_wrong(opcode, syndrome);
                    return fetched + 1;
                }
            };
            let reads = entry.operation.reads();
            if (entry.flags.fenced() && sender.reads_pending > 0)
                || (reads && sender.reads_pending >= READS_PENDING_MAX)
            {
                break;
            }
            fetched += 1;
            let opcode = entry.operation.opcode();
            let checked = match reads && pair.is_unreliable {
                true => Err(Syndrome::LOCAL_OPERATION),
                false => self.check_local(pair.domain, &entry.operation),
            };
            if let Err(syndrome) = checked {
                sender.push_wrong(opcode, syndrome);
                return fetched;
            }
            if sender.pending.is_empty() {
                sender.progress_at_ns = self.now_ns;
            }
            sender.reads_pending += usize::from(reads);
            let (index, signalled) = (entry.index, entry.flags.signalled());
            let is_solicited = entry.flags.solicited();
            let operation = Some(entry.operation);
            sender.pending.push_back(Work {
                index,
                opcode,
                signalled,
                is_solicited,
                operation,
                answer: None,
            });
            sender.ring.pass(blocks);
        }
        fetched
    }

    fn send_pending(&mut self, sender: &mut Sender, number: usize, pair: &Pair) {
        if pair.is_remote && !pair.is_by_verbs {
            sender.check_silence(self.now_ns, self.outgoing.get(&number));
        } else if !pair.is_unreliable && !pair.is_by_verbs {
            sender.check_time(self.now_ns);
        }
        let mut moved = 0;
        while sender.sent < sender.pending.len()
            && self.now_ns >= sender.resume_at_ns
            && !sender.is_stopped
        {
            let sequence = sender.first + sender.sent as u64;
            let work = &sender.pending[sender.sent];
            sender.sent += 1;
            if work.answer.is_some() {
                continue;
            }
            let Some(operation) = &work.operation else {
                continue;
            };
            if pair.is_remote && pair.unreachable {
                let answer = Answer::Failed(Syndrome::RETRIES_EXCEEDED);
                sender.answered(sequence, answer, self.now_ns);
                continue;
            }
            match self.may_begin(operation) {
                Some(true) => {}
                Some(false) => {
                    sender.sent -= 1;
                    break;
                }
                None => {
                    let answer = Answer::Failed(Syndrome::LOCAL_OPERATION);
                    sender.answered(sequence, answer, self.now_ns);
                    continue;
                }
            }
            if pair.is_by_verbs {
                let posted = self.post_by_verbs(number, sequence, operation);
                if !sender.note_posted(sequence, posted, self.now_ns) {
                    break;
                }
            } else if pair.is_remote {
                if !self.is_roomy(number) || !sender.may_read(operation) {
                    sender.sent -= 1;
                    break;
                }
                if let Some(answer) = self.request(number, pair, sequence, work) {
                    sender.answered(sequence, answer, self.now_ns);
                }
            } else if self.wire.is_perfect() {
                let bytes = work.bytes();
                if moved > 0 && moved + bytes > TURN_BYTES_MAX {
                    sender.sent -= 1;
                    break;
                }
                moved += bytes;
                if let Some(answer) = self.execute(number, sequence, work) {
                    sender.answered(sequence, answer, self.now_ns);
                }
            } else {
                let bytes = if work.reads() { 0 } else { work.bytes() };
                let is_sent = self.send(number, pair.epoch, sequence, None, bytes);
                if !is_sent && pair.is_unreliable {
                    sender.answered(sequence, Answer::Done, self.now_ns);
                }
            }
        }
    }

    /// Returns false if an entry has to wait for a completion; `None` if there is none to wait for.
    fn may_begin(&self, operation: &Operation) -> Option<bool> {
        match operation {
            Operation::Wait {
                completions,
                number,
            } => self.has_completed(*completions, *number),
            _ => Some(true),
        }
    }

    /// Notes the peer's answer, and completes what is answered: the next message may be the reply
    /// of the peer's program, which completes after it.
    pub(super) fn take_answer(
        &mut self,
        sender: &mut Sender,
        number: usize,
        sequence: u64,
        answer: Answer,
    ) {
        sender.answered(sequence, answer, self.now_ns);
        let pair = self.pairs[number].filter(|pair| pair.state == State::Ready);
        if let Some(pair) = pair.filter(|pair| !self.overrun(pair.send_completions)) {
            self.complete_front(sender, number, &pair);
        }
    }

    /// Completes what is answered, in order. The first failure ends the queue.
    fn complete_front(&mut self, sender: &mut Sender, number: usize, pair: &Pair) -> usize {
        let mut done = 0;
        // Of completions that are written over one another the last is enough.
        let is_collapsed = self.is_collapsed(pair.send_completions);
        let mut last = None;
        while let Some(answer) = sender.pending.front().and_then(|work| work.answer) {
            let Some(work) = sender.pending.pop_front() else {
                break;
            };
            done += 1;
            sender.first += 1;
            sender.sent = sender.sent.saturating_sub(1);
            sender.reads_pending -= usize::from(work.reads());
            let answer = self.land(pair.domain, &work, answer);
            let (qpn, opcode, index) = (pair.qpn, work.opcode, work.index);
            if let Answer::Failed(syndrome) = answer {
                sender.failure = Some((index, syndrome.0));
                if let Some(last) = last {
                    self.complete(pair.send_completions, &last);
                }
                let kind = Kind::RequesterError;
                let failure = Completion::failure(kind, qpn, opcode, index, syndrome);
                self.complete(pair.send_completions, &failure);
                if work.operation.is_none() {
                    sender.ring.skip();
                }
                self.set_error(number);
                return done + self.flush(sender, number, pair);
            }
            sender.succeeded += 1;
            if work.signalled {
                let bytes = work.bytes() as u32;
                let success = Completion::success(qpn, opcode, index, bytes, self.now_ns);
                if is_collapsed {
                    if last.replace(success).is_some() {
                        self.pass_over(pair.send_completions);
                    }
                } else {
                    self.complete(pair.send_completions, &success);
                }
            }
        }
        if let Some(last) = last {
            self.complete(pair.send_completions, &last);
        }
        done
    }

    /// Completes everything that was fetched or posted as flushed, receives too, once a device has
    /// given back what it had.
    fn flush(&mut self, sender: &mut Sender, number: usize, pair: &Pair) -> usize {
        if !self.has_all_back(sender, number, pair) {
            return 0;
        }
        let mut done = 0;
        if pair.is_by_verbs && sender.failure.is_none() {
            // What had succeeded when the queue failed.
            done += self.complete_front(sender, number, pair);
        }
        let flushed = Syndrome::FLUSHED;
        let mut pending = std::mem::take(&mut sender.pending);
        (sender.sent, sender.reads_pending) = (0, 0);
        for work in pending.drain(..) {
            // A wrong entry was not passed yet.
            let opcode = match work.operation {
                Some(_) => work.opcode,
                None => sender.ring.skip().1,
            };
            let kind = Kind::RequesterError;
            let of = Completion::failure(kind, pair.qpn, opcode, work.index, flushed);
            self.complete(pair.send_completions, &of);
            done += 1;
        }
        let most = done + ENTRIES_MAX;
        while done < most
            && let Some((index, opcode)) = sender.ring.flush(pair.qpn)
        {
            let of = Completion::failure(Kind::RequesterError, pair.qpn, opcode, index, flushed);
            self.complete(pair.send_completions, &of);
            done += 1;
        }
        sender.flushed += done as u64;
        done + self.flush_receives(number, pair)
    }

    fn flush_receives(&mut self, number: usize, pair: &Pair) -> usize {
        let mut done = 0;
        let receiver = self.receivers[number].take_if(|of| of.shared.is_none());
        let Some(mut receiver) = receiver else {
            return 0;
        };
        while done < ENTRIES_MAX
            && let Some((index, _)) = receiver.next()
        {
            receiver.take();
            let kind = Kind::ResponderError;
            let of = Completion::failure(kind, pair.qpn, 0, index, Syndrome::FLUSHED);
            self.complete(pair.receive_completions, &of);
            done += 1;
        }
        self.receivers[number] = Some(receiver);
        done
    }
}
