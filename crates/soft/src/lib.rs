//! The software device: PTX on the CPU, for a machine without a GPU.
//!
//! [`outboard_ptx`] runs kernels and keeps the order of streams, events and graphs. This crate
//! adds the client's handles, the device card of the chosen compute capability, the checks that a
//! driver makes at the call, and CUDA's error numbers. Each operation of the trait is an inherent
//! method in the file of its topic; tensor maps are missing and answer CUDA_ERROR_NOT_SUPPORTED by
//! name.
//!
//! `unsafe` is in `host` and `ipc` (memory mapped from other processes), in `conditions`, and
//! where adapters use memory.

mod activity;
mod arrays;
mod capability;
mod capture;
mod card;
mod conditions;
mod contexts;
mod copies;
mod graphs;
mod host;
mod ipc;
mod jit_limits;
mod launch;
mod lent;
mod links;
mod memory;
mod modules;
mod nvml;
mod ops;
mod records;
mod retired;
mod streams;
#[cfg(test)]
mod tests;
mod textures;
mod wait;

use std::{borrow::Cow, collections::BTreeMap, fs, sync::Arc};

use outboard_api::{CUDA_VERSION, CUresult};
use outboard_device::{
    Cx, Device, Failure, Host, MemoryInUse, Pending, Printed, Way, handle_table::HandleTable,
};
use outboard_link::{DeviceMemory, GpuMemory, Reach, cores};
use outboard_net::{Registered, remote::Borrower};
use outboard_ptx::{
    check::Checker,
    device::{EventId, ExecId, Gpu, GraphId, HostCall, Machine, NodeId},
    memory::{Memory, MemoryError},
};
use outboard_wire::{
    doc::{self, DeviceCard},
    limits::SERVERS_MAX,
    messages,
};
use rustc_hash::FxHashMap;
use rustix::process::{Resource, getrlimit};
use tracing::warn;

pub use capability::Capability;
pub use card::NAME;
pub use outboard_ptx::check::Checks;

/// The window in which the client places device memory.
const WINDOW_BASE: u64 = 0x2000_0000_0000;
const WINDOW_BYTES: u64 = 1 << 40;
/// Bytes after the window: variables of modules, and the heap of device-side `malloc`.
const INTERNAL_BYTES: u64 = 64 << 30;
/// Part of a limited address space (`ulimit -v`) that the window takes, and the least window: the
/// rest is for variables of modules, threads' stacks and copies.
const WINDOW_PART_OF_LIMIT: u64 = 4;
const WINDOW_BYTES_MIN: u64 = 64 << 20;
/// Distance between windows of neighbouring numbers.
const WINDOW_STEP_BYTES: u64 = 2 << 40;
/// Places for the window of one number, if the first is taken by a second device of the process or
/// by chance.
const WINDOW_TRIES_MAX: u64 = 4;
/// Threads that run one launch.
const THREADS_MAX: usize = 1024;
/// Devices of one session.
const DEVICES_MAX: usize = 64;
/// Memory of a device at most: its addresses lie in the window.
pub const MEMORY_BYTES_MAX: u64 = WINDOW_BYTES;
/// Memory of a device by default, at most.
const MEMORY_DEFAULT_BYTES_MAX: u64 = 8 << 30;

/// The settings of a session's software devices.
#[derive(Debug, Clone)]
pub struct SoftOptions {
    /// Memory of each device, in bytes; by default half of the machine's, at most 8 GiB.
    pub memory_bytes: Option<u64>,
    /// Threads that run kernels; by default the machine's cores.
    pub threads: Option<usize>,
    /// Compute capability that the devices report.
    pub capability: Capability,
    /// Number of devices of this machine, at least 1.
    pub devices: usize,
    /// Numbers of the devices that the session has; by default all.
    pub chosen: Option<Vec<u32>>,
    /// Begins the UUIDs of this machine's devices.
    pub board: [u8; BOARD_BYTES],
    /// Mistakes to watch kernels for, and the order in which threads run.
    pub watch: Watch,
}

/// Mistakes of kernels that the software GPU reports and no real GPU would.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Watch {
    pub checks: Checks,
    /// Whether a launch with findings fails.
    pub fail: bool,
    /// Seed for the order of blocks, warps and lanes.
    pub seed: Option<u64>,
}

impl Default for SoftOptions {
    fn default() -> SoftOptions {
        SoftOptions {
            memory_bytes: None,
            threads: None,
            capability: Capability::default(),
            devices: 1,
            chosen: None,
            board: BOARD,
            watch: Watch::default(),
        }
    }
}

