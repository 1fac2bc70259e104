//! Tables of C and C++, through `cpp/peers.cpp`.

use crate::keys::K16;
use outboard_flow::shared::SharedTable;
use outboard_flow::{BATCH_MAX, FlowTable, NONE, OutOfMemory, Refused, Secret, V4};
use std::ffi::{c_char, c_int, c_void};

unsafe extern "C" {
    fn peers_start(megabytes: *const c_char) -> c_int;
    fn peers_new(kind: c_int, capacity: usize) -> *mut c_void;
    fn peers_free(table: *mut c_void);
    fn peers_insert(table: *mut c_void, key: *const K16, value: *mut u32) -> c_int;
    fn peers_remove(table: *mut c_void, key: *const K16) -> bool;
    fn peers_each(table: *mut c_void, keys: *const K16, count: usize, values: *mut u32);
    fn peers_batch(table: *mut c_void, keys: *const K16, count: usize, values: *mut u32);
    fn peers_size(table: *mut c_void) -> usize;
    fn peers_quiescent(table: *mut c_void);
    fn peers_thread(table: *mut c_void, begins: bool);
}

pub const RTE: i32 = 0;
pub const RTE_LOCK_FREE: i32 = 1;
pub const RTE_LOCKED: i32 = 2;
pub const ROBIN: i32 = 3;
pub const HOPSCOTCH: i32 = 4;
pub const ABSEIL: i32 = 5;
pub const STD: i32 = 6;
pub const LIBCUCKOO: i32 = 7;
pub const TBB: i32 = 8;
pub const URCU: i32 = 9;

/// Starts DPDK with this much memory, once.
pub fn start(megabytes: &std::ffi::CStr) -> bool {
    // SAFETY: a string that ends in zero, read before the call returns.
    unsafe { peers_start(megabytes.as_ptr()) == 0 }
}

/// A table of kind `KIND`.
pub struct Foreign<const KIND: i32> {
    table: *mut c_void,
    capacity: usize,
}

// SAFETY: a table is used by one thread at a time, or is made for several.
unsafe impl<const KIND: i32> Send for Foreign<KIND> {}
// SAFETY: only kinds that are made for several threads are shared (main.rs).
unsafe impl<const KIND: i32> Sync for Foreign<KIND> {}

impl<const KIND: i32> Drop for Foreign<KIND> {
    fn drop(&mut self) {
        // SAFETY: made by peers_new, and freed once.
        unsafe { peers_free(self.table) };
    }
}

impl<const KIND: i32> Foreign<KIND> {
    pub fn make(capacity: usize) -> Self {
        // SAFETY: the kinds are those that peers.cpp knows.
        let table = unsafe { peers_new(KIND, capacity) };
        assert!(!table.is_null());
        Foreign { table, capacity }
    }

    pub fn put(&self, key: &K16, mut value: u32) -> Result<(), Refused> {
        // SAFETY: key and number outlive the call.
        match unsafe { peers_insert(self.table, key, &mut value) } {
            0 => Ok(()),
            1 => Err(Refused::Present(value)),
            _ => Err(Refused::Full),
        }
    }

    pub fn each(&self, keys: &[K16], values: &mut [u32]) {
        let count = keys.len().min(values.len());
        // SAFETY: both slices have `count` elements.
        unsafe { peers_each(self.table, keys.as_ptr(), count, values.as_mut_ptr()) };
    }

    pub fn batch(&self, keys: &[K16], values: &mut [u32]) {
        let count = keys.len().min(values.len());
        // SAFETY: both slices have `count` elements.
        unsafe { peers_batch(self.table, keys.as_ptr(), count, values.as_mut_ptr()) };
    }

    fn batch_v4(&self, keys: &[V4], values: &mut [u32]) {
        for (keys, values) in keys.chunks(BATCH_MAX).zip(values.chunks_mut(BATCH_MAX)) {
            let mut wide = [K16::default(); BATCH_MAX];
            for (key, wide) in keys.iter().zip(&mut wide) {
                *wide = K16::from(key);
            }
            self.batch(&wide[..keys.len()], values);
        }
    }

    fn take(&self, key: &V4) -> bool {
        // SAFETY: the key outlives the call.
        unsafe { peers_remove(self.table, &K16::from(key)) }
    }

    fn find(&self, key: &V4) -> Option<u32> {
        let mut value = [NONE];
        self.each(&[K16::from(key)], &mut value);
        Some(value[0]).filter(|value| *value != NONE)
    }
}

impl<const KIND: i32> FlowTable<V4> for Foreign<KIND> {
    type Handle = V4;

    fn with_capacity(flows: usize, _: Secret) -> Result<Self, OutOfMemory> {
        Ok(Self::make(flows))
    }
    fn get(&self, key: &V4) -> Option<u32> {
        self.find(key)
    }
    fn insert(&mut self, key: V4, value: u32) -> Result<(), Refused> {
        self.put(&K16::from(&key), value)
    }
    fn remove(&mut self, key: &V4) -> Option<u32> {
        let found = self.find(key)?;
        self.take(key).then_some(found)
    }
    fn handle(&self, key: &V4) -> V4 {
        *key
    }
    fn remove_by(&mut self, key: V4, _: u32) -> bool {
        self.take(&key)
    }
    fn len(&self) -> usize {
        // SAFETY: the table lives.
        unsafe { peers_size(self.table) }
    }
    fn capacity(&self) -> usize {
        self.capacity
    }
    fn bytes(&self) -> usize {
        0
    }
    fn get_batch(&self, keys: &[V4], values: &mut [u32]) {
        self.batch_v4(keys, values);
    }
}

impl<const KIND: i32> SharedTable<V4> for Foreign<KIND> {
    fn with_capacity(flows: usize, _: usize, _: Secret) -> Result<Self, OutOfMemory> {
        Ok(Self::make(flows))
    }
    fn get(&self, _: usize, key: &V4) -> Option<u32> {
        self.find(key)
    }
    fn insert(&self, _: usize, key: V4, value: u32) -> Result<(), Refused> {
        self.put(&K16::from(&key), value)
    }
    fn remove(&self, _: usize, key: &V4) -> Option<u32> {
        let found = self.find(key)?;
        self.take(key).then_some(found)
    }
    fn remove_entry(&self, _: usize, key: &V4, _: u32) -> bool {
        self.take(key)
    }
    fn len(&self) -> usize {
        FlowTable::len(self)
    }
    fn capacity(&self) -> usize {
        self.capacity
    }
    fn get_batch(&self, _: usize, keys: &[V4], values: &mut [u32]) {
        self.batch_v4(keys, values);
    }
    fn quiescent(&self, _: usize) {
        // SAFETY: the table lives; the thread is registered (`Foreign::thread`).
        unsafe { peers_quiescent(self.table) };
    }
}

impl<const KIND: i32> crate::share::Threads for Foreign<KIND> {
    fn thread(&self, begins: bool) {
        // SAFETY: the table lives.
        unsafe { peers_thread(self.table, begins) };
    }
}
