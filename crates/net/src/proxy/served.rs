//! Entries and receives of a queue on their way through an RDMA device.

use std::collections::VecDeque;

use outboard_verbs::{NotReady, Piece, Remote};

use crate::{
    adapter::{Receiver, State},
    block::{Block, DOORBELL, RECORD},
    completions::Completions,
    cqe::{Completion, Kind},
    device::Device,
    endpoint::Counts,
    error::Error,
    keys::Access,
    poster::{Arrived, Poster, pieces},
    queue::{received, sent},
    ring::Ring,
    syndrome::Syndrome,
    wqe::{ENTRIES_MAX, Entry, Operation},
};

/// Entries fetched from one queue before the next queue has its turn.
const TURN_MAX: usize = 16;

/// An entry that was fetched.
#[derive(Debug)]
struct Pending {
    index: u16,
    opcode: u8,
    bytes: u32,
    is_signalled: bool,
    /// A wrong entry: it has not been passed in the ring.
    is_wrong: bool,
    /// `None` while the device has it.
    result: Option<Result<(), Syndrome>>,
}

/// The reader of a queue, and the connection to which it posts.
#[derive(Debug)]
pub(super) struct Served {
    poster: Poster,
    ring: Ring,
    receiver: Receiver,
    sends: Completions,
    receives: Option<Completions>,
    pending: VecDeque<Pending>,
    /// Number of the first pending entry, under which it was posted.
    first: u64,
    state: State,
    /// A wrong entry was fetched: nothing behind it is.
    is_broken: bool,
    counts: Counts,
}

impl Served {
    pub(super) fn new(device: &Device, block: &Block) -> Result<Served, Error> {
        let (ring, receiver) = readers(block)?;
        Ok(Served {
            poster: Poster::new(device, block.options.receives())?,
            ring,
            receiver,
            sends: Completions::new(sent(block)?)?,
            receives: received(block)?.map(Completions::new).transpose()?,
            pending: VecDeque::new(),
            first: 0,
            state: State::Reset,
            is_broken: false,
            counts: Counts::default(),
        })
    }

    pub(super) fn number(&self) -> u32 {
        self.poster.number()
    }

