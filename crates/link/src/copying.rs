//! Copies of long frames by several threads: one core copies fewer bytes than a fast network
//! carries.
//!
//! The pool is the process's. A thread that copies much offers pieces to the helpers and takes
//! pieces itself until none is left, so a helper that sleeps, or that a forked child does not have,
//! holds nothing up.

use std::{
    hint, ptr,
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use outboard_wire::limits::SPIN_NS_MAX;

use crate::cores;

/// Shortest copy that is shared.
const SHARED_BYTES_MIN: usize = 256 << 10;
/// Bytes that a thread takes at a time.
const PIECE_BYTES: usize = 64 << 10;
/// Helpers at most, and cores of the machine for each: most are left to others.
const HELPERS_MAX: usize = 3;
const CORES_A_HELPER: usize = 4;
/// Looks of a helper for work between two looks at the clock.
const LOOKS: u32 = 64;

static POOL: Pool = Pool::new();

/// Copies `len` bytes, with the process's helpers if they are many.
///
/// # Safety
///
/// As for [`ptr::copy_nonoverlapping`]; both ranges may be used by other threads of this process.
#[inline]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    if len < SHARED_BYTES_MIN {
        // SAFETY: this function's contract is that of the call.
        return unsafe { ptr::copy_nonoverlapping(from, to, len) };
    }
    // SAFETY: this function's contract is that of the call.
    unsafe { POOL.copy(from, to, len) };
}

/// A thread's part in the copies of long frames over emulated networks.
pub struct CopyHelper(());

impl CopyHelper {
    /// Returns the helpers that this process should have, the first time it is called.
    pub(crate) fn all() -> impl Iterator<Item = CopyHelper> {
        static ARE_TAKEN: AtomicBool = AtomicBool::new(false);
        let count = match ARE_TAKEN.swap(true, Ordering::Relaxed) {
            true => 0,
            false => (cores::count() / CORES_A_HELPER).min(HELPERS_MAX),
        };
        (0..count).map(|_| CopyHelper(()))
    }

    /// Copies for other threads, for as long as the process lives.
    pub fn run(self) {
        POOL.help(|| true);
    }
}

struct Pool {
    state: Mutex<State>,
    /// Signalled when a copy comes.
    came: Condvar,
    /// Number of copies that came.
    copies: AtomicU64,
}

/// Outcome for a copy that was to be shown to the helpers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Offer {
    /// They see it, until it is withdrawn.
    Shown,
    /// They see another copy.
    Busy,
    NoHelpers,
}

struct State {
    copy: Option<Shared>,
    helpers: usize,
    sleepers: usize,
}

/// A copy that its thread keeps alive until no helper is inside.
#[derive(Clone, Copy)]
struct Shared(*const Pieces);

// SAFETY: the pieces are atomics, and addresses of memory that any thread may use by the contract
// of `copy`.
unsafe impl Send for Shared {}

struct Pieces {
    from: *const u8,
    to: *mut u8,
    len: usize,
    /// Bytes that threads have taken.
    taken: AtomicUsize,
    /// Helpers that use it. They come only while it is shown.
    inside: AtomicUsize,
}

impl Pieces {
    fn new(from: *const u8, to: *mut u8, len: usize) -> Pieces {
        Pieces {
            from,
            to,
            len,
            taken: AtomicUsize::new(0),
            inside: AtomicUsize::new(0),
        }
    }

    /// Waits until no helper uses the copy, which is shown no more. Helpers at other copies are no
    /// matter.
    fn wait_for_helpers(&self) {
        let mut looks = 0u32;
        while self.inside.load(Ordering::Acquire) > 0 {
            looks += 1;
            match looks.is_multiple_of(LOOKS) {
                // A helper may have lost its core.
                true => thread::yield_now(),
                false => hint::spin_loop(),
            }
        }
    }

    /// Copies pieces until none is left.
    ///
    /// # Safety
    ///
    /// The ranges are those of [`copy`].
    unsafe fn copy(&self) {
        // SAFETY: this function's contract is that of the call.
        while unsafe { self.copy_one() } {}
    }

    /// Copies a piece. Returns false if none was left.
    ///
    /// # Safety
    ///
    /// The ranges are those of [`copy`].
    unsafe fn copy_one(&self) -> bool {
        let at = self.taken.fetch_add(PIECE_BYTES, Ordering::Relaxed);
        if at >= self.len {
            return false;
        }
        let len = PIECE_BYTES.min(self.len - at);
        // SAFETY: inside both ranges, and no other thread has this piece.
        unsafe { ptr::copy_nonoverlapping(self.from.add(at), self.to.add(at), len) };
        true
    }
}

impl Pool {
    const fn new() -> Self {
        Self {
            state: Mutex::new(State {
                copy: None,
                helpers: 0,
                sleepers: 0,
            }),
            came: Condvar::new(),
            copies: AtomicU64::new(0),
        }
    }

    /// Copies together with the helpers; alone if there are none, and for as long as another thread
    /// has them.
    ///
    /// # Safety
    ///
    /// As for [`copy`].
    unsafe fn copy(&self, from: *const u8, to: *mut u8, len: usize) {
        let pieces = Pieces::new(from, to, len);
        let mut offer = self.offer(&pieces);
        // SAFETY: the ranges are this function's, whose contract is that of `copy`.
        while offer == Offer::Busy && unsafe { pieces.copy_one() } {
            offer = self.offer(&pieces);
        }
        // SAFETY: the ranges are this function's; a helper takes other pieces than this thread.
        unsafe { pieces.copy() };
        if offer == Offer::Shown {
            self.lock().copy = None;
            pieces.wait_for_helpers();
        }
    }

