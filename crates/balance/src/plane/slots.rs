//! The ring of slots into which the kernel puts frames of a packet socket (`TPACKET_V2`).
//!
//! A frame longer than a slot is left in the socket's queue besides, whole: its slot says so, and
//! keeps its place in the order.

use super::mapping::Mapping;
use super::{OFFLOAD_BYTES, Offload, sys};
use std::io;
use std::mem::size_of;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};

/// Length of a slot: a frame of an Ethernet's usual size, and what the kernel says of it.
const SLOT_BYTES: usize = 2048;
const SLOTS: usize = 4096;
const BLOCK_BYTES: usize = 1 << 16;
const RING_BYTES: usize = SLOT_BYTES * SLOTS;

/// Slots that the kernel fills.
pub(super) struct Slots {
    mapping: Mapping,
    next: usize,
}

/// Next slot of a ring.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Slot {
    /// The kernel has not filled it.
    Empty,
    /// The frame that was asked for is there.
    Frame(Offload),
    /// The frame is in the socket's queue.
    Queued,
    /// The frame was lost, for want of room, or has a tag that the kernel took off.
    Lost { is_queued: bool },
}

impl Slots {
    /// Gives a socket a ring; it must not be bound.
    pub(super) fn open(socket: &OwnedFd) -> io::Result<Slots> {
        let version = libc::tpacket_versions::TPACKET_V2 as i32;
        sys::set_option(socket, libc::SOL_PACKET, libc::PACKET_VERSION, version)?;
        sys::set_option(socket, libc::SOL_PACKET, libc::PACKET_COPY_THRESH, 1)?;
        let request = libc::tpacket_req {
            tp_block_size: BLOCK_BYTES as u32,
            tp_block_nr: (RING_BYTES / BLOCK_BYTES) as u32,
            tp_frame_size: SLOT_BYTES as u32,
            tp_frame_nr: SLOTS as u32,
        };
        sys::set_receive_ring(socket, &request)?;
        Slots::adopt(socket, 0).inspect_err(|_| {
            let none = libc::tpacket_req {
                tp_block_size: 0,
                tp_block_nr: 0,
                tp_frame_size: 0,
                tp_frame_nr: 0,
            };
            // Frames must not go where nobody looks.
            let _ = sys::set_receive_ring(socket, &none);
        })
    }

    /// Maps the ring that a socket has, of which slot `next` is the next.
    pub(super) fn adopt(socket: &OwnedFd, next: usize) -> io::Result<Slots> {
        Ok(Slots {
            mapping: Mapping::of(socket, 0, RING_BYTES)?,
            next: next % SLOTS,
        })
    }

    /// Number of the slot that is next.
    pub(super) fn next(&self) -> usize {
        self.next
    }

    fn status(&self) -> &AtomicU32 {
        // SAFETY: the slot is inside of the mapping, begins with its status, is aligned, and lives
        // as long as `self`; the kernel writes the status in one piece.
        unsafe {
            &*self
                .mapping
                .begin
                .add(self.next * SLOT_BYTES)
                .cast::<AtomicU32>()
        }
    }

    /// Returns the slot's bytes, which the kernel must have handed over.
    fn bytes(&self) -> &[u8] {
        // SAFETY: the slot is inside of the mapping, and the kernel does not write there until its
        // status says that it may, which only `take` does, after its last use of these bytes.
        unsafe {
            std::slice::from_raw_parts(self.mapping.begin.add(self.next * SLOT_BYTES), SLOT_BYTES)
        }
    }

    /// Takes the next slot, and copies its frame to `frame`.
    pub(super) fn take(&mut self, frame: &mut Vec<u8>) -> Slot {
        let status = self.status().load(Ordering::Acquire);
        if status & libc::TP_STATUS_USER == 0 {
            return Slot::Empty;
        }
        let is_queued = status & libc::TP_STATUS_COPY != 0;
        let taken = if status & libc::TP_STATUS_VLAN_VALID != 0 {
            Slot::Lost { is_queued }
        } else if is_queued {
            Slot::Queued
        } else {
            let found = read(self.bytes(), frame);
            found.map_or(Slot::Lost { is_queued }, Slot::Frame)
        };
        self.status()
            .store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.next = (self.next + 1) % SLOTS;
        taken
    }
}

/// Copies the frame of a slot. Returns the header before it, or nothing if it is not whole.
fn read(slot: &[u8], frame: &mut Vec<u8>) -> Option<Offload> {
    let word = |at: usize| {
        let bytes = slot.get(at..at + 4)?;
        Some(u32::from_ne_bytes(bytes.try_into().ok()?) as usize)
    };
    // The status comes first; then the frame's length, that of its part here, and its place.
    let (length, here) = (word(4)?, word(8)?);
    let at = word(12)? & 0xffff;
    if length != here || at < size_of::<libc::tpacket2_hdr>() + OFFLOAD_BYTES {
        return None;
    }
    let bytes = slot.get(at..at + length)?;
    let mut offload = Offload::default();
    offload.0.copy_from_slice(&slot[at - OFFLOAD_BYTES..at]);
    frame.clear();
    frame.extend_from_slice(bytes);
    Some(offload)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(length: u32, here: u32, at: u16) -> Vec<u8> {
        let mut slot = vec![0; SLOT_BYTES];
        slot[4..8].copy_from_slice(&length.to_ne_bytes());
        slot[8..12].copy_from_slice(&here.to_ne_bytes());
        slot[12..14].copy_from_slice(&at.to_ne_bytes());
        slot[14..16].copy_from_slice(&[0xff; 2]);
        slot
    }

    #[test]
    fn a_slot_that_lies_is_no_frame() {
        let mut frame = Vec::new();
        let mut good = slot(60, 60, 80);
        good[70] = 1;
        good[80..140].fill(7);
        let offload = read(&good, &mut frame).expect("a frame");
        assert!(offload.is_partial());
        assert_eq!(frame, [7; 60]);
        for (length, here, at) in [
            (60, 59, 80),
            (60, 60, 8),
            (60, 60, 41),
            (2000, 2000, 80),
            (u32::MAX, u32::MAX, 80),
            (60, 60, u16::MAX),
        ] {
            assert_eq!(read(&slot(length, here, at), &mut frame), None);
        }
    }
}
