//! Completes iterations whose GPU work was not timed with that of timed ones.
//!
//! Timing the GPU makes the program's calls slower and leaves gaps between kernels. If a recording
//! has iterations of both kinds, the calls' times come from those that were not disturbed, and the
//! GPU's work from one that was timed:
//!
//! ```text
//!  untimed   ▪▪ ▪▪▪  ▪▪ ▪▪▪ ▪▪       calls: as long as they are
//!  timed     ▪▪▪  ▪▪▪▪   ▪▪▪  ▪▪▪▪   the same calls, slower
//!     GPU       ██ ██ ███  ███       duration of each kernel, and order of kernels
//! ```
//!
//! The gaps that timing adds between kernels are unknown: gaps are shortened until the iteration,
//! replayed, takes no longer than it did.

use outboard_api::decl::Class;

use crate::{
    iteration::{Iteration, NONE, Step},
    replay::{Replay, Where},
};

/// Steps of bisection in which gaps are shortened.
const HALVINGS: u32 = 12;
/// Shortest gap, as a share of the recorded one.
const GAP_PART_MIN: f64 = 0.05;

/// A recording's iterations after completion.
pub(crate) enum Completed {
    /// Unchanged: all are of one kind.
    AsTheyAre(Vec<Iteration>),
    /// The undisturbed ones, each with the GPU's work of a timed one.
    Undisturbed(Vec<Iteration>),
    /// The timed ones, since the others make different calls.
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

/// Returns the iteration of median duration: the first one that is timed also starts the timing.
fn typical(mut order: Vec<&Iteration>) -> Option<&Iteration> {
    order.sort_by(|a, b| a.step_ns.total_cmp(&b.step_ns));
    order.get(order.len().saturating_sub(1) / 2).copied()
}

fn is_timed(iteration: &Iteration) -> bool {
    let mut units = iteration.units.iter();
    units.any(|unit| !unit.is_carried && !unit.is_inferred)
}

/// Calls that a server would see. Local queries are left out, since their number may differ.
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
                match unit.is_by_processor {
                    true => unit.scale((step.duration_ns / timed.duration_ns).min(1.0)),
                    false => unit.launch_ns = (unit.launch_ns - slower_ns).max(0.0),
                }
            }
            (step.unit, step.waits) = (timed.unit, timed.waits);
            step.floor_ns = timed.floor_ns.min(step.duration_ns);
            step.tail_ns = timed.tail_ns;
            step.server_ns = match step.is_wait() {
                true => timed.server_ns.min(step.floor_ns),
                // Time that timing adds to a launch is no time of the server's either.
                false => (timed.server_ns - slower_ns).max(step.server_ns.min(timed.server_ns)),
            };
        }
    }
    shorten_gaps(&mut made);
    made
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
