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
//! [`engine`] decides and does no I/O: frames and the time are arguments.

pub mod engine;
