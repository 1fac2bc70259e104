//! Replies with data that a thread of their own sends, so that the session goes on while the client
//! does not keep up, and copies to the device meanwhile.
//!
//! Over an emulated network all replies cross one connection or ring, and over shm the session
//! copies what is sent as well as what is received. The thread does the former while data comes the
//! other way, too. It also sends what comes after a reply that it has yet to send, so that the
//! order stays.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use outboard_link::{Closer, Error, Sender};
use outboard_wire::{frame::HEADER_BYTES, limits::DATA_REPLIES_BYTES_MAX};
use tracing::debug;

use super::{limits, waiting::Waiting};

/// A sender that the session shares with the thread.
pub(super) struct Aside {
    shared: Arc<Shared>,
    /// `None` until the first reply is given to the thread.
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    /// Locked by the one that sends: the session only while the queue is empty.
    sender: Mutex<Sender>,
    closer: Closer,
    queue: Mutex<Queue>,
    /// Signalled when a frame was queued, and at the end.
    queued: Condvar,
    /// Signalled when a frame was sent.
    sent: Condvar,
}

/// The queue's room.
pub(super) struct Room(Arc<Shared>);

impl Room {
    /// Returns whether [`Aside::give`] would not wait.
    pub(super) fn is_there(&self) -> bool {
        lock(&self.0.queue).has_room()
    }
}

#[derive(Default)]
struct Queue {
    frames: VecDeque<Frame>,
    /// Bytes of the frames, and of the one that is being sent.
    bytes: usize,
    /// The session has ended: the thread ends once the queue is empty.
    is_closed: bool,
    /// Sending has failed; the thread has ended.
    is_broken: bool,
}

enum Frame {
    Reply {
        header: [u8; HEADER_BYTES],
        entry: Box<Waiting>,
    },
    Whole(Vec<u8>),
}

impl Frame {
    fn bytes(&self) -> usize {
        match self {
            Frame::Reply { entry, .. } => HEADER_BYTES + entry.bytes(),
            Frame::Whole(bytes) => bytes.len(),
        }
    }

    fn send(&self, sender: &mut Sender) -> Result<(), Error> {
        match self {
            Frame::Whole(bytes) => sender.send(&[bytes])?,
            Frame::Reply { header, entry } => {
                // Ready, or it would not be here.
                let data = entry.reply_data().ok().flatten().unwrap_or_default();
                let len = (data.len() as u32).to_le_bytes();
                sender.send(&[header, &len, data])?;
            }
        }
        sender.flush()
    }
}

impl Aside {
    pub(super) fn new(sender: Sender) -> Aside {
        Aside {
            shared: Arc::new(Shared {
                closer: sender.closer(),
                sender: Mutex::new(sender),
                queue: Mutex::default(),
                queued: Condvar::new(),
                sent: Condvar::new(),
            }),
            thread: None,
        }
    }

    /// Does something with the sender, once the thread does not use it.
    pub(super) fn with_sender<R>(&self, work: impl FnOnce(&mut Sender) -> R) -> R {
        work(&mut lock(&self.shared.sender))
    }

    pub(super) fn room(&self) -> Room {
        Room(Arc::clone(&self.shared))
    }

    /// Sends a frame, after those that the thread has yet to send.
    pub(super) fn send(&self, parts: &[&[u8]]) -> Result<(), Error> {
        if self.is_busy() {
            return self.shared.push(Frame::Whole(parts.concat()));
        }
        self.check()?;
        lock(&self.shared.sender).send(parts)
    }

    /// Gives a reply with data to the thread. Waits while many bytes are queued.
    pub(super) fn give(&mut self, header: [u8; HEADER_BYTES], entry: Waiting) -> Result<(), Error> {
        let entry = Box::new(entry);
        let reply = Frame::Reply { header, entry };
        if self.thread.is_none() {
            self.thread = self.start();
        }
        match self.thread {
            Some(_) => self.shared.push(reply),
            None => reply.send(&mut lock(&self.shared.sender)),
        }
    }

