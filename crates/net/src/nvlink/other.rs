//! Meetings with queues of `nvlink` of other processes on this machine: each offers a handle of
//! its GPU's memory, by which the driver maps it for the other, and says whether it has mapped the
//! other's. Who cannot do either says why.

use std::{
    io::{ErrorKind, Read, Result as IoResult, Write},
    net::{Shutdown, TcpStream},
    sync::{
        Arc,
        mpsc::{self, Sender},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use crate::{
    adapter::Peer,
    driver::{self, HANDLE_BYTES, Opened},
    error::Error,
    keys::Access,
    meet::{self, Hello, Meeting, Window},
    reach::SHORTEST,
    stream::read_by,
    threads::spawn,
};

use super::queue::{KEYS_MAX, Key};

/// First bytes of what follows the hello; the last is the version.
const MAGIC: [u8; 8] = *b"OBPEERS\x02";
/// First bytes of one who has mapped what the other offers, and of one who says why not.
const AGREED: [u8; 8] = *b"OBPEERA\x02";
const REFUSED: [u8; 8] = *b"OBPEERR\x02";
const MESSAGE_BYTES: usize = 128;
const NO_CONTEXT: &str = "its thread has no current context of CUDA";
const NOT_OF_GPU: &str = "nvlink offers memory of GPUs to other processes, and this is none";
const NOT_OF_CUDA_MALLOC: &str =
    "nvlink offers memory of cudaMalloc to other processes, and this is none";
/// Time in which the other comes to hear why this side does not meet it.
const TOLD: Duration = Duration::from_secs(2);

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
        if driver::is_without_context() {
            return Err(NO_CONTEXT.into());
        }
        let range = driver::range_of(key.address).ok_or(NOT_OF_GPU)?;
        let handle = driver::handle_of(range.start);
        Ok(Offer {
            handle: handle.map_err(|why| format!("{NOT_OF_CUDA_MALLOC} ({why})"))?,
            offset: key.address - range.start,
            access: key.access,
        })
    }

    fn write(&self, to: &mut [u8]) {
        let (handle, rest) = to.split_at_mut(HANDLE_BYTES);
        handle.copy_from_slice(&self.handle);
        rest[..8].copy_from_slice(&self.offset.to_le_bytes());
        rest[8..12].copy_from_slice(&self.access.to_le_bytes());
    }

    fn parse(bytes: &[u8]) -> Option<Offer> {
        let (handle, rest) = bytes.split_first_chunk()?;
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
        if driver::is_without_context() {
            return Err(NO_CONTEXT.into());
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

/// A message after the hello: first an offer, then whether the other's is mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Message {
    Offer(Offer),
    Agreed,
    Refused(String),
}

impl Message {
    fn bytes(&self) -> [u8; MESSAGE_BYTES] {
        let mut bytes = [0; MESSAGE_BYTES];
        let (magic, rest) = bytes.split_at_mut(MAGIC.len());
        match self {
            Message::Offer(offer) => {
                magic.copy_from_slice(&MAGIC);
                offer.write(rest);
            }
            Message::Agreed => magic.copy_from_slice(&AGREED),
            Message::Refused(why) => {
                magic.copy_from_slice(&REFUSED);
                rest.iter_mut()
                    .zip(why.bytes())
                    .for_each(|(to, byte)| *to = byte);
            }
        }
        bytes
    }

    fn parse(bytes: &[u8; MESSAGE_BYTES]) -> Option<Message> {
        let (magic, rest) = bytes.split_first_chunk()?;
        match *magic {
            MAGIC => Offer::parse(rest).map(Message::Offer),
            AGREED => Some(Message::Agreed),
            REFUSED => {
                let why = String::from_utf8_lossy(rest);
                let why = why.trim_end_matches(['\0', char::REPLACEMENT_CHARACTER]);
                let shown = why.replace(char::is_control, " ");
                Some(Message::Refused(shown))
            }
            _ => None,
        }
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
    let begin = Instant::now();
    let mut deadline = begin + meeting.timeout;
    let offer = Offer::of(offered);
    if offer.is_err() {
        deadline = deadline.min(begin + TOLD);
    }
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
    let (stream, theirs) = match (met, &offer) {
        (Ok(met), _) => met,
        (Err(_), Err(why)) => return Err(failed(&shown(why))),
        (Err(error), _) => return Err(failed(&error)),
    };
    let (found, opened) = agree(&stream, offer, &theirs.window, deadline)
        .map_err(|why| failed(&why))?
        .unzip();
    let (key, mut window) = (found, theirs.window);
    if let Some(key) = &key {
        window.address = key.address;
    }
    // Nothing fails once kernels may use the memory.
    let watched = watch(queue.clone(), stream);
    let mut other = watched.map_err(|error| failed(&Error::Thread(error.to_string())))?;
    queue.connect_other(key.as_ref())?;
    other.connected();
    Ok(Met {
        other,
        window,
        opened,
    })
}

/// Returns what a side says of itself, as it is said at that side.
fn shown(why: &str) -> String {
    why.replace(NO_CONTEXT, "this thread has no current context of CUDA")
}

/// Exchanges offers, maps the memory that the peer offers, and hears that it has mapped this
/// side's. Returns it, if there is any.
fn agree(
    stream: &TcpStream,
    offer: Result<Offer, String>,
    window: &Window,
    deadline: Instant,
) -> Result<Option<(Key, Opened)>, String> {
    let said = match &offer {
        Ok(offer) => Message::Offer(*offer),
        Err(why) => Message::Refused(why.clone()),
    };
    let theirs = exchange(stream, &said, deadline);
    offer.map_err(|why| shown(&why))?;
    let theirs = match theirs.map_err(|error| meet::why(&error))? {
        Some(Message::Offer(theirs)) => theirs,
        Some(Message::Refused(why)) => return Err(format!("the other process says: {why}")),
        _ => return Err("the other process is not of nvlink, or of another version".into()),
    };
    let opened = match window.bytes {
        0 => Ok(None),
        _ => theirs.open(window).map(Some),
    };
    let said = match &opened {
        Ok(_) => Message::Agreed,
        Err(why) => Message::Refused(why.clone()),
    };
    // One who has said it in time is heard, however late this side is.
    let theirs = exchange(stream, &said, deadline.max(Instant::now() + SHORTEST));
    let opened = opened.map_err(|why| shown(&why))?;
    match theirs.map_err(|error| meet::why(&error))? {
        Some(Message::Agreed) => Ok(opened),
        Some(Message::Refused(why)) => Err(format!("the other process says: {why}")),
        _ => Err(meet::why(&ErrorKind::UnexpectedEof.into())),
    }
}

/// Sends a message, and reads the other's; none if it is something else.
fn exchange(
    mut stream: &TcpStream,
    message: &Message,
    deadline: Instant,
) -> IoResult<Option<Message>> {
    stream.write_all(&message.bytes())?;
    let mut bytes = [0; MESSAGE_BYTES];
    match read_by(stream, &mut bytes, deadline) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    stream.set_read_timeout(None)?;
    Ok(Message::parse(&bytes))
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
    fn messages_are_read_as_they_were_written_and_nothing_else_is() {
        let offer = Offer {
            handle: std::array::from_fn(|at| at as u8),
            offset: 1 << 40,
            access: 15,
        };
        for message in [
            Message::Offer(offer),
            Message::Agreed,
            Message::Refused("a reason".into()),
        ] {
            let bytes = message.bytes();
            assert_eq!(Message::parse(&bytes), Some(message));
            for at in 0..MAGIC.len() {
                let mut other = bytes;
                other[at] ^= 0x80;
                assert_eq!(Message::parse(&other), None);
            }
        }
        let long = Message::Refused("long\n".repeat(99)).bytes();
        let Some(Message::Refused(said)) = Message::parse(&long) else {
            panic!("{long:?}")
        };
        assert_eq!(said, "long ".repeat(24));
    }

    /// Returns what two processes say of each other's offers.
    fn agreed(offers: [Result<Offer, String>; 2], bytes: [u64; 2]) -> [String; 2] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let other = listener.accept().unwrap().0;
        let deadline = Instant::now() + Duration::from_secs(60);
        let side = |stream: TcpStream, offer, bytes| {
            let window = Window {
                bytes,
                ..Window::default()
            };
            let done = agree(&stream, offer, &window, deadline);
            done.map_or_else(|why| why, |_| "agreed".into())
        };
        let [first, second] = offers;
        thread::scope(|scope| {
            let first = scope.spawn(|| side(one, first, bytes[0]));
            let second = side(other, second, bytes[1]);
            [first.join().unwrap(), second]
        })
    }

    #[test]
    fn each_hears_why_the_other_cannot_offer_or_map() {
        let none = || Offer::of(None);
        assert_eq!(agreed([none(), none()], [0, 0]), ["agreed", "agreed"]);
        let without = Err(NO_CONTEXT.to_owned());
        assert_eq!(
            agreed([without, none()], [0, 0]),
            [
                "this thread has no current context of CUDA".to_owned(),
                format!("the other process says: {NO_CONTEXT}")
            ]
        );
        // The second offers what cannot be mapped.
        let why = "the peer has offered key 0x0";
        assert_eq!(
            agreed([none(), none()], [8, 0]),
            [why.to_owned(), format!("the other process says: {why}")]
        );
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
        let late = exchange(&trickling(), &Message::Agreed, soon()).unwrap_err();
        assert_eq!(late.kind(), ErrorKind::TimedOut);
    }
}
