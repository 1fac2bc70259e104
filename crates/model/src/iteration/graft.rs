//! Iterations whose GPU nobody timed, completed from those that were.
//!
//! Whatever times the GPU makes the program's calls slower and leaves gaps between kernels. Where a recording has iterations
//! of both kinds, the calls' times are taken from those that went undisturbed, and what the GPU did from one that was timed:
//!
//! ```text
//!  untimed   ▪▪ ▪▪▪  ▪▪ ▪▪▪ ▪▪       calls: as long as they are
//!  timed     ▪▪▪  ▪▪▪▪   ▪▪▪  ▪▪▪▪   the same calls, slower
//!     GPU       ██ ██ ███  ███       how long each kernel took, and behind which one it comes
//! ```
//!
//! What the timing adds to the gaps between kernels is not known: they are shortened until the iteration, played again, takes
//! no longer than it did.

use outboard_api::decl::Class;
use outboard_trace::GpuWork;

use crate::replay::{Replay, Where};

use super::{Iteration, NONE, Step, Unit};

/// Gaps are shortened in so many steps of halving.
const HALVINGS: u32 = 12;
/// No shorter than this part of what was recorded.
const GAP_PART_MIN: f64 = 0.05;
/// A copy and the call that makes it take about as long: each at least this part of the other.
const COPY_PART_MIN: f64 = 0.6;

/// What became of a recording's iterations.
pub(crate) enum Completed {
    /// All are of one kind.
    AsTheyAre(Vec<Iteration>),
    /// Those that went undisturbed, each with the GPU's work of a timed one.
    Undisturbed(Vec<Iteration>),
    /// Those that were timed: the others make other calls.
    TimedOnly(Vec<Iteration>),
}

pub(crate) fn complete(iterations: Vec<Iteration>) -> Completed {
    let (timed, untimed): (Vec<_>, Vec<_>) = iterations.into_iter().partition(is_timed);
    if untimed.is_empty() {
        return Completed::AsTheyAre(timed);
    }
    if timed.is_empty() {
        return Completed::AsTheyAre(untimed);
    }
    let undisturbed: Vec<Iteration> = untimed
        .iter()
        .filter_map(|one| {
            let alike = timed
                .iter()
                .filter(|other| makes_the_same_calls(one, other));
            typical(alike.collect()).map(|model| graft(one, model))
        })
        .collect();
    match undisturbed.is_empty() {
        true => Completed::TimedOnly(timed),
        false => Completed::Undisturbed(undisturbed),
    }
}

/// Of median duration: the first one that is timed starts what times it.
fn typical(mut order: Vec<&Iteration>) -> Option<&Iteration> {
    order.sort_by(|a, b| a.step_ns.total_cmp(&b.step_ns));
    order.get(order.len().saturating_sub(1) / 2).copied()
}

fn is_timed(iteration: &Iteration) -> bool {
    let mut units = iteration.units.iter();
    units.any(|unit| !unit.is_carried && !unit.is_inferred)
}

/// The calls that a server would see; how often a program asks what it knows may differ.
fn sent(steps: &[Step]) -> impl Iterator<Item = &Step> {
    steps
        .iter()
        .filter(|step| step.class != Class::Local && !step.is_end)
}

fn makes_the_same_calls(one: &Iteration, other: &Iteration) -> bool {
    let same = |(a, b): (&Vec<Step>, &Vec<Step>)| {
        sent(a)
            .map(|step| step.function)
            .eq(sent(b).map(|step| step.function))
    };
    one.threads.len() == other.threads.len() && one.threads.iter().zip(&other.threads).all(same)
}

fn graft(one: &Iteration, model: &Iteration) -> Iteration {
    let mut made = Iteration {
        units: model.units.clone(),
        streams: model.streams.clone(),
        lists: model.lists.clone(),
        ..one.clone()
    };
    for (steps, timed) in made.threads.iter_mut().zip(&model.threads) {
        let steps = steps.iter_mut();
        let steps = steps.filter(|step| step.class != Class::Local && !step.is_end);
        for (step, timed) in steps.zip(sent(timed)) {
            let slower_ns = (timed.duration_ns - step.duration_ns).max(0.0);
            if timed.unit != NONE {
                let unit = &mut made.units[timed.unit as usize];
                match is_copied_by_the_call(unit, timed) {
                    true => shorten(unit, step.duration_ns / timed.duration_ns),
                    false => unit.launch_ns = (unit.launch_ns - slower_ns).max(0.0),
                }
            }
            (step.unit, step.waits) = (timed.unit, timed.waits);
            step.floor_ns = timed.floor_ns.min(step.duration_ns);
            step.tail_ns = timed.tail_ns;
            step.server_ns = match step.is_wait() {
                true => timed.server_ns.min(step.floor_ns),
                // What timing adds to a launch is the server's neither.
                false => (timed.server_ns - slower_ns).max(step.server_ns.min(timed.server_ns)),
            };
        }
    }
    shorten_gaps(&mut made);
    made
}

/// The driver copies pageable memory itself, piece by piece, and returns when it has: the work is as slow as the call.
fn is_copied_by_the_call(unit: &Unit, call: &Step) -> bool {
    matches!(unit.kind, GpuWork::CopyToDevice | GpuWork::CopyToHost)
        && unit.duration_ns > COPY_PART_MIN * call.duration_ns
        && call.duration_ns > COPY_PART_MIN * unit.duration_ns
}

fn shorten(unit: &mut Unit, part: f64) {
    let part = part.min(1.0);
    unit.duration_ns *= part;
    unit.busy_ns *= part;
}

fn shorten_gaps(made: &mut Iteration) {
    let step_ns = made.step_ns;
    let gaps: Vec<f64> = made.units.iter().map(|unit| unit.gap_ns).collect();
    let mut takes_ns = |part: f64| {
        for (unit, gap_ns) in made.units.iter_mut().zip(&gaps) {
            unit.gap_ns = gap_ns * part;
        }
        Replay::new(made).run(Where::Here).total_ns
    };
    if takes_ns(1.0) <= step_ns {
        return;
    }
    let (mut low, mut high) = (GAP_PART_MIN, 1.0);
    for _ in 0..HALVINGS {
        let middle = (low + high) / 2.0;
        match takes_ns(middle) <= step_ns {
            true => low = middle,
            false => high = middle,
        }
    }
    takes_ns(low);
}
