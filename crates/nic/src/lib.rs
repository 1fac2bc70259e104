//! An adapter for programs that have none: stand-ins for rdma-core's `libibverbs.so.1` and
//! `libmlx5.so.1` over the software adapter of `outboard-net`.
//!
//! ```text
//!  program ─► libibverbs.so.1, libmlx5.so.1   jumps, made by build.rs of `functions`
//!                        │
//!                        ▼
//!             liboutboard_nic.so: verbs, devx ─► outboard_net::Nic, one a process
//! ```
//!
//! - [`functions`] declares what there is, once. What is not served is an error that names itself;
//!   what is not declared is not there, and the loader says so.
//! - [`abi`] has the structures that programs read and write, `command` the fields of commands.
//!
//! It is no adapter between processes: what one process registers, its own queues reach.

pub mod abi;
mod command;
pub mod devx;
pub mod functions;
pub mod refused;
pub mod verbs;

/// The libraries that programs load, by their names: to be written to a folder that also has
/// `liboutboard_nic.so`.
pub const LIBRARIES: [(&str, &[u8]); 2] = [
    (
        functions::LIBRARIES[0].name,
        include_bytes!(concat!(env!("OUT_DIR"), "/libibverbs.so.1")),
    ),
    (
        functions::LIBRARIES[1].name,
        include_bytes!(concat!(env!("OUT_DIR"), "/libmlx5.so.1")),
    ),
];

/// Name of the library that they load.
pub const SERVING: &str = "liboutboard_nic.so";
