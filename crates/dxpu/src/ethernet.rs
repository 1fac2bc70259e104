//! Packets in Ethernet frames.
//!
//! ```text
//!  frame   to 6 | from 6 | type 2 | length of the packet 2 | packet | zeros up to 60 bytes
//! ```
//!
//! An acknowledgement is shorter than the shortest frame, which senders fill up, so the packet's
//! length comes before it. The type is one that IEEE 802 leaves to local experiments. The frame's
//! own check is the network's: the packet has its CRC.

use crate::packet::PACKET_BYTES_MAX;

/// Type of the frames: the first of IEEE 802's local experimental ones.
pub const ETHER_TYPE: u16 = 0x88B5;
/// Shortest frame, without the network's own check.
pub const FRAME_BYTES_MIN: usize = 60;
/// Longest frame of a packet.
pub const FRAME_BYTES_MAX: usize = HEADER_BYTES + PACKET_BYTES_MAX;
const HEADER_BYTES: usize = 16;

/// Address of a network interface.
pub type Mac = [u8; 6];

/// Bytes that are no frame of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("a frame of {0} bytes, which no packet is sent in")]
    Length(usize),
    #[error("a frame of type {0:#06x}, which is another protocol's")]
    Type(u16),
    #[error("a frame of {frame} bytes says that its packet has {packet}")]
    Cut { frame: usize, packet: usize },
    #[error("a frame for another interface")]
    Foreign,
}

/// Makes the frame of a packet.
pub fn frame(to: Mac, from: Mac, packet: &[u8]) -> Result<Vec<u8>, FrameError> {
    let bytes = HEADER_BYTES + packet.len();
    if packet.is_empty() || bytes > FRAME_BYTES_MAX {
        return Err(FrameError::Length(bytes));
    }
    let mut frame = Vec::with_capacity(bytes.max(FRAME_BYTES_MIN));
    frame.extend_from_slice(&to);
    frame.extend_from_slice(&from);
    frame.extend_from_slice(&ETHER_TYPE.to_be_bytes());
    frame.extend_from_slice(&(packet.len() as u16).to_be_bytes());
    frame.extend_from_slice(packet);
    frame.resize(bytes.max(FRAME_BYTES_MIN), 0);
    Ok(frame)
}

/// Returns the packet of a frame that is for the interface `own`.
pub fn packet(frame: &[u8], own: Mac) -> Result<&[u8], FrameError> {
    let length = FrameError::Length(frame.len());
    let (header, rest) = frame.split_first_chunk::<HEADER_BYTES>().ok_or(length)?;
    let half = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    if half(12) != ETHER_TYPE {
        return Err(FrameError::Type(half(12)));
    }
    if header[..6] != own {
        return Err(FrameError::Foreign);
    }
    let packet = usize::from(half(14));
    let cut = FrameError::Cut {
        frame: frame.len(),
        packet,
    };
    match packet {
        0 => Err(length),
        _ => rest.get(..packet).ok_or(cut),
    }
}
