//! A GPU in software: PTX text in, results out, on CPU threads. It looks like a device of
//! compute capability 8.0.
//!
//! Not supported: compilation to machine code, textures by name, clusters. [`Module::load`] refuses
//! whatever cannot be executed, and names its line; of a text above
//! [`limits::PTX_WHOLE_BYTES_MAX`] a kernel is ended when it comes there.
//!
//! ```text
//!  PTX text ─ parse ─► syntax tree ─ lower ─► Program ─ verify ─► Verified ─ interp ─► results
//!                                      │                                      │
//!                        Module: kernels, variables               Launch: blocks on worker threads
//!                                      └──────────── Memory: one window ──────┘
//! ```
//!
//! # Use
//!
//! ```
//! use std::sync::atomic::AtomicBool;
//! use outboard_ptx::{
//!     launch::{Launch, STACK_BYTES_DEFAULT}, memory::Memory, module::Module, output::Discard,
//! };
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let ptx = "
//!     .version 8.0
//!     .target sm_80
//!     .address_size 64
//!     .visible .entry answer(.param .u64 out) {
//!         .reg .b64 %rd<2>;
//!         ld.param.u64 %rd1, [out];
//!         st.global.u32 [%rd1], 42;
//!         ret;
//!     }";
//! let base = 0x2000_0000_0000;
//! // The last 16 MiB are for modules' variables.
//! let memory = Memory::reserve(base, 1 << 30, 1 << 24)?;
//! memory.map(base, 4096)?;
//! let module = Module::load(ptx, &memory)?;
//! let stats = Launch {
//!     module: &module, kernel: "answer", grid: [1; 3], block: [1; 3], dynamic_shared_bytes: 0,
//!     params: &base.to_le_bytes(), workers: 1, stack_bytes: STACK_BYTES_DEFAULT,
//!     cooperative: false, envregs: [0; 32], output: &Discard, heap: None,
//!     cancel: &AtomicBool::new(false), execution: None,
//! }
//! .run()?;
//! let mut out = [0; 4];
//! memory.read(base, &mut out)?;
//! assert_eq!((u32::from_le_bytes(out), stats.blocks), (42, 1));
//! # Ok(())
//! # }
//! ```
//!
//! # Contracts
//!
//! - A device pointer is a host address. [`memory::Memory::map`] and `unmap` wait for the running
//!   time slices of kernels (milliseconds), never for kernels to end. Kernels can access mapped
//!   ranges to the byte, and registered host ranges.
//! - [`launch::Launch::run`] blocks its caller until the grid is done, faulted or cancelled. A
//!   [`error::Fault`] names the kernel, block, thread and PTX line; if several blocks fault, the
//!   lowest is reported.
//! - Several launches may run at once, on any threads, in one memory.
//! - Floats: `.rn` and directed roundings are exact. `.approx` functions are the host's, within
//!   about 1 ulp of the exact value where the ISA allows more; results may differ from a GPU's in
//!   the last bits. Single-precision NaNs are 0x7fffffff.
//! - A text may hold several units, each with its own `.version`: [`Module::load`] links them by
//!   `.visible`, `.weak`, `.common` and `.extern`, and by `.alias`. Names without linkage are
//!   private to their unit.
//! - Asynchronous copies (`cp.async`) are done when they are issued; cache hints and policies have
//!   no effect.
//! - Tensor cores (`mma`, `wmma`): products of 16-bit floats and tf32 are exact. They and the
//!   summand are added in double precision by ascending k and rounded once, to nearest even, while
//!   a GPU truncates partial sums in an order of its own. `f64` is a chain of fused multiply-adds
//!   by ascending k. Fragments of `wmma` are laid out as those of `mma`.
//! - Speed: some 100 million warp instructions per second and core with AVX2, 10 million where each
//!   lane calls a function of the host (`sin`); `examples/throughput` measures it. A launch starts
//!   its worker threads only after it has run for some hundred microseconds.
//! - `%clock64` ticks at 1 GHz, `%smid` is the worker thread.
//!
//! Lock order: [`memory::Memory`]'s range lock, then [`heap::Heap`]'s, an output's own or that of
//! `room`; no other locks are held together.

pub mod array;
pub mod check;
pub mod code;
pub mod device;
pub mod error;
pub mod execution;
mod extents;
pub mod fuzz;
pub mod heap;
mod interp;
mod lanes;
pub mod launch;
pub mod limits;
pub mod lower;
pub mod memory;
pub mod module;
mod number;
pub mod output;
pub mod parse;
mod position;
mod printf;
mod room;
pub mod texture;
pub mod verify;
mod words;
mod written;

pub use error::{Error, Fault, FaultKind};
pub use heap::Heap;
pub use launch::{Launch, LaunchError, Stats};
pub use lower::{Kernel, KernelParam};
pub use memory::{Memory, MemoryError};
pub use module::{Global, Module};
pub use output::{Fifo, Output, Printed, To};
