//! Durations of calls, and of the sending and waiting in them, for measurements. With
//! `OUTBOARD_STATS_TIMES=1` in addition to `OUTBOARD_STATS`, the clock is read around every call,
//! send and wait, and the sums are written with the counts. `cuProfilerStart` resets the sums and
//! `cuProfilerStop` stops counting, so that a program can measure a part of itself.

use std::{
    cell::Cell,
    fmt::Write as _,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Instant,
};

use super::{
    conditions,
    stats::{CALLS_MAX, KINDS},
};
use crate::call_table::CALLS;

pub(crate) const VARIABLE: &str = "OUTBOARD_STATS_TIMES";
/// Readings in one attempt to measure the cost of reading the clock; the cost is the mean of the
/// best of `CLOCK_TRIES` attempts.
const CLOCK_READINGS: u32 = 100;
const CLOCK_TRIES: u32 = 100;
const KIND_NAMES: [&str; KINDS] = ["local", "outstanding", "shadowed", "synchronous"];

/// Sums of one call, for one kind of what it did.
struct Spent {
    calls: AtomicU64,
    whole_ns: AtomicU64,
    sends: AtomicU64,
    send_ns: AtomicU64,
    waits: AtomicU64,
    wait_ns: AtomicU64,
}

static SPENT: [[Spent; KINDS]; CALLS_MAX] = [const {
    [const {
        Spent {
            calls: AtomicU64::new(0),
            whole_ns: AtomicU64::new(0),
            sends: AtomicU64::new(0),
            send_ns: AtomicU64::new(0),
            waits: AtomicU64::new(0),
            wait_ns: AtomicU64::new(0),
        }
    }; KINDS]
}; CALLS_MAX];
static IS_COUNTING: AtomicBool = AtomicBool::new(true);

/// Durations in the current call so far.
#[derive(Clone, Copy, Default)]
struct Parts {
    sends: u64,
    send_ns: u64,
    waits: u64,
    wait_ns: u64,
}

thread_local! {
    static PARTS: Cell<Parts> = const {
        Cell::new(Parts { sends: 0, send_ns: 0, waits: 0, wait_ns: 0 })
    };
}

/// Turns timing on if the environment asks for it.
pub(crate) fn choose() {
    if std::env::var_os(VARIABLE).is_some_and(|value| !value.is_empty() && value != "0") {
        conditions::mark_timed();
    }
}

/// Begins a call.
pub(crate) fn begin() -> Instant {
    PARTS.set(Parts::default());
    Instant::now()
}

/// Ends a call of this kind.
pub(crate) fn end(number: usize, kind: usize, start: Instant) {
    let whole_ns = ns(start);
    if !IS_COUNTING.load(Ordering::Relaxed) {
        return;
    }
    let (parts, spent) = (PARTS.get(), &SPENT[number][kind]);
    let values = [
        1,
        whole_ns,
        parts.sends,
        parts.send_ns,
        parts.waits,
        parts.wait_ns,
    ];
    for (sum, value) in spent.sums().into_iter().zip(values) {
        sum.fetch_add(value, Ordering::Relaxed);
    }
}

/// Sends bytes to the link, and times that.
pub(crate) fn sending<R>(send: impl FnOnce() -> R) -> R {
    if conditions::is_timed() {
        time_sending(send)
    } else {
        send()
    }
}

/// Sends bytes; the caller knows whether calls are timed, so that a launch tests that only once.
#[inline(always)]
pub(crate) fn sending_if<const TIMED: bool, R>(send: impl FnOnce() -> R) -> R {
    if TIMED { time_sending(send) } else { send() }
}

fn time_sending<R>(send: impl FnOnce() -> R) -> R {
    let start = Instant::now();
    let result = send();
    let mut parts = PARTS.get();
    parts.sends += 1;
    parts.send_ns += ns(start);
    PARTS.set(parts);
    result
}

/// Waits for the server, and times that.
pub(crate) fn waiting<R>(wait: impl FnOnce() -> R) -> R {
    if !conditions::is_timed() {
        return wait();
    }
    let start = Instant::now();
    let result = wait();
    let mut parts = PARTS.get();
    parts.waits += 1;
    parts.wait_ns += ns(start);
    PARTS.set(parts);
    result
}

/// `cuProfilerStart`: drops the sums so far.
pub(crate) fn restart() {
    for spent in SPENT.iter().flatten() {
        for sum in spent.sums() {
            sum.store(0, Ordering::Relaxed);
        }
    }
    IS_COUNTING.store(true, Ordering::Relaxed);
}

/// `cuProfilerStop`: stops counting.
pub(crate) fn stop() {
    IS_COUNTING.store(false, Ordering::Relaxed);
}

/// Returns the sums as JSON: for each call by what it did, and the cost of reading the clock. A
/// call's time includes one reading, a part's own time one, and the call's time two for each part.
pub(crate) fn to_json() -> Option<String> {
    if !conditions::is_timed() {
        return None;
    }
    let mut by_call = String::new();
    for ((name, _), kinds) in CALLS.iter().zip(&SPENT) {
        let used: Vec<String> = kinds
            .iter()
            .zip(KIND_NAMES)
            .filter_map(|(spent, kind)| spent.to_json(kind))
            .collect();
        if !used.is_empty() {
            let separator = if by_call.is_empty() { "" } else { "," };
            let _ = write!(
                by_call,
                "{separator}\n      \"{name}\": {{{}}}",
                used.join(", ")
            );
        }
    }
    Some(format!(
        "{{\n    \"clock_ns\": {:.1},\n    \"by_call\": {{{by_call}\n    }}\n  }}",
        clock_ns()
    ))
}

impl Spent {
    fn sums(&self) -> [&AtomicU64; 6] {
        [
            &self.calls,
            &self.whole_ns,
            &self.sends,
            &self.send_ns,
            &self.waits,
            &self.wait_ns,
        ]
    }

    fn to_json(&self, kind: &str) -> Option<String> {
        let [calls, whole, sends, send, waits, wait] =
            self.sums().map(|sum| sum.load(Ordering::Relaxed));
        (calls > 0).then(|| {
            format!(
                "\"{kind}\": {{\"calls\": {calls}, \"whole_ns\": {whole}, \"sends\": {sends}, \"send_ns\": {send}, \"waits\": {waits}, \"wait_ns\": {wait}}}"
            )
        })
    }
}

fn clock_ns() -> f64 {
    let one_try = |_| {
        let start = Instant::now();
        for _ in 0..CLOCK_READINGS {
            std::hint::black_box(Instant::now());
        }
        ns(start)
    };
    let best = (0..CLOCK_TRIES).map(one_try).min().unwrap_or(0);
    best as f64 / f64::from(CLOCK_READINGS)
}

fn ns(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
