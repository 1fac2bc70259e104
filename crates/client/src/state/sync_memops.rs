//! Allocations whose `SYNC_MEMOPS` the program has set.

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

/// Allocations whose `SYNC_MEMOPS` is set, by number, with an address in each. Numbers are never
/// reused.
#[derive(Default)]
pub(crate) struct SyncMemops(Mutex<FxHashMap<u64, u64>>);

impl SyncMemops {
    /// Number of entries above which those of freed allocations are removed.
    const KEPT_MIN: usize = 1024;

    pub(crate) fn contains(&self, number: u64) -> bool {
        self.0.lock().contains_key(&number)
    }

    /// Sets or clears the attribute. `is_alive` tells whether an address is still in the
    /// allocation of this number.
    pub(crate) fn set(
        &self,
        number: u64,
        address: u64,
        on: bool,
        is_alive: impl Fn(u64, u64) -> bool,
    ) {
        let mut kept = self.0.lock();
        if !on {
            kept.remove(&number);
            return;
        }
        if kept.len() >= Self::KEPT_MIN && kept.len().is_power_of_two() {
            kept.retain(|number, address| is_alive(*number, *address));
        }
        kept.insert(number, address);
    }
}
