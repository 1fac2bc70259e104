//! Work that the GPU has done, for a profiler: the documents of `activity_take`.

use serde::{Deserialize, Serialize};

/// Kinds of work that a profiler can ask for, one bit each: the field `kinds` of `activity_enable`.
pub const ACTIVITY_KERNELS: u32 = 1;
pub const ACTIVITY_COPIES: u32 = 2;
pub const ACTIVITY_MEMSETS: u32 = 4;
pub const ACTIVITY_PEER_COPIES: u32 = 8;
/// When the device passes an event that a call records.
pub const ACTIVITY_EVENTS: u32 = 32;
/// Keeps no work, but makes `activity_number` available.
pub const ACTIVITY_NUMBERS: u32 = 16;

/// Source of the times: the reply to `activity_enable`.
pub const ACTIVITY_NONE: u8 = 0;
pub const ACTIVITY_CUPTI: u8 = 1;
pub const ACTIVITY_SOFT: u8 = 2;

/// A batch of finished work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct Activities {
    /// Names of kernels, which [`ActivityWhat::Kernel`] gives by index.
    pub names: Vec<String>,
    pub done: Vec<Activity>,
    /// Pieces of work that found no room since the last time and are lost.
    pub dropped: u64,
    /// True if more is there to take.
    pub more: bool,
}

/// One piece of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Activity {
    /// Number of the program's call that started it.
    pub call: u32,
    pub device: u32,
    /// Numbers of context and stream, as CUPTI counts them.
    pub context: u32,
    pub stream: u32,
    /// On the server's clock.
    pub start_ns: u64,
    pub end_ns: u64,
    /// The graph and its node; 0 outside a graph.
    pub graph: u32,
    pub graph_node: u64,
    pub what: ActivityWhat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ActivityWhat {
    Kernel {
        /// Index into [`Activities::names`].
        name: u32,
        grid: [i32; 3],
        block: [i32; 3],
        cluster: [u32; 3],
        static_shared_bytes: i32,
        dynamic_shared_bytes: i32,
        shared_executed_bytes: u32,
        registers: u16,
        local_bytes_per_thread: u32,
        local_bytes_total: u64,
        /// `CUpti_ActivityLaunchType`.
        launch_type: u8,
        grid_id: i64,
    },
    Copy {
        bytes: u64,
        /// `CUpti_ActivityMemcpyKind`.
        kind: u8,
        /// `CUpti_ActivityMemoryKind` of both ends.
        source: u8,
        destination: u8,
        flags: u8,
    },
    Memset {
        bytes: u64,
        value: u32,
        /// `CUpti_ActivityMemoryKind`.
        memory: u8,
        flags: u8,
    },
    /// An event that the device passed at `end_ns`.
    EventRecorded,
    /// Copy between two devices, or two contexts.
    PeerCopy {
        bytes: u64,
        kind: u8,
        source: u8,
        destination: u8,
        flags: u8,
        source_device: u32,
        source_context: u32,
        destination_device: u32,
        destination_context: u32,
    },
}
