//! Accesses to memory: checks of addresses, loads and stores, atomics, barriers in shared memory,
//! textures.

pub(crate) mod access;
pub(crate) mod atomic;
pub(crate) mod mbarrier;
pub(crate) mod texture;
pub(crate) mod vector;