/// Length of the beginning of the devices' UUIDs; the number of the device is the rest.
pub const BOARD_BYTES: usize = 14;
/// That beginning, unless a server has one of its own.
pub const BOARD: [u8; BOARD_BYTES] = *b"outboard-soft-";

/// Opens one or several software GPUs, which share their window of memory and their threads.
pub fn open(options: SoftOptions) -> Result<Box<dyn Device>, Failure> {
    Ok(Box::new(Soft::new(options, 0)?))
}

struct Soft {
    options: SoftOptions,
    /// The number of its address window.
    window: u8,
    gpu: Gpu,
    machine: Arc<Machine>,
    memory_bytes: u64,
    threads: usize,
    capability: Capability,
    /// The machine's numbers of the session's devices.
    numbers: Vec<usize>,
    /// Memory in use, by device.
    used_bytes: Vec<u64>,
    /// These numbers for other threads.
    in_use: MemoryInUse,
    contexts: HandleTable<contexts::Context>,
    streams: HandleTable<streams::Stream>,
    /// Attributes of the null stream.
    null_attributes: FxHashMap<u32, Vec<u8>>,
    events: HandleTable<EventId>,
    graphs: HandleTable<GraphId>,
    nodes: HandleTable<graphs::Node>,
    node_handles: FxHashMap<NodeId, u64>,
    execs: HandleTable<ExecId>,
    conditions: conditions::Conditions,
    libraries: HandleTable<modules::Library>,
    links: HandleTable<links::Link>,
    linked: Option<links::Linked>,
    allocations: HandleTable<memory::Allocation>,
    /// Mapped memory by its address.
    mapped: BTreeMap<u64, memory::Mapped>,
    /// Mapped parts of allocations by their address.
    mappings: BTreeMap<u64, memory::Mapping>,
    /// Memory and events shared with other sessions.
    shares: ipc::Shares,
    arrays: HandleTable<arrays::ArrayObject>,
    mipmaps: HandleTable<arrays::MipmapObject>,
    textures: HandleTable<textures::TextureObject>,
    surfaces: HandleTable<()>,
    /// Objects destroyed while kernels might still use them.
    retired: Vec<retired::Retired>,
    host: host::HostMemory,
    /// Whether something was submitted since the last look that may have changed a mirror.
    touched: bool,
    /// Address and length of the board that the client watches.
    board: Option<(u64, u64)>,
    /// Whether a loaded module may print.
    may_print: bool,
    /// Whether a kernel was launched that may use `malloc`, after which the heap's size is fixed.
    heap_used: bool,
    /// Whether accesses beside and after allocations are to be found.
    exact_memory: bool,
    activity: activity::Kept,
}

impl Soft {
    fn new(options: SoftOptions, window: u8) -> Result<Soft, Failure> {
        let memory_bytes = options.memory_bytes.unwrap_or_else(memory_default);
        let threads = options.threads.unwrap_or_else(cores::count);
        let threads = threads.clamp(1, THREADS_MAX);
        if !(1..=DEVICES_MAX).contains(&options.devices)
            || !(1..=MEMORY_BYTES_MAX).contains(&memory_bytes)
        {
            return Err(Failure::new(
                CUresult::CUDA_ERROR_INVALID_VALUE,
                format!("{} software GPUs of {memory_bytes} bytes", options.devices),
            ));
        }
        let numbers = numbers_of(&options)?;
        let memory = reserve(window)?;
        let memory_bytes = memory_bytes.min(memory.mappable_bytes());
        let Watch { checks, fail, seed } = options.watch;
        let mut machine = Machine::new(memory.clone(), threads);
        if checks.any() || seed.is_some() {
            machine = machine.watched(Checker::new(checks, seed), fail);
        }
        let gpu = Gpu::new(memory);
        gpu.start().map_err(|error| {
            let text = format!("no thread for the software GPU: {error}");
            Failure::new(CUresult::CUDA_ERROR_OPERATING_SYSTEM, text)
        })?;
        Ok(Soft {
            window,
            machine: Arc::new(machine),
            exact_memory: checks.memory,
            gpu,
            memory_bytes,
            threads,
            capability: options.capability,
            used_bytes: vec![0; numbers.len()],
            in_use: MemoryInUse::new(numbers.len()),
            numbers,
            contexts: HandleTable::new("context"),
            streams: HandleTable::new("stream"),
            null_attributes: FxHashMap::default(),
            events: HandleTable::new("event"),
            graphs: HandleTable::new("graph"),
            nodes: HandleTable::new("graph node"),
            node_handles: FxHashMap::default(),
            execs: HandleTable::new("instantiated graph"),
            conditions: conditions::Conditions::default(),
            libraries: HandleTable::new("library"),
            links: HandleTable::new("link"),
            linked: None,
            allocations: HandleTable::new("allocation"),
            mapped: BTreeMap::new(),
            mappings: BTreeMap::new(),
            shares: ipc::Shares::default(),
            arrays: HandleTable::new("array"),
            mipmaps: HandleTable::new("mipmapped array"),
            textures: HandleTable::new("texture"),
            surfaces: HandleTable::new("surface"),
            retired: Vec::new(),
            host: host::HostMemory::default(),
            touched: false,
            board: None,
            // Findings are reported as output of kernels.
            may_print: checks.any(),
            heap_used: false,
            activity: activity::Kept::default(),
            options,
        })
    }