    /// Shows a copy to the helpers, unless they see another.
    fn offer(&self, pieces: &Pieces) -> Offer {
        let mut state = self.lock();
        if state.helpers == 0 {
            return Offer::NoHelpers;
        }
        if state.copy.is_some() {
            return Offer::Busy;
        }
        state.copy = Some(Shared(pieces));
        self.copies.fetch_add(1, Ordering::Release);
        let sleepers = state.sleepers;
        drop(state);
        if sleepers > 0 {
            self.came.notify_all();
        }
        Offer::Shown
    }

    /// Copies for other threads until `keep_on` returns false.
    fn help(&self, keep_on: impl Fn() -> bool) {
        self.lock().helpers += 1;
        let mut seen = 0;
        while keep_on() {
            seen = self.wait(seen);
            let copy = {
                let state = self.lock();
                state.copy.inspect(|Shared(pieces)| {
                    // Under the lock: the copy's thread sees it once it has withdrawn the copy.
                    // SAFETY: that thread has yet to do so, under the lock.
                    let inside = unsafe { &(**pieces).inside };
                    inside.fetch_add(1, Ordering::Relaxed);
                })
            };
            if let Some(Shared(pieces)) = copy {
                // SAFETY: the copy's thread waits until nobody is inside.
                unsafe { (*pieces).copy() };
                // SAFETY: the copy's thread waits for this, after which it is not used here.
                unsafe { (*pieces).inside.fetch_sub(1, Ordering::Release) };
            }
        }
        self.lock().helpers -= 1;
    }

    /// Waits until more copies than `seen` have come: busily at first, since copies come in a row.
    /// Returns their number.
    fn wait(&self, seen: u64) -> u64 {
        let longest = Duration::from_nanos(SPIN_NS_MAX);
        let start = Instant::now();
        while start.elapsed() < longest {
            for _ in 0..LOOKS {
                let copies = self.copies.load(Ordering::Acquire);
                if copies != seen {
                    return copies;
                }
                hint::spin_loop();
            }
        }
        let mut state = self.lock();
        state.sleepers += 1;
        while self.copies.load(Ordering::Acquire) == seen {
            state = self
                .came
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        state.sleepers -= 1;
        self.copies.load(Ordering::Acquire)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// A copy that finds the helpers at another is shown to them later.
    #[test]
    fn helpers_see_one_copy_at_a_time() {
        let pool = Pool::new();
        let empty = || Pieces::new(ptr::null(), ptr::null_mut(), 0);
        let (one, other) = (empty(), empty());
        assert_eq!(pool.offer(&one), Offer::NoHelpers);
        pool.lock().helpers = 1;
        assert_eq!(pool.offer(&one), Offer::Shown);
        assert_eq!(pool.offer(&other), Offer::Busy);
        pool.lock().copy = None;
        assert_eq!(pool.offer(&other), Offer::Shown);
        pool.lock().copy = None;
    }

    /// A copy of null bytes that a helper is at, for as long as the test wants.
    #[test]
    fn a_copy_does_not_wait_for_the_helpers_of_another() {
        let pool = Pool::new();
        let empty = || Pieces::new(ptr::null(), ptr::null_mut(), 0);
        let (one, other) = (empty(), empty());
        pool.lock().helpers = 1;
        assert_eq!(pool.offer(&one), Offer::Shown);
        pool.lock().copy = None;
        assert_eq!(pool.offer(&other), Offer::Shown);
        // A helper comes to the other before the first one's thread has looked.
        let Some(Shared(seen)) = pool.lock().copy else {
            panic!("no copy is shown");
        };
        assert!(ptr::eq(seen, &other));
        other.inside.fetch_add(1, Ordering::Relaxed);
        one.wait_for_helpers();
        // Nor does one for which the helper has yet to come.
        pool.lock().copy = None;
        let from = vec![7u8; 2 * SHARED_BYTES_MIN];
        let mut to = vec![0; from.len()];
        // SAFETY: both have as many bytes, and are this thread's.
        unsafe { pool.copy(from.as_ptr(), to.as_mut_ptr(), from.len()) };
        assert!(to == from);
        other.inside.fetch_sub(1, Ordering::Relaxed);
        other.wait_for_helpers();
    }

    /// Several threads copy at once, with helpers and without; each gets its bytes, whole.
    #[test]
    fn copies_are_whole_whoever_makes_them() {
        const ROUNDS: usize = 60;
        for helpers in [0, 2] {
            let pool = Arc::new(Pool::new());
            for _ in 0..helpers {
                let pool = Arc::clone(&pool);
                // It ends with the test's process.
                thread::spawn(move || pool.help(|| true));
            }
            thread::scope(|scope| {
                for caller in 0..3u8 {
                    let pool = &pool;
                    scope.spawn(move || {
                        for round in 0..ROUNDS {
                            let len = SHARED_BYTES_MIN + round * 40_009;
                            let from: Vec<u8> =
                                (0..len).map(|at| (at / 7 + round) as u8 ^ caller).collect();
                            let mut to = vec![0; len + 1];
                            // SAFETY: both have as many bytes, and are this thread's.
                            unsafe { pool.copy(from.as_ptr(), to.as_mut_ptr(), len) };
                            assert!(to[..len] == from, "round {round}");
                            assert_eq!(to[len], 0);
                        }
                    });
                }
            });
        }
    }
}
