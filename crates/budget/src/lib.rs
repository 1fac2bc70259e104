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
//!
//! Sessions of one tenant, and all of a server, may have a share together ([`join`]). Each then
//! holds a lease, which it has taken from the [`ledger`], and which follows its use in steps of
//! [`LEASE_STEP_BYTES`].

mod allocator;
pub mod ledger;

use std::sync::{
    OnceLock,
    atomic::{AtomicU64, Ordering},
};

pub use allocator::CountingAllocator;
use ledger::{Account, Resource, Short};

/// Memory above the budget that the heap may take before the process ends, in bytes.
pub const MARGIN_BYTES: u64 = 64 << 20;
/// Fraction of the budget, in percent, from which on a session waits for its GPU rather than take
/// more work.
const TIGHT_PERCENT: u64 = 75;
/// Bytes by which a lease grows and shrinks, and what it may keep unused.
pub const LEASE_STEP_BYTES: u64 = 1 << 20;
const LEASE_UNUSED_BYTES_MAX: u64 = 4 * LEASE_STEP_BYTES;
/// Use from which on a session may be asked to wait because a share of several sessions is tight.
const TIGHT_BYTES_MIN: u64 = 16 << 20;
const NONE: u64 = u64::MAX;

static USED_BYTES: AtomicU64 = AtomicU64::new(0);
static BUDGET_BYTES: AtomicU64 = AtomicU64::new(NONE);
/// Bytes that this process has taken from its shares; without any it has no bound.
static LEASE_BYTES: AtomicU64 = AtomicU64::new(NONE);
static ACCOUNT: OnceLock<Account> = OnceLock::new();
static REFUSED: AtomicU64 = AtomicU64::new(0);

/// The memory does not suffice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Exhausted {
    #[error(
        "this program's use of the server's own memory would be {} MiB, and it may use {} MiB (outboard serve \
         --host-memory)", .wanted_bytes.div_ceil(1 << 20), .budget_bytes >> 20
    )]
    Budget {
        wanted_bytes: u64,
        budget_bytes: u64,
    },
    #[error("this program's use of the server's own memory would be {} MiB, and {short}", .wanted_bytes.div_ceil(1 << 20))]
    Share { wanted_bytes: u64, short: Short },
}

/// Sets the budget of this process, in bytes.
pub fn set(bytes: u64) {
    BUDGET_BYTES.store(bytes, Ordering::Relaxed);
}

/// Returns the bytes that are used.
pub fn used() -> u64 {
    USED_BYTES.load(Ordering::Relaxed)
}

/// Makes this process one of several that have a share together. What it uses already is counted,
/// even if there is no room for it. Works once.
pub fn join(account: Account) {
    if account.share(Resource::Host).is_none() {
        return;
    }
    let lease = round_up(used());
    account.force(Resource::Host, lease);
    if ACCOUNT.set(account).is_ok() {
        LEASE_BYTES.store(lease, Ordering::Relaxed);
    }
}

/// Returns how often memory was refused.
pub fn refused() -> u64 {
    REFUSED.load(Ordering::Relaxed)
}

/// Counts memory that was refused elsewhere, such as a device's.
pub fn count_refused() {
    REFUSED.fetch_add(1, Ordering::Relaxed);
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
    if wanted_bytes > budget_bytes.saturating_add(MARGIN_BYTES / 2) {
        return Err(over(wanted_bytes, budget_bytes));
    }
    match wanted_bytes.saturating_sub(MARGIN_BYTES / 2) {
        0 => Ok(()),
        wanted_bytes => lease(wanted_bytes),
    }
}

/// Fails if the budget has no room for so many more bytes. Nothing is taken: the heap counts them
/// once they are allocated.
#[inline]
pub fn reserve(bytes: u64) -> Result<(), Exhausted> {
    let budget_bytes = BUDGET_BYTES.load(Ordering::Relaxed);
    let wanted_bytes = used().saturating_add(bytes);
    match wanted_bytes <= budget_bytes {
        true => lease(wanted_bytes),
        false => Err(over(wanted_bytes, budget_bytes)),
    }
}

/// Fails if the budget has no room for so many bytes even when nothing is used.
pub fn reserve_alone(bytes: u64) -> Result<(), Exhausted> {
    let budget_bytes = BUDGET_BYTES.load(Ordering::Relaxed);
    match bytes <= budget_bytes {
        true => Ok(()),
        false => Err(over(bytes, budget_bytes)),
    }
}

/// Whether so little is left that work should be waited for before more is taken.
#[inline]
pub fn is_tight() -> bool {
    let budget_bytes = BUDGET_BYTES.load(Ordering::Relaxed);
    let used_bytes = used();
    if budget_bytes != NONE && used_bytes > budget_bytes / 100 * TIGHT_PERCENT {
        return true;
    }
    used_bytes > TIGHT_BYTES_MIN
        && ACCOUNT
            .get()
            .is_some_and(|account| account.is_tight(Resource::Host))
}

/// Gives back what the lease has beyond the use, so that other sessions of the share can take it.
#[inline]
pub fn settle() {
    let lease = LEASE_BYTES.load(Ordering::Relaxed);
    if lease != NONE && lease > used().saturating_add(LEASE_UNUSED_BYTES_MAX) {
        shrink();
    }
}

#[cold]
fn shrink() {
    let Some(account) = ACCOUNT.get() else {
        return;
    };
    let kept = round_up(used());
    let before = LEASE_BYTES.fetch_min(kept, Ordering::Relaxed);
    account.give(Resource::Host, before.saturating_sub(kept));
}

/// Makes the lease reach so far, if this process has one.
#[inline]
fn lease(wanted_bytes: u64) -> Result<(), Exhausted> {
    match wanted_bytes <= LEASE_BYTES.load(Ordering::Relaxed) {
        true => Ok(()),
        false => grow(wanted_bytes),
    }
}

/// Takes what the lease lacks from the shares. Allocates nothing: the allocator calls it.
#[cold]
fn grow(wanted_bytes: u64) -> Result<(), Exhausted> {
    let Some(account) = ACCOUNT.get() else {
        return Ok(());
    };
    let lacks = wanted_bytes.saturating_sub(LEASE_BYTES.load(Ordering::Relaxed));
    // The last of a share may be less than a step.
    let step = lacks
        .checked_next_multiple_of(LEASE_STEP_BYTES)
        .unwrap_or(lacks);
    let taken = account
        .take(Resource::Host, step)
        .map(|()| step)
        .or_else(|_| account.take(Resource::Host, lacks).map(|()| lacks));
    match taken {
        Ok(bytes) => {
            // Two threads may grow it at once; what is too much is given back later.
            LEASE_BYTES.fetch_add(bytes, Ordering::Relaxed);
            Ok(())
        }
        Err(short) => {
            count_refused();
            Err(Exhausted::Share {
                wanted_bytes,
                short,
            })
        }
    }
}

fn round_up(bytes: u64) -> u64 {
    bytes
        .checked_next_multiple_of(LEASE_STEP_BYTES)
        .unwrap_or(bytes)
}

#[cold]
fn over(wanted_bytes: u64, budget_bytes: u64) -> Exhausted {
    count_refused();
    Exhausted::Budget {
        wanted_bytes,
        budget_bytes,
    }
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
        let charge = match taken {
            Ok(_) => Charge { bytes },
            Err(used) => return Err(over(used.saturating_add(bytes), budget_bytes)),
        };
        // Dropped, it gives the bytes back.
        lease(used()).map(|()| charge)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        USED_BYTES.fetch_sub(self.bytes, Ordering::Relaxed);
        settle();
    }
}
