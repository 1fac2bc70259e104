//! Sets of events: of devices, and of the system. Their source is the news of the program's lease:
//! a GPU that is lost is a device's critical error, one that is attached or detached is bound or
//! unbound. Without a lease a set stays empty, and a wait for it lasts for the caller's timeout.
//!
//! nvidia-smi creates a set first of all, and exits if it cannot.

use std::time::{Duration, Instant};

use super::*;
use crate::{
    news,
    sets::Kind,
    types::{
        EVENT_XID, NO_INSTANCE, SYSTEM_EVENT_BIND, SYSTEM_EVENT_UNBIND, nvmlEventData_t,
        nvmlEventData_v1_t, nvmlEventSet_t, nvmlSystemEventData_v1_t, nvmlSystemEventSet_t,
        nvmlSystemEventSetCreateRequest_t, nvmlSystemEventSetFreeRequest_t,
        nvmlSystemEventSetWaitRequest_t, nvmlSystemRegisterEventRequest_t, struct_version,
    },
};

/// The handle of the first set. Each further handle is one stride higher, as for devices.
const SET_FIRST: usize = 0x0b0e_0000;

/// Interval at which a wait checks whether another thread shut the library down.
const WAIT_STEP: Duration = Duration::from_millis(50);

pub(crate) fn nvmlEventSetCreate(set: Out<'_, nvmlEventSet_t>) -> Result {
    initialised()?;
    set.check()?;
    let number = session::sets().create(Kind::Devices)?;
    set.put(nvmlEventSet_t(set_handle(number)))
}

pub(crate) fn nvmlEventSetFree(set: nvmlEventSet_t) -> Result {
    initialised()?;
    session::sets().free(Kind::Devices, number_of(set.0)?)
}

pub(crate) fn nvmlEventSetWait(
    set: nvmlEventSet_t,
    data: Out<'_, nvmlEventData_v1_t>,
    timeoutms: u32,
) -> Result {
    data.check()?;
    data.put(wait_for_error(set, timeoutms)?)
}

pub(crate) fn nvmlEventSetWait_v2(
    set: nvmlEventSet_t,
    data: Out<'_, nvmlEventData_t>,
    timeoutms: u32,
) -> Result {
    data.check()?;
    data.put(nvmlEventData_t {
        v1: wait_for_error(set, timeoutms)?,
        gpu_instance_id: NO_INSTANCE,
        compute_instance_id: NO_INSTANCE,
    })
}

pub(crate) fn nvmlDeviceGetSupportedEventTypes(
    device: nvmlDevice_t,
    event_types: Out<'_, u64>,
) -> Result {
    event_types.check()?;
    Device::find(device, Age::Any)?;
    event_types.put(supported())
}

pub(crate) fn nvmlDeviceRegisterEvents(
    device: nvmlDevice_t,
    event_types: u64,
    set: nvmlEventSet_t,
) -> Result {
    let found = Device::find(device, Age::Any)?;
    let uuid = found.get()?.uuid.clone();
    let number = number_of(set.0)?;
    session::sets().get(Kind::Devices, number)?;
    if event_types & !supported() != 0 {
        return Err(nvmlReturn_t::NOT_SUPPORTED);
    }
    let there = news::events();
    let mut sets = session::sets();
    sets.get(Kind::Devices, number)?
        .register(Some(uuid), event_types, &there);
    Ok(())
}

pub(crate) fn nvmlSystemEventSetCreate(
    request: Versioned<'_, nvmlSystemEventSetCreateRequest_t>,
) -> Result {
    initialised()?;
    let request = request.of(struct_version::<nvmlSystemEventSetCreateRequest_t>(1))?;
    let number = session::sets().create(Kind::System)?;
    request.put(nvmlSystemEventSetCreateRequest_t {
        set: nvmlSystemEventSet_t(set_handle(number)),
        ..request.get()?
    })
}

pub(crate) fn nvmlSystemEventSetFree(
    request: Versioned<'_, nvmlSystemEventSetFreeRequest_t>,
) -> Result {
    initialised()?;
    let request = request.of(struct_version::<nvmlSystemEventSetFreeRequest_t>(1))?;
    session::sets().free(Kind::System, number_of(request.get()?.set.0)?)
}

