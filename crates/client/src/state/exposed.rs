//! Copies to the GPU that this side's adapter writes directly into the GPU's memory, over rdma, if
//! the server allows it.
//!
//! The second long copy to an allocation asks the server for a key and does not wait for the reply.
//! Copies without a key are staged in the server's memory.
//!
//! # When the adapter may write
//!
//! A copy must follow all work that its stream waits for, and precede all work submitted later. The
//! order of the connection ensures the second: the copy's message and all later ones are seen after
//! the data. For the first, the adapter writes only if all of that work is
//! [known](Driver::is_quiet) to be done; nothing is asked to find out, and any other copy is
//! staged.
//!
//! Lock order: the memory table, this table, the session's sender. Data is posted and memory given
//! up under this lock, so no key is used after the message that ends it: the adapter would refuse
//! the write, and the connection would end.

use std::{collections::BTreeMap, sync::Arc};

use outboard_api::{CUresult, cuda::CUcontext, enums::CU_STREAM_NON_BLOCKING};
use outboard_link::{GpuMemory, RdmaTarget, Registered};
use outboard_wire::{
    Message as _, Reader,
    limits::{CHUNK_BYTES_MAX, PLACED_BYTES_MIN},
    messages::{self, MemoryExposeReply},
};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::{Driver, StreamRef, wire_context};
use crate::session::{Group, Numbered, Sink};

/// Most allocations known to have had one copy, or to have been refused a key. Beyond that all such
/// knowledge is dropped.
const KNOWN_MAX: usize = 4096;

/// The parts of the GPU's memory that this side's adapter may write.
#[derive(Default)]
pub(crate) struct Exposed(Mutex<KeyTable>);

#[derive(Default)]
struct KeyTable {
    /// By address; the ranges are disjoint.
    keys: BTreeMap<u64, AdapterKey>,
    /// Allocations without a key, by address.
    known: FxHashMap<u64, KnownAllocation>,
    /// The server gives no keys.
    is_over: bool,
    clock: u64,
}

struct AdapterKey {
    bytes: u64,
    key: u32,
    used_at: u64,
}

struct KnownAllocation {
    bytes: u64,
    state: KeyState,
}

enum KeyState {
    /// One copy was made to it.
    Seen,
    Asked(Arc<Group>),
    /// It will get no key while it exists.
    Refused,
}

impl KeyTable {
    fn find(&mut self, address: u64, bytes: u64) -> Option<RdmaTarget> {
        let (base, key) = self.keys.range_mut(..=address).next_back()?;
        let end = address.checked_add(bytes)?;
        self.clock += 1;
        key.used_at = self.clock;
        (end <= base + key.bytes).then_some(RdmaTarget {
            address,
            key: key.key,
        })
    }

    fn forget(&mut self, va: u64, len: u64) {
        let end = va.saturating_add(len);
        self.keys
            .retain(|base, key| *base >= end || base + key.bytes <= va);
        self.known
            .retain(|base, known| *base >= end || base + known.bytes <= va);
    }

    /// Removes the least recently used key, and returns it.
    fn evict(&mut self) -> Option<u64> {
        let oldest = self.keys.iter().min_by_key(|(_, key)| key.used_at);
        let base = oldest.map(|(base, _)| *base)?;
        self.keys.remove(&base);
        Some(base)
    }
}

impl Driver {
    /// Copies to the device by this side's adapter. Data outside registered memory takes one copy
    /// by the processor. Returns false if the adapter may not write. For short copies, and on other
    /// links, it costs one comparison.
    #[inline(always)]
    pub(crate) fn place_on_gpu(
        &self,
        dst: u64,
        data: &[u8],
        source: Option<&Registered>,
        stream: &StreamRef,
        wait: bool,
    ) -> Result<bool, CUresult> {
        if data.len() < PLACED_BYTES_MIN || !self.session.registers() {
            return Ok(false);
        }
        self.place_where_allowed(dst, data, source, stream, wait)
    }

    /// Returns whether this side's adapter may write to the GPU's memory. It writes once the work
    /// before is done: only the server knows when.
    pub(crate) fn places_on_gpu(&self) -> bool {
        self.session.registers() && self.session.gpu_memory() != GpuMemory::Off
    }

