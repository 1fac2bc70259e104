//! The server's side of streams that programs relay: between an adapter here and one that a program
//! has of its own.

use std::{
    collections::BTreeMap,
    io::{Error as IoError, ErrorKind, Read as _, Write as _},
    net::Shutdown,
    os::unix::net::UnixStream,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use outboard_wire::doc::{NET_PIECE_BYTES_MAX, NetAnswer};
use parking_lot::Mutex;

/// Relayed streams of a session.
pub(super) const RELAYS_MAX: usize = 16;
/// Time after which a call is answered, though the adapter has sent nothing, or taken less.
const WAIT: Duration = match cfg!(test) {
    true => Duration::from_millis(200),
    false => Duration::from_secs(5),
};

/// Streams by endpoint and number: the ends that are not the adapters'.
type Streams = Mutex<BTreeMap<(u32, u64), Arc<UnixStream>>>;

/// The relayed streams of a session. Each has a number of its own, so that a call about one that is
/// over is about no other, of the same queue.
#[derive(Debug, Default)]
pub(super) struct Relayed {
    streams: Arc<Streams>,
    next: AtomicU64,
}

/// A stream whose adapter is about to join it. Dropped before that, its place is free again.
#[derive(Debug)]
pub(super) struct Opened {
    streams: Arc<Streams>,
    key: (u32, u64),
    is_joined: bool,
}

impl Opened {
    /// Leaves the stream to calls. Returns its number.
    pub(super) fn joined(mut self) -> u64 {
        self.is_joined = true;
        self.key.1
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if !self.is_joined {
            close(&self.streams, self.key);
        }
    }
}

fn end(stream: &UnixStream) {
    let _ = stream.shutdown(Shutdown::Both);
}

/// Ends a stream, for those who wait for it, too.
fn close(streams: &Streams, key: (u32, u64)) {
    if let Some(stream) = streams.lock().remove(&key) {
        end(&stream);
    }
}

impl Relayed {
    /// Makes a stream. Returns the adapter's end, too.
    pub(super) fn open(&self, endpoint: u32) -> Result<(Opened, UnixStream), String> {
        let said = |error: IoError| error.to_string();
        let mut streams = self.streams.lock();
        if streams.len() >= RELAYS_MAX {
            return Err(format!(
                "a session has {RELAYS_MAX} queues at most whose peers have adapters of their own"
            ));
        }
        let (adapter, end) = UnixStream::pair().map_err(said)?;
        end.set_read_timeout(Some(WAIT)).map_err(said)?;
        end.set_write_timeout(Some(WAIT)).map_err(said)?;
        let key = (endpoint, self.next.fetch_add(1, Ordering::Relaxed));
        streams.insert(key, Arc::new(end));
        let opened = Opened {
            streams: Arc::clone(&self.streams),
            key,
            is_joined: false,
        };
        Ok((opened, adapter))
    }

    pub(super) fn get(&self, endpoint: u32, stream: u64) -> Result<Arc<UnixStream>, String> {
        let known = self.streams.lock().get(&(endpoint, stream)).cloned();
        known.ok_or_else(|| format!("no stream {stream} is relayed"))
    }

    pub(super) fn close(&self, endpoint: u32, stream: u64) {
        close(&self.streams, (endpoint, stream));
    }

    pub(super) fn close_all_of(&self, endpoint: u32) {
        self.streams.lock().retain(|(of, _), stream| {
            if *of == endpoint {
                end(stream);
            }
            *of != endpoint
        });
    }
}

impl Drop for Relayed {
    fn drop(&mut self) {
        self.streams.lock().values().for_each(|stream| end(stream));
    }
}

fn is_for_later(error: &IoError) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}

/// Gives the adapter what its peer has sent; waits for some time until it has room for it.
pub(super) fn give(mut stream: &UnixStream, bytes: &[u8]) -> NetAnswer {
    let mut given = 0;
    while let Some(rest @ [_, ..]) = bytes.get(given..) {
        match stream.write(rest) {
            Ok(count @ 1..) => given += count,
            Err(error) if is_for_later(&error) => break,
            Ok(0) | Err(_) => return NetAnswer::Ended,
        }
    }
    NetAnswer::Given(given as u32)
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
        Err(error) if is_for_later(&error) => NetAnswer::Piece(Vec::new()),
        Err(_) => NetAnswer::Ended,
    }
}
