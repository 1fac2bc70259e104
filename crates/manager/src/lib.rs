//! The pool's manager as a process, and HTTP on both sides. The rules are `outboard-pool`'s.
//!
//! - `serve`: the loop of the process: requests in, one transaction, answers out.
//! - `operations`: what can be asked for, declared once; `openapi`: its description, which
//!   `describe` makes.
//! - `routes`: what is done for each request; `metrics`: numbers for Prometheus;
//!   `page`: tables for people.
//! - `roles`: who may ask for which.
//! - `client`: requests to a manager.
//! - `proof`: the manager's key and certificate, for encrypted connections.
//! - `store`, `etcd`: the store that is opened, if this manager leads.
//! - `http`: requests and answers as bytes; `document`: bodies of requests.

mod client;
mod connection;
#[cfg(test)]
mod describe;
mod document;
mod etcd;
mod http;
pub mod limits;
mod metrics;
mod openapi;
mod operations;
mod page;
mod proof;
mod roles;
mod routes;
mod serve;
mod store;

pub use client::{Client, ClientError, ManagerUrl, ManagerUrls, UrlError};
pub use etcd::{EtcdUrl, StoreUrl, StoreUrlError};
pub use operations::{Operation, Role};
pub use proof::{ProofError, ProofFiles};
pub use serve::{Options, ServeError, Server};
pub use store::open_alone;
