//! One table behind one lock.

use super::SharedTable;
use super::sync::Backoff;
use crate::{FlowKey, FlowTable, OutOfMemory, Refused, Secret};
use std::sync::{
    Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError,
};

/// A table behind a lock that a waiting thread asks for again and again.
pub struct Spinlocked<T>(Mutex<T>);

/// A table behind a lock for many lookups or one change; a waiting thread sleeps.
pub struct ReadWriteLocked<T>(RwLock<T>);

/// A table behind a lock for many lookups or one change, for which a waiting thread spins.
pub struct ReadWriteSpinlocked<T>(RwLock<T>);

/// Access to a table for lookups and for changes.
trait Access<T> {
    type Read<'a>: std::ops::Deref<Target = T>
    where
        Self: 'a;
    type Write<'a>: std::ops::DerefMut<Target = T>
    where
        Self: 'a;

    fn of(table: T) -> Self;
    fn read(&self) -> Self::Read<'_>;
    fn write(&self) -> Self::Write<'_>;
}

/// Repeats an attempt until it gets the lock. A table whose thread panicked is whole: tables do not
/// panic within a change.
#[inline]
fn spin<G>(attempt: impl Fn() -> Result<G, TryLockError<G>>) -> G {
    let mut backoff = Backoff::default();
    loop {
        match attempt() {
            Ok(guard) => return guard,
            Err(TryLockError::Poisoned(error)) => return error.into_inner(),
            Err(TryLockError::WouldBlock) => backoff.wait(),
        }
    }
}

impl<T> Access<T> for Spinlocked<T> {
    type Read<'a>
        = MutexGuard<'a, T>
    where
        T: 'a;
    type Write<'a>
        = MutexGuard<'a, T>
    where
        T: 'a;

    fn of(table: T) -> Self {
        Spinlocked(Mutex::new(table))
    }

    #[inline]
    fn read(&self) -> MutexGuard<'_, T> {
        spin(|| self.0.try_lock())
    }

    #[inline]
    fn write(&self) -> MutexGuard<'_, T> {
        spin(|| self.0.try_lock())
    }
}

impl<T> Access<T> for ReadWriteLocked<T> {
    type Read<'a>
        = RwLockReadGuard<'a, T>
    where
        T: 'a;
    type Write<'a>
        = RwLockWriteGuard<'a, T>
    where
        T: 'a;

    fn of(table: T) -> Self {
        ReadWriteLocked(RwLock::new(table))
    }

    #[inline]
    fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Access<T> for ReadWriteSpinlocked<T> {
    type Read<'a>
        = RwLockReadGuard<'a, T>
    where
        T: 'a;
    type Write<'a>
        = RwLockWriteGuard<'a, T>
    where
        T: 'a;

    fn of(table: T) -> Self {
        ReadWriteSpinlocked(RwLock::new(table))
    }

    #[inline]
    fn read(&self) -> RwLockReadGuard<'_, T> {
        spin(|| self.0.try_read())
    }

    #[inline]
    fn write(&self) -> RwLockWriteGuard<'_, T> {
        spin(|| self.0.try_write())
    }
}

macro_rules! shared_by_lock {
    ($($lock:ident: $sync:path),*) => {
        $(impl<K: FlowKey, T: FlowTable<K> + $sync> SharedTable<K> for $lock<T> {
            fn with_capacity(
                flows: usize,
                _threads: usize,
                secret: Secret,
            ) -> Result<Self, OutOfMemory> {
                Ok(Access::of(T::with_capacity(flows, secret)?))
            }

            #[inline]
            fn get(&self, _thread: usize, key: &K) -> Option<u32> {
                self.read().get(key)
            }

            #[inline]
            fn insert(&self, _thread: usize, key: K, value: u32) -> Result<(), Refused> {
                self.write().insert(key, value)
            }

            #[inline]
            fn remove(&self, _thread: usize, key: &K) -> Option<u32> {
                self.write().remove(key)
            }

            #[inline]
            fn remove_entry(&self, _thread: usize, key: &K, value: u32) -> bool {
                let mut table = self.write();
                let handle = table.handle(key);
                table.get(key) == Some(value) && table.remove_by(handle, value)
            }

            fn len(&self) -> usize {
                self.read().len()
            }

            fn capacity(&self) -> usize {
                self.read().capacity()
            }
        })*
    };
}

/// A table that a mutex may share: it goes from thread to thread.
trait Mutable: Send {}
impl<T: Send> Mutable for T {}

/// A table that several threads may read.
trait Readable: Send + Sync {}
impl<T: Send + Sync> Readable for T {}

shared_by_lock!(Spinlocked: Mutable, ReadWriteLocked: Readable, ReadWriteSpinlocked: Readable);
