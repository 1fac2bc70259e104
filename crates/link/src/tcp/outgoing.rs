//! Orders outgoing bytes, and sends them by whichever thread is free.
//!
//! A sender tries to take the turn. If no thread has it and nothing is posted, its bytes are sent
//! at once. If another thread has it, they are posted and left to that thread, which looks for more
//! after it has given the turn back. So bytes do not wait to be joined, and bytes that were posted
//! while the socket was busy are sent together.
//!
//! A helper thread may take the turn and keep it while bytes come fast: a sender then only posts. A
//! thread that needs the turn itself says so, and the helper gives it up.
//!
//! # Why no byte is left behind
//!
//! A thread that leaves its bytes to another has first said that they are posted, then passed a
//! fence, then failed to take the turn. The thread that had the turn has first given it back, then
//! passes a fence, then looks whether anything is posted. The thread whose fence comes second sees
//! what the other did before its own: either it finds the bytes, or the turn was free.
//! `tests/loom.rs` runs exactly this file.
//!
//! # Why the order stays
//!
//! Bytes are sent without being posted only if nothing is posted, and only the thread that has the
//! turn takes posted bytes away. So a thread that has the turn and finds nothing posted knows that
//! everything it posted before has been written.

use std::mem;

use crate::{
    Error,
    sync::{AtomicBool, AtomicU32, Condvar, Guard, Mutex, MutexGuard, Ordering, Turn, fence},
};

/// Destination of the bytes.
pub trait Write {
    /// Writes all of `bytes`; blocks while the peer does not keep up.
    fn write(&mut self, bytes: &[u8]) -> Result<(), Error>;

    /// Called after a sender has sent by itself. Returns true if sends follow each other so fast
    /// that a helper should do them.
    fn wants_help(&mut self) -> bool {
        false
    }
}

/// Least room that a batch has, once it has any.
const BATCH_BYTES_MIN: usize = 4 << 10;

/// Contiguous bytes. Never shrinks, so that using its room again costs no zeroing.
#[derive(Default)]
pub struct Batch {
    bytes: Box<[u8]>,
    /// At most the length of `bytes`.
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

    #[inline]
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    /// The room after the bytes that are there.
    #[inline(always)]
    pub fn unused(&mut self) -> &mut [u8] {
        self.bytes.get_mut(self.len..).unwrap_or_default()
    }

    /// Makes room for `len` bytes after those that are there.
    pub fn room(&mut self, len: usize) -> &mut [u8] {
        let end = self.len + len;
        if self.bytes.len() < end {
            let mut bytes = mem::take(&mut self.bytes).into_vec();
            let len = end.max(2 * bytes.len()).max(BATCH_BYTES_MIN);
            bytes.resize(len, 0);
            self.bytes = bytes.into_boxed_slice();
        }
        &mut self.bytes[self.len..end]
    }

    /// Adds `front` and the `len` bytes of the room after it, if the room has so many.
    #[inline(always)]
    pub fn add_after<const N: usize>(&mut self, front: [u8; N], len: usize) {
        let end = self.len + N + len;
        if let Some(room) = self.bytes.get_mut(self.len..end)
            && let Some(start) = room.first_chunk_mut()
        {
            *start = front;
            self.len = end;
        }
    }

    pub fn push(&mut self, bytes: &[u8]) {
        self.room(bytes.len()).copy_from_slice(bytes);
        self.len += bytes.len();
    }

    #[inline]
    pub fn clear(&mut self) {
        self.len = 0;
    }
}

/// State that senders share.
pub struct Outgoing<W> {
    posted: CachePadded<Mutex<Posted>>,
    /// The state of `posted`, for threads that look without its lock; changed only under it.
    state: AtomicU32,
    /// A thread that tries in vain reads one word, which does not change while the turn is kept.
    turn: CachePadded<Turn<Box<Sending<W>>>>,
    /// Number of threads that wait for the turn.
    wanted: AtomicU32,
    has_helper: AtomicBool,
    helper_sleep: Mutex<HelperSleep>,
    called: Condvar,
}

/// Keeps a value in cache lines of its own; two are fetched at a time.
#[repr(align(128))]
struct CachePadded<T>(T);

/// Nothing is posted.
const IDLE: u32 = 0;
/// Bytes are posted.
const POSTED: u32 = 1;
/// Part of a frame may have been sent: no byte may follow, and none is posted any more.
const BROKEN: u32 = 2;

