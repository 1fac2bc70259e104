//! The server's side of streams that programs relay: between an adapter here and one that a program
//! has of its own.

use std::{
    collections::BTreeMap,
    io::{ErrorKind, Read as _, Write as _},
    net::Shutdown,
    os::unix::net::UnixStream,
    sync::Arc,
    time::Duration,
};

use outboard_wire::doc::{NET_PIECE_BYTES_MAX, NetAnswer};

/// Relayed streams of a session.
pub(super) const RELAYS_MAX: usize = 16;
/// Time after which a call is answered, though the adapter has sent nothing.
const TAKE: Duration = Duration::from_secs(5);

/// Streams by endpoint and queue: the ends that are not the adapters'.
#[derive(Debug, Default)]
pub(super) struct Relayed(BTreeMap<(u32, u32), Arc<UnixStream>>);

impl Relayed {
    /// Makes a stream. Returns the adapter's end.
    pub(super) fn open(&mut self, endpoint: u32, qpn: u32) -> Result<UnixStream, String> {
        let said = |error: std::io::Error| error.to_string();
        self.close(endpoint, qpn);
        if self.0.len() >= RELAYS_MAX {
            return Err(format!(
                "a session has {RELAYS_MAX} queues at most whose peers have adapters of their own"
            ));
        }
        let (adapter, end) = UnixStream::pair().map_err(said)?;
        end.set_read_timeout(Some(TAKE)).map_err(said)?;
        self.0.insert((endpoint, qpn), Arc::new(end));
        Ok(adapter)
    }

    pub(super) fn get(&self, endpoint: u32, qpn: u32) -> Result<Arc<UnixStream>, String> {
        let known = self.0.get(&(endpoint, qpn)).cloned();
        known.ok_or_else(|| format!("queue {qpn:#x} is not relayed"))
    }

    /// Ends a stream, for those who wait for it, too.
    pub(super) fn close(&mut self, endpoint: u32, qpn: u32) {
        if let Some(stream) = self.0.remove(&(endpoint, qpn)) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    pub(super) fn close_all_of(&mut self, endpoint: u32) {
        self.0.retain(|(of, _), stream| {
            if *of == endpoint {
                let _ = stream.shutdown(Shutdown::Both);
            }
            *of != endpoint
        });
    }
}

impl Drop for Relayed {
    fn drop(&mut self) {
        for stream in self.0.values() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// Gives the adapter what its peer has sent; waits until it has room for it.
pub(super) fn give(mut stream: &UnixStream, bytes: &[u8]) -> NetAnswer {
    match stream.write_all(bytes) {
        Ok(()) => NetAnswer::Done,
        Err(_) => NetAnswer::Ended,
    }
}

/// Waits for what the adapter sends.
pub(super) fn take(mut stream: &UnixStream) -> NetAnswer {
    let mut bytes = vec![0; NET_PIECE_BYTES_MAX];
    match stream.read(&mut bytes) {
        Ok(0) => NetAnswer::Ended,
        Ok(count) => {
            bytes.truncate(count);
            NetAnswer::Piece(bytes)
        }
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
            NetAnswer::Piece(Vec::new())
        }
        Err(_) => NetAnswer::Ended,
    }
}
