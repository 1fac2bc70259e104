//! Conversion of the server's times to the program's clock.
//!
//! The server's clock is compared with this machine's monotonic clock by round trips. The error is
//! at most half of the fastest of several round trips. If both are the same clock, the comparison
//! finds no difference. The program's clock is its timestamp callback, or the time of day in
//! nanoseconds; it is read with the monotonic clock at each comparison. Times between two
//! comparisons are interpolated, so times of the server keep their order.

use std::{
    ffi::c_void,
    sync::atomic::{AtomicPtr, Ordering},
};

use parking_lot::Mutex;

use crate::{driver, status::Status};

/// `CUpti_TimestampCallbackFunc`.
pub(crate) type Timestamp = unsafe extern "C" fn() -> u64;

const ROUND_TRIPS: u32 = 8;
const READINGS: u32 = 8;
/// Shortest interval between two comparisons from which the program's rate is computed, in
/// nanoseconds.
const APART_NS_MIN: u64 = 1_000_000;

static CALLBACK: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static COMPARED: Mutex<Vec<Compared>> = Mutex::new(Vec::new());

/// One moment on all three clocks.
#[derive(Debug, Clone, Copy)]
struct Compared {
    server_ns: u64,
    here_ns: u64,
    program: u64,
}

/// Sets the function that reads the program's clock, or none for the time of day.
pub(crate) fn register(timestamp: Option<Timestamp>) {
    let address = timestamp.map_or(std::ptr::null_mut(), |function| function as *mut c_void);
    CALLBACK.store(address, Ordering::Release);
    COMPARED.lock().clear();
}

/// Reads the program's clock.
pub(crate) fn program() -> u64 {
    let callback = CALLBACK.load(Ordering::Acquire);
    if callback.is_null() {
        return clock_ns(libc::CLOCK_REALTIME);
    }
    // SAFETY: the program's function of this type, see `register`.
    unsafe { std::mem::transmute::<*mut c_void, Timestamp>(callback)() }
}

fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: an output.
    unsafe { libc::clock_gettime(clock, &mut now) };
    (now.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(now.tv_nsec as u64)
}

fn here_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

/// Compares the clocks by round trips to the server.
pub(crate) fn compare() -> Result<(), Status> {
    let mut best: Option<(u64, i64)> = None;
    for _ in 0..ROUND_TRIPS {
        let before = here_ns();
        let theirs = driver::clock()?;
        let width = here_ns().saturating_sub(before);
        let ahead = theirs.wrapping_sub(before + width / 2) as i64;
        if best.is_none_or(|(narrowest, _)| width < narrowest) {
            best = Some((width, ahead));
        }
    }
    let (width, ahead) = best.unwrap_or_default();
    let ahead = same_clock(width, ahead);
    let (here_ns, program) = both();
    let mut compared = COMPARED.lock();
    compared.push(Compared {
        server_ns: here_ns.wrapping_add_signed(ahead),
        here_ns,
        program,
    });
    thin_out(&mut compared);
    Ok(())
}

/// Returns the difference of the clocks, or 0 if it is within the error.
fn same_clock(width: u64, ahead: i64) -> i64 {
    match ahead.unsigned_abs() <= width / 2 {
        true => 0,
        false => ahead,
    }
}

/// Reads this machine's clock and the program's at one moment.
fn both() -> (u64, u64) {
    let reading = |_| {
        let before = here_ns();
        let program = program();
        let width = here_ns().saturating_sub(before);
        (width, before + width / 2, program)
    };
    let narrowest = (0..READINGS).map(reading).min_by_key(|(width, ..)| *width);
    let (_, here, program) = narrowest.unwrap_or_default();
    (here, program)
}

/// Keeps only the first and the last comparison.
fn thin_out(compared: &mut Vec<Compared>) {
    if compared.len() > 2 {
        compared.drain(1..compared.len() - 1);
    }
}

/// Conversion from the server's times to the program's, by the comparisons made so far.
pub(crate) struct Map {
    first: Compared,
    /// Units of the program's clock per nanosecond of the server's.
    rate: f64,
}

pub(crate) fn map() -> Option<Map> {
    let compared = COMPARED.lock();
    let (first, last) = (*compared.first()?, *compared.last()?);
    drop(compared);
    Some(Map::between(first, last))
}

impl Map {
    fn between(first: Compared, last: Compared) -> Map {
        let server = last.server_ns.wrapping_sub(first.server_ns) as i64;
        let apart = last.here_ns.saturating_sub(first.here_ns);
        let rate = match apart >= APART_NS_MIN && server > 0 {
            true => last.program.wrapping_sub(first.program) as f64 / server as f64,
            // Too short an interval to measure the rate: the clock most likely counts nanoseconds.
            false => 1.0,
        };
        // The last comparison is the most exact one for recent work.
        match apart >= APART_NS_MIN {
            true => Map { first, rate },
            false => Map { first: last, rate },
        }
    }

    /// A map of clocks that are this far apart. For the fuzzer.
    pub(crate) fn fuzz(ahead: u64) -> Map {
        let moment = |here_ns| Compared {
            server_ns: ahead,
            here_ns,
            program: here_ns,
        };
        Map::between(moment(0), moment(ahead))
    }

    /// Converts a time of the server to the program's clock.
    pub(crate) fn program(&self, server_ns: u64) -> u64 {
        let since = server_ns.wrapping_sub(self.first.server_ns) as i64;
        self.first
            .program
            .wrapping_add_signed((since as f64 * self.rate) as i64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(server_ns: u64, here_ns: u64, program: u64) -> Compared {
        Compared {
            server_ns,
            here_ns,
            program,
        }
    }

    #[test]
    fn times_keep_their_order_and_the_programs_rate() {
        // The server's clock is a second ahead; the program's counts three units per nanosecond.
        let first = at(2_000_000_000, 1_000_000_000, 500);
        let last = at(2_010_000_000, 1_010_000_000, 30_000_500);
        let map = Map::between(first, last);
        assert_eq!(map.program(2_000_000_000), 500);
        assert_eq!(map.program(2_000_000_100), 800);
        assert_eq!(map.program(2_010_000_000), 30_000_500);
        let times: Vec<u64> = (1_999_999_990..2_000_000_100)
            .map(|t| map.program(t))
            .collect();
        assert!(times.windows(2).all(|pair| pair[0] <= pair[1]));
    }

    #[test]
    fn comparisons_close_together_take_nanoseconds() {
        let map = Map::between(at(100, 100, 7_000), at(600, 600, 7_400));
        assert_eq!(map.program(700), 7_500);
    }

    #[test]
    fn a_clock_within_the_round_trip_is_the_same_one() {
        assert_eq!(same_clock(10_000, 4_999), 0);
        assert_eq!(same_clock(10_000, -5_001), -5_001);
    }
}
