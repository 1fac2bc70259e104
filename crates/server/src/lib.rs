//! The server: the side with the GPU.
//!
//! - [`device`]: `trait Device`, one method per message, called by [`session`]. The devices and
//!   [`session`] know it, and not each other.
//! - [`nvidia`]: the machine's own driver, loaded at run time.
//! - [`soft`]: PTX on the CPU.
//! - `office`: shares memory and events with other sessions of this machine.
//! - [`session`]: serves one client: messages in order, replies when the device is done, everything
//!   released at the end.
//! - [`supervisor`]: sockets, and a worker process for each client.
//! - [`log`]: the server's own log, even while a device redirects standard error.
//! - [`images`]: module images by their hash, kept across sessions.

mod activity;
pub mod device;
mod failure;
pub mod handle_table;
pub mod images;
pub mod log;
pub mod nvidia;
mod office;
mod pass_fd;
pub mod session;
pub mod soft;
pub mod supervisor;
