//! Meetings with queues of `nvlink` of other processes on this machine: each offers a handle of
//! its GPU's memory, by which the driver maps it for the other.

use std::{
    io::{ErrorKind, Read, Result as IoResult, Write},
    net::{Shutdown, TcpStream},
    sync::Arc,
    thread::{Builder, JoinHandle},
    time::Instant,
};

use crate::{
    adapter::Peer,
    driver::{self, HANDLE_BYTES},
    error::Error,
    keys::Access,
    meet::{self, Hello, Meeting, Window},
};

use super::queue::{KEYS_MAX, Key};

/// First bytes of what follows the hello; the last is the version.
const MAGIC: [u8; 8] = *b"OBPEERS\x01";
const OFFER_BYTES: usize = 8 + HANDLE_BYTES + 16;

/// Memory of a GPU, as the driver gives it to another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Offer {
    handle: [u8; HANDLE_BYTES],
    /// Of the window in the allocation.
    offset: u64,
    access: u32,
}

impl Offer {
    /// Makes a handle of the allocation that has the memory; of nothing if there is none.
    fn of(key: Option<&Key>) -> Result<Offer, String> {
        let Some(key) = key else {
            let handle = [0; HANDLE_BYTES];
            return Ok(Offer {
                handle,
                offset: 0,
                access: 0,
            });
        };
        let range = driver::range_of(key.address)
            .ok_or("nvlink offers memory of GPUs to other processes, and this is none")?;
        Ok(Offer {
            handle: driver::handle_of(range.start)?,
            offset: key.address - range.start,
            access: key.access,
        })
    }

    fn bytes(&self) -> [u8; OFFER_BYTES] {
        let mut bytes = [0; OFFER_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..8 + HANDLE_BYTES].copy_from_slice(&self.handle);
        let rest = &mut bytes[8 + HANDLE_BYTES..];
        rest[..8].copy_from_slice(&self.offset.to_le_bytes());
        rest[8..12].copy_from_slice(&self.access.to_le_bytes());
        bytes
    }

    fn parse(bytes: &[u8; OFFER_BYTES]) -> Option<Offer> {
        let rest = bytes.strip_prefix(&MAGIC)?;
        let (handle, rest) = rest.split_first_chunk()?;
        let (offset, rest) = rest.split_first_chunk()?;
        Some(Offer {
            handle: *handle,
            offset: u64::from_le_bytes(*offset),
            access: u32::from_le_bytes(*rest.first_chunk()?),
        })
    }

    /// Maps the memory that the peer offers. Returns its key here, and what is to be unmapped.
    fn open(&self, window: &Window) -> Result<(Key, u64), String> {
        let slot = (window.key >> 8).wrapping_sub(1) as usize;
        let access = Access::new(self.access).map_err(|error| error.to_string())?;
        if slot >= KEYS_MAX {
            return Err(format!("the peer has offered key {:#x}", window.key));
        }
        let base = driver::open(&self.handle)?;
        let end = self.offset.checked_add(window.bytes);
        let is_within = driver::range_of(base)
            .zip(end)
            .is_some_and(|(range, end)| end <= range.end.saturating_sub(base));
        if !is_within {
            driver::close(base);
            return Err("the peer has offered more than there is".into());
        }
        let key = Key {
            address: base + self.offset,
            bytes: window.bytes,
            key: window.key,
            access: access.0,
        };
        Ok((key, base))
    }
}

/// A queue that meets one of another process.
pub(crate) trait Peered: Send + Sync + 'static {
    fn qpn(&self) -> u32;

    /// Connects it to a peer that offers memory, mapped here, or none.
    fn connect_other(&self, offered: Option<&Key>) -> Result<(), Error>;

    /// Ends its connection, since the peer is gone.
    fn lose_peer(&self);
}

