//! The end of a way from which pieces are sent.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use outboard_api::CUresult;
use outboard_device::{Failure, Pending, Wait as DeviceWait};
use outboard_link::{Closer, Endpoint, Error, Receiver, Sender, open_peer};
use outboard_wire::{
    handshake::SessionKey,
    limits::{
        HANDSHAKE_MS_MAX, PEER_ADDRESS_BYTES_MAX, PEER_CONNECT_MS_MAX, PEER_PIECES_AHEAD_MAX,
        SESSION_KEY_BYTES,
    },
};
use tracing::{debug, info};

use super::failure;
use crate::{
    sources::DataConnectionSource,
    waiting::{TakesPieces, Waiting},
};

/// Another server, and what it expects to be shown.
#[derive(Clone)]
pub(crate) struct Target {
    address: Endpoint,
    secret: SessionKey,
}

pub(crate) struct Outgoing {
    state: Mutex<State>,
    /// Signalled when a piece was given, and at the end.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Pieces to be sent, with their numbers.
    pieces: VecDeque<(u64, Waiting)>,
    closer: Option<Closer>,
    ended: Option<String>,
}

impl Target {
    /// Reads an address and a secret that a client names.
    pub(super) fn read(address: &[u8], secret: &[u8]) -> Result<Target, Failure> {
        let invalid = |why: &str| Failure::new(CUresult::CUDA_ERROR_INVALID_VALUE, why);
        let text = Some(address).filter(|text| text.len() <= PEER_ADDRESS_BYTES_MAX);
        let text = text.and_then(|text| std::str::from_utf8(text).ok());
        let address = text.and_then(|text| text.parse::<Endpoint>().ok());
        let address = address.filter(Endpoint::is_for_peers);
        let secret = <[u8; SESSION_KEY_BYTES]>::try_from(secret);
        Ok(Target {
            address: address.ok_or_else(|| invalid("no address of another server"))?,
            secret: SessionKey::new(secret.map_err(|_| invalid("no secret"))?),
        })
    }
}

/// Begins to connect, on a thread of its own.
pub(super) fn begin(
    source: Arc<dyn DataConnectionSource>,
    target: Target,
) -> Result<(Arc<Outgoing>, JoinHandle<()>), Failure> {
    let outgoing = Arc::new(Outgoing {
        state: Mutex::default(),
        changed: Condvar::new(),
    });
    let its = Arc::clone(&outgoing);
    let thread = thread::Builder::new()
        .name("outboard-peer-o".into())
        .spawn(move || its.run(&*source, &target))
        .map_err(|error| failure(format!("no thread: {error}")))?;
    Ok((outgoing, thread))
}

impl Outgoing {
    fn run(&self, source: &dyn DataConnectionSource, target: &Target) {
        let sent = self
            .open(source, target)
            .and_then(|link| self.send_all(link).map_err(|error| error.to_string()));
        if let Err(why) = sent {
            debug!(why, address = %target.address, "a way to another server ends");
            self.end(&why);
        }
        // Pieces that were not sent are given up here, before the device is.
        self.lock().pieces.clear();
    }

    fn open(
        &self,
        source: &dyn DataConnectionSource,
        target: &Target,
    ) -> Result<(Sender, Receiver), String> {
        let deadline = Instant::now() + Duration::from_millis(PEER_CONNECT_MS_MAX);
        let peers = source.peers().ok_or("no other servers")?;
        let stream = peers.dial(&target.address, deadline)?;
        let deadline = Instant::now() + Duration::from_millis(HANDSHAKE_MS_MAX);
        let link = open_peer(stream, target.address.pin(), &target.secret, deadline);
        let (sender, receiver) = link.map_err(|error| error.to_string())?.split();
        let mut state = self.lock();
        if let Some(why) = &state.ended {
            return Err(why.clone());
        }
        state.closer = Some(sender.closer());
        info!(address = %target.address, "data of copies goes to another server");
        Ok((sender, receiver))
    }

    /// Sends pieces until the way ends. The other server says nothing more.
    fn send_all(&self, (mut sender, _receiver): (Sender, Receiver)) -> Result<(), Error> {
        while let Some((number, entry)) = self.next() {
            // Only pieces with data are given.
            let Ok(Some(piece)) = entry.reply_data() else {
                return Err(Error::Misuse("a piece without data"));
            };
            sender.send(&[&number.to_le_bytes(), piece])?;
            sender.flush()?;
        }
        Ok(())
    }

    fn next(&self) -> Option<(u64, Waiting)> {
        let mut state = self.lock();
        loop {
            if state.ended.is_some() {
                return None;
            }
            if let Some(piece) = state.pieces.pop_front() {
                return Some(piece);
            }
            let waited = self.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Returns the wait for the other server's welcome.
    pub(crate) fn connects(self: &Arc<Self>) -> Pending {
        Box::new(Connecting(Arc::clone(self)))
    }

    pub(crate) fn end(&self, why: &str) {
        let mut state = self.lock();
        state.ended.get_or_insert_with(|| why.into());
        if let Some(closer) = &state.closer {
            closer.close();
        }
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TakesPieces for Outgoing {
    /// Refuses more than the other server keeps: the client is to have them written first.
    fn give(&self, number: u64, entry: Waiting) -> Result<(), Failure> {
        entry.reply_data()?;
        let mut state = self.lock();
        if let Some(why) = &state.ended {
            return Err(failure(format!(
                "the way to the other server has ended: {why}"
            )));
        }
        if state.pieces.len() >= PEER_PIECES_AHEAD_MAX {
            return Err(failure("too many pieces for another server"));
        }
        state.pieces.push_back((number, entry));
        self.changed.notify_all();
        Ok(())
    }
}

struct Connecting(Arc<Outgoing>);

impl DeviceWait for Connecting {
    fn ready(&mut self) -> Result<bool, Failure> {
        let state = self.0.lock();
        match (&state.ended, &state.closer) {
            (Some(_), None) => Err(failure("the other server cannot be reached")),
            (Some(why), _) => Err(failure(why.clone())),
            (None, closer) => Ok(closer.is_some()),
        }
    }
}
