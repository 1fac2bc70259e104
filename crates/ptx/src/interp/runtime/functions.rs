//! The functions of CUDA's device runtime.

use crate::code::{Call, Runtime};
use crate::error::FaultKind;
use crate::interp::core::{Core, Stop, Trouble};
use crate::lanes::lanes;
use crate::limits::PRINTF_STRING_BYTES_MAX;
use crate::output::To;
use crate::printf;
use crate::words::read8;

/// `cudaErrorInvalidValue`.
const INVALID_VALUE: u64 = 1;

impl Core<'_> {
    pub(crate) fn runtime_call(
        &mut self,
        runtime: Runtime,
        call: &Call,
        mask: u32,
    ) -> Result<(), Stop> {
        for lane in lanes(mask) {
            match runtime {
                Runtime::Vprintf => {
                    let count = self.vprintf(call, lane)?;
                    self.set_result(call, lane, count.into());
                }
                Runtime::Malloc => {
                    let bytes = self.param(call, 0, lane);
                    let address = self.env.heap.map_or(0, |heap| heap.allocate(bytes));
                    self.set_result(call, lane, address);
                }
                Runtime::Free => {
                    let address = self.param(call, 0, lane);
                    if !self.env.heap.is_some_and(|heap| heap.free(address)) {
                        let reason = format!("free of {address:#x}, which malloc did not return");
                        return Err(Trouble::at_lane(FaultKind::Trap { reason }, lane));
                    }
                }
                Runtime::AssertFail => return Err(self.assert_fail(call, lane)?),
                Runtime::SetConditional => self.set_conditional(call, lane)?,
                Runtime::GraphLaunch => self.graph_launch(call, lane),
                child => self.child_call(child, call, lane)?,
            }
        }
        Ok(())
    }

    /// Returns parameter `i` of the call in the lane's frame, zero-extended.
    pub(in crate::interp) fn param(&self, call: &Call, i: usize, lane: usize) -> u64 {
        self.param_part(call, i, 0, call.params[i].bytes, lane)
    }

    /// Returns up to eight bytes of a parameter, `len` from `at` on.
    pub(in crate::interp) fn param_part(
        &self,
        call: &Call,
        i: usize,
        at: u32,
        len: u32,
        lane: usize,
    ) -> u64 {
        let slot = call.params[i];
        let mut bytes = [0u8; 8];
        for (k, byte) in bytes.iter_mut().enumerate().take(len as usize) {
            let at = self.local as u64
                + lane as u64 * self.stride
                + self.frame_local
                + u64::from(slot.offset + at)
                + k as u64;
            *byte = read8(at);
        }
        u64::from_le_bytes(bytes)
    }

    pub(in crate::interp) fn set_result(&mut self, call: &Call, lane: usize, value: u64) {
        let Some(slot) = call.returns.first() else {
            return;
        };
        let bytes = value.to_le_bytes();
        let count = (slot.bytes as usize).min(bytes.len());
        // SAFETY: the slot lies in the caller's frame, for which local memory was grown.
        unsafe {
            let to = self.local.add(
                lane * self.stride as usize + self.frame_local as usize + slot.offset as usize,
            );
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, count);
        }
    }

    fn set_conditional(&mut self, call: &Call, lane: usize) -> Result<(), Stop> {
        let (handle, value) = (self.param(call, 0, lane), self.param(call, 1, lane) as u32);
        if !handle.is_multiple_of(4) {
            let reason = format!("{handle:#x} is no handle of a condition");
            return Err(Trouble::at_lane(FaultKind::Trap { reason }, lane));
        }
        let word = self.lane_pointer(handle, 4, lane)?;
        // SAFETY: `lane_pointer` checked four mapped, aligned bytes; other threads access them only
        // as one atomic word.
        unsafe { std::sync::atomic::AtomicU32::from_ptr(word.cast_mut().cast()) }
            .store(value, std::sync::atomic::Ordering::Release);
        Ok(())
    }

    /// Launches a graph. Outside of graphs there is none to launch.
    fn graph_launch(&mut self, call: &Call, lane: usize) {
        let (handle, stream) = (self.param(call, 0, lane), self.param(call, 1, lane));
        let execution = self.env.execution;
        let status = execution.map_or(INVALID_VALUE, |execution| execution.launch(handle, stream));
        self.set_result(call, lane, status);
    }

    /// Reads a C string at a generic address.
    fn string(&mut self, address: u64, lane: usize) -> Result<Vec<u8>, Stop> {
        let mut out = Vec::new();
        while out.len() < PRINTF_STRING_BYTES_MAX {
            let byte =
                read8(self.lane_pointer(address.wrapping_add(out.len() as u64), 1, lane)? as u64);
            if byte == 0 {
                break;
            }
            out.push(byte);
        }
        Ok(out)
    }

    fn vprintf(&mut self, call: &Call, lane: usize) -> Result<u32, Stop> {
        let (format, args) = (self.param(call, 0, lane), self.param(call, 1, lane));
        let format = self.string(format, lane)?;
        let mut reader = LaneArguments {
            core: self,
            args,
            offset: 0,
            lane,
        };
        let (text, count) = printf::format(&format, &mut reader)?;
        self.env.output.write(To::Stdout, &text);
        Ok(count)
    }

    fn assert_fail(&mut self, call: &Call, lane: usize) -> Result<Stop, Stop> {
        let [message, file, function] = [0, 1, 3].map(|i| self.param(call, i, lane));
        let line = self.param(call, 2, lane) as u32;
        let mut text = |address| {
            self.string(address, lane)
                .map(|s| String::from_utf8_lossy(&s).into_owned())
        };
        let (message, file, function) = (text(message)?, text(file)?, text(function)?);
        let [bx, by, bz] = self.block;
        let [tx, ty, tz] = [0, 1, 2].map(|axis: usize| self.storage.tid[axis].0[lane]);
        let message = format!(
            "{file}:{line}: {function}: block: [{bx},{by},{bz}], thread: [{tx},{ty},{tz}] Assertion `{message}` failed."
        );
        self.env
            .output
            .write(To::Stderr, format!("{message}\n").as_bytes());
        Ok(Trouble::at_lane(FaultKind::Assert { message }, lane))
    }
}

/// The packed arguments of `vprintf`, read as the format asks: each at its natural alignment.
struct LaneArguments<'c, 'e> {
    core: &'c mut Core<'e>,
    args: u64,
    offset: u64,
    lane: usize,
}

impl printf::Arguments for LaneArguments<'_, '_> {
    type Error = Stop;

    fn next(&mut self, bytes: u32) -> Result<u64, Stop> {
        self.offset = self.offset.next_multiple_of(bytes.into());
        let at =
            self.core
                .lane_pointer(self.args.wrapping_add(self.offset), bytes.into(), self.lane)?
                as u64;
        self.offset += u64::from(bytes);
        Ok((0..u64::from(bytes)).fold(0, |value, i| value | u64::from(read8(at + i)) << (8 * i)))
    }

    fn string(&mut self, address: u64) -> Result<Vec<u8>, Stop> {
        self.core.string(address, self.lane)
    }
}
