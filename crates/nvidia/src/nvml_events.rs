//! Errors of GPUs, as the management library tells them: events, and devices that are lost.

#[cfg(test)]
use std::ffi::OsStr;
use std::{collections::BTreeSet, ffi::c_void, time::Duration};

use outboard_api::CUresult;
use outboard_device::Failure;

use super::nvml::{DeviceHandle, Nvml};

const SUCCESS: u32 = 0;
/// `NVML_ERROR_NOT_FOUND`.
const NOT_FOUND: u32 = 6;
/// `NVML_ERROR_TIMEOUT`.
const TIMEOUT: u32 = 10;
/// `NVML_ERROR_GPU_IS_LOST`.
const GPU_IS_LOST: u32 = 15;
/// `nvmlEventTypeXidCriticalError`.
const EVENT_XID: u64 = 8;
/// `NVML_TEMPERATURE_GPU`.
const SENSOR_GPU: u32 = 0;

/// Types of events that make a GPU broken, of those in nvml.h.
const BROKEN_BY: [(u64, &str); 5] = [
    (0x0002, "double-bit ECC error"),
    (0x0800, "retiring a page of memory failed"),
    (0x2000, "fatal poison error"),
    (0x4000, "GPU is unavailable"),
    (EVENT_XID, ""),
];

type EventSet = *mut c_void;

/// `nvmlEventData_t`.
#[repr(C)]
struct EventData {
    device: DeviceHandle,
    event_type: u64,
    data: u64,
    instances: [u32; 2],
}

const _: () = assert!(size_of::<EventData>() == 32);

