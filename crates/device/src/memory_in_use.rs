//! Device memory that a session has allocated, for other threads of its process.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicU64, Ordering},
};

use outboard_api::CUresult;
use outboard_budget::ledger::{Account, Resource};

use crate::Failure;

/// Bytes allocated now, by device. Copies share the numbers.
#[derive(Debug, Clone)]
pub struct MemoryInUse(Arc<Numbers>);

#[derive(Debug)]
struct Numbers {
    by_device: Box<[AtomicU64]>,
    /// The shares that the memory is taken from, if the session has some with others.
    account: OnceLock<Account>,
}

/// Bytes that count as in use until this is dropped.
#[derive(Debug)]
pub struct Charge {
    of: MemoryInUse,
    device: usize,
    bytes: u64,
}

impl MemoryInUse {
    pub fn new(devices: usize) -> MemoryInUse {
        MemoryInUse(Arc::new(Numbers {
            by_device: (0..devices).map(|_| AtomicU64::new(0)).collect(),
            account: OnceLock::new(),
        }))
    }

    /// Takes memory from these shares from now on. Works once.
    pub fn join(&self, account: Account) {
        for (device, bytes) in self.read().into_iter().enumerate() {
            account.force(Resource::Device(device), bytes);
        }
        // The memory of a device that waited for its client is the first client's.
        let _ = self.0.account.set(account);
    }

    /// Adds bytes, or fails if a share has no room for them.
    pub fn add(&self, device: usize, bytes: u64) -> Result<(), Failure> {
        if let Some(account) = self.0.account.get() {
            let taken = account.take(Resource::Device(device), bytes);
            taken.map_err(|short| {
                outboard_budget::count_refused();
                let text = format!("{bytes} bytes of device memory wanted: {short}");
                Failure::new(CUresult::CUDA_ERROR_OUT_OF_MEMORY, text)
            })?;
        }
        if let Some(sum) = self.0.by_device.get(device) {
            sum.fetch_add(bytes, Ordering::Relaxed);
        }
        Ok(())
    }

    pub fn remove(&self, device: usize, bytes: u64) {
        if let Some(sum) = self.0.by_device.get(device) {
            sum.fetch_sub(bytes, Ordering::Relaxed);
        }
        if let Some(account) = self.0.account.get() {
            account.give(Resource::Device(device), bytes);
        }
    }

    /// Adds bytes, and removes them when the result is dropped.
    pub fn charge(&self, device: usize, bytes: u64) -> Result<Charge, Failure> {
        self.add(device, bytes)?;
        Ok(Charge {
            of: self.clone(),
            device,
            bytes,
        })
    }

    pub fn read(&self) -> Vec<u64> {
        let read = |sum: &AtomicU64| sum.load(Ordering::Relaxed);
        self.0.by_device.iter().map(read).collect()
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.of.remove(self.device, self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use outboard_budget::ledger::{Ledger, Share};

    use super::*;

    #[test]
    fn a_charge_lasts_until_it_is_dropped() {
        let memory = MemoryInUse::new(2);
        let first = memory.charge(0, 3).unwrap();
        let second = memory.charge(1, 5).unwrap();
        memory.charge(7, 9).unwrap();
        assert_eq!(memory.read(), [3, 5]);
        drop(first);
        assert_eq!(memory.read(), [0, 5]);
        drop(second);
        assert_eq!(memory.read(), [0, 0]);
    }

    #[test]
    fn sessions_of_a_tenant_have_a_share_of_each_device() {
        let (ledger, fd) = Ledger::create(2).unwrap();
        let rows = [3, 3].map(|tenant| ledger.begin(tenant).unwrap());
        let share = Share {
            device_bytes: Some(10),
            ..Share::default()
        };
        let [one, other] = rows.map(|row| {
            let memory = MemoryInUse::new(2);
            let ledger = Ledger::open(fd.try_clone().unwrap()).unwrap();
            memory.join(Account::new(ledger, row, share, Share::default()));
            memory
        });
        let held = one.charge(0, 8).unwrap();
        let refused = other.charge(0, 3).unwrap_err();
        assert_eq!(refused.status, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        assert!(refused.message.contains("--share"), "{refused}");
        assert_eq!(other.read(), [0, 0]);
        let elsewhere = other.charge(1, 10).unwrap();
        drop((held, elsewhere));
        other.add(0, 10).unwrap();
    }
}
