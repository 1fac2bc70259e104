//! The machine's own NVIDIA driver as a device.
//!
//! The driver library is loaded at run time ([`table`]); building needs no part of CUDA. Each
//! operation of the trait is an inherent method of [`Nvidia`] in the file of its topic; derived
//! operations are generated from the declarations. `unsafe` is in [`table`] and [`calls`] (the
//! driver's functions), [`host_memory`] and [`staging`] (memory shared with the GPU), [`printed`]
//! (standard output) and [`nvml`]; elsewhere only where an address has just been checked.
//!
//! Nothing here waits for the GPU, with two exceptions during which the client is served: mapping a
//! range whose freed memory is still in use, for a bounded time (`memory.rs`), and calls for which
//! the driver itself waits (`host_calls.rs`). Objects release themselves when dropped; those that
//! the GPU may still use go through the deferred free of [`deferred_free`].
//!
//! Locks, none held while another is taken: the event pool of a context, the staging pool, the
//! table of host calls, the printed text.

mod activity;
mod addresses;
mod board;
mod calls;
mod capture;
mod captured;
mod compare;
mod contents;
mod contexts;
mod copies;
mod deferred_free;
mod gpu_direct;
mod graph_calls;
mod graphs;
mod host;
mod host_calls;
mod host_copies;
mod host_memory;
mod ipc;
mod jit;
mod launch;
mod mapping;
mod memory;
mod modules;
mod mps;
mod node_work;
mod nvml;
mod nvml_events;
mod nvml_peers;
mod owned;
mod printed;
mod settled;
mod staging;
mod streams;
mod table;
#[cfg(test)]
mod tests;
mod textures;
mod topology;
mod variables;
mod waits;

use std::{
    mem::{forget, take},
    sync::Arc,
    time::{Duration, Instant},
};

use outboard_api::{
    CUresult,
    enums::{CU_COMPUTEMODE_EXCLUSIVE_PROCESS, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE},
};
use outboard_device::{
    Cx, Device, Failure, MemoryInUse, Pending, handle_table::HandleTable,
    session_exports::SessionExports,
};
use outboard_wire::{doc::DeviceCard, messages};
use rustc_hash::FxHashMap;

use self::{
    addresses::{AddressBook, rows},
    board::Boards,
    contexts::Context,
    deferred_free::{DeferredFrees, Marks},
    gpu_direct::GpuDirect,
    graphs::Graphs,
    host_calls::HostCalls,
    host_memory::{HostRanges, PinnedPart},
    jit::Link,
    memory::{Allocation, Memory},
    modules::Library,
    nvml::Nvml,
    owned::{ContextHold, Owned},
    printed::{Captured, Printing},
    settled::Settled,
    staging::Staging,
    streams::{Event, Stream},
    table::{Driver, Record, real},
};

/// How long the end of a session waits for the GPU.
const REST_MS_MAX: u64 = 5_000;
const REST_POLL_US: u64 = 200;
/// Bounds of a context's size: other processes may distort the measurement.
const CONTEXT_BYTES_MIN: u64 = 64 << 20;
const CONTEXT_BYTES_MAX: u64 = 640 << 20;

include!(concat!(env!("OUT_DIR"), "/nvidia_device.rs"));

/// The settings of a session's devices.
#[derive(Debug, Clone, Default)]
pub struct NvidiaOptions {
    /// Memory of each device in bytes; by default the free memory less a reserve.
    pub memory_bytes: Option<u64>,
    /// The driver's numbers of the devices; by default all.
    pub devices: Option<Vec<u32>>,
    /// Whether the client has yet to come, so that there is time to measure a context's size.
    pub ahead: bool,
    /// Part of each GPU's multiprocessors that the session may use, by MPS; by default no limit.
    pub gpu_percent: Option<u8>,
}

/// Checks for a driver with devices. It makes no context, but the process must not fork
/// without exec afterwards.
pub fn available() -> Result<(), String> {
    match Driver::load().and_then(|driver| Ok(driver.cuDeviceGetCount()?)) {
        Ok(1..) => Ok(()),
        Ok(_) => Err(no_device("the driver finds no device").to_string()),
        Err(failure) => Err(failure.to_string()),
    }
}

/// Describes how RDMA adapters may use the GPUs' memory here, or returns why they cannot.
pub fn gpu_direct_report() -> Result<String, String> {
    let driver = Driver::load().map_err(|failure| failure.to_string())?;
    gpu_direct::report(&driver)
}

/// Opens the machine's devices for one session. Once kernels may print, standard output is
/// redirected: the process must not write to it.
pub fn open(options: NvidiaOptions) -> Result<Box<dyn Device>, Failure> {
    if let Some(percent) = options.gpu_percent {
        mps::ask_for(percent);
    }
    Ok(Box::new(Nvidia::open(Driver::load()?, options)?))
}

