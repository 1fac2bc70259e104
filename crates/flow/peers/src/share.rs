//! One table that the trackers of several threads use, and the shared tables of other projects.

use outboard_flow::shared::{
    Concurrent, Hierarchical, LockFreeCuckoo, ReadWriteLocked, ReadWriteSpinlocked, SharedTable,
    Spinlocked,
};
use outboard_flow::tables::Cuckoo;
use outboard_flow::{FlowTable, NONE, OutOfMemory, Refused, Secret, V4};

/// Tables that want to know of their threads.
pub trait Threads {
    fn thread(&self, _begins: bool) {}
}

impl Threads for Concurrent<V4> {}
impl Threads for Hierarchical<V4> {}
impl Threads for LockFreeCuckoo<V4> {}
impl Threads for Spinlocked<Cuckoo<V4>> {}
impl Threads for ReadWriteLocked<Cuckoo<V4>> {}
impl Threads for ReadWriteSpinlocked<Cuckoo<V4>> {}

/// A shared table as one thread sees it: with numbers of its own, above `base` in the table.
pub struct Attached<'a, S> {
    pub table: &'a S,
    pub thread: usize,
    pub base: u32,
    pub flows: usize,
}

impl<S: SharedTable<V4>> Attached<'_, S> {
    fn own(&self, value: u32) -> u32 {
        value.wrapping_sub(self.base)
    }
}

impl<S: SharedTable<V4>> FlowTable<V4> for Attached<'_, S> {
    type Handle = V4;

    fn with_capacity(_: usize, _: Secret) -> Result<Self, OutOfMemory> {
        unreachable!("attached to a table that is there")
    }
    fn get(&self, key: &V4) -> Option<u32> {
        self.table
            .get(self.thread, key)
            .map(|value| self.own(value))
    }
    fn insert(&mut self, key: V4, value: u32) -> Result<(), Refused> {
        self.table
            .insert(self.thread, key, value + self.base)
            .map_err(|refused| match refused {
                Refused::Present(value) => Refused::Present(self.own(value)),
                Refused::Full => Refused::Full,
            })
    }
    fn remove(&mut self, key: &V4) -> Option<u32> {
        self.table
            .remove(self.thread, key)
            .map(|value| self.own(value))
    }
    fn handle(&self, key: &V4) -> V4 {
        *key
    }
    fn remove_by(&mut self, key: V4, value: u32) -> bool {
        self.table
            .remove_entry(self.thread, &key, value + self.base)
    }
    fn len(&self) -> usize {
        self.table.len()
    }
    fn capacity(&self) -> usize {
        self.flows
    }
    fn bytes(&self) -> usize {
        0
    }
    fn get_batch(&self, keys: &[V4], values: &mut [u32]) {
        self.table.get_batch(self.thread, keys, values);
        for value in values.iter_mut().filter(|value| **value != NONE) {
            *value = value.wrapping_sub(self.base);
        }
        self.table.quiescent(self.thread);
    }
    fn insert_over(
        &mut self,
        key: V4,
        value: u32,
        expired: impl Fn(u32) -> bool,
    ) -> Result<Option<u32>, Refused> {
        // A thread knows the states of its own connections only.
        let flows = self.flows as u32;
        let over = |value: u32| {
            let own = self.own(value);
            own <= flows && expired(own)
        };
        let result = self
            .table
            .insert_over(self.thread, key, value + self.base, over);
        result
            .map(|replaced| replaced.map(|value| self.own(value)))
            .map_err(|refused| match refused {
                Refused::Present(value) => Refused::Present(self.own(value)),
                Refused::Full => Refused::Full,
            })
    }
}

macro_rules! shared_maps {
    ($($wrap:ident: $map:ty, |$self_:ident, $key:ident, $value:ident|
        insert $insert:expr, get $get:expr, remove $remove:expr, len $len:expr);* $(;)?) => {
        $(pub struct $wrap($map, usize);

        impl Threads for $wrap {}

        impl SharedTable<V4> for $wrap {
            fn with_capacity(flows: usize, _: usize, _: Secret) -> Result<Self, OutOfMemory> {
                Ok($wrap(<$map>::with_capacity(flows), flows))
            }
            fn get(&self, _: usize, $key: &V4) -> Option<u32> {
                let $self_ = &self.0;
                $get
            }
            fn insert(&self, _: usize, $key: V4, $value: u32) -> Result<(), Refused> {
                let $self_ = &self.0;
                $insert.map_err(Refused::Present)
            }
            fn remove(&self, _: usize, $key: &V4) -> Option<u32> {
                let $self_ = &self.0;
                $remove
            }
            fn remove_entry(&self, _: usize, $key: &V4, _: u32) -> bool {
                let $self_ = &self.0;
                $remove.is_some()
            }
            fn len(&self) -> usize {
                let $self_ = &self.0;
                $len
            }
            fn capacity(&self) -> usize {
                self.1
            }
        })*
    };
}

shared_maps!(
    Papaya: papaya::HashMap<V4, u32>, |map, key, value|
        insert match map.pin().try_insert(key, value) {
            Ok(_) => Ok(()),
            Err(there) => Err(*there.current),
        },
        get map.pin().get(key).copied(),
        remove map.pin().remove(key).copied(),
        len map.len();
    Scc: scc::HashMap<V4, u32>, |map, key, value|
        insert match map.entry_sync(key) {
            scc::hash_map::Entry::Occupied(there) => Err(*there.get()),
            scc::hash_map::Entry::Vacant(free) => {
                free.insert_entry(value);
                Ok(())
            }
        },
        get map.read_sync(key, |_, value| *value),
        remove map.remove_sync(key).map(|(_, value)| value),
        len map.len();
    Dashmap: dashmap::DashMap<V4, u32>, |map, key, value|
        insert match map.entry(key) {
            dashmap::Entry::Occupied(there) => Err(*there.get()),
            dashmap::Entry::Vacant(free) => {
                free.insert(value);
                Ok(())
            }
        },
        get map.get(key).map(|value| *value),
        remove map.remove(key).map(|(_, value)| value),
        len map.len();
    Flurry: flurry::HashMap<V4, u32>, |map, key, value|
        insert match map.pin().try_insert(key, value) {
            Ok(_) => Ok(()),
            Err(there) => Err(*there.current),
        },
        get map.pin().get(key).copied(),
        remove map.pin().remove(key).copied(),
        len map.len();
);
