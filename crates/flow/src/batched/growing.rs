//! A table that becomes larger while it is used, without a pause.
//!
//! Memory for the larger table is found and zeroed by a thread of the table's own, which also frees
//! the memory of the smaller one: both would take milliseconds. Meanwhile the old table is used.
//! When the new one is there, each insertion and each removal moves the entries of a few buckets,
//! so the longest operation is that of a few dozen insertions. While entries move, a lookup that
//! finds nothing in the new table looks into the old one.

use super::bucket::SLOTS;
use super::table::{BATCH_MAX, Batched};
use crate::{FlowKey, FlowTable, NONE, OutOfMemory, Refused, Secret};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};

/// Load from which a larger table is asked for, in eighths. The rest has to suffice until its
/// memory is there.
const GROW_AT_EIGHTHS: usize = 6;
/// Buckets whose entries move at each insertion and removal.
const BUCKETS_A_STEP: usize = 2;
const MOVED_MAX: usize = BUCKETS_A_STEP * SLOTS;

/// A [`Batched`] that doubles when it is three quarters full.
///
/// Insertions are refused only while the thread is still finding memory and the present table is
/// full, or if there is no memory.
pub struct Growing<K> {
    table: Batched<K>,
    /// Before the last growth's entries have all moved: their table, and the first bucket that has
    /// not been moved.
    old: Option<(Batched<K>, usize)>,
    growth: Growth,
    flows_max: usize,
    requests: Sender<Request<K>>,
    grown: Receiver<Result<Batched<K>, OutOfMemory>>,
}

enum Request<K> {
    Allocate(usize, Secret),
    Free(Batched<K>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Growth {
    /// Grows when it has this many entries.
    At(usize),
    Asked,
}

impl<K: FlowKey + 'static> Growing<K> {
    /// Makes a table for `flows` entries that grows to no more than `flows_max`.
    pub fn new(flows: usize, flows_max: usize, secret: Secret) -> Result<Self, OutOfMemory> {
        let table = Batched::populated(flows, secret)?;
        let (requests, asked) = channel::<Request<K>>();
        let (answers, grown) = channel();
        // Ends when the table is dropped and with it the sender of requests.
        let work = move || {
            for request in asked {
                match request {
                    Request::Allocate(flows, secret) => {
                        if answers.send(Batched::populated(flows, secret)).is_err() {
                            break;
                        }
                    }
                    Request::Free(table) => drop(table),
                }
            }
        };
        std::thread::Builder::new()
            .name("flow-memory".into())
            .spawn(work)
            .map_err(|error| {
                let errno = rustix::io::Errno::from_io_error(&error);
                OutOfMemory {
                    bytes: table.bytes(),
                    errno: errno.unwrap_or(rustix::io::Errno::AGAIN),
                }
            })?;
        let growth = Growth::At(table.capacity() / 8 * GROW_AT_EIGHTHS);
        Ok(Growing {
            table,
            old: None,
            growth,
            flows_max,
            requests,
            grown,
        })
    }

    /// Returns whether entries are still to be moved out of a smaller table.
    pub fn is_moving(&self) -> bool {
        self.old.is_some()
    }

    /// Moves on with a growth, or begins one that is due.
    #[inline]
    fn step(&mut self) {
        match self.growth {
            Growth::At(len) if self.len() < len && self.old.is_none() => {}
            _ => self.step_growth(),
        }
    }

    #[cold]
    fn step_growth(&mut self) {
        if self.old.is_some() {
            self.move_buckets();
            return;
        }
        match self.growth {
            Growth::At(_) => self.ask(),
            Growth::Asked => match self.grown.try_recv() {
                Ok(Ok(larger)) => {
                    self.growth = Growth::At(larger.capacity() / 8 * GROW_AT_EIGHTHS);
                    self.old = Some((std::mem::replace(&mut self.table, larger), 0));
                }
                Ok(Err(OutOfMemory { .. })) => self.growth = Growth::At(self.later()),
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => self.growth = Growth::At(usize::MAX),
            },
        }
    }

    fn ask(&mut self) {
        let flows = self.table.capacity().saturating_mul(2).min(self.flows_max);
        let larger = flows > self.table.capacity();
        let request = Request::Allocate(flows, self.table.secret().clone());
        let asked = larger && self.requests.send(request).is_ok();
        self.growth = if asked {
            Growth::Asked
        } else {
            Growth::At(usize::MAX)
        };
    }

    /// Number of entries at which a growth that found no memory is tried again.
    fn later(&self) -> usize {
        self.len() + self.table.capacity() / 64 + 1
    }

    fn move_buckets(&mut self) {
        let Some((old, moved)) = &mut self.old else {
            return;
        };
        let end = old.buckets.len().min(*moved + BUCKETS_A_STEP);
        let mut keys = [*old.buckets[*moved].key(0); MOVED_MAX];
        let (mut values, mut places) = ([0; MOVED_MAX], [(0, 0); MOVED_MAX]);
        let mut count = 0;
        for index in *moved..end {
            let bucket = &old.buckets[index];
            for slot in bucket.used() {
                (keys[count], values[count]) = (*bucket.key(slot), bucket.value(slot));
                places[count] = (index, slot);
                count += 1;
            }
        }
        let mut answers = [Ok(()); MOVED_MAX];
        self.table
            .insert_stages(&keys[..count], &values[..count], &mut answers);
        for ((key, (index, slot)), answer) in keys.iter().zip(places).zip(&answers[..count]) {
            if answer.is_ok() {
                old.clear(index, slot, old.place(old.hash(key)));
            }
        }
        // Only if the larger table is full: the entries stay.
        if answers[..count].iter().any(Result::is_err) {
            return;
        }
        *moved = end;
        if *moved == old.buckets.len()
            && let Some((old, _)) = self.old.take()
        {
            // Only if the thread has died is the memory freed here.
            let _ = self.requests.send(Request::Free(old));
        }
    }

    fn old(&self) -> Option<&Batched<K>> {
        self.old.as_ref().map(|(old, _)| old)
    }
}

impl<K: FlowKey + 'static> FlowTable<K> for Growing<K> {
    type Handle = u64;

