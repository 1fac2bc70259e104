//! Packet sockets: Ethernet frames of whole interfaces, of which the engine takes what is its own.
//!
//! Frames come through a ring of slots, and leave many at a call.

use super::handed::{self, Handed, HandedSocket};
use super::slots::{Slot, Slots};
use super::{OFFLOAD_BYTES, Offload, Plane, PlaneError, Reader, sys, write};
use crate::engine::{Frame, Port, Verdict};
use rustix::net::{MMsgHdr, SendAncillaryBuffer, SendFlags, sendmmsg};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

/// A packet socket, with the ring where frames come if the kernel has room for one.
struct Socket {
    packet: sys::PacketSocket,
    slots: Option<Slots>,
}

impl Socket {
    fn open(name: &str) -> Result<Socket, PlaneError> {
        let (packet, slots) = sys::open_packet(name, Slots::open)?;
        if let Err(error) = &slots {
            tracing::info!(interface = name, %error, "frames come without a ring");
        }
        Ok(Socket {
            packet,
            slots: slots.ok(),
        })
    }

    /// Takes the next frame, from the ring or the queue; nothing if none has come.
    fn receive(
        &mut self,
        reader: &mut Reader,
        port: u16,
        frame: &mut Frame,
    ) -> io::Result<Option<Offload>> {
        let fd = self.packet.fd.as_fd();
        let Some(slots) = &mut self.slots else {
            return reader.read(fd, port, frame);
        };
        loop {
            match slots.take(&mut frame.bytes) {
                Slot::Empty => return Ok(None),
                Slot::Frame(offload) => {
                    offload.describe(frame, port);
                    return Ok(Some(offload));
                }
                Slot::Queued => {
                    if let Some(offload) = reader.read(fd, port, frame)? {
                        return Ok(Some(offload));
                    }
                }
                Slot::Lost { is_queued: true } => {
                    reader.read(fd, port, frame)?;
                }
                Slot::Lost { is_queued: false } => {}
            }
        }
    }
}

/// Packet sockets of one or more interfaces.
pub struct PacketPlane {
    sockets: Vec<Socket>,
    reader: Reader,
    offloads: Vec<Offload>,
    /// Frames whose memory is used again.
    spare: Vec<Frame>,
}

impl PacketPlane {
    pub fn open(interfaces: &[String]) -> Result<PacketPlane, PlaneError> {
        let sockets = interfaces.iter().map(|name| Socket::open(name));
        Ok(PacketPlane {
            sockets: sockets.collect::<Result<_, _>>()?,
            reader: Reader::new(),
            offloads: Vec::new(),
            spare: Vec::new(),
        })
    }

    pub(super) fn adopt(
        sockets: Vec<HandedSocket>,
        fds: &mut dyn Iterator<Item = OwnedFd>,
    ) -> io::Result<PacketPlane> {
        let mut socket = |one: HandedSocket| {
            let fd = handed::next(fds)?;
            let slots = one.next_slot.map(|next| Slots::adopt(&fd, next));
            Ok::<_, io::Error>(Socket {
                slots: slots.transpose()?,
                packet: sys::PacketSocket {
                    fd,
                    name: one.name,
                    index: one.index,
                    mac: one.mac,
                },
            })
        };
        Ok(PacketPlane {
            sockets: sockets
                .into_iter()
                .map(&mut socket)
                .collect::<Result<_, _>>()?,
            reader: Reader::new(),
            offloads: Vec::new(),
            spare: Vec::new(),
        })
    }
}

