//! The adapter in software as a kernel of the GPU that posts: a few warps read rings, records and
//! doorbells, execute entries by loads and stores, and write completions (`device/adapter.cuh`).
//!
//! ```text
//!  program ─► endpoint ─► host's side of the tables, while no slice runs
//!                            │
//!  thread ── slice after slice of the kernel ─► blocks, each with its group of queues
//! ```
//!
//! - What is served is said by tables in pinned memory ([`tables`]), declared once for both sides.
//! - The kernel runs in slices. Between two of them the tables are the host's ([`adapter`]); one
//!   ends when it is told to, when nothing was posted for a while, and after some milliseconds, so
//!   that who waits for the whole device waits for a slice.
//! - It reaches what the GPU reaches, so that memory of the GPU is registered as that of the host.

mod adapter;
mod endpoint;
mod gpu;
mod groups;
mod run;
mod tables;

pub use adapter::KernelAdapter;
pub(crate) use endpoint::OfKernel;
