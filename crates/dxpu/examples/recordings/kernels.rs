//! How long the kernels of a recorded iteration are, and the part of copies and memsets.

use outboard_model::Iteration;
use outboard_trace::GpuWork;
use serde_json::{Value, json};

/// Kernels that are not longer are short: the paper's bound.
const SHORT_NS: f64 = 10e3;
/// Ends of the ranges of durations that the cumulative distributions show.
const UP_TO_US: [u32; 12] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 800, 1_000, 2_000];

/// Returns figures 5 and 6 and table 10 for an iteration.
pub(crate) fn kernels(iteration: &Iteration) -> Value {
    let mut durations_ns = Vec::new();
    let mut memory_ns = 0.0;
    for unit in iteration.works() {
        match unit.kind {
            GpuWork::Kernel => durations_ns.push(unit.duration_ns),
            _ => memory_ns += unit.duration_ns,
        }
    }
    let total_ns: f64 = durations_ns.iter().sum();
    let up_to = |ns: f64| {
        let ended = durations_ns.iter().filter(|duration| **duration <= ns);
        let (count, time_ns) = ended.fold((0, 0.0), |(n, ns), duration| (n + 1, ns + duration));
        (
            ratio(f64::from(count), durations_ns.len() as f64),
            ratio(time_ns, total_ns),
        )
    };
    let cdf = UP_TO_US.map(|us| {
        let (of_all, of_time) = up_to(f64::from(us) * 1e3);
        json!({ "up_to_us": us, "of_all": of_all, "of_time": of_time })
    });
    json!({
        "kernels": durations_ns.len(),
        "mean_us": ratio(total_ns, durations_ns.len() as f64) / 1e3,
        "short": up_to(SHORT_NS).0,
        "memory": ratio(memory_ns, memory_ns + total_ns),
        "busy_ms": iteration.gpu_busy_ns() / 1e6,
        "cdf": cdf,
    })
}

fn ratio(part: f64, whole: f64) -> f64 {
    match whole > 0.0 {
        true => part / whole,
        false => 0.0,
    }
}
