//! The work of a graph's node.

use serde::{Deserialize, Serialize};

use super::CopyBox;

/// The work of one node. Handles are the client's numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeWork {
    Empty,
    Kernel(KernelWork),
    Memset(MemsetWork),
    /// Host memory in it is memory that both sides map.
    Copy(CopyBox),
    /// A host function, by its number.
    Host(u64),
    /// A copy of this graph.
    Child(u64),
    RecordEvent(u64),
    WaitEvent(u64),
    /// `CUstreamBatchMemOpParams` records.
    MemOps(Vec<u8>),
    Conditional(ConditionalWork),
    /// This graph itself, which the new node owns: `CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE`.
    Moved(u64),
}

/// A kernel launch, without its stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelWork {
    pub kernel: u64,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared_bytes: u32,
    /// The kernel's parameter buffer.
    pub params: Vec<u8>,
}

/// `CUDA_MEMSET_NODE_PARAMS`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemsetWork {
    pub dst: u64,
    pub pitch: u64,
    pub value: u32,
    pub element_size: u32,
    pub width: u64,
    pub height: u64,
}

/// `CUDA_CONDITIONAL_NODE_PARAMS`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConditionalWork {
    /// The handle from the reply to `graph_conditional`.
    pub handle: u64,
    /// `CUgraphConditionalNodeType`
    pub kind: u32,
    /// Numbers for the node's graphs, which are created with it.
    pub bodies: Vec<u64>,
}
