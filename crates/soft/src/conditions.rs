//! Conditions of conditional nodes: words in this process's memory that kernels set and the device
//! reads.
//!
//! A condition's handle is the address of its word. Kernels receive it as a parameter, and so need
//! no table of handles.

use std::{collections::BTreeMap, sync::atomic::AtomicU32};

use outboard_api::CUresult;
use outboard_device::Failure;
use outboard_ptx::device::{Gpu, GraphId};

use super::wait::failure;

const PAGE_WORDS: usize = 1024;
const CONDITIONS_MAX: usize = 1 << 16;

/// The conditions of a session.
#[derive(Default)]
pub(super) struct Conditions {
    /// By handle: the graph that the condition was made for, and whether a node has taken it.
    made: BTreeMap<u64, (GraphId, bool)>,
    free: Vec<u64>,
    words: usize,
}

impl Conditions {
    /// Makes the handle of a condition for a node of this graph.
    pub(super) fn make(&mut self, gpu: &Gpu, graph: GraphId) -> Result<u64, Failure> {
        if self.free.is_empty() {
            self.grow(gpu)?;
        }
        let handle = self.free.pop().ok_or_else(none_left)?;
        self.made.insert(handle, (graph, false));
        Ok(handle)
    }

    fn grow(&mut self, gpu: &Gpu) -> Result<(), Failure> {
        if self.words >= CONDITIONS_MAX {
            return Err(none_left());
        }
        // Never freed, because kernels of a session that ends may still write there.
        let page: &'static [AtomicU32] =
            Box::leak((0..PAGE_WORDS).map(|_| AtomicU32::new(0)).collect());
        let address = page.as_ptr() as u64;
        let bytes = size_of_val(page) as u64;
        // SAFETY: the words were leaked above, so they live as long as the process.
        unsafe { gpu.register_host(address, bytes) }.map_err(failure)?;
        let words = (0..PAGE_WORDS as u64).rev();
        self.free.extend(words.map(|index| address + 4 * index));
        self.words += PAGE_WORDS;
        Ok(())
    }

    /// Gives a condition to a node. Returns false unless it was made for the node's graph and no
    /// other node has it.
    pub(super) fn take(&mut self, handle: u64, graph: GraphId) -> bool {
        match self.made.get_mut(&handle) {
            Some((of, taken)) if *of == graph && !*taken => {
                *taken = true;
                true
            }
            _ => false,
        }
    }

    /// Takes a condition back from a node that could not be made.
    pub(super) fn give_back(&mut self, handle: u64, graph: GraphId) {
        if let Some((of, taken)) = self.made.get_mut(&handle)
            && *of == graph
        {
            *taken = false;
        }
    }

    /// Removes the conditions of destroyed graphs. Their words are not used again, because
    /// executable graphs may still read them.
    pub(super) fn forget_gone(&mut self, exists: impl Fn(GraphId) -> bool) {
        self.made.retain(|_, (graph, _)| exists(*graph));
    }
}

fn none_left() -> Failure {
    Failure::new(
        CUresult::CUDA_ERROR_OUT_OF_MEMORY,
        format!("more than {CONDITIONS_MAX} conditions of graphs"),
    )
}
