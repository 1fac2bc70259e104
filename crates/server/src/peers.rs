//! Other servers with which this one exchanges the data of copies, for programs that use both.
//!
//! ```text
//!  worker                supervisor                              the other server
//!    ├── Dial: address ───►│ looks it up: is it in --peer-copies?
//!    │                     ├── connects, and says nothing ─────────►│
//!    │◄── Dialled: socket ─┤
//!    ├── shows what it knows of the other's secret, and waits for the welcome ►│
//!
//!    ├── Offer: key ──────►│ notes it
//!    │                     │◄── a connection that shows the key, once ─────────┤
//!    │◄── Peer: socket ────┤ if it comes from --peer-copies
//! ```
//!
//! A worker is confined, and cannot open a connection to anybody. The supervisor opens it for it,
//! to the networks that its operator names and to no others.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd as _, OwnedFd},
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use outboard_link::{Endpoint, Peer, connect_peer, peer_addresses};
use outboard_wire::{
    handshake::SessionKey,
    limits::{PEER_CONNECT_MS_MAX, PEER_OFFER_MS_MAX},
};
use tracing::{debug, warn};

use crate::{admission::Order, control::Control, limits};

/// Answers to a worker. Of the other server's port it says nothing.
const NOT_REACHED: &str = "the other server cannot be reached from here";
const NOT_ALLOWED: &str = "the other server is in none of the networks of --peer-copies";
const TOO_MANY: &str = "too many connections to other servers are being opened";

/// A network: the addresses whose first bits are those of one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerNetwork {
    address: IpAddr,
    bits: u8,
}

/// Reason why a text names no network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no network: accepted are addresses, as 10.0.0.7 or fd00::7, and networks, as 10.0.0.0/24"
)]
pub struct NoNetwork(String);

/// Connections that are being opened to other servers.
#[derive(Debug, Default)]
pub(super) struct Dialling(Arc<AtomicUsize>);

/// Keys that sessions wait for, each shown once at most.
#[derive(Debug, Default)]
pub(super) struct Offers(Vec<(SessionKey, Instant)>);

impl PeerNetwork {
    fn has(&self, address: IpAddr) -> bool {
        let (ours, its, width) = match (self.address, address.to_canonical()) {
            (IpAddr::V4(ours), IpAddr::V4(its)) => (
                u128::from(u32::from(ours)),
                u128::from(u32::from(its)),
                u32::BITS,
            ),
            (IpAddr::V6(ours), IpAddr::V6(its)) => (ours.into(), its.into(), u128::BITS),
            _ => return false,
        };
        let rest = width - u32::from(self.bits).min(width);
        (ours ^ its).checked_shr(rest).unwrap_or(0) == 0
    }
}

impl FromStr for PeerNetwork {
    type Err = NoNetwork;

    fn from_str(text: &str) -> Result<PeerNetwork, NoNetwork> {
        let wrong = || NoNetwork(text.into());
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let width = if address.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            None => width,
            Some(bits) if bits.bytes().all(|b| b.is_ascii_digit()) => {
                bits.parse().map_err(|_| wrong())?
            }
            Some(_) => return Err(wrong()),
        };
        match bits <= width {
            true => Ok(PeerNetwork { address, bits }),
            false => Err(wrong()),
        }
    }
}

impl fmt::Display for PeerNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

/// Returns whether one of these networks has the address.
fn are_of(networks: &[PeerNetwork], address: IpAddr) -> bool {
    networks.iter().any(|network| network.has(address))
}

/// Returns whether a peer that connects may be another server.
pub(super) fn may_come(networks: &[PeerNetwork], peer: &Peer) -> bool {
    match peer {
        Peer::Host(address) => are_of(networks, address.ip()),
        _ => false,
    }
}

impl Dialling {
    /// Connects to another server for a worker, on a thread of its own, which answers the worker.
    pub(super) fn dial(
        &self,
        control: &Control,
        networks: &[PeerNetwork],
        number: u32,
        address: Endpoint,
    ) {
        let refuse = |why: &str| tell(control, number, Err(why));
        if networks.is_empty() {
            return refuse(NOT_ALLOWED);
        }
        if self.0.fetch_add(1, Ordering::AcqRel) >= limits::PEER_DIALS_MAX {
            self.0.fetch_sub(1, Ordering::AcqRel);
            return refuse(TOO_MANY);
        }
        let open = Open(Arc::clone(&self.0));
        let networks = networks.to_vec();
        let started = control.try_clone().and_then(|control| {
            thread::Builder::new()
                .name("outboard-dial".into())
                .spawn(move || {
                    let _open = open;
                    match connect(&networks, &address) {
                        Ok(socket) => tell(&control, number, Ok(&socket)),
                        Err(why) => tell(&control, number, Err(why)),
                    }
                })
        });
        if let Err(error) = started {
            warn!(%error, "another server cannot be connected to");
            refuse(NOT_REACHED);
        }
    }
}

