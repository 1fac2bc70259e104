//! Meetings with queues of `nvlink` of other processes on this machine: each offers a handle of
//! its GPU's memory, by which the driver maps it for the other.

use std::{
    io::{ErrorKind, Read, Result as IoResult, Write},
    net::{Shutdown, TcpStream},
    sync::{
        Arc,
        mpsc::{self, Sender},
    },
    thread::JoinHandle,
    time::Instant,
};

use crate::{
    adapter::Peer,
    driver::{self, HANDLE_BYTES, Opened},
    error::Error,
    keys::Access,
    meet::{self, Hello, Meeting, Window},
    stream::read_by,
    threads::spawn,
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

    /// Maps the memory that the peer offers. Returns its key here, and what keeps it mapped.
    fn open(&self, window: &Window) -> Result<(Key, Opened), String> {
        let slot = (window.key >> 8).wrapping_sub(1) as usize;
        let access = Access::new(self.access).map_err(|error| error.to_string())?;
        if slot >= KEYS_MAX {
            return Err(format!("the peer has offered key {:#x}", window.key));
        }
        let opened = driver::open(&self.handle)?;
        let base = opened.0;
        let end = self.offset.checked_add(window.bytes);
        let is_within = driver::range_of(base)
            .zip(end)
            .is_some_and(|(range, end)| end <= range.end.saturating_sub(base));
        if !is_within {
            return Err("the peer has offered more than there is".into());
        }
        let key = Key {
            address: base + self.offset,
            bytes: window.bytes,
            key: window.key,
            access: access.0,
        };
        Ok((key, opened))
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
    /// Tells the thread that the queue is connected: before that, its peer is not lost.
    connected: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Other {
    fn drop(&mut self) {
        self.connected = None;
        let _ = self.stream.shutdown(Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Other {
    /// Has the queue, connected now, lose its peer when the connection ends.
    fn connected(&mut self) {
        if let Some(connected) = self.connected.take() {
            // Its thread waits for this.
            let _ = connected.send(());
        }
    }
}

/// Queue and memory of the other process.
pub(crate) struct Met {
    pub(crate) other: Other,
    pub(crate) window: Window,
    /// Mapped memory, to be kept as long as the endpoint.
    pub(crate) opened: Option<Opened>,
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
        let (found, memory) = their_offer.open(&window).map_err(|why| failed(&why))?;
        window.address = found.address;
        (key, opened) = (Some(found), Some(memory));
    }
    // Nothing fails once kernels may use the memory.
    let mut other = watch(queue.clone(), stream).map_err(|error| failed(&error))?;
    queue.connect_other(key.as_ref())?;
    other.connected();
    Ok(Met {
        other,
        window,
        opened,
    })
}

/// Sends an offer, and reads the other's; none if it is something else.
fn exchange(mut stream: &TcpStream, offer: &Offer, deadline: Instant) -> IoResult<Option<Offer>> {
    stream.write_all(&offer.bytes())?;
    let mut bytes = [0; OFFER_BYTES];
    match read_by(stream, &mut bytes, deadline) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    stream.set_read_timeout(None)?;
    Ok(Offer::parse(&bytes))
}

/// Waits in a thread for the connection's end, which is the peer's, once the queue is connected.
fn watch(queue: Arc<impl Peered>, stream: TcpStream) -> IoResult<Other> {
    let (connected, is_connected) = mpsc::channel();
    let mut reader = stream.try_clone()?;
    let thread = spawn("outboard-net-peer", move || {
        if is_connected.recv().is_err() {
            return;
        }
        // Nothing is said here: whatever comes is no such peer.
        while matches!(reader.read(&mut [0]), Err(error) if error.kind() == ErrorKind::Interrupted)
        {
        }
        queue.lose_peer();
    })?;
    Ok(Other {
        stream,
        connected: Some(connected),
        thread: Some(thread),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::{
        net::TcpListener,
        sync::atomic::{AtomicU32, Ordering},
        thread,
        time::Duration,
    };

    use super::*;
    use crate::stream::tests::{soon, trickling};

    /// A queue that can be connected, or cannot.
    struct Pretended {
        is_refused: bool,
        losses: AtomicU32,
    }

    impl Peered for Pretended {
        fn qpn(&self) -> u32 {
            1
        }

        fn connect_other(&self, _: Option<&Key>) -> Result<(), Error> {
            match self.is_refused {
                true => Err(Error::Connected(1)),
                false => Ok(()),
            }
        }

        fn lose_peer(&self) {
            self.losses.fetch_add(1, Ordering::AcqRel);
        }
    }

    #[test]
    fn a_queue_that_cannot_be_connected_loses_no_peer_and_the_peer_loses_it() {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap().to_string();
        drop(free);
        let queue = |is_refused| {
            let losses = AtomicU32::new(0);
            Arc::new(Pretended { is_refused, losses })
        };
        let (good, refused) = (queue(false), queue(true));
        let met = |queue: &Arc<Pretended>, listens| {
            let meeting = Meeting {
                address: &address,
                listens,
                is_anywhere: false,
                timeout: Duration::from_secs(60),
                way: None,
            };
            meet(queue, meeting, Window::default(), None)
        };
        thread::scope(|scope| {
            let listening = scope.spawn(|| met(&refused, true).map(|_| ()));
            let begin = Instant::now();
            let _met = met(&good, false).unwrap();
            let refusal = listening.join().unwrap();
            assert_eq!(refusal, Err(Error::Connected(1)));
            while good.losses.load(Ordering::Acquire) == 0 {
                assert!(begin.elapsed() < Duration::from_secs(60));
                thread::yield_now();
            }
        });
        assert_eq!(refused.losses.load(Ordering::Acquire), 0);
    }

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
    #[test]
    fn a_peer_that_trickles_has_no_more_time_than_the_meeting() {
        let offer = Offer::of(None).unwrap();
        let late = exchange(&trickling(), &offer, soon()).unwrap_err();
        assert_eq!(late.kind(), ErrorKind::TimedOut);
    }
}
