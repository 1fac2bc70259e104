//! A table for each thread.

use crate::{FlowKey, FlowTable, OutOfMemory, Secret};

/// As many tables as threads, each of which one thread owns.
///
/// A network adapter gives each queue the packets of some connections, so no thread looks for a
/// connection of another. [`Sharded::shard_of`] stands in for it in software: its hash has a
/// secret of its own, so that the keys of a shard still spread over the whole table.
pub struct Sharded<T> {
    tables: Vec<T>,
    secret: Secret,
}

impl<T> Sharded<T> {
    /// Makes tables that together hold `flows` entries.
    pub fn new<K: FlowKey>(
        flows: usize,
        shards: usize,
        secret: &Secret,
        adapter: Secret,
    ) -> Result<Self, OutOfMemory>
    where
        T: FlowTable<K>,
    {
        let each = flows.div_ceil(shards.max(1));
        let tables = (0..shards.max(1)).map(|_| T::with_capacity(each, secret.clone()));
        Ok(Sharded {
            tables: tables.collect::<Result<_, _>>()?,
            secret: adapter,
        })
    }

    /// Returns the number of the table to which a key belongs.
    #[inline]
    pub fn shard_of<K: FlowKey>(&self, key: &K) -> usize {
        let hash = key.keyed_hash(&self.secret);
        (((hash >> 32) * self.tables.len() as u64) >> 32) as usize
    }

    /// Gives out the tables, one to each thread.
    pub fn tables_mut(&mut self) -> &mut [T] {
        &mut self.tables
    }

    pub fn into_tables(self) -> Vec<T> {
        self.tables
    }
}
