//! The execution of one message in registered memory: all of it, or nothing.

use crate::{
    cqe::{Completion, Kind},
    distant::{Gone, Side},
    keys::{Access, Place},
    syndrome::Syndrome,
    wqe::{Data, MESSAGE_BYTES_MAX, Operation, Remote, Segment},
};

use super::{
    Adapter, Pair, State,
    work::{ATOMIC_BYTES, Answer, Work},
};

impl Adapter {
    /// Checks what the requester's adapter checks before it sends anything.
    pub(super) fn check_local(&self, domain: u32, operation: &Operation) -> Result<(), Syndrome> {
        let (segments, access) = operation.local();
        let bytes = operation.bytes();
        // What a dump reads does not travel.
        let bytes_max = match operation {
            Operation::Dump { .. } => MESSAGE_BYTES_MAX,
            _ => self.message_bytes_max,
        };
        if bytes > bytes_max
            || (operation.is_atomic() && segments.iter().any(|one| one.bytes() != bytes))
        {
            return Err(Syndrome::LOCAL_LENGTH);
        }
        if let Operation::Wait {
            completions,
            number,
        } = operation
        {
            let awaited = self.has_completed(*completions, *number);
            awaited.ok_or(Syndrome::LOCAL_OPERATION)?;
        }
        for one in segments {
            self.keys
                .find(domain, one.lkey, one.address, one.bytes(), access)
                .ok_or(Syndrome::LOCAL_PROTECTION)?;
        }
        Ok(())
    }

    /// Executes a request at the peer of pair `from`; `None` if nobody answers.
    pub(super) fn execute(&mut self, from: usize, sequence: u64, work: &Work) -> Option<Answer> {
        let operation = work.operation.as_ref()?;
        self.is_solicited = work.is_solicited;
        if matches!(operation, Operation::Nop) && self.pairs[from]?.peer.is_none() {
            return Some(Answer::Done);
        }
        let requester = self.pairs[from]?;
        if requester.is_unreliable {
            return Some(self.execute_once(&requester, sequence, operation));
        }
        let (to, responder) = self.reach(&requester)?;
        self.execute_at(&requester, to, &responder, sequence, operation)
    }

    /// Executes a request that nobody answers. One that its peer refuses is lost, as is one that
    /// comes after a later one.
    fn execute_once(&mut self, requester: &Pair, sequence: u64, operation: &Operation) -> Answer {
        let reached = self.reach(requester);
        let Some((to, responder)) = reached else {
            return Answer::Done;
        };
        let Some(mut receiver) = self.receivers[to].take() else {
            return Answer::Done;
        };
        let mut answer = Answer::Done;
        if sequence >= receiver.expected {
            receiver.expected = sequence + 1;
            answer = self.execute_first(requester, &responder, operation, &mut receiver);
            if answer == Answer::Failed(Syndrome::REMOTE_OPERATION) {
                // Its receive has failed.
                self.set_error(to);
            }
        }
        self.receivers[to] = Some(receiver);
        match answer {
            Answer::Failed(Syndrome::LOCAL_PROTECTION) => answer,
            _ => Answer::Done,
        }
    }

    /// Executes a request at a queue pair that it has reached.
    pub(super) fn execute_at(
        &mut self,
        requester: &Pair,
        to: usize,
        responder: &Pair,
        sequence: u64,
        operation: &Operation,
    ) -> Option<Answer> {
        let mut receiver = self.receivers[to].take()?;
        let answer = if sequence > receiver.expected {
            None
        } else if sequence < receiver.expected {
            // It arrives twice: the answer was lost. A read reads again, an atomic does not.
            match operation {
                Operation::Read { remote, into } => {
                    Some(self.read(requester, responder, *remote, into))
                }
                atomic if atomic.is_atomic() => receiver.kept(sequence).map(Answer::Value),
                _ => Some(Answer::Done),
            }
        } else {
            let answer = self.execute_first(requester, responder, operation, &mut receiver);
            match answer {
                Answer::NotReady => {}
                Answer::Failed(Syndrome::LOCAL_PROTECTION) => {}
                Answer::Failed(_) => self.set_error(to),
                Answer::Value(value) => {
                    receiver.keep(sequence, value);
                    receiver.expected += 1;
                }
                Answer::Done => receiver.expected += 1,
            }
            Some(answer)
        };
        self.receivers[to] = Some(receiver);
        answer
    }

    /// Returns the peer of a queue pair, if it is connected to this one and alive.
    fn reach(&self, requester: &Pair) -> Option<(usize, Pair)> {
        let peer = requester.peer?;
        let (number, responder) = self.pair(peer.qpn).ok()?;
        let back = responder.peer?;
        let is_it = responder.state == State::Ready
            && !responder.is_remote
            && responder.epoch == peer.epoch
            && (back.qpn, back.epoch) == (requester.qpn, requester.epoch)
            && !responder.unreachable
            && !requester.unreachable;
        is_it.then_some((number, responder))
    }