pub(crate) fn nvmlSystemRegisterEvents(
    request: Versioned<'_, nvmlSystemRegisterEventRequest_t>,
) -> Result {
    initialised()?;
    let request = request.of(struct_version::<nvmlSystemRegisterEventRequest_t>(1))?;
    let request = request.get()?;
    let number = number_of(request.set.0)?;
    session::sets().get(Kind::System, number)?;
    // Without a lease nobody says which GPUs come and go.
    let is_known = request.event_types & !(SYSTEM_EVENT_BIND | SYSTEM_EVENT_UNBIND) == 0;
    if !is_known || news::file().is_none() {
        return Err(nvmlReturn_t::NOT_SUPPORTED);
    }
    let there = news::events();
    let mut sets = session::sets();
    sets.get(Kind::System, number)?
        .register(None, request.event_types, &there);
    Ok(())
}

pub(crate) unsafe fn nvmlSystemEventSetWait(
    request: Versioned<'_, nvmlSystemEventSetWaitRequest_t>,
) -> Result {
    initialised()?;
    let request = request.of(struct_version::<nvmlSystemEventSetWaitRequest_t>(1))?;
    let mut asked = request.get()?;
    check(asked.data)?;
    let number = number_of(asked.set.0)?;
    asked.num_event = 0;
    request.put(asked)?;
    let room = asked.data_size as usize;
    let events = wait(asked.timeoutms, || {
        let there = news::events();
        let mut sets = session::sets();
        let set = sets.get(Kind::System, number)?;
        let next = std::iter::from_fn(|| set.take_system(&there));
        let events: Vec<(u64, u32)> = next.take(room).collect();
        Ok(Some(events).filter(|events| !events.is_empty()))
    })?;
    for (at, (event_type, gpu_id)) in events.into_iter().enumerate() {
        let event = nvmlSystemEventData_v1_t { event_type, gpu_id };
        // SAFETY: not null, and `at` is below the number of events for which there is room: NVML
        // asks both of its callers.
        unsafe { asked.data.add(at).write_unaligned(event) };
        asked.num_event += 1;
    }
    request.put(asked)
}

/// Returns the types of events that devices report.
fn supported() -> u64 {
    match news::file() {
        Some(_) => EVENT_XID,
        None => 0,
    }
}

fn wait_for_error(set: nvmlEventSet_t, timeoutms: u32) -> Result<nvmlEventData_v1_t> {
    initialised()?;
    let number = number_of(set.0)?;
    let (uuid, xid) = wait(timeoutms, || {
        let there = news::events();
        Ok(session::sets()
            .get(Kind::Devices, number)?
            .take_error(&there))
    })?;
    let snapshot = session::snapshot(Age::Any)?;
    let mut devices = snapshot.content.devices.iter();
    let index = devices.position(|device| device.uuid == uuid);
    Ok(nvmlEventData_v1_t {
        device: handle_of(index.ok_or(nvmlReturn_t::GPU_IS_LOST)?),
        event_type: EVENT_XID,
        event_data: xid,
    })
}

/// Waits until there is something to take, for this time at most.
fn wait<T>(timeout_ms: u32, mut take: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let (start, timeout) = (Instant::now(), Duration::from_millis(timeout_ms.into()));
    // Before the first look, so that nothing is missed in between.
    let watch = news::Watch::new();
    loop {
        initialised()?;
        if let Some(taken) = take()? {
            return Ok(taken);
        }
        let left = timeout.checked_sub(start.elapsed());
        match left.filter(|left| !left.is_zero()) {
            Some(left) => watch.wait(left.min(WAIT_STEP)),
            None => return Err(nvmlReturn_t::TIMEOUT),
        }
    }
}

fn initialised() -> Result {
    match session::is_initialised() {
        true => Ok(()),
        false => Err(nvmlReturn_t::UNINITIALIZED),
    }
}

fn set_handle(number: usize) -> usize {
    SET_FIRST + number * HANDLE_STRIDE
}

fn number_of(handle: usize) -> Result<usize> {
    let offset = handle.checked_sub(SET_FIRST);
    offset
        .filter(|offset| offset % HANDLE_STRIDE == 0)
        .map(|offset| offset / HANDLE_STRIDE)
        .ok_or(nvmlReturn_t::INVALID_ARGUMENT)
}
