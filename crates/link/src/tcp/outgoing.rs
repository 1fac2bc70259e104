//! Bytes on their way out, in one order, sent by whoever is free.
//!
//! A sender posts its bytes, then tries to take the turn. If nobody has it, it sends everything that is posted, its own
//! and others'. If somebody has it, the bytes are left to that thread, which looks for more before it lets the turn go,
//! and once more afterwards. So nothing waits for company, and what has come together while the socket was busy leaves
//! together.
//!
//! A helper thread may take the turn and keep it while bytes come fast: posting is all that a sender then does. Whoever
//! needs the turn for itself says so, and the helper lets go.
//!
//! # Why no byte is left behind
//!
//! A thread that fails to take the turn has posted before, under the lock of what is posted. The thread that had the turn
//! looks there after it gave the turn back, under the same lock. Either it finds the bytes, or the lock was taken in the
//! other order, and then the turn was free when the first thread tried. `tests/loom.rs` runs exactly this file.

use std::mem;

use crate::{
    Error,
    sync::{AtomicBool, AtomicU32, Condvar, Guard, Mutex, MutexGuard, Ordering, Turn},
};

/// Where the bytes go.
pub trait Write {
    /// All of them; blocks while the peer does not keep up.
    fn write(&mut self, bytes: &[u8]) -> Result<(), Error>;

    /// A sender has sent by itself. Whether a helper should rather do it, so fast do they follow each other.
    fn wants_help(&mut self) -> bool {
        false
    }
}

/// Bytes in a row. Never shrinks, so that room in it costs no zeroing.
#[derive(Default)]
pub struct Batch {
    bytes: Vec<u8>,
    len: usize,
}

impl Batch {
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Room for `len` bytes behind those that are there.
    #[inline]
    pub fn room(&mut self, len: usize) -> &mut [u8] {
        let end = self.len + len;
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        &mut self.bytes[self.len..end]
    }

    /// The first `len` bytes of the room count from now on.
    #[inline]
    pub fn add(&mut self, len: usize) {
        self.len = (self.len + len).min(self.bytes.len());
    }

    pub fn push(&mut self, bytes: &[u8]) {
        self.room(bytes.len()).copy_from_slice(bytes);
        self.add(bytes.len());
    }

    pub fn clear(&mut self) {
        self.len = 0;
    }
}

/// What senders share.
pub struct Outgoing<W> {
    posted: Apart<Mutex<Posted>>,
    /// Whether there is anything, for the helper that looks all the time.
    has_posted: AtomicBool,
    /// A thread that tries in vain reads one word, which does not change while the turn is kept.
    turn: Apart<Turn<Box<Sending<W>>>>,
    /// Threads that need the turn for themselves.
    wanted: AtomicU32,
    has_helper: AtomicBool,
    nap: Mutex<Nap>,
    called: Condvar,
}

/// In cache lines of its own, two of which are fetched at a time.
#[repr(align(128))]
struct Apart<T>(T);

#[derive(Default)]
struct Posted {
    batch: Batch,
    /// Part of a frame may have gone: nothing must follow.
    is_broken: bool,
    /// What a helper met, for the next sender.
    error: Option<Error>,
}

struct Sending<W> {
    batch: Batch,
    writer: W,
}

#[derive(Default)]
struct Nap {
    is_awake: bool,
    is_called: bool,
    is_over: bool,
}

impl<W: Write> Outgoing<W> {
    pub fn new(writer: W) -> Self {
        Self {
            posted: Apart(Mutex::new(Posted::default())),
            has_posted: AtomicBool::new(false),
            turn: Apart(Turn::new(Box::new(Sending {
                batch: Batch::default(),
                writer,
            }))),
            wanted: AtomicU32::new(0),
            has_helper: AtomicBool::new(false),
            nap: Mutex::new(Nap::default()),
            called: Condvar::new(),
        }
    }

    /// Puts `batch` behind what is posted, and tells how many bytes that makes. They leave with the next
    /// [`flush`](Self::flush), of any thread.
    #[inline]
    pub fn post(&self, batch: &mut Batch) -> Result<usize, Error> {
        let mut posted = lock(&self.posted.0);
        if posted.is_broken {
            batch.clear();
            return Err(posted.error.take().unwrap_or(Error::Closed));
        }
        if posted.batch.is_empty() {
            mem::swap(&mut posted.batch, batch);
        } else {
            posted.batch.push(batch.bytes());
            batch.clear();
        }
        let len = posted.batch.len();
        self.has_posted.store(len > 0, Ordering::Release);
        Ok(len)
    }

    /// Sends what is posted, or leaves it to the thread that is sending.
    #[inline]
    pub fn flush(&self) -> Result<(), Error> {
        loop {
            let Some(mut turn) = self.turn.0.try_lock() else {
                return Ok(());
            };
            let wants_help = self.drain(&mut turn)?
                && self.has_helper.load(Ordering::Relaxed)
                && turn.writer.wants_help();
            drop(turn);
            if wants_help {
                self.call();
            }
            if lock(&self.posted.0).batch.is_empty() {
                return Ok(());
            }
        }
    }