    fn execute_first(
        &mut self,
        requester: &Pair,
        responder: &Pair,
        operation: &Operation,
        receiver: &mut super::Receiver,
    ) -> Answer {
        if !responder.access.permits(operation.remote_access()) {
            return Answer::Failed(Syndrome::REMOTE_INVALID_REQUEST);
        }
        match operation {
            Operation::Nop | Operation::Dump { .. } | Operation::Wait { .. } => Answer::Done,
            Operation::Write { remote, imm, data } => {
                let index = match (imm, receiver.next()) {
                    (Some(_), None) => return Answer::NotReady,
                    (Some(imm), Some((index, _))) => Some((*imm, index)),
                    (None, _) => None,
                };
                let bytes = operation.bytes();
                let answer = self.write(requester, responder, *remote, bytes, data);
                if let (Answer::Done, Some((imm, index))) = (answer, index) {
                    receiver.take();
                    self.received(responder, Kind::ReceivedWriteImm, index, bytes, imm);
                }
                answer
            }
            Operation::Send { imm, data } => {
                let Some((index, into)) = receiver.next() else {
                    return Answer::NotReady;
                };
                let bytes = operation.bytes();
                let failed = self.deliver(requester, responder, into, bytes, data);
                match failed {
                    None => {
                        receiver.take();
                        let kind = if imm.is_some() {
                            Kind::ReceivedImm
                        } else {
                            Kind::Received
                        };
                        self.received(responder, kind, index, bytes, imm.unwrap_or(0));
                        Answer::Done
                    }
                    Some((here, there)) => {
                        // A message that is too long for its receive is lost, and the receive is
                        // the next one's. A receive that names wrong memory fails always.
                        let is_lost =
                            requester.is_unreliable && there == Some(Syndrome::LOCAL_LENGTH);
                        if let Some(there) = there.filter(|_| !is_lost) {
                            receiver.take();
                            let kind = Kind::ResponderError;
                            let of = Completion::failure(kind, responder.qpn, 0, index, there);
                            self.complete(responder.receive_completions, &of);
                        }
                        Answer::Failed(here)
                    }
                }
            }
            Operation::Read { remote, into } => self.read(requester, responder, *remote, into),
            atomic => self.change(responder, atomic),
        }
    }

    /// Executes an atomic.
    fn change(&self, to: &Pair, operation: &Operation) -> Answer {
        match operation {
            Operation::FetchAdd { remote, add, .. } => {
                let change = |old: u64| Some(old.wrapping_add(*add));
                self.atomic(to, *remote, ATOMIC_BYTES, change)
            }
            Operation::CompareSwap {
                remote,
                compare,
                swap,
                ..
            } => self.atomic(to, *remote, ATOMIC_BYTES, |old| {
                (old == *compare).then_some(*swap)
            }),
            Operation::Masked(masked) => {
                self.atomic(to, masked.remote, masked.bytes, |old| masked.change.of(old))
            }
            _ => Answer::Failed(Syndrome::REMOTE_INVALID_REQUEST),
        }
    }

    pub(super) fn received(&mut self, pair: &Pair, kind: Kind, index: u16, bytes: u64, imm: u32) {
        let (qpn, timestamp) = (pair.qpn, self.now_ns);
        let mut completion = Completion::success(qpn, 0, index, bytes as u32, timestamp);
        (completion.kind, completion.imm) = (kind, imm);
        let queue = self.completions.get_mut(pair.receive_completions);
        match queue.and_then(Option::as_mut) {
            Some(queue) if self.is_solicited => queue.push_solicited(&completion),
            Some(queue) => queue.push(&completion),
            None => {}
        }
    }

    fn write(&self, from: &Pair, to: &Pair, remote: Remote, bytes: u64, data: &Data) -> Answer {
        if bytes == 0 {
            return Answer::Done;
        }
        let Remote { address, rkey } = remote;
        match self
            .keys
            .find(to.domain, rkey, address, bytes, Access::REMOTE_WRITE)
        {
            Some(place) => answer(self.fill(from, place, data), Syndrome::REMOTE_ACCESS),
            None => Answer::Failed(Syndrome::REMOTE_ACCESS),
        }
    }

    /// Copies a message into a receive. Returns the syndromes of both sides if it cannot.
    fn deliver(
        &self,
        from: &Pair,
        to: &Pair,
        into: Option<Segment>,
        bytes: u64,
        data: &Data,
    ) -> Option<(Syndrome, Option<Syndrome>)> {
        if bytes > into.map_or(0, |into| into.bytes()) {
            return Some((
                Syndrome::REMOTE_INVALID_REQUEST,
                Some(Syndrome::LOCAL_LENGTH),
            ));
        }
        let into = into.filter(|_| bytes > 0)?;
        let Segment { lkey, address, .. } = into;
        let place = self
            .keys
            .find(to.domain, lkey, address, bytes, Access::LOCAL_WRITE);
        match place.map(|place| self.fill(from, place, data)) {
            Some(Ok(())) => None,
            Some(Err(Side::Source)) => Some((Syndrome::LOCAL_PROTECTION, None)),
            Some(Err(Side::Destination)) | None => {
                Some((Syndrome::REMOTE_OPERATION, Some(Syndrome::LOCAL_PROTECTION)))
            }
        }
    }

