//! A session end to end, over real links, with a device whose progress the test controls.

mod abuse;
mod answers;
mod aside;
mod data_connections;
mod foresight;
mod net;
mod peers;

use std::{
    collections::HashMap,
    fs::File,
    io::{Read, Seek, Write},
    net::{TcpListener, TcpStream},
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use outboard_api::CUresult;
use outboard_device::{Cx, Device, Failure, HeldUp, Host, Pending, Placed, Wait as DeviceWait};
use outboard_link::{Receiver, Segment, Sender, Stream, Wait, emulated};
use outboard_net::{Mapped, Registered, remote::Borrower};
use outboard_wire::{
    Data, Message as _, Op, Reader,
    doc::DeviceCard,
    frame::{self, ReplyHeader, decode_reply},
    handshake::{Purpose, SessionKey},
    limits::{CHUNK_BYTES_MAX, SESSION_KEY_BYTES},
    messages::{self, Note, Request},
    network::Network,
    runs::Runs,
};

use super::*;

/// The stream in which a copy to the device is held up.
const HELD_UP: u64 = 77;
/// The stream in which a copy to the device is held up until the test lets it go.
const NEVER_DONE: u64 = 78;
const ROOM_BYTES_MAX: usize = 900_000;
/// DataConnections that a session may have, whatever the machine.
const DATA_CONNECTIONS: usize = 3;
const PATIENCE: Duration = Duration::from_secs(10);

/// State shared by the test and the device.
#[derive(Default)]
struct Board {
    /// All work on streams below this number is done.
    done: AtomicU64,
    /// Whether the GPU has failed.
    is_lost: AtomicBool,
    /// Number of pending replies that exist.
    pendings: AtomicUsize,
    /// Number of fences made for streams.
    fences: AtomicUsize,
    /// The device panics when the thread that sends replies takes their data.
    data_panics: AtomicBool,
    can_fence_early: AtomicBool,
    /// Number of host functions that the client has run.
    host_funcs_done: AtomicU64,
    awaits_host_calls: AtomicBool,
    /// Whether a call ends that the client cannot end.
    is_let_go: AtomicBool,
    /// Copies to the device whose data lay in memory that the device provided.
    placed: AtomicUsize,
    /// Host memory of the session, which adapters may use.
    pinned: OnceLock<Mapped>,
}

/// A fake device. Streams are numbers; the work on stream n is done once the board's `done` is n +
/// 1.
struct Fake {
    board: Arc<Board>,
    /// Handed out before the next reply.
    printed: Vec<u8>,
    pages: Vec<(u64, Vec<u8>)>,
    host_calls: Vec<(u64, CUresult)>,
    /// Bytes that the client wrote to mirrors while a call was held up.
    written: usize,
    contexts: mpsc::Sender<u64>,
}

struct Gate {
    board: Arc<Board>,
    stream: u64,
    data: Option<Vec<u8>>,
}

impl Gate {
    fn pending(board: &Arc<Board>, stream: u64, data: Option<Vec<u8>>) -> Pending {
        board.pendings.fetch_add(1, SeqCst);
        Box::new(Gate {
            board: Arc::clone(board),
            stream,
            data,
        })
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.board.pendings.fetch_sub(1, SeqCst);
    }
}

impl DeviceWait for Gate {
    fn ready(&mut self) -> Result<bool, Failure> {
        if self.board.is_lost.load(SeqCst) {
            return Err(Failure::new(
                CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
                "the kernel wrote where nothing is",
            ));
        }
        Ok(self.board.done.load(SeqCst) > self.stream)
    }

    fn data(&self) -> Option<&[u8]> {
        let is_aside = || thread::current().name() == Some("outboard-replies");
        assert!(!(self.board.data_panics.load(SeqCst) && is_aside()));
        self.data.as_deref()
    }
}

impl Host for Fake {
    fn cards(&mut self, _: u32) -> Result<Vec<DeviceCard>, Failure> {
        Ok(vec![DeviceCard::default()])
    }

    fn driver_version(&mut self) -> u32 {
        13_000
    }

    fn reserve_window(&mut self, _: u8) -> Result<(u64, u64), Failure> {
        Ok((1 << 40, 1 << 30))
    }

    fn lend(&mut self, address: u64, len: u64, _: Borrower) -> Result<Registered, Failure> {
        let pinned = self.board.pinned.get();
        let part = pinned.and_then(|memory| {
            let offset = memory.offset_of(address, len)?;
            memory.part(offset, len as usize)
        });
        part.map(Registered::from)
            .ok_or_else(|| Failure::new(CUresult::CUDA_ERROR_INVALID_VALUE, "not pinned here"))
    }

    fn take_printed(&mut self, out: &mut Printed, _: bool) {
        out.stdout.append(&mut self.printed);
    }

    fn take_host_calls(&mut self, out: &mut Vec<(u64, CUresult)>) {
        out.append(&mut self.host_calls);
    }

    fn take_host_pages(&mut self, changed: &mut dyn FnMut(u64, &[u8])) {
        for (va, data) in self.pages.drain(..) {
            changed(va, &data);
        }
    }

    /// Provides memory for up to `ROOM_BYTES_MAX` bytes.
    fn room(&mut self, len: usize) -> Option<Box<dyn Segment>> {
        (len <= ROOM_BYTES_MAX).then(|| Box::new(vec![0u8; len]) as Box<dyn Segment>)
    }

    fn can_fence_early(&mut self, _: u64, _: Option<u64>) -> bool {
        self.board.can_fence_early.load(SeqCst)
    }

    fn awaits_host_calls(&self) -> bool {
        self.board.awaits_host_calls.load(SeqCst)
    }
}

impl HeldUp for Fake {
    fn take_printed(&mut self, out: &mut Printed) {
        Host::take_printed(self, out, false);
    }

    fn take_host_calls(&mut self, out: &mut Vec<(u64, CUresult)>) {
        Host::take_host_calls(self, out);
    }

    fn take_host_pages(&mut self, changed: &mut dyn FnMut(u64, &[u8])) {
        Host::take_host_pages(self, changed);
    }

    fn host_write(&mut self, _: u64, data: &[u8]) -> bool {
        self.written += data.len();
        true
    }
}

impl Device for Fake {
    /// Is held up until the client has run host function 42. Before that a kernel prints, another
    /// writes to a mirror, and all work on streams is done. Fails if the function has written
    /// nothing to mirrors by its end.
    fn library_global(
        &mut self,
        cx: &mut Cx<'_>,
        _: &messages::LibraryGlobal<'_>,
    ) -> Result<messages::LibraryGlobalReply, Failure> {
        self.printed.extend(b"printed");
        self.pages.push((1 << 20, b"word".to_vec()));
        self.host_calls.push((42, CUresult::CUDA_SUCCESS));
        self.board.done.store(u64::MAX, SeqCst);
        let mut done = Vec::new();
        while done.is_empty() && (cx.service)(self, &mut done) {
            thread::sleep(Duration::from_millis(1));
        }
        if self.written == 0 {
            return Err(Failure::unsupported("a function that writes nothing"));
        }
        Ok(messages::LibraryGlobalReply {
            va: done[0],
            len: 8,
            managed: 0,
        })
    }

    /// Hands the data back as pages that kernels wrote. In stream `HELD_UP` it first waits until
    /// the client has run host function 42, in stream `NEVER_DONE` until the test lets it go.
    fn copy_in(&mut self, cx: &mut Cx<'_>, m: &messages::CopyIn<'_>) -> Result<(), Failure> {
        if m.stream == HELD_UP || m.stream == NEVER_DONE {
            cx.has_service()?;
            self.host_calls.push((42, CUresult::CUDA_SUCCESS));
            let mut done = Vec::new();
            let mut is_there = true;
            while match m.stream {
                HELD_UP => done.is_empty() && is_there,
                _ => !self.board.is_let_go.load(SeqCst),
            } {
                is_there = (cx.service)(self, &mut done);
                thread::sleep(Duration::from_millis(1));
            }
        }
        if let (Some(Placed::Own(memory)), Data::Here(bytes)) = (cx.placed, m.data)
            && std::ptr::eq(memory.bytes(), bytes)
        {
            self.board.placed.fetch_add(1, SeqCst);
        }
        self.pages.push((m.dst, cx.bytes(m.data)?.into_owned()));
        Ok(())
    }

    fn copy_box_in(&mut self, cx: &mut Cx<'_>, m: &messages::CopyBoxIn<'_>) -> Result<(), Failure> {
        let m = messages::CopyIn {
            dst: m.desc.len() as u64,
            stream: m.stream,
            sync: m.sync,
            data: m.data,
        };
        self.copy_in(cx, &m)
    }

    fn fence_context(
        &mut self,
        cx: &mut Cx<'_>,
        _: &messages::FenceContext,
    ) -> Result<Pending, Failure> {
        let _ = self.contexts.send(cx.context);
        Ok(Gate::pending(&self.board, 0, None))
    }

    fn fence_stream(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::FenceStream,
    ) -> Result<Pending, Failure> {
        let pending = Gate::pending(&self.board, m.stream, None);
        self.board.fences.fetch_add(1, SeqCst);
        Ok(pending)
    }

    fn copy_out(&mut self, _: &mut Cx<'_>, m: &messages::CopyOut) -> Result<Pending, Failure> {
        let data = (m.src != 0).then(|| vec![m.src as u8; m.len as usize]);
        Ok(Gate::pending(&self.board, m.stream, data))
    }

    /// Fails with a reason as long as the event's number; for number 0 with a sticky error.
    fn event_destroy(&mut self, _: &mut Cx<'_>, m: &messages::EventDestroy) -> Result<(), Failure> {
        match m.event {
            0 => Err(Failure::new(CUresult::CUDA_ERROR_LAUNCH_FAILED, "lost")),
            len => Err(Failure::new(
                CUresult::CUDA_ERROR_INVALID_HANDLE,
                "x".repeat(len as usize),
            )),
        }
    }

    fn stream_destroy(
        &mut self,
        _: &mut Cx<'_>,
        _: &messages::StreamDestroy,
    ) -> Result<(), Failure> {
        Ok(())
    }

    fn host_func(&mut self, _: &mut Cx<'_>, m: &messages::HostFunc) -> Result<(), Failure> {
        self.host_calls.push((m.call, CUresult::CUDA_SUCCESS));
        self.board.awaits_host_calls.store(true, SeqCst);
        Ok(())
    }

    fn host_func_done(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::HostFuncDone,
    ) -> Result<(), Failure> {
        self.board.host_funcs_done.store(m.call, SeqCst);
        self.board.awaits_host_calls.store(false, SeqCst);
        Ok(())
    }

    /// Prints the contents of the shared memory.
    fn host_map(&mut self, cx: &mut Cx<'_>, m: &messages::HostMap) -> Result<(), Failure> {
        let mut file = File::from((cx.fds)(m.fd_tag)?);
        file.rewind().unwrap();
        file.read_to_end(&mut self.printed).unwrap();
        Ok(())
    }

    /// Hands the bytes back as changes that kernels made to a mirror.
    fn host_write(&mut self, _: &mut Cx<'_>, m: &messages::HostWrite<'_>) -> Result<(), Failure> {
        self.pages.push((m.va, m.data.to_vec()));
        Ok(())
    }
}

/// Data connections that arrive at a port of their own.
struct Port {
    listener: TcpListener,
    is_closed: AtomicBool,
}

const KEY: SessionKey = SessionKey::new([0x5a; SESSION_KEY_BYTES]);

impl Port {
    fn listen() -> Arc<Port> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let is_closed = AtomicBool::new(false);
        Arc::new(Port {
            listener,
            is_closed,
        })
    }
}

