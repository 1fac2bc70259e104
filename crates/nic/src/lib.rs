//! An adapter for programs that have none: stand-ins for rdma-core's `libibverbs.so.1` and
//! `libmlx5.so.1` over the software adapter of `outboard-net`.
//!
//! ```text
//!  program ─► libibverbs.so.1, libmlx5.so.1   jumps, made by build.rs of `functions`
//!                        │
//!                        ▼
//!             liboutboard_nic.so: verbs, devx ─► host: outboard_net::Nic, one a process
//!                        │                            ▲
//!                        └─► cq, qp, post, extended ──┤
//!                                                   fabric ◄─► those of other processes
//! ```
//!
//! - [`functions`] declares what there is, once. What is not served is an error that names itself;
//!   what is not declared is not there, and the loader says so.
//! - [`outboard_verbs::abi`] and [`abi`] have the structures that programs read and write,
//!   `command` the fields of commands.
//! - `host` is this process's adapter, [`fabric`] the folder in which those of several processes
//!   meet.
//! - [`memory`] registers memory, and `gpu` copies from and to that of GPUs.
//! - Queues of verbs are in memory of this crate's: [`cq`], [`qp`], which makes a `pair` with its
//!   `rings`, or with receives of [`srq`]; `post` and `building` are the two ways to post to it,
//!   and `extended` has calls that programs make through a context. Queues of [`devx`] are in the
//!   program's memory, or in that of its GPU; [`query`] answers what a device can do, and
//!   [`dynamic`] makes targets to which nobody posts.
//! - [`gin`] is a plugin for NCCL, which posts to the adapter without verbs.

pub mod abi;
pub mod address;
mod building;
mod command;
pub mod cq;
pub mod devx;
mod domain;
pub mod dynamic;
pub mod events;
mod extended;
pub mod fabric;
pub mod functions;
mod gid;
pub mod gin;
mod gpu;
mod host;
pub mod memory;
pub mod objects;
pub mod pages;
mod pair;
mod post;
pub mod qp;
pub mod query;
pub mod refused;
mod rings;
pub mod srq;
pub mod verbs;

/// The libraries that programs load, by their names: to be written to a folder that also has
/// `liboutboard_nic.so`.
pub const LIBRARIES: [(&str, &[u8]); 3] = [
    (
        functions::LIBRARIES[0].name,
        include_bytes!(concat!(env!("OUT_DIR"), "/libibverbs.so.1")),
    ),
    (
        functions::LIBRARIES[1].name,
        include_bytes!(concat!(env!("OUT_DIR"), "/libmlx5.so.1")),
    ),
    (
        functions::LIBRARIES[2].name,
        include_bytes!(concat!(env!("OUT_DIR"), "/libefa.so.1")),
    ),
];

/// Name of the library that they load.
pub const SERVING: &str = "liboutboard_nic.so";

/// The library that is preloaded, so that programs find [`FILES`], and drivers register doorbells.
pub const PRELOADED: (&str, &[u8]) = (
    "liboutboard_nic_files.so",
    include_bytes!(concat!(env!("OUT_DIR"), "/liboutboard_nic_files.so")),
);

/// Names the folder that has [`FILES`], for the preloaded library, and for Outboard's driver, which
/// says then that adapters reach its memory.
pub const FILES_VARIABLE: &str = "OUTBOARD_NIC_FILES";

/// Files of the adapter that programs read, by their paths without the first slash: its address is
/// of RoCE's second version, and a driver is there by which adapters reach the memory of GPUs.
pub const FILES: [(&str, &str); 2] = [
    (
        "sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/0",
        "RoCE v2\n",
    ),
    ("sys/kernel/mm/memory_peers/nv_mem/version", "1.0\n"),
];

/// A link among the files, and where it leads: the adapter's place on its bus.
pub const FILES_LINK: (&str, &str) = (
    "sys/class/infiniband/mlx5_0/device",
    "../../../devices/pci0000:00/0000:00:1e.0",
);