    /// Copies a message to a place that has room for it.
    fn fill(&self, from: &Pair, place: Place<'_>, data: &Data) -> Result<(), Side> {
        let mut at = place.offset;
        match data {
            Data::Inline(bytes) => {
                let written = place.memory.write(at, bytes);
                written.map_err(|Gone| Side::Destination)?;
            }
            Data::Gather(segments) => {
                let find = |one: &Segment| {
                    self.keys.find(
                        from.domain,
                        one.lkey,
                        one.address,
                        one.bytes(),
                        Access::LOCAL_READ,
                    )
                };
                if segments.iter().any(|one| find(one).is_none()) {
                    return Err(Side::Source);
                }
                for one in segments {
                    let bytes = one.bytes() as usize;
                    let source = find(one).ok_or(Side::Source)?;
                    place.memory.copy(at, source.memory, source.offset, bytes)?;
                    at += bytes;
                }
            }
        }
        Ok(())
    }

    fn read(&self, from: &Pair, to: &Pair, remote: Remote, into: &[Segment]) -> Answer {
        let Remote { address, rkey } = remote;
        let bytes = into.iter().map(Segment::bytes).sum();
        if bytes == 0 {
            return Answer::Done;
        }
        let Some(source) = self
            .keys
            .find(to.domain, rkey, address, bytes, Access::REMOTE_READ)
        else {
            return Answer::Failed(Syndrome::REMOTE_ACCESS);
        };
        let find = |one: &Segment| {
            self.keys.find(
                from.domain,
                one.lkey,
                one.address,
                one.bytes(),
                Access::LOCAL_WRITE,
            )
        };
        if into.iter().any(|one| find(one).is_none()) {
            return Answer::Failed(Syndrome::LOCAL_PROTECTION);
        }
        let mut at = source.offset;
        for one in into {
            if let Some(place) = find(one) {
                let bytes = one.bytes() as usize;
                match place.memory.copy(place.offset, source.memory, at, bytes) {
                    Ok(()) => {}
                    Err(Side::Source) => return Answer::Failed(Syndrome::REMOTE_ACCESS),
                    Err(Side::Destination) => return Answer::Failed(Syndrome::LOCAL_PROTECTION),
                }
            }
            at += one.bytes() as usize;
        }
        Answer::Done
    }

    fn atomic(
        &self,
        to: &Pair,
        remote: Remote,
        bytes: u64,
        change: impl Fn(u64) -> Option<u64>,
    ) -> Answer {
        let Remote { address, rkey } = remote;
        if !address.is_multiple_of(bytes) {
            return Answer::Failed(Syndrome::REMOTE_INVALID_REQUEST);
        }
        let access = Access::REMOTE_ATOMIC;
        let Some(place) = self.keys.find(to.domain, rkey, address, bytes, access) else {
            return Answer::Failed(Syndrome::REMOTE_ACCESS);
        };
        let bytes = bytes as usize;
        match place.memory.fetch_update(place.offset, bytes, change) {
            Ok(old) => Answer::Value(old),
            Err(Gone) => Answer::Failed(Syndrome::REMOTE_ACCESS),
        }
    }

    /// Stores what an atomic returned, where its entry says.
    pub(super) fn land(&self, domain: u32, work: &Work, answer: Answer) -> Answer {
        let (Answer::Value(value), Some(operation)) = (answer, &work.operation) else {
            return answer;
        };
        let ((into, access), bytes) = (operation.local(), operation.bytes());
        let place = into
            .first()
            .and_then(|one| self.keys.find(domain, one.lkey, one.address, bytes, access));
        let word = value.to_le_bytes();
        let word = &word[..(bytes as usize).min(word.len())];
        let landed = place.map(|place| place.memory.write(place.offset, word));
        match landed {
            Some(Ok(())) => Answer::Done,
            Some(Err(Gone)) | None => Answer::Failed(Syndrome::LOCAL_PROTECTION),
        }
    }
}

/// Returns the answer to a requester; `there` is the syndrome if the responder's memory is gone.
fn answer(copied: Result<(), Side>, there: Syndrome) -> Answer {
    match copied {
        Ok(()) => Answer::Done,
        Err(Side::Source) => Answer::Failed(Syndrome::LOCAL_PROTECTION),
        Err(Side::Destination) => Answer::Failed(there),
    }
}
