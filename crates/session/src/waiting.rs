//! Replies that wait for the device.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use outboard_api::CUresult;
use outboard_device::{Failure, Pending};
use outboard_link::{Lasting, RdmaTarget};
use outboard_wire::limits::CHUNK_BYTES_MAX;
use rustc_hash::FxHashSet;

use super::{exposed::Source, limits, message_stats};

/// The order in which replies become ready, as far as it is known. Replies of one stream become
/// ready one after another; of `Own` nothing is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Queue {
    Stream { context: u64, stream: u64 },
    Own,
}

/// Sends data of replies to another server.
pub(super) trait TakesPieces: Send + Sync {
    /// Takes a reply whose data is the piece of this number.
    fn give(&self, number: u64, entry: Waiting) -> Result<(), Failure>;
}

/// The message of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Origin {
    pub(super) op: u16,
    pub(super) context: u64,
    /// Contexts that the client had ended before it.
    pub(super) ended: u32,
}

/// A way to another server, and the number of the piece that goes there.
pub(super) type ToPeer = (Arc<dyn TakesPieces>, u64);

/// A message that was executed and has no reply yet.
pub(super) struct Waiting {
    pub(super) op: u16,
    /// The origin of its failure.
    pub(super) of: Origin,
    pub(super) token: u32,
    pub(super) since: Instant,
    /// Its reply may go over a data connection.
    pub(super) on_data_connection: bool,
    /// Client memory that its data is written to, if the link has remote memory.
    pub(super) to: Option<RdmaTarget>,
    /// Device memory that the adapter reads its data from, once the pending mark is reached.
    pub(super) source: Option<Source>,
    /// Way to another server that its data goes to, with the number that it has there.
    pub(super) to_peer: Option<ToPeer>,
    queue: Queue,
    has_data: bool,
    /// Length of its data at most, in bytes.
    bytes: u64,
    pending: Pending,
    result: Option<Result<(), Failure>>,
}

/// Whether another message may be received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    Open,
    /// Too much waits: nothing is added before a reply was sent.
    Stalled,
}

#[derive(Default)]
pub(super) struct WaitingList {
    entries: Vec<Waiting>,
    bytes: u64,
    /// When a reply was last ready, or when the list last reached its limits.
    progress_at: Option<Instant>,
    /// Queues found not ready during one poll.
    blocked: FxHashSet<Queue>,
    /// Entries with a source, which the adapter is to read.
    sources: usize,
    /// A ready reply was left, because what was sent before it fills the way to the client.
    is_held_back: bool,
}

impl Waiting {
    pub(super) fn new(
        of: Origin,
        token: u32,
        queue: Queue,
        has_data: bool,
        bytes: u64,
        since: Instant,
        pending: Pending,
    ) -> Waiting {
        Waiting {
            op: of.op,
            of,
            token,
            since,
            on_data_connection: false,
            to: None,
            source: None,
            to_peer: None,
            queue,
            has_data,
            bytes,
            pending,
            result: None,
        }
    }

    /// Returns the length of its data at most, in bytes.
    pub(super) fn bytes(&self) -> usize {
        usize::try_from(self.bytes).unwrap_or(usize::MAX)
    }

    /// Returns whether its reply has data, as far as it is known: once it is ready.
    pub(super) fn gives_data(&self) -> bool {
        self.has_data && self.token != 0 && matches!(self.result, Some(Ok(())))
    }

    /// Returns the memory that its data is part of, if that outlives the session.
    pub(super) fn lasting(&self) -> Option<Lasting> {
        self.pending.lasting()
    }

    /// Returns the data of the reply, if its declaration has data. To be called once ready.
    pub(super) fn reply_data(&self) -> Result<Option<&[u8]>, Failure> {
        if !self.has_data {
            return Ok(None);
        }
        let defect = |what: String| {
            let what = format!("{}: the device {what}", message_stats::name(self.op));
            Failure::new(CUresult::CUDA_ERROR_UNKNOWN, what)
        };
        let data = self
            .pending
            .data()
            .ok_or_else(|| defect("gave no data".into()))?;
        if data.len() > CHUNK_BYTES_MAX {
            return Err(defect(format!(
                "gave {} bytes, a frame carries {CHUNK_BYTES_MAX}",
                data.len()
            )));
        }
        Ok(Some(data))
    }
}

impl WaitingList {
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the message that has waited for the longest time.
    pub(super) fn oldest(&self) -> Option<u16> {
        self.entries.first().map(|entry| entry.op)
    }

