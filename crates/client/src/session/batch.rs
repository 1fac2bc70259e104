//! Messages that are kept back until there are several of them: the level `batch=N`, which exists
//! for comparison.
//!
//! No thread waits while messages are kept: a thread that is about to wait sends them first. A
//! thread of the library sends messages that have been kept for [`REST_US_MAX`], so that a program
//! that only reads its memory makes progress.

use std::{
    cell::RefCell,
    num::NonZeroU16,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use outboard_api::CUresult;
use outboard_link::{Error, Sender};
use outboard_wire::{
    Op, Writer,
    frame::{encode_request, request_len},
    messages,
};
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::{Group, Numbered, Session, Sink};
use crate::{
    library_thread,
    observe::{conditions, optimise, record, times},
};

/// Longest time for which a message is kept.
const REST_US_MAX: u64 = 1_000;
/// Most bytes that a batch keeps, however few the messages.
const BYTES_MAX: usize = 256 << 10;

thread_local! {
    /// The round trips that the thread's current call owes, by the address of the session.
    static OWED: RefCell<Vec<(usize, Arc<Group>)>> = const { RefCell::new(Vec::new()) };
}

/// Returns the group for the reply of a message without a reply at the top level; `None` if it has
/// no reply at this level either.
fn owed(session: &Session) -> Option<Arc<Group>> {
    if !optimise::owes_reply() {
        return None;
    }
    let key = std::ptr::from_ref(session).addr();
    let add = |owed: &RefCell<Vec<(usize, Arc<Group>)>>| {
        let mut owed = owed.borrow_mut();
        let known = owed.iter().find(|(session, _)| *session == key);
        let group = match known {
            Some((_, group)) => group.clone(),
            None => {
                let group = Group::new(0);
                owed.push((key, group.clone()));
                group
            }
        };
        group.expect_one();
        group
    };
    // A thread that is ending has no thread-locals any more: its message gets no reply.
    OWED.try_with(add).ok()
}

impl Session {
    /// Waits for the round trips that the current call owes this session. A call that has sent
    /// nothing, but `owes` one, makes it here. The call has its result whatever the reply is: an
    /// error has become a deferred error.
    pub(crate) fn settle_owed(&self, context: u64, owes: bool) {
        let owed = OWED
            .try_with(|owed| {
                let mut owed = owed.borrow_mut();
                let key = std::ptr::from_ref(self).addr();
                let own = owed.iter().position(|(session, _)| *session == key)?;
                Some(owed.swap_remove(own))
            })
            .ok()
            .flatten();
        if let Some((_, owed)) = owed {
            let _ = self.wait(&owed);
        } else if owes {
            let _ = self.call(context, &messages::Ping {}, |_| ());
        }
    }

    /// Sends a message below the top level: it gets a reply, or is kept back.
    #[cold]
    pub(super) fn submit_lowered<'a, M: Op<'a>>(
        &self,
        numbered: Numbered<'_>,
        context: u64,
        message: &M,
    ) -> Result<u64, CUresult> {
        if let Some(group) = owed(self) {
            let sink = Sink::Nowhere(M::NAME);
            return self
                .ask_numbered(numbered, context, message, &group, sink)
                .inspect_err(|_| group.complete(Ok(Vec::new())));
        }
        let Some(batch) = &self.batch else {
            return self.send(0, numbered, context, message);
        };
        let len = request_len(message);
        let mut kept = batch.lock();
        if !batch.takes(&kept, len) {
            self.send_kept(&mut kept)?;
        }
        if !batch.takes(&kept, len) {
            return self.send(0, numbered, context, message);
        }
        if conditions::is_recorded() {
            record::sent(len);
        }
        batch
            .add(&mut kept, len, |room| {
                encode_request(room, 0, context, message)
            })
            .map_err(|error| self.not_laid_out(M::NAME, error))?;
        // Requests follow the kept messages, so a wait that sees this number covers the message.
        let number = self.number(numbered);
        if batch.is_full(&kept) {
            self.send_kept(&mut kept)?;
        }
        Ok(number)
    }

    /// Sends a message of the library's own, which belongs to no call of the program and to no
    /// context, at once.
    pub(crate) fn tell<'a, M: Op<'a>>(&self, message: &M) -> Result<(), CUresult> {
        self.check_in(0)?;
        self.send_batch()?;
        self.send(0, Numbered::No, 0, message).map(drop)
    }

    /// Sends the kept messages.
    pub(super) fn send_batch(&self) -> Result<(), CUresult> {
        match &self.batch {
            Some(batch) => self.send_kept(&mut batch.lock()),
            None => Ok(()),
        }
    }

    fn send_kept(&self, kept: &mut Kept) -> Result<(), CUresult> {
        if kept.is_empty() {
            return Ok(());
        }
        let sent = times::sending(|| kept.send(&mut self.sender.lock()));
        sent.map_err(|error| self.lost(format_args!("a batch of messages: {error}")))
    }

    /// Ends batches before the process ends: messages then leave at once.
    pub(crate) fn end_batches(&self) {
        if let Some(batch) = &self.batch {
            batch.end();
            let _ = self.send_batch();
        }
    }

    /// Starts the thread that sends messages that were kept for too long.
    pub(crate) fn watch_batches(self: &'static Session) {
        if let Some(batch) = &self.batch {
            library_thread::spawn("outboard-batches", move || {
                while !self.gone.load(Ordering::Acquire) {
                    let _ = self.send_kept(&mut batch.wait_until_due());
                }
            });
        }
    }
}

/// Kept messages. Lock order: `kept`, then the session's sender.
pub(super) struct Batch {
    size: NonZeroU16,
    kept: Mutex<Kept>,
    wake: Condvar,
}

/// Whole frames, one after the other.
#[derive(Default)]
struct Kept {
    bytes: Vec<u8>,
    lens: Vec<usize>,
    since: Option<Instant>,
    /// The thread that sends messages kept for too long has nothing to do.
    parked: bool,
    /// The process ends: nothing is kept any more.
    over: bool,
}

impl Batch {
    pub(super) fn new(size: NonZeroU16) -> Batch {
        Batch {
            size,
            kept: Mutex::default(),
            wake: Condvar::new(),
        }
    }

    /// Locks the kept messages, to add to them or send them.
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock()
    }

    /// Returns whether a frame of this length may be added.
    fn takes(&self, kept: &Kept, len: usize) -> bool {
        !kept.over && kept.bytes.len() + len <= BYTES_MAX
    }

    /// Adds a frame.
    fn add<E>(
        &self,
        kept: &mut Kept,
        len: usize,
        encode: impl FnOnce(&mut Writer<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let start = kept.bytes.len();
        kept.bytes.resize(start + len, 0);
        encode(&mut Writer::new(&mut kept.bytes[start..]))
            .inspect_err(|_| kept.bytes.truncate(start))?;
        kept.lens.push(len);
        if kept.since.is_none() {
            kept.since = Some(Instant::now());
            if std::mem::take(&mut kept.parked) {
                self.wake.notify_one();
            }
        }
        Ok(())
    }

    fn is_full(&self, kept: &Kept) -> bool {
        kept.lens.len() >= usize::from(self.size.get())
    }

    /// Keeps nothing from now on.
    fn end(&self) {
        self.kept.lock().over = true;
    }

    /// Waits until messages have been kept for the longest time.
    fn wait_until_due(&self) -> MutexGuard<'_, Kept> {
        let rest_max = Duration::from_micros(REST_US_MAX);
        let mut kept = self.kept.lock();
        loop {
            match kept.since.map(|since| since.elapsed()) {
                None => {
                    kept.parked = true;
                    self.wake.wait(&mut kept);
                }
                Some(rested) if rested >= rest_max => return kept,
                Some(rested) => {
                    self.wake.wait_for(&mut kept, rest_max - rested);
                }
            }
        }
    }
}

impl Kept {
    fn is_empty(&self) -> bool {
        self.lens.is_empty()
    }

    /// Sends all kept messages, in order.
    fn send(&mut self, sender: &mut Sender) -> Result<(), Error> {
        let mut sent = Ok(());
        let mut rest = self.bytes.as_slice();
        for len in &self.lens {
            let (frame, behind) = rest.split_at(*len);
            rest = behind;
            sent = sent.and_then(|()| sender.send(&[frame]));
        }
        self.bytes.clear();
        self.lens.clear();
        self.since = None;
        sent.and_then(|()| sender.flush())
    }
}
