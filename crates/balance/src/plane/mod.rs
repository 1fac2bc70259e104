//! Ways of frames into the engine and out of it.

mod handed;
mod mapping;
mod packet;
mod slots;
mod sys;
mod tun;
mod wanted;
mod xdp;

pub use handed::Handed;
pub use packet::PacketPlane;
pub use tun::TunPlane;
pub use wanted::Wanted;
pub use xdp::XdpPlane;

use crate::engine::{Frame, Port, Verdict};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Longest frame, an Ethernet header and 64 KiB: virtual devices pass many segments as one.
const FRAME_BYTES_MAX: usize = 65_535 + 14;
/// Length of the header before each frame that says what the device has yet to do.
const OFFLOAD_BYTES: usize = 10;
const NEEDS_CHECKSUM: u8 = 1;
/// Places of the kind and the length of segments in it.
const KIND_AT: usize = 1;
const SEGMENT_AT: usize = 4;

/// Passes frames between the engine and the kernel.
pub trait Plane: Send {
    /// Names of the interfaces, in the order of the ports' numbers.
    fn interfaces(&self) -> Vec<String>;

    /// Ports of the engine: one for each interface.
    fn ports(&self) -> Vec<Port>;

    /// Index of the kernel's for a port.
    fn index(&self, port: usize) -> Option<u32>;

    /// Returns whether frames of a port's interface still come to it: none do once it is gone.
    fn is_bound(&self, port: usize) -> bool {
        let _ = port;
        true
    }

    /// Opens the interface of a port anew, after the one of its name has gone. Returns `false` if
    /// planes of this kind cannot.
    fn open_again(&mut self, port: usize) -> Result<bool, PlaneError> {
        let _ = port;
        Ok(false)
    }

    /// Descriptors that are readable when frames have come.
    fn descriptors(&self) -> Vec<BorrowedFd<'_>>;

    /// Says which frames are wanted; a plane may give others, too.
    fn set_wanted(&mut self, wanted: &Wanted) -> io::Result<()> {
        let _ = wanted;
        Ok(())
    }

    /// Returns what was wanted last, by the process before, too, if it matters to this plane.
    fn wanted(&self) -> Wanted {
        Wanted::default()
    }

    /// Replaces `frames` by those that have come, at most `max`.
    fn receive(&mut self, frames: &mut Vec<Frame>, max: usize) -> io::Result<()>;

