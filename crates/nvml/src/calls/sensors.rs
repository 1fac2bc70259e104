//! Clocks, temperatures, fans.

use super::*;
use crate::types::{nvmlTemperature_t, struct_version};

/// `nvmlTemperatureSensors_t`: the GPU's own sensor.
const SENSOR_GPU: u32 = 0;
/// The highest of the GPU's sensors.
const SENSOR_GPU_MAX: u32 = 1;
/// `NVML_TEMPERATURE_THRESHOLD_COUNT`.
const THRESHOLDS: u32 = 8;
/// `nvmlClockId_t`.
const CLOCK_CURRENT: u32 = 0;
const CLOCK_APPLICATION: u32 = 1;
const CLOCK_APPLICATION_DEFAULT: u32 = 2;
const CLOCK_CUSTOMER_BOOST_MAX: u32 = 3;

pub(crate) fn nvmlDeviceGetClockInfo(
    device: nvmlDevice_t,
    type_: u32,
    clock: Out<'_, u32>,
) -> Result {
    clock_of(device, type_, clock, |d| &d.clocks_mhz)
}

pub(crate) fn nvmlDeviceGetMaxClockInfo(
    device: nvmlDevice_t,
    type_: u32,
    clock: Out<'_, u32>,
) -> Result {
    clock_of(device, type_, clock, |d| &d.clocks_max_mhz)
}

pub(crate) fn nvmlDeviceGetApplicationsClock(
    device: nvmlDevice_t,
    type_: u32,
    clock: Out<'_, u32>,
) -> Result {
    clock_of(device, type_, clock, |d| &d.clocks_application_mhz)
}

pub(crate) fn nvmlDeviceGetClock(
    device: nvmlDevice_t,
    type_: u32,
    id: u32,
    clock: Out<'_, u32>,
) -> Result {
    match id {
        CLOCK_CURRENT => clock_of(device, type_, clock, |d| &d.clocks_mhz),
        CLOCK_APPLICATION => clock_of(device, type_, clock, |d| &d.clocks_application_mhz),
        CLOCK_APPLICATION_DEFAULT | CLOCK_CUSTOMER_BOOST_MAX => {
            clock_of(device, type_, clock, |_| &[None; 4])
        }
        _ => clock_of(device, u32::MAX, clock, |_| &[None; 4]),
    }
}

/// Fills an array of `bytes` bytes. Places after the last state hold `NVML_PSTATE_UNKNOWN`.
pub(crate) unsafe fn nvmlDeviceGetSupportedPerformanceStates(
    device: nvmlDevice_t,
    states: *mut u32,
    bytes: u32,
) -> Result {
    const STATE_UNKNOWN: u32 = 32;
    let found = Device::find(device, Age::Any)?;
    check(states)?;
    let of = &found.get()?.performance_states;
    let room = bytes as usize / size_of::<u32>();
    if of.is_empty() {
        return Err(nvmlReturn_t::NOT_SUPPORTED);
    }
    if of.len() > room {
        return Err(nvmlReturn_t::INSUFFICIENT_SIZE);
    }
    for place in 0..room {
        let state = of.get(place).copied().unwrap_or(STATE_UNKNOWN);
        // SAFETY: not null, and `place` is below the count that fits into `bytes` bytes, which NVML
        // asks of its callers.
        unsafe { states.add(place).write_unaligned(state) };
    }
    Ok(())
}

pub(crate) fn nvmlDeviceGetTemperature(
    device: nvmlDevice_t,
    sensor: u32,
    temperature: Out<'_, u32>,
) -> Result {
    let found = Device::find(device, Age::Now)?;
    temperature.check()?;
    temperature.put(temperature_of(found.get()?, sensor)?)
}

pub(crate) fn nvmlDeviceGetTemperatureV(
    device: nvmlDevice_t,
    temperature: Versioned<'_, nvmlTemperature_t>,
) -> Result {
    let found = Device::find(device, Age::Now)?;
    let temperature = temperature.of(struct_version::<nvmlTemperature_t>(1))?;
    let mut record = temperature.get()?;
    let celsius = temperature_of(found.get()?, record.sensor_type)?;
    record.temperature = i32::try_from(celsius).map_err(|_| nvmlReturn_t::UNKNOWN)?;
    temperature.put(record)
}

pub(crate) fn nvmlDeviceGetTemperatureThreshold(
    device: nvmlDevice_t,
    which: u32,
    celsius: Out<'_, u32>,
) -> Result {
    let found = Device::find(device, Age::Any)?;
    celsius.check()?;
    if which >= THRESHOLDS {
        return Err(nvmlReturn_t::INVALID_ARGUMENT);
    }
    let thresholds = &found.get()?.temperature_thresholds_celsius;
    celsius.put(known(thresholds.get(which as usize).copied().flatten())?)
}

pub(crate) fn nvmlDeviceGetFanSpeed_v2(
    device: nvmlDevice_t,
    fan: u32,
    percent: Out<'_, u32>,
) -> Result {
    let found = Device::find(device, Age::Now)?;
    percent.check()?;
    let of = found.get()?;
    if fan >= known(of.fans)? {
        return Err(nvmlReturn_t::INVALID_ARGUMENT);
    }
    // The snapshot has one speed, which is the first fan's.
    let answer = of.fan_percent.filter(|_| fan == 0);
    percent.put(known(answer)?)
}

fn clock_of(
    device: nvmlDevice_t,
    type_: u32,
    clock: Out<'_, u32>,
    clocks: impl Fn(&NvmlDevice) -> &[Option<u32>; 4],
) -> Result {
    let found = Device::find(device, Age::Now)?;
    clock.check()?;
    let answer = clocks(found.get()?).get(type_ as usize).copied();
    clock.put(known(answer.ok_or(nvmlReturn_t::INVALID_ARGUMENT)?)?)
}

fn temperature_of(device: &NvmlDevice, sensor: u32) -> Result<u32> {
    match sensor {
        SENSOR_GPU => known(device.temperature_celsius),
        SENSOR_GPU_MAX => Err(nvmlReturn_t::NOT_SUPPORTED),
        _ => Err(nvmlReturn_t::INVALID_ARGUMENT),
    }
}
