//! The clock that both ends of an emulated network read.

use std::fs;

use outboard_wire::{handshake::Clock as Told, limits::CLOCK_SKEW_MS_MAX};
use rustix::time::{ClockId, clock_gettime};

/// The kernel draws it at boot; all containers of a machine see the same one.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Reads `CLOCK_MONOTONIC`, which never goes back and is the same on all cores.
#[inline]
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    // Neither is negative: the clock starts with the machine.
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Reason why two processes cannot emulate a network between them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClockError {
    #[error("{BOOT_ID} cannot be read, which tells whether both ends are on one machine: {0}")]
    NoBootId(String),
    #[error(
        "a network can be emulated only between processes of one machine, which have one clock (the program's machine was booted as {theirs}, the server's as {ours}); leave --emulate out, or start a server where the program runs"
    )]
    OtherMachine { ours: String, theirs: String },
    #[error(
        "a network can be emulated only between processes that have one clock, and the program's monotonic clock is {skew_ms} ms from the server's: is one of them in a time namespace of its own?"
    )]
    OtherClock { skew_ms: u64 },
}

/// Describes a client's clock, and compares a server's clock with it.
pub struct Clock;

impl Clock {
    /// Describes this process's clock.
    pub fn told() -> Result<Told, ClockError> {
        let boot_id =
            fs::read_to_string(BOOT_ID).map_err(|error| ClockError::NoBootId(error.to_string()))?;
        Ok(Told {
            boot_id: boot_id.trim().into(),
            now_ns: now_ns(),
        })
    }

    /// Checks that the clock which the other side has just described is also this process's.
    pub fn compare(theirs: &Told) -> Result<(), ClockError> {
        agree(&Self::told()?, theirs)
    }
}

fn agree(ours: &Told, theirs: &Told) -> Result<(), ClockError> {
    if ours.boot_id != theirs.boot_id {
        return Err(ClockError::OtherMachine {
            ours: ours.boot_id.clone(),
            // The text comes from the peer.
            theirs: theirs.boot_id.chars().take(64).collect(),
        });
    }
    // The client read its clock before this server did, and not long before.
    let skew_ns = ours.now_ns.abs_diff(theirs.now_ns);
    if theirs.now_ns > ours.now_ns || skew_ns > CLOCK_SKEW_MS_MAX * 1_000_000 {
        let skew_ms = skew_ns / 1_000_000;
        return Err(ClockError::OtherClock { skew_ms });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_the_clock_that_it_has() {
        let told = Clock::told().unwrap();
        assert_eq!(told.boot_id.len(), 36, "{told:?}");
        assert_eq!(Clock::compare(&told), Ok(()));
    }

    #[test]
    fn other_machines_and_other_clocks_are_told_apart() {
        let told = |boot_id: &str, now_ns| Told {
            boot_id: boot_id.into(),
            now_ns,
        };
        let ours = told("one", 50_000_000_000);
        assert_eq!(agree(&ours, &told("one", 50_000_000_000)), Ok(()));
        assert_eq!(agree(&ours, &told("one", 49_000_000_000)), Ok(()));
        let ours = told("one", 500_000_000_000);
        let other = agree(&ours, &told("two", ours.now_ns)).unwrap_err();
        assert!(matches!(other, ClockError::OtherMachine { .. }));
        let said = other.to_string();
        assert!(said.contains("booted as two") && said.contains("as one"));
        for now_ns in [0, 439_999_999_999, 500_000_000_001, u64::MAX] {
            let other = agree(&ours, &told("one", now_ns)).unwrap_err();
            assert!(matches!(other, ClockError::OtherClock { .. }), "{other}");
        }
    }
}
