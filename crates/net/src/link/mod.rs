//! A connection between queues of two processes. It is neither authenticated nor encrypted: both
//! processes are on one machine, or say that they trust the network between them.
//!
//! On one machine frames travel by memory of both processes, where that is possible. The stream
//! then says only that the other is there, and carries a byte for an adapter that sleeps. By verbs
//! devices carry them, and the stream what `verbs` says.

mod verbs;

use std::{
    io::{Error as IoError, ErrorKind, Read, Result as IoResult, Write},
    net::Shutdown,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{JoinHandle, park_timeout, sleep},
    time::{Duration, Instant},
};

use crate::{
    adapter::{Call, HEADER_BYTES, Header, Peer, Sink},
    error::Error,
    meet::{self, BY_VERBS, Hello, Meeting, NOT_BY_VERBS, SAYS_WHY, SHARES, SHARES_ALONE, Window},
    nic::{Nic, Shared},
    queue::Queue,
    rings::{RINGS_BYTES, Rings},
    room,
    shared::{Terms, agree},
    stream::Stream,
    threads::spawn,
    way::Way,
};

const NOT_SHARED: &str = "one of the two processes shares no memory";
/// Sleep of a thread whose peer does not take what it has to send.
const NO_ROOM: Duration = Duration::from_millis(1);
/// The first sleep of a thread whose adapter is held, which is soon over as a rule.
const HELD: Duration = Duration::from_micros(50);
/// Time after which a thread that has nothing to send looks whether the connection is over, of
/// which it is told, too.
const IDLE: Duration = Duration::from_secs(1);
/// Bytes of a frame that are written or read at a time.
const PIECE_BYTES: usize = 64 << 10;

/// Memory of two processes for the frames of one connection, or why there is none.
#[derive(Debug)]
pub struct Common(Result<Rings, String>);

impl Common {
    /// Agrees with the process at the other end of a stream: one of the two `gives` the memory, and
    /// both want it, or there is none. An error ends the connection.
    pub fn agree<S: Stream>(
        stream: &S,
        gives: bool,
        wants: bool,
        deadline: Instant,
    ) -> IoResult<Common>
    where
        for<'a> &'a S: Read + Write,
    {
        let terms = Terms {
            gives,
            bytes: if wants { RINGS_BYTES } else { 0 },
            deadline,
            says_why: true,
        };
        let memory = agree(stream, terms)?;
        Ok(Common(memory.map(|memory| Rings::new(memory, gives))))
    }

    /// Returns why there is no memory, if there is none.
    #[must_use]
    pub fn why(&self) -> Option<&str> {
        self.0.as_ref().err().map(String::as_str)
    }

    #[must_use]
    pub fn way(&self) -> Way {
        match self.0 {
            Ok(_) => Way::Shm,
            Err(_) => Way::Tcp,
        }
    }
}

/// A queue's connection, which ends with it, or with the queue's reset.
pub struct Link {
    way: Way,
    end: Box<dyn Fn() + Send + Sync>,
    /// No more is going to be sent than what waits.
    is_ending: Arc<AtomicBool>,
    /// Says that nothing waits to be sent.
    is_sent: Box<dyn Fn() -> bool + Send + Sync>,
    /// Frames that have come and were not taken are dropped.
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let threads = &self.threads;
        to.debug_struct("Link")
            .field("way", &self.way)
            .field("threads", threads)
            .finish_non_exhaustive()
    }
}

