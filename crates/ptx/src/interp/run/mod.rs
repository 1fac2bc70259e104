//! Execution of a block: its warps and barriers, a warp's groups of lanes, the dispatch loop,
//! calls, and a thread's stack.

pub(crate) mod barriers;
pub(crate) mod block;
pub(crate) mod call;
pub(crate) mod dispatch;
pub(crate) mod group;
pub(crate) mod stack;
pub(crate) mod turn;
pub(crate) mod warp;
