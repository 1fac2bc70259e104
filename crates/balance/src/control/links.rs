//! Interfaces that may go while frames pass: the balancer goes on with the others.

use crate::plane::Plane;
use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// Interval at which interfaces are looked at.
const EVERY: Duration = Duration::from_secs(1);

/// An interface of the kernel's.
#[derive(Clone)]
struct Link {
    port: usize,
    name: String,
    index: u32,
    is_gone: bool,
}

/// Interfaces of a plane, as the loop and the threads beside it see them. A TUN device is none of
/// them: reading it fails once it is gone.
#[derive(Clone, Default)]
pub(super) struct Interfaces(Arc<Mutex<Vec<Link>>>);

impl Interfaces {
    fn with<T>(&self, act: impl FnOnce(&mut Vec<Link>) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the port of an interface with this index.
    pub(super) fn port_of(&self, index: u32) -> Option<usize> {
        self.with(|links| Some(links.iter().find(|one| one.index == index)?.port))
    }

    /// Returns the names of those that are gone.
    pub(super) fn gone(&self) -> Vec<String> {
        self.with(|links| {
            let gone = links.iter().filter(|one| one.is_gone);
            gone.map(|one| one.name.clone()).collect()
        })
    }
}

/// Looks after the interfaces of a plane.
pub(super) struct Links {
    socket: OwnedFd,
    interfaces: Interfaces,
    next: Instant,
}

impl Links {
    pub(super) fn of(plane: &dyn Plane) -> io::Result<Links> {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?;
        let numbered = plane.interfaces().into_iter().enumerate();
        let link = |(port, name)| {
            Some(Link {
                port,
                name,
                index: plane.index(port)?,
                is_gone: false,
            })
        };
        let links = numbered.filter_map(link).collect();
        Ok(Links {
            socket,
            interfaces: Interfaces(Arc::new(Mutex::new(links))),
            next: Instant::now() + EVERY,
        })
    }

    pub(super) fn interfaces(&self) -> Interfaces {
        self.interfaces.clone()
    }

    /// Looks each second for interfaces that are gone, and for new ones of their names. Returns
    /// whether one is used anew. An error says that none is left.
    pub(super) fn look(&mut self, plane: &mut dyn Plane) -> io::Result<bool> {
        if Instant::now() < self.next {
            return Ok(false);
        }
        self.next = Instant::now() + EVERY;
        let socket = &self.socket;
        self.interfaces.with(|links| {
            let mut is_any_new = false;
            for link in links.iter_mut() {
                is_any_new |= look_at(socket, link, plane);
            }
            match links.iter().all(|one| one.is_gone) && !links.is_empty() {
                true => {
                    let names: Vec<_> = links.iter().map(|one| one.name.as_str()).collect();
                    let what = format!("no interface is left, {} is gone", names.join(", "));
                    Err(io::Error::other(what))
                }
                false => Ok(is_any_new),
            }
        })
    }
}

/// Looks at one interface. Returns whether another one of its name is used in its place.
fn look_at(socket: &OwnedFd, link: &mut Link, plane: &mut dyn Plane) -> bool {
    let name = netdevice::index_to_name_inlined(socket, link.index);
    if !is_absent(name.err()) && plane.is_bound(link.port) {
        return false;
    }
    let was_gone = std::mem::replace(&mut link.is_gone, true);
    let opened = plane.open_again(link.port);
    if !was_gone {
        let what = match opened {
            Ok(false) => "is gone, for which a restart is needed",
            _ => "is gone, until there is one of its name",
        };
        warn!(interface = link.name, "{what}");
    }
    match (opened, plane.index(link.port)) {
        (Ok(true), Some(index)) => {
            (link.index, link.is_gone) = (index, false);
            info!(interface = link.name, "is there again");
            true
        }
        _ => false,
    }
}

fn is_absent(error: Option<rustix::io::Errno>) -> bool {
    use rustix::io::Errno;
    matches!(error, Some(Errno::NODEV | Errno::NXIO))
}

/// Returns whether reading failed because an interface is down for now, or gone.
pub(super) fn is_down(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::NETDOWN.raw_os_error())
}