impl Link {
    /// Meets the other process. Connects the queue to the other's, and returns the memory that it
    /// offers.
    pub fn meet(
        nic: &Nic,
        queue: &Queue,
        meeting: Meeting<'_>,
        mine: Window,
    ) -> Result<(Link, Window), Error> {
        let address = meeting.address;
        let failed = |why: &dyn ToString| Error::Meet {
            address: address.into(),
            why: why.to_string(),
        };
        if queue.is_unreliable() {
            return Err(Error::Unreliable);
        }
        if meeting.way == Some(Way::Verbs) {
            return Link::meet_by_verbs(nic, queue, meeting, mine);
        }
        let socket = meeting.socket()?;
        let deadline = Instant::now() + meeting.timeout;
        let qpn = queue.export().qpn;
        let epoch = nic.with(|adapter| adapter.unconnected(qpn))?.epoch;
        let is_sharing = socket.ip().is_loopback() && meeting.way != Some(Way::Tcp);
        let shares = if is_sharing { SHARES } else { 0 };
        let alone = match meeting.way {
            Some(Way::Shm) => SHARES_ALONE,
            _ => 0,
        };
        let mine = Hello {
            peer: Peer { qpn, epoch },
            window: mine,
            ways: SAYS_WHY | shares | alone,
        };
        let met = match meeting.listens {
            true => meet::listen(socket, mine, deadline),
            false => meet::connect(socket, mine, deadline),
        };
        let (stream, theirs) = met.map_err(|error| failed(&error))?;
        if theirs.ways & BY_VERBS != 0 {
            return Err(failed(&NOT_BY_VERBS));
        }
        let memory = match mine.ways & theirs.ways & SHARES {
            0 if (mine.ways | theirs.ways) & SHARES_ALONE != 0 => return Err(failed(&NOT_SHARED)),
            0 => Err(NOT_SHARED.into()),
            _ => {
                let terms = Terms {
                    gives: meeting.listens,
                    bytes: RINGS_BYTES,
                    deadline,
                    says_why: theirs.ways & SAYS_WHY != 0,
                };
                agree(&stream, terms).map_err(|error| failed(&meet::why(&error)))?
            }
        };
        if let (Err(why), Some(Way::Shm)) = (&memory, meeting.way) {
            return Err(failed(why));
        }
        nic.with(|adapter| {
            adapter.unconnected(qpn)?;
            adapter.connect_remote(qpn, theirs.peer)
        })?;
        queue.connected();
        let link = match memory {
            Ok(memory) => {
                let rings = Rings::new(memory, meeting.listens);
                Link::beside(nic, stream, rings, qpn, epoch)
            }
            Err(_) => Link::over(nic, stream, qpn, epoch),
        };
        Ok((link.map_err(|error| failed(&error))?, theirs.window))
    }

    /// Lets memory of both processes carry the frames of a queue pair, or the stream where there is
    /// none.
    pub fn by<S: Stream>(
        nic: &Nic,
        stream: S,
        common: Common,
        qpn: u32,
        epoch: u32,
    ) -> IoResult<Link>
    where
        for<'a> &'a S: Read + Write,
    {
        match common.0 {
            Ok(rings) => Link::beside(nic, stream, rings, qpn, epoch),
            Err(_) => Link::over(nic, stream, qpn, epoch),
        }
    }

    /// Lets rings carry the frames of a queue pair. The stream says whether the peer is there.
    fn beside<S: Stream>(nic: &Nic, stream: S, rings: Rings, qpn: u32, epoch: u32) -> IoResult<Link>
    where
        for<'a> &'a S: Read,
    {
        let shared = nic.shared();
        let (reader, bell, carried) = (
            stream.duplicate()?,
            stream.duplicate()?,
            stream.duplicate()?,
        );
        let calls: [Call; 2] = [
            Box::new(move || {
                bell.write_some(&[0]);
            }),
            Box::new(move || drop(carried.end(Shutdown::Both))),
        ];
        // A queue that was reset in the meantime has no connection: it ends here.
        let _ = shared.with(|adapter| adapter.carry_by(qpn, epoch, rings, calls));
        // An adapter that sleeps has told the peers of other rings: it looks, and tells all anew.
        shared.rouse();
        let sending = shared.clone();
        let mut link = Link {
            way: Way::Shm,
            end: Box::new(move || drop(stream.end(Shutdown::Both))),
            is_ending: Arc::default(),
            is_sent: Box::new(move || sending.with(|adapter| adapter.is_sent(qpn, epoch))),
            is_over: Arc::default(),
            threads: Vec::new(),
        };
        let started = spawn("outboard-net-in", move || {
            listen(&shared, &reader);
            let _ = reader.end(Shutdown::Both);
            shared.with(|adapter| {
                adapter.drain(qpn, epoch);
                adapter.link_down(qpn, epoch);
            });
            shared.rouse();
        });
        link.threads.push(started.map_err(no_thread)?);
        Ok(link)
    }