    fn with_capacity(flows: usize, secret: Secret) -> Result<Self, OutOfMemory> {
        Self::new(flows, u32::MAX as usize, secret)
    }

    #[inline]
    fn get(&self, key: &K) -> Option<u32> {
        let hash = self.table.hash(key);
        let found = self.table.get_hashed(key, hash);
        found.or_else(|| self.old()?.get_hashed(key, hash))
    }

    #[inline]
    fn insert(&mut self, key: K, value: u32) -> Result<(), Refused> {
        let hash = self.table.hash(&key);
        self.table.prefetch_both(hash);
        if let Some(old) = self.old() {
            old.prefetch_handle(hash);
        }
        self.step();
        if let Some(value) = self.old().and_then(|old| old.get_hashed(&key, hash)) {
            return Err(Refused::Present(value));
        }
        self.table.insert_hashed(key, value, hash)
    }

    #[inline]
    fn remove(&mut self, key: &K) -> Option<u32> {
        self.step();
        let hash = self.table.hash(key);
        let removed = self.table.remove_hashed(key, hash);
        removed.or_else(|| self.old.as_mut()?.0.remove_hashed(key, hash))
    }

    #[inline]
    fn handle(&self, key: &K) -> u64 {
        self.table.hash(key)
    }

    #[inline]
    fn remove_by(&mut self, hash: u64, value: u32) -> bool {
        self.step();
        self.table.remove_by(hash, value)
            || self
                .old
                .as_mut()
                .is_some_and(|(old, _)| old.remove_by(hash, value))
    }

    #[inline]
    fn len(&self) -> usize {
        self.table.len() + self.old().map_or(0, Batched::len)
    }

    fn capacity(&self) -> usize {
        self.table.capacity()
    }

    fn bytes(&self) -> usize {
        self.table.bytes() + self.old().map_or(0, Batched::bytes)
    }

    fn get_batch(&self, keys: &[K], values: &mut [u32]) {
        self.table.get_batch(keys, values);
        let Some(old) = self.old() else { return };
        let mut found = [NONE; BATCH_MAX];
        for (keys, values) in keys.chunks(BATCH_MAX).zip(values.chunks_mut(BATCH_MAX)) {
            old.get_batch(keys, &mut found);
            for (value, found) in values
                .iter_mut()
                .zip(found)
                .filter(|(value, _)| **value == NONE)
            {
                *value = found;
            }
        }
    }
}