impl DataConnectionSource for Port {
    fn key(&self) -> SessionKey {
        KEY
    }

    fn next(&self, deadline: Instant) -> Result<Stream, outboard_link::Error> {
        while Instant::now() < deadline && !self.is_closed.load(SeqCst) {
            let Ok((socket, _)) = self.listener.accept() else {
                thread::sleep(Duration::from_millis(1));
                continue;
            };
            let mut stream = Stream::try_from(OwnedFd::from(socket))?;
            let hello = handshake::read_hello(&mut stream, deadline).unwrap().hello;
            if hello.purpose == (Purpose::DataConnection { key: KEY }) {
                return Ok(stream);
            }
        }
        Err(outboard_link::Error::Closed)
    }

    fn close(&self) {
        self.is_closed.store(true, SeqCst);
    }
}

struct Client {
    port: Arc<Port>,
    sender: Sender,
    receiver: Receiver,
    board: Arc<Board>,
    pulse: Arc<Pulse>,
    contexts: mpsc::Receiver<u64>,
    server: JoinHandle<(End, MessageStats, Duration)>,
}

#[derive(Debug, PartialEq)]
struct Received {
    header: ReplyHeader,
    body: Vec<u8>,
}

fn tcp_pair() -> (OwnedFd, OwnedFd) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (theirs, _) = listener.accept().unwrap();
    (ours.into(), theirs.into())
}

