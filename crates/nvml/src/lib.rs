//! `libnvidia-ml.so.1`: what NVML says of a server's devices, for programs on another machine.
//!
//! What this library does *not* do: it changes nothing (every call that would, answers `NVML_ERROR_NOT_SUPPORTED`), knows
//! nothing of the GPUs of its own machine, and answers no question from a guess.
//!
//! ```text
//!  nvidia-smi, nvidia-ml-py, PyTorch
//!     │ the functions of nvml.h, generated from api/src/nvml.calls      [entry]
//!     │ errors logged, panics kept from C                               [guard]
//!     │ one answer each, out of the snapshot                            [calls]
//!     │ one snapshot at most every 100 ms, one connection a process     [session]
//!     ▼
//!  outboard serve (Purpose::Management, nvml_snapshot)
//! ```
//!
//! There is one lock, in [`session`]; nothing is called with it held that comes back here. Whoever holds it waits for
//! the server for a bounded time, and a server that did not answer is left alone for a second, so that no call hangs.

mod calls;
pub mod entry;
mod guard;
mod log;
mod private;
mod session;
pub mod types;
