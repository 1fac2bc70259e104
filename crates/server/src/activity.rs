//! Helpers shared by the devices that record their activity for a profiler.

use outboard_api::CUresult;
use outboard_wire::{doc, messages};
use rustix::time::{ClockId, clock_gettime};

use crate::device::Failure;

/// Records in one answer at most, some 100 bytes each.
pub(crate) const ACTIVITIES_PER_ANSWER_MAX: u32 = 1 << 15;
/// Records that a device keeps until they are taken; further ones are only counted.
pub(crate) const ACTIVITIES_KEPT_MAX: usize = 1 << 20;

/// Reads the clock that the times of every device's activity are on.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    (now.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(now.tv_nsec as u64)
}

/// Encodes the answer of `activity_take`.
pub(crate) fn taken(
    activities: &doc::Activities,
) -> Result<messages::ActivityTakeReply<'static>, Failure> {
    let document = doc::to_bytes(activities)
        .map_err(|e| Failure::new(CUresult::CUDA_ERROR_UNKNOWN, e.to_string()))?;
    Ok(messages::ActivityTakeReply {
        document: document.into(),
    })
}
