//! The dispatch loop.
//!
//! Most code is straight: instructions without a guard that compute, load and store. [`straight`]
//! runs it with one call per step. Instructions that may move or stop the group, or that only some
//! lanes execute, are handled one by one.

use crate::code::{BarKind, Guard, Op, SINK, SINK_PRED};
use crate::error::FaultKind;
use crate::interp::core::{Core, Stop, Trouble};
use crate::interp::run::group::{Group, GroupState};
use crate::interp::step::{Step, StepKind};

/// Fuel that an atomic costs while lanes are diverged, so that a group that spins on one soon lets
/// others run.
const ATOMIC_FUEL: u64 = 32;

/// Why a group stopped running.
pub(crate) enum Event {
    /// Groups merged or split, so one must be chosen again.
    Reschedule,
    /// The fuel is used up.
    Fuel,
    /// The group waits for what its state names.
    Wait,
    /// The group arrived at a barrier of the block, and waits if it must.
    Barrier(Arrival),
    /// All its lanes exited.
    Gone,
}

/// Arrival of a group at a barrier.
pub(crate) struct Arrival {
    pub(crate) kind: BarKind,
    pub(crate) id: u32,
    /// Threads expected; 0 for all of the block.
    pub(crate) count: u32,
    /// Lanes whose predicate is true.
    pub(crate) votes: u32,
    /// Row or predicate that receives a reduction's result.
    pub(crate) dest: u32,
}

/// Runs a group until an event. `limit` is the lowest program counter, above the group's own, of
/// another group of the same depth.
pub(crate) fn run_group<const COUNTED: bool>(
    core: &mut Core<'_>,
    group: &mut Group,
    others: &mut Vec<Group>,
    limit: u32,
    fuel: &mut u64,
) -> Result<Event, Stop> {
    let steps = core.env.steps;
    let active = group.mask;
    let mut pc = group.pc;
    let mut left = *fuel;
    let event = loop {
        if left == 0 {
            break Event::Fuel;
        }
        let step = &steps.list[pc as usize];
        if step.end > pc {
            let granted = u32::try_from(left).unwrap_or(u32::MAX);
            let end = step.end.min(limit).min(pc.saturating_add(granted));
            // A step of several instructions does not stop halfway.
            let list = match end == step.end {
                true => &steps.list[..],
                false => &steps.singles[..],
            };
            straight(core, list, pc, end, active)?;
            if COUNTED {
                core.env.count(pc..end);
            }
            left -= u64::from(end - pc);
            pc = end;
        } else {
            let mut mask = active;
            if step.guard != Guard::ALWAYS {
                mask &= core.files.pred(step.guard.pred, step.guard.negated);
            }
            if COUNTED {
                core.env.count(pc..pc + 1);
            }
            left -= 1;
            match step.kind {
                _ if mask == 0 => pc += 1,
                StepKind::Plain => {
                    // SAFETY: the steps are those of the core's program, chosen for this host's
                    // features.
                    unsafe { (step.run)(core, step, mask)? };
                    pc += 1;
                }
                StepKind::Branch if mask == active => pc = step.d,
                StepKind::Branch => {
                    group.split(others, mask, step.d, pc + 1);
                    *fuel = left;
                    return Ok(Event::Reschedule);
                }
                StepKind::Together if mask == u32::MAX => {
                    // SAFETY: the steps are those of the core's program, chosen for this host's
                    // features.
                    unsafe { (step.run)(core, step, mask)? };
                    pc += 1;
                }
                StepKind::Together | StepKind::Control => {
                    (core.pc, group.pc) = (pc, pc);
                    if let Some(event) = control(core, group, others, mask, &mut left)? {
                        *fuel = left;
                        return Ok(event);
                    }
                    pc += 1;
                }
            }
        }
        if pc >= limit {
            break Event::Reschedule;
        }
    };
    (group.pc, *fuel) = (pc, left);
    Ok(event)
}

/// Runs straight code, all of it for the same lanes.
#[inline(always)]
fn straight(
    core: &mut Core<'_>,
    list: &[Step],
    from: u32,
    end: u32,
    mask: u32,
) -> Result<(), Stop> {
    let mut code = list[from as usize..end as usize].as_ptr_range();
    while code.start < code.end {
        // SAFETY: the pointer is within the slice. The steps are those of the core's program,
        // chosen for this host's features.
        unsafe {
            let step = &*code.start;
            (step.run)(core, step, mask)?;
            code.start = code.start.byte_add(step.skip.into());
        }
    }
    Ok(())
}

/// Executes an instruction named by [`Op::is_control`], which may affect the group. Returns the
/// event, or `None` if the next instruction follows.
#[inline(never)]
fn control(
    core: &mut Core<'_>,
    group: &mut Group,
    others: &mut Vec<Group>,
    mask: u32,
    fuel: &mut u64,
) -> Result<Option<Event>, Stop> {
    let pc = core.pc;
    match core.program.code[pc as usize].op {
        Op::BrxIdx {
            index,
            first,
            count,
        } => {
            group.peel(others, mask);
            core.indirect_branch(group, others, index, first, count)?;
            Ok(Some(Event::Reschedule))
        }
        Op::Call { call } => {
            group.peel(others, mask);
            core.call(group, others, call)?;
            Ok(Some(Event::Reschedule))
        }
        Op::Ret if group.frame.depth > 0 => {
            group.peel(others, mask);
            core.ret(group, others);
            Ok(Some(Event::Reschedule))
        }
        Op::Ret | Op::Exit => {
            core.live &= !mask;
            group.mask &= !mask;
            group.pc = pc + 1;
            Ok(Some(if group.mask == 0 {
                Event::Gone
            } else {
                Event::Reschedule
            }))
        }
        Op::Trap => {
            let reason = "trap instruction executed".into();
            Err(Trouble::at_lane(
                FaultKind::Trap { reason },
                mask.trailing_zeros() as usize,
            ))
        }
        Op::Yield => {
            group.pc = pc + 1;
            *fuel = 0;
            Ok(Some(Event::Fuel))
        }
        Op::Bar {
            kind,
            id,
            count,
            pred,
            negated,
            d,
        } => {
            group.peel(others, mask);
            let lane = mask.trailing_zeros() as usize;
            let votes = if pred == SINK_PRED {
                0
            } else {
                core.files.pred(pred, negated) & mask
            };
            let count = if count == SINK {
                0
            } else {
                core.files.lane32(count, lane)
            };
            group.pc = pc + 1;
            Ok(Some(Event::Barrier(Arrival {
                kind,
                id: core.files.lane32(id, lane),
                count,
                votes,
                dest: d,
            })))
        }
        Op::Atom {
            op,
            wide,
            list,
            ref mem,
        } => {
            core.atomic(op, wide, list, mem, mask)?;
            if !others.is_empty() {
                *fuel = fuel.saturating_sub(ATOMIC_FUEL);
            }
            Ok(None)
        }
        op => {
            let members = core.members(op, mask);
            if members & core.live & !mask != 0 {
                group.peel(others, mask);
                group.state = GroupState::Members(members);
                return Ok(Some(Event::Wait));
            }
            if let Op::WarpSync { .. } = op
                && let Some(watch) = core.env.watch
            {
                watch.warp_sync(core.env.linear(core.block), core.warp);
            }
            core.collective(op, members & core.live, mask)?;
            Ok(None)
        }
    }
}
