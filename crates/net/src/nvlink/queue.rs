//! A queue of `nvlink`: no ring, but a page by which kernels know what they may reach.
//!
//! ```text
//!     0  counters, a line each, as `Counter` in net_shared.cuh says
//!  1024  a word that nobody reads        1152  record of receives
//!  4096  the page, as `Page` in net_peer.cuh says; then keys of this side, then those of the peer
//!  receives and their completions where the adapter's queue has them
//! ```

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Instant,
};

use parking_lot::Mutex;

use crate::{
    block::{
        ALL, BASE, COUNTERS_BYTES, ERROR, Export, OF_GPU, Options, PAGE, PAGE_BYTES,
        RECEIVES_CONSUMED, RECEIVES_READY, RECORD, RESET, SCRATCH, receives_base,
    },
    claim::Claim,
    completions::check,
    cqe::{CQE_BYTES, FRESH},
    error::Error,
    memory::Mapped,
    syndrome::Syndrome,
};

/// `OUTBOARD_NET_DIRECT`.
const DIRECT: u32 = 16;
/// Words of the page.
const CONNECTED: usize = PAGE;
const PEER_KEYS: usize = PAGE + 8;
const PEER_RECEIVES: usize = PAGE + 16;
const PEER_COMPLETIONS: usize = PAGE + 24;
const PEER_READY: usize = PAGE + 32;
const PEER_LOG_RECEIVES: usize = PAGE + 40;
const PEER_FIRST: usize = PAGE + 48;
const KEYS: usize = PAGE + 512;
/// Receives of the peer that messages have taken.
const TAKEN: usize = 832;
/// Registrations of an endpoint.
pub(super) const KEYS_MAX: usize = 56;
const KEY_BYTES: usize = 32;
/// Distance of the first tickets of two generations of a queue, and how many of them there are.
const GENERATION: u64 = 1 << 36;
const GENERATIONS_MAX: u64 = 1 << 19;

const _: () = assert!(KEYS + 2 * KEYS_MAX * KEY_BYTES <= PAGE + PAGE_BYTES);

/// Registered memory, as kernels know it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) key: u32,
    pub(crate) access: u32,
}

/// Returns a queue of a block at an address.
pub(crate) fn export_at(base: u64, options: &Options, qpn: u32) -> Export {
    let at = |offset: usize| base + offset as u64;
    let (counters, of_gpu) = match options.counters {
        0 => (at(0), 0),
        counters => (counters, OF_GPU),
    };
    Export {
        ring: at(PAGE),
        record: at(RECORD),
        counters,
        scratch: at(SCRATCH),
        receives: at(options.receives_at()),
        receive_completions: at(options.receive_completions_at()),
        qpn,
        log_blocks: options.log_blocks,
        log_receives: options.log_receives,
        signal_every: options.signal_every.max(1),
        flags: options.flags | of_gpu | DIRECT,
        ..Export::default()
    }
}

#[derive(Debug)]
pub(crate) struct Queue {
    _claims: Vec<Claim>,
    block: Mapped,
    export: Export,
    options: Options,
    /// The first receive of its generation.
    first: AtomicU64,
    /// One thread resets it at a time.
    resetting: Mutex<()>,
}

impl Queue {
    /// Makes a queue in a block, whose old contents are lost.
    pub(super) fn create(block: Mapped, options: Options, qpn: u32) -> Result<Queue, Error> {
        options.check()?;
        check(&block, "a queue", options.bytes(), PAGE_BYTES)?;
        let range = block.address()..block.address() + options.bytes() as u64;
        let mut claims = vec![Claim::take("a queue", range)?];
        if options.are_counters_of_gpu() {
            claims.push(Claim::take(
                "a queue's counters",
                options.counters_range()?,
            )?);
        }
        for at in (0..options.bytes()).step_by(8) {
            block.u64(at).store(0, Ordering::Relaxed);
        }
        let export = export_at(block.address(), &options, qpn);
        let queue = Queue {
            _claims: claims,
            block,
            export,
            options,
            first: AtomicU64::new(0),
            resetting: Mutex::default(),
        };
        queue.freshen();
        Ok(queue)
    }

    pub(super) fn export(&self) -> Export {
        self.export
    }

    pub(super) fn counters_bytes(&self) -> usize {
        self.options.counters_bytes()
    }

    /// Adds a registration to what kernels know.
    pub(super) fn add_key(&self, key: &Key) {
        self.write_key(KEYS, key);
    }

    /// Writes a key to its slot of a table: the key itself last.
    fn write_key(&self, table: usize, key: &Key) {
        let slot = (key.key >> 8).wrapping_sub(1) as usize % KEYS_MAX;
        let at = table + slot * KEY_BYTES;
        let word = |offset: usize| self.block.u64(at + offset);
        word(0).store(key.address, Ordering::Relaxed);
        word(8).store(key.address + key.bytes, Ordering::Relaxed);
        let last = u64::from(key.access) << 32 | u64::from(key.key);
        word(16).store(last, Ordering::Release);
    }

    pub(super) fn is_connected(&self) -> bool {
        self.block.u64(CONNECTED).load(Ordering::Acquire) != 0
    }

