//! The program's side of a stream that it relays: between its connection to another program, which
//! has an adapter of its own, and the adapter at the server.

use std::{
    io::{Read as _, Result as IoResult, Write as _},
    net::{Shutdown, TcpStream},
    sync::Arc,
    thread::{Builder, JoinHandle},
};

use outboard_wire::doc::{NET_PIECE_BYTES_MAX, NetAnswer, NetCall, NetEnd};

use super::session::{NOTHING, Number, done};
use crate::error::Error;

/// Two threads that carry a stream's bytes. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Relay {
    stream: TcpStream,
    threads: Vec<JoinHandle<()>>,
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
        for thread in self.threads.drain(..) {
            // A thread that panicked has reported it.
            let _ = thread.join();
        }
    }
}

impl Relay {
    /// Connects a queue to the peer at the other end of a stream.
    pub(super) fn start(
        number: &Arc<Number>,
        qpn: u32,
        peer: NetEnd,
        stream: TcpStream,
    ) -> Result<Relay, Error> {
        done(number.call(&NetCall::Relay { qpn, peer }, NOTHING)?)?;
        let failed = |error: std::io::Error| Error::Thread(error.to_string());
        let carried = Relay::carry(number, qpn, stream).map_err(failed);
        if carried.is_err() {
            hang_up(number, qpn);
        }
        carried
    }

    fn carry(number: &Arc<Number>, qpn: u32, stream: TcpStream) -> IoResult<Relay> {
        stream.set_read_timeout(None)?;
        let (from, to) = (stream.try_clone()?, stream.try_clone()?);
        let mut relay = Relay {
            stream,
            threads: Vec::new(),
        };
        let named = |name: &str| Builder::new().name(name.into());
        let giving = Arc::clone(number);
        let give = move || give(&giving, qpn, from);
        relay.threads.push(named("outboard-net-in").spawn(give)?);
        let taking = Arc::clone(number);
        let take = move || take(&taking, qpn, to);
        relay.threads.push(named("outboard-net-out").spawn(take)?);
        Ok(relay)
    }
}

fn hang_up(number: &Number, qpn: u32) {
    // A session that is over has ended the stream.
    let _ = number.call(&NetCall::HangUp { qpn }, NOTHING);
}

/// Gives the server what the other program sends, until it ends.
fn give(number: &Number, qpn: u32, mut stream: TcpStream) {
    let mut bytes = vec![0; NET_PIECE_BYTES_MAX];
    while let Ok(count @ 1..) = stream.read(&mut bytes) {
        let bytes = bytes.get(..count).unwrap_or_default().to_vec();
        match number.call(&NetCall::Give { qpn, bytes }, NOTHING) {
            Ok(NetAnswer::Done) => {}
            _ => break,
        }
    }
    let _ = stream.shutdown(Shutdown::Both);
    hang_up(number, qpn);
}

/// Sends the other program what the server's adapter sends, until it ends.
fn take(number: &Number, qpn: u32, mut stream: TcpStream) {
    loop {
        let how = match number.call(&NetCall::Take { qpn }, NOTHING) {
            Ok(NetAnswer::Piece(bytes)) if stream.write_all(&bytes).is_ok() => continue,
            // What was sent arrives before the end.
            Ok(NetAnswer::Ended) => Shutdown::Write,
            _ => Shutdown::Both,
        };
        let _ = stream.shutdown(how);
        return;
    }
}