impl Client {
    fn shm() -> Client {
        let (a, b) = UnixStream::pair().unwrap();
        Client::over(a.into(), b.into(), Purpose::Session)
    }

    fn tcp() -> Client {
        let (ours, theirs) = tcp_pair();
        Client::over(ours, theirs, Purpose::Session)
    }

    /// Over an emulated network on shm, or on tcp.
    fn emulated(is_shm: bool) -> Client {
        let (ours, theirs) = match is_shm {
            true => UnixStream::pair()
                .map(|(a, b)| (a.into(), b.into()))
                .unwrap(),
            false => tcp_pair(),
        };
        let bounds = Bounds {
            connections_max: 0,
            idle_max: None,
        };
        let network = "rtt=10us".parse().unwrap();
        Client::across(ours, theirs, Purpose::Session, bounds, Some(network))
    }

    fn over(ours: OwnedFd, theirs: OwnedFd, purpose: Purpose) -> Client {
        let bounds = Bounds {
            connections_max: DATA_CONNECTIONS,
            idle_max: None,
        };
        Client::within(ours, theirs, purpose, bounds)
    }

    fn within(ours: OwnedFd, theirs: OwnedFd, purpose: Purpose, bounds: Bounds) -> Client {
        Client::across(ours, theirs, purpose, bounds, None)
    }

