//! Execution of a block: its warps and barriers, a warp's groups of lanes, the dispatch loop, the
//! state that instructions work on, calls, and a thread's stack.

pub(crate) mod block;
pub(crate) mod call;
pub(crate) mod core;
pub(crate) mod dispatch;
pub(crate) mod stack;
pub(crate) mod warp;
