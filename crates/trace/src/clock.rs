//! The clock of calls: the processor's own counter if the kernel trusts it too. Reading it costs a
//! third of asking the kernel.
//!
//! The writing thread converts counts to nanoseconds after the calls. It compares the counter with
//! the kernel's clock from time to time: between two comparisons time is a straight line, and the
//! lines meet, so that no time goes backwards.

use std::time::Instant;

use crate::limits::{LINE_ERROR_NS_MAX, LINE_NS_MIN, LINES_MAX};

/// File in which the kernel names the clock that it trusts.
const SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
/// Names of the counter: read directly, or in the way that a virtual machine's host prescribes.
const TRUSTED: [&str; 2] = ["tsc", "kvm-clock"];
/// Time in which an error is corrected, in nanoseconds.
const MEND_NS: f64 = 1e9;
/// Looks at both clocks for one comparison. The closest counts, if it is closer than `LOOK_NS_MAX`.
const LOOKS: u32 = 3;
const LOOK_NS_MAX: f64 = 2_000.0;

/// A moment in the form in which calls are stamped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticks(pub(crate) u64);

/// Counts since the recording began.
#[derive(Debug)]
pub(crate) struct Clock {
    start: Instant,
    start_ticks: u64,
    is_counter: bool,
}

impl Clock {
    pub(crate) fn new() -> Clock {
        let source = std::fs::read_to_string(SOURCE).unwrap_or_default();
        let is_trusted = TRUSTED.contains(&source.trim());
        Clock::of(cfg!(target_arch = "x86_64") && is_trusted)
    }

    fn of(is_counter: bool) -> Clock {
        let start = Instant::now();
        Clock {
            start,
            start_ticks: if is_counter { counter() } else { 0 },
            is_counter,
        }
    }

    pub(crate) fn start(&self) -> Instant {
        self.start
    }

    #[inline(always)]
    pub(crate) fn now(&self) -> Ticks {
        match self.is_counter {
            true => Ticks(counter().saturating_sub(self.start_ticks)),
            false => Ticks(self.ns()),
        }
    }

    #[cold]
    fn ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Returns both clocks at one moment; `None` if the thread was interrupted between the looks.
    fn both(&self, ns_per_tick: Option<f64>) -> Option<(u64, f64)> {
        let (width, ticks, ns) = (0..LOOKS)
            .map(|_| {
                let before = self.now().0;
                let ns = self.ns();
                let after = self.now().0;
                (after - before, before + (after - before) / 2, ns as f64)
            })
            .min_by_key(|(width, ..)| *width)?;
        let is_close = ns_per_tick.is_none_or(|rate| width as f64 * rate <= LOOK_NS_MAX);
        is_close.then_some((ticks, ns))
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn counter() -> u64 {
    // SAFETY: every x86-64 processor has it; a kernel that trusts the counter lets programs read
    // it.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn counter() -> u64 {
    0
}

/// Converts counts to nanoseconds.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    /// In the order of their beginnings.
    lines: Vec<Line>,
}

#[derive(Debug, Clone, Copy)]
struct Line {
    ticks: u64,
    ns: f64,
    ns_per_tick: f64,
    /// The kernel's clock at the line's beginning.
    kernel_ns: f64,
}

impl Line {
    fn at(&self, ticks: u64) -> f64 {
        let since = ticks.wrapping_sub(self.ticks) as i64;
        self.ns + since as f64 * self.ns_per_tick
    }
}

impl Lines {
    /// Compares the clocks. Called from time to time, and before the first [`Lines::ns`].
    pub(crate) fn compare(&mut self, clock: &Clock) {
        let rate = self.lines.last().map(|line| line.ns_per_tick);
        if !clock.is_counter {
            return;
        }
        if let Some((ticks, ns)) = clock.both(rate) {
            self.take(ticks, ns);
        }
    }

    fn take(&mut self, ticks: u64, ns: f64) {
        let Some(last) = self.lines.last() else {
            if ticks > 0 {
                self.lines.push(Line {
                    ticks: 0,
                    ns: 0.0,
                    ns_per_tick: ns / ticks as f64,
                    kernel_ns: 0.0,
                });
            }
            return;
        };
        let at = last.at(ticks);
        let error_ns = ns - at;
        if at - last.ns < LINE_NS_MIN || error_ns.abs() < LINE_ERROR_NS_MAX {
            return;
        }
        // The rate since the last line began, plus a correction of the error.
        let rate = (ns - last.kernel_ns) / (ticks - last.ticks) as f64;
        let line = Line {
            ticks,
            ns: at,
            ns_per_tick: rate * (1.0 + (error_ns / MEND_NS).clamp(-0.5, 0.5)),
            kernel_ns: ns,
        };
        if self.lines.len() >= LINES_MAX {
            self.lines.remove(0);
        }
        self.lines.push(line);
    }

    /// Returns nanoseconds since the recording began.
    pub(crate) fn ns(&self, ticks: u64) -> u64 {
        let line = self.lines.iter().rfind(|line| line.ticks <= ticks);
        match line.or(self.lines.first()) {
            Some(line) => line.at(ticks).max(0.0) as u64,
            // Without a counter, ticks are the kernel's clock.
            None => ticks,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counter_keeps_to_the_kernels_clock() {
        for clock in [Clock::new(), Clock::of(false)] {
            let mut lines = Lines::default();
            for _ in 0..20 {
                std::thread::sleep(std::time::Duration::from_millis(5));
                lines.compare(&clock);
                let before = clock.ns();
                let ns = lines.ns(clock.now().0);
                let after = clock.ns();
                assert!(
                    before <= ns + 50_000 && ns <= after + 50_000,
                    "{before} {ns} {after}"
                );
            }
        }
    }

    /// A counter of 3 GHz, read with some noise, while the kernel's clock is steered.
    #[test]
    fn time_is_continuous_and_errors_are_mended() {
        let mut lines = Lines::default();
        let (mut ticks, mut ns, mut last) = (0u64, 0f64, 0);
        for step in 0..3_000 {
            let steered = match step {
                0..1_000 => 1.0,
                1_000..2_000 => 1.0 + 40e-6,
                _ => 1.0 - 40e-6,
            };
            ticks += 300_000_000;
            ns += 100e6 * steered;
            let noise = f64::from(step * 7 % 31) - 15.0;
            let before = lines.ns(ticks);
            lines.take(ticks, ns + noise);
            let now = lines.ns(ticks);
            if step > 0 {
                assert!(
                    now.abs_diff(before) <= 1,
                    "step {step}: a jump from {before} to {now}"
                );
                assert!(now > last, "step {step}");
            }
            let off_ns = (now as f64 - ns).abs();
            // A step of 80 ppm is noticed once it amounts to 8 us.
            assert!(off_ns < 20_000.0, "step {step}: {off_ns} ns off");
            if step % 1_000 == 999 {
                assert!(off_ns < 500.0, "step {step}: {off_ns} ns off");
            }
            last = now;
        }
        // An event of long ago keeps its time.
        let early = lines.ns(300_000_000 * 500);
        assert!(early.abs_diff(500 * 100_000_000) < 1_000, "{early}");
        assert!(lines.lines.len() < 500, "{} lines", lines.lines.len());
    }
}
