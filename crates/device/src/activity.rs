//! Helpers shared by the devices that record their activity for a profiler.

use outboard_api::CUresult;
use outboard_wire::{doc, messages};
use rustix::time::{ClockId, clock_gettime};

use crate::Failure;

/// Records in one answer at most, some 100 bytes each.
pub const ACTIVITIES_PER_ANSWER_MAX: u32 = 1 << 15;
/// Host memory for a session's records until they are taken; further ones are dropped and counted.
const ACTIVITIES_KEPT_BYTES_MAX: u64 = 256 << 20;

/// Returns how many records of `bytes_each` a session may keep: `asked_bytes` of them, or the
/// maximum if 0.
pub fn kept_max(asked_bytes: u64, bytes_each: usize) -> usize {
    let bytes = match asked_bytes {
        0 => ACTIVITIES_KEPT_BYTES_MAX,
        asked => asked.min(ACTIVITIES_KEPT_BYTES_MAX),
    };
    usize::try_from(bytes).map_or(1, |bytes| (bytes / bytes_each.max(1)).max(1))
}

/// Reads the clock that the times of every device's activity are on.
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    (now.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(now.tv_nsec as u64)
}

/// Encodes the answer of `activity_take`.
pub fn taken(
    activities: &doc::Activities,
) -> Result<messages::ActivityTakeReply<'static>, Failure> {
    let document = doc::to_bytes(activities)
        .map_err(|e| Failure::new(CUresult::CUDA_ERROR_UNKNOWN, e.to_string()))?;
    Ok(messages::ActivityTakeReply {
        document: document.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_may_ask_for_less_memory_and_never_for_more() {
        let all = kept_max(0, 256);
        assert_eq!(all, 1 << 20);
        assert_eq!(kept_max(u64::MAX, 256), all);
        assert_eq!((kept_max(25_600, 256), kept_max(1, 256)), (100, 1));
    }
}
