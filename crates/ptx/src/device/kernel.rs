//! The engine's kernels as work of a device.

use std::sync::Arc;

use parking_lot::Mutex;

use super::work::{Code, Launch, Running};
use crate::{
    check::Checker,
    error::{Fault, FaultKind},
    heap::Heap,
    launch::{self, LaunchError, STACK_BYTES_DEFAULT, Stats},
    memory::Memory,
    module::Module,
    output::{Fifo, Printed},
};

/// Length of the workspace for grid synchronisation: its size, then the barrier
/// (`cooperative_groups/details/driver_abi.h` of the CUDA toolkit).
const WORKSPACE_BYTES: u64 = 64;

/// State that the kernels of a device share.
pub struct Machine {
    memory: Memory,
    workers: usize,
    printed: Fifo,
    state: Mutex<MachineState>,
    watch: Option<Watch>,
}

/// Limits that programs set with `cuCtxSetLimit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Stack of a thread for calls, in bytes, beyond the kernel's known need.
    pub stack_bytes: u32,
    /// Memory for device-side `malloc`, in bytes.
    pub heap_bytes: u64,
    /// Printed text kept until it is taken, in bytes; older text is lost.
    pub printed_bytes: usize,
}

/// CUDA's defaults, except for the stack: PTX says less of a function's need than machine code
/// does.
impl Default for Limits {
    fn default() -> Limits {
        Limits {
            stack_bytes: STACK_BYTES_DEFAULT,
            heap_bytes: 8 << 20,
            printed_bytes: 1 << 20,
        }
    }
}

#[derive(Default)]
struct MachineState {
    limits: Limits,
    /// Made by the first launch that may use it.
    heap: Option<Arc<Heap>>,
}

/// How kernels are watched for mistakes.
struct Watch {
    checker: Checker,
    /// Whether a launch with findings fails.
    fail: bool,
}

impl Machine {
    /// Makes a machine whose launches are spread over `workers` threads.
    pub fn new(memory: Memory, workers: usize) -> Machine {
        Machine {
            memory,
            workers,
            printed: Fifo::new(Limits::default().printed_bytes),
            state: Mutex::default(),
            watch: None,
        }
    }

    /// Watches kernels for mistakes. Findings are printed as if kernels had printed them; with
    /// `fail` they also fail the launch.
    pub fn watched(mut self, checker: Checker, fail: bool) -> Machine {
        if checker.checks.uninitialised {
            self.memory.track_writes();
        }
        self.watch = Some(Watch { checker, fail });
        self
    }

    /// Sets the limits of launches that begin from now on. An existing heap stays as it is.
    pub fn set_limits(&self, limits: Limits) {
        self.state.lock().limits = limits;
        self.printed.resize(limits.printed_bytes);
    }

    /// Frees the heap. Nothing may run, and nothing may use its memory afterwards.
    pub fn drop_heap(&self) {
        self.state.lock().heap = None;
    }

    /// Appends what kernels have printed since the last call.
    pub fn take_printed(&self, out: &mut Printed) {
        self.printed.take(out);
    }

    /// Returns the heap, or `None` if there is no memory for it: `malloc` then returns 0, as on a
    /// GPU.
    fn heap(&self) -> Option<Arc<Heap>> {
        let mut state = self.state.lock();
        if state.heap.is_none() && state.limits.heap_bytes > 0 {
            match Heap::new(&self.memory, state.limits.heap_bytes) {
                Ok(heap) => state.heap = Some(Arc::new(heap)),
                Err(error) => tracing::warn!(%error, "no heap for kernels"),
            }
        }
        state.heap.clone()
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

    fn run(&self, launch: &Launch, running: &Running<'_>) -> Result<(), Fault> {
        let machine = &self.machine;
        let workspace = match launch.cooperative {
            true => Some(Workspace::new(&machine.memory).map_err(|e| self.refused(e.to_string()))?),
            false => None,
        };
        let heap = match self.module.uses_heap() {
            true => machine.heap(),
            false => None,
        };
        let stack_bytes = machine.state.lock().limits.stack_bytes;
        let run = launch::Launch {
            module: &self.module,
            kernel: &self.name,
            grid: launch.grid,
            block: launch.block,
            dynamic_shared_bytes: launch.shared_bytes,
            params: &launch.params,
            workers: machine.workers,
            stack_bytes,
            cooperative: launch.cooperative,
            envregs: workspace.as_ref().map_or([0; 32], Workspace::envregs),
            output: &machine.printed,
            heap: heap.as_deref(),
            cancel: running.cancel,
            execution: running.execution,
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
            printed.report(format!("========= {report}\n").into_bytes());
        }
        // Printed too, because the program itself receives only an error code.
        if let Err(LaunchError::Fault(fault)) = &result {
            printed.report(format!("========= fault: {fault}\n").into_bytes());
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

    /// Returns the environment registers: `%envreg1` and `%envreg2` hold the workspace's address,
    /// high half first.
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
