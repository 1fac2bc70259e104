//! Doorbells of this process's queues: who has rung one while the adapter sleeps, wakes it by it.

use std::{collections::BTreeMap, fmt, sync::Arc};

use parking_lot::Mutex;

/// A thread that may be asleep.
pub(crate) trait Rouse: fmt::Debug + Send + Sync {
    /// Wakes it.
    fn rouse(&self);
}

/// Adapters by the addresses of their doorbells.
static BELLS: Mutex<BTreeMap<u64, Arc<dyn Rouse>>> = Mutex::new(BTreeMap::new());

/// A doorbell that wakes its adapter until this is dropped.
#[derive(Debug)]
pub(crate) struct Bell(u64);

impl Bell {
    pub(crate) fn hang(doorbell: u64, adapter: impl Rouse + 'static) -> Bell {
        BELLS.lock().insert(doorbell, Arc::new(adapter));
        Bell(doorbell)
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        let adapter = BELLS.lock().remove(&self.0);
        drop(adapter);
    }
}

/// Wakes the adapter of a doorbell. Other addresses wake nobody.
pub fn rouse(doorbell: u64) {
    let adapter = BELLS.lock().get(&doorbell).cloned();
    if let Some(adapter) = adapter {
        adapter.rouse();
    }
}