/// An event that tells an error of a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuError {
    /// As the management library spells it.
    pub uuid: String,
    pub kind: GpuErrorKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GpuErrorKind {
    /// An error of the driver, by its number.
    Xid(u64),
    /// Another event that says that the GPU is broken.
    Event(&'static str),
}

/// The library, with a set of all these GPUs' events.
pub struct Watcher {
    nvml: Nvml,
    uuids: Vec<String>,
    set: EventSet,
    lost: BTreeSet<String>,
}

// SAFETY: the set is the library's, whose functions may be called by any thread.
unsafe impl Send for Watcher {}

impl Drop for Watcher {
    fn drop(&mut self) {
        type Free = unsafe extern "C" fn(EventSet) -> u32;
        if let Some(function) = self.nvml.function::<Free>("nvmlEventSetFree") {
            // SAFETY: the set was made by this library and is not used again.
            unsafe { function(self.set) };
        }
    }
}

impl Watcher {
    /// Opens the library, and registers for the events of GPUs with these UUIDs. A GPU that is lost
    /// already has none.
    pub fn open(uuids: Vec<String>) -> Result<Watcher, Failure> {
        Watcher::open_with(Nvml::load()?, uuids)
    }

    #[cfg(test)]
    pub(super) fn open_from(library: &OsStr, uuids: Vec<String>) -> Result<Watcher, Failure> {
        Watcher::open_with(Nvml::load_from(&library.into())?, uuids)
    }

    fn open_with(nvml: Nvml, uuids: Vec<String>) -> Result<Watcher, Failure> {
        type Create = unsafe extern "C" fn(*mut EventSet) -> u32;
        let create = nvml.function::<Create>("nvmlEventSetCreate");
        let mut set = std::ptr::null_mut();
        // SAFETY: `set` has room for the answer.
        match create.map(|create| unsafe { create(&mut set) }) {
            Some(SUCCESS) => {}
            status => return Err(refused("nvmlEventSetCreate", status)),
        }
        let watcher = Watcher {
            nvml,
            uuids,
            set,
            lost: BTreeSet::new(),
        };
        for uuid in &watcher.uuids {
            if let Some(device) = watcher.nvml.device(uuid) {
                watcher.register(device)?;
            }
        }
        Ok(watcher)
    }

    fn register(&self, device: DeviceHandle) -> Result<(), Failure> {
        type Ask = unsafe extern "C" fn(DeviceHandle, *mut u64) -> u32;
        type Register = unsafe extern "C" fn(DeviceHandle, u64, EventSet) -> u32;
        let wanted = BROKEN_BY.iter().fold(0, |all, (one, _)| all | one);
        let mut supported = 0;
        let ask = self
            .nvml
            .function::<Ask>("nvmlDeviceGetSupportedEventTypes");
        // SAFETY: a handle of this library, and room for the answer.
        let status = ask.map(|ask| unsafe { ask(device, &mut supported) });
        if status != Some(SUCCESS) {
            return Err(refused("nvmlDeviceGetSupportedEventTypes", status));
        }
        let register = self.nvml.function::<Register>("nvmlDeviceRegisterEvents");
        // SAFETY: handles of this library.
        let status =
            register.map(|register| unsafe { register(device, wanted & supported, self.set) });
        match status {
            Some(SUCCESS) => Ok(()),
            _ => Err(refused("nvmlDeviceRegisterEvents", status)),
        }
    }

    /// Waits for an error, for this time at most, and looks at all GPUs.
    pub fn wait(&mut self, limit: Duration) -> Result<Option<GpuError>, Failure> {
        type Wait = unsafe extern "C" fn(EventSet, *mut EventData, u32) -> u32;
        let wait = self.nvml.function::<Wait>("nvmlEventSetWait_v2");
        let mut data = EventData {
            device: std::ptr::null_mut(),
            event_type: 0,
            data: 0,
            instances: [0; 2],
        };
        let limit_ms = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX);
        // SAFETY: a set of this library, and room for the record of the second version.
        let status = wait.map(|wait| unsafe { wait(self.set, &mut data, limit_ms) });
        let lost = self.uuids.iter().filter(|uuid| self.is_lost(uuid));
        self.lost = lost.cloned().collect();
        match status {
            Some(SUCCESS) => Ok(self.error_of(&data)),
            Some(TIMEOUT) => Ok(None),
            // It is said at once, again and again.
            Some(GPU_IS_LOST) if !self.lost.is_empty() => {
                std::thread::sleep(limit);
                Ok(None)
            }
            _ => Err(refused("nvmlEventSetWait_v2", status)),
        }
    }

    /// Returns the GPUs that the library does not reach at the last look: they have fallen off the
    /// bus.
    pub fn lost(&self) -> &BTreeSet<String> {
        &self.lost
    }

    /// Returns the error that an event tells.
    fn error_of(&self, data: &EventData) -> Option<GpuError> {
        let of = |uuid: &&String| self.nvml.device(uuid) == Some(data.device);
        let uuid = self.uuids.iter().find(of)?.clone();
        let known = BROKEN_BY.iter().find(|(one, _)| *one == data.event_type)?;
        let kind = match known {
            (EVENT_XID, _) => GpuErrorKind::Xid(data.data),
            (_, text) => GpuErrorKind::Event(text),
        };
        Some(GpuError { uuid, kind })
    }

    fn is_lost(&self, uuid: &str) -> bool {
        type Ask = unsafe extern "C" fn(DeviceHandle, u32, *mut u32) -> u32;
        let device = match self.nvml.device_or_status(uuid) {
            Ok(device) => device,
            Err(status) => return matches!(status, GPU_IS_LOST | NOT_FOUND),
        };
        // The handle may outlive the GPU; a sensor does not.
        let ask = self.nvml.function::<Ask>("nvmlDeviceGetTemperature");
        let mut celsius = 0;
        // SAFETY: a handle of this library, and room for the answer.
        let status = ask.map(|ask| unsafe { ask(device, SENSOR_GPU, &mut celsius) });
        status == Some(GPU_IS_LOST)
    }
}

fn refused(call: &str, status: Option<u32>) -> Failure {
    let status = status.map_or("the library does not have it".into(), |status| {
        format!("status {status}")
    });
    Failure::new(
        CUresult::CUDA_ERROR_NOT_SUPPORTED,
        format!("{call}: {status}"),
    )
}
