//! Interfaces that may go while frames pass: the balancer goes on with the others.

use crate::plane::Plane;
use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use tracing::warn;

/// Interval at which interfaces are looked at.
const EVERY: Duration = Duration::from_secs(1);

/// An interface of the kernel's.
struct Link {
    name: String,
    index: u32,
    is_gone: bool,
}

/// Interfaces of a plane. A TUN device is none of them: reading it fails once it is gone.
pub(super) struct Links {
    socket: OwnedFd,
    links: Vec<Link>,
    next: Instant,
}

impl Links {
    pub(super) fn of(plane: &dyn Plane) -> io::Result<Links> {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?;
        let numbered = plane.interfaces().into_iter().enumerate();
        let link = |(port, name)| {
            Some(Link {
                name,
                index: plane.index(port)?,
                is_gone: false,
            })
        };
        Ok(Links {
            socket,
            links: numbered.filter_map(link).collect(),
            next: Instant::now() + EVERY,
        })
    }

    /// Looks for interfaces that are gone, each second. An error says that none is left.
    pub(super) fn look(&mut self) -> io::Result<()> {
        if Instant::now() < self.next {
            return Ok(());
        }
        self.next = Instant::now() + EVERY;
        for link in &mut self.links {
            let name = netdevice::index_to_name_inlined(&self.socket, link.index);
            if !link.is_gone && is_absent(name.err()) {
                link.is_gone = true;
                warn!(
                    interface = link.name,
                    "is gone, for which a restart is needed"
                );
            }
        }
        match self.links.iter().all(|one| one.is_gone) && !self.links.is_empty() {
            true => {
                let names: Vec<_> = self.links.iter().map(|one| one.name.as_str()).collect();
                let what = format!("no interface is left, {} is gone", names.join(", "));
                Err(io::Error::other(what))
            }
            false => Ok(()),
        }
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