pub use self::{
    host_calls::HELD_UP_STATUS,
    mps::check as check_mps,
    nvml::{Monitor, is_named as is_management_named},
    nvml_events::{GpuError, GpuErrorKind, Watcher},
};

fn no_device(why: &str) -> Failure {
    Failure::new(CUresult::CUDA_ERROR_NO_DEVICE, why)
}

/// Returns the devices of these numbers, or all.
fn chosen_gpus(driver: &Driver, numbers: Option<Vec<u32>>) -> Result<Vec<Gpu>, Failure> {
    let count = driver.cuDeviceGetCount()?.unsigned_abs();
    let numbers = numbers.unwrap_or_else(|| (0..count).collect());
    let gpu = |number| {
        if number >= count {
            return Err(no_device(&format!(
                "device {number} was asked for; the driver finds {count}"
            )));
        }
        Ok(Gpu {
            ordinal: driver.cuDeviceGet(number as i32)?,
            peers: Vec::new(),
        })
    };
    numbers.into_iter().map(gpu).collect()
}

/// Returns the device memory that the current context occupies, by what was free before it.
fn context_bytes(driver: &Driver, free_before: Option<u64>) -> Result<u64, Failure> {
    let Some(before) = free_before else {
        return Ok(CONTEXT_BYTES_MAX);
    };
    let bytes = before.saturating_sub(driver.cuMemGetInfo_v2()?.0);
    Ok(bytes.clamp(CONTEXT_BYTES_MIN, CONTEXT_BYTES_MAX))
}

/// Refuses a GPU that accepts one process at a time: the context of a waiting spare would keep all
/// others out.
fn refuse_exclusive(driver: &Driver, devices: &[Gpu]) -> Result<(), Failure> {
    for gpu in devices {
        let mode = driver.cuDeviceGetAttribute(CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, gpu.ordinal)?;
        if mode.unsigned_abs() == CU_COMPUTEMODE_EXCLUSIVE_PROCESS {
            return Err(Failure::new(
                CUresult::CUDA_ERROR_NOT_PERMITTED,
                "a GPU in exclusive compute mode has no room for a spare worker (--spare 0)",
            ));
        }
    }
    Ok(())
}

/// One of the session's devices.
pub(crate) struct Gpu {
    /// The driver's number.
    ordinal: i32,
    /// The session's numbers of the devices that may use this device's memory.
    peers: Vec<usize>,
}

/// One session's use of the driver. Fields are dropped from top to bottom, users of others first.
struct Nvidia {
    memory_bytes: Option<u64>,
    /// Memory that the session has allocated, by its number of the device.
    in_use: MemoryInUse,
    /// Dropped first, because it releases the driver's callback threads.
    host_calls: HostCalls,
    graphs: Graphs,
    libraries: HandleTable<Library>,
    links: HandleTable<Link>,
    textures: HandleTable<Owned<real::Texture>>,
    surfaces: HandleTable<Owned<real::Surface>>,
    arrays: HandleTable<Array>,
    mipmaps: HandleTable<Owned<real::Mipmap>>,
    events: HandleTable<Event>,
    streams: HandleTable<Stream>,
    settled: Settled,
    deferred_frees: DeferredFrees,
    /// Marks in every busy stream, valid while nothing is submitted.
    recent_marks: Option<Marks>,
    /// Marks of destroyed streams, by the context whose fences must wait for them.
    orphans: Vec<(u64, Arc<owned::Mark>)>,
    /// Captures begun and not ended, by the stream that began each.
    captures: FxHashMap<u64, capture::Begun>,
    /// Memory that captured copies read, by the capture's id.
    capture_memory: FxHashMap<u64, Vec<Arc<PinnedPart>>>,
    staging: Arc<Staging>,
    gpu_direct: GpuDirect,
    ipc: SessionExports,
    boards: Boards,
    host: HostRanges,
    /// Device memory that copies from host memory to host memory pass through.
    pools: host_copies::Pools,
    addresses: AddressBook,
    /// Starts of the ranges in `addresses` that are variables.
    variables: Vec<u64>,
    memory: Memory,
    allocations: HandleTable<Allocation>,
    nvml: Option<Nvml>,
    /// Constant facts of the devices, once they were asked for.
    cards: Vec<DeviceCard>,
    /// Device memory that an unused context takes, in bytes.
    context_bytes: u64,
    printing: Printing,
    /// Standard output, redirected once a module was loaded that may print.
    printed: Option<Captured>,
    /// Standard error, redirected once any module was loaded: any kernel may contain assertions.
    complaints: Option<Captured>,
    contexts: HandleTable<Context>,
    /// The session's number of the context that is current for this thread.
    current: Option<u64>,
    /// The first device's primary context, which owns pinned memory and is kept for the whole
    /// session.
    base: Arc<ContextHold>,
    devices: Vec<Gpu>,
    driver: Arc<Driver>,
}

