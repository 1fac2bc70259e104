//! Entries and receives of a queue on their way through an RDMA device.

use std::collections::VecDeque;

use outboard_verbs::{self as verbs, Connection, Done, Piece, Remote, SEGMENTS_MAX, Target};
use smallvec::SmallVec;

use crate::{
    adapter::{ATOMIC_BYTES, Receiver, State},
    block::{Block, DOORBELL, RECORD},
    completions::Completions,
    cqe::{Completion, Kind},
    device::Device,
    endpoint::Counts,
    error::Error,
    keys::Access,
    queue::{received, sent},
    ring::Ring,
    syndrome::Syndrome,
    wqe::{Data, Entry, Operation, Segment},
};

/// Requests of a queue that the device has at a time, and receives.
const SENDS_MAX: usize = 256;
const RECEIVES_MAX: usize = 1024;
/// Entries fetched from one queue before the next queue has its turn.
const TURN_MAX: usize = 16;
const SUCCESS: u32 = 0;

type Pieces = SmallVec<[Piece; SEGMENTS_MAX]>;

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
    connection: Connection,
    ring: Ring,
    receiver: Receiver,
    sends: Completions,
    receives: Option<Completions>,
    pending: VecDeque<Pending>,
    /// Number of the first pending entry, under which it was posted.
    first: u64,
    /// Pending entries that the device has.
    at_device: usize,
    /// Indices of the receives that the device has.
    received: VecDeque<u16>,
    state: State,
    /// A wrong entry was fetched: nothing behind it is.
    is_broken: bool,
    counts: Counts,
}

impl Served {
    pub(super) fn new(device: &Device, block: &Block) -> Result<Served, Error> {
        let receives = block.options.receives().min(RECEIVES_MAX);
        let connection = Connection::new(&device.domain, SENDS_MAX as u32, receives as u32)?;
        let (ring, receiver) = readers(block)?;
        Ok(Served {
            connection,
            ring,
            receiver,
            sends: Completions::new(sent(block)?)?,
            receives: received(block)?.map(Completions::new).transpose()?,
            pending: VecDeque::new(),
            first: 0,
            at_device: 0,
            received: VecDeque::new(),
            state: State::Reset,
            is_broken: false,
            counts: Counts::default(),
        })
    }

    pub(super) fn number(&self) -> u32 {
        self.connection.number()
    }

    pub(super) fn state(&self) -> State {
        self.state
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.at_device > 0
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
        self.connection.connect(&device.chosen, psn, theirs)?;
        self.state = State::Ready;
        self.post_receives(device);
        Ok(())
    }

