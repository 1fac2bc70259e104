//! A send ring, its doorbell record and its doorbell, as their reader sees them.

use std::{hint::black_box, sync::atomic::Ordering};

use crate::{
    distant::{Gone, Registered},
    doorbell::{Sharer, rung_for},
    memory::Mapped,
    syndrome::Syndrome,
    wqe::{BLOCK_BYTES, Control, Entry, SEGMENT_BYTES, SEGMENTS_MAX},
};

const ENTRY_BYTES_MAX: usize = (SEGMENTS_MAX * SEGMENT_BYTES).next_multiple_of(BLOCK_BYTES);

/// Blocks that are read before they are rung for.
const EXPECTED: u16 = 2;

/// A send ring.
#[derive(Debug)]
pub(crate) struct Ring {
    ring: Registered,
    log_blocks: u32,
    record: Registered,
    doorbell: Mapped,
    doorbell_seen: u64,
    /// Part in the doorbell, if other queue pairs ring it, too.
    sharer: Option<Sharer>,
    /// Index for which the doorbell rang, until the record has it.
    rung: Option<u16>,
    /// Index of the next entry to fetch, and of the end of those that were rung for.
    consumer: u16,
    target: u16,
    pub(crate) foreign_doorbells: u64,
}

impl Ring {
    /// Takes blocks of 64 bytes, 2^`log_blocks` of them, with a record of 8 bytes and a doorbell.
    pub(crate) fn new(
        ring: Registered,
        log_blocks: u32,
        record: Registered,
        doorbell: Mapped,
    ) -> Ring {
        Ring {
            ring,
            log_blocks,
            record,
            doorbell,
            doorbell_seen: 0,
            sharer: None,
            rung: None,
            consumer: 0,
            target: 0,
            foreign_doorbells: 0,
        }
    }

    /// Returns true if the doorbell rang for more than the record had at the last look, or since
    /// then, as another queue pair of it has seen.
    pub(crate) fn is_ahead(&self) -> bool {
        self.rung.is_some() || self.sharer.as_ref().is_some_and(Sharer::is_behind)
    }

    /// Returns the address of the doorbell.
    pub(crate) fn doorbell(&self) -> u64 {
        self.doorbell.address()
    }

    /// Part in a doorbell that other queue pairs ring, too.
    pub(crate) fn sharer(&self) -> Option<&Sharer> {
        self.sharer.as_ref()
    }

    /// Notes that other queue pairs ring this doorbell, too: one's word may be over another's
    /// before it is seen, so that each is a reason to look at the record.
    pub(crate) fn share_doorbell(&mut self, sharer: Sharer) {
        self.sharer = Some(sharer);
    }

    /// Returns the index of the next entry.
    pub(crate) fn consumer(&self) -> u16 {
        self.consumer
    }

    /// Returns how many blocks are posted and not fetched. Doorbell and record are read when none
    /// are known to be: the poster writes them all the time, so each look costs a way to memory.
    pub(crate) fn posted(&mut self, qpn: u32) -> u16 {
        match self.target.wrapping_sub(self.consumer) {
            0 => self.look(qpn),
            posted => posted,
        }
    }

    /// Reads doorbell and record. Returns how many blocks are posted and not fetched.
    fn look(&mut self, qpn: u32) -> u16 {
        let word = match &self.sharer {
            None => self.doorbell.u64(0).load(Ordering::Acquire),
            Some(sharer) => {
                sharer.take(&self.doorbell);
                0
            }
        };
        // Read in any case: both lines are on their way at once when a GPU has written them. One in
        // a GPU's memory is a copy, made when the doorbell has rung.
        let early = match &self.record {
            record @ Registered::Mapped(_) => record.announced(4).ok(),
            Registered::Distant { .. } => None,
        };
        self.expect();
        let has_news = match &mut self.sharer {
            None => self.hear(word, qpn),
            // What another's word was over is in the record alone.
            Some(sharer) => {
                let is_behind = sharer.is_behind();
                self.rung = sharer.hear().or(self.rung);
                is_behind || early.is_some()
            }
        };
        if has_news || self.rung.is_some() {
            let record = early.map_or_else(|| self.record.announced(4), Ok);
            self.target = match record {
                Ok(record) => record as u16,
                Err(Gone) => self.consumer,
            };
            // A doorbell may come before its record, which is then looked at again.
            self.rung = self.rung.filter(|index| {
                let ahead = index.wrapping_sub(self.target);
                ahead != 0 && u32::from(ahead) <= 1 << self.log_blocks
            });
        }
        self.target.wrapping_sub(self.consumer)
    }

