//! This process's memory whose amount a kernel decides: registers, stacks, shared memory. The
//! budget is asked before it is taken, so a kernel that needs too much fails alone.

use outboard_budget::{Exhausted, reserve};
use parking_lot::Mutex;

/// Held from the question to the allocation: threads that ask at once would be granted the same
/// bytes.
static TAKING: Mutex<()> = Mutex::new(());

/// Runs `make`, which allocates `bytes`, if the budget has room for them.
pub(crate) fn take<T>(bytes: u64, make: impl FnOnce() -> T) -> Result<T, Exhausted> {
    let _taking = TAKING.lock();
    reserve(bytes)?;
    Ok(make())
}

/// Makes `items` at least `len` long.
#[inline]
pub(crate) fn lengthen<T: Copy>(
    items: &mut Vec<T>,
    len: usize,
    filling: T,
) -> Result<(), Exhausted> {
    if items.len() >= len {
        return Ok(());
    }
    let grown = match len > items.capacity() {
        true => len.max(2 * items.capacity()) as u64,
        false => 0,
    };
    take(grown * size_of::<T>() as u64, || items.resize(len, filling))
}
