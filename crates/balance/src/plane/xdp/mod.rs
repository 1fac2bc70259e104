//! AF_XDP: an XDP program hands the balancer's frames to sockets, one for each queue, before the
//! kernel's own network handles them. All else is the kernel's.
//!
//! One thread reads all queues, so the directions of a connection may use different ones.

mod program;
mod rings;

use super::handed::{self, Handed, HandedInterface};
use super::{Plane, PlaneError, Wanted, sys};
use crate::engine::{Frame, Port};
use program::Program;
use rings::XdpSocket;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};

/// Queues of one interface.
const QUEUES_MAX: u32 = 256;

struct Interface {
    name: String,
    index: u32,
    mac: [u8; 6],
    program: Program,
    queues: Vec<XdpSocket>,
}

/// AF_XDP sockets of one or more interfaces.
pub struct XdpPlane {
    interfaces: Vec<Interface>,
    /// For each frame of the last batch, the queue where it came.
    queues: Vec<usize>,
    /// Frames whose memory is used again.
    spare: Vec<Frame>,
}

impl XdpPlane {
    pub fn open(interfaces: &[String]) -> Result<XdpPlane, PlaneError> {
        let interfaces = interfaces.iter().map(|name| Interface::open(name));
        Ok(XdpPlane {
            interfaces: interfaces.collect::<Result<_, _>>()?,
            queues: Vec::new(),
            spare: Vec::new(),
        })
    }

    pub(super) fn adopt(
        interfaces: Vec<HandedInterface>,
        fds: &mut dyn Iterator<Item = OwnedFd>,
    ) -> io::Result<XdpPlane> {
        let interfaces = interfaces.into_iter();
        Ok(XdpPlane {
            interfaces: interfaces
                .map(|one| Interface::adopt(one, fds))
                .collect::<Result<_, _>>()?,
            queues: Vec::new(),
            spare: Vec::new(),
        })
    }
}

impl Interface {
    fn adopt(
        one: HandedInterface,
        fds: &mut dyn Iterator<Item = OwnedFd>,
    ) -> io::Result<Interface> {
        let mut next = || handed::next(fds);
        let parts = [next()?, next()?, next()?, next()?];
        let mut queues = Vec::new();
        for (stash, free) in one.places {
            let (socket, memory) = (handed::next(fds)?, handed::next(fds)?);
            queues.push(XdpSocket::adopt(socket, memory, stash, free)?);
        }
        Ok(Interface {
            name: one.name,
            index: one.index,
            mac: one.mac,
            program: Program::adopt(parts, one.present),
            queues,
        })
    }

    fn open(name: &str) -> Result<Interface, PlaneError> {
        let failed = |step| {
            move |source| PlaneError::System {
                interface: name.to_string(),
                step,
                source,
            }
        };
        let (sys::PacketSocket { index, mac, .. }, ()) = sys::open_packet(name, |_| ())?;
        let program =
            Program::attach(index, QUEUES_MAX).map_err(failed("putting the XDP program on it"))?;
        let mut queues = Vec::new();
        for queue in 0..QUEUES_MAX {
            match XdpSocket::open(index, queue) {
                Ok(socket) => {
                    let placed = program.set_socket(queue, socket.fd.as_raw_fd());
                    placed.map_err(failed("giving its XDP program a socket"))?;
                    queues.push(socket);
                }
                // There are no more queues.
                Err(error) if queue > 0 && error.kind() == io::ErrorKind::InvalidInput => break,
                Err(error) => return Err(failed("opening an AF_XDP socket")(error)),
            }
        }
        tracing::info!(
            interface = name,
            queues = queues.len(),
            "frames come by AF_XDP"
        );
        Ok(Interface {
            name: name.to_string(),
            index,
            mac,
            program,
            queues,
        })
    }
}

impl Plane for XdpPlane {
    fn interfaces(&self) -> Vec<String> {
        self.interfaces.iter().map(|one| one.name.clone()).collect()
    }

    fn ports(&self) -> Vec<Port> {
        let port = |one: &Interface| Port {
            mac: Some(one.mac),
            mtu: None,
        };
        self.interfaces.iter().map(port).collect()
    }

    fn index(&self, port: usize) -> Option<u32> {
        self.interfaces.get(port).map(|one| one.index)
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let queues = self.interfaces.iter().flat_map(|one| &one.queues);
        queues.map(|queue| queue.fd.as_fd()).collect()
    }

    fn set_wanted(&mut self, wanted: &Wanted) -> io::Result<()> {
        let mut interfaces = self.interfaces.iter_mut();
        interfaces.try_for_each(|one| one.program.set_wanted(wanted))
    }

    fn wanted(&self) -> Wanted {
        let present = self.interfaces.iter().map(|one| one.program.present());
        present.fold(Wanted::default(), Wanted::and)
    }

    fn receive(&mut self, frames: &mut Vec<Frame>, max: usize) -> io::Result<()> {
        self.spare.append(frames);
        self.queues.clear();
        // None may keep the others waiting.
        let count: usize = self.interfaces.iter().map(|one| one.queues.len()).sum();
        let share = max.div_ceil(count.max(1));
        for (port, interface) in self.interfaces.iter_mut().enumerate() {
            for (number, queue) in interface.queues.iter_mut().enumerate() {
                queue.receive(share, |bytes| {
                    let mut frame = self.spare.pop().unwrap_or_default();
                    frame.bytes.clear();
                    frame.bytes.extend_from_slice(bytes);
                    frame.port = port as u16;
                    (frame.partial, frame.segment_bytes) = (false, 0);
                    self.queues.push(number);
                    frames.push(frame);
                });
            }
        }
        Ok(())
    }

    fn hand_over(&mut self) -> (Handed, Vec<BorrowedFd<'_>>) {
        let handed = |one: &Interface| HandedInterface {
            name: one.name.clone(),
            index: one.index,
            mac: one.mac,
            present: one.program.present().clone(),
            places: one.queues.iter().map(XdpSocket::places).collect(),
        };
        let interfaces = self.interfaces.iter().map(handed).collect();
        let mut fds = Vec::new();
        for one in &self.interfaces {
            fds.extend(one.program.descriptors());
            for queue in &one.queues {
                fds.extend([queue.fd.as_fd(), queue.memory.as_fd()]);
            }
        }
        (Handed::Xdp(interfaces), fds)
    }

    fn send(&mut self, index: usize, frame: &Frame, port: u16) -> io::Result<()> {
        let interface = self.interfaces.get_mut(usize::from(port));
        let queues = &mut interface.ok_or(io::ErrorKind::NotFound)?.queues;
        // The queue where it came, so that frames of a direction stay in order.
        let number = self.queues.get(index).copied().unwrap_or_default();
        let count = queues.len().max(1);
        let queue = queues
            .get_mut(number % count)
            .ok_or(io::ErrorKind::NotFound)?;
        queue.send(&frame.bytes)
    }

    fn flush(&mut self) -> bool {
        let queues = self.interfaces.iter_mut().flat_map(|one| &mut one.queues);
        queues.fold(true, |all, queue| queue.flush() & all)
    }
}
