//! Recordings: what a program asked of its GPU, call by call, and what the GPU did, kernel by kernel.
//!
//! A recording is what the cost model, the replay simulator and the reports work on; none of them needs a GPU.

mod record;

pub use outboard_api::decl::Class;
pub use record::{About, Call, Device, GpuTimes, GpuWork, Host, Mark, Record, Trace, Work};