    fn across(
        ours: OwnedFd,
        theirs: OwnedFd,
        purpose: Purpose,
        bounds: Bounds,
        network: Option<Network>,
    ) -> Client {
        let attached = move |link: Link, end| match &network {
            Some(network) => link.emulated(network, end).unwrap(),
            None => link,
        };
        let board = Arc::new(Board::default());
        let (contexts, seen) = mpsc::channel();
        let mut fake = Fake {
            board: Arc::clone(&board),
            printed: Vec::new(),
            pages: Vec::new(),
            host_calls: Vec::new(),
            written: 0,
            contexts,
        };
        let port = Port::listen();
        let source = Some(Arc::clone(&port) as Arc<dyn DataConnectionSource>);
        let pulse = Arc::new(Pulse::default());
        let its = Arc::clone(&pulse);
        let server = thread::spawn(move || {
            let stream = Stream::try_from(theirs).unwrap();
            let link = attached(stream.into_link_server().unwrap(), emulated::End::Server);
            let (end, stats) = serve_within(
                &mut fake,
                link,
                purpose,
                ImageStore::new(None, "", Default::default()),
                source,
                bounds,
                &its,
            );
            let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
            let cpu = Duration::new(cpu.tv_sec as u64, cpu.tv_nsec as u32);
            (end, stats, cpu)
        });
        let stream = Stream::try_from(ours).unwrap();
        let link = stream.into_link_client(Instant::now() + PATIENCE).unwrap();
        let link = attached(link, emulated::End::Client);
        let (sender, receiver) = link.split();
        Client {
            port,
            sender,
            receiver,
            board,
            pulse,
            contexts: seen,
            server,
        }
    }

