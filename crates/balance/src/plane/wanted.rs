//! The frames that a plane is to give to the engine.

use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};

/// The ends of packets by which a frame is the balancer's or not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// Addresses of services and sources: all that is sent to them.
    pub own: Vec<IpAddr>,
    /// Other addresses of this machine: nothing that is sent to them.
    pub local: Vec<IpAddr>,
    /// Backends that answer to clients' addresses, and their protocols: what they send from there
    /// to anybody else.
    pub backends: Vec<(SocketAddr, u8)>,
}
