//! `alloca` and related instructions: a second stack for each lane, after the frames of its calls.

use crate::code::{Row, StackOp};
use crate::error::FaultKind;
use crate::interp::core::{Core, Stop, Trouble};
use crate::lanes::lanes;
use crate::limits::LOCAL_BYTES_MAX;

/// Alignment of frames and allocations.
const ALIGN: u32 = 16;

impl Core<'_> {
    pub(crate) fn stack(&mut self, op: StackOp, d: Row, a: Row, mask: u32) -> Result<(), Stop> {
        // Calls stay below this, and so do allocations.
        let limit = self.env.stack_bytes.min(LOCAL_BYTES_MAX);
        let floor = limit.next_multiple_of(ALIGN);
        for lane in lanes(mask) {
            let taken = self.storage.taken[lane];
            match op {
                StackOp::Save => self.files.set_lane64(d, lane, taken.into()),
                // It cannot be more than is allocated: that memory would belong to nothing.
                StackOp::Restore => {
                    let mark = self.files.lane64(a, lane);
                    self.storage.taken[lane] = u32::try_from(mark).unwrap_or(taken).min(taken);
                }
                StackOp::Take { align } => {
                    let bytes = self.files.lane64(a, lane);
                    let start = u64::from(floor + taken).next_multiple_of(align.into());
                    let end = start.saturating_add(bytes);
                    if end > u64::from(floor) + u64::from(limit) {
                        let bytes = end - u64::from(floor);
                        return Err(Trouble::at_lane(FaultKind::StackOverflow { bytes }, lane));
                    }
                    self.storage.taken[lane] = (end - u64::from(floor)) as u32;
                    self.files.set_lane64(d, lane, start);
                    if self.stride < end {
                        let stride = (end as u32).next_power_of_two();
                        let grown = self.storage.grow_local(stride);
                        grown.map_err(|why| Trouble::at_lane(why.into(), lane))?;
                        self.local = self.storage.local.as_mut_ptr().cast();
                        self.stride = self.storage.stride.into();
                    }
                }
            }
        }
        Ok(())
    }
}