    /// Waits for the turn, and lets `write` send, with what is posted in front.
    pub fn send_with(
        &self,
        write: impl FnOnce(&mut W, &[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.wanted.fetch_add(1, Ordering::Relaxed);
        let turn = self.turn.0.lock();
        self.wanted.fetch_sub(1, Ordering::Relaxed);
        self.send_in_turn(turn, write)
    }

    /// As [`send_with`](Self::send_with), unless the turn is still taken when `is_late` says so.
    pub fn try_send_with(
        &self,
        mut is_late: impl FnMut() -> bool,
        write: impl FnOnce(&mut W, &[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.wanted.fetch_add(1, Ordering::Relaxed);
        let turn = loop {
            match self.turn.0.try_lock() {
                None if is_late() => break None,
                None => {}
                turn => break turn,
            }
        };
        self.wanted.fetch_sub(1, Ordering::Relaxed);
        turn.map_or(Ok(()), |turn| self.send_in_turn(turn, write))
    }

    /// The life of a helper thread: asleep until called, then sending while `keep_on`, which is told whether anything was
    /// sent since it was last asked. Returns when [`end`](Self::end) was called.
    pub fn help(&self, mut keep_on: impl FnMut(bool) -> bool) {
        self.has_helper.store(true, Ordering::Relaxed);
        while self.sleep() {
            let mut has_sent = true;
            let mut is_over = false;
            while !is_over {
                let turn = match self.wanted.load(Ordering::Relaxed) {
                    0 => self.turn.0.try_lock(),
                    _ => None,
                };
                let Some(mut turn) = turn else {
                    is_over = !keep_on(mem::take(&mut has_sent));
                    continue;
                };
                let mut result = Ok(());
                while result.is_ok() && !is_over && self.wanted.load(Ordering::Relaxed) == 0 {
                    if self.has_posted.load(Ordering::Acquire) {
                        result = self.drain(&mut turn).map(|has| has_sent |= has);
                    }
                    is_over = !keep_on(mem::take(&mut has_sent));
                }
                drop(turn);
                // What was posted while the turn was taken and not looked for any more.
                if let Err(error) = result.and_then(|()| self.flush()) {
                    lock(&self.posted.0).error = Some(error);
                    return;
                }
            }
        }
    }

    /// Wakes the helper, if there is one and it sleeps.
    pub fn call(&self) {
        let mut nap = lock(&self.nap);
        if !nap.is_awake {
            nap.is_called = true;
            self.called.notify_one();
        }
    }

    /// Ends the helper.
    pub fn end(&self) {
        lock(&self.nap).is_over = true;
        self.called.notify_one();
    }

    fn sleep(&self) -> bool {
        let mut nap = lock(&self.nap);
        nap.is_awake = false;
        while !nap.is_called && !nap.is_over {
            nap = match self.called.wait(nap) {
                Ok(nap) => nap,
                Err(poisoned) => poisoned.into_inner(),
            };
        }
        nap.is_called = false;
        nap.is_awake = true;
        !nap.is_over
    }

    /// Sends what is posted; tells whether anything was. Whoever lets the turn go afterwards looks for more.
    fn drain(&self, turn: &mut Sending<W>) -> Result<bool, Error> {
        if !self.take(turn) {
            return Ok(false);
        }
        let result = turn.writer.write(turn.batch.bytes());
        turn.batch.clear();
        self.after_write(result)?;
        Ok(true)
    }

    fn send_in_turn(
        &self,
        mut turn: Guard<'_, Box<Sending<W>>>,
        write: impl FnOnce(&mut W, &[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let Sending { batch, writer } = &mut **turn;
        {
            let mut posted = lock(&self.posted.0);
            if posted.is_broken {
                return Err(posted.error.take().unwrap_or(Error::Closed));
            }
            mem::swap(&mut posted.batch, batch);
            self.has_posted.store(false, Ordering::Relaxed);
        }
        let result = write(writer, batch.bytes());
        batch.clear();
        self.after_write(result)?;
        drop(turn);
        self.flush()
    }

    /// Takes what is posted over into the turn.
    fn take(&self, turn: &mut Sending<W>) -> bool {
        let mut posted = lock(&self.posted.0);
        mem::swap(&mut posted.batch, &mut turn.batch);
        self.has_posted.store(false, Ordering::Relaxed);
        !turn.batch.is_empty()
    }

    fn after_write(&self, result: Result<(), Error>) -> Result<(), Error> {
        if result.is_err() {
            let mut posted = lock(&self.posted.0);
            posted.is_broken = true;
            posted.batch.clear();
        }
        result
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    match mutex.lock() {
        Ok(guard) => guard,
        Err(poisoned) => poisoned.into_inner(),
    }
}
