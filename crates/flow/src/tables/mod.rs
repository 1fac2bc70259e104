//! The six tables that the literature compares for tracking connections, with the parameters of
//! that comparison (thesis 2024, section 6.3.2): a reference to measure against, and to test
//! against.
//!
//! Each takes the keyed hash of this crate instead of an unkeyed CRC, stores a number of 32 bits,
//! and has a fixed capacity.

mod chained;
mod cuckoo;
mod cuckoo_bloom;
mod hopscotch;
mod robin;
mod standard;

pub use chained::Chained;
pub use cuckoo::Cuckoo;
pub use cuckoo_bloom::CuckooBloom;
pub use hopscotch::Hopscotch;
pub use robin::Robin;
pub use standard::Standard;

/// Defines the handle of a table that removes an entry by its key.
macro_rules! key_is_handle {
    ($key:ident) => {
        type Handle = $key;

        #[inline]
        fn handle(&self, key: &$key) -> $key {
            *key
        }

        #[inline]
        fn remove_by(&mut self, key: $key, value: u32) -> bool {
            self.get(&key) == Some(value) && self.remove(&key).is_some()
        }
    };
}
use key_is_handle;