    /// Starts again, empty.
    pub(super) fn reset(&mut self, block: &Block) -> Result<(), Error> {
        self.connection.reset()?;
        let (ring, receiver) = readers(block)?;
        (self.ring, self.receiver) = (ring, receiver);
        self.sends = Completions::new(sent(block)?)?;
        self.receives = received(block)?.map(Completions::new).transpose()?;
        self.first += self.pending.len() as u64;
        self.pending.clear();
        self.received.clear();
        (self.at_device, self.is_broken) = (0, false);
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
            // What the device has comes back as flushed; if that fails, too, as it is found.
            let _ = self.connection.fail();
        }
    }

    fn fetch(&mut self, device: &Device) -> usize {
        let (mut fetched, number) = (0, self.number());
        while fetched < TURN_MAX && self.at_device < SENDS_MAX && !self.is_broken {
            let posted = self.ring.posted(number);
            if posted == 0 {
                break;
            }
            fetched += 1;
            match self.ring.fetch(number, posted) {
                Ok((entry, blocks)) => match self.post(device, &entry) {
                    Ok(result) => {
                        self.ring.pass(blocks);
                        self.at_device += usize::from(result.is_none());
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
        &self,
        device: &Device,
        entry: &Entry,
    ) -> Result<Option<Result<(), Syndrome>>, Syndrome> {
        let operation = &entry.operation;
        if matches!(operation, Operation::Nop) {
            return Ok(Some(Ok(())));
        }
        let (segments, access) = operation.local();
        let pieces = pieces(device, segments, access)?;
        if operation.bytes() > device.chosen.message_bytes_max.into() {
            return Err(Syndrome::LOCAL_LENGTH);
        }
        let work = work(operation, &pieces, self.connection.inline_bytes_max())?;
        let id = self.first + self.pending.len() as u64;
        let posted = self.connection.post(id, entry.flags.fenced(), &work);
        posted.map_err(|_| Syndrome::LOCAL_OPERATION).map(|()| None)
    }

    /// Notes what the device has done, and completes what is done, in order.
    fn take_sends(&mut self) -> usize {
        match self.connection.poll_sends() {
            Ok(done) => done.iter().for_each(|one| self.note(one)),
            // The device is gone, and with it all that it had.
            Err(_) => {
                let lost = self.pending.iter_mut().filter(|one| one.result.is_none());
                lost.for_each(|one| one.result = Some(Err(Syndrome::LOCAL_OPERATION)));
                self.at_device = 0;
            }
        }
        self.complete_front()
    }

    fn note(&mut self, done: &Done) {
        let at = done.id.checked_sub(self.first);
        let pending = at.and_then(|at| self.pending.get_mut(at as usize));
        // Of completions from before a reset nobody waits for any more.
        let Some(pending) = pending.filter(|pending| pending.result.is_none()) else {
            return;
        };
        self.at_device -= 1;
        pending.result = Some(match done.status {
            SUCCESS => Ok(()),
            status => Err(Syndrome::of_status(status)),
        });
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
                self.ring.pass(1);
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
        while self.pending.is_empty()
            && let Some((index, opcode)) = self.ring.flush(number)
        {
            self.push_failure(index, opcode, Syndrome::FLUSHED);
            self.counts
                .failure
                .get_or_insert((index, Syndrome::FLUSHED.0));
            self.counts.flushed += 1;
            count += 1;
        }
        while self.received.is_empty()
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
        while self.received.len() < RECEIVES_MAX
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
            if self.connection.post_receive(index.into(), piece).is_err() {
                break;
            }
            self.receiver.take();
            self.received.push_back(index);
            count += 1;
        }
        count
    }

    fn take_receives(&mut self) -> usize {
        let done = self.connection.poll_receives().unwrap_or_default();
        for one in &done {
            let Some(index) = self.received.pop_front() else {
                break;
            };
            match one.status {
                SUCCESS => self.push_received(index, Ok(one)),
                status => {
                    self.push_received(index, Err(Syndrome::of_status(status)));
                    self.fail();
                }
            }
        }
        done.len()
    }

    fn push_received(&mut self, index: u16, result: Result<&Done, Syndrome>) {
        let number = self.number();
        let Some(completions) = &mut self.receives else {
            return;
        };
        completions.push(&match result {
            Err(syndrome) => {
                let kind = Kind::ResponderError;
                Completion::failure(kind, number, 0, index, syndrome)
            }
            Ok(done) => Completion {
                kind: match (done.is_write, done.imm) {
                    (true, _) => Kind::ReceivedWriteImm,
                    (false, Some(_)) => Kind::ReceivedImm,
                    (false, None) => Kind::Received,
                },
                imm: done.imm.unwrap_or(0),
                ..Completion::success(number, 0, index, done.bytes, 0)
            },
        });
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

/// Finds an operation's memory of this side.
fn pieces(device: &Device, segments: &[Segment], access: Access) -> Result<Pieces, Syndrome> {
    if segments.len() > SEGMENTS_MAX {
        return Err(Syndrome::LOCAL_OPERATION);
    }
    let piece = |segment: &Segment| device.piece(segment, access);
    let found: Option<Pieces> = segments.iter().map(piece).collect();
    found.ok_or(Syndrome::LOCAL_PROTECTION)
}

/// Says an operation in the words of verbs.
fn work<'a>(
    operation: &'a Operation,
    pieces: &'a [Piece],
    inline_bytes_max: usize,
) -> Result<verbs::Work<'a>, Syndrome> {
    let target = |remote: &crate::wqe::Remote| Target {
        address: remote.address,
        rkey: remote.rkey,
    };
    let of = |data: &'a Data| match data {
        Data::Gather(_) => Ok(verbs::Data::Gather(pieces)),
        Data::Inline(bytes) if bytes.len() > inline_bytes_max => Err(Syndrome::LOCAL_LENGTH),
        Data::Inline(bytes) => Ok(verbs::Data::Inline(bytes)),
    };
    let word = |into: &Segment| match pieces {
        [piece] if into.bytes() == ATOMIC_BYTES => Ok(*piece),
        _ => Err(Syndrome::LOCAL_LENGTH),
    };
    Ok(match operation {
        Operation::Write { remote, imm, data } => verbs::Work::Write {
            target: target(remote),
            imm: *imm,
            data: of(data)?,
        },
        Operation::Send { imm, data } => verbs::Work::Send {
            imm: *imm,
            data: of(data)?,
        },
        Operation::Read { remote, .. } => verbs::Work::Read {
            target: target(remote),
            into: pieces,
        },
        Operation::FetchAdd { remote, add, into } => verbs::Work::FetchAdd {
            target: target(remote),
            add: *add,
            into: word(into)?,
        },
        Operation::CompareSwap {
            remote,
            compare,
            swap,
            into,
        } => verbs::Work::CompareSwap {
            target: target(remote),
            compare: *compare,
            swap: *swap,
            into: word(into)?,
        },
        // Verbs have no other operation.
        _ => return Err(Syndrome::LOCAL_OPERATION),
    })
}
