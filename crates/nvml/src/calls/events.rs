//! Sets of events. No device of a session reports events, so a set stays empty: a wait for it lasts
//! for the caller's timeout. nvidia-smi creates a set first of all, and exits if it cannot.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use super::*;
use crate::types::{nvmlEventData_t, nvmlEventSet_t};

/// The existing sets, one bit each.
static SETS: AtomicU64 = AtomicU64::new(0);

/// The handle of the first set. Each further handle is one stride higher, as for devices.
const SET_FIRST: usize = 0x0b0e_0000;

/// Interval at which a wait checks whether another thread shut the library down.
const WAIT_STEP: Duration = Duration::from_millis(50);

pub(crate) fn nvmlEventSetCreate(set: Out<'_, nvmlEventSet_t>) -> Result {
    initialised()?;
    set.check()?;
    let before = SETS
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |sets| {
            (sets != u64::MAX).then_some(sets | (sets + 1))
        })
        .map_err(|_| nvmlReturn_t::INSUFFICIENT_RESOURCES)?;
    let number = before.trailing_ones() as usize;
    set.put(nvmlEventSet_t(SET_FIRST + number * HANDLE_STRIDE))
}

pub(crate) fn nvmlEventSetFree(set: nvmlEventSet_t) -> Result {
    initialised()?;
    let bit = bit_of(set)?;
    match SETS.fetch_and(!bit, Ordering::Relaxed) & bit {
        0 => Err(nvmlReturn_t::INVALID_ARGUMENT),
        _ => Ok(()),
    }
}

pub(crate) fn nvmlEventSetWait(
    set: nvmlEventSet_t,
    data: Out<'_, nvmlEventData_t>,
    timeoutms: u32,
) -> Result {
    initialised()?;
    exists(set)?;
    data.check()?;
    let (start, timeout) = (Instant::now(), Duration::from_millis(timeoutms.into()));
    while let Some(left) = timeout.checked_sub(start.elapsed()) {
        thread::sleep(left.min(WAIT_STEP));
        initialised()?;
    }
    Err(nvmlReturn_t::TIMEOUT)
}

pub(crate) fn nvmlDeviceGetSupportedEventTypes(
    device: nvmlDevice_t,
    event_types: Out<'_, u64>,
) -> Result {
    event_types.check()?;
    Device::find(device, Age::Any)?;
    event_types.put(0)
}

pub(crate) fn nvmlDeviceRegisterEvents(
    device: nvmlDevice_t,
    event_types: u64,
    set: nvmlEventSet_t,
) -> Result {
    Device::find(device, Age::Any)?;
    exists(set)?;
    match event_types {
        0 => Ok(()),
        _ => Err(nvmlReturn_t::NOT_SUPPORTED),
    }
}

fn initialised() -> Result {
    match session::is_initialised() {
        true => Ok(()),
        false => Err(nvmlReturn_t::UNINITIALIZED),
    }
}

fn exists(set: nvmlEventSet_t) -> Result {
    match SETS.load(Ordering::Relaxed) & bit_of(set)? {
        0 => Err(nvmlReturn_t::INVALID_ARGUMENT),
        _ => Ok(()),
    }
}

fn bit_of(set: nvmlEventSet_t) -> Result<u64> {
    let offset = set.0.checked_sub(SET_FIRST);
    let number = offset
        .filter(|o| o % HANDLE_STRIDE == 0)
        .map(|o| o / HANDLE_STRIDE);
    number
        .and_then(|n| 1u64.checked_shl(n.try_into().ok()?))
        .ok_or(nvmlReturn_t::INVALID_ARGUMENT)
}
