//! `libcupti.so.13`: CUPTI's activity interface for a GPU that is elsewhere, as far as PyTorch's profiler uses it.
//!
//! ```text
//!  PyTorch (Kineto)
//!     │ the functions of cupti.h; those not served are generated from api/src/cupti.calls   [calls, entry]
//!     │ what the program has enabled, the buffers it gives and gets back                    [profile, buffers]
//!     │ records, laid out as cupti_activity.h has them                                      [records]
//!     │ calls of the driver and of CUDA runtimes, as they begin and end                     [hooks]
//!     │ the server's times on the program's clock                                           [clock]
//!  Outboard's libcuda.so.1, by the table of outboard_api::activity                          [driver]
//! ```
//!
//! Where `libcuda.so.1` is not Outboard's, or none is there, every function says so once on stderr and answers
//! `CUPTI_ERROR_NOT_INITIALIZED`: the program goes on without times of the GPU.
//!
//! Locks, none held while the program's callbacks run: what is enabled; the buffers; the clock; the names. One is held
//! meanwhile, so that work is written in its order: that of taking it, which these callbacks therefore cannot do.

mod buffers;
mod calls;
mod clock;
mod copies;
mod driver;
pub mod entry;
mod hooks;
mod log;
mod names;
mod profile;
pub mod records;
mod status;

/// Marks this library as Outboard's, so that a server never takes it for NVIDIA's.
#[unsafe(no_mangle)]
pub static outboard_cupti: u32 = 1;