    /// Returns how frames travel.
    #[must_use]
    pub fn way(&self) -> Way {
        self.way
    }

    /// Carries frames between a queue pair, which is connected to one of another process, and the
    /// stream to that process.
    pub fn over<S: Stream>(nic: &Nic, stream: S, qpn: u32, epoch: u32) -> IoResult<Link>
    where
        for<'a> &'a S: Read + Write,
    {
        let shared = nic.shared();
        let (reader, writer) = (stream.duplicate()?, stream.duplicate()?);
        let (direct, asked) = (stream.duplicate()?, stream.duplicate()?);
        let moved = Arc::new(AtomicU64::new(0));
        let sink = Sink {
            write: Box::new(move |bytes| direct.write_some(bytes)),
            untaken: Box::new(move || asked.untaken()),
            moved: moved.clone(),
        };
        let _ = shared.with(|adapter| adapter.set_sink(qpn, epoch, sink));
        let is_ending = Arc::new(AtomicBool::new(false));
        let is_over = Arc::new(AtomicBool::new(false));
        let mut link = Link {
            way: Way::Tcp,
            end: Box::new(move || drop(stream.end(Shutdown::Both))),
            is_ending: is_ending.clone(),
            is_sent: Box::new(|| false),
            is_over: is_over.clone(),
            threads: Vec::new(),
        };
        let receiving = shared.clone();
        let (taken, given) = (moved.clone(), moved);
        let started = spawn("outboard-net-in", move || {
            let stream = Moving::new(&reader, &taken);
            let _ = receive(&receiving, stream, (qpn, epoch), &is_over);
            let _ = reader.end(Shutdown::Both);
            receiving.with(|adapter| adapter.link_down(qpn, epoch));
            receiving.rouse();
        });
        link.threads.push(started.map_err(no_thread)?);
        let started = spawn("outboard-net-out", move || {
            // After an error nothing comes but what is here already.
            let stream = Moving::new(&writer, &given);
            let _ = writer.end(match send(&shared, stream, (qpn, epoch), &is_ending) {
                Ok(()) => Shutdown::Write,
                Err(_) => Shutdown::Both,
            });
            shared.with(|adapter| adapter.end_outgoing(qpn, epoch));
        });
        link.threads.push(started.map_err(no_thread)?);
        Ok(link)
    }

    /// Lets the connection end once what waits is sent. Nothing is to be sent behind it.
    pub fn finish(&self) {
        self.is_ending.store(true, Ordering::Release);
        self.threads.iter().for_each(|one| one.thread().unpark());
    }

    /// Returns true if all is sent, or the connection is over.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.threads.last().is_none_or(JoinHandle::is_finished) || (self.is_sent)()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        (self.end)();
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// Says which of the things that a connection needs there is not.
fn no_thread(error: IoError) -> IoError {
    IoError::new(error.kind(), Error::Thread(error.to_string()))
}

/// A stream of which the adapter sees that bytes move, long before a frame has.
struct Moving<'a, S> {
    stream: S,
    moved: &'a AtomicU64,
}

