//! Special registers (PTX ISA chapter 10).

use crate::code::{Row, Special};
use crate::interp::core::Core;
use crate::limits::SHARED_UNIT_BYTES;

impl Core<'_> {
    #[inline(never)]
    pub(crate) fn special32(&mut self, which: Special, d: Row, mask: u32) {
        let env = self.env;
        let same = |value: u32| [value; 32];
        let lane = |f: &dyn Fn(u32) -> u32| std::array::from_fn(|l| f(l as u32));
        let value = match which {
            Special::Tid(axis) => self.storage.tid[(axis & 3) as usize].0,
            Special::Ntid(axis) => same(env.block[axis as usize]),
            Special::Ctaid(axis) => same(self.block[axis as usize]),
            Special::Nctaid(axis) => same(env.grid[axis as usize]),
            Special::LaneId => lane(&|l| l),
            Special::WarpId => same(self.warp),
            Special::NwarpId => same(env.block.iter().product::<u32>().div_ceil(32)),
            Special::SmId => same(self.worker),
            Special::NsmId => same(env.workers),
            Special::Clock => same(self.nanoseconds() as u32),
            Special::ClockHi => same((self.nanoseconds() >> 32) as u32),
            Special::GlobalTimerLo => same(wall_clock() as u32),
            Special::GlobalTimerHi => same((wall_clock() >> 32) as u32),
            Special::LanemaskEq => lane(&|l| 1 << l),
            Special::LanemaskLt => lane(&|l| (1 << l) - 1),
            Special::LanemaskLe => lane(&|l| ((2u64 << l) - 1) as u32),
            Special::LanemaskGt => lane(&|l| !((2u64 << l) - 1) as u32),
            Special::LanemaskGe => lane(&|l| !((1u64 << l) - 1) as u32),
            Special::Envreg(index) => same(env.envregs[(index & 31) as usize]),
            Special::DynamicSharedBytes => same(env.dynamic_shared_bytes),
            Special::TotalSharedBytes => {
                let bytes = env.kernel.shared_bytes + env.dynamic_shared_bytes;
                same(bytes.next_multiple_of(SHARED_UNIT_BYTES))
            }
            Special::DynamicSharedStart => same(env.kernel.dynamic_shared_offset),
            Special::Zero
            | Special::Zero64
            | Special::GridId
            | Special::Clock64
            | Special::CurrentGraph
            | Special::GlobalTimer => same(0),
        };
        self.files.set32(d, mask, &value);
    }

    #[inline(never)]
    pub(crate) fn special64(&mut self, which: Special, d: Row, mask: u32) {
        let value = match which {
            Special::GridId => self.env.launch_id,
            Special::Clock64 => self.nanoseconds(),
            Special::Zero64 => 0,
            Special::CurrentGraph => self
                .env
                .execution
                .map_or(0, |execution| execution.current()),
            _ => wall_clock(),
        };
        self.files.set64(d, mask, &[value; 32]);
    }

    /// Returns the software GPU's clock, which ticks at 1 GHz from the start of the launch.
    fn nanoseconds(&self) -> u64 {
        self.env.start.elapsed().as_nanos() as u64
    }
}

fn wall_clock() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |d| d.as_nanos() as u64)
}
