//! Data connections: further tcp connections for the data of long copies, of which one connection
//! carries only 5 to 7 GB/s.
//!
//! Messages stay on the session's own connection, in order; the server's
//! `session/data_connections.rs` has the picture. Data connections are opened at the first long
//! copy, which does not wait for them. If they cannot be opened or another thread is using them, a
//! copy uses the session's own connection.
//!
//! A reply on the session's own connection is valid only after all data that the server sent on
//! data connections before it has arrived: a frame that comes too early is held.

use std::{
    collections::BTreeSet,
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use outboard_api::CUresult;
use outboard_link::{
    Closer, Frame, KnownFd, Link, Receiver, Sender, Tail, Wait, Way, data_connections_are_set,
    data_connections_wanted, emulated::Attachment, open_data_connections,
};
use outboard_wire::{
    Op,
    frame::{
        REPLY_DATA_AT, ReplyHeader, decode_reply, encode_request_for_data_connection,
        encode_request_head_for_data_connection, request_len,
    },
    handshake::SessionKey,
    limits::{DATA_CONNECTIONS_OPEN_MS_MAX, DATA_PIECE_BYTES_MAX, DATA_PIECE_BYTES_MIN},
    messages,
};
use parking_lot::{Condvar, Mutex};

use super::{Expected, Incoming, Numbered, Session, Sink, known, send::DATA_HEAD_BYTES_MAX};
use crate::{
    done::Done,
    helpers::Helpers,
    library_thread, log,
    observe::{conditions, optimise, profile, record, stats, times},
};

/// Time for reading the server's last messages on the session's own connection after a data
/// connection has ended, before the session is given up.
const LAST_WORDS_MS_MAX: u64 = 100;

/// Pieces of a copy per data connection. With fewer the connections end at different times, with
/// more there are more messages.
const PIECES_PER_CONNECTION: usize = 4;

/// A frame is held.
const HELD: u64 = 1 << 32;

pub(super) struct DataConnections {
    /// The way to the session's server.
    server: Option<Way>,
    /// This end of the emulated network that the session crosses.
    attachment: Option<Attachment>,
    is_asked: AtomicBool,
    open: OnceLock<Open>,
    pub(super) arrived: Arrived,
    /// Number of expected replies that may arrive on data connections.
    pub(super) awaited: AtomicUsize,
    /// The data replies before the frame of the session's own connection that is held, and a bit
    /// above them; 0 for none.
    held_after: AtomicU64,
    sent_bytes: AtomicU64,
    received_bytes: AtomicU64,
}

struct Open {
    senders: Vec<Mutex<Sender>>,
    closers: Vec<Closer>,
    fds: Vec<KnownFd>,
    /// Number of the next piece of data. A thread that holds the lock is sending.
    turn: Mutex<u64>,
    helpers: Helpers,
}

/// A frame that arrived before data that belongs before it.
pub(super) struct Held {
    head: Vec<u8>,
    tail: Option<Tail>,
    replies_before: u32,
}

impl DataConnections {
    pub(super) fn new(link: &Link) -> DataConnections {
        DataConnections {
            server: link.data_connections(),
            attachment: link.attachment().cloned(),
            is_asked: AtomicBool::new(false),
            open: OnceLock::new(),
            arrived: Arrived::default(),
            awaited: AtomicUsize::new(0),
            held_after: AtomicU64::new(0),
            sent_bytes: AtomicU64::new(0),
            received_bytes: AtomicU64::new(0),
        }
    }

    pub(super) fn close(&self) {
        for closer in self.open.get().iter().flat_map(|open| &open.closers) {
            closer.close();
        }
    }

    pub(super) fn fds(&self) -> &[KnownFd] {
        self.open.get().map_or(&[], |open| &open.fds)
    }

    pub(super) fn note_held(&self, held: Option<&Held>) {
        let after = held.map_or(0, |held| HELD | u64::from(held.replies_before));
        self.held_after.store(after, Ordering::Relaxed);
    }

    /// Returns whether a frame of the session's own connection is held for data that has not
    /// arrived: nothing is read there until then.
    pub(super) fn holds(&self) -> bool {
        match self.held_after.load(Ordering::Relaxed) {
            0 => false,
            after => !self.arrived.has(after as u32),
        }
    }

    /// Returns whether a frame must be held: data that the server sent before it on data
    /// connections is still under way.
    #[inline]
    pub(super) fn is_early(&self, header: &ReplyHeader) -> bool {
        !self.arrived.has(header.replies_before)
    }
}

impl Held {
    pub(super) fn new(head: &[u8], tail: Option<Tail>, header: &ReplyHeader) -> Held {
        Held {
            head: head.to_vec(),
            tail,
            replies_before: header.replies_before,
        }
    }
}

impl Session {
    /// Returns whether a long copy may use data connections. The first call starts opening them.
    pub(crate) fn has_data_connections(&'static self) -> bool {
        if self.data_connections.open.get().is_some() {
            return true;
        }
        if self.data_connections.server.is_none()
            || data_connections_wanted() == 0
            || optimise::is_lowered()
        {
            return false;
        }
        if !self.data_connections.is_asked.swap(true, Ordering::AcqRel) {
            if data_connections_are_set() {
                // A user who chooses the number of connections wants them used from the first copy
                // on.
                self.open_data_connections();
            } else {
                library_thread::spawn("outboard-data", move || self.open_data_connections());
            }
        }
        self.data_connections.open.get().is_some()
    }

    /// Returns the number of data connections, and the bytes of data that they have carried out and
    /// in.
    pub(crate) fn data_connection_figures(&self) -> (usize, u64, u64) {
        let DataConnections {
            open,
            sent_bytes,
            received_bytes,
            ..
        } = &self.data_connections;
        (
            open.get().map_or(0, |open| open.senders.len()),
            sent_bytes.load(Ordering::Relaxed),
            received_bytes.load(Ordering::Relaxed),
        )
    }

    fn open_data_connections(&'static self) {
        let connections_max = data_connections_wanted() as u32;
        let asked = self.call(
            0,
            &messages::DataConnectionsOpen { connections_max },
            |reply| {
                let key = reply.key.as_ref().try_into().map(SessionKey::new).ok();
                (reply.connections.min(connections_max) as usize, key)
            },
        );
        let DataConnections {
            server, attachment, ..
        } = &self.data_connections;
        let (Ok((count @ 1.., Some(key))), Some(server)) = (asked, server) else {
            log::debug(format_args!("the server offers no data connections"));
            return;
        };
        let until = Instant::now() + Duration::from_millis(DATA_CONNECTIONS_OPEN_MS_MAX);
        let links = match open_data_connections(server, attachment.as_ref(), key, count, until) {
            Ok(links) => links,
            Err(error) => {
                log::debug(format_args!("no data connections to {server}: {error}"));
                return;
            }
        };
        let mut open = Open {
            senders: Vec::new(),
            closers: Vec::new(),
            fds: Vec::new(),
            turn: Mutex::new(0),
            helpers: Helpers::of(count - 1),
        };
        let mut receivers = Vec::new();
        for (link, fd) in links {
            let (sender, receiver) = link.split();
            open.closers.push(sender.closer());
            open.senders.push(Mutex::new(sender));
            open.fds.extend(known(fd));
            receivers.push(receiver);
        }
        // Each connection needs a reader before anything can be requested on it.
        for receiver in receivers {
            if !library_thread::spawn("outboard-data", move || self.read_data_connection(receiver))
            {
                open.closers.iter().for_each(Closer::close);
                return;
            }
        }
        log::debug(format_args!("{count} data connections to {server}"));
        let _ = self.data_connections.open.set(open);
        // A session that was lost meanwhile had none to close.
        if self.is_gone() {
            self.data_connections.close();
        }
    }

    /// Sends the data of a copy in pieces over data connections. `announce` posts a piece's
    /// message; its first argument is the piece's offset in the data. Returns `None` if there are
    /// no data connections, or another thread is using them.
    ///
    /// Each message is sent after its data, so that the server never waits for something that this
    /// process has yet to do.
    pub(crate) fn send_on_data_connections(
        &self,
        data: &[u8],
        announce: impl Fn(usize, &[u8]) -> Done + Sync,
    ) -> Option<Done> {
        let open = self.data_connections.open.get()?;
        let mut turn = open.turn.try_lock()?;
        if let Err(error) = self.check() {
            return Some(Err(error));
        }
        stats::sent();
        let first = *turn;
        let len = piece_bytes(data.len(), open.senders.len());
        let pieces = data.len().div_ceil(len);
        *turn += pieces as u64;
        let piece = |index: usize| &data[index * len..data.len().min((index + 1) * len)];
        let next = AtomicUsize::new(0);
        // Which pieces were sent, and how many were announced.
        let progress = Mutex::new((vec![false; pieces], 0));
        let send = |connection: usize| -> Done {
            let mut sender = open.senders[connection].lock();
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= pieces {
                    return Ok(());
                }
                let number = (first + index as u64).to_le_bytes();
                sender
                    .send(&[&number, piece(index)])
                    .and_then(|()| sender.flush())
                    .map_err(|error| self.lost_data_connection(error))?;
                {
                    let (sent, announced) = &mut *progress.lock();
                    sent[index] = true;
                    while sent.get(*announced) == Some(&true) {
                        announce(*announced * len, piece(*announced))?;
                        *announced += 1;
                    }
                }
                let flushed = self.flusher.flush();
                flushed.map_err(|error| self.lost_data_connection(error))?;
            }
        };
        let sent = times::sending(|| open.helpers.together(open.senders.len(), send));
        let sum = &self.data_connections.sent_bytes;
        sum.fetch_add(data.len() as u64, Ordering::Relaxed);
        Some(sent)
    }

    /// Posts a message whose data went over a data connection. It is sent even if the context was
    /// lost meanwhile, since the server expects it.
    pub(crate) fn post_without_data<'a, M: Op<'a>>(
        &self,
        numbered: Numbered<'_>,
        context: u64,
        message: &M,
    ) -> Done {
        let mut head = [0; DATA_HEAD_BYTES_MAX];
        let sent = encode_request_head_for_data_connection(&mut head, context, message)
            .ok_or(outboard_link::Error::Misuse("a message that has no data"))
            .and_then(|len| {
                let mut sender = self.sender.lock();
                self.progress.number(numbered);
                sender.send(&[&head[..len]])?;
                sender.post()
            });
        sent.map_err(|error| self.lost(format_args!("{}: {error}", M::NAME)))
    }

    /// Sends a request whose reply may arrive on a data connection.
    pub(super) fn send_for_data_connection<'a, M: Op<'a>>(
        &self,
        token: u32,
        numbered: Numbered<'_>,
        context: u64,
        message: &M,
    ) -> Result<u64, CUresult> {
        let (context, len) = (profile::tagged(context), request_len(message));
        if conditions::is_recorded() {
            record::sent(len);
        }
        let sent = (|| -> Result<u64, outboard_link::Error> {
            let mut sender = self.sender.lock();
            let mut frame = sender.reserve(len)?;
            encode_request_for_data_connection(&mut frame, token, context, message)
                .map_err(|_| outboard_link::Error::Misuse("a message longer than it said"))?;
            let number = self.progress.number(numbered);
            frame.commit()?;
            sender.post()?;
            drop(sender);
            self.flusher.flush()?;
            Ok(number)
        })();
        sent.map_err(|error| self.lost(format_args!("{}: {error}", M::NAME)))
    }

    /// Reads a data connection, and puts data at its destination. A thread runs this until the
    /// connection ends.
    fn read_data_connection(&self, mut receiver: Receiver) {
        let error = loop {
            match receiver.recv_placed(Wait::Forever, &mut |head, len| self.place(head, len)) {
                Ok(Some(frame)) => {
                    if self.deliver_from_data_connection(frame).is_err() {
                        return;
                    }
                }
                Ok(None) => {}
                Err(error) => break error,
            }
        };
        // Copies whose data was arriving are completed with an error.
        drop(receiver);
        // Usually the server has ended, and has given the reason on the session's own connection.
        let start = Instant::now();
        while !self.is_gone() && start.elapsed() < Duration::from_millis(LAST_WORDS_MS_MAX) {
            self.poll();
            std::thread::sleep(Duration::from_millis(LAST_WORDS_MS_MAX / 20));
        }
        self.lost_data_connection(error);
    }

    fn deliver_from_data_connection(&self, frame: Frame<'_>) -> Done {
        let Frame { head, tail } = frame;
        let (header, reader) =
            decode_reply(head).map_err(|error| self.lost_data_connection(error))?;
        let expected = match header.note {
            0 => self.arriving(header.token),
            _ => None,
        };
        let is_right = |e: &Expected| e.on_data_connection && matches!(e.sink, Sink::Memory(_));
        let expected = match expected {
            Some(expected) if is_right(&expected) => expected,
            wrong => {
                let error = self.lost_data_connection("an answer that is none");
                if let Some(expected) = wrong {
                    expected.group.complete(Err(error));
                }
                return Err(error);
            }
        };
        let bytes = head.len().saturating_sub(REPLY_DATA_AT) + tail.as_ref().map_or(0, Tail::len);
        let group = expected.group.clone();
        self.settle(header, reader, tail, expected)?;
        self.receiving.fetch_sub(1, Ordering::AcqRel);
        self.data_connections.awaited.fetch_sub(1, Ordering::AcqRel);
        let sum = &self.data_connections.received_bytes;
        sum.fetch_add(bytes as u64, Ordering::Relaxed);
        self.data_connections.arrived.add(header.replies_before);
        if group.is_complete() && group.waiting.load(Ordering::Acquire) > 0 {
            // The leading thread may be waiting on the session's own connection.
            self.waker.wake();
        }
        Ok(())
    }

    /// Delivers the held frame, or waits for it further. Returns whether it was delivered; `None`
    /// if none is held.
    pub(super) fn take_held(
        &self,
        incoming: &mut Incoming,
        wait: Wait,
    ) -> Option<Result<bool, CUresult>> {
        let held = incoming.held.take()?;
        if self.is_gone() {
            // The data that it was held for will not come.
            return None;
        }
        if !self
            .data_connections
            .arrived
            .wait(held.replies_before, wait)
        {
            incoming.held = Some(held);
            return Some(Ok(false));
        }
        let Held { head, tail, .. } = held;
        let delivered = self.deliver(&mut incoming.held, &head, tail);
        self.data_connections.note_held(incoming.held.as_ref());
        Some(delivered.map(|()| true))
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Ends the session: without a data connection, data is missing.
    fn lost_data_connection(&self, why: impl std::fmt::Display) -> CUresult {
        self.lost(format_args!("a data connection: {why}"))
    }
}

/// Returns the length of a copy's pieces, so that each connection has several of them and an equal
/// share.
fn piece_bytes(len: usize, connections: usize) -> usize {
    (len / (PIECES_PER_CONNECTION * connections.max(1)))
        .next_multiple_of(DATA_PIECE_BYTES_MIN)
        .clamp(DATA_PIECE_BYTES_MIN, DATA_PIECE_BYTES_MAX)
}

/// The replies on data connections that have arrived. Numbers start again at 0 after 2^32.
#[derive(Default)]
pub(super) struct Arrived {
    /// All replies before this number have arrived.
    next: AtomicU32,
    /// Replies with higher numbers that have arrived.
    beyond: Mutex<BTreeSet<u32>>,
    changed: Condvar,
}

impl Arrived {
    /// Returns whether the first `count` replies have arrived.
    #[inline]
    fn has(&self, count: u32) -> bool {
        let ahead = self.next.load(Ordering::Acquire).wrapping_sub(count);
        ahead.cast_signed() >= 0
    }

    pub(super) fn add(&self, number: u32) {
        let mut beyond = self.beyond.lock();
        beyond.insert(number);
        let mut next = self.next.load(Ordering::Relaxed);
        while beyond.remove(&next) {
            next = next.wrapping_add(1);
        }
        self.next.store(next, Ordering::Release);
        self.changed.notify_all();
    }

    /// Waits until the first `count` replies have arrived. Returns whether they have.
    fn wait(&self, count: u32, wait: Wait) -> bool {
        let until = match wait {
            Wait::Poll => return self.has(count),
            Wait::Until(until) => until,
            Wait::Forever => Instant::now() + Duration::from_millis(super::wait::LEAD_MS_MAX),
        };
        let mut beyond = self.beyond.lock();
        while !self.has(count) {
            if self.changed.wait_until(&mut beyond, until).timed_out() {
                break;
            }
        }
        self.has(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_count_once_all_before_them_have_arrived() {
        let arrived = Arrived::default();
        assert!(arrived.has(0) && !arrived.has(1));
        for (number, whole) in [(1, 0), (3, 0), (0, 2), (4, 2), (2, 5)] {
            arrived.add(number);
            assert!(arrived.has(whole) && !arrived.has(whole + 1), "{number}");
        }
        assert!(!arrived.wait(6, Wait::Until(Instant::now())));
        assert!(arrived.wait(5, Wait::Poll));
    }

    #[test]
    fn pieces_are_shared_evenly() {
        for (len, connections, expected) in [
            (2 << 20, 4, DATA_PIECE_BYTES_MIN),
            (5 << 20, 4, 2 * DATA_PIECE_BYTES_MIN),
            (100 << 20, 4, DATA_PIECE_BYTES_MAX),
            (2 << 20, 1, 2 * DATA_PIECE_BYTES_MIN),
        ] {
            assert_eq!(
                piece_bytes(len, connections),
                expected,
                "{len} over {connections}"
            );
        }
    }

    #[test]
    fn numbers_start_again() {
        let arrived = Arrived::default();
        arrived.next.store(u32::MAX - 1, Ordering::Relaxed);
        arrived.add(0);
        arrived.add(u32::MAX);
        assert!(!arrived.has(u32::MAX));
        arrived.add(u32::MAX - 1);
        assert!(arrived.has(1) && arrived.has(0) && !arrived.has(2));
    }

    #[test]
    fn whoever_waits_is_woken() {
        let arrived = &Arrived::default();
        std::thread::scope(|scope| {
            let until = Wait::Until(Instant::now() + Duration::from_secs(10));
            let waiting = scope.spawn(move || arrived.wait(2, until));
            arrived.add(1);
            arrived.add(0);
            assert!(waiting.join().unwrap());
        });
    }
}
