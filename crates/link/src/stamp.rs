//! The stamp of a frame over an emulated network: the time at which the frame arrives, sent as a
//! frame before it.

use outboard_wire::limits::ARRIVAL_AHEAD_MS_MAX;

use crate::error::Error;

/// Length of a stamp: the time of arrival in nanoseconds of `CLOCK_MONOTONIC`, little-endian.
pub(crate) const STAMP_BYTES: usize = 8;

/// Reads a stamp. Refuses one later than any network's, which would hold a receiver up for ever.
pub(crate) fn read_stamp(frame: &[u8], now_ns: u64) -> Result<u64, Error> {
    let Ok(stamp) = <[u8; STAMP_BYTES]>::try_from(frame) else {
        return Err(Error::PeerMisbehaved {
            what: "a stamp of that length",
            got: frame.len() as u64,
            allowed: STAMP_BYTES as u64,
        });
    };
    let due_ns = u64::from_le_bytes(stamp);
    let latest_ns = now_ns.saturating_add(ARRIVAL_AHEAD_MS_MAX * 1_000_000);
    if due_ns > latest_ns {
        return Err(Error::PeerMisbehaved {
            what: "a frame that arrives so late",
            got: due_ns,
            allowed: latest_ns,
        });
    }
    Ok(due_ns)
}
