//! The barriers of a block: arrivals of its warps, and their release.

use crate::code::BarKind;
use crate::interp::Env;
use crate::interp::run::dispatch::Arrival;
use crate::interp::run::group::{Group, GroupState};
use crate::interp::run::warp::Warp;
use crate::lanes::lanes;
use crate::limits::BARRIERS;

/// State of one of the block's barriers.
#[derive(Clone, Copy, Default)]
struct Barrier {
    /// Threads counted so far, and the number expected; 0 for all.
    threads: u32,
    expected: u32,
    waiting: bool,
    votes: u32,
    all: bool,
    /// The first arrival: its thread, and the instruction.
    first: Option<(u32, u32)>,
}

#[derive(Default)]
pub(crate) struct Barriers {
    barriers: [Barrier; BARRIERS],
    /// Barriers at which threads have arrived.
    pub(super) pending: u32,
    /// Lanes arrived in this phase, by barrier and warp.
    arrived: Vec<u32>,
    pub(super) warps: usize,
}

impl Barriers {
    pub(super) fn reset(&mut self, warps: usize) {
        // A barrier that is not pending is empty.
        if self.pending != 0 || self.warps != warps {
            self.pending = 0;
            self.arrived.clear();
            self.arrived.resize(BARRIERS * warps, 0);
            self.warps = warps;
        }
    }

    /// Counts a group as arrived.
    pub(crate) fn arrive(
        &mut self,
        (env, block): (&Env<'_>, [u32; 3]),
        arrival: &Arrival,
        warp: &Warp,
        group: &Group,
    ) -> Result<(), String> {
        let warps = self.warps;
        let Some(barrier) = self.barriers.get_mut(arrival.id as usize) else {
            return Err(format!(
                "barrier {} does not exist: there are {BARRIERS}",
                arrival.id
            ));
        };
        if self.pending >> arrival.id & 1 == 0 {
            self.pending |= 1 << arrival.id;
            *barrier = Barrier {
                all: true,
                ..Barrier::default()
            };
        }
        if !arrival.count.is_multiple_of(32) {
            return Err(format!(
                "barrier for {} threads: not whole warps",
                arrival.count
            ));
        }
        let arrived = &mut self.arrived[arrival.id as usize * warps + warp.index as usize];
        let before = *arrived;
        *arrived |= group.mask;
        barrier.threads += group.mask.count_ones();
        // Barriers count whole warps: lanes that have exited arrive together with the last live
        // one.
        if warp.live & !before != 0 && warp.live & !*arrived == 0 {
            barrier.threads += 32 - warp.live.count_ones();
        }
        if let Some(watch) = env.watch
            && arrival.count == 0
        {
            // The group's program counter is already past the barrier.
            let here = (
                warp.index * 32 + group.mask.trailing_zeros(),
                group.pc.wrapping_sub(1),
            );
            let first = *barrier.first.get_or_insert(here);
            if first.1 != here.1 {
                watch.barriers_differ(env.linear(block), first, here);
            }
        }
        barrier.expected = arrival.count;
        barrier.waiting |= arrival.kind != BarKind::Arrive;
        barrier.votes += arrival.votes.count_ones();
        barrier.all &= arrival.votes == group.mask;
        Ok(())
    }

    /// Releases the groups whose barrier is complete. Returns whether there were any.
    pub(super) fn release(&mut self, env: &Env<'_>, warps: &mut [Warp], block: u64) -> bool {
        let mut any = false;
        for id in lanes(self.pending) {
            let barrier = &self.barriers[id];
            let arrived = &mut self.arrived[id * self.warps..][..self.warps];
            let complete = if barrier.expected == 0 {
                // The last warp is usually the last to arrive.
                let mut missing = arrived.iter().zip(warps.iter()).rev();
                missing.all(|(&arrived, warp)| warp.live & !arrived == 0)
            } else {
                barrier.threads >= barrier.expected
            };
            if !complete {
                continue;
            }
            any = true;
            if let Some(watch) = env.watch {
                watch.barrier(block);
            }
            for warp in warps.iter_mut() {
                for i in 0..warp.groups.len() {
                    let group = warp.groups[i];
                    if let GroupState::Barrier { id: at, kind, dest } = group.state
                        && at as usize == id
                    {
                        warp.groups[i].state = GroupState::Ready;
                        deliver(env, warp, &group, kind, dest, barrier);
                    }
                }
            }
            arrived.fill(0);
            self.pending &= !(1 << id);
        }
        any
    }
}

/// Writes a reduction's result for the lanes of a group.
fn deliver(
    env: &Env<'_>,
    warp: &mut Warp,
    group: &Group,
    kind: BarKind,
    dest: u32,
    barrier: &Barrier,
) {
    if matches!(kind, BarKind::Sync | BarKind::Arrive) {
        return;
    }
    let files = warp.storage.files(env, &group.frame);
    let all_or_none = |value: bool| if value { u32::MAX } else { 0 };
    match kind {
        BarKind::Sync | BarKind::Arrive => {}
        BarKind::RedPopc => {
            lanes(group.mask).for_each(|l| files.set_lane32(dest, l, barrier.votes))
        }
        BarKind::RedAnd => files.set_pred(dest as u16, group.mask, all_or_none(barrier.all)),
        BarKind::RedOr => files.set_pred(dest as u16, group.mask, all_or_none(barrier.votes > 0)),
    }
}