    pub(super) fn state(&self) -> State {
        self.state
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.poster.has_sends()
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    /// Connects the queue pair. What was received for before is received for from the first packet
    /// on.
    pub(super) fn connect(
        &mut self,
        device: &Device,
        psn: u32,
        theirs: &Remote,
    ) -> Result<(), Error> {
        let patience = NotReady::WithoutEnd;
        self.poster.connect(device, psn, theirs, patience)?;
        self.state = State::Ready;
        self.post_receives(device);
        Ok(())
    }

    /// Starts again, empty.
    pub(super) fn reset(&mut self, block: &Block) -> Result<(), Error> {
        self.poster.reset()?;
        let (ring, receiver) = readers(block)?;
        (self.ring, self.receiver) = (ring, receiver);
        self.sends = Completions::new(sent(block)?)?;
        self.receives = received(block)?.map(Completions::new).transpose()?;
        self.first += self.pending.len() as u64;
        self.pending.clear();
        self.is_broken = false;
        (self.state, self.counts) = (State::Reset, Counts::default());
        Ok(())
    }

    pub(super) fn serve(&mut self, device: &Device) -> usize {
        match self.state {
            State::Reset => 0,
            State::Ready => {
                // What a message needs is posted before what may need it.
                let posted = self.post_receives(device);
                let fetched = self.fetch(device);
                posted + fetched + self.take_receives() + self.take_sends()
            }
            State::Error => self.take_receives() + self.take_sends() + self.flush(),
        }
    }

    fn fail(&mut self) {
        if self.state == State::Ready {
            self.state = State::Error;
            self.poster.fail();
        }
    }

    fn fetch(&mut self, device: &Device) -> usize {
        let (mut fetched, number) = (0, self.number());
        let has_room = |of: &Self| of.poster.has_room() && of.pending.len() < ENTRIES_MAX;
        while fetched < TURN_MAX && has_room(self) && !self.is_broken {
            let posted = self.ring.posted(number);
            if posted == 0 {
                break;
            }
            fetched += 1;
            match self.ring.fetch(number, posted) {
                Ok((entry, blocks)) => match self.post(device, &entry) {
                    Ok(result) => {
                        self.ring.pass(blocks);
                        self.pending.push_back(Pending {
                            index: entry.index,
                            opcode: entry.operation.opcode(),
                            bytes: entry.operation.bytes() as u32,
                            is_signalled: entry.flags.signalled(),
                            is_wrong: false,
                            result,
                        });
                    }
                    Err(syndrome) => self.push_wrong(entry.operation.opcode(), syndrome),
                },
                Err((opcode, syndrome)) => self.push_wrong(opcode, syndrome),
            }
        }
        fetched
    }

    fn push_wrong(&mut self, opcode: u8, syndrome: Syndrome) {
        self.is_broken = true;
        self.pending.push_back(Pending {
            index: self.ring.consumer(),
            opcode,
            bytes: 0,
            is_signalled: true,
            is_wrong: true,
            result: Some(Err(syndrome)),
        });
    }

    /// Checks an entry, and posts it to the device. Returns its result if it has one already.
    fn post(
        &mut self,
        device: &Device,
        entry: &Entry,
    ) -> Result<Option<Result<(), Syndrome>>, Syndrome> {
        let operation = &entry.operation;
        if matches!(operation, Operation::Nop) {
            return Ok(Some(Ok(())));
        }
        let (segments, access) = operation.local();
        let pieces = pieces(segments, |segment| device.piece(segment, access))?;
        let id = self.first + self.pending.len() as u64;
        let how = (id, entry.flags.fenced());
        let rkey = operation.remote().map_or(0, |remote| remote.rkey);
        let posted = self.poster.post(device, how, operation, &pieces, rkey);
        posted.map(|()| None)
    }

    /// Notes what the device has done, and completes what is done, in order.
    fn take_sends(&mut self) -> usize {
        let (first, pending) = (self.first, &mut self.pending);
        let is_there = self
            .poster
            .take_sends(|id, result| note(pending, first, id, result));
        if !is_there {
            let lost = pending.iter_mut().filter(|one| one.result.is_none());
            lost.for_each(|one| one.result = Some(Err(Syndrome::LOCAL_OPERATION)));
        }
        self.complete_front()
    }

    /// Completes what is done. The first failure ends the queue.
    fn complete_front(&mut self) -> usize {
        let (mut count, number) = (0, self.number());
        // Of completions that are written over one another the last is enough.
        let mut last = None;
        while let Some(Pending {
            result: Some(result),
            ..
        }) = self.pending.front()
        {
            let result = *result;
            let Some(of) = self.pending.pop_front() else {
                break;
            };
            self.first += 1;
            count += 1;
            let Err(syndrome) = result else {
                self.counts.succeeded += 1;
                if of.is_signalled {
                    let of = Completion::success(number, of.opcode, of.index, of.bytes, 0);
                    match self.sends.is_collapsed() {
                        true => last = Some(of),
                        false => self.sends.push(&of),
                    }
                }
                continue;
            };
            if let Some(last) = last.take() {
                self.sends.push(&last);
            }
            if of.is_wrong {
                self.ring.skip();
            }
            let syndrome = match self.counts.failure {
                None => {
                    self.counts.failure = Some((of.index, syndrome.0));
                    syndrome
                }
                Some(_) => {
                    self.counts.flushed += 1;
                    Syndrome::FLUSHED
                }
            };
            self.push_failure(of.index, of.opcode, syndrome);
            self.fail();
        }
        if let Some(last) = last {
            self.sends.push(&last);
        }
        count
    }

    fn push_failure(&mut self, index: u16, opcode: u8, syndrome: Syndrome) {
        let (kind, number) = (Kind::RequesterError, self.number());
        let of = Completion::failure(kind, number, opcode, index, syndrome);
        self.sends.push(&of);
    }

    /// Flushes what was posted behind a failure, once the device has given back what it had.
    fn flush(&mut self) -> usize {
        let (mut count, number) = (0, self.number());
        while count < ENTRIES_MAX
            && self.pending.is_empty()
            && let Some((index, opcode)) = self.ring.flush(number)
        {
            self.push_failure(index, opcode, Syndrome::FLUSHED);
            self.counts
                .failure
                .get_or_insert((index, Syndrome::FLUSHED.0));
            self.counts.flushed += 1;
            count += 1;
        }
        let most = count + ENTRIES_MAX;
        while count < most
            && !self.poster.has_receives()
            && let Some((index, _)) = self.receiver.next()
        {
            self.receiver.take();
            self.push_received(index, Err(Syndrome::FLUSHED));
            count += 1;
        }
        count
    }

    /// Posts receives to the device. One whose memory is not registered is refused there when a
    /// message takes it.
    fn post_receives(&mut self, device: &Device) -> usize {
        let mut count = 0;
        while self.poster.has_room_to_receive()
            && let Some((index, into)) = self.receiver.next()
        {
            let piece = into.map(|segment| {
                let known = device.piece(&segment, Access::LOCAL_WRITE);
                known.unwrap_or(Piece {
                    address: segment.address,
                    len: segment.bytes() as u32,
                    lkey: segment.lkey,
                })
            });
            if !self.poster.post_receive(index, piece) {
                break;
            }
            self.receiver.take();
            count += 1;
        }
        count
    }

    fn take_receives(&mut self) -> usize {
        let mut arrived = Vec::new();
        let count = self
            .poster
            .take_receives(|index, result| arrived.push((index, result)));
        for (index, result) in arrived {
            self.push_received(index, result);
            if result.is_err() {
                self.fail();
            }
        }
        count
    }

    fn push_received(&mut self, index: u16, result: Result<Arrived, Syndrome>) {
        let number = self.number();
        let Some(completions) = &mut self.receives else {
            return;
        };
        completions.push(&match result {
            Err(syndrome) => {
                let kind = Kind::ResponderError;
                Completion::failure(kind, number, 0, index, syndrome)
            }
            Ok(Arrived { kind, imm, bytes }) => Completion {
                kind,
                imm,
                ..Completion::success(number, 0, index, bytes, 0)
            },
        });
    }
}

fn note(pending: &mut VecDeque<Pending>, first: u64, id: u64, result: Result<(), Syndrome>) {
    let at = id.checked_sub(first).map(|at| at as usize);
    // Of completions from before a reset nobody waits for any more.
    let of = at.and_then(|at| pending.get_mut(at));
    if let Some(of) = of.filter(|of| of.result.is_none()) {
        of.result = Some(result);
    }
}

fn readers(block: &Block) -> Result<(Ring, Receiver), Error> {
    let options = &block.options;
    let (record, doorbell) = (block.part(RECORD, 8)?, block.part(DOORBELL, 8)?);
    let ring = block.part(options.ring_at(), options.ring_bytes())?;
    let receives = match options.log_receives {
        0 => None,
        log => Some((
            block.part(
                options.receives_at(),
                options.ring_at() - options.receives_at(),
            )?,
            log,
        )),
    };
    let receiver = Receiver::new(receives, record.clone().into());
    Ok((
        Ring::new(ring.into(), options.log_blocks, record.into(), doorbell),
        receiver,
    ))
}
