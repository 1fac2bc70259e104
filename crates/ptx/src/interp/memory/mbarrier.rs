//! `mbarrier`: barriers in shared memory. Each has 64 bits, here:
//!
//! ```text
//!  63 .. 40  phase
//!  39 .. 20  arrivals that each phase expects
//!  19 ..  0  arrivals that the current phase still waits for
//! ```
//!
//! An arrival's state is the object before the arrival. So a wait compares phases, and
//! `pending_count` reads the lowest bits.

use crate::code::mbarrier::{COUNT_MASK, EXPECTED_SHIFT};
use crate::code::{Mbarrier, Mem, SINK_PRED};
use crate::interp::core::{Core, Stop};
use crate::interp::memory::access::Pointers;
use crate::lanes::lanes;
use crate::words::{read64, write64};

const PHASE_SHIFT: u32 = 40;

impl Core<'_> {
    #[inline(never)]
    pub(crate) fn mbarrier(
        &mut self,
        op: Mbarrier,
        list: u32,
        mem: &Mem,
        mask: u32,
    ) -> Result<(), Stop> {
        let [d, value, wide, p] = [0, 1, 2, 3].map(|i| self.program.rows[list as usize + i]);
        let waits = matches!(op, Mbarrier::TestWait | Mbarrier::TestParity);
        let mut at = Pointers::new();
        self.pointers(mem, 8, mask, !waits, &mut at)?;
        let mut done = 0;
        for lane in lanes(mask) {
            let at = at.0[lane];
            // Only this block's threads access its shared memory, and they take turns.
            let object = read64(at);
            let value = || u64::from(self.files.lane32(value, lane));
            match op {
                Mbarrier::Init => {
                    let count = value() & COUNT_MASK;
                    write64(at, count << EXPECTED_SHIFT | count);
                }
                Mbarrier::Invalidate => write64(at, 0),
                Mbarrier::Arrive | Mbarrier::ArriveDrop => {
                    write64(at, arrive(object, value(), op == Mbarrier::ArriveDrop));
                    self.files.set_lane64(d, lane, object);
                }
                Mbarrier::TestWait => {
                    let seen = self.files.lane64(wide, lane) >> PHASE_SHIFT;
                    done |= u32::from(seen != object >> PHASE_SHIFT) << lane;
                }
                Mbarrier::TestParity => {
                    done |= u32::from(value() & 1 != object >> PHASE_SHIFT & 1) << lane;
                }
            }
        }
        if waits && p != u32::from(SINK_PRED) {
            self.files.set_pred(p as u16, mask, done);
        }
        Ok(())
    }
}

/// Returns the object after `count` arrivals; dropped ones are not expected in later phases.
fn arrive(object: u64, count: u64, dropped: bool) -> u64 {
    let mut expected = object >> EXPECTED_SHIFT & COUNT_MASK;
    if dropped {
        expected = expected.saturating_sub(count);
    }
    let (phase, pending) = (
        object >> PHASE_SHIFT,
        (object & COUNT_MASK).saturating_sub(count),
    );
    let (phase, pending) = if pending == 0 {
        (phase + 1, expected)
    } else {
        (phase, pending)
    };
    phase << PHASE_SHIFT | expected << EXPECTED_SHIFT | pending
}
