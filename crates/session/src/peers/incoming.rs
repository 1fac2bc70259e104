//! The end of a way at which pieces arrive.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use outboard_device::{Failure, Pending, Wait as DeviceWait};
use outboard_link::{Closer, Error, Link, Peer, Receiver, Wait};
use outboard_wire::{
    handshake::{RELEASE, ServerWelcome, SessionKey},
    limits::{
        CHUNK_BYTES_MAX, HANDSHAKE_MS_MAX, PEER_OFFER_MS_MAX, PEER_PIECES_AHEAD_MAX,
        PEER_SILENCE_MS_MAX,
    },
};
use tracing::{debug, info};

use super::failure;
use crate::{
    handshake,
    sources::{DataConnectionSource, PeerSource},
};

/// Length of a piece's number, which precedes its bytes.
pub(crate) const NUMBER_BYTES: usize = 8;

pub(crate) struct Incoming {
    state: Mutex<State>,
    /// Signalled when a piece was taken, and at the end.
    changed: Condvar,
}

struct State {
    pieces: VecDeque<Vec<u8>>,
    /// Number of the first of these, and so of all that were taken.
    first: u64,
    /// When the other server was last heard.
    heard_at: Instant,
    closer: Option<Closer>,
    ended: Option<String>,
}

/// Begins to wait for another server, on a thread of its own. Returns the secret that it must know.
pub(crate) fn begin(
    source: Arc<dyn DataConnectionSource>,
) -> Result<(Arc<Incoming>, SessionKey, JoinHandle<()>), Failure> {
    let peers = source.peers().ok_or_else(|| failure("no other servers"))?;
    let secret = peers.offer().map_err(failure)?;
    let incoming = Arc::new(Incoming {
        state: Mutex::new(State {
            pieces: VecDeque::new(),
            first: 0,
            heard_at: Instant::now(),
            closer: None,
            ended: None,
        }),
        changed: Condvar::new(),
    });
    let its = Arc::clone(&incoming);
    let thread = thread::Builder::new()
        .name("outboard-peer-i".into())
        .spawn(move || its.run(&*source, &secret))
        .map_err(|error| failure(format!("no thread: {error}")))?;
    Ok((incoming, secret, thread))
}

/// Waits for the server that knows this secret, and welcomes it. Returns the link to it, and who it
/// is.
pub(crate) fn welcomed(
    peers: &dyn PeerSource,
    secret: &SessionKey,
    deadline: Instant,
) -> Result<(Link, Peer), String> {
    let said = |error: Error| error.to_string();
    let mut stream = peers.accept(secret, deadline).map_err(said)?;
    let peer = stream.peer().map_err(said)?;
    let welcome = ServerWelcome {
        release: RELEASE.into(),
        ..ServerWelcome::default()
    };
    let deadline = Instant::now() + Duration::from_millis(HANDSHAKE_MS_MAX);
    handshake::send_welcome(&mut stream, &welcome, deadline).map_err(|e| e.to_string())?;
    Ok((stream.into_link_server().map_err(said)?, peer))
}

impl Incoming {
    fn run(&self, source: &dyn DataConnectionSource, secret: &SessionKey) {
        let why = match self.receive(source, secret) {
            Ok(()) => return,
            Err(why) => why,
        };
        debug!(why, "a way from another server ends");
        self.end(&why);
    }

    /// Receives pieces until the way ends.
    fn receive(
        &self,
        source: &dyn DataConnectionSource,
        secret: &SessionKey,
    ) -> Result<(), String> {
        let deadline = Instant::now() + Duration::from_millis(PEER_OFFER_MS_MAX);
        let peers = source.peers().ok_or("no other servers")?;
        let (link, peer) = welcomed(peers, secret, deadline)?;
        let (sender, mut receiver) = link.split();
        self.opens(sender.closer())?;
        info!(%peer, "another server brings data of copies");
        while self.wait_for_room() {
            self.receive_one(&mut receiver)?;
        }
        drop(sender);
        Ok(())
    }

    fn opens(&self, closer: Closer) -> Result<(), String> {
        let mut state = self.lock();
        if let Some(why) = &state.ended {
            closer.close();
            return Err(why.clone());
        }
        state.heard_at = Instant::now();
        state.closer = Some(closer);
        Ok(())
    }

    fn receive_one(&self, receiver: &mut Receiver) -> Result<(), String> {
        let frame = receiver.recv(Wait::Forever).map_err(|e| e.to_string())?;
        let Some(frame) = frame else { return Ok(()) };
        let (number, piece) = frame
            .split_first_chunk::<NUMBER_BYTES>()
            .ok_or("a frame without a number")?;
        if piece.is_empty() || piece.len() > CHUNK_BYTES_MAX {
            return Err(format!("a piece of {} bytes", piece.len()));
        }
        outboard_budget::reserve(piece.len() as u64).map_err(|e| e.to_string())?;
        let mut state = self.lock();
        let expected = state.first + state.pieces.len() as u64;
        if u64::from_le_bytes(*number) != expected {
            return Err("a piece out of turn".into());
        }
        state.pieces.push_back(piece.to_vec());
        state.heard_at = Instant::now();
        Ok(())
    }

    /// Waits until one more piece may be kept. Returns false at the end.
    fn wait_for_room(&self) -> bool {
        let mut state = self.lock();
        while state.ended.is_none() && state.pieces.len() >= PEER_PIECES_AHEAD_MAX {
            let waited = self.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
        state.ended.is_none()
    }

    /// Returns the wait for a piece.
    pub(crate) fn awaits(self: Arc<Self>, number: u64) -> Pending {
        Box::new(Arrival {
            way: self,
            number,
            since: Instant::now(),
        })
    }

    /// Takes the piece that is next, if it has this number and has come.
    pub(crate) fn take(&self, number: u64) -> Result<Vec<u8>, Failure> {
        let mut state = self.lock();
        let piece = match number == state.first {
            true => state.pieces.pop_front(),
            false => None,
        };
        let piece = piece.ok_or_else(|| failure(format!("piece {number} has not come")))?;
        state.first += 1;
        self.changed.notify_all();
        Ok(piece)
    }

    /// Ends the way. What has come stays there to be taken.
    pub(crate) fn end(&self, why: &str) {
        let mut state = self.lock();
        state.ended.get_or_insert_with(|| why.into());
        if let Some(closer) = &state.closer {
            closer.close();
        }
        self.changed.notify_all();
    }

    /// Returns the number of pieces that it keeps now.
    #[cfg(test)]
    pub(crate) fn kept(&self) -> usize {
        self.lock().pieces.len()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The wait for a piece: an error if the way has ended before it, or is silent.
struct Arrival {
    way: Arc<Incoming>,
    number: u64,
    since: Instant,
}

impl DeviceWait for Arrival {
    fn ready(&mut self) -> Result<bool, Failure> {
        let state = self.way.lock();
        if state.first + state.pieces.len() as u64 > self.number {
            return Ok(true);
        }
        if let Some(why) = &state.ended {
            return Err(failure(format!(
                "the way from the other server has ended: {why}"
            )));
        }
        let silent = self.since.max(state.heard_at).elapsed();
        match silent > Duration::from_millis(PEER_SILENCE_MS_MAX) {
            true => Err(failure("the other server sends nothing")),
            false => Ok(false),
        }
    }
}
