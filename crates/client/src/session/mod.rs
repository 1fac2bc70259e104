//! The connection of this process to its server: one ordered stream of messages out, replies and
//! notes in.
//!
//! One thread reads for all: of the threads that wait for replies one leads, that is, it reads the
//! link for all of them. When its own reply has arrived it passes the lead on. A thread of the
//! library reads only while something can arrive that no thread waits for: host functions, and
//! copies into pinned memory.

mod batch;
mod board;
mod data_connections;
mod faults;
mod group;
mod heartbeat;
mod notes;
mod progress;
mod receive;
mod registered;
mod send;
#[cfg(test)]
mod tests;
mod wait;

use std::{
    collections::HashMap,
    ops::Range,
    os::fd::{BorrowedFd, RawFd},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use outboard_api::CUresult;
use outboard_link::{
    Closer, Destination, Flusher, Frame, KnownFd, Link, LinkKind, Receiver, Registrar, Sender,
    Tail, Wait, Waker,
};
use outboard_wire::{
    Message, Op, Reader,
    frame::{FROM_GPU, HEADER_BYTES, REPLY_DATA_AT, ReplyHeader, WRITTEN, copied_to, decode_reply},
    limits::LINGER_MS_MAX,
    messages::{NetworkSet, Note},
    network::Network,
};
use parking_lot::{Condvar, Mutex};

use self::{
    batch::Batch,
    data_connections::{DataConnections, Held},
    faults::Faults,
    receive::finish,
};
pub(crate) use self::{
    board::{Board, WORD_BYTES, WORDS, Word},
    faults::Origin,
    group::Group,
    heartbeat::period as heartbeat_period,
    notes::Handler,
    progress::{Numbered, Progress},
    receive::{ReceiveBuffer, Rows, Sink},
};
use crate::{
    library_thread, log,
    observe::{conditions, optimise, record, stats},
};

pub(crate) struct Session {
    sender: Mutex<Sender>,
    /// The numbers of all messages.
    pub(crate) progress: Progress,
    flusher: Flusher,
    /// Registrations of memory with the adapter, over rdma.
    registrar: Option<Registrar>,
    /// Bytes of replies that the server's adapter has written to the program's memory.
    written_bytes: AtomicU64,
    /// Bytes that the server's adapter has read from the GPU's memory.
    from_gpu_bytes: AtomicU64,
    /// Bytes that this side's adapter has written to the GPU's memory.
    to_gpu_bytes: AtomicU64,
    /// Messages kept back at the level `batch=N`.
    batch: Option<Batch>,
    receiver: Mutex<Incoming>,
    waker: Waker,
    closer: Closer,
    data_connections: DataConnections,
    kind: LinkKind,
    waiters: Mutex<HashMap<u32, Expected>>,
    next_token: AtomicU32,
    gone: AtomicBool,
    faults: Mutex<Faults>,
    /// There are faults; one of them is the loss of a context. Changed with `faults` locked.
    faulted: AtomicBool,
    has_lost: AtomicBool,
    /// Contexts that the program has ended. Changed with `faults` locked.
    ended: AtomicU32,
    /// Locked while a context is ended.
    ending: Mutex<()>,
    next_fd_tag: AtomicU32,
    /// Number of expected replies whose bytes go straight into the program's memory.
    receiving: AtomicUsize,
    /// Number of things that can arrive while no thread waits.
    unattended: AtomicUsize,
    attend: (Mutex<bool>, Condvar),
    /// The link's descriptors, for a forked child to close.
    fds: Vec<KnownFd>,
    heartbeats: heartbeat::Socket,
    /// A thread is handling a note of the server's, and reads nothing meanwhile.
    takes_note: AtomicBool,
    handler: Box<dyn Handler>,
    /// Number of threads that wait now.
    waiting: AtomicUsize,
    /// Number of waits of the program's threads. The server compares mirrors before it answers one.
    waits: AtomicU64,
    is_sharing: AtomicBool,
}

/// The receiving side of the session.
struct Incoming {
    receiver: Receiver,
    /// A frame that arrived too early; nothing further is received until it is delivered.
    held: Option<Held>,
}

/// An expected reply.
#[derive(Clone)]
struct Expected {
    group: Arc<Group>,
    sink: Sink,
    /// It may arrive on a data connection.
    on_data_connection: bool,
    /// Its bytes are arriving; the [`ReceiveSegment`] that receives them completes the group.
    is_receiving: bool,
    /// A launch has waited for it in vain.
    is_given_up: bool,
    of: Origin,
}

/// A copy under way into a mirror: its token, and the stream that makes it.
pub(crate) type MirrorCopy = (u32, u64);

impl Session {
    pub(crate) fn new(link: Link, fds: Vec<RawFd>, handler: Box<dyn Handler>) -> Session {
        outboard_link::send_programs_memory();
        let kind = link.kind();
        let data_connections = DataConnections::new(&link);
        let (mut sender, receiver) = link.split();
        let registrar = sender.remote_memory().map(|remote| remote.registrar());
        Session {
            waker: receiver.waker(),
            closer: sender.closer(),
            data_connections,
            flusher: sender.flusher(),
            registrar,
            written_bytes: AtomicU64::new(0),
            from_gpu_bytes: AtomicU64::new(0),
            to_gpu_bytes: AtomicU64::new(0),
            sender: Mutex::new(sender),
            progress: Progress::default(),
            batch: optimise::level().batch().map(Batch::new),
            receiver: Mutex::new(Incoming {
                receiver,
                held: None,
            }),
            kind,
            waiters: Mutex::default(),
            next_token: AtomicU32::new(1),
            gone: AtomicBool::new(false),
            faults: Mutex::default(),
            faulted: AtomicBool::new(false),
            has_lost: AtomicBool::new(false),
            ended: AtomicU32::new(0),
            ending: Mutex::new(()),
            next_fd_tag: AtomicU32::new(1),
            receiving: AtomicUsize::new(0),
            unattended: AtomicUsize::new(0),
            attend: (Mutex::new(false), Condvar::new()),
            fds: fds.into_iter().filter_map(known).collect(),
            heartbeats: heartbeat::Socket::default(),
            takes_note: AtomicBool::new(false),
            handler,
            waiting: AtomicUsize::new(0),
            waits: AtomicU64::new(0),
            is_sharing: AtomicBool::new(false),
        }
    }

    /// Starts the thread that sends for threads whose messages follow each other closely, if there
    /// is a core for it.
    pub(crate) fn start_sender(&self) {
        if let Some(helper) = self.flusher.helper() {
            library_thread::spawn("outboard-sender", move || helper.run());
        }
    }

    /// Gives bytes that are posted to the kernel before the process ends, if the server takes them
    /// soon.
    pub(crate) fn send_all(&self) {
        let until = Instant::now() + Duration::from_millis(LINGER_MS_MAX);
        let _ = self.flusher.flush_until(until);
    }

    /// Changes the emulated network of both sides.
    pub(crate) fn change_network(&self, network: &Network) -> Result<(), CUresult> {
        let text = network.to_string();
        let message = NetworkSet {
            network: text.as_bytes(),
        };
        self.call(0, &message, |_| ())?;
        let mut sender = self.sender.lock();
        let emulation = sender.emulation();
        let emulation = emulation.ok_or(CUresult::CUDA_ERROR_NOT_SUPPORTED)?;
        emulation.change(network);
        Ok(())
    }

    /// Returns whether memory can be shared with the server.
    pub(crate) fn shares_memory(&self) -> bool {
        self.kind == LinkKind::Shm
    }

    /// Returns whether other sessions may use device memory of this one.
    pub(crate) fn is_sharing(&self) -> bool {
        self.is_sharing.load(Ordering::Relaxed)
    }

    /// Sends a request and waits for its reply.
    pub(crate) fn call<'a, M: Op<'a>, R>(
        &self,
        context: u64,
        message: &M,
        read: impl FnOnce(M::Reply<'_>) -> R,
    ) -> Result<R, CUresult> {
        let group = Group::new(1);
        if outboard_wire::messages::shares_memory(M::NUMBER) {
            self.is_sharing.store(true, Ordering::Relaxed);
        }
        self.ask(context, message, &group, Sink::Group)?;
        let data = self.wait(&group)?;
        self.read_answer::<M, R>(&data, read)
    }

    /// Reads the answer to a message of this kind.
    pub(crate) fn read_answer<'a, M: Op<'a>, R>(
        &self,
        data: &[u8],
        read: impl FnOnce(M::Reply<'_>) -> R,
    ) -> Result<R, CUresult> {
        if conditions::is_recorded() {
            record::answered(data.len(), 0);
        }
        match <M::Reply<'_> as Message<'_>>::decode(&mut Reader::new(data)) {
            Ok(reply) => Ok(read(reply)),
            Err(error) => Err(self.lost(format_args!("the answer to {}: {error}", M::NAME))),
        }
    }

    /// Sends a request whose reply goes to `sink` and counts for `group`.
    pub(crate) fn ask<'a, M: Op<'a>>(
        &self,
        context: u64,
        message: &M,
        group: &Arc<Group>,
        sink: Sink,
    ) -> Result<(), CUresult> {
        self.ask_over(false, Numbered::No, context, message, group, sink)
            .map(drop)
    }

    /// Sends a request that counts as work.
    pub(crate) fn ask_numbered<'a, M: Op<'a>>(
        &self,
        numbered: Numbered<'_>,
        context: u64,
        message: &M,
        group: &Arc<Group>,
        sink: Sink,
    ) -> Result<u64, CUresult> {
        self.ask_over(false, numbered, context, message, group, sink)
    }

    /// Sends a request that counts as work and whose reply may arrive on a data connection: its
    /// data goes to the program's memory.
    pub(crate) fn ask_for_data_connection<'a, M: Op<'a>>(
        &self,
        numbered: Numbered<'_>,
        context: u64,
        message: &M,
        group: &Arc<Group>,
        buffer: ReceiveBuffer,
    ) -> Result<u64, CUresult> {
        self.ask_over(
            true,
            numbered,
            context,
            message,
            group,
            Sink::Memory(buffer),
        )
    }

    fn ask_over<'a, M: Op<'a>>(
        &self,
        on_data_connection: bool,
        numbered: Numbered<'_>,
        context: u64,
        message: &M,
        group: &Arc<Group>,
        sink: Sink,
    ) -> Result<u64, CUresult> {
        self.check_in(context)?;
        stats::sent();
        self.send_batch()?;
        // What comes on a data connection is written at once, before what is still to come into
        // the same memory. The session's own connection keeps the order.
        let on_data_connection = on_data_connection
            && matches!(&sink, Sink::Memory(memory) if !memory.in_order && !self.expects_in(memory));
        if conditions::is_recorded() {
            let data = match &sink {
                Sink::Memory(buffer) => REPLY_DATA_AT - HEADER_BYTES + buffer.rows.bytes(),
                _ => 0,
            };
            record::answered(data, 1);
        }
        let token = self.mint_token();
        let lands = matches!(sink, Sink::Memory(_));
        if lands {
            self.receiving.fetch_add(1, Ordering::AcqRel);
        }
        if on_data_connection {
            self.data_connections.awaited.fetch_add(1, Ordering::AcqRel);
        }
        self.waiters.lock().insert(
            token,
            Expected {
                group: group.clone(),
                sink,
                on_data_connection,
                is_receiving: false,
                is_given_up: false,
                of: self.origin(context),
            },
        );
        let sent = match on_data_connection {
            false => self.send(token, numbered, context, message),
            true => self.send_for_data_connection(token, numbered, context, message),
        };
        sent.inspect_err(|_| {
            self.waiters.lock().remove(&token);
            if lands {
                self.receiving.fetch_sub(1, Ordering::AcqRel);
            }
            if on_data_connection {
                self.data_connections.awaited.fetch_sub(1, Ordering::AcqRel);
            }
        })
    }

    /// Delivers the next frame, if one comes. Returns whether one did.
    fn take_next(&self, incoming: &mut Incoming, wait: Wait) -> Result<bool, CUresult> {
        if incoming.held.is_some()
            && let Some(taken) = self.take_held(incoming, wait)
        {
            return taken;
        }
        let mut place = |head: &[u8], len| self.place(head, len);
        match incoming.receiver.recv_placed(wait, &mut place) {
            Ok(Some(Frame { head, tail })) => {
                self.deliver(&mut incoming.held, head, tail)?;
                Ok(incoming.held.is_none())
            }
            Ok(None) => Ok(false),
            Err(error) => Err(self.lost(error)),
        }
    }

    /// Passes memory to the server; the next message names it by the tag.
    pub(crate) fn send_fd(&self, fd: BorrowedFd<'_>) -> Result<u64, CUresult> {
        let tag = u64::from(self.next_fd_tag.fetch_add(1, Ordering::Relaxed));
        let sent = match self.sender.lock().fds() {
            Some(fds) => fds.send_fd(tag, fd),
            None => Err(outboard_link::Error::lacks(
                "passing a file descriptor",
                self.kind,
            )),
        };
        sent.map_err(|error| self.lost(error))?;
        Ok(tag)
    }

    /// Returns whether copies into pinned memory are under way.
    pub(crate) fn expects_detached(&self) -> bool {
        self.waiters
            .lock()
            .values()
            .any(|e| matches!(&e.sink, Sink::Memory(l) if l.detached))
    }

    /// Returns the copies under way into some of this memory: those that a thread waits for, or the
    /// others.
    pub(crate) fn copies_into(&self, base: u64, bytes: u64, is_awaited: bool) -> Vec<u32> {
        self.copies(|token, _, memory| {
            let is_wanted = memory.detached != is_awaited && memory.is_within(base, bytes);
            is_wanted.then_some(token)
        })
    }

    /// Returns whether copies into the program's memory are under way.
    #[inline]
    pub(crate) fn is_receiving(&self) -> bool {
        self.receiving.load(Ordering::Acquire) > 0
    }

    /// Returns the copies under way into mirrors, of streams that `is_of` chooses, which nobody
    /// waits for and none has given up.
    pub(crate) fn copies_into_mirrors(&self, is_of: impl Fn(u64) -> bool) -> Vec<MirrorCopy> {
        self.copies(|token, expected, memory| {
            let is_wanted = memory.detached && memory.in_order && is_of(memory.stream);
            (is_wanted && !expected.is_given_up).then_some((token, memory.stream))
        })
    }

    fn copies<R>(&self, wanted: impl Fn(u32, &Expected, &ReceiveBuffer) -> Option<R>) -> Vec<R> {
        let waiters = self.waiters.lock();
        let found = waiters
            .iter()
            .filter_map(|(token, expected)| match &expected.sink {
                Sink::Memory(memory) => wanted(*token, expected, memory),
                _ => None,
            });
        found.collect()
    }

    /// Keeps those that have not arrived.
    pub(crate) fn retain_expected(&self, copies: &mut Vec<u32>) {
        let waiters = self.waiters.lock();
        copies.retain(|token| waiters.contains_key(token));
    }

    /// Takes those that have arrived out of `copies`, and returns them.
    pub(crate) fn take_arrived(&self, copies: &mut Vec<MirrorCopy>) -> Vec<MirrorCopy> {
        let waiters = self.waiters.lock();
        let has_arrived = |copy: &mut MirrorCopy| !waiters.contains_key(&copy.0);
        copies.extract_if(.., has_arrived).collect()
    }

    /// Notes that a launch has waited for these in vain: no other waits for them again.
    pub(crate) fn give_up(&self, copies: &[MirrorCopy]) {
        let mut waiters = self.waiters.lock();
        for (token, _) in copies {
            if let Some(expected) = waiters.get_mut(token) {
                expected.is_given_up = true;
            }
        }
    }

    /// Returns whether a reply that has not arrived goes into some of this memory.
    pub(crate) fn expects_in(&self, memory: &ReceiveBuffer) -> bool {
        let is_of_both =
            |of: &Expected| matches!(&of.sink, Sink::Memory(other) if other.overlaps(memory));
        self.waiters.lock().values().any(is_of_both)
    }

    /// Returns the addresses into which replies go that have not arrived.
    pub(super) fn awaited_memory(&self) -> Vec<Range<u64>> {
        let waiters = self.waiters.lock();
        let memory = waiters.values().filter_map(|of| match &of.sink {
            Sink::Memory(memory) => {
                let at = memory.address.addr() as u64;
                Some(at..at.saturating_add(memory.rows.spanned_bytes() as u64))
            }
            _ => None,
        });
        memory.collect()
    }

    /// Returns the memory to receive a long reply into: a copy's plain destination.
    fn place(&self, head: &[u8], len: usize) -> Option<Destination> {
        let token = copied_to(head, len)?;
        let mut waiters = self.waiters.lock();
        let expected = waiters.get(&token)?;
        let Sink::Memory(buffer) = &expected.sink else {
            return None;
        };
        // Earlier data for this memory may still come on a data connection, or wait for its time on
        // an emulated network: it would be written over this one.
        let is_emulated = self.kind == LinkKind::Emulated;
        if is_emulated && buffer.in_order {
            return None;
        }
        let is_awaited = self.data_connections.awaited.load(Ordering::Acquire) > 0;
        let is_before = |(other, of): (&u32, &Expected)| {
            let is_late = of.on_data_connection || (is_emulated && !of.is_receiving);
            let is_earlier = is_late && token.wrapping_sub(*other).cast_signed() > 0;
            is_earlier && matches!(&of.sink, Sink::Memory(memory) if memory.overlaps(buffer))
        };
        if (is_emulated || is_awaited) && waiters.iter().any(is_before) {
            return None;
        }
        let memory = buffer.whole(len - REPLY_DATA_AT, &expected.group)?;
        if let Some(expected) = waiters.get_mut(&token) {
            expected.is_receiving = true;
        }
        Some(Destination {
            skip: REPLY_DATA_AT,
            memory: Box::new(memory),
        })
    }

    /// Delivers a frame, or holds it until data that belongs before it has arrived.
    fn deliver(
        &self,
        hold: &mut Option<Held>,
        head: &[u8],
        tail: Option<Tail>,
    ) -> Result<(), CUresult> {
        let (header, mut reader) = decode_reply(head).map_err(|error| self.lost(error))?;
        if self.data_connections.is_early(&header) {
            *hold = Some(Held::new(head, tail, &header));
            self.data_connections.note_held(hold.as_ref());
            return Ok(());
        }
        if header.note != 0 {
            let note = Note::decode(header.note, &mut reader).map_err(|error| self.lost(error))?;
            // What a kernel printed can take long to write.
            self.takes_note.store(true, Ordering::Relaxed);
            let taken = self.take_note(note);
            self.takes_note.store(false, Ordering::Relaxed);
            return taken;
        }
        let Some(expected) = self.arriving(header.token) else {
            return Err(self.lost(format_args!(
                "an answer to call {} that nobody made",
                header.token
            )));
        };
        let (lands, on_data_connection) = (
            matches!(expected.sink, Sink::Memory(_)),
            expected.on_data_connection,
        );
        let settled = self.settle(header, reader, tail, expected);
        if lands {
            self.receiving.fetch_sub(1, Ordering::AcqRel);
        }
        if on_data_connection {
            self.data_connections.awaited.fetch_sub(1, Ordering::AcqRel);
        }
        settled
    }

    /// Returns an expected reply that has arrived. One with data for the program's memory stays
    /// expected until [`settle`](Self::settle) has written its bytes.
    fn arriving(&self, token: u32) -> Option<Expected> {
        let mut waiters = self.waiters.lock();
        match waiters.get_mut(&token) {
            Some(expected) if matches!(expected.sink, Sink::Memory(_)) => {
                expected.is_receiving = true;
                Some(expected.clone())
            }
            _ => waiters.remove(&token),
        }
    }

    fn settle(
        &self,
        header: ReplyHeader,
        mut reader: Reader<'_>,
        tail: Option<Tail>,
        expected: Expected,
    ) -> Result<(), CUresult> {
        if header.status != 0 {
            let status = CUresult(header.status);
            let why = reader.bytes("a failure").unwrap_or_default();
            if status.is_sticky() && expected.of.context != 0 {
                self.lose_context(status, why, expected.of);
            } else {
                log::debug(format_args!("{status}: {}", String::from_utf8_lossy(why)));
            }
            if let Sink::Memory(buffer) = expected.sink {
                self.waiters.lock().remove(&header.token);
                if buffer.detached {
                    self.set_fault(status, expected.of);
                    self.attended();
                }
            }
            if let Sink::Nowhere(name) = expected.sink {
                self.fail(name, status, why, expected.of);
                expected.group.complete(Ok(Vec::new()));
            } else {
                // Whatever fails after the loss of the context fails by that.
                let lost = self.check_in(expected.of.context).err();
                expected.group.complete(Err(lost.unwrap_or(status)));
            }
            return Ok(());
        }
        match expected.sink {
            Sink::Group => expected.group.complete(Ok(reader.rest().to_vec())),
            Sink::Nowhere(_) => expected.group.complete(Ok(Vec::new())),
            Sink::Memory(buffer) => {
                let filled = self.fill(&header, reader, tail, &buffer);
                self.waiters.lock().remove(&header.token);
                if buffer.detached {
                    self.attended();
                }
                expected.group.complete(filled.map(|()| Vec::new()));
                if self.is_gone() {
                    return Err(CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE);
                }
            }
        }
        Ok(())
    }

    /// Brings a reply's data to the program's memory, if it is not there yet.
    fn fill(
        &self,
        header: &ReplyHeader,
        mut reader: Reader<'_>,
        tail: Option<Tail>,
        buffer: &ReceiveBuffer,
    ) -> Result<(), CUresult> {
        if header.placed & FROM_GPU != 0 {
            self.was_read_from_gpu(buffer);
        }
        match tail {
            None if header.placed & WRITTEN != 0 => self.was_written(buffer),
            // The data was received into its destination.
            Some(tail) => finish(tail),
            None => {
                let data = reader.bytes("copied data");
                buffer.write(data.map_err(|error| self.lost(error))?)
            }
        }
    }

    /// Closes a forked child's copies of the sockets, without a message to the server.
    pub(crate) fn abandon(&self) {
        self.gone.store(true, Ordering::Release);
        let heartbeats = self.heartbeats.get();
        let fds = self.fds.iter().chain(self.data_connections.fds());
        for fd in fds.chain(&heartbeats).filter(|fd| fd.is_intact()) {
            // SAFETY: the child never uses this session again; the parent's descriptors stay open.
            // Another file of the program's that has the number was left out.
            unsafe { libc::close(fd.fd()) };
        }
    }

    fn mint_token(&self) -> u32 {
        loop {
            match self.next_token.fetch_add(1, Ordering::Relaxed) {
                0 => continue,
                token => return token,
            }
        }
    }

    /// Ends the session and logs the reason once; every later call fails at once.
    fn lost(&self, why: impl std::fmt::Display) -> CUresult {
        if !self.gone.swap(true, Ordering::AcqRel) {
            log::warn(format_args!(
                "the session with the GPU server is lost: {why}"
            ));
            self.data_connections.close();
            // Ends threads that are blocked in the link: a peer that has closed its side only does
            // not read what they send.
            self.closer.close();
            let expected: Vec<Expected> = self.waiters.lock().drain().map(|(_, e)| e).collect();
            // Memory that the kernel may still be filling is returned to the program only after
            // that.
            for one in expected.into_iter().filter(|one| !one.is_receiving) {
                one.group
                    .complete(Err(CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE));
            }
            self.waker.wake();
        }
        CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE
    }
}

/// Remembers which file a number is of now.
fn known(fd: RawFd) -> Option<KnownFd> {
    // SAFETY: a descriptor of the link, which is open.
    KnownFd::of(unsafe { BorrowedFd::borrow_raw(fd) })
}
