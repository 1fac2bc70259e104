//! The program's side of a stream that it relays: between its connection to another program, which
//! has an adapter of its own, and the adapter at the server.

use std::{
    io::{ErrorKind, Read as _, Result as IoResult, Write as _},
    net::{Shutdown, TcpStream},
    sync::Arc,
    thread::JoinHandle,
};

use outboard_wire::doc::{NET_PIECE_BYTES_MAX, NetAnswer, NetCall, NetEnd};

use super::session::{Calls, wrong};
use crate::{error::Error, threads::spawn};

/// Two threads that carry a stream's bytes. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Relay {
    calls: Arc<dyn Calls>,
    /// The server's number of the stream.
    stream: u64,
    socket: TcpStream,
    threads: Vec<JoinHandle<()>>,
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.socket.shutdown(Shutdown::Both);
        // A call that waits ends by this: its adapter may have no room for as long as the other
        // program takes nothing.
        hang_up(&*self.calls, self.stream);
        for thread in self.threads.drain(..) {
            // A thread that panicked has reported it.
            let _ = thread.join();
        }
    }
}

impl Relay {
    /// Connects a queue to the peer at the other end of a socket.
    pub(super) fn start(
        calls: Arc<dyn Calls>,
        qpn: u32,
        peer: NetEnd,
        socket: TcpStream,
    ) -> Result<Relay, Error> {
        let stream = match calls.call(&NetCall::Relay { qpn, peer })? {
            NetAnswer::Relayed(stream) => stream,
            other => return Err(wrong(&other)),
        };
        let mut relay = Relay {
            calls,
            stream,
            socket,
            threads: Vec::new(),
        };
        let carried = relay.carry();
        carried.map_err(|error| Error::Thread(error.to_string()))?;
        Ok(relay)
    }

    fn carry(&mut self) -> IoResult<()> {
        self.socket.set_read_timeout(None)?;
        for (name, carry) in [
            ("outboard-net-in", give as fn(&dyn Calls, u64, TcpStream)),
            ("outboard-net-out", take),
        ] {
            let (calls, stream) = (Arc::clone(&self.calls), self.stream);
            let socket = self.socket.try_clone()?;
            let thread = spawn(name, move || carry(&*calls, stream, socket))?;
            self.threads.push(thread);
        }
        Ok(())
    }
}

fn hang_up(calls: &dyn Calls, stream: u64) {
    // A session that is over has ended the stream.
    let _ = calls.call(&NetCall::HangUp { stream });
}

/// Gives the server what the other program sends, until it ends.
fn give(calls: &dyn Calls, stream: u64, mut socket: TcpStream) {
    let mut bytes = vec![0; NET_PIECE_BYTES_MAX];
    loop {
        let count = match socket.read(&mut bytes) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Ok(0) | Err(_) => break,
            Ok(count) => count,
        };
        if !give_all(calls, stream, bytes.get(..count).unwrap_or_default()) {
            break;
        }
    }
    let _ = socket.shutdown(Shutdown::Both);
    hang_up(calls, stream);
}

/// Gives the server these bytes. Returns false if the stream is over.
fn give_all(calls: &dyn Calls, stream: u64, mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        let piece = bytes.to_vec();
        let give = NetCall::Give {
            stream,
            bytes: piece,
        };
        bytes = match calls.call(&give) {
            Ok(NetAnswer::Given(count)) => bytes.get(count as usize..).unwrap_or_default(),
            _ => return false,
        };
    }
    true
}

