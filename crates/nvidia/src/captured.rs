//! Graphs made by capture or from other graphs: the memory that they keep, their kernel parameters,
//! and memsets that must not run.
//!
//! cuDNN captures an engine with made-up addresses, reads from the graph which kernels it takes,
//! and drops the graph. The driver accepts any address for a memset during capture, and so does
//! [`Nvidia::settable`]. Running such a graph is another matter: its memset could reach memory of
//! this process. A graph with such a memset is a stray, and so are its clones and the graphs that
//! contain it; no stray is instantiated.

use outboard_api::{
    CUresult, cuda::CUDA_KERNEL_NODE_PARAMS, enums::CU_STREAM_CAPTURE_STATUS_ACTIVE,
};
use outboard_device::{Cx, Failure};
use outboard_wire::messages;

use super::{
    Nvidia,
    graphs::Graphs,
    table::{Driver, Refused, real},
};

/// `CU_LAUNCH_PARAM_END`, `_BUFFER_POINTER`, `_BUFFER_SIZE`
const PARAM_END: usize = 0;
const PARAM_BUFFER_POINTER: usize = 1;
const PARAM_BUFFER_SIZE: usize = 2;

impl Graphs {
    /// Adds to a graph what it must keep of a graph that became part of it.
    pub(super) fn inherit(&mut self, graph: real::Graph, part: real::Graph) {
        self.remember(graph, self.memory_inside(part));
        if self.check_runnable(part).is_err() {
            self.strays.insert(graph);
        }
        if self.copies_on_host(part) {
            self.mark_on_host(graph);
        }
    }

    pub(super) fn mark_stray(&mut self, graph: real::Graph) {
        self.strays.insert(graph);
    }

    /// Forgets what is known of a graph whose capture has failed.
    pub(super) fn forget_captured(&mut self, graph: real::Graph) {
        self.strays.remove(&graph);
        self.on_host.remove(&graph);
    }

    /// Refuses a graph that would write to memory outside the session.
    pub(super) fn check_runnable(&self, graph: real::Graph) -> Result<(), Failure> {
        let mut graphs = self.parts_of(graph).into_iter().chain([graph]);
        match graphs.any(|graph| self.strays.contains(&graph)) {
            false => Ok(()),
            true => Err(Failure::new(
                CUresult::CUDA_ERROR_INVALID_VALUE,
                "a captured memset is of memory that is not this session's",
            )),
        }
    }
}

impl Nvidia {
    /// Checks the memory that a memset names: any memory is accepted while the stream captures,
    /// otherwise only the session's.
    pub(super) fn settable(&mut self, address: u64, len: u64, stream: u64) -> Result<(), Failure> {
        let Err(unknown) = self.known(address, len) else {
            return Ok(());
        };
        let stream = self.real_stream(stream)?;
        match self.driver.capture(stream) {
            Ok(capture) if capture.status == CU_STREAM_CAPTURE_STATUS_ACTIVE => {
                self.graphs.mark_stray(capture.graph);
                Ok(())
            }
            _ => Err(unknown),
        }
    }

    pub(super) fn graph_clone(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::GraphClone,
    ) -> Result<(), Failure> {
        self.enter(cx)?;
        let original = self.real_graph(m.graph)?;
        let clone = self.driver.cuGraphClone(original)?;
        self.graphs.inherit(clone, original);
        self.graphs.bind(m.clone, clone)
    }
}

impl Driver {
    /// Returns a kernel node's parameters. Their values lie in the driver and are valid until the
    /// node changes.
    pub(super) fn kernel_node(&self, node: real::Node) -> Result<CUDA_KERNEL_NODE_PARAMS, Refused> {
        let mut params = CUDA_KERNEL_NODE_PARAMS::EMPTY;
        // SAFETY: `params` has room for the answer.
        unsafe { self.cuGraphKernelNodeGetParams_v2(node, &mut params) }?;
        Ok(params)
    }
}

