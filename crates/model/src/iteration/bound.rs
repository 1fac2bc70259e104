//! Estimates how long the GPU was busy from how long the program waited, for recordings without
//! times of the GPU.
//!
//! ```text
//!  thread   launch launch launch launch   wait ........ │
//!  GPU         └─► busy ────────────────────────────────┘   it cannot have been done sooner
//! ```
//!
//! If a wait took a good part of the time since the first launch after the previous wait, the
//! program was waiting for the GPU: faster launches would not have ended the wait sooner. If it
//! took next to nothing, the GPU was waiting for the program, and the GPU's time is unknown.

use outboard_api::decl::Class;
use outboard_trace::GpuWork;

use super::{Iteration, List, NONE, Stream, Unit};
use crate::effect::Effects;

/// Shortest wait that counts: a shorter one may be no more than the call and the last kernel.
const WAIT_NS_MIN: f64 = 50_000.0;
/// Shortest wait that counts, as a share of the time since the first launch.
const WAIT_PART_MIN: f64 = 0.05;

pub(super) fn infer(iteration: &mut Iteration, effects: &Effects) {
    for thread in 0..iteration.threads.len() {
        let mut stream = NONE;
        let mut first = None;
        for index in 0..iteration.threads[thread].len() {
            let step = iteration.threads[thread][index];
            let effect = effects.of(step.function);
            if effect.starts_work() && step.class == Class::Outstanding {
                first = first.or(Some((index, step.start_ns)));
            }
            let waits = effect.is_wait() || effect.is_copy();
            if step.class != Class::Synchronous || !waits {
                continue;
            }
            let Some((launch, launched_ns)) = first.take() else {
                continue;
            };
            let region_ns = step.end_ns() - launched_ns;
            if step.duration_ns < WAIT_NS_MIN.max(WAIT_PART_MIN * region_ns) {
                continue;
            }
            if stream == NONE {
                stream = iteration.streams.len() as u32;
                iteration.streams.push(Stream {
                    device: 0,
                    number: NONE - thread as u32,
                    is_blocking: false,
                });
            }
            add(iteration, (thread, launch), (thread, index), stream);
        }
    }
}

/// Adds a unit that is busy from the launch to the end of the wait.
fn add(iteration: &mut Iteration, launch: (usize, usize), wait: (usize, usize), stream: u32) {
    let unit = iteration.units.len() as u32;
    let launch_step = &iteration.threads[launch.0][launch.1];
    // Through a server, the launch was sent when the client had finished with it.
    let from_ns = launch_step.start_ns + launch_step.client_ns;
    let to_ns = iteration.threads[wait.0][wait.1].end_ns();
    iteration.units.push(Unit {
        kind: GpuWork::Kernel,
        name: NONE,
        stream,
        start_ns: from_ns,
        duration_ns: to_ns - from_ns,
        busy_ns: to_ns - from_ns,
        bytes: 0,
        launch_ns: 0.0,
        gap_ns: 0.0,
        after: List::default(),
        is_carried: false,
        is_inferred: true,
        nodes: 1,
        is_by_processor: false,
    });
    let start = iteration.lists.len() as u32;
    iteration.lists.push(unit);
    iteration.threads[launch.0][launch.1].unit = unit;
    let wait = &mut iteration.threads[wait.0][wait.1];
    wait.waits = List { start, len: 1 };
}