/// Sends the other program what the server's adapter sends, until it ends.
fn take(calls: &dyn Calls, stream: u64, mut socket: TcpStream) {
    let how = loop {
        match calls.call(&NetCall::Take { stream }) {
            Ok(NetAnswer::Piece(bytes)) if socket.write_all(&bytes).is_ok() => {}
            // What was sent arrives before the end.
            Ok(NetAnswer::Ended) => break Shutdown::Write,
            _ => break Shutdown::Both,
        }
    };
    let _ = socket.shutdown(how);
    hang_up(calls, stream);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::{
        net::TcpListener,
        thread::{Builder, sleep},
        time::{Duration, Instant},
    };

    use outboard_wire::doc::{self, NetOptions, NetQueueOptions};
    use parking_lot::Mutex;

    use super::*;
    use crate::{
        adapter::HEADER_BYTES,
        block::{Options, UNRELIABLE},
        keys::Access,
        memory::Mapped,
        remote::{Answering, Carrier, Served, served::tests::Nobody},
    };

    const PEER: NetEnd = NetEnd { qpn: 1, epoch: 2 };

    /// A server's side, without the session in between, and memory of the program.
    #[derive(Debug)]
    struct Server {
        served: Mutex<Served>,
        memory: Mapped,
    }

    impl Calls for Server {
        fn call(&self, call: &NetCall) -> Result<NetAnswer, Error> {
            let mut lend = |_, _, _| Ok(self.memory.clone().into());
            let carrier: Arc<dyn Carrier> = Arc::new(Nobody);
            let bytes = doc::to_bytes(call).unwrap();
            let answering = self.served.lock().call(0, &bytes, &mut lend, &carrier);
            match answering {
                Answering::Now(answer) => Ok(answer),
                Answering::Later(work) => Ok(work()),
            }
        }
    }

    impl Server {
        fn new(bytes: usize) -> Arc<Server> {
            let server = Server {
                served: Mutex::default(),
                memory: Mapped::allocate(bytes).unwrap(),
            };
            let open = NetCall::Open(NetOptions {
                seed: 0,
                delay_ns_min: 0,
                delay_ns_max: 0,
                bytes_per_s: 0,
                loss_ppm: 0,
                provider: 0,
            });
            assert!(matches!(server.call(&open), Ok(NetAnswer::Opened(_))));
            Arc::new(server)
        }

        fn queue(&self, flags: u32) -> u32 {
            let shape = Options {
                log_blocks: 5,
                signal_every: 1,
                flags,
                ..Options::default()
            };
            let memory = Mapped::allocate(shape.bytes()).unwrap();
            let create = doc::to_bytes(&NetCall::Create {
                address: memory.address(),
                bytes: memory.len() as u64,
                options: NetQueueOptions {
                    log_blocks: 5,
                    log_receives: 0,
                    signal_every: 1,
                    flags,
                    counters: 0,
                },
            });
            let mut lend = |_, _, _| Ok(memory.clone().into());
            let carrier: Arc<dyn Carrier> = Arc::new(Nobody);
            let mut served = self.served.lock();
            match served.call(0, &create.unwrap(), &mut lend, &carrier) {
                Answering::Now(NetAnswer::Queue { qpn, .. }) => qpn,
                Answering::Now(other) => panic!("{other:?}"),
                Answering::Later(_) => panic!("a queue takes time"),
            }
        }

        fn key(&self) -> u32 {
            let register = NetCall::Register {
                address: self.memory.address(),
                bytes: self.memory.len() as u64,
                access: Access::ALL.0,
            };
            match self.call(&register) {
                Ok(NetAnswer::Key(key)) => key,
                other => panic!("{other:?}"),
            }
        }

        /// Relays a queue. Returns the peer's socket, too.
        fn relay(self: &Arc<Server>, qpn: u32) -> Result<(Relay, TcpStream), Error> {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mine, _) = listener.accept().unwrap();
            let patience = Some(Duration::from_secs(20));
            theirs.set_read_timeout(patience).unwrap();
            Relay::start(self.clone(), qpn, PEER, mine).map(|relay| (relay, theirs))
        }

        /// A peer's frame that reads the program's memory.
        fn read(&self, key: u32, sequence: u64, bytes: u32) -> [u8; HEADER_BYTES] {
            let mut frame = [0; HEADER_BYTES];
            frame[0] = 5;
            frame[8..16].copy_from_slice(&sequence.to_le_bytes());
            frame[16..24].copy_from_slice(&self.memory.address().to_le_bytes());
            frame[24..28].copy_from_slice(&key.to_le_bytes());
            frame[28..32].copy_from_slice(&bytes.to_le_bytes());
            frame
        }
    }

    fn ends_soon(what: impl FnOnce() + Send + 'static) {
        let (begin, thread) = (Instant::now(), Builder::new().spawn(what).unwrap());
        while !thread.is_finished() {
            assert!(begin.elapsed() < Duration::from_secs(20));
            sleep(Duration::from_millis(1));
        }
    }

    /// The first peer is still there when its queue, put back, has another.
    #[test]
    fn a_stream_that_ends_is_no_end_of_its_queues_next_one() {
        let server = Server::new(4096);
        let (qpn, key) = (server.queue(0), server.key());
        server.memory.write(0, b"remember");
        let (earlier, mut first) = server.relay(qpn).unwrap();
        assert_eq!(server.call(&NetCall::Reset { qpn }), Ok(NetAnswer::Done));
        let (relay, mut second) = server.relay(qpn).unwrap();
        // Half of a frame of each peer's is no frame of the other's.
        let frame = server.read(key, 0, 8);
        let (start, rest) = frame.split_at(20);
        second.write_all(start).unwrap();
        let _ = first.write_all(start);
        ends_soon(move || drop(earlier));
        let mut nothing = Vec::new();
        let _ = first.read_to_end(&mut nothing);
        assert_eq!(nothing, []);
        second.write_all(rest).unwrap();
        let mut answer = [0; HEADER_BYTES + 8];
        second.read_exact(&mut answer).unwrap();
        assert_eq!(&answer[HEADER_BYTES..], b"remember");
        ends_soon(move || drop(relay));
    }

    /// Answers that it does not take leave its adapter's peer no room for what it sends.
    #[test]
    fn a_peer_that_takes_nothing_holds_no_end_up() {
        const BYTES: usize = 16 << 20;
        let server = Server::new(BYTES);
        let (qpn, key) = (server.queue(0), server.key());
        let (relay, mut peer) = server.relay(qpn).unwrap();
        for sequence in 0..5 {
            let frame = server.read(key, sequence, BYTES as u32);
            peer.write_all(&frame).unwrap();
        }
        // The socket takes some, and the adapter none.
        let patience = Some(Duration::from_millis(300));
        peer.set_write_timeout(patience).unwrap();
        let frame = server.read(key, 5, 8);
        while peer.write_all(&frame).is_ok() {}
        ends_soon(move || drop(relay));
    }

    #[test]
    fn a_queue_that_cannot_be_relayed_takes_no_place() {
        let server = Server::new(4096);
        let unreliable = server.queue(UNRELIABLE);
        for _ in 0..20 {
            let relayed = server.relay(unreliable).map(|_| ()).unwrap_err();
            assert!(relayed.to_string().contains("unreliable"), "{relayed}");
        }
        let _good = server.relay(server.queue(0)).unwrap();
    }
}
