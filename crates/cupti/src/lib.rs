//! `libcupti.so.13`: CUPTI's activity interface for a remote GPU, as far as the profilers of
//! PyTorch and XLA use it.
//!
//! ```text
//!  PyTorch (Kineto), JAX (XLA)
//!     │ the functions of cupti.h; unserved ones are generated from cupti.calls    [calls, entry]
//!     │ the enabled kinds, and the program's buffers                  [profile, wanted, buffers]
//!     │ the work that the server has done for them                                       [taken]
//!     │ records, laid out as in cupti_activity.h                     [outboard_api::cupti_records]
//!     │ begin and end of calls of the driver and of CUDA runtimes     [hooks, call_stack, known]
//!     │ the program's subscriber; waits and events; numbers of objects [callbacks, waits, objects]
//!     │ the server's times on the program's clock                                          [clock]
//!  Outboard's libcuda.so.1, by the table of outboard_api::activity                        [driver]
//! ```
//!
//! If `libcuda.so.1` is missing or not Outboard's, every function reports that once on stderr and
//! returns `CUPTI_ERROR_NOT_INITIALIZED`: the program continues without times of the GPU.
//!
//! There are locks for the enabled kinds, the buffers, the clock and the names. None of them is
//! held while the program's callbacks run. A further lock, for taking work, is held during
//! callbacks so that records are written in order; callbacks therefore cannot take work.

mod buffers;
mod call_stack;
mod callbacks;
mod calls;
mod clock;
mod copies;
mod driver;
pub mod entry;
mod hooks;
mod known;
mod log;
mod names;
mod objects;
mod profile;
mod status;
mod taken;
mod waits;
mod wanted;

/// Takes the bytes for work that a server tells of. For the fuzzer.
pub fn fuzz(data: &[u8]) {
    taken::fuzz(data);
}

/// Marks this library as Outboard's, so that a server never takes it for NVIDIA's.
#[unsafe(no_mangle)]
pub static outboard_cupti: u32 = 1;
