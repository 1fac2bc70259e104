//! The server: the side with the GPU.
//!
//! ```text
//!  outboard-server    supervisor ── starts ──► worker, a process for each client
//!                                                │ opens the device, reads the hello
//!  outboard-session                              ▼ engine: messages in order, replies
//!  outboard-device                             trait Device, one method per message
//!                                                ▲                ▲
//!  the devices                          outboard-nvidia     outboard-soft
//! ```
//!
//! The session engine and the devices know the trait, and not each other. Only `devices` in this
//! crate names the devices.
//!
//! - `supervisor`: accepts clients, and gives each a worker process.
//! - `worker`: serves one client, by the supervisor's orders.
//! - `devices`: the choice of the device.
//! - `sandbox`: what a worker may do, besides what its open descriptors allow.
//! - `cgroup`: a control group for each worker, where there can be one.
//! - `shares`: what each tenant may use, and all of them together.
//! - `pool`: the fence of a server that is part of a pool, and its agent; `inventory`: its GPUs.
//! - `hand_over`: a new server takes the place of a running one.
//! - `peers`: other servers that bring the data of copies, or get it.
//! - `view`: what the server sees of itself, from the workers' reports (`usage`); asked for by
//!   `outboard top` (`status`), exported as `metrics` (`exporter`), kept in a file (`audit`).

mod access;
mod admission;
mod audit;
mod cgroup;
mod control;
mod devices;
mod encryption;
mod exporter;
mod hand_over;
mod inherit;
mod inventory;
mod keeper;
pub mod limits;
pub mod metrics;
mod peers;
mod pool;
mod reporter;
mod sandbox;
mod sealed;
mod shares;
mod signals;
mod spares;
mod status;
mod supervisor;
mod tokens;
mod usage;
mod view;
mod worker;

pub use access::Access;
pub use audit::check as check_audit;
pub use cgroup::{NoGroups, WEIGHT_MAX, control_groups};
pub use devices::{DeviceKind, DeviceOptions};
pub use hand_over::{HandOverError, check as check_hand_over};
pub use inherit::{OpenedError, opened_sockets, take as inherited};
pub use inventory::take as inventory;
pub use peers::{NoNetwork, PeerNetwork};
pub use pool::PoolOptions;
pub use sandbox::{Available, Sandbox, available as sandbox_available};
pub use shares::{Limit, Limits, NoTenant, PERCENT_MAX, Shares, Unit, Whose};
pub use supervisor::{ServeError, ServeOptions, Supervisor, check_parts};
pub use worker::run_worker;
