//! Memory whose size a peer chooses: counted before it is taken. Without room for it a connection
//! ends, and not the process.

use parking_lot::Mutex;

use crate::error::Error;

/// Memory of a connection for the data of frames that is kept from one to the next.
pub(crate) const KEPT_BYTES: usize = 1 << 20;
/// Bytes from which on there must be room for all of them. Less may be had from the first half of
/// the budget's margin, so that short messages go on in a session that has used up its budget.
const LARGE_BYTES: usize = 64 << 10;

/// One thread at a time asks and takes, so that no other takes the same room.
static TAKING: Mutex<()> = Mutex::new(());

/// Makes room for `more` bytes, or fails if this process's share of its machine's memory has none.
pub(crate) fn make(of: &mut Vec<u8>, more: usize) -> Result<(), Error> {
    if of.capacity() - of.len() >= more {
        return Ok(());
    }
    // A vector that grows has both its memories for a moment.
    let taken = within(of.len() + more, || of.try_reserve_exact(more));
    taken?.map_err(|_| none())
}

/// Takes memory of `bytes` bytes, or fails if there is no room for it.
pub(crate) fn within<T>(bytes: usize, take: impl FnOnce() -> T) -> Result<T, Error> {
    if bytes < LARGE_BYTES {
        outboard_budget::check_light().map_err(|_| none())?;
        return Ok(take());
    }
    let _taking = TAKING.lock();
    outboard_budget::reserve(bytes as u64).map_err(|_| none())?;
    Ok(take())
}

fn none() -> Error {
    Error::Peer("more than there is memory for")
}