    #[cold]
    fn place_where_allowed(
        &self,
        dst: u64,
        data: &[u8],
        source: Option<&Registered>,
        stream: &StreamRef,
        wait: bool,
    ) -> Result<bool, CUresult> {
        if self.session.gpu_memory() == GpuMemory::Off
            || !self.is_quiet(stream)
            || !self.has_key(dst, data.len() as u64)?
        {
            return Ok(false);
        }
        // The pieces have equal lengths, so that none is short.
        let pieces = data.len().div_ceil(CHUNK_BYTES_MAX);
        let mut dst = dst;
        for piece in data.chunks(data.len().div_ceil(pieces)) {
            self.place_piece(dst, piece, source, stream, wait)?;
            dst += piece.len() as u64;
        }
        Ok(true)
    }

    fn place_piece(
        &self,
        dst: u64,
        data: &[u8],
        source: Option<&Registered>,
        stream: &StreamRef,
        wait: bool,
    ) -> Result<(), CUresult> {
        let mut table = self.exposed.0.lock();
        let Some(target) = table.find(dst, data.len() as u64) else {
            drop(table);
            // A piece across two registrations is a staged copy; the other pieces write other
            // memory.
            let message = messages::CopyIn {
                dst,
                stream: stream.wire(),
                sync: u32::from(wait),
                data: data.into(),
            };
            return self.submit_to(stream, &message);
        };
        let message = messages::CopyPlaced {
            dst,
            len: data.len() as u64,
            stream: stream.wire(),
        };
        let (context, numbered) = (stream.context(), Numbered::Quietly(Some(stream.progress())));
        self.session
            .submit_placed(numbered, context, &message, data, source, target)
    }

    /// Returns whether the adapter may write these bytes, or the first of them. If not, it takes
    /// the next step towards that.
    fn has_key(&self, address: u64, bytes: u64) -> Result<bool, CUresult> {
        let allocation = self.memory.lock().find(address).copied();
        let mut table = self.exposed.0.lock();
        if table.is_over {
            return Ok(false);
        }
        if table
            .find(address, bytes.min(CHUNK_BYTES_MAX as u64))
            .is_some()
        {
            return Ok(true);
        }
        let Some(allocation) = allocation else {
            return Ok(false);
        };
        let base = allocation.base;
        let asked = match table.known.get(&base).map(|known| &known.state) {
            Some(KeyState::Refused) => return Ok(false),
            Some(KeyState::Asked(group)) => Some(group.clone()),
            Some(KeyState::Seen) => None,
            None => {
                if table.known.len() >= KNOWN_MAX {
                    table
                        .known
                        .retain(|_, known| matches!(known.state, KeyState::Asked(_)));
                }
                let (bytes, state) = (allocation.bytes, KeyState::Seen);
                table.known.insert(base, KnownAllocation { bytes, state });
                return Ok(false);
            }
        };
        let Some(group) = asked else {
            let message = messages::MemoryExpose {
                va: address,
                len: bytes.min(CHUNK_BYTES_MAX as u64),
            };
            let group = Group::new(1);
            self.session
                .ask(wire_context(), &message, &group, Sink::Group)?;
            let (bytes, state) = (allocation.bytes, KeyState::Asked(group));
            table.known.insert(base, KnownAllocation { bytes, state });
            return Ok(false);
        };
        if !group.is_complete() {
            drop(table);
            // Perhaps no thread is reading the link.
            self.session.poll();
            return Ok(false);
        }
        table.known.remove(&base);
        let evicted = table.take(base, allocation.bytes, group.take());
        if let Some(base) = evicted {
            // The server revokes it after the data that was posted with it.
            self.submit(&messages::MemoryConceal { base })?;
        }
        Ok(table
            .find(address, bytes.min(CHUNK_BYTES_MAX as u64))
            .is_some())
    }

    /// Forgets the keys for these addresses, and calls `send` to send the message that unmaps or
    /// changes their memory.
    pub(crate) fn conceal<R>(&self, va: u64, len: u64, send: impl FnOnce() -> R) -> R {
        let mut table = self.exposed.0.lock();
        table.forget(va, len);
        send()
    }

    /// Returns whether all work that a copy in this stream would wait for is known to be done. Data
    /// written by the adapter does not count as work.
    pub(crate) fn is_quiet(&self, stream: &StreamRef) -> bool {
        let own = &stream.stream().progress;
        let is_own_quiet = own.is_complete(own.work_mark());
        match stream {
            // It waits for no other stream.
            StreamRef::Own(own) if own.flags & CU_STREAM_NON_BLOCKING != 0 => is_own_quiet,
            // It waits for the legacy stream, which waits for all others.
            StreamRef::Own(own) => is_own_quiet && self.is_everything_quiet(own.context),
            StreamRef::Legacy(legacy) => self.is_everything_quiet(legacy.context),
        }
    }