/// One of the connections that are being opened.
struct Open(Arc<AtomicUsize>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

fn connect(networks: &[PeerNetwork], address: &Endpoint) -> Result<OwnedFd, &'static str> {
    let deadline = Instant::now() + Duration::from_millis(PEER_CONNECT_MS_MAX);
    let found = peer_addresses(address).map_err(|error| {
        debug!(%address, %error, "for a program's copies");
        NOT_REACHED
    })?;
    let allowed = found.into_iter().filter(|at| are_of(networks, at.ip()));
    let allowed: Vec<SocketAddr> = allowed.collect();
    if allowed.is_empty() {
        debug!(%address, "is in none of the networks of --peer-copies");
        return Err(NOT_ALLOWED);
    }
    connect_peer(&allowed, deadline).map_err(|error| {
        debug!(%address, %error, "for a program's copies");
        NOT_REACHED
    })
}

fn tell(control: &Control, number: u32, connected: Result<&OwnedFd, &str>) {
    let order = Order::Dialled {
        number,
        refused: connected.err().map(String::from),
    };
    let socket: Vec<_> = connected.iter().map(|socket| socket.as_fd()).collect();
    if let Err(error) = control.send(&order, &socket) {
        debug!(%error, "a worker cannot be reached");
    }
}

impl Offers {
    /// Notes a key, for some seconds.
    pub(super) fn add(&mut self, key: SessionKey) {
        let now = Instant::now();
        self.0.retain(|(_, until)| *until > now);
        if self.0.len() < limits::PEER_OFFERS_MAX {
            let until = now + Duration::from_millis(PEER_OFFER_MS_MAX);
            self.0.push((key, until));
        }
    }

    /// Takes a key, if it is noted.
    pub(super) fn take(&mut self, key: &SessionKey) -> bool {
        let now = Instant::now();
        let at = |(noted, until): &(SessionKey, Instant)| noted.is(key) && *until > now;
        let found = self.0.iter().position(at);
        found.map(|at| self.0.swap_remove(at)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use outboard_wire::limits::SESSION_KEY_BYTES;

    use super::*;

    #[test]
    fn networks_have_the_addresses_that_begin_alike() {
        for (network, address, has) in [
            ("10.0.0.0/24", "10.0.0.255", true),
            ("10.0.0.0/24", "10.0.1.0", false),
            ("10.0.0.0/24", "::ffff:10.0.0.9", true),
            ("10.0.0.7", "10.0.0.7", true),
            ("10.0.0.7", "10.0.0.6", false),
            ("0.0.0.0/0", "192.0.2.1", true),
            ("0.0.0.0/0", "::1", false),
            ("fd00::/8", "fdff::1", true),
            ("fd00::/8", "fe80::1", false),
            ("::/0", "2001:db8::1", true),
            ("127.0.0.0/8", "169.254.169.254", false),
        ] {
            let of: PeerNetwork = network.parse().unwrap();
            assert_eq!(of.has(address.parse().unwrap()), has, "{network} {address}");
        }
        for wrong in [
            "",
            "10.0.0",
            "10.0.0.0/33",
            "::/129",
            "10.0.0.0/+8",
            "10.0.0.0/",
            "host/8",
        ] {
            assert!(wrong.parse::<PeerNetwork>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_key_is_taken_once() {
        let [one, other] = [1, 2].map(|byte| SessionKey::new([byte; SESSION_KEY_BYTES]));
        let mut offers = Offers::default();
        assert!(!offers.take(&one));
        offers.add(one);
        assert!(!offers.take(&other));
        assert!(offers.take(&one));
        assert!(!offers.take(&one));
        (0..1000).for_each(|_| offers.add(other));
        assert_eq!(offers.0.len(), limits::PEER_OFFERS_MAX);
    }
}