    /// Takes note of the word of a doorbell that is this queue pair's alone. Returns true if it is
    /// a new one for it.
    fn hear(&mut self, word: u64, qpn: u32) -> bool {
        if word == self.doorbell_seen {
            return false;
        }
        self.doorbell_seen = word;
        let (of, index) = rung_for(word);
        if of != qpn {
            self.foreign_doorbells += 1;
            return false;
        }
        self.rung = Some(index);
        true
    }

    /// Reads a word of each of the next two blocks. A block that a GPU or another processor has
    /// written is on its way here then before its doorbell is seen.
    fn expect(&self) {
        if let Registered::Mapped(ring) = &self.ring {
            for next in 0..EXPECTED.min(1 << self.log_blocks) {
                let index = self.consumer.wrapping_add(next);
                let slot = usize::from(index) & ((1 << self.log_blocks) - 1);
                black_box(ring.u64(slot * BLOCK_BYTES).load(Ordering::Relaxed));
            }
        }
    }

    /// Passes blocks that were fetched.
    pub(crate) fn pass(&mut self, blocks: u16) {
        self.consumer = self.consumer.wrapping_add(blocks);
    }

    /// Passes the next entry that is posted, whatever it is. Returns its index and opcode.
    pub(crate) fn flush(&mut self, qpn: u32) -> Option<(u16, u8)> {
        let posted = self.look(qpn);
        if posted == 0 || u32::from(posted) > 1 << self.log_blocks {
            return None;
        }
        Some(self.skip())
    }

    /// Passes an entry without executing it: as many blocks as it says, if it has its index, or
    /// one. Returns its index and opcode.
    pub(crate) fn skip(&mut self) -> (u16, u8) {
        let mut block = [0; BLOCK_BYTES];
        let index = self.consumer;
        self.read_block(index, &mut block);
        let control = Control::read(&block).filter(|control| control.index == index);
        let posted = self.target.wrapping_sub(index);
        let blocks = match u32::from(posted) <= 1 << self.log_blocks {
            true => control.map_or(1, |control| control.blocks()).min(posted),
            false => 1,
        };
        self.pass(blocks);
        (index, control.map_or(0, |control| control.opcode))
    }

    fn read_block(&self, index: u16, into: &mut [u8]) {
        let slot = usize::from(index) & ((1 << self.log_blocks) - 1);
        // Of memory that is gone an entry is zeros, which no entry is.
        if self.ring.read(slot * BLOCK_BYTES, into) == Err(Gone) {
            into.fill(0);
        }
    }

    /// Reads the entry at the consumer's index; `posted` blocks are there.
    pub(crate) fn fetch(&self, qpn: u32, posted: u16) -> Result<(Entry, u16), (u8, Syndrome)> {
        let wrong = |opcode| (opcode, Syndrome::LOCAL_OPERATION);
        if u32::from(posted) > 1 << self.log_blocks {
            return Err(wrong(0));
        }
        let mut first = [0; BLOCK_BYTES];
        self.read_block(self.consumer, &mut first);
        let control = Control::read(&first).ok_or(wrong(0))?;
        let blocks = control.blocks();
        if blocks > posted {
            return Err(wrong(control.opcode));
        }
        if blocks == 1 {
            return Entry::parse(&first, self.consumer, qpn)
                .map(|entry| (entry, blocks))
                .map_err(|syndrome| (control.opcode, syndrome));
        }
        let mut bytes = [0; ENTRY_BYTES_MAX];
        bytes[..BLOCK_BYTES].copy_from_slice(&first);
        for block in 1..blocks {
            let at = usize::from(block) * BLOCK_BYTES;
            self.read_block(
                self.consumer.wrapping_add(block),
                &mut bytes[at..at + BLOCK_BYTES],
            );
        }
        let entry = Entry::parse(
            &bytes[..usize::from(blocks) * BLOCK_BYTES],
            self.consumer,
            qpn,
        );
        entry
            .map(|entry| (entry, blocks))
            .map_err(|syndrome| (control.opcode, syndrome))
    }
}
