//! Number of cores that this process may use, read once, and whether they are few.

use std::{sync::OnceLock, thread};

/// With this many cores or fewer a thread that waits busily takes the core that its peer needs.
const FEW: usize = 2;

/// Returns the number of cores; 1 if the system does not say.
#[inline]
pub fn count() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| thread::available_parallelism().map_or(1, |cores| cores.get()))
}

/// Returns true if a waiting thread should yield its core instead of spinning.
#[inline]
pub fn are_few() -> bool {
    count() <= FEW
}