impl<'a, S> Moving<'a, S> {
    fn new(stream: S, moved: &'a AtomicU64) -> Moving<'a, S> {
        Moving { stream, moved }
    }

    fn note(&self, bytes: usize) {
        self.moved.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

impl<S: Write> Moving<'_, S> {
    fn write(&mut self, bytes: &[u8]) -> IoResult<()> {
        for piece in bytes.chunks(PIECE_BYTES) {
            self.stream.write_all(piece)?;
            self.note(piece.len());
        }
        Ok(())
    }
}

impl<S: Read> Moving<'_, S> {
    /// Reads the data of a frame, in pieces. Memory is taken for what comes, not for what is
    /// announced.
    fn read(&mut self, header: &Header, data: &mut Vec<u8>) -> Result<(), Error> {
        let (bytes, over) = (header.data_bytes as usize, |_| Error::Peer("no more"));
        data.clear();
        if data.capacity() > room::KEPT_BYTES.max(bytes) {
            *data = Vec::new();
        }
        while data.len() < bytes {
            let (at, piece) = (data.len(), PIECE_BYTES.min(bytes - data.len()));
            if data.capacity() - at < piece {
                // Twice as much as has come, at most.
                room::make(data, at.max(piece).min(bytes - at))?;
            }
            data.resize(at + piece, 0);
            self.stream.read_exact(&mut data[at..]).map_err(over)?;
            // A peer that has requests of its own is not the one that answers.
            if header.is_answer() {
                self.note(piece);
            }
        }
        Ok(())
    }
}

/// Gives the peer's frames to the adapter, one after the other, until the connection is over.
fn receive(
    shared: &Shared,
    mut stream: Moving<'_, impl Read>,
    (qpn, epoch): (u32, u32),
    is_over: &AtomicBool,
) -> Result<(), Error> {
    let over = |_| Error::Peer("no more");
    let mut data = Vec::new();
    loop {
        let mut bytes = [0; HEADER_BYTES];
        stream.stream.read_exact(&mut bytes).map_err(over)?;
        let header = Header::parse(&bytes).ok_or(Error::Peer("a message that is too long"))?;
        stream.read(&header, &mut data)?;
        let mut time = HELD;
        // The adapter is locked from the look to the taking: it is not held in between.
        while !shared.with(|adapter| {
            let is_taken = adapter.has_room(qpn, epoch)? && !shared.is_held();
            if is_taken {
                adapter.incoming(qpn, epoch, &header, &data)?;
            }
            Ok::<_, Error>(is_taken)
        })? {
            if is_over.load(Ordering::Acquire) {
                return Err(Error::Peer("no more"));
            }
            sleep(time);
            time = NO_ROOM.min(time * 2);
        }
        shared.rouse();
    }
}

/// Serves the queues whenever the peer asks for it, until the connection is over.
fn listen(shared: &Shared, mut stream: impl Read) {
    let mut bytes = [0; 64];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return,
            Ok(_) => shared.roused(),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

fn send(
    shared: &Shared,
    mut stream: Moving<'_, impl Write>,
    (qpn, epoch): (u32, u32),
    is_ending: &AtomicBool,
) -> Result<(), Error> {
    loop {
        match shared.with(|adapter| adapter.outgoing(qpn, epoch))? {
            Some(frame) => {
                let over = |_| Error::Peer("no more");
                stream.write(&frame).map_err(over)?;
            }
            None if is_ending.load(Ordering::Acquire) => return Ok(()),
            None => park_timeout(IDLE),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::{
        net::TcpListener,
        os::unix::net::UnixStream,
        thread::{Builder, scope},
    };

    use smallvec::smallvec;

    use super::*;
    use crate::{
        Access, Mapped, QueueOptions,
        wqe::{Data, Entry, Flags, Operation, Remote, Segment},
    };

    const DATA_BYTES: usize = 1 << 16;
    const ROUNDS: u64 = 300;

    /// A process's part of a connection, whose adapter works when this test says so.
    struct End {
        nic: Nic,
        queue: Queue,
        memory: Mapped,
        data: Mapped,
        key: u32,
        head: u16,
    }

    impl End {
        fn new(bytes: usize) -> End {
            let nic = Nic::without_thread();
            let options = QueueOptions {
                log_blocks: 6,
                signal_every: 1,
                ..QueueOptions::default()
            };
            let memory = Mapped::allocate(options.bytes()).unwrap();
            let queue = Queue::create(&nic, memory.clone(), options).unwrap();
            let data = Mapped::allocate(bytes).unwrap();
            let register = |adapter: &mut crate::Adapter| {
                adapter.register(1, data.clone(), Access::ALL).unwrap()
            };
            let key = nic.with(register);
            End {
                nic,
                queue,
                memory,
                data,
                key,
                head: 0,
            }
        }

        fn meet(&self, address: &str, listens: bool, way: Way) -> Link {
            self.try_to_meet(address, listens, way).unwrap()
        }

        fn try_to_meet(&self, address: &str, listens: bool, way: Way) -> Result<Link, Error> {
            let meeting = Meeting {
                address,
                listens,
                is_anywhere: false,
                timeout: Duration::from_secs(60),
                way: Some(way),
            };
            let met = Link::meet(&self.nic, &self.queue, meeting, Window::default());
            met.map(|(link, _)| link)
        }

        fn here(&self, bytes: usize) -> Segment {
            Segment {
                length: bytes as u32,
                lkey: self.key,
                address: self.data.address(),
            }
        }

        fn there(&self) -> Remote {
            Remote {
                address: self.data.address(),
                rkey: self.key,
            }
        }

        fn write(&mut self, bytes: usize, remote: Remote) {
            let data = Data::Gather(smallvec![self.here(bytes)]);
            let imm = None;
            self.post(Operation::Write { remote, imm, data });
        }

        fn post(&mut self, operation: Operation) {
            let of = self.queue.export();
            let entry = Entry {
                index: self.head,
                qpn: of.qpn,
                flags: Flags::SIGNALLED,
                operation,
            };
            let at = |address: u64| (address - self.memory.address()) as usize;
            let slot = usize::from(self.head % 64) * 64;
            self.memory.write(at(of.ring) + slot, &entry.encode());
            self.head = self.head.wrapping_add(1);
            let record = self.memory.u32(at(of.record) + 4);
            record.store(u32::from(self.head).to_be(), Ordering::Release);
            let word = (u64::from(self.head) << 8) << 32 | u64::from(of.qpn << 8);
            let doorbell = self.memory.u64(at(of.doorbell));
            doorbell.store(word.to_be(), Ordering::Release);
        }
    }

    fn connected(way: Way, bytes: usize) -> ([End; 2], [Link; 2]) {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap().to_string();
        drop(free);
        let ends = [End::new(bytes), End::new(bytes)];
        let links = scope(|scope| {
            let listening = scope.spawn(|| ends[0].meet(&address, true, way));
            let link = ends[1].meet(&address, false, way);
            [listening.join().unwrap(), link]
        });
        assert_eq!(links.each_ref().map(Link::way), [way; 2]);
        (ends, links)
    }

    /// Carries bytes from one stream to the other, 1 MB/s of them.
    fn carry_slowly(mut from: UnixStream, mut to: UnixStream) {
        let mut bytes = vec![0; 16 << 10];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            sleep(Duration::from_micros(count as u64));
            if to.write_all(&bytes[..count]).is_err() {
                return;
            }
        }
    }

    /// One who takes or answers a long entry slowly is not silent, and gets it once.
    #[test]
    fn an_entry_may_take_longer_than_a_silent_peer_is_waited_for() {
        const BYTES: usize = 4 << 20;
        let mut ends = [End::new(BYTES), End::new(BYTES)];
        let qpn = ends.each_ref().map(|end| end.queue.export().qpn);
        let peer = [0, 1].map(|at| ends[at].nic.with(|of| of.end_of(qpn[at]).unwrap()));
        let [(one, first), (second, other)] = [(); 2].map(|()| UnixStream::pair().unwrap());
        let mut links = Vec::new();
        for (at, stream) in [one, other].into_iter().enumerate() {
            // Silence of 2 s ends a queue.
            let retries = crate::Retries {
                count_max: 1,
                ..crate::Retries::default()
            };
            let nic = &ends[at].nic;
            nic.with(|of| of.set_retries(qpn[at], retries).unwrap());
            nic.with(|of| of.connect_remote(qpn[at], peer[1 - at]).unwrap());
            links.push(Link::over(nic, stream, qpn[at], peer[at].epoch).unwrap());
        }
        for (from, to) in [(&first, &second), (&second, &first)] {
            let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
            Builder::new().spawn(|| carry_slowly(from, to)).unwrap();
        }
        drop([first, second]);
        let remote = ends[1].there();
        let into = smallvec![ends[0].here(BYTES)];
        ends[0].write(BYTES, remote);
        ends[0].post(Operation::Read { remote, into });
        let begin = Instant::now();
        let status = loop {
            ends.iter().for_each(|end| end.nic.poll());
            let status = ends[0].nic.with(|of| of.status(qpn[0]).unwrap());
            if status.succeeded == 2 || status.failure.is_some() {
                break status;
            }
            assert!(begin.elapsed() < Duration::from_secs(60));
            sleep(Duration::from_millis(1));
        };
        assert_eq!((status.failure, status.retries), (None, 0));
        assert!(begin.elapsed() > Duration::from_secs(7), "it was not slow");
        drop(links);
    }

    #[test]
    fn neither_meets_one_that_takes_another_way() {
        for ways in [[Way::Shm, Way::Tcp], [Way::Tcp, Way::Shm]] {
            let free = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = free.local_addr().unwrap().to_string();
            drop(free);
            let ends = [End::new(64), End::new(64)];
            let met = scope(|scope| {
                let listening = scope.spawn(|| ends[0].try_to_meet(&address, true, ways[0]));
                let met = ends[1].try_to_meet(&address, false, ways[1]);
                [listening.join().unwrap(), met]
            });
            for met in met {
                assert!(met.unwrap_err().to_string().ends_with(NOT_SHARED));
            }
        }
    }

    /// More than waits for a connection, from each to the other: neither waits for the other first.
    #[test]
    fn both_write_and_read_much_at_once() {
        const BYTES: usize = 9 << 20;
        const EACH: u64 = 3;
        for way in [Way::Shm, Way::Tcp] {
            let (mut ends, links) = connected(way, BYTES);
            let there = [ends[1].there(), ends[0].there()];
            for (end, remote) in ends.iter_mut().zip(there) {
                let into = smallvec![end.here(BYTES)];
                (0..EACH).for_each(|_| end.write(BYTES, remote));
                let read = Operation::Read { remote, into };
                (0..EACH).for_each(|_| end.post(read.clone()));
            }
            let begin = Instant::now();
            let is_done = |end: &End| {
                end.nic.poll();
                let of = end.queue.export().qpn;
                end.nic
                    .with(|adapter| adapter.status(of))
                    .unwrap()
                    .succeeded
                    == 2 * EACH
            };
            while !ends.each_ref().map(is_done).iter().all(|is_done| *is_done) {
                assert!(begin.elapsed() < Duration::from_secs(60), "{way:?}");
            }
            drop(links);
        }
    }

    #[test]
    fn what_a_peer_sends_waits_while_the_adapter_is_held() {
        let ([mut one, other], [_mine, theirs]) = connected(Way::Tcp, 64);
        let remote = other.there();
        let comes = |one: &End, value: u64, within: Duration| {
            let begin = Instant::now();
            while other.data.u64(0).load(Ordering::Acquire) != value {
                if begin.elapsed() > within {
                    return false;
                }
                one.nic.poll();
                sleep(NO_ROOM);
            }
            true
        };
        for value in [1, 2] {
            other.nic.hold(true);
            one.data.u64(0).store(value, Ordering::Relaxed);
            one.write(8, remote);
            assert!(!comes(&one, value, Duration::from_millis(30)));
            if value == 1 {
                other.nic.hold(false);
                assert!(comes(&one, value, Duration::from_secs(20)));
            }
        }
        // Its connection ends while it is held.
        let ended = Builder::new().spawn(move || drop(theirs)).unwrap();
        let begin = Instant::now();
        while !ended.is_finished() {
            assert!(begin.elapsed() < Duration::from_secs(20));
            sleep(NO_ROOM);
        }
        assert_eq!(other.data.u64(0).load(Ordering::Acquire), 1);
    }

    /// A peer that asks for more than waits for it, and takes nothing: neither its end nor that of
    /// the link waits for it.
    #[test]
    fn answers_that_nobody_takes_end_with_either_side() {
        const BYTES: usize = 16 << 20;
        let end = End::new(BYTES);
        let qpn = end.queue.export().qpn;
        for (epoch, is_dropped) in [(0, true), (1, false)] {
            let peer = Peer { qpn: 1, epoch: 2 };
            let nic = &end.nic;
            nic.with(|adapter| adapter.connect_remote(qpn, peer))
                .unwrap();
            assert_eq!(
                nic.with(|adapter| adapter.end_of(qpn)).unwrap().epoch,
                epoch
            );
            let (mine, mut theirs) = UnixStream::pair().unwrap();
            let link = Link::over(nic, mine, qpn, epoch).unwrap();
            for sequence in 0..5_u64 {
                let mut bytes = [0; HEADER_BYTES];
                bytes[0] = 5;
                bytes[8..16].copy_from_slice(&sequence.to_le_bytes());
                bytes[16..24].copy_from_slice(&end.data.address().to_le_bytes());
                bytes[24..28].copy_from_slice(&end.key.to_le_bytes());
                bytes[28..32].copy_from_slice(&(BYTES as u32).to_le_bytes());
                theirs.write_all(&bytes).unwrap();
            }
            let begin = Instant::now();
            let wait = |is_it: &dyn Fn() -> bool| {
                while !is_it() {
                    assert!(begin.elapsed() < Duration::from_secs(30), "{is_dropped}");
                    sleep(NO_ROOM);
                }
            };
            let room = || nic.with(|adapter| adapter.has_room(qpn, epoch));
            wait(&|| room() == Ok(false));
            let ended = if is_dropped {
                Builder::new().spawn(move || drop(link)).unwrap()
            } else {
                drop(theirs);
                wait(&|| room() == Err(Error::Peer("no more")));
                Builder::new().spawn(move || drop(link)).unwrap()
            };
            wait(&|| ended.is_finished());
            end.queue.reset(nic).unwrap();
        }
    }

    /// Both adapters are polled in turns by one thread, which shows how long they work for a write.
    #[test]
    fn writes_arrive_whole_each_way() {
        for (way, bytes) in [
            (Way::Tcp, 8),
            (Way::Shm, 8),
            (Way::Shm, 20_480),
            (Way::Shm, DATA_BYTES),
        ] {
            let ([mut one, other], _links) = connected(way, DATA_BYTES);
            let mut times = Vec::new();
            for round in 1..=ROUNDS {
                let words = (0..bytes).step_by(8);
                for at in words.clone() {
                    one.data
                        .u64(at)
                        .store(round << 20 | at as u64, Ordering::Relaxed);
                }
                let begin = Instant::now();
                one.write(bytes, other.there());
                let last = bytes - 8;
                let expected = round << 20 | last as u64;
                while other.data.u64(last).load(Ordering::Acquire) != expected {
                    assert!(begin.elapsed() < Duration::from_secs(60));
                    one.nic.poll();
                    other.nic.poll();
                }
                times.push(begin.elapsed());
                for at in words {
                    let word = other.data.u64(at).load(Ordering::Relaxed);
                    assert_eq!(word, round << 20 | at as u64);
                }
            }
            times.sort();
            println!("{way:?}, {bytes} B: {:?}", times[times.len() / 2]);
        }
    }
}
