//! `libnvidia-ml.so.1`: NVML for programs whose devices are on another machine.
//!
//! The library changes nothing: every call that would, returns `NVML_ERROR_NOT_SUPPORTED`. It
//! ignores the GPUs of its own machine, and answers no query by guessing.
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
//! Events come from elsewhere: a lease's holder writes what happens to the lease into a file, and
//! waits for [`sets`] of events read it ([`news`]).
//!
//! There are two locks, in [`session`]: of the connection, and of the sets of events. No code that
//! could take one again, or the other, runs while it is held. A thread that holds the first waits
//! for the server for a bounded time. A server that did not answer is not asked again for a second,
//! so no call hangs.

mod call_table;
mod calls;
#[cfg(not(feature = "virtual-clock"))]
mod clock;
#[cfg(feature = "virtual-clock")]
pub mod clock;
pub mod entry;
mod guard;
mod log;
mod news;
mod session;
mod sets;
pub mod types;
