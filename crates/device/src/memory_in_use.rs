//! Device memory that a session has allocated, for other threads of its process.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// Bytes allocated now, by device. Copies share the numbers.
#[derive(Debug, Clone)]
pub struct MemoryInUse(Arc<[AtomicU64]>);

/// Bytes that count as in use until this is dropped.
#[derive(Debug)]
pub struct Charge {
    of: MemoryInUse,
    device: usize,
    bytes: u64,
}

impl MemoryInUse {
    pub fn new(devices: usize) -> MemoryInUse {
        MemoryInUse((0..devices).map(|_| AtomicU64::new(0)).collect())
    }

    pub fn add(&self, device: usize, bytes: u64) {
        if let Some(sum) = self.0.get(device) {
            sum.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    pub fn remove(&self, device: usize, bytes: u64) {
        if let Some(sum) = self.0.get(device) {
            sum.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Adds bytes, and removes them when the result is dropped.
    pub fn charge(&self, device: usize, bytes: u64) -> Charge {
        self.add(device, bytes);
        Charge {
            of: self.clone(),
            device,
            bytes,
        }
    }

    pub fn read(&self) -> Vec<u64> {
        let read = |sum: &AtomicU64| sum.load(Ordering::Relaxed);
        self.0.iter().map(read).collect()
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.of.remove(self.device, self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_charge_lasts_until_it_is_dropped() {
        let memory = MemoryInUse::new(2);
        let first = memory.charge(0, 3);
        let second = memory.charge(1, 5);
        memory.charge(7, 9);
        assert_eq!(memory.read(), [3, 5]);
        drop(first);
        assert_eq!(memory.read(), [0, 5]);
        drop(second);
        assert_eq!(memory.read(), [0, 0]);
    }
}
