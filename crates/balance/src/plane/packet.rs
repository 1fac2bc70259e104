//! Packet sockets: Ethernet frames of whole interfaces, of which the engine takes what is its own.

use super::handed::{self, Handed, HandedSocket};
use super::{Offload, Plane, PlaneError, Reader, receive_in_turn, sys, write};
use crate::engine::{Frame, Port};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

/// Packet sockets of one or more interfaces.
pub struct PacketPlane {
    sockets: Vec<sys::PacketSocket>,
    reader: Reader,
    offloads: Vec<Offload>,
}

impl PacketPlane {
    pub fn open(interfaces: &[String]) -> Result<PacketPlane, PlaneError> {
        let sockets = interfaces.iter().map(|name| sys::open_packet(name));
        Ok(PacketPlane {
            sockets: sockets.collect::<Result<_, _>>()?,
            reader: Reader::new(),
            offloads: Vec::new(),
        })
    }

    pub(super) fn adopt(
        sockets: Vec<HandedSocket>,
        fds: &mut dyn Iterator<Item = OwnedFd>,
    ) -> io::Result<PacketPlane> {
        let mut socket = |one: HandedSocket| {
            Ok::<_, io::Error>(sys::PacketSocket {
                fd: handed::next(fds)?,
                name: one.name,
                index: one.index,
                mac: one.mac,
            })
        };
        Ok(PacketPlane {
            sockets: sockets
                .into_iter()
                .map(&mut socket)
                .collect::<Result<_, _>>()?,
            reader: Reader::new(),
            offloads: Vec::new(),
        })
    }
}

impl Plane for PacketPlane {
    fn interfaces(&self) -> Vec<String> {
        self.sockets.iter().map(|one| one.name.clone()).collect()
    }

    fn ports(&self) -> Vec<Port> {
        let port = |one: &sys::PacketSocket| Port {
            mac: Some(one.mac),
            mtu: None,
        };
        self.sockets.iter().map(port).collect()
    }

    fn index(&self, port: usize) -> Option<u32> {
        self.sockets.get(port).map(|one| one.index)
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.sockets.iter().map(|one| one.fd.as_fd()).collect()
    }

    fn receive(&mut self, frames: &mut Vec<Frame>, max: usize) -> io::Result<()> {
        let sockets: Vec<_> = self.sockets.iter().map(|one| one.fd.as_fd()).collect();
        receive_in_turn(&mut self.reader, &sockets, &mut self.offloads, frames, max)
    }

    fn hand_over(&mut self) -> (Handed, Vec<BorrowedFd<'_>>) {
        let handed = |one: &sys::PacketSocket| HandedSocket {
            name: one.name.clone(),
            index: one.index,
            mac: one.mac,
        };
        let sockets = self.sockets.iter().map(handed).collect();
        (Handed::Packet(sockets), self.descriptors())
    }

    fn send(&mut self, index: usize, frame: &Frame, port: u16) -> io::Result<()> {
        let offload = self.offloads.get(index).copied().unwrap_or_default();
        let socket = self.sockets.get(usize::from(port));
        let socket = socket.ok_or(io::ErrorKind::NotFound)?;
        write(socket.fd.as_fd(), &offload, frame)
    }
}