    fn is_everything_quiet(&self, context: CUcontext) -> bool {
        let progress = &self.session.progress;
        let mark = progress.work_mark();
        progress.is_complete(mark)
            || self
                .streams
                .legacy_of(context)
                .is_some_and(|legacy| legacy.progress.is_complete(mark))
    }
}

impl KeyTable {
    /// Handles the server's reply about an allocation. Returns the key to give back for it, if any.
    fn take(
        &mut self,
        allocation: u64,
        bytes: u64,
        answer: Result<Vec<u8>, CUresult>,
    ) -> Option<u64> {
        let decoded = answer.map(|data| MemoryExposeReply::decode(&mut Reader::new(&data)));
        match decoded {
            Ok(Ok(MemoryExposeReply { base, bytes, key })) => {
                self.clock += 1;
                let used_at = self.clock;
                let key = AdapterKey {
                    bytes,
                    key,
                    used_at,
                };
                self.keys.insert(base, key);
                None
            }
            Err(CUresult::CUDA_ERROR_NOT_SUPPORTED) => {
                self.is_over = true;
                None
            }
            // Not now: a later copy asks again.
            Err(CUresult::CUDA_ERROR_NOT_READY) => None,
            Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY) if !self.keys.is_empty() => self.evict(),
            _ => {
                let state = KeyState::Refused;
                self.known
                    .insert(allocation, KnownAllocation { bytes, state });
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use outboard_wire::{Encode as _, Writer};

    use super::*;

    fn answer(base: u64, bytes: u64, key: u32) -> Result<Vec<u8>, CUresult> {
        let reply = MemoryExposeReply { base, bytes, key };
        let mut data = vec![0; reply.encoded_len()];
        reply.encode(&mut Writer::new(&mut data)).unwrap();
        Ok(data)
    }

    #[test]
    fn a_key_is_for_its_memory_until_that_is_given_up() {
        let mut table = KeyTable::default();
        table.take(0x1000, 0x100, answer(0x1000, 0x1000, 7));
        table.take(0x3000, 0x100, answer(0x3000, 0x1000, 8));
        let key = |table: &mut KeyTable, address, bytes| {
            table.find(address, bytes).map(|target| target.key)
        };
        assert_eq!(key(&mut table, 0x1000, 0x1000), Some(7));
        assert_eq!(key(&mut table, 0x1fff, 1), Some(7));
        for (address, bytes) in [(0xfff, 1), (0x1fff, 2), (0x2000, 1), (u64::MAX, 2)] {
            assert_eq!(key(&mut table, address, bytes), None, "{address:#x}");
        }
        table.forget(0x1fff, 1);
        assert_eq!(key(&mut table, 0x1000, 1), None);
        assert_eq!(key(&mut table, 0x3000, 1), Some(8));
    }

    #[test]
    fn too_much_costs_what_was_not_used_for_longest() {
        let mut table = KeyTable::default();
        for (base, key) in [(0x1000, 1), (0x2000, 2), (0x3000, 3)] {
            table.take(base, 0x1000, answer(base, 0x1000, key));
        }
        table.find(0x1000, 1);
        let full = Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        assert_eq!(table.take(0x4000, 0x1000, full), Some(0x2000));
        assert!(table.find(0x2000, 1).is_none() && table.find(0x3000, 1).is_some());
    }

    #[test]
    fn what_is_refused_is_not_asked_for_again() {
        let mut table = KeyTable::default();
        table.take(0x1000, 0x1000, Err(CUresult::CUDA_ERROR_INVALID_VALUE));
        assert!(matches!(table.known[&0x1000].state, KeyState::Refused));
        table.forget(0x1000, 0x1000);
        assert!(table.known.is_empty());
        table.take(0x1000, 0x1000, Err(CUresult::CUDA_ERROR_NOT_READY));
        assert!(table.known.is_empty() && !table.is_over);
        table.take(0x1000, 0x1000, Err(CUresult::CUDA_ERROR_NOT_SUPPORTED));
        assert!(table.is_over);
    }
}
