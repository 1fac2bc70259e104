//! A TUN device: packets that the kernel routes to it, without Ethernet.

use super::handed::{self, Handed};
use super::{Offload, Plane, PlaneError, Reader, receive_in_turn, sys, write};
use crate::engine::{Frame, Port};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

/// A TUN device.
pub struct TunPlane {
    name: String,
    device: OwnedFd,
    reader: Reader,
    offloads: Vec<Offload>,
}

impl TunPlane {
    /// Opens the device with this name, which is made if it is not there.
    pub fn open(name: &str) -> Result<TunPlane, PlaneError> {
        Ok(TunPlane {
            name: name.to_string(),
            device: sys::open_tun(name)?,
            reader: Reader::new(),
            offloads: Vec::new(),
        })
    }

    pub(super) fn adopt(
        name: String,
        fds: &mut dyn Iterator<Item = OwnedFd>,
    ) -> io::Result<TunPlane> {
        Ok(TunPlane {
            name,
            device: handed::next(fds)?,
            reader: Reader::new(),
            offloads: Vec::new(),
        })
    }
}

impl Plane for TunPlane {
    fn interfaces(&self) -> Vec<String> {
        vec![self.name.clone()]
    }

    fn ports(&self) -> Vec<Port> {
        vec![Port::default()]
    }

    fn index(&self, _port: usize) -> Option<u32> {
        None
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.device.as_fd()]
    }

    fn receive(&mut self, frames: &mut Vec<Frame>, max: usize) -> io::Result<()> {
        let device = [self.device.as_fd()];
        receive_in_turn(&mut self.reader, &device, &mut self.offloads, frames, max)
    }

    fn hand_over(&mut self) -> (Handed, Vec<BorrowedFd<'_>>) {
        let name = self.name.clone();
        (Handed::Tun { name }, self.descriptors())
    }

    fn send(&mut self, index: usize, frame: &Frame, _port: u16) -> io::Result<()> {
        let offload = self.offloads.get(index).copied().unwrap_or_default();
        write(self.device.as_fd(), &offload, frame)
    }
}
