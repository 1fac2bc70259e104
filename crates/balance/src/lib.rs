//! A load balancer for connections: clients send to one address, and each connection goes to one
//! of several backends and stays there.
//!
//! ```text
//!  frames ──► engine: parse ──► connection known? ──yes──► translate ──► frames
//!                                    │ no
//!                                    └► service? ──► client's other connections, or Maglev,
//!                                                    choose the backend
//! ```
//!
//! - [`engine`] decides and does no I/O: frames and the time are arguments.
//! - [`plane`] passes frames between it and the kernel.
//! - [`control`] runs both: configuration, commands, health checks, metrics.
//! - [`replay`] passes a capture through an engine.

pub mod config;
pub mod control;
pub mod engine;
mod neighbours;
pub mod plane;
pub mod replay;
