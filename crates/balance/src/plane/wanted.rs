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

impl Wanted {
    /// Adds what another balancer wants on the same machine.
    pub fn and(mut self, other: &Wanted) -> Wanted {
        fn add<T: Clone + Ord>(all: &mut Vec<T>, more: &[T]) {
            all.extend_from_slice(more);
            all.sort_unstable();
            all.dedup();
        }
        add(&mut self.own, &other.own);
        add(&mut self.local, &other.local);
        add(&mut self.backends, &other.backends);
        self
    }
}