    fn send<'a, M: Op<'a>>(&mut self, token: u32, message: &M) {
        let mut frame = self.sender.reserve(frame::request_len(message)).unwrap();
        frame::encode_request(&mut frame, token, 7, message).unwrap();
        frame.commit().unwrap();
        self.sender.flush().unwrap();
    }

    fn send_raw(&mut self, frame: &[u8]) {
        self.sender.send(&[frame]).unwrap();
        self.sender.flush().unwrap();
    }

    fn recv(&mut self) -> Received {
        let until = Wait::Until(Instant::now() + PATIENCE);
        let frame = self
            .receiver
            .recv(until)
            .unwrap()
            .expect("an answer in time");
        let (header, _) = decode_reply(frame).unwrap();
        let body = frame[frame::HEADER_BYTES..].to_vec();
        Received { header, body }
    }

    fn recv_nothing(&mut self, ms: u64) {
        let until = Wait::Until(Instant::now() + Duration::from_millis(ms));
        assert_eq!(self.receiver.recv(until).unwrap(), None);
    }

    /// Leaves, and returns how the session ended.
    fn leave(self) -> (End, MessageStats, Duration) {
        drop((self.sender, self.receiver));
        self.server.join().unwrap()
    }

    fn fence(&mut self, token: u32, stream: u64) {
        self.send(
            token,
            &messages::FenceStream {
                stream,
                slot: 0,
                value: 0,
            },
        );
    }

    /// Copies some data to the device, with the message.
    fn copy_in(&mut self, stream: u64) {
        let data = vec![stream as u8; 40_000];
        let message = messages::CopyIn {
            dst: stream,
            stream,
            sync: 0,
            data: data[..].into(),
        };
        self.send(0, &message);
    }

    /// Waits until the device was given this many copies in memory that it provided.
    fn wait_until_placed(&self, count: usize) {
        let start = Instant::now();
        while self.board.placed.load(SeqCst) < count {
            assert!(start.elapsed() < PATIENCE, "{count} copies to the device");
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(self.board.placed.load(SeqCst), count);
    }

    fn copy_out(&mut self, token: u32, stream: u64, byte: u8, len: u64) {
        let src = byte.into();
        self.send(token, &messages::CopyOut { src, len, stream });
    }
}

impl Received {
    fn note(&self) -> Note<'_> {
        Note::decode(self.header.note, &mut Reader::new(&self.body)).unwrap()
    }

    /// Returns the runs of a note with bytes that kernels wrote.
    fn changes(&self) -> Vec<(u64, Vec<u8>)> {
        let runs = match self.note() {
            Note::HostPages(note) => Runs::one(note.va, note.data),
            Note::HostRuns(note) => Runs::of(note.va, note.runs, note.data),
            other => panic!("{other:?}"),
        };
        runs.unwrap()
            .map(|(va, data)| (va, data.to_vec()))
            .collect()
    }

    fn is_answer_to(&self, token: u32) -> bool {
        self.header.note == 0 && self.header.token == token && self.header.status == 0
    }

    fn failure(&self) -> (u32, CUresult, String) {
        assert_eq!(self.header.note, 0);
        let reason = Reader::new(&self.body).bytes("reason").unwrap().to_vec();
        let status = CUresult(self.header.status);
        (
            self.header.token,
            status,
            String::from_utf8(reason).unwrap(),
        )
    }

    fn fault(&self) -> (u16, CUresult, bool, String) {
        match self.note() {
            Note::Fault(fault) => (
                fault.op,
                CUresult(fault.status),
                fault.sticky == 1,
                String::from_utf8(fault.message.to_vec()).unwrap(),
            ),
            other => panic!("{other:?}"),
        }
    }
}