    pub(super) fn push(&mut self, entry: Waiting) -> Result<(), Failure> {
        let full = |what: String| Err(Failure::new(CUresult::CUDA_ERROR_OUT_OF_MEMORY, what));
        if self.entries.len() >= limits::WAITING_HARD_MAX {
            return full(format!(
                "{} answers wait for the device, more than that many are not kept (WAITING_HARD_MAX)",
                limits::WAITING_HARD_MAX
            ));
        }
        if self.bytes + entry.bytes > limits::WAITING_HARD_BYTES_MAX {
            return full(format!(
                "copies of {} bytes wait for the device, more than {} are not kept (WAITING_HARD_BYTES_MAX)",
                self.bytes,
                limits::WAITING_HARD_BYTES_MAX
            ));
        }
        self.bytes += entry.bytes;
        self.sources += usize::from(entry.source.is_some());
        self.entries.push(entry);
        Ok(())
    }

    /// Whether a copy waits for the adapter to read device memory. With `but`, copies of that queue
    /// do not count.
    #[inline]
    pub(super) fn has_sources(&self, but: Option<Queue>) -> bool {
        let is_other = |entry: &Waiting| entry.source.is_some() && Some(entry.queue) != but;
        self.sources > 0 && self.entries.iter().any(is_other)
    }

    /// Replaces each copy that waits for the adapter with the ordinary copy that `copy` starts.
    pub(super) fn restage(&mut self, mut copy: impl FnMut(&Source) -> Result<Pending, Failure>) {
        self.sources = 0;
        for entry in &mut self.entries {
            let Some(source) = entry.source.take() else {
                continue;
            };
            match copy(&source) {
                Ok(pending) => {
                    entry.pending = pending;
                    // The mark may have been reached without a reply having been sent.
                    entry.result = None;
                }
                Err(failure) => entry.result = Some(Err(failure)),
            }
        }
    }

    pub(super) fn admission(&mut self, now: Instant) -> Admission {
        let is_full =
            self.entries.len() >= limits::WAITING_MAX || self.bytes >= limits::WAITING_BYTES_MAX;
        if !is_full {
            self.progress_at = None;
            return Admission::Open;
        }
        if self.is_held_back {
            // The client takes what was sent sooner or later, whatever else it sends.
            self.progress_at = Some(now);
        }
        let since = *self.progress_at.get_or_insert(now);
        if now - since >= Duration::from_millis(limits::STALL_MS_MAX) {
            Admission::Open
        } else {
            Admission::Stalled
        }
    }

    /// Polls all entries, and returns whether any is ready. An earlier entry may become ready after
    /// it was polled and before a later one was; so entries before the last ready one are polled
    /// again until none changes.
    pub(super) fn poll(&mut self) -> bool {
        let mut end = self.entries.len();
        while self.poll_first(end) {
            // Polls everything before the last ready entry again, until nothing new turns up.
            end = self
                .entries
                .iter()
                .rposition(|e| e.result.is_some())
                .unwrap_or(0);
        }
        self.entries.iter().any(|e| e.result.is_some())
    }

    /// Whether a ready entry reports that its context is lost.
    pub(super) fn any_lost(&self) -> bool {
        let lost =
            |e: &Waiting| matches!(&e.result, Some(Err(failure)) if failure.status.is_sticky());
        self.entries.iter().any(lost)
    }

    /// Polls the first `end` entries; returns whether one has become ready.
    fn poll_first(&mut self, end: usize) -> bool {
        self.blocked.clear();
        let mut is_new = false;
        for entry in &mut self.entries[..end] {
            if entry.result.is_some()
                || entry.queue != Queue::Own && self.blocked.contains(&entry.queue)
            {
                continue;
            }
            match entry.pending.ready() {
                Ok(false) => {
                    if entry.queue != Queue::Own {
                        self.blocked.insert(entry.queue);
                    }
                }
                result => {
                    entry.result = Some(result.map(|_| ()));
                    is_new = true;
                }
            }
        }
        is_new
    }

    /// Removes the ready entries, in order, up to the first one for which `has_room` is false.
    pub(super) fn take_ready(
        &mut self,
        now: Instant,
        mut has_room: impl FnMut(&Waiting) -> bool,
    ) -> impl Iterator<Item = (Waiting, Result<(), Failure>)> {
        self.progress_at = Some(now);
        self.is_held_back = false;
        let is_held_back = &mut self.is_held_back;
        self.entries
            .extract_if(.., move |entry| {
                if entry.result.is_none() || *is_held_back {
                    return false;
                }
                *is_held_back = !has_room(entry);
                !*is_held_back
            })
            .filter_map(|mut entry| {
                let result = entry.result.take()?;
                self.bytes -= entry.bytes;
                self.sources -= usize::from(entry.source.is_some());
                Some((entry, result))
            })
    }

    /// Returns the oldest ready entry, if some were left for want of room.
    pub(super) fn held_back(&self) -> Option<&Waiting> {
        let is_ready = |entry: &&Waiting| entry.result.is_some();
        match self.is_held_back {
            true => self.entries.iter().find(is_ready),
            false => None,
        }
    }
}
