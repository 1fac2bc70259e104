//! The meeting of queues that RDMA devices serve: after their hello, two processes say where their
//! queue pairs are reached.

use std::{
    io::{Error as IoError, ErrorKind, Result as IoResult, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

use outboard_verbs::Remote;

use crate::{
    adapter::Peer,
    device::Device,
    error::Error,
    meet::{self, BY_VERBS, Hello, Meeting, NOT_BY_VERBS, Window},
    stream::read_by,
};

/// First bytes of what follows the hello; the last is the version.
const MAGIC: [u8; 8] = *b"OBREACH\x01";
const REACH_BYTES: usize = 32;
/// Last byte of a meeting: the sender's queue pair is connected.
const IS_CONNECTED: [u8; 1] = [0];
const OTHERWISE: &str = "the other process says something else than that it is connected";
const MTU_MIN: u16 = 256;
/// The shortest wait for the last byte.
pub(crate) const SHORTEST: Duration = Duration::from_millis(1);

fn bytes(of: &Remote) -> [u8; REACH_BYTES] {
    let mut bytes = [0; REACH_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&of.psn.to_le_bytes());
    bytes[12..14].copy_from_slice(&of.lid.to_le_bytes());
    bytes[14..16].copy_from_slice(&of.mtu.to_le_bytes());
    bytes[16..].copy_from_slice(&of.gid);
    bytes
}

fn parse(bytes: &[u8; REACH_BYTES], number: u32) -> Option<Remote> {
    let rest = bytes.strip_prefix(&MAGIC)?;
    let (psn, rest) = rest.split_first_chunk()?;
    let (lid, rest) = rest.split_first_chunk()?;
    let (mtu, gid) = rest.split_first_chunk()?;
    Some(checked(Remote {
        number,
        psn: u32::from_le_bytes(*psn),
        gid: *gid.first_chunk()?,
        lid: u16::from_le_bytes(*lid),
        mtu: u16::from_le_bytes(*mtu),
    }))
}

/// Brings what somebody says of a queue pair into the bounds of what there is.
pub(crate) fn checked(said: Remote) -> Remote {
    Remote {
        psn: said.psn & outboard_verbs::PSN_MASK,
        mtu: said.mtu.max(MTU_MIN),
        ..said
    }
}

/// A queue that peers reach over an RDMA device.
pub(crate) trait Reached {
    /// Returns what a peer has to know of the queue.
    fn reached(&self, device: &Device) -> Remote;

    fn check_unconnected(&self) -> Result<(), Error>;

    /// Connects the queue to a peer, and lets threads post.
    fn connect(&self, device: &Device, mine: &Remote, theirs: &Remote) -> Result<(), Error>;
}

/// Connects two queues of a device, or one to itself.
pub(crate) fn connect(
    device: &Device,
    one: &impl Reached,
    other: &impl Reached,
    is_one: bool,
) -> Result<(), Error> {
    one.check_unconnected()?;
    other.check_unconnected()?;
    let (of_one, of_other) = (one.reached(device), other.reached(device));
    one.connect(device, &of_one, &of_other)?;
    match is_one {
        true => Ok(()),
        false => other.connect(device, &of_other, &of_one),
    }
}

/// Connects a queue to one of another process. Returns the memory that it offers.
pub(crate) fn join(
    device: &Device,
    queue: &impl Reached,
    meeting: Meeting<'_>,
    mine: Window,
) -> Result<Window, Error> {
    queue.check_unconnected()?;
    let of_mine = queue.reached(device);
    let connect = |theirs: &Remote, _: &TcpStream| queue.connect(device, &of_mine, theirs);
    meet(meeting, &of_mine, (mine, 0), connect).map(|(window, _)| window)
}

/// Meets the other process, and connects to where its queue pair is reached. Returns the memory
/// that it offers, and the connection, when both are connected: the first packet of one finds the
/// other ready.
pub(crate) fn meet(
    meeting: Meeting<'_>,
    mine: &Remote,
    (window, ways): (Window, u32),
    connect: impl FnOnce(&Remote, &TcpStream) -> Result<(), Error>,
) -> Result<(Window, TcpStream), Error> {
    let failed = |why: &dyn ToString| Error::Meet {
        address: meeting.address.into(),
        why: why.to_string(),
    };
    let socket = meeting.socket()?;
    let deadline = Instant::now() + meeting.timeout;
    let qpn = mine.number;
    let hello = Hello {
        peer: Peer { qpn, epoch: 0 },
        window,
        ways,
    };
    let met = match meeting.listens {
        true => meet::listen(socket, hello, deadline),
        false => meet::connect(socket, hello, deadline),
    };
    let (stream, theirs) = met.map_err(|error| failed(&error))?;
    if (theirs.ways ^ ways) & BY_VERBS != 0 {
        return Err(failed(&NOT_BY_VERBS));
    }
    let number = theirs.peer.qpn;
    let reached =
        exchange(&stream, mine, number, deadline).map_err(|error| failed(&meet::why(&error)))?;
    let reached = reached
        .ok_or_else(|| failed(&"the other process is not of a provider with RDMA devices"))?;
    connect(&reached, &stream)?;
    both(&stream, deadline).map_err(|error| failed(&meet::why(&error)))?;
    Ok((theirs.window, stream))
}

/// Sends how this side is reached, and reads the same of the other; none if it is something else.
fn exchange(
    mut stream: &TcpStream,
    mine: &Remote,
    number: u32,
    deadline: Instant,
) -> IoResult<Option<Remote>> {
    stream.write_all(&bytes(mine))?;
    let mut theirs = [0; REACH_BYTES];
    match read_by(stream, &mut theirs, deadline) {
        Ok(()) => Ok(parse(&theirs, number)),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

/// Waits until the other has connected, too.
fn both(mut stream: &TcpStream, deadline: Instant) -> IoResult<()> {
    stream.write_all(&IS_CONNECTED)?;
    let mut said = [0];
    // One who has said it in time is heard, however late this side is.
    read_by(stream, &mut said, deadline.max(Instant::now() + SHORTEST))?;
    if said != IS_CONNECTED {
        return Err(IoError::new(ErrorKind::InvalidData, OTHERWISE));
    }
    stream.set_read_timeout(None)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::stream::tests::{soon, trickling};

    #[test]
    fn how_a_queue_pair_is_reached_is_read_as_it_was_written_and_nothing_else_is() {
        let remote = Remote {
            number: 0x1234,
            psn: 0xab_cdef,
            gid: std::array::from_fn(|at| at as u8),
            lid: 7,
            mtu: 4096,
        };
        let text = bytes(&remote);
        assert_eq!(parse(&text, 0x1234), Some(remote));
        for at in 0..MAGIC.len() {
            let mut other = text;
            other[at] ^= 1;
            assert_eq!(parse(&other, 0x1234), None);
        }
    }
    #[test]
    fn a_peer_that_trickles_has_no_more_time_than_the_meeting() {
        let mine = Remote {
            number: 1,
            psn: 0,
            gid: [0; 16],
            lid: 0,
            mtu: 1024,
        };
        let late = exchange(&trickling(), &mine, 2, soon()).unwrap_err();
        assert_eq!(late.kind(), ErrorKind::TimedOut);
    }
}
