//! Entries and receives of a queue that a connection of an RDMA device has: what the provider
//! `proxy` and adapters whose entries travel by verbs have in common.

use std::{collections::VecDeque, os::fd::OwnedFd};

use outboard_verbs::{
    self as verbs, Connection, Done, NotReady, Piece, Remote, SEGMENTS_MAX, Target,
};
use smallvec::SmallVec;

use crate::{
    cqe::Kind,
    device::Device,
    error::Error,
    syndrome::Syndrome,
    wqe::{Data, MESSAGE_BYTES_MAX, Operation, Segment},
};

/// Requests of a queue that the device has at a time, and receives.
const SENDS_MAX: usize = 256;
const RECEIVES_MAX: usize = 1024;
const SUCCESS: u32 = 0;

type Pieces = SmallVec<[Piece; SEGMENTS_MAX]>;

/// A connection, and what its device has of a queue.
#[derive(Debug)]
pub(crate) struct Poster {
    connection: Connection,
    sends: usize,
    /// Indices of receives.
    receives: VecDeque<u16>,
    /// For how long a peer's message waits for one.
    patience: NotReady,
    /// The device does nothing any more, and gives nothing back.
    is_lost: bool,
}

/// A message that has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrived {
    pub(crate) kind: Kind,
    pub(crate) imm: u32,
    pub(crate) bytes: u32,
}

impl Poster {
    /// Makes a connection for a queue of this many receives.
    pub(crate) fn new(device: &Device, receives: usize) -> Result<Poster, Error> {
        let receives_max = receives.min(RECEIVES_MAX) as u32;
        Ok(Poster {
            connection: Connection::new(&device.domain, SENDS_MAX as u32, receives_max)?,
            sends: 0,
            receives: VecDeque::new(),
            patience: NotReady::WithoutEnd,
            is_lost: false,
        })
    }

    /// Returns the number by which peers reach it.
    pub(crate) fn number(&self) -> u32 {
        self.connection.number()
    }

    pub(crate) fn connect(
        &mut self,
        device: &Device,
        psn: u32,
        theirs: &Remote,
        patience: NotReady,
    ) -> Result<(), Error> {
        let connected = self
            .connection
            .connect(&device.chosen, psn, theirs, patience);
        self.patience = patience;
        connected.map_err(Into::into)
    }

    pub(crate) fn patience(&self) -> NotReady {
        self.patience
    }

    /// Starts again, empty and not connected.
    pub(crate) fn reset(&mut self) -> Result<(), Error> {
        self.connection.reset()?;
        (self.sends, self.is_lost) = (0, false);
        self.receives.clear();
        Ok(())
    }

    /// Lets the device give back all that it has, as flushed.
    pub(crate) fn fail(&mut self) {
        self.is_lost |= self.connection.fail().is_err();
    }

    /// Notes that the device is gone, and with it all that it had.
    pub(crate) fn lose(&mut self) {
        self.is_lost = true;
    }

    pub(crate) fn has_sends(&self) -> bool {
        self.sends > 0
    }

    pub(crate) fn has_receives(&self) -> bool {
        !self.receives.is_empty()
    }

    /// Returns how many receives the device has.
    pub(crate) fn receives(&self) -> usize {
        self.receives.len()
    }

    pub(crate) fn has_room(&self) -> bool {
        self.sends < SENDS_MAX
    }

    pub(crate) fn has_room_to_receive(&self) -> bool {
        self.receives.len() < RECEIVES_MAX
    }

    /// Posts an operation, of this side's memory in the device's words, and of the peer's by this
    /// key. It is given back under its number.
    pub(crate) fn post(
        &mut self,
        device: &Device,
        (id, is_fenced): (u64, bool),
        operation: &Operation,
        pieces: &[Piece],
        rkey: u32,
    ) -> Result<(), Syndrome> {
        let bytes_max = u64::from(device.chosen.message_bytes_max);
        // A length of 2 GiB would be the inline flag of a device's entry.
        if operation.bytes() > bytes_max.min(MESSAGE_BYTES_MAX - 1) {
            return Err(Syndrome::LOCAL_LENGTH);
        }
        let inline_bytes_max = self.connection.inline_bytes_max();
        let work = work(operation, pieces, rkey, inline_bytes_max)?;
        let posted = self.connection.post(id, is_fenced, &work);
        posted.map_err(|_| Syndrome::LOCAL_OPERATION)?;
        self.sends += 1;
        Ok(())
    }

