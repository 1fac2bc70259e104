//! Number of cores that this process may use, read once, and whether they are few; and how soon a
//! thread gets one.

use std::{io, sync::OnceLock, thread, time::Duration};

use crate::sys;

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

/// Slice of a thread that serves a client: the least that Linux takes.
const PROMPT_SLICE: Duration = Duration::from_micros(100);

/// Lets the calling thread, and those that it starts, run soon after they wake, although other
/// threads occupy all cores. It gets no more of a core than they: a thread with a shorter slice
/// runs sooner and is preempted sooner (Linux 6.12).
pub fn wake_promptly() -> io::Result<()> {
    sys::set_slice(PROMPT_SLICE)
}