    /// Makes the card of one of the session's devices.
    fn card(&self, ordinal: usize) -> DeviceCard {
        let of = card::Of {
            ordinal,
            devices: self.numbers.len(),
            number: self.numbers[ordinal],
            board: self.options.board,
        };
        card::card(&of, self.memory_bytes, self.threads, self.capability)
    }

    fn nvml_snapshot(
        &mut self,
        _: &mut Cx<'_>,
        _: &messages::NvmlSnapshot,
    ) -> Result<messages::NvmlSnapshotReply<'static>, Failure> {
        Ok(messages::NvmlSnapshotReply {
            document: Cow::Owned(self.nvml_facts()?),
        })
    }
}

impl Drop for Soft {
    fn drop(&mut self) {
        // No work may run when the client's memory is unmapped.
        self.gpu.stop();
        self.shares.end();
        self.host.clear();
    }
}

/// Returns the machine's numbers of the session's devices.
fn numbers_of(options: &SoftOptions) -> Result<Vec<usize>, Failure> {
    let all = 0..options.devices;
    let Some(chosen) = &options.chosen else {
        return Ok(all.collect());
    };
    let numbers: Vec<usize> = chosen.iter().map(|number| *number as usize).collect();
    match !numbers.is_empty() && numbers.iter().all(|number| all.contains(number)) {
        true => Ok(numbers),
        false => Err(Failure::new(
            CUresult::CUDA_ERROR_NO_DEVICE,
            format!("the devices {numbers:?} of {}", options.devices),
        )),
    }
}

/// Reserves the window of a number. Windows of other numbers have other places. If this process may
/// not have as many addresses, the window is smaller.
fn reserve(number: u8) -> Result<Memory, Failure> {
    let error = match reserve_bytes(number, WINDOW_BYTES, INTERNAL_BYTES) {
        Ok(memory) => return Ok(memory),
        Err(error) => error,
    };
    let failed = |text: String| Failure::new(CUresult::CUDA_ERROR_OUT_OF_MEMORY, text);
    let Some(limit) = getrlimit(Resource::As).current else {
        return Err(failed(error.to_string()));
    };
    let kib = limit >> 10;
    let mut window = limit / WINDOW_PART_OF_LIMIT;
    while window >= WINDOW_BYTES_MIN {
        let whole = |bytes: u64| bytes / memory::GRANULARITY_BYTES * memory::GRANULARITY_BYTES;
        let bytes = whole(window);
        if let Ok(memory) = reserve_bytes(number, bytes, whole(bytes / 4)) {
            let mib = bytes >> 20;
            warn!(
                "the address space is limited to {kib} KiB (ulimit -v): devices have at most {mib} MiB"
            );
            return Ok(memory);
        }
        window /= 2;
    }
    Err(failed(format!(
        "{error}; the server's address space is limited to {kib} KiB (ulimit -v)"
    )))
}

/// Reserves a window, and `internal_bytes` after it, at the first place that is free.
fn reserve_bytes(number: u8, bytes: u64, internal_bytes: u64) -> Result<Memory, MemoryError> {
    let place = |i: u64| {
        let place = i * SERVERS_MAX as u64 + u64::from(number);
        let base = WINDOW_BASE + place * WINDOW_STEP_BYTES;
        Memory::reserve(base, bytes + internal_bytes, internal_bytes)
    };
    // The first error says most: later places may be taken as well.
    place(0).or_else(|error| {
        (1..WINDOW_TRIES_MAX)
            .find_map(|i| place(i).ok())
            .ok_or(error)
    })
}

