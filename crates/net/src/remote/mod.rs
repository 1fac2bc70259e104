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
//! The calls are declared once, in [`outboard_wire::doc::NetCall`]. Queues and registered memory
//! are pinned memory of the program, of which the session has a mirror at the same address.

mod meeting;
mod served;
mod session;
pub(crate) mod stub;

pub use served::{Answering, Carrier, Served};
pub use session::is_copied;
pub(crate) use session::{is_remote, look};
