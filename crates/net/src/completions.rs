//! Completion queues, as the adapter writes them.

use std::sync::{
    Arc,
    atomic::{AtomicU8, Ordering},
};

use crate::{
    cqe::{CQE_BYTES, Completion, FRESH},
    distant::Registered,
    error::Error,
    memory::Mapped,
};

/// Entries name completion queues by numbers from here on: 0 is none for programs.
pub const CQN_FIRST: u32 = 0x40;
const LOG_MAX: u32 = 22;
/// Bits of the consumer's index in the doorbell record.
const CONSUMER_MASK: u64 = 0x00ff_ffff;

/// A completion queue's memory and kind.
#[derive(Clone, Debug)]
pub struct CompletionsSetup {
    /// Completions of 64 bytes, 2^`log_entries` of them; one if it is collapsed.
    pub entries: Registered,
    pub log_entries: u32,
    /// All completions are written over the first. The first error stays.
    pub collapsed: bool,
    /// Doorbell record of 4 bytes with the consumer's index. Without one, overruns are not noticed.
    pub record: Option<Registered>,
}

/// Kinds of completions that a program waits for: none, solicited ones and errors, or any.
mod armed {
    pub(super) const NOTHING: u8 = 0;
    pub(super) const SOLICITED: u8 = 1;
    pub(super) const ANYTHING: u8 = 2;
}

/// Calls to a program: at a completion that it waits for, and when its queue is overrun.
pub struct Watch {
    armed: AtomicU8,
    call: Box<dyn Fn() + Send + Sync>,
    overrun: Box<dyn Fn() + Send + Sync>,
}

impl Watch {
    #[must_use]
    pub fn new(call: impl Fn() + Send + Sync + 'static) -> Watch {
        Watch {
            armed: AtomicU8::new(armed::NOTHING),
            call: Box::new(call),
            overrun: Box::new(|| {}),
        }
    }

    /// Calls a function, too, when more has completed than there is room for: nothing completes
    /// from then on.
    #[must_use]
    pub fn or_overrun(self, overrun: impl Fn() + Send + Sync + 'static) -> Watch {
        let overrun = Box::new(overrun);
        Watch { overrun, ..self }
    }

    /// Asks for a call at the next completion. Those that are there already do not count.
    pub fn arm(&self) {
        self.armed.store(armed::ANYTHING, Ordering::SeqCst);
    }

    /// Asks for a call at the next message that its sender wants to be told of, or error, unless
    /// any completion is waited for already.
    pub fn arm_solicited(&self) {
        self.armed.fetch_max(armed::SOLICITED, Ordering::SeqCst);
    }

    fn completed(&self, is_solicited: bool) {
        let wanted = match is_solicited {
            true => armed::SOLICITED,
            false => armed::ANYTHING,
        };
        let disarm = |armed| (armed >= wanted).then_some(armed::NOTHING);
        let (set, fetch) = (Ordering::SeqCst, Ordering::SeqCst);
        if self.armed.fetch_update(set, fetch, disarm).is_ok() {
            (self.call)();
        }
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.debug_struct("Watch").finish_non_exhaustive()
    }
}

#[derive(Debug)]
pub(crate) struct Completions {
    setup: CompletionsSetup,
    produced: u64,
    /// A collapsed queue holds an error.
    holds_error: bool,
    pub(crate) overrun: bool,
    pub(crate) watch: Option<Arc<Watch>>,
}

impl Completions {
    pub(crate) fn new(setup: CompletionsSetup) -> Result<Completions, Error> {
        let log = setup.log_entries;
        if log > LOG_MAX {
            let what = "completion queue";
            return Err(Error::Size {
                what,
                log_min: 0,
                log_max: LOG_MAX,
                given: log,
            });
        }
        let bytes = CQE_BYTES << if setup.collapsed { 0 } else { log };
        check(&setup.entries, "a completion queue", bytes, CQE_BYTES)?;
        if let Some(record) = &setup.record {
            check(record, "a doorbell record", 4, 4)?;
        }
        // Programs whose completions are in a GPU's memory have filled it, as for other adapters.
        if let Registered::Mapped(entries) = &setup.entries {
            for at in (0..bytes).step_by(CQE_BYTES) {
                let fresh = u64::from_be_bytes([0, 0, 0, 0, 0, 0, 0, FRESH]).to_be();
                entries.u64(at + 56).store(fresh, Ordering::Release);
            }
        }
        Ok(Completions {
            setup,
            produced: 0,
            holds_error: false,
            overrun: false,
            watch: None,
        })
    }