    fn start(&self) -> Option<JoinHandle<()>> {
        let shared = Arc::clone(&self.shared);
        let named = thread::Builder::new().name("outboard-replies".into());
        let started = named.spawn(move || shared.send_all());
        started
            .inspect_err(|error| debug!(%error, "the session sends all replies itself"))
            .ok()
    }

    /// Sends what was buffered, unless the thread is sending: it sends that, too.
    pub(super) fn flush(&self) -> Result<(), Error> {
        self.check()?;
        match self.is_busy() {
            true => Ok(()),
            false => lock(&self.shared.sender).flush(),
        }
    }

    /// Returns whether the thread has yet to send something.
    pub(super) fn is_busy(&self) -> bool {
        lock(&self.shared.queue).bytes > 0
    }

    fn check(&self) -> Result<(), Error> {
        match lock(&self.shared.queue).is_broken {
            true => Err(Error::Closed),
            false => Ok(()),
        }
    }
}

/// Ends the thread before the device is dropped, whose memory it uses. What is queued is sent if
/// the client takes it soon.
impl Drop for Aside {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else {
            return;
        };
        let mut queue = lock(&self.shared.queue);
        queue.is_closed = true;
        self.shared.queued.notify_all();
        let until = Instant::now() + Duration::from_millis(limits::PARTING_MS_MAX);
        while queue.bytes > 0 && !queue.is_broken {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                self.shared.closer.close();
                break;
            }
            let waited = self.shared.sent.wait_timeout(queue, left);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(queue);
        // A thread that panicked has reported it.
        let _ = thread.join();
    }
}

impl Shared {
    fn push(&self, frame: Frame) -> Result<(), Error> {
        let mut queue = lock(&self.queue);
        while !queue.has_room() {
            queue = wait(&self.sent, queue);
        }
        if queue.is_broken {
            return Err(Error::Closed);
        }
        queue.bytes += frame.bytes();
        queue.frames.push_back(frame);
        self.queued.notify_one();
        Ok(())
    }

    /// Sends what is queued, until the session ends; runs on a thread of its own.
    fn send_all(&self) {
        let _ends = EndsLink(self);
        let mut queue = lock(&self.queue);
        loop {
            let Some(frame) = queue.frames.pop_front() else {
                if queue.is_closed {
                    return;
                }
                queue = wait(&self.queued, queue);
                continue;
            };
            drop(queue);
            let sent = frame.send(&mut lock(&self.sender));
            let bytes = frame.bytes();
            // What the device gave for it is free before the session is told.
            drop(frame);
            queue = lock(&self.queue);
            // Only now is the queue empty for the session, which sends by itself then.
            queue.bytes -= bytes;
            if let Err(error) = sent {
                debug!(%error, "replies cannot be sent");
                queue.is_broken = true;
                queue.frames.clear();
            }
            self.sent.notify_all();
            if queue.is_broken {
                return;
            }
        }
    }
}

/// Ends the link if the thread panics: neither what is queued nor what waits for room would ever
/// be sent, and the client would wait for it.
struct EndsLink<'s>(&'s Shared);

impl Drop for EndsLink<'_> {
    fn drop(&mut self) {
        if !thread::panicking() {
            return;
        }
        let mut queue = lock(&self.0.queue);
        queue.is_broken = true;
        queue.frames.clear();
        self.0.sent.notify_all();
        self.0.closer.close();
    }
}

impl Queue {
    fn has_room(&self) -> bool {
        self.is_broken || self.bytes < DATA_REPLIES_BYTES_MAX
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wait<'q>(changed: &Condvar, queue: MutexGuard<'q, Queue>) -> MutexGuard<'q, Queue> {
    changed.wait(queue).unwrap_or_else(PoisonError::into_inner)
}