    /// Connects the queue to another of this process, whose keys are its own.
    pub(super) fn connect(&self, peer: &Queue) {
        let word = |at: usize| self.block.u64(at);
        let keys = self.block.address() + KEYS as u64;
        word(PEER_KEYS).store(keys, Ordering::Relaxed);
        let of = &peer.export;
        if of.log_receives != 0 {
            word(PEER_RECEIVES).store(of.receives, Ordering::Relaxed);
            word(PEER_COMPLETIONS).store(of.receive_completions, Ordering::Relaxed);
            let ready = of.counters + RECEIVES_READY as u64;
            word(PEER_READY).store(ready, Ordering::Relaxed);
            word(PEER_LOG_RECEIVES).store(of.log_receives.into(), Ordering::Relaxed);
            let first = peer.first.load(Ordering::Acquire);
            word(PEER_FIRST).store(first, Ordering::Relaxed);
        }
        self.connected();
    }

    /// Connects the queue to one of another process, which offers memory by a key. Its receives are
    /// not reached from here.
    pub(super) fn connect_to(&self, offered: Option<&Key>) {
        let keys = KEYS + KEYS_MAX * KEY_BYTES;
        for slot in 0..KEYS_MAX {
            let at = keys + slot * KEY_BYTES + 16;
            self.block.u64(at).store(0, Ordering::Relaxed);
        }
        if let Some(key) = offered {
            self.write_key(keys, key);
        }
        let word = |at: usize| self.block.u64(at);
        word(PEER_RECEIVES).store(0, Ordering::Relaxed);
        word(PEER_KEYS).store(self.block.address() + keys as u64, Ordering::Relaxed);
        self.connected();
    }

    fn connected(&self) {
        self.block.u64(CONNECTED).store(1, Ordering::Release);
        if !self.options.are_counters_of_gpu() {
            self.block.u64(ERROR).store(0, Ordering::Release);
        }
    }

    /// Ends the connection, since the peer was reset or is gone: posts of objects that look fail
    /// with 15 from now on, unless the counters are where only a GPU sees them. Tickets are of
    /// calls that have done all they had to do, so that the failure is behind every one of them.
    pub(super) fn end(&self) {
        self.block.u64(CONNECTED).store(0, Ordering::Release);
        if self.options.are_counters_of_gpu() {
            return;
        }
        let base = self.block.u64(BASE).load(Ordering::Acquire);
        let behind = base + (GENERATION - 1);
        let gone = behind << 8 | u64::from(Syndrome::RETRIES_EXCEEDED.0);
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        let _ = self.block.u64(ERROR).fetch_update(success, failure, |old| {
            (old >> 8 < base || old == 0).then_some(gone)
        });
    }

    /// Puts the queue back to its start, with counters of its own.
    pub(super) fn reset(&self) -> Result<(), Error> {
        if self.options.are_counters_of_gpu() {
            return Err(Error::CountersOfGpu(self.export.qpn));
        }
        self.reset_with(&self.block, Instant::now() + RESET)
    }

    /// Puts a queue back whose counters are in a GPU's memory, of which this is a copy.
    pub(super) fn reset_counters(&self, counters: &Mapped) -> Result<(), Error> {
        if !self.options.are_counters_of_gpu() {
            return Err(Error::CountersOfQueue(self.export.qpn));
        }
        check(counters, "a queue's counters", COUNTERS_BYTES, 8)?;
        self.reset_with(counters, Instant::now())?;
        counters.u64(ERROR).store(0, Ordering::Release);
        Ok(())
    }

    fn reset_with(&self, counters: &Mapped, deadline: Instant) -> Result<(), Error> {
        let _one_at_a_time = self.resetting.lock();
        // Any number: the word is the program's.
        let base = counters.u64(BASE).load(Ordering::Acquire);
        let base = base.saturating_add(GENERATION);
        if base / GENERATION >= GENERATIONS_MAX {
            return Err(Error::TooMany {
                what: "generations of a queue",
                count_max: GENERATIONS_MAX as usize,
            });
        }
        let flushed = ALL << 8 | u64::from(Syndrome::FLUSHED.0);
        counters.u64(ERROR).store(flushed, Ordering::SeqCst);
        let first = receives_base(self.export.qpn, counters, deadline)?;
        self.block.u64(CONNECTED).store(0, Ordering::Release);
        self.block.u64(PEER_RECEIVES).store(0, Ordering::Release);
        self.freshen();
        self.first.store(first, Ordering::Release);
        for at in [RECEIVES_READY, RECEIVES_CONSUMED] {
            counters.u64(at).store(first, Ordering::Release);
        }
        counters.u64(TAKEN).store(0, Ordering::Release);
        counters.u64(BASE).store(base, Ordering::Release);
        Ok(())
    }

    /// Returns the entry that failed first, and its syndrome.
    pub(super) fn failure(&self) -> Option<(u16, u8)> {
        let error = self.block.u64(ERROR).load(Ordering::Acquire);
        let base = self.block.u64(BASE).load(Ordering::Acquire);
        (error != 0 && error >> 8 >= base).then_some(((error >> 8) as u16, error as u8))
    }

    /// Makes all completions of receives such that nobody takes them.
    fn freshen(&self) {
        let fresh = u64::from_be_bytes([0, 0, 0, 0, 0, 0, 0, FRESH]).to_be();
        for receive in 0..self.options.receives() {
            let at = self.options.receive_completions_at() + receive * CQE_BYTES + 56;
            self.block.u64(at).store(fresh, Ordering::Release);
        }
    }
}