    /// Returns the error of a descriptor that has one, which it has no longer then.
    fn take_error(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Sends the frame that came as number `index` of the last batch, out at `port`.
    fn send(&mut self, index: usize, frame: &Frame, port: u16) -> io::Result<()>;

    /// Sends a batch: each frame of the last that has come, if its verdict says where. Returns the
    /// number of those that could not be sent.
    fn send_all(&mut self, frames: &[Frame], verdicts: &[Verdict]) -> usize {
        let mut unsent = 0;
        for (index, (frame, verdict)) in frames.iter().zip(verdicts).enumerate() {
            if let Verdict::Send(port) = verdict {
                unsent += usize::from(self.send(index, frame, *port).is_err());
            }
        }
        self.flush();
        unsent
    }

    /// Describes the plane for another process, with the descriptors that make it up. Nothing may
    /// be received or sent by this one once the other has begun.
    fn hand_over(&mut self) -> (Handed, Vec<BorrowedFd<'_>>);

    /// Has queued frames sent. Returns whether all are; if not, it is to be called again soon.
    fn flush(&mut self) -> bool {
        true
    }
}

/// Makes a plane of what another process has handed over.
pub fn adopt(handed: Handed, fds: Vec<OwnedFd>) -> io::Result<Box<dyn Plane>> {
    let mut fds = fds.into_iter();
    let plane: Box<dyn Plane> = match handed {
        Handed::Packet(sockets) => Box::new(PacketPlane::adopt(sockets, &mut fds)?),
        Handed::Tun { name } => Box::new(TunPlane::adopt(name, &mut fds)?),
        Handed::Xdp(interfaces) => Box::new(XdpPlane::adopt(interfaces, &mut fds)?),
    };
    if fds.next().is_some() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(plane)
}

/// Why no data plane can be had.
#[derive(Debug, thiserror::Error)]
pub enum PlaneError {
    #[error("interface {interface}: {step}: {source}")]
    System {
        interface: String,
        step: &'static str,
        source: io::Error,
    },
    #[error("interface {0} is not Ethernet")]
    NotEthernet(String),
}

/// The header before a frame: checksum and segments that are left to the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Offload([u8; OFFLOAD_BYTES]);

impl Offload {
    fn is_partial(&self) -> bool {
        self.0[0] & NEEDS_CHECKSUM != 0
    }

    /// Says in a frame, whose memory may have been another's, what the header says of it.
    fn describe(&self, frame: &mut Frame, port: u16) {
        frame.port = port;
        frame.partial = self.is_partial();
        frame.segment_bytes = self.segment_bytes();
    }

    /// Bytes of data in each segment that the device makes of the frame; 0 if it makes none.
    fn segment_bytes(&self) -> u16 {
        if self.0[KIND_AT] == 0 {
            return 0;
        }
        u16::from_ne_bytes([self.0[SEGMENT_AT], self.0[SEGMENT_AT + 1]])
    }

    /// The header of the frame once it has passed the engine.
    fn after(&self, frame: &Frame) -> [u8; OFFLOAD_BYTES] {
        let mut header = self.0;
        header[0] &= NEEDS_CHECKSUM;
        if !frame.partial {
            header[0] = 0;
        }
        if frame.segment_bytes == 0 {
            header[KIND_AT..SEGMENT_AT + 2].fill(0);
        }
        header
    }
}

/// Reads frames with their headers from a device or socket.
struct Reader {
    buffer: Vec<u8>,
}

impl Reader {
    fn new() -> Reader {
        Reader {
            buffer: vec![0; FRAME_BYTES_MAX + OFFLOAD_BYTES],
        }
    }

    /// Reads one frame; `None` if none has come.
    fn read(
        &mut self,
        fd: BorrowedFd<'_>,
        port: u16,
        frame: &mut Frame,
    ) -> io::Result<Option<Offload>> {
        let count = match rustix::io::read(fd, &mut self.buffer[..]) {
            Ok(count) => count,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let mut offload = Offload::default();
        let (header, bytes) = self.buffer[..count].split_at(OFFLOAD_BYTES.min(count));
        if header.len() == OFFLOAD_BYTES {
            offload.0.copy_from_slice(header);
        }
        frame.bytes.clear();
        frame.bytes.extend_from_slice(bytes);
        offload.describe(frame, port);
        Ok(Some(offload))
    }
}

/// Writes a frame after its header.
fn write(fd: BorrowedFd<'_>, offload: &Offload, frame: &Frame) -> io::Result<()> {
    let header = offload.after(frame);
    let parts = [io::IoSlice::new(&header), io::IoSlice::new(&frame.bytes)];
    rustix::io::writev(fd, &parts)?;
    Ok(())
}

/// Fills `frames` from several descriptors in turn, and notes each one's header.
fn receive_in_turn(
    reader: &mut Reader,
    descriptors: &[BorrowedFd<'_>],
    offloads: &mut Vec<Offload>,
    frames: &mut Vec<Frame>,
    max: usize,
) -> io::Result<()> {
    offloads.clear();
    // Frames keep their memory from batch to batch.
    let mut spare = std::mem::take(frames);
    // None may keep the others waiting.
    let share = max.div_ceil(descriptors.len().max(1));
    for (port, fd) in descriptors.iter().enumerate() {
        for _ in 0..share {
            let mut frame = spare.pop().unwrap_or_default();
            match reader.read(*fd, port as u16, &mut frame)? {
                Some(offload) => {
                    offloads.push(offload);
                    frames.push(frame);
                }
                None => {
                    spare.push(frame);
                    break;
                }
            }
        }
    }
    Ok(())
}