#[derive(Default)]
struct Posted {
    batch: Batch,
    /// An error that a helper met, for the next sender.
    error: Option<Error>,
}

struct Sending<W> {
    batch: Batch,
    writer: W,
}

#[derive(Default)]
struct HelperSleep {
    is_awake: bool,
    is_called: bool,
    is_over: bool,
}

impl<W: Write> Outgoing<W> {
    pub fn new(writer: W) -> Self {
        Self {
            posted: CachePadded(Mutex::new(Posted::default())),
            state: AtomicU32::new(IDLE),
            turn: CachePadded(Turn::new(Box::new(Sending {
                batch: Batch::default(),
                writer,
            }))),
            wanted: AtomicU32::new(0),
            has_helper: AtomicBool::new(false),
            helper_sleep: Mutex::new(HelperSleep::default()),
            called: Condvar::new(),
        }
    }

    /// Fixes the place of `batch` in the order of sending. The caller sends the result, best after
    /// releasing the lock that the sender is under; `None` if another thread sends it. Waits for
    /// the turn if more than `posted_bytes_max` is posted.
    #[inline(always)]
    pub fn begin(
        &self,
        batch: &mut Batch,
        posted_bytes_max: usize,
    ) -> Result<Option<Leaving<'_, W>>, Error> {
        match self.turn.0.try_lock() {
            Some(mut turn) if self.state.load(Ordering::Relaxed) == IDLE => {
                mem::swap(&mut turn.batch, batch);
                Ok(Some(Leaving {
                    outgoing: self,
                    turn,
                }))
            }
            turn => self.begin_behind(turn, batch, posted_bytes_max),
        }
    }

    /// Like `begin`, if the turn is taken or something is posted.
    #[inline(never)]
    fn begin_behind<'a>(
        &'a self,
        turn: Option<Guard<'a, Box<Sending<W>>>>,
        batch: &mut Batch,
        posted_bytes_max: usize,
    ) -> Result<Option<Leaving<'a, W>>, Error> {
        let posted = self.post(batch)?;
        let turn = match turn.or_else(|| self.turn.0.try_lock()) {
            // The peer does not keep up.
            None if posted > posted_bytes_max => self.wait_for_turn(),
            None => return Ok(None),
            Some(turn) => turn,
        };
        let mut leaving = Leaving {
            outgoing: self,
            turn,
        };
        // Empty if the thread that had the turn has sent it.
        self.take(&mut leaving.turn);
        match self.is_broken() {
            true => Err(Error::Closed),
            false => Ok(Some(leaving)),
        }
    }

    /// Adds `batch` to what is posted, and returns the number of bytes posted. The next
    /// [`flush`](Self::flush) of any thread sends them.
    #[inline]
    pub fn post(&self, batch: &mut Batch) -> Result<usize, Error> {
        let mut posted = lock(&self.posted.0);
        if self.is_broken() {
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
        if len > 0 {
            self.state.store(POSTED, Ordering::Release);
        }
        drop(posted);
        fence(Ordering::SeqCst);
        Ok(len)
    }

    /// Sends what is posted, or leaves it to the thread that is sending.
    pub fn flush(&self) -> Result<(), Error> {
        loop {
            let Some(mut turn) = self.turn.0.try_lock() else {
                return Ok(());
            };
            let has_sent = self.drain(&mut turn)?;
            if !self.give_back(turn, has_sent) {
                return Ok(());
            }
        }
    }

    /// Waits for the turn, and lets `write` send, after what is posted.
    pub fn send_with(
        &self,
        write: impl FnOnce(&mut W, &[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let turn = self.wait_for_turn();
        self.send_in_turn(turn, write)
    }

    fn wait_for_turn(&self) -> Guard<'_, Box<Sending<W>>> {
        self.wanted.fetch_add(1, Ordering::Relaxed);
        let turn = self.turn.0.lock();
        self.wanted.fetch_sub(1, Ordering::Relaxed);
        turn
    }

    /// Like [`send_with`](Self::send_with), unless the turn is still taken when `is_late` returns
    /// true.
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

    /// Runs a helper thread: it sleeps until called, then sends while `keep_on`, whose argument
    /// says whether anything was sent since the last call. Returns after [`end`](Self::end).
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
                    if self.state.load(Ordering::Acquire) == POSTED {
                        result = self.drain(&mut turn).map(|has| has_sent |= has);
                    }
                    is_over = !keep_on(mem::take(&mut has_sent));
                }
                drop(turn);
                // Bytes that were posted while the turn was taken, after the last look for them.
                if let Err(error) = result.and_then(|()| self.flush()) {
                    lock(&self.posted.0).error = Some(error);
                    return;
                }
            }
        }
    }

    /// Wakes the helper, if there is one and it sleeps.
    pub fn call(&self) {
        let mut state = lock(&self.helper_sleep);
        if !state.is_awake {
            state.is_called = true;
            self.called.notify_one();
        }
    }

    /// Ends the helper.
    pub fn end(&self) {
        lock(&self.helper_sleep).is_over = true;
        self.called.notify_one();
    }

    fn sleep(&self) -> bool {
        let mut state = lock(&self.helper_sleep);
        state.is_awake = false;
        while !state.is_called && !state.is_over {
            state = match self.called.wait(state) {
                Ok(state) => state,
                Err(poisoned) => poisoned.into_inner(),
            };
        }
        state.is_called = false;
        state.is_awake = true;
        !state.is_over
    }

    /// Sends what is posted; returns true if there was any. The caller looks for more after it
    /// gives the turn back.
    fn drain(&self, turn: &mut Sending<W>) -> Result<bool, Error> {
        self.take(turn);
        let has_any = !turn.batch.is_empty();
        self.write(turn)?;
        Ok(has_any)
    }

    /// Sends the bytes that were moved into the turn.
    #[inline(always)]
    fn write(&self, turn: &mut Sending<W>) -> Result<(), Error> {
        if turn.batch.is_empty() {
            return Ok(());
        }
        let result = turn.writer.write(turn.batch.bytes());
        turn.batch.clear();
        match result {
            Ok(()) => Ok(()),
            Err(error) => Err(self.broken(error)),
        }
    }

    /// Gives back the turn, which may have been used to send; returns true if there is more to
    /// send.
    #[inline(always)]
    fn give_back(&self, mut turn: Guard<'_, Box<Sending<W>>>, has_sent: bool) -> bool {
        let wants_help =
            has_sent && self.has_helper.load(Ordering::Relaxed) && turn.writer.wants_help();
        drop(turn);
        if wants_help {
            self.call();
        }
        fence(Ordering::SeqCst);
        self.state.load(Ordering::Relaxed) == POSTED
    }

    fn send_in_turn(
        &self,
        mut turn: Guard<'_, Box<Sending<W>>>,
        write: impl FnOnce(&mut W, &[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let Sending { batch, writer } = &mut **turn;
        {
            let mut posted = lock(&self.posted.0);
            if self.is_broken() {
                return Err(posted.error.take().unwrap_or(Error::Closed));
            }
            mem::swap(&mut posted.batch, batch);
            self.state.store(IDLE, Ordering::Relaxed);
        }
        let result = write(writer, batch.bytes());
        batch.clear();
        result.map_err(|error| self.broken(error))?;
        drop(turn);
        self.flush()
    }

    /// Moves what is posted into the turn.
    fn take(&self, turn: &mut Sending<W>) {
        let mut posted = lock(&self.posted.0);
        if !self.is_broken() {
            mem::swap(&mut posted.batch, &mut turn.batch);
            self.state.store(IDLE, Ordering::Relaxed);
        }
    }

    /// Called by a thread that has the turn or the lock of `posted`.
    fn is_broken(&self) -> bool {
        self.state.load(Ordering::Relaxed) == BROKEN
    }

    /// Records an error of a thread that has the turn.
    #[cold]
    fn broken(&self, error: Error) -> Error {
        let mut posted = lock(&self.posted.0);
        self.state.store(BROKEN, Ordering::Relaxed);
        posted.batch.clear();
        error
    }
}

/// Bytes whose place in the order is fixed. Unless they are [sent](Self::send), they are lost, and
/// the order with them.
#[must_use]
pub struct Leaving<'a, W> {
    outgoing: &'a Outgoing<W>,
    turn: Guard<'a, Box<Sending<W>>>,
}

impl<W: Write> Leaving<'_, W> {
    /// Sends them, and what was posted meanwhile.
    #[inline(always)]
    pub fn send(mut self) -> Result<(), Error> {
        self.outgoing.write(&mut self.turn)?;
        match self.outgoing.give_back(self.turn, true) {
            false => Ok(()),
            true => self.outgoing.flush(),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    match mutex.lock() {
        Ok(guard) => guard,
        Err(poisoned) => poisoned.into_inner(),
    }
}