/// Returns half of the machine's memory, within bounds.
fn memory_default() -> u64 {
    let info = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total_kib = info.lines().find_map(|line| {
        line.strip_prefix("MemTotal:")?
            .trim()
            .strip_suffix("kB")?
            .trim()
            .parse::<u64>()
            .ok()
    });
    let half = total_kib.map_or(MEMORY_DEFAULT_BYTES_MAX, |kib| kib * 1024 / 2);
    // A multiple of the granularity, as programs expect of a GPU.
    half.min(MEMORY_DEFAULT_BYTES_MAX) / memory::GRANULARITY_BYTES * memory::GRANULARITY_BYTES
}

impl Host for Soft {
    fn nvml_facts(&mut self) -> Result<Vec<u8>, Failure> {
        doc::to_bytes(&self.snapshot())
            .map_err(|e| Failure::new(CUresult::CUDA_ERROR_UNKNOWN, e.to_string()))
    }

    fn cards(&mut self, _: u32) -> Result<Vec<DeviceCard>, Failure> {
        Ok((0..self.numbers.len()).map(|at| self.card(at)).collect())
    }

    fn driver_version(&mut self) -> u32 {
        CUDA_VERSION
    }

    fn memory_in_use(&self) -> Option<MemoryInUse> {
        Some(self.in_use.clone())
    }

    fn of_call(&mut self, call: u32) {
        self.gpu.of_call(call);
    }

    fn reserve_window(&mut self, number: u8) -> Result<(u64, u64), Failure> {
        // A device that waited for a client began with the first window, and has no work yet.
        if self.window != number {
            *self = Soft::new(self.options.clone(), number)?;
        }
        let (base, _) = self.gpu.memory().window();
        Ok((base, self.gpu.memory().mappable_bytes()))
    }

    fn exact_memory(&self) -> bool {
        self.exact_memory
    }

    fn expose(&mut self, wanted: GpuMemory) -> Result<Vec<Way>, String> {
        match wanted {
            GpuMemory::DmaBuf => Err("the software GPU's memory is no dma-buf".into()),
            _ => Ok(vec![Way::Address]),
        }
    }

    fn mapping(&self, address: u64, len: u64) -> Option<(u64, u64)> {
        self.gpu.lasting(address, len)
    }

    fn reach(&mut self, address: u64, len: u64, way: Way) -> Result<DeviceMemory, Failure> {
        let is_mapped = self
            .mapping(address, len)
            .is_some_and(|_| way == Way::Address);
        let len = usize::try_from(len).ok().filter(|_| is_mapped);
        let len = len.ok_or_else(|| wait::invalid("no memory that an adapter can reach"))?;
        // SAFETY: the range is mapped memory of the window, and the session ends the registration
        // before it is unmapped. The program uses it as plain bytes.
        Ok(unsafe { DeviceMemory::new(address, len, Reach::Address) })
    }

    fn mark(&mut self, cx: &mut Cx<'_>, stream: u64) -> Result<Pending, Failure> {
        let stream = self.stream(cx, stream)?;
        let fence = self.gpu.mark(stream).map_err(wait::failure)?;
        Ok(wait::pending(fence))
    }

    fn take_printed(&mut self, out: &mut Printed, _: bool) {
        let mut taken = outboard_ptx::Printed::default();
        self.machine.take_printed(&mut taken);
        out.stdout.append(&mut taken.stdout);
        out.stderr.append(&mut taken.stderr);
    }

    fn take_host_calls(&mut self, out: &mut Vec<(u64, CUresult)>) {
        let mut calls: Vec<HostCall> = Vec::new();
        self.gpu.take_host_calls(&mut calls);
        out.extend(calls.into_iter().map(|call| {
            let status = call.stuck.map_or(CUresult::CUDA_SUCCESS, |stuck| {
                wait::failure(outboard_ptx::device::Error::Stuck(stuck)).status
            });
            (call.call, status)
        }));
    }

    fn lend(&mut self, address: u64, len: u64, to: Borrower) -> Result<Registered, Failure> {
        match lent::Lent::of(self.gpu.memory(), address, len) {
            Some(lent) => Ok(lent),
            None => self.host.lend(address, len, to).map(Registered::from),
        }
    }

    fn take_host_pages(&mut self, changed: &mut dyn FnMut(u64, &[u8])) {
        if self.touched || self.host.is_lent() {
            // Work that still runs may change more.
            self.touched = !self.gpu.is_idle();
            self.host.take_changes(&self.gpu, changed);
        }
    }

    fn awaits_host_calls(&self) -> bool {
        self.gpu.awaits_host_calls()
    }
}
