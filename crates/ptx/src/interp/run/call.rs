//! Calls, returns and indirect branches.

use crate::code::{Callee, FUNCTION_WINDOW, ParamSlot, Row, WINDOW_MASK};
use crate::error::FaultKind;
use crate::interp::core::{Core, Stop, Trouble};
use crate::interp::run::group::Group;
use crate::interp::storage::{Frame, Return};
use crate::lanes::lanes;
use crate::limits::CALL_DEPTH_MAX;
use crate::room;

impl Core<'_> {
    /// Enters the callee, or runs it if it belongs to the device runtime. All lanes of the group
    /// call together.
    #[inline(never)]
    pub(crate) fn call(
        &mut self,
        group: &mut Group,
        others: &mut Vec<Group>,
        index: u32,
    ) -> Result<(), Stop> {
        let program = self.program;
        let call = &program.calls[index as usize];
        let function = match call.callee {
            Callee::Function(function) => function,
            Callee::Indirect(row) => self.target_function(group, others, row, index)?,
            Callee::Runtime(runtime) => {
                self.runtime_call(runtime, call, group.mask)?;
                group.pc += 1;
                return Ok(());
            }
        };
        let (frame, entry) = self.callee_frame(group, function)?;
        let slot = group.frame.depth as usize;
        room::lengthen(&mut self.storage.returns, slot + 1, [Return::default(); 32])
            .map_err(|why| Trouble::at_lane(why.into(), group.mask.trailing_zeros() as usize))?;
        self.enter(&frame);
        for lane in lanes(group.mask) {
            self.storage.returns[slot][lane] = Return {
                pc: group.pc + 1,
                call: index,
                frame: group.frame,
            };
        }
        self.copy_params(
            group.mask,
            &call.params,
            group.frame.local,
            &program.functions[function as usize].params,
            frame.local,
        );
        (group.frame, group.pc) = (frame, entry);
        Ok(())
    }

    /// Reserves the frame of a function that a group calls; returns it with the function's entry.
    #[inline(always)]
    fn callee_frame(&mut self, group: &Group, function: u32) -> Result<(Frame, u32), Stop> {
        let functions = &self.program.functions;
        let (caller, callee) = (
            &functions[group.frame.function as usize],
            &functions[function as usize],
        );
        let first = group.mask.trailing_zeros() as usize;
        let Some(entry) = callee.entry else {
            let address = FUNCTION_WINDOW | u64::from(function);
            return Err(Trouble::at_lane(
                FaultKind::InvalidTarget { address },
                first,
            ));
        };
        let frame = Frame {
            r32: group.frame.r32 + caller.rows32,
            r64: group.frame.r64 + caller.rows64,
            preds: group.frame.preds + caller.preds,
            local: group.frame.local + caller.frame_bytes,
            depth: group.frame.depth + 1,
            function,
        };
        if frame.depth as usize > CALL_DEPTH_MAX {
            let bytes = frame.local.into();
            return Err(Trouble::at_lane(FaultKind::StackOverflow { bytes }, first));
        }
        self.storage
            .reserve(self.env, &frame)
            .map_err(|kind| Trouble::at_lane(kind, first))?;
        Ok((frame, entry))
    }

    /// Leaves the callee. Lanes may return to different places.
    #[inline(never)]
    pub(crate) fn ret(&mut self, group: &mut Group, others: &mut Vec<Group>) {
        let program = self.program;
        let slot = group.frame.depth as usize - 1;
        let callee = &program.functions[group.frame.function as usize];
        let mut rest = group.mask;
        let from = *group;
        let mut first = true;
        while rest != 0 {
            let back = self.storage.returns[slot][rest.trailing_zeros() as usize];
            let same = lanes(rest)
                .filter(|&l| self.storage.returns[slot][l] == back)
                .fold(0, |m, l| m | 1 << l);
            rest &= !same;
            let call = &program.calls[back.call as usize];
            self.copy_params(
                same,
                &callee.returns,
                from.frame.local,
                &call.returns,
                back.frame.local,
            );
            let returned = Group {
                pc: back.pc,
                mask: same,
                frame: back.frame,
                ..from
            };
            if first {
                *group = returned;
                first = false;
            } else {
                others.push(returned);
            }
        }
    }

    fn copy_params(
        &mut self,
        mask: u32,
        from: &[ParamSlot],
        from_local: u32,
        to: &[ParamSlot],
        to_local: u32,
    ) {
        for (from, to) in from.iter().zip(to) {
            let (source, dest) = (
                u64::from(from_local + from.offset),
                u64::from(to_local + to.offset),
            );
            for lane in lanes(mask) {
                self.copy_local(lane, dest, source, from.bytes.min(to.bytes));
            }
        }
    }

    /// Returns the function that the first lane calls. Lanes that call another wait their turn at
    /// the same instruction.
    fn target_function(
        &mut self,
        group: &mut Group,
        others: &mut Vec<Group>,
        row: Row,
        index: u32,
    ) -> Result<u32, Stop> {
        let first = group.mask.trailing_zeros() as usize;
        let address = self.files.lane64(row, first);
        let same = lanes(group.mask)
            .filter(|&l| self.files.lane64(row, l) == address)
            .fold(0, |m, l| m | 1 << l);
        if same != group.mask {
            group.split(others, same, group.pc, group.pc);
        }
        let invalid = || Trouble::at_lane(FaultKind::InvalidTarget { address }, first);
        if address & WINDOW_MASK != FUNCTION_WINDOW {
            return Err(invalid());
        }
        let function = (address & !WINDOW_MASK) as usize;
        let Some(callee) = self.program.functions.get(function) else {
            return Err(invalid());
        };
        // A call through a pointer of another type would read parameters that were never passed.
        let call = &self.program.calls[index as usize];
        let fits = |a: &[ParamSlot], b: &[ParamSlot]| {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.bytes == b.bytes)
        };
        if callee.kernel
            || !fits(&call.params, &callee.params)
            || !fits(&call.returns, &callee.returns)
        {
            return Err(invalid());
        }
        Ok(function as u32)
    }

    #[inline(never)]
    pub(crate) fn indirect_branch(
        &mut self,
        group: &mut Group,
        others: &mut Vec<Group>,
        index: Row,
        first: u32,
        count: u32,
    ) -> Result<(), Stop> {
        let index = self.files.get32(index);
        let lead = group.mask.trailing_zeros() as usize;
        let same = lanes(group.mask)
            .filter(|&l| index[l] == index[lead])
            .fold(0, |m, l| m | 1 << l);
        if same != group.mask {
            group.split(others, same, group.pc, group.pc);
        }
        if index[lead] >= count {
            return Err(Trouble::at_lane(
                FaultKind::InvalidTarget {
                    address: index[lead].into(),
                },
                lead,
            ));
        }
        group.pc = self.program.targets[(first + index[lead]) as usize];
        Ok(())
    }
}
