//! Meetings of queues whose entries travel by verbs. The connection over which two have met stays:
//! its end is the peer's, and each side asks over it what keys the other's device has.
//!
//! ```text
//!  kind 32 | key of the adapter 32 | key of its device, or 0 32        little-endian
//! ```

use std::{
    io::{ErrorKind, Read},
    net::{Shutdown, TcpStream},
    os::fd::OwnedFd,
    sync::Arc,
};

use outboard_verbs::NotReady;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Link;
use crate::{
    adapter::{Ask, Call, Peer},
    device::{Device, first_psn},
    error::Error,
    meet::{BY_VERBS, Meeting, Window},
    nic::{Nic, Shared},
    poster::Poster,
    queue::Queue,
    reach,
    stream::Stream,
    threads::spawn,
    way::Way,
};

const MESSAGE_BYTES: usize = 12;
/// Time after which a thread that hears nothing looks whether the device is still there.
const LOOK: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// A question for a key, or an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Message {
    Ask(u32),
    Answer { key: u32, there: Option<u32> },
}

impl Message {
    fn bytes(self) -> [u8; MESSAGE_BYTES] {
        let words = match self {
            Message::Ask(key) => [1, key, 0],
            Message::Answer { key, there: None } => [2, key, 0],
            Message::Answer {
                key,
                there: Some(there),
            } => [3, key, there],
        };
        let mut bytes = [0; MESSAGE_BYTES];
        for (to, word) in bytes.chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    fn parse(bytes: &[u8; MESSAGE_BYTES]) -> Option<Message> {
        let (kind, rest) = bytes.split_first_chunk()?;
        let (key, rest) = rest.split_first_chunk()?;
        let there = u32::from_le_bytes(*rest.first_chunk()?);
        let key = u32::from_le_bytes(*key);
        match (u32::from_le_bytes(*kind), there) {
            (1, 0) => Some(Message::Ask(key)),
            (2, 0) => Some(Message::Answer { key, there: None }),
            (3, there) => Some(Message::Answer {
                key,
                there: Some(there),
            }),
            _ => None,
        }
    }
}

impl Link {
    /// Meets the other process, and connects the queue by a connection of this process's device.
    pub(super) fn meet_by_verbs(
        nic: &Nic,
        queue: &Queue,
        meeting: Meeting<'_>,
        mine: Window,
    ) -> Result<(Link, Window), Error> {
        let qpn = queue.export().qpn;
        let epoch = nic.with(|adapter| adapter.unconnected(qpn))?.epoch;
        let device = device_of(nic)?;
        let (mut poster, psn) = (Poster::new(&device, queue.receives())?, first_psn());
        let reached = device.reached(poster.number(), psn);
        let patience = match queue.is_patient() {
            true => NotReady::WithoutEnd,
            false => NotReady::ForSomeTime,
        };
        let mut is_connected = false;
        let connect = |theirs: &_, stream: &TcpStream| {
            poster.connect(&device, psn, theirs, patience)?;
            let (asks, carried) = (duplicate(stream)?, duplicate(stream)?);
            let ask: Ask = Box::new(move |key| {
                let bytes = Message::Ask(key).bytes();
                asks.write_some(&bytes) == bytes.len()
            });
            let hang_up: Call = Box::new(move || drop(carried.end(Shutdown::Both)));
            let peer = Peer {
                qpn: theirs.number,
                epoch: 0,
            };
            nic.with(|adapter| {
                adapter.unconnected(qpn)?;
                adapter.connect_by_verbs(qpn, peer, poster, ask, hang_up)
            })?;
            is_connected = true;
            Ok(())
        };
        let connected = reach::meet(meeting, &reached, (mine, BY_VERBS), connect);
        let linked = connected.and_then(|(window, stream)| {
            let link = Link::asking(nic, stream, device, qpn, epoch)?;
            nic.with(|adapter| adapter.begin_by_verbs(qpn, epoch))?;
            Ok((link, window))
        });
        match &linked {
            Ok(_) => {
                queue.connected();
                // What was posted before is fetched, and the next sleep is one that messages end.
                nic.rouse();
            }
            Err(_) if is_connected => nic.with(|adapter| adapter.forget_by_verbs(qpn, epoch)),
            Err(_) => {}
        }
        linked
    }

