//! The engine's kernels as work of a device.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
};

use super::work::{Code, Launch};
use crate::{
    check::Checker,
    error::{Fault, FaultKind},
    heap::Heap,
    launch::{self, LaunchError, STACK_BYTES_DEFAULT, Stats},
    memory::Memory,
    module::Module,
    printf::{Fifo, Output as _},
};

/// Text that kernels have printed and nobody has taken yet; what is older is lost.
const PRINTED_BYTES_MAX: usize = 16 << 20;
/// Memory for device-side `malloc` unless a program asks for more: eight times CUDA's default.
const HEAP_BYTES_MIN: u64 = 64 << 20;
/// What grid synchronisation needs of its workspace: its size, then the barrier
/// (`cooperative_groups/details/driver_abi.h` of the CUDA toolkit).
const WORKSPACE_BYTES: u64 = 64;

/// What the kernels of a device share.
pub struct Machine {
    memory: Memory,
    workers: usize,
    printed: Fifo,
    heap: OnceLock<Option<Heap>>,
    heap_bytes: AtomicU64,
    stack_bytes: AtomicU32,
    watch: Option<Watch>,
}

/// How kernels are watched.
struct Watch {
    checker: Checker,
    /// A launch with findings fails.
    fail: bool,
}

impl Machine {
    /// Launches spread over `workers` threads.
    pub fn new(memory: Memory, workers: usize) -> Machine {
        Machine {
            memory,
            workers,
            printed: Fifo::new(PRINTED_BYTES_MAX),
            heap: OnceLock::new(),
            heap_bytes: AtomicU64::new(HEAP_BYTES_MIN),
            stack_bytes: AtomicU32::new(STACK_BYTES_DEFAULT),
            watch: None,
        }
    }

    /// Kernels are watched; what is found is printed as if they had. `fail`: a launch with findings fails.
    pub fn watched(mut self, checker: Checker, fail: bool) -> Machine {
        if checker.checks.uninitialised {
            self.memory.track_writes();
        }
        self.watch = Some(Watch { checker, fail });
        self
    }

    /// Makes the heap of device-side `malloc` at least so large, if no kernel has used it yet.
    pub fn want_heap(&self, bytes: u64) {
        self.heap_bytes.fetch_max(bytes, Ordering::Relaxed);
    }

    /// Gives each thread of later launches at least so much stack.
    pub fn want_stack(&self, bytes: u32) {
        self.stack_bytes.fetch_max(bytes, Ordering::Relaxed);
    }

    /// Appends what kernels have printed since the last call.
    pub fn take_printed(&self, out: &mut Vec<u8>) {
        out.extend(self.printed.take());
    }

    /// None where there is no room for it: `malloc` then returns 0, as on a GPU.
    fn heap(&self) -> Option<&Heap> {
        let bytes = self.heap_bytes.load(Ordering::Relaxed);
        let heap = self
            .heap
            .get_or_init(|| match Heap::new(&self.memory, bytes) {
                Ok(heap) => Some(heap),
                Err(error) => {
                    tracing::warn!(%error, "no heap for kernels");
                    None
                }
            });
        heap.as_ref()
    }
}

/// A kernel of a module.
pub struct ModuleKernel {
    machine: Arc<Machine>,
    module: Arc<Module>,
    name: String,
}

impl ModuleKernel {
    pub fn new(machine: Arc<Machine>, module: Arc<Module>, name: String) -> ModuleKernel {
        ModuleKernel {
            machine,
            module,
            name,
        }
    }

    fn refused(&self, what: String) -> Fault {
        Fault {
            kind: FaultKind::LaunchOutOfResources { what },
            kernel: self.name.clone(),
            block: [0; 3],
            thread: [0; 3],
            line: 0,
        }
    }
}

impl Code for ModuleKernel {
    fn name(&self) -> &str {
        &self.name
    }

    fn run(&self, launch: &Launch, cancel: &AtomicBool) -> Result<(), Fault> {
        let machine = &self.machine;
        let workspace = match launch.cooperative {
            true => Some(Workspace::new(&machine.memory).map_err(|e| self.refused(e.to_string()))?),
            false => None,
        };
        let run = launch::Launch {
            module: &self.module,
            kernel: &self.name,
            grid: launch.grid,
            block: launch.block,
            dynamic_shared_bytes: launch.shared_bytes,
            params: &launch.params,
            workers: machine.workers,
            stack_bytes: machine.stack_bytes.load(Ordering::Relaxed),
            cooperative: launch.cooperative,
            envregs: workspace.as_ref().map_or([0; 32], Workspace::envregs),
            output: &machine.printed,
            heap: if self.module.uses_heap() {
                machine.heap()
            } else {
                None
            },
            cancel,
        };
        let result = match &machine.watch {
            Some(watch) => watch.run(&run, &machine.printed),
            None => run.run(),
        };
        match result {
            Ok(_) => Ok(()),
            Err(LaunchError::Fault(fault)) => Err(fault),
            Err(LaunchError::Refused(error)) => Err(self.refused(error.to_string())),
        }
    }
}

impl Watch {
    fn run(&self, run: &launch::Launch<'_>, printed: &Fifo) -> Result<Stats, LaunchError> {
        let before = self.checker.count();
        let result = run.run_watched(&self.checker);
        let reports = self.checker.take_reports();
        for report in &reports {
            printed.write(format!("========= {report}\n").as_bytes());
        }
        match (&result, reports.first()) {
            (Ok(_), Some(first)) if self.fail => {
                let more = self.checker.count() - before - 1;
                let reason = format!("found by --check, {more} more: {first}");
                Err(LaunchError::Fault(Fault {
                    kind: FaultKind::Trap { reason },
                    kernel: run.kernel.to_owned(),
                    block: [0; 3],
                    thread: [0; 3],
                    line: 0,
                }))
            }
            _ => result,
        }
    }
}

/// Zeroed memory for the barrier of a cooperative launch.
struct Workspace {
    memory: Memory,
    address: u64,
}

impl Workspace {
    fn new(memory: &Memory) -> Result<Workspace, crate::memory::MemoryError> {
        Ok(Workspace {
            address: memory.allocate_internal(WORKSPACE_BYTES, 1)?,
            memory: memory.clone(),
        })
    }

    /// `%envreg1` and `%envreg2` hold the address, high half first.
    fn envregs(&self) -> [u32; 32] {
        let mut envregs = [0; 32];
        envregs[1] = (self.address >> 32) as u32;
        envregs[2] = self.address as u32;
        envregs
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        self.memory.free_internal(self.address);
    }
}