/// Packs the parameters into one buffer. `layout` has the offset and the size of each.
///
/// # Safety
/// `node` must be the driver's answer for a node of a kernel with these parameters, and the node
/// must not have changed since.
pub(super) unsafe fn packed(node: &CUDA_KERNEL_NODE_PARAMS, layout: &[(u32, u32)]) -> Vec<u8> {
    let end = layout.iter().map(|(offset, size)| offset + size).max();
    let mut buffer = vec![0u8; end.unwrap_or(0) as usize];
    if !node.kernel_params.is_null() {
        for (index, (offset, size)) in layout.iter().enumerate() {
            let to = &mut buffer[*offset as usize..(offset + size) as usize];
            // SAFETY: the driver stores one pointer per parameter, to as many bytes as the
            // parameter has.
            unsafe {
                let from = (*node.kernel_params.add(index)).cast::<u8>();
                to.copy_from_slice(std::slice::from_raw_parts(from, to.len()));
            }
        }
    } else if !node.extra.is_null() {
        // SAFETY: the driver's own list, which ends with PARAM_END.
        let given = unsafe { extra_buffer(node.extra) };
        let len = given.len().min(buffer.len());
        buffer[..len].copy_from_slice(&given[..len]);
    }
    buffer
}

/// Finds the packed parameters in a list of options: a pointer and a size, each after its key.
///
/// # Safety
/// `extra` must be a list as `cuLaunchKernel` takes it.
unsafe fn extra_buffer<'a>(mut extra: *mut *mut std::ffi::c_void) -> &'a [u8] {
    let (mut start, mut len) = (std::ptr::null::<u8>(), 0);
    // SAFETY: by the caller's contract the list consists of pairs and ends with PARAM_END.
    unsafe {
        while *extra as usize != PARAM_END {
            match *extra as usize {
                PARAM_BUFFER_POINTER => start = (*extra.add(1)).cast(),
                PARAM_BUFFER_SIZE => len = *(*extra.add(1)).cast::<usize>(),
                _ => break,
            }
            extra = extra.add(2);
        }
        match start.is_null() {
            true => &[],
            false => std::slice::from_raw_parts(start, len),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::c_void;

    use super::*;

    fn at<T>(value: &mut T) -> *mut c_void {
        (&raw mut *value).cast()
    }

    #[test]
    fn parameters_are_packed_where_the_kernel_wants_them() {
        let (mut first, mut second) = (7u32, 0x1122_3344_5566_7788_u64);
        let mut pointers = [at(&mut first), at(&mut second)];
        let node = CUDA_KERNEL_NODE_PARAMS {
            kernel_params: pointers.as_mut_ptr(),
            ..CUDA_KERNEL_NODE_PARAMS::EMPTY
        };
        // SAFETY: `node` has two parameters of these sizes.
        let buffer = unsafe { packed(&node, &[(0, 4), (8, 8)]) };
        assert_eq!(buffer[..4], 7u32.to_ne_bytes());
        assert_eq!(buffer[8..], second.to_ne_bytes());
    }

    #[test]
    fn a_packed_buffer_is_taken_as_it_is() {
        let (mut bytes, mut len) = ([1u8, 2, 3, 4], 4usize);
        let mut extra = [
            PARAM_BUFFER_POINTER as *mut c_void,
            at(&mut bytes),
            PARAM_BUFFER_SIZE as *mut c_void,
            at(&mut len),
            PARAM_END as *mut c_void,
        ];
        let node = CUDA_KERNEL_NODE_PARAMS {
            extra: extra.as_mut_ptr(),
            ..CUDA_KERNEL_NODE_PARAMS::EMPTY
        };
        // SAFETY: the list has two options and its end.
        assert_eq!(unsafe { packed(&node, &[(0, 2), (2, 2)]) }, [1, 2, 3, 4]);
        // SAFETY: the list has two options and its end; a kernel with more parameters gets zeros.
        assert_eq!(unsafe { packed(&node, &[(0, 6)]) }, [1, 2, 3, 4, 0, 0]);
        let nothing = CUDA_KERNEL_NODE_PARAMS::EMPTY;
        // SAFETY: the node has no parameters to read.
        assert!(unsafe { packed(&nothing, &[]) }.is_empty());
    }
}
