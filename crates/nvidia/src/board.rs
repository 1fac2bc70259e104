//! Boards: words that the GPU writes when its work reaches a point, so that a wait only looks at
//! memory.
//!
//! Over shm the client maps the board too, and sees the word as soon as this process does. Over
//! other links the board belongs to this process alone: looking at a word costs almost nothing,
//! while a query of the driver takes a microsecond and holds its lock.

use std::{
    cell::Cell,
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use outboard_device::{Cx, Failure};
use outboard_wire::messages;

use super::{
    Nvidia,
    host_memory::{HostRange, Pinned, PinnedPart},
    owned::{ContextHold, Mark},
    table::real,
};

const WORD_BYTES: u64 = 8;
/// Words of this process's own board.
const OWN_WORDS: u32 = 4096;
/// Length of a client's board at most, in bytes.
const BOARD_BYTES_MAX: u64 = 1 << 20;
/// Interval at which the driver is asked whether the GPU still works, while a word does not come.
const ASK_US: u64 = 200;

/// Memory for words, which the GPU maps at the same address.
pub(super) struct Board {
    memory: Memory,
    address: u64,
    words: u32,
    /// Free slots, if the board is this process's own.
    free: Mutex<Vec<u32>>,
}

enum Memory {
    /// The client's memory.
    Shared(#[allow(dead_code)] HostRange),
    Own(#[allow(dead_code)] PinnedPart),
}

impl Board {
    fn own(base: &Arc<ContextHold>) -> Result<Board, Failure> {
        let bytes = u64::from(OWN_WORDS) * WORD_BYTES;
        let part = Pinned::new(base, bytes as usize)?.whole();
        Ok(Board {
            address: part.span(bytes as usize).address(),
            memory: Memory::Own(part),
            words: OWN_WORDS,
            free: Mutex::new((0..OWN_WORDS).rev().collect()),
        })
    }

    fn shared(base: &Arc<ContextHold>, va: u64, len: u64, file: OwnedFd) -> Result<Board, Failure> {
        let mut range = HostRange::map(base, va, len, Some(file))?;
        range.register()?;
        Ok(Board {
            memory: Memory::Shared(range),
            address: va,
            words: (len / WORD_BYTES) as u32,
            free: Mutex::default(),
        })
    }

    fn address_of(&self, slot: u32) -> u64 {
        self.address + u64::from(slot) * WORD_BYTES
    }

    fn read(&self, slot: u32) -> u64 {
        let word = std::ptr::with_exposed_provenance_mut::<u64>(self.address_of(slot) as usize);
        // SAFETY: the word is aligned and inside the board's memory, which lives as long as the
        // board; the GPU and the client write whole words.
        unsafe { AtomicU64::from_ptr(word) }.load(Ordering::Acquire)
    }

    fn is_own(&self) -> bool {
        matches!(self.memory, Memory::Own(_))
    }
}

/// A word that the GPU is going to write.
struct Word {
    board: Arc<Board>,
    slot: u32,
    value: u64,
    asked: Cell<Instant>,
}

impl Word {
    fn is_written(&self) -> bool {
        self.board.read(self.slot) == self.value
    }

    /// Whether it is time to ask the driver.
    fn is_overdue(&self) -> bool {
        let now = Instant::now();
        let overdue = now - self.asked.get() >= Duration::from_micros(ASK_US);
        if overdue {
            self.asked.set(now);
        }
        overdue
    }
}

impl Drop for Word {
    fn drop(&mut self) {
        // A slot whose word may still be written is not reused.
        if self.board.is_own() && self.is_written() {
            self.board
                .free
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(self.slot);
        }
    }
}

/// A mark that is polled often, with a word that makes polling cheap.
pub(super) struct WatchedMark {
    mark: Mark,
    word: Option<Word>,
}

impl WatchedMark {
    pub(super) fn reached(&self) -> Result<bool, Failure> {
        match &self.word {
            Some(word) if word.is_written() => Ok(true),
            Some(word) if !word.is_overdue() => Ok(false),
            _ => Ok(self.mark.reached()?),
        }
    }

    pub(super) fn into_mark(self) -> Mark {
        self.mark
    }

    pub(super) fn mark(&self) -> &Mark {
        &self.mark
    }
}

/// The slot and value that the client watches; slot 0 means none.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    pub(super) slot: u32,
    pub(super) value: u64,
}

pub(super) const NOT_WANTED: Wanted = Wanted { slot: 0, value: 0 };

#[derive(Default)]
pub(super) struct Boards {
    client: Option<Arc<Board>>,
    own: Option<Arc<Board>>,
    /// Whether the driver cannot write words, or has no memory for them: events are queried
    /// instead.
    refused: bool,
    next_value: u64,
}

impl Nvidia {
    pub(super) fn board_open(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::BoardOpen,
    ) -> Result<messages::BoardOpenReply, Failure> {
        let file = (cx.fds)(m.fd_tag)?;
        if m.len > BOARD_BYTES_MAX || self.boards.client.is_some() {
            return Err(Failure::new(
                outboard_api::CUresult::CUDA_ERROR_INVALID_VALUE,
                "a session has one board of words, of a MiB at most",
            ));
        }
        self.enter_base()?;
        let board = Board::shared(&self.base, m.va, m.len, file)?;
        self.boards.client = Some(Arc::new(board));
        let written = u8::from(!self.boards.refused);
        Ok(messages::BoardOpenReply { written })
    }

    /// Marks the end of a stream, with a word written before the mark. The client watches the word
    /// itself, unless printed text or pages written by kernels must reach it first.
    pub(super) fn watched_mark(
        &mut self,
        hold: &Arc<ContextHold>,
        stream: real::Stream,
        wanted: Wanted,
    ) -> Result<WatchedMark, Failure> {
        // The word comes first, because it is what the wait looks at.
        let word = self.word(wanted);
        let word = word.filter(|word| {
            let address = word.board.address_of(word.slot);
            // SAFETY: a word of a board that the pending wait keeps alive.
            let submitted = unsafe {
                self.driver
                    .cuStreamWriteValue64_v2(stream, address, word.value, 0)
            };
            if let Err(refused) = &submitted {
                tracing::debug!(status = %refused.status, "the driver writes no words; events are asked instead");
                self.boards.refused = true;
            }
            submitted.is_ok()
        });
        let mark = hold.mark(stream)?;
        Ok(WatchedMark { mark, word })
    }

    fn word(&mut self, wanted: Wanted) -> Option<Word> {
        if self.boards.refused {
            return None;
        }
        let now = Cell::new(Instant::now());
        if let Some(board) = &self.boards.client
            && (1..board.words).contains(&wanted.slot)
            && !self.printing.is_due()
            && !self.host.is_watched()
        {
            return Some(Word {
                board: board.clone(),
                slot: wanted.slot,
                value: wanted.value,
                asked: now,
            });
        }
        if self.boards.own.is_none() {
            if self.enter_base_quietly().is_err() {
                return None;
            }
            match Board::own(&self.base) {
                Ok(board) => self.boards.own = Some(Arc::new(board)),
                Err(failure) => {
                    tracing::debug!(%failure, "no memory for words");
                    self.boards.refused = true;
                }
            }
            self.leave_base();
        }
        let board = self.boards.own.as_ref()?;
        let slot = board
            .free
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop()?;
        self.boards.next_value += 1;
        Some(Word {
            board: board.clone(),
            slot,
            value: self.boards.next_value,
            asked: now,
        })
    }

    fn enter_base_quietly(&self) -> Result<(), Failure> {
        Ok(self.driver.cuCtxPushCurrent_v2(self.base.handle)?)
    }

    fn leave_base(&self) {
        if let Err(refused) = self.driver.cuCtxPopCurrent_v2() {
            tracing::debug!(status = %refused.status, "leaving a context");
        }
    }
}
