//! The pool's manager as a process, and HTTP on both sides. The rules are `outboard-pool`'s.
//!
//! - `serve`: the loop of the process: requests in, one transaction, answers out.
//! - `routes`: which request is which.
//! - `roles`: who may ask for which.
//! - `client`: requests to a manager.
//! - `proof`: the manager's key and certificate, for encrypted connections.
//! - `http`: requests and answers as bytes.

mod client;
mod connection;
mod http;
pub mod limits;
mod proof;
mod roles;
mod routes;
mod serve;

pub use client::{Client, ClientError, ManagerUrl, UrlError};
pub use proof::{ProofError, ProofFiles};
pub use serve::{Options, ServeError, Server};