/// A connection that says nothing more than that the peer is there.
#[derive(Debug)]
pub(crate) struct Other {
    stream: TcpStream,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Queue and memory of the other process.
pub(crate) struct Met {
    pub(crate) other: Other,
    pub(crate) window: Window,
    /// Mapped memory, to be closed with the endpoint.
    pub(crate) opened: Option<u64>,
}

/// Meets the other process, and connects the queue to its queue.
pub(crate) fn meet(
    queue: &Arc<impl Peered>,
    meeting: Meeting<'_>,
    mine: Window,
    offered: Option<&Key>,
) -> Result<Met, Error> {
    let failed = |why: &dyn ToString| Error::Meet {
        address: meeting.address.into(),
        why: why.to_string(),
    };
    let socket = meeting.socket()?;
    let offer = Offer::of(offered).map_err(|why| failed(&why))?;
    let deadline = Instant::now() + meeting.timeout;
    let hello = Hello {
        peer: Peer {
            qpn: queue.qpn(),
            epoch: 0,
        },
        window: mine,
        ways: 0,
    };
    let met = match meeting.listens {
        true => meet::listen(socket, hello, deadline),
        false => meet::connect(socket, hello, deadline),
    };
    let (stream, theirs) = met.map_err(|error| failed(&error))?;
    let their_offer = exchange(&stream, &offer, deadline).map_err(|error| failed(&error))?;
    let their_offer = their_offer.ok_or_else(|| failed(&"the other process is not of nvlink"))?;
    let mut window = theirs.window;
    let mut key = None;
    let mut opened = None;
    if window.bytes > 0 {
        let (found, base) = their_offer.open(&window).map_err(|why| failed(&why))?;
        window.address = found.address;
        (key, opened) = (Some(found), Some(base));
    }
    queue.connect_other(key.as_ref())?;
    let other = watch(queue.clone(), stream).map_err(|error| failed(&error))?;
    Ok(Met {
        other,
        window,
        opened,
    })
}

/// Sends an offer, and reads the other's; none if it is something else.
fn exchange(mut stream: &TcpStream, offer: &Offer, deadline: Instant) -> IoResult<Option<Offer>> {
    stream.write_all(&offer.bytes())?;
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(ErrorKind::TimedOut.into());
    }
    stream.set_read_timeout(Some(left))?;
    let mut bytes = [0; OFFER_BYTES];
    match stream.read_exact(&mut bytes) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    stream.set_read_timeout(None)?;
    Ok(Offer::parse(&bytes))
}

/// Waits in a thread for the connection's end, which is the peer's.
fn watch(queue: Arc<impl Peered>, stream: TcpStream) -> IoResult<Other> {
    let mut reader = stream.try_clone()?;
    let thread = Builder::new()
        .name("outboard-net-peer".into())
        .spawn(move || {
            // Nothing is said here: whatever comes is no such peer.
            let _ = reader.read(&mut [0]);
            queue.lose_peer();
        })?;
    Ok(Other {
        stream,
        thread: Some(thread),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn an_offer_is_read_as_it_was_written_and_nothing_else_is() {
        let offer = Offer {
            handle: std::array::from_fn(|at| at as u8),
            offset: 1 << 40,
            access: 15,
        };
        let bytes = offer.bytes();
        assert_eq!(Offer::parse(&bytes), Some(offer));
        for at in 0..MAGIC.len() {
            let mut other = bytes;
            other[at] ^= 1;
            assert_eq!(Offer::parse(&other), None);
        }
    }

    #[test]
    fn what_a_peer_makes_up_is_not_opened() {
        let window = |key| Window {
            bytes: 8,
            key,
            ..Window::default()
        };
        let offer = Offer::of(None).unwrap();
        for key in [0, 0xff, (KEYS_MAX as u32 + 1) << 8, u32::MAX] {
            let said = offer.open(&window(key)).unwrap_err();
            assert!(said.starts_with("the peer has offered key"), "{said}");
        }
        let offer = Offer {
            access: 16,
            ..offer
        };
        let said = offer.open(&window(0x101)).unwrap_err();
        assert!(said.starts_with("there is no access"), "{said}");
    }
}
