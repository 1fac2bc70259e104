//! Launches that are held back while a look at the mirrors takes long.
//!
//! A kernel may read any mirror, so that a look for the program's changes comes before each launch.
//! The look may come later than the call, as long as it comes before the launch is sent: a program
//! that changes memory which a kernel may already be reading races with the kernel on a GPU, too.
//! So of launches that follow each other closely the first is sent at once, and one look serves
//! those after it.
//!
//! ```text
//!  look, launch │ launch  launch  launch │ any other call: look, the held launches, the call
//!               │  held    held    held  │ or a launch some looks' time later, or a pause
//! ```
//!
//! Nobody waits while launches are held: a call that is neither answered by the client alone nor
//! such a launch sends them first, on any thread. A thread of the library sends what is held for
//! too long, for programs that only read their memory. A held launch has no number yet, so no wait
//! that began before counts it as done.
//!
//! Launches are held only while mirrors are open; both are under the lock of the open mirrors
//! (`holding.rs`).

use std::time::{Duration, Instant};

use outboard_wire::messages;

use super::StreamRef;

/// Time of a look from which on launches are held, in nanoseconds.
const LOOK_NS_MIN: u64 = 4_000;
/// Time for which launches are held, in times of a look: looks then take a seventh of the time.
const LOOKS_HELD: u64 = 6;
/// Most of that time.
const HELD_TIME_MAX: Duration = Duration::from_millis(5);
/// Time after which a thread of the library sends what no call has sent.
pub(super) const REST: Duration = Duration::from_micros(200);
/// Most launches held, and most bytes of their arguments.
const LAUNCHES_MAX: usize = 256;
const BYTES_MAX: usize = 256 << 10;
/// Weight of earlier looks in the mean time of one.
const MEAN_OF: u64 = 4;

/// A launch that is held back, without attributes.
pub(crate) struct HeldLaunch {
    pub(crate) context: u64,
    pub(crate) stream: StreamRef,
    pub(crate) kernel: u64,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared_bytes: u32,
    pub(crate) params: Box<[u8]>,
}

impl HeldLaunch {
    pub(super) fn message(&self) -> messages::Launch<'_, &[u8]> {
        let ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]) = (self.grid, self.block);
        messages::Launch {
            kernel: self.kernel,
            stream: self.stream.wire(),
            grid_x,
            grid_y,
            grid_z,
            block_x,
            block_y,
            block_z,
            shared_bytes: self.shared_bytes,
            attributes: &[],
            params: &self.params[..],
        }
    }
}

/// Launches that are held back, and how long looks take.
#[derive(Default)]
pub(super) struct Held {
    launches: Vec<HeldLaunch>,
    bytes: usize,
    /// When the first of them was held.
    since: Option<Instant>,
    /// When the last look began, and the mean time of one in nanoseconds.
    looked: Option<Instant>,
    look_ns: u64,
    /// Tells if a thread sends what is held for too long; `None` before one is needed.
    pub(super) has_thread: Option<bool>,
    /// That thread sleeps until it is woken.
    pub(super) is_parked: bool,
}

impl Held {
    pub(super) fn is_empty(&self) -> bool {
        self.launches.is_empty()
    }

    /// Notes a look that began then and is over.
    pub(super) fn looked(&mut self, begin: Instant) {
        let took = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.looked = Some(begin);
        self.look_ns = match self.look_ns {
            0 => took,
            // One that had much to send says little of the next.
            mean => {
                let most = mean.max(LOOK_NS_MIN).saturating_mul(2);
                (mean / MEAN_OF).saturating_mul(MEAN_OF - 1) + took.min(most) / MEAN_OF
            }
        };
    }

    /// Time for which launches are held after a look began; zero if looks are short.
    fn time(&self) -> Duration {
        match self.look_ns < LOOK_NS_MIN {
            true => Duration::ZERO,
            false => Duration::from_nanos(self.look_ns * LOOKS_HELD).min(HELD_TIME_MAX),
        }
    }

    /// Returns whether a launch may be held now, whose arguments have `bytes` bytes.
    pub(super) fn takes(&self, bytes: usize) -> bool {
        let is_soon = self.looked.is_some_and(|at| at.elapsed() < self.time());
        is_soon && self.launches.len() < LAUNCHES_MAX && self.bytes + bytes <= BYTES_MAX
    }

    pub(super) fn add(&mut self, launch: HeldLaunch) {
        self.bytes += launch.params.len();
        self.launches.push(launch);
        self.since.get_or_insert_with(Instant::now);
    }

    pub(super) fn take(&mut self) -> Vec<HeldLaunch> {
        self.bytes = 0;
        self.since = None;
        std::mem::take(&mut self.launches)
    }

    /// Time until what is held has to be sent; `None` if nothing is held.
    pub(super) fn rest(&self) -> Option<Duration> {
        let longest = REST.max(self.time());
        self.since.map(|at| longest.saturating_sub(at.elapsed()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launches_are_held_for_a_few_times_as_long_as_a_look_takes() {
        let mut held = Held::default();
        assert!(!held.takes(8));
        held.looked = Some(Instant::now());
        held.look_ns = LOOK_NS_MIN - 1;
        assert_eq!(held.time(), Duration::ZERO);
        held.look_ns = 50_000;
        assert_eq!(held.time(), Duration::from_micros(300));
        held.look_ns = 50_000_000;
        assert_eq!(held.time(), HELD_TIME_MAX);
        assert!(held.takes(8));
        held.bytes = BYTES_MAX - 7;
        assert!(!held.takes(8));
        held.bytes = 0;
        held.looked = Instant::now().checked_sub(HELD_TIME_MAX);
        assert!(!held.takes(8));
        assert_eq!(held.rest(), None);
    }

    #[test]
    fn one_slow_look_does_not_count_for_long() {
        let mut held = Held::default();
        let ago = |us| Instant::now().checked_sub(Duration::from_micros(us));
        held.looked(ago(20).expect("a time"));
        assert!((20_000..1_000_000).contains(&held.look_ns));
        let before = held.look_ns;
        held.looked(ago(50_000).expect("a time"));
        assert!(held.look_ns <= before * 5 / 4, "{before}, {}", held.look_ns);
    }
}
