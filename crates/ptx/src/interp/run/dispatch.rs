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
use crate::interp::steps::program::Steps;

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
            let (list, end) = straight_part(steps, step.end, pc, (limit, left));
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
                    single(core, step, mask)?;
                    pc += 1;
                }
                StepKind::Branch if mask == active => pc = step.d,
                StepKind::Branch => {
                    group.split(others, mask, step.d, pc + 1);
                    *fuel = left;
                    return Ok(Event::Reschedule);
                }
                StepKind::Together if mask == u32::MAX => {
                    single(core, step, mask)?;
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

/// Returns the steps of straight code that ends at `end`, and where to stop: below `limit`, with
/// `left` instructions to spend.
#[inline(always)]
fn straight_part(steps: &Steps, end: u32, pc: u32, (limit, left): (u32, u64)) -> (&[Step], u32) {
    let granted = u32::try_from(left).unwrap_or(u32::MAX);
    let stop = end.min(limit).min(pc.saturating_add(granted));
    // A step of several instructions does not stop halfway.
    match stop == end {
        true => (&steps.list, stop),
        false => (&steps.singles, stop),
    }
}

/// Runs one step.
#[inline(always)]
fn single(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
    // SAFETY: the steps are those of the core's program, chosen for this host's features.
    unsafe { (step.run)(core, step, mask) }
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
        op @ (Op::BrxIdx { .. } | Op::Call { .. } | Op::Ret | Op::Exit | Op::Trap | Op::Yield) => {
            flow(core, group, others, op, (mask, fuel)).map(Some)
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
            group.pc = pc + 1;
            let lane = mask.trailing_zeros() as usize;
            Ok(Some(Event::Barrier(Arrival {
                kind,
                id: core.files.lane32(id, lane),
                count: match count {
                    SINK => 0,
                    row => core.files.lane32(row, lane),
                },
                votes: match pred {
                    SINK_PRED => 0,
                    pred => core.files.pred(pred, negated) & mask,
                },
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
        op => collective(core, group, others, op, mask),
    }
}

/// Executes a branch, a call, or an end of lanes.
#[inline(always)]
fn flow(
    core: &mut Core<'_>,
    group: &mut Group,
    others: &mut Vec<Group>,
    op: Op,
    (mask, fuel): (u32, &mut u64),
) -> Result<Event, Stop> {
    match op {
        Op::BrxIdx {
            index,
            first,
            count,
        } => {
            group.peel(others, mask);
            core.indirect_branch(group, others, index, first, count)?;
            Ok(Event::Reschedule)
        }
        Op::Call { call } => {
            group.peel(others, mask);
            core.call(group, others, call)?;
            Ok(Event::Reschedule)
        }
        Op::Ret if group.frame.depth > 0 => {
            group.peel(others, mask);
            core.ret(group, others);
            Ok(Event::Reschedule)
        }
        Op::Ret | Op::Exit => {
            core.live &= !mask;
            group.mask &= !mask;
            group.pc = core.pc + 1;
            Ok(match group.mask {
                0 => Event::Gone,
                _ => Event::Reschedule,
            })
        }
        Op::Trap => {
            let reason = match core.program.refusal(core.pc) {
                Some(why) => why.to_owned(),
                None => "trap instruction executed".into(),
            };
            let lane = mask.trailing_zeros() as usize;
            Err(Trouble::at_lane(FaultKind::Trap { reason }, lane))
        }
        Op::Yield => {
            group.pc = core.pc + 1;
            *fuel = 0;
            Ok(Event::Fuel)
        }
        _ => Ok(Event::Reschedule),
    }
}

/// Executes an instruction for whose members the group waits. Lanes whose members have all come go
/// on without those whose members have not: pairs of a warp do not wait for other pairs.
#[inline(always)]
fn collective(
    core: &mut Core<'_>,
    group: &mut Group,
    others: &mut Vec<Group>,
    op: Op,
    mask: u32,
) -> Result<Option<Event>, Stop> {
    let members = core.members(op, mask);
    if members & core.live & !mask != 0 {
        group.peel(others, mask);
        let waiting = core.waiting(op, mask);
        let awaited = core.members(op, waiting) & core.live;
        if waiting == mask {
            group.state = GroupState::Members(awaited);
            return Ok(Some(Event::Wait));
        }
        let pc = core.pc;
        group.split(others, mask & !waiting, pc + 1, pc);
        if let Some(rest) = others.last_mut() {
            rest.state = GroupState::Members(awaited);
        }
        execute_collective(core, op, mask & !waiting)?;
        return Ok(Some(Event::Reschedule));
    }
    execute_collective(core, op, mask)?;
    Ok(None)
}

/// Executes an instruction whose members have come.
fn execute_collective(core: &mut Core<'_>, op: Op, mask: u32) -> Result<(), Stop> {
    if let Op::WarpSync { .. } = op
        && let Some(watch) = core.env.watch
    {
        watch.warp_sync(core.env.linear(core.block), core.warp);
    }
    let members = core.members(op, mask);
    core.collective(op, members & core.live, mask)
}