    pub(crate) fn is_collapsed(&self) -> bool {
        self.setup.collapsed
    }

    /// Writes a completion: the word with its opcode and owner last, in one store. After an error
    /// that stays, completions are only counted: other queues may wait for them.
    pub(crate) fn push(&mut self, completion: &Completion) {
        self.push_as(completion, completion.is_error());
    }

    /// Writes a completion, of which a program hears that waits for solicited ones.
    pub(crate) fn push_solicited(&mut self, completion: &Completion) {
        self.push_as(completion, true);
    }

    fn push_as(&mut self, completion: &Completion, is_solicited: bool) {
        let setup = &self.setup;
        if self.holds_error {
            self.produced += 1;
            return;
        }
        if self.overrun {
            return;
        }
        if !setup.collapsed && self.is_full() {
            self.overrun = true;
            if let Some(watch) = &self.watch {
                (watch.overrun)();
            }
            return;
        }
        let (slot, owner) = if setup.collapsed {
            (0, false)
        } else {
            let mask = (1 << setup.log_entries) - 1;
            (
                self.produced & mask,
                self.produced >> setup.log_entries & 1 != 0,
            )
        };
        let at = slot as usize * CQE_BYTES;
        let bytes = completion.encode(owner);
        let (head, last) = bytes.split_at(CQE_BYTES - 8);
        let last = last
            .first_chunk()
            .map_or(0, |last| u64::from_ne_bytes(*last));
        let written = setup.entries.write(at + 32, &head[32..]);
        // Of memory that is gone nobody reads completions.
        let _ = written.and_then(|()| setup.entries.announce(at + 56, last));
        self.produced += 1;
        self.holds_error = setup.collapsed && completion.is_error();
        if let Some(watch) = &self.watch {
            watch.completed(is_solicited);
        }
    }

    /// Counts a completion that is not written: the next is written over it.
    pub(crate) fn pass_over(&mut self) {
        self.produced += 1;
    }

    /// Returns true if there were more completions than this number, modulo 2^32.
    pub(crate) fn has_had(&self, number: u32) -> bool {
        (self.produced as u32).wrapping_sub(number).cast_signed() > 0
    }

    /// Lets further completions be written over an error.
    pub(crate) fn forget_error(&mut self) {
        self.holds_error = false;
    }

    fn is_full(&self) -> bool {
        let Some(record) = &self.setup.record else {
            return false;
        };
        let consumed = u64::from(record.announced(0).unwrap_or(0));
        (self.produced.wrapping_sub(consumed) & CONSUMER_MASK) >= 1 << self.setup.log_entries
    }
}

/// Memory whose length and alignment are looked at.
pub(crate) trait Piece {
    fn len(&self) -> usize;
    fn is_aligned(&self, alignment: usize) -> bool;
}

impl Piece for Mapped {
    fn len(&self) -> usize {
        Mapped::len(self)
    }

    fn is_aligned(&self, alignment: usize) -> bool {
        Mapped::is_aligned(self, alignment)
    }
}

impl Piece for Registered {
    fn len(&self) -> usize {
        Registered::len(self)
    }

    fn is_aligned(&self, alignment: usize) -> bool {
        Registered::is_aligned(self, alignment)
    }
}

/// Fails unless memory is as long as needed, and aligned.
pub(crate) fn check(
    memory: &impl Piece,
    what: &'static str,
    bytes: usize,
    alignment: usize,
) -> Result<(), Error> {
    if memory.len() < bytes || !memory.is_aligned(alignment) {
        return Err(Error::Memory {
            what,
            bytes,
            alignment,
            given: memory.len(),
        });
    }
    Ok(())
}
