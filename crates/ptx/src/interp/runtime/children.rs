//! Grids launched by kernels (CUDA C++ Programming Guide, "Dynamic Parallelism"): the device
//! runtime's functions `__cudaCDP2*`.
//!
//! A grid collects its threads' requests, which are executed in that order after the grid's own
//! blocks have ended. CUDA promises no earlier start, no order between streams, and no parent that
//! waits. Work after the parent in its stream also comes after its children.

use std::collections::{HashMap, VecDeque};

use parking_lot::Mutex;

use crate::code::{Call, FUNCTION_WINDOW, Runtime};
use crate::extents::validate;
use crate::interp::core::{Core, Stop};
use crate::limits::{CHILD_DEPTH_MAX, CHILDREN_MAX};
use crate::lower::Kernel;
use crate::room;
use crate::words::read8;

/// `cudaErrorInvalidValue`, `cudaErrorMemoryAllocation`, `cudaErrorInvalidConfiguration`,
/// `cudaErrorLaunchMaxDepthExceeded`, `cudaErrorLaunchPendingCountExceeded`.
const INVALID_VALUE: u64 = 1;
const MEMORY_ALLOCATION: u64 = 2;
const INVALID_CONFIGURATION: u64 = 9;
const DEPTH_EXCEEDED: u64 = 65;
const PENDING_EXCEEDED: u64 = 69;

/// `cudaStreamTailLaunch`: after everything else that the grid requests.
const STREAM_TAIL: u64 = 3;
/// Handle of every stream that a kernel creates: all are one stream.
const STREAM_OWN: u64 = 0x10;

/// The requests of a grid's threads.
pub(crate) struct Children<'m> {
    kernels: &'m [Kernel],
    depth: u32,
    asked: Mutex<Asked>,
}

#[derive(Default)]
struct Asked {
    /// Launches not made yet, by the address of their parameters.
    buffers: HashMap<u64, Child>,
    work: VecDeque<ChildWork>,
    tail: VecDeque<ChildWork>,
}

pub(crate) enum ChildWork {
    Grid(Child),
    Copy { to: u64, from: u64, bytes: u64 },
}

/// A launch from a kernel.
pub(crate) struct Child {
    /// Index in the module.
    pub(crate) kernel: usize,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared_bytes: u32,
    pub(crate) params: Vec<u8>,
}

impl<'m> Children<'m> {
    /// Makes an empty list for a grid at this depth.
    pub(crate) fn new(kernels: &'m [Kernel], depth: u32) -> Children<'m> {
        Children {
            kernels,
            depth,
            asked: Mutex::default(),
        }
    }

    /// Returns all requests in order.
    pub(crate) fn into_work(self) -> impl Iterator<Item = ChildWork> {
        let asked = self.asked.into_inner();
        asked.work.into_iter().chain(asked.tail)
    }

    fn push(&self, stream: u64, work: ChildWork) -> u64 {
        let mut asked = self.asked.lock();
        if asked.work.len() + asked.tail.len() >= CHILDREN_MAX {
            return PENDING_EXCEEDED;
        }
        match stream {
            STREAM_TAIL => asked.tail.push_back(work),
            _ => asked.work.push_back(work),
        }
        0
    }
}

impl Core<'_> {
    /// Runs one of the runtime's functions for launches from kernels, for one lane.
    pub(crate) fn child_call(
        &mut self,
        runtime: Runtime,
        call: &Call,
        lane: usize,
    ) -> Result<(), Stop> {
        let param = |i| self.param(call, i, lane);
        let result = match runtime {
            Runtime::ChildBuffer => self.child_buffer(call, lane),
            Runtime::ChildLaunch => self.child_launch(param(0), param(1)),
            Runtime::ChildCopy => self.env.children.push(
                param(4),
                ChildWork::Copy {
                    to: param(0),
                    from: param(1),
                    bytes: param(2),
                },
            ),
            Runtime::ChildStream => {
                let place = param(0);
                self.write_lane64(place, STREAM_OWN, lane)?;
                0
            }
            Runtime::ChildMalloc => {
                let (place, bytes) = (param(0), param(1));
                let address = self.env.heap.map_or(0, |heap| heap.allocate(bytes));
                self.write_lane64(place, address, lane)?;
                if address == 0 { MEMORY_ALLOCATION } else { 0 }
            }
            Runtime::ChildFree => {
                let address = param(0);
                let freed = self.env.heap.is_some_and(|heap| heap.free(address));
                if freed { 0 } else { INVALID_VALUE }
            }
            // Streams, events and errors need no work: everything is done in order, and calls
            // return their own errors.
            _ => 0,
        };
        self.set_result(call, lane, result);
        Ok(())
    }

    /// Allocates memory for a launch's parameters; returns 0 if there is none.
    fn child_buffer(&self, call: &Call, lane: usize) -> u64 {
        let children = self.env.children;
        let function = self.param(call, 0, lane).wrapping_sub(FUNCTION_WINDOW);
        let mut kernels = children.kernels.iter();
        let Some(kernel) = kernels.position(|k| u64::from(k.function) == function) else {
            return 0;
        };
        let extents = |i| [0, 4, 8].map(|at| self.param_part(call, i, at, 4, lane) as u32);
        let child = Child {
            kernel,
            grid: extents(1),
            block: extents(2),
            shared_bytes: self.param(call, 3, lane) as u32,
            params: Vec::new(),
        };
        let mut asked = children.asked.lock();
        if asked.buffers.len() >= CHILDREN_MAX {
            return 0;
        }
        let bytes = children.kernels[kernel].param_bytes.max(1);
        let address = self.env.heap.map_or(0, |heap| heap.allocate(bytes.into()));
        if address != 0 {
            asked.buffers.insert(address, child);
        }
        address
    }

    fn child_launch(&self, buffer: u64, stream: u64) -> u64 {
        let children = self.env.children;
        let Some(mut child) = children.asked.lock().buffers.remove(&buffer) else {
            return INVALID_VALUE;
        };
        let kernel = &children.kernels[child.kernel];
        let wanted = u64::from(kernel.param_bytes) + size_of::<ChildWork>() as u64;
        // Memory of the heap that `child_buffer` allocated.
        let params = room::take(wanted, || {
            let bytes = 0..u64::from(kernel.param_bytes);
            bytes.map(|i| read8(buffer + i)).collect()
        });
        if let Some(heap) = self.env.heap {
            heap.free(buffer);
        }
        let Ok(params) = params else {
            return MEMORY_ALLOCATION;
        };
        child.params = params;
        let bytes = child.params.len();
        if validate(kernel, child.grid, child.block, child.shared_bytes, bytes).is_err() {
            return INVALID_CONFIGURATION;
        }
        if children.depth >= CHILD_DEPTH_MAX {
            return DEPTH_EXCEEDED;
        }
        children.push(stream, ChildWork::Grid(child))
    }

    fn write_lane64(&mut self, address: u64, value: u64, lane: usize) -> Result<(), Stop> {
        let at = self.lane_pointer(address, 8, lane)?.cast_mut();
        // SAFETY: `lane_pointer` has just checked that the lane may write these eight bytes.
        unsafe { at.cast::<u64>().write_unaligned(value) };
        Ok(())
    }
}