    /// Takes what is done, in the order of posting, and gives each number and result to a function.
    /// Returns false if the device is gone, and with it all that it had.
    pub(crate) fn take_sends(&mut self, mut each: impl FnMut(u64, Result<(), Syndrome>)) -> bool {
        let polled = self.connection.poll_sends();
        for done in polled.iter().flatten() {
            self.sends = self.sends.saturating_sub(1);
            each(
                done.id,
                match done.status {
                    SUCCESS => Ok(()),
                    status => Err(Syndrome::of_status(status)),
                },
            );
        }
        self.is_lost |= polled.is_err();
        if self.is_lost {
            self.sends = 0;
        }
        !self.is_lost
    }

    /// Posts a receive of the queue. One whose memory is not registered is refused by the device
    /// when a message takes it. Returns false if the device does not take it.
    pub(crate) fn post_receive(&mut self, index: u16, into: Option<Piece>) -> bool {
        let is_posted = self.connection.post_receive(index.into(), into).is_ok();
        if is_posted {
            self.receives.push_back(index);
        }
        is_posted
    }

    /// Takes what has come, in the order of the receives. Returns how much. Of a device that is
    /// gone all are flushed.
    pub(crate) fn take_receives(
        &mut self,
        mut each: impl FnMut(u16, Result<Arrived, Syndrome>),
    ) -> usize {
        let polled = self.connection.poll_receives();
        let mut count = 0;
        for done in polled.iter().flatten() {
            let Some(index) = self.receives.pop_front() else {
                break;
            };
            count += 1;
            each(
                index,
                match done.status {
                    SUCCESS => Ok(Arrived::of(done)),
                    status => Err(Syndrome::of_status(status)),
                },
            );
        }
        self.is_lost |= polled.is_err();
        if self.is_lost {
            for index in self.receives.drain(..) {
                count += 1;
                each(index, Err(Syndrome::FLUSHED));
            }
        }
        count
    }

    /// Makes the next message turn the [`channel`](Self::channel) readable.
    pub(crate) fn arm(&self) {
        // Without it the adapter's next look finds the message.
        let _ = self.connection.arm_receives();
    }

    pub(crate) fn channel(&self) -> Result<OwnedFd, Error> {
        Ok(self.connection.receives_channel()?)
    }

    /// Takes what has made the channel readable. Returns false if there is nothing.
    pub(crate) fn take_event(&mut self) -> bool {
        self.connection.take_receives_event()
    }
}

impl Arrived {
    fn of(done: &Done) -> Arrived {
        Arrived {
            kind: match (done.is_write, done.imm) {
                (true, _) => Kind::ReceivedWriteImm,
                (false, Some(_)) => Kind::ReceivedImm,
                (false, None) => Kind::Received,
            },
            imm: done.imm.unwrap_or(0),
            bytes: done.bytes,
        }
    }
}

/// Finds an operation's memory of this side as the device knows it.
pub(crate) fn pieces(
    segments: &[Segment],
    piece: impl Fn(&Segment) -> Option<Piece>,
) -> Result<Pieces, Syndrome> {
    if segments.len() > SEGMENTS_MAX {
        return Err(Syndrome::LOCAL_OPERATION);
    }
    let found: Option<Pieces> = segments.iter().map(piece).collect();
    found.ok_or(Syndrome::LOCAL_PROTECTION)
}

/// Says an operation in the words of verbs.
fn work<'a>(
    operation: &'a Operation,
    pieces: &'a [Piece],
    rkey: u32,
    inline_bytes_max: usize,
) -> Result<verbs::Work<'a>, Syndrome> {
    let target = |remote: &crate::wqe::Remote| Target {
        address: remote.address,
        rkey,
    };
    let of = |data: &'a Data| match data {
        Data::Gather(_) => Ok(verbs::Data::Gather(pieces)),
        Data::Inline(bytes) if bytes.len() > inline_bytes_max => Err(Syndrome::LOCAL_LENGTH),
        Data::Inline(bytes) => Ok(verbs::Data::Inline(bytes)),
    };
    let word = |remote: &crate::wqe::Remote, into: &Segment| match pieces {
        // Some drivers refuse it here, where adapters do there.
        _ if !remote.address.is_multiple_of(operation.bytes()) => {
            Err(Syndrome::REMOTE_INVALID_REQUEST)
        }
        [piece] if into.bytes() == operation.bytes() => Ok(*piece),
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
            into: word(remote, into)?,
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
            into: word(remote, into)?,
        },
        // Verbs have no other operation.
        _ => return Err(Syndrome::LOCAL_OPERATION),
    })
}
