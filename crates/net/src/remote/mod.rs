//! An endpoint where the GPU is, for a program under `outboard run` whose server has a copy of the
//! program's memory rather than the memory itself.
//!
//! ```text
//!  program's process                                        server's process of the session
//!    outboard_net_register, ... ─► stub ─► libcuda ──────────► session ─► served ─► adapter
//!    memory ◄────────── changed bytes, both ways ──────────►  mirror ◄── kernels, adapter
//! ```
//!
//! Two programs meet as programs without servers do, by a connection between their processes. Over
//! it they agree which server awaits the other; then the servers connect, as for copies between
//! them (`outboard serve --peer-copies`), and the programs' connection ends.
//!
//! A program with an adapter of its own has one connection, to the other program: that relays what
//! the two adapters send to each other, by calls of its session.
//!
//! ```text
//!  program with its adapter ◄── connection ──► program ◄── give, take ──► server's adapter
//! ```
//!
//! With `proxy` the server's process posts to an RDMA device there, and with `mlx5` it rings the
//! doorbells of an adapter. The program meets others as one with a device of its own does: it
//! passes on where its queue is reached.
//!
//! With `nvlink` nobody looks at queues. The server has the tables that kernels look keys up in,
//! and the program meets others, by handles of CUDA IPC that its session gives and opens.
//!
//! The calls are declared once, in [`outboard_wire::doc::NetCall`]. Queues and registered memory
//! are pinned memory of the program, of which the session has a mirror at the same address.

mod at_server;
mod direct;
mod meeting;
mod reached;
mod relay;
mod relayed;
mod served;
mod session;
pub(crate) mod stub;

pub use at_server::Borrower;
pub use served::{Answering, Carrier, Served, check_device};
pub use session::is_copied;
pub(crate) use session::{is_remote, keep, look, may_be_remote};
