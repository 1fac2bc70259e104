//! CUDA's driver API and NVML as Outboard sees them, declared once.
//!
//! - `driver.calls`: every function that `libcuda.so.1` exports, with its class.
//! - `session.ops`: every message of a session that is not a driver call of its own.
//! - [`decl`]: parses both files; client stubs, codecs, dispatch and the coverage table are
//!   generated from it.
//!
//! - [`documents`]: extracts the documents that Rust sources declare, for the protocol's
//!   fingerprint.
//! - `nvml.calls`, [`nvml`]: every function of `libnvidia-ml.so.1`, and whether it is served.
//! - [`cuda`], [`enums`], [`CUresult`]: CUDA's own types and numbers.
//! - [`coverage`]: writes `docs/coverage.md` from all of these.
//! - [`argument`]: pointer arguments of C calls, as types that carry the caller's promise.
//! - [`activity`]: the interface between `libcuda.so.1` and `libcupti.so.13`.
//! - `cupti.calls`, `cupti.cbids`, [`cupti`]: every function of `libcupti.so.13`, and its numbers
//!   for driver and runtime calls.
//! - [`cupti_records`]: the layouts of CUPTI's records.
//! - [`net`]: the interface between libcuda and liboutboard_net.
//! - [`optimise`]: the levels of `outboard run --optimise`.
//! - [`procaddr`]: the symbol that `cuGetProcAddress` returns for a name, a version and flags.
//! - [`signals`]: the signals that no thread of a library blocks.

pub mod activity;
pub mod argument;
pub mod coverage;
#[allow(non_camel_case_types)]
pub mod cuda;
pub mod cupti;
pub mod cupti_records;
pub mod decl;
pub mod documents;
#[allow(non_upper_case_globals)]
pub mod enums;
pub mod net;
pub mod nvml;
pub mod optimise;
pub mod procaddr;
mod result;
pub mod signals;

pub use result::CUresult;

/// The CUDA version whose driver API is served; `cuDriverGetVersion` returns it.
pub const CUDA_VERSION: u32 = 13000;