/// Sends frames after their headers, in order. Returns the number of those that could not be sent.
fn send_many(fd: BorrowedFd<'_>, batch: &[([u8; OFFLOAD_BYTES], &[u8])]) -> usize {
    let parts: Vec<_> = batch
        .iter()
        .map(|(header, bytes)| [IoSlice::new(header), IoSlice::new(bytes)])
        .collect();
    let mut controls: Vec<_> = batch
        .iter()
        .map(|_| SendAncillaryBuffer::default())
        .collect();
    let mut messages: Vec<_> = parts
        .iter()
        .zip(&mut controls)
        .map(|(parts, control)| MMsgHdr::new(parts, control))
        .collect();
    let (mut done, mut unsent) = (0, 0);
    while done < messages.len() {
        match sendmmsg(fd, &mut messages[done..], SendFlags::DONTWAIT) {
            Ok(count) if count > 0 => done += count,
            // The first of them is the one that cannot be sent.
            Ok(_) => (done, unsent) = (done + 1, unsent + 1),
            Err(error) => {
                let (header, frame) = &batch[done];
                tracing::debug!(%error, ?header, bytes = frame.len(), "a frame that could not be sent");
                (done, unsent) = (done + 1, unsent + 1);
            }
        }
    }
    unsent
}

impl Plane for PacketPlane {
    fn interfaces(&self) -> Vec<String> {
        let names = self.sockets.iter().map(|one| one.packet.name.clone());
        names.collect()
    }

    fn ports(&self) -> Vec<Port> {
        let port = |one: &Socket| Port {
            mac: Some(one.packet.mac),
            mtu: None,
        };
        self.sockets.iter().map(port).collect()
    }

    fn index(&self, port: usize) -> Option<u32> {
        self.sockets.get(port).map(|one| one.packet.index)
    }

    fn is_bound(&self, port: usize) -> bool {
        let socket = self.sockets.get(port).map(|one| &one.packet);
        socket.is_none_or(|one| match sys::bound_index(&one.fd) {
            Ok(index) => index == one.index as i32,
            // It tells nothing about the interface.
            Err(_) => true,
        })
    }

    fn open_again(&mut self, port: usize) -> Result<bool, PlaneError> {
        if let Some(socket) = self.sockets.get_mut(port) {
            *socket = Socket::open(&socket.packet.name)?;
        }
        Ok(true)
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let sockets = self.sockets.iter().map(|one| one.packet.fd.as_fd());
        sockets.collect()
    }

    fn receive(&mut self, frames: &mut Vec<Frame>, max: usize) -> io::Result<()> {
        self.offloads.clear();
        self.spare.append(frames);
        // None may keep the others waiting.
        let share = max.div_ceil(self.sockets.len().max(1));
        for (port, socket) in self.sockets.iter_mut().enumerate() {
            for _ in 0..share {
                let mut frame = self.spare.pop().unwrap_or_default();
                match socket.receive(&mut self.reader, port as u16, &mut frame)? {
                    Some(offload) => {
                        self.offloads.push(offload);
                        frames.push(frame);
                    }
                    None => {
                        self.spare.push(frame);
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    fn take_error(&mut self) -> io::Result<()> {
        for socket in &self.sockets {
            rustix::net::sockopt::socket_error(&socket.packet.fd)??;
        }
        Ok(())
    }

    fn hand_over(&mut self) -> (Handed, Vec<BorrowedFd<'_>>) {
        let handed = |one: &Socket| HandedSocket {
            name: one.packet.name.clone(),
            index: one.packet.index,
            mac: one.packet.mac,
            next_slot: one.slots.as_ref().map(Slots::next),
        };
        let sockets = self.sockets.iter().map(handed).collect();
        (Handed::Packet(sockets), self.descriptors())
    }

    fn send(&mut self, index: usize, frame: &Frame, port: u16) -> io::Result<()> {
        let offload = self.offloads.get(index).copied().unwrap_or_default();
        let socket = self.sockets.get(usize::from(port));
        let socket = socket.ok_or(io::ErrorKind::NotFound)?;
        write(socket.packet.fd.as_fd(), &offload, frame)
    }

    fn send_all(&mut self, frames: &[Frame], verdicts: &[Verdict]) -> usize {
        let mut unsent = 0;
        for (port, socket) in self.sockets.iter().enumerate() {
            let of_port = frames
                .iter()
                .zip(verdicts)
                .zip(&self.offloads)
                .filter(|((_, verdict), _)| **verdict == Verdict::Send(port as u16));
            let batch: Vec<_> = of_port
                .map(|((frame, _), offload)| (offload.after(frame), frame.bytes.as_slice()))
                .collect();
            unsent += send_many(socket.packet.fd.as_fd(), &batch);
        }
        unsent
    }
}
