//! The host memory that one worker may use for its client.
//!
//! Everything on the heap counts, by [`CountingAllocator`]; memory that is mapped or pinned counts
//! by a [`Charge`]. Device memory has a quota of its own, and memory that the client shares with
//! the worker is the client's.
//!
//! A request that would take much asks first ([`reserve`], [`Charge::take`]), and above the budget
//! ([`check`]) requests that need memory are refused, until others have given some back. What slips
//! through, because one request needed more than it could know, ends the worker at
//! [`MARGIN_BYTES`] above the budget: other clients of the machine lose nothing.
//!
//! A process without a budget, such as the client's, only counts.

mod allocator;

use std::sync::atomic::{AtomicU64, Ordering};

pub use allocator::CountingAllocator;

/// Memory above the budget that the heap may take before the process ends, in bytes.
pub const MARGIN_BYTES: u64 = 64 << 20;
/// Fraction of the budget, in percent, from which on a session waits for its GPU rather than take
/// more work.
const TIGHT_PERCENT: u64 = 75;
const NONE: u64 = u64::MAX;

static USED_BYTES: AtomicU64 = AtomicU64::new(0);
static BUDGET_BYTES: AtomicU64 = AtomicU64::new(NONE);

/// The budget does not suffice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "this program's use of the server's own memory would be {} MiB, and it may use {} MiB (outboard serve \
     --host-memory)", .wanted_bytes.div_ceil(1 << 20), .budget_bytes >> 20
)]
pub struct Exhausted {
    pub wanted_bytes: u64,
    pub budget_bytes: u64,
}

/// Sets the budget of this process, in bytes.
pub fn set(bytes: u64) {
    BUDGET_BYTES.store(bytes, Ordering::Relaxed);
}

/// Returns the bytes that are used.
pub fn used() -> u64 {
    USED_BYTES.load(Ordering::Relaxed)
}

/// Fails if the budget is used up.
#[inline]
pub fn check() -> Result<(), Exhausted> {
    reserve(0)
}

/// Fails if the budget is passed by half of its margin: for requests that take little, and that
/// other work may wait for.
#[inline]
pub fn check_light() -> Result<(), Exhausted> {
    let wanted_bytes = used();
    let budget_bytes = BUDGET_BYTES.load(Ordering::Relaxed);
    match wanted_bytes <= budget_bytes.saturating_add(MARGIN_BYTES / 2) {
        true => Ok(()),
        false => Err(Exhausted {
            wanted_bytes,
            budget_bytes,
        }),
    }
}

/// Fails if the budget has no room for so many more bytes. Nothing is taken: the heap counts them
/// once they are allocated.
#[inline]
pub fn reserve(bytes: u64) -> Result<(), Exhausted> {
    let budget_bytes = BUDGET_BYTES.load(Ordering::Relaxed);
    let wanted_bytes = used().saturating_add(bytes);
    match wanted_bytes <= budget_bytes {
        true => Ok(()),
        false => Err(Exhausted {
            wanted_bytes,
            budget_bytes,
        }),
    }
}

/// Whether so little is left that work should be waited for before more is taken.
#[inline]
pub fn is_tight() -> bool {
    let budget_bytes = BUDGET_BYTES.load(Ordering::Relaxed);
    budget_bytes != NONE && used() > budget_bytes / 100 * TIGHT_PERCENT
}

/// Memory outside the heap that counts until this is dropped.
#[derive(Debug)]
pub struct Charge {
    bytes: u64,
}

impl Charge {
    /// Takes the bytes from the budget, or fails if it has no room for them.
    pub fn take(bytes: u64) -> Result<Charge, Exhausted> {
        let budget_bytes = BUDGET_BYTES.load(Ordering::Relaxed);
        let taken = USED_BYTES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(bytes).filter(|sum| *sum <= budget_bytes)
        });
        match taken {
            Ok(_) => Ok(Charge { bytes }),
            Err(used) => Err(Exhausted {
                wanted_bytes: used.saturating_add(bytes),
                budget_bytes,
            }),
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        USED_BYTES.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
