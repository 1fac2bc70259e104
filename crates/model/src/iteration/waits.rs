//! Costs of calls apart from what they wait for: here, and of the driver call on the server.

use outboard_api::decl::Class;
use outboard_trace::GpuWork;
use rustc_hash::FxHashMap;

use super::{Iteration, Step, median};
use crate::effect::{Effect, Effects};

/// Sets floors, tails and the server's times.
pub(super) fn set_costs(iteration: &mut Iteration, effects: &Effects, has_gpu_times: bool) {
    let is_remote = iteration.is_remote;
    let ends: Vec<Vec<f64>> = iteration
        .threads
        .iter()
        .map(|steps| {
            steps
                .iter()
                .map(|step| awaited_end_ns(iteration, step))
                .collect()
        })
        .collect();
    let steps = || {
        iteration
            .threads
            .iter()
            .flatten()
            .zip(ends.iter().flatten())
    };
    let waits = || steps().filter(|(step, _)| step.is_wait());
    // Waits that had nothing to wait for show the time of the call itself, the others the time
    // after the GPU's end.
    let mut floors: Vec<f64> = waits()
        .filter(|(step, end_ns)| **end_ns <= step.start_ns)
        .map(|(step, _)| step.duration_ns)
        .collect();
    let mut tails: Vec<f64> = waits()
        .filter(|(step, end_ns)| **end_ns > step.start_ns)
        .map(|(step, end_ns)| (step.end_ns() - end_ns).max(0.0))
        .collect();
    let (floor_ns, tail_ns) = (median(&mut floors), median(&mut tails));
    let usual = usual_durations(steps().map(|(step, _)| step));
    let mut launches: Vec<f64> = durations_of_launches(iteration, effects);
    let launch_ns = match launches.is_empty() {
        true => f64::MAX,
        false => median(&mut launches),
    };
    let iteration_units = &iteration.units;
    for (step, end_ns) in iteration
        .threads
        .iter_mut()
        .flatten()
        .zip(ends.iter().flatten())
    {
        if step.is_wait() {
            let since_end = (step.end_ns() - end_ns).max(0.0);
            if *end_ns > step.start_ns {
                (step.floor_ns, step.tail_ns) = (floor_ns.min(step.duration_ns), since_end);
            } else {
                (step.floor_ns, step.tail_ns) = (step.duration_ns, tail_ns.min(since_end));
            }
        }
        step.server_ns = server_ns(step, effects, &usual, has_gpu_times);
        if is_copy_to_device(iteration_units, step) {
            // Here the driver copied pageable memory; on the server the bytes are in pinned memory
            // already.
            step.server_ns = step.server_ns.min(launch_ns);
        }
        if is_remote && step.class != Class::Synchronous {
            (step.client_ns, step.server_ns) = (step.duration_ns, 0.0);
        }
    }
}

/// Returns the median duration of each function's calls that do not wait.
fn usual_durations<'s>(steps: impl Iterator<Item = &'s Step>) -> FxHashMap<u32, f64> {
    let mut durations: FxHashMap<u32, Vec<f64>> = FxHashMap::default();
    for step in steps.filter(|step| !step.is_wait()) {
        durations
            .entry(step.function)
            .or_default()
            .push(step.duration_ns);
    }
    durations
        .into_iter()
        .map(|(function, mut durations)| (function, median(&mut durations)))
        .collect()
}

fn durations_of_launches(iteration: &Iteration, effects: &Effects) -> Vec<f64> {
    let launches = iteration
        .steps()
        .filter(|step| effects.of(step.function) == Effect::Launches);
    launches.map(|step| step.duration_ns).collect()
}

fn is_copy_to_device(units: &[super::Unit], step: &Step) -> bool {
    units
        .get(step.unit as usize)
        .is_some_and(|unit| unit.kind == GpuWork::CopyToDevice)
}

fn awaited_end_ns(iteration: &Iteration, step: &Step) -> f64 {
    let units = iteration.list(step.waits).iter();
    units
        .map(|unit| iteration.units[*unit as usize].end_ns())
        .fold(0.0, f64::max)
}

/// Calls that the program does not wait for, but that took long, waited for the GPU's queue or for
/// a copy: the server spends no more than the usual time on them.
fn server_ns(
    step: &Step,
    effects: &Effects,
    usual: &FxHashMap<u32, f64>,
    has_gpu_times: bool,
) -> f64 {
    match step.class {
        Class::Local | Class::Unsupported => 0.0,
        Class::Synchronous if step.is_wait() => step.floor_ns,
        Class::Synchronous if has_gpu_times && effects.of(step.function).is_wait() => {
            let usual = usual.get(&step.function);
            usual.map_or(step.duration_ns, |usual| usual.min(step.duration_ns))
        }
        Class::Synchronous => step.duration_ns,
        Class::Outstanding | Class::Shadowed => {
            let usual = usual.get(&step.function);
            usual.map_or(step.duration_ns, |usual| usual.min(step.duration_ns))
        }
    }
}
