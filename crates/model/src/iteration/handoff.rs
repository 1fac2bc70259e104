//! Finds threads that wait for each other, which a recording does not say.
//!
//! ```text
//!  main      ▪▪▪▪▪ (silent) ..................... ▪▪▪        forward, then the loss
//!  backward        └► ▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪ ─┘            what autograd's thread does meanwhile
//! ```

use super::{Iteration, StepIndex};

/// Calls of another thread within a gap that cannot be a coincidence.
const HANDOFF_CALLS_MIN: usize = 8;

pub(super) fn find(iteration: &mut Iteration) {
    if iteration.threads.len() < 2 {
        return;
    }
    let mut found: Vec<(StepIndex, StepIndex)> = Vec::new();
    for (thread, steps) in iteration.threads.iter().enumerate() {
        for (index, step) in steps.iter().enumerate() {
            let before = index.checked_sub(1).map(|before| &steps[before]);
            let gap_start_ns = before.map_or(0.0, |before| before.end_ns());
            for (other, others) in iteration.threads.iter().enumerate() {
                if other == thread {
                    continue;
                }
                let first = others.partition_point(|o| o.start_ns < gap_start_ns);
                let end = others.partition_point(|o| o.end_ns() <= step.start_ns && !o.is_end);
                if end < first + HANDOFF_CALLS_MIN {
                    continue;
                }
                let place = |thread: usize, step: usize| StepIndex {
                    thread: thread as u32,
                    step: step as u32,
                };
                found.push((place(thread, index), place(other, end - 1)));
                if index > 0 {
                    found.push((place(other, first), place(thread, index - 1)));
                }
            }
        }
    }
    iteration.handoffs = found.len();
    for (place, after) in found {
        let after_ns = step(iteration, after).end_ns();
        let now = step(iteration, place);
        let has_later = now
            .comes_after
            .is_some_and(|other| step(iteration, other).end_ns() >= after_ns);
        let gap_ns = (now.start_ns - after_ns).max(0.0);
        if !has_later {
            let step = &mut iteration.threads[place.thread as usize][place.step as usize];
            step.comes_after = Some(after);
            step.gap_ns = gap_ns;
        }
    }
}

fn step(iteration: &Iteration, place: StepIndex) -> &super::Step {
    &iteration.threads[place.thread as usize][place.step as usize]
}