/// An array, or a level of a mipmapped array, which owns the level.
enum Array {
    Whole(Owned<real::Array>),
    Level(real::Array, u64),
}

impl Drop for Nvidia {
    fn drop(&mut self) {
        // Callbacks that wait for the client hold up streams, and all that follows waits for
        // streams.
        self.host_calls.end();
        if self.enter_base().is_err() || !self.comes_to_rest() {
            tracing::warn!(
                "the GPU is still busy with this session's work; the end of the process ends it"
            );
            self.abandon();
            return;
        }
        self.streams.drain().for_each(drop);
        self.deferred_frees = DeferredFrees::default();
        self.memory.clear();
    }
}

impl Nvidia {
    fn open(driver: Driver, options: NvidiaOptions) -> Result<Nvidia, Failure> {
        let driver = Arc::new(driver);
        let mut devices = chosen_gpus(&driver, options.devices)?;
        contexts::find_peers(&driver, &mut devices);
        let first = devices
            .first()
            .ok_or_else(|| no_device("no device is left to serve"))?;
        if options.ahead {
            refuse_exclusive(&driver, &devices)?;
        }
        if options.gpu_percent.is_some() {
            mps::confirm(&driver, &devices)?;
        }
        // Measured before the first context is made. A worker whose client is already there has no
        // time for it.
        let nvml = options.ahead.then(|| Nvml::load().ok()).flatten();
        let free_bytes = |nvml: &Nvml| {
            let uuid = driver.cuDeviceGetUuid_v2(first.ordinal).ok()?.bytes;
            nvml::free_bytes(nvml, &nvml::uuid_text(&uuid))
        };
        let free_before = nvml.as_ref().and_then(free_bytes);
        let base = ContextHold::primary(&driver, 0, first.ordinal)?;
        driver.cuCtxSetCurrent(base.handle)?;
        let context_bytes = context_bytes(&driver, free_before)?;
        let mut contexts = HandleTable::new("context");
        contexts.insert(0, Context::new(base.clone()))?;
        Ok(Nvidia {
            memory_bytes: options.memory_bytes,
            in_use: MemoryInUse::new(devices.len()),
            host_calls: HostCalls::default(),
            graphs: Graphs::new(&driver),
            libraries: HandleTable::new("library"),
            links: HandleTable::new("link"),
            textures: HandleTable::new("texture"),
            surfaces: HandleTable::new("surface"),
            arrays: HandleTable::new("array"),
            mipmaps: HandleTable::new("mipmapped array"),
            events: HandleTable::new("event"),
            streams: HandleTable::new("stream"),
            deferred_frees: DeferredFrees::default(),
            settled: Settled::default(),
            recent_marks: None,
            orphans: Vec::new(),
            captures: FxHashMap::default(),
            capture_memory: FxHashMap::default(),
            staging: Staging::new(&base),
            gpu_direct: GpuDirect::default(),
            ipc: SessionExports::default(),
            boards: Boards::default(),
            host: HostRanges::default(),
            pools: host_copies::Pools::default(),
            addresses: AddressBook::default(),
            variables: Vec::new(),
            memory: Memory::default(),
            allocations: HandleTable::new("allocation"),
            nvml,
            cards: Vec::new(),
            context_bytes,
            printing: Printing::default(),
            printed: None,
            complaints: None,
            contexts,
            current: None,
            base,
            devices,
            driver,
        })
    }

    /// Waits for the GPU at the end of a session, within a time limit.
    fn comes_to_rest(&mut self) -> bool {
        self.captures.clear();
        let Some(marks) = self.busy_marks() else {
            return true;
        };
        let start = Instant::now();
        while !marks.iter().all(|mark| mark.reached().unwrap_or(true)) {
            if start.elapsed() > Duration::from_millis(REST_MS_MAX) {
                return false;
            }
            std::thread::sleep(Duration::from_micros(REST_POLL_US));
        }
        true
    }

    /// Leaks everything: each call that releases an object would wait for work that does not end.
    fn abandon(&mut self) {
        forget(self.driver.clone());
        forget(self.base.clone());
        forget(self.staging.clone());
        forget(take(&mut self.settled));
        forget(take(&mut self.boards));
        forget(take(&mut self.deferred_frees));
        forget(take(&mut self.memory));
        forget(take(&mut self.host));
        forget(take(&mut self.capture_memory));
        forget(take(&mut self.pools));
        self.graphs.abandon();
        self.contexts.drain().for_each(forget);
        self.allocations.drain().for_each(forget);
        self.libraries.drain().for_each(forget);
        self.links.drain().for_each(forget);
        self.textures.drain().for_each(forget);
        self.surfaces.drain().for_each(forget);
        self.arrays.drain().for_each(forget);
        self.mipmaps.drain().for_each(forget);
        self.streams.drain().for_each(forget);
        self.events.drain().for_each(forget);
    }
}