    /// Starts the thread of a connection by which two adapters ask each other for keys.
    fn asking(
        nic: &Nic,
        stream: TcpStream,
        device: Arc<Device>,
        qpn: u32,
        epoch: u32,
    ) -> Result<Link, Error> {
        let shared = nic.shared();
        let channel = shared.with(|adapter| adapter.verbs_channel(qpn, epoch))?;
        let reader = duplicate(&stream)?;
        let serve = move || {
            let of = Asked {
                shared,
                stream: reader,
                device,
                channel,
                qpn,
                epoch,
            };
            let _ = of.serve();
            let _ = of.stream.end(Shutdown::Both);
            of.shared.with(|adapter| adapter.link_down(qpn, epoch));
            of.shared.rouse();
        };
        let thread = spawn("outboard-net-in", serve);
        Ok(Link {
            way: Way::Verbs,
            end: Box::new(move || drop(stream.end(Shutdown::Both))),
            is_ending: Arc::default(),
            is_sent: Box::new(|| true),
            is_over: Arc::default(),
            threads: vec![thread.map_err(|error| Error::Thread(error.to_string()))?],
        })
    }
}

/// Returns the device of an adapter, which is opened at its first use.
fn device_of(nic: &Nic) -> Result<Arc<Device>, Error> {
    if let Some(device) = nic.with(|adapter| adapter.device()) {
        return Ok(device);
    }
    let (device, ()) = Device::open(|_| Ok(()))?;
    let device = Arc::new(device);
    nic.with(|adapter| match adapter.device() {
        Some(first) => Ok(first),
        None => adapter.use_device(device.clone()).map(|()| device),
    })
}

fn duplicate(stream: &TcpStream) -> Result<TcpStream, Error> {
    let copy = stream.duplicate();
    copy.map_err(|error| Error::Thread(error.to_string()))
}

/// The thread's part of a connection.
struct Asked {
    shared: Shared,
    stream: TcpStream,
    device: Arc<Device>,
    channel: OwnedFd,
    qpn: u32,
    epoch: u32,
}

impl Asked {
    /// Answers questions, takes answers, and wakes the adapter for messages, until the connection
    /// or the device is gone.
    fn serve(&self) -> Result<(), Error> {
        let (mut bytes, mut got) = ([0; MESSAGE_BYTES], 0);
        loop {
            let mut fds = [
                PollFd::new(&self.stream, PollFlags::IN),
                PollFd::new(&self.channel, PollFlags::IN),
            ];
            let found = poll(&mut fds, Some(&LOOK)).unwrap_or(0);
            let [is_stream, is_event] = fds.map(|fd| !fd.revents().is_empty());
            let has_event = is_event && self.take_event();
            if (found == 0 || is_event && !has_event) && !self.device.chosen.is_there() {
                self.shared
                    .with(|adapter| adapter.device_down(self.qpn, self.epoch));
                return Err(Error::Peer("no more"));
            }
            if !is_stream {
                continue;
            }
            match (&self.stream).read(&mut bytes[got..]) {
                Ok(count) if count > 0 => got += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Ok(_) | Err(_) => return Err(Error::Peer("no more")),
            }
            if got == MESSAGE_BYTES {
                got = 0;
                self.take(&bytes)?;
            }
        }
    }

    fn take_event(&self) -> bool {
        let take = |adapter: &mut crate::Adapter| adapter.take_verbs_event(self.qpn, self.epoch);
        let has_event = self.shared.with(take);
        if has_event {
            self.shared.roused();
        }
        has_event
    }

    fn take(&self, bytes: &[u8; MESSAGE_BYTES]) -> Result<(), Error> {
        let (qpn, epoch) = (self.qpn, self.epoch);
        match Message::parse(bytes).ok_or(Error::Peer("an unknown message"))? {
            Message::Ask(key) => {
                let there = self
                    .shared
                    .with(|adapter| adapter.key_for_peer(qpn, epoch, key))?;
                let answer = Message::Answer { key, there }.bytes();
                // A peer that asks without reading would keep this thread waiting.
                match self.stream.write_some(&answer) {
                    MESSAGE_BYTES => Ok(()),
                    _ => Err(Error::Peer("no more")),
                }
            }
            Message::Answer { key, there } => {
                self.shared
                    .with(|adapter| adapter.learn_key(qpn, epoch, key, there))?;
                self.shared.rouse();
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_were_written_and_nothing_else_is() {
        let there = Some(0x5678);
        for message in [
            Message::Ask(0x1234),
            Message::Answer { key: 7, there },
            Message::Answer {
                key: 7,
                there: None,
            },
        ] {
            assert_eq!(Message::parse(&message.bytes()), Some(message));
        }
        for wrong in [[0, 1, 0], [1, 1, 1], [2, 1, 1], [4, 1, 0]] {
            let mut bytes = [0; MESSAGE_BYTES];
            for (to, word) in bytes.chunks_exact_mut(4).zip(wrong) {
                to.copy_from_slice(&u32::to_le_bytes(word));
            }
            assert_eq!(Message::parse(&bytes), None);
        }
    }
}
