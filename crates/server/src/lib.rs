//! The side with the GPU.
//!
//! - [`device`]: `trait Device`, one method a message, consumed by [`session`].
//! - [`nvidia`]: the machine's own driver, loaded at run time.
//! - [`soft`]: PTX on the CPU.
//! - `office`: what a session shares with others of this machine.
//! - [`session`]: one client: its messages in order, answers when the device is done, everything given back at the end.
//! - [`supervisor`]: sockets, and a worker process for each client.
//! - [`log`]: standard error, wherever a device leads it.
//! - [`images`]: module images by their hash, kept across sessions.

mod activity;
pub mod device;
pub mod images;
pub mod log;
pub mod nvidia;
mod office;
pub mod session;
pub mod shadow;
pub mod soft;
pub mod supervisor;
