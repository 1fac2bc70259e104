//! A peer that writes arbitrary bytes into the memory that it shares with us: the fuzz target and
//! the tests.

use std::os::fd::{AsFd, OwnedFd};

use outboard_wire::limits::FRAME_BYTES_MAX;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::{
    connection::Connection,
    map::{CONTROLS_OFFSET, Direction, HEAD_BYTES, Mapping},
    peer::Peer,
    ring::Control,
};
use crate::{Error, Wait};

/// Smaller than any ring in use, so that a fuzzer reaches all of it.
const RING_BYTES: usize = 64 << 10;

/// Lets a test write into the shared memory as a hostile peer.
struct Hostile {
    file: OwnedFd,
    /// Keeps the peer alive.
    _peer: OwnedFd,
}

impl Hostile {
    /// Makes the peer, and our side of the link.
    fn new() -> Result<(Self, Connection), Error> {
        let (mapping, file) = Mapping::create(RING_BYTES)?;
        let flags = SocketFlags::CLOEXEC;
        let (own, peer) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .map_err(Error::io("making a socket pair"))?;
        let peer_of_own = Peer::new(own, None);
        let (outgoing, incoming) = (Direction::ToServer, Direction::ToClient);
        let connection = Connection::new(mapping, peer_of_own, outgoing, incoming);
        Ok((Self { file, _peer: peer }, connection))
    }

    fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        let file = self.file.as_fd();
        let written = rustix::io::pwrite(file, bytes, offset as u64)
            .map_err(Error::io("writing shared memory"))?;
        assert_eq!(written, bytes.len());
        Ok(())
    }

    /// Sets the position up to which the peer claims to have filled the ring towards us.
    fn produced(&self, position: u64) -> Result<(), Error> {
        let offset = CONTROLS_OFFSET + Direction::ToClient as usize * size_of::<Control>();
        self.write(offset, &position.to_le_bytes())
    }

    /// Sets the position up to which the peer claims to have emptied the ring towards it.
    fn consumed(&self, position: u64) -> Result<(), Error> {
        let control = CONTROLS_OFFSET + Direction::ToServer as usize * size_of::<Control>();
        self.write(control + size_of::<Control>() / 2, &position.to_le_bytes())
    }

    fn ring(&self, bytes: &[u8]) -> Result<(), Error> {
        self.write(HEAD_BYTES, &bytes[..bytes.len().min(RING_BYTES)])
    }
}

/// Fuzz target: our side of a link whose peer wrote `data` into the shared memory. The first eight
/// bytes are the position that it claims to have produced, the next eight the position that it
/// claims to have consumed, the rest the ring.
///
/// # Panics
///
/// If something is handed out that breaks a promise of the link.
pub fn fuzz_ring(data: &[u8]) {
    let Some((positions, content)) = data.split_first_chunk::<16>() else {
        return;
    };
    let [produced, consumed] = [0, 8].map(|at| {
        let mut word = [0; 8];
        word.copy_from_slice(&positions[at..at + 8]);
        u64::from_le_bytes(word)
    });
    let Ok((hostile, victim)) = Hostile::new() else {
        return;
    };
    let prepared = hostile
        .ring(content)
        .and_then(|()| hostile.produced(produced))
        .and_then(|()| hostile.consumed(consumed));
    assert!(prepared.is_ok());
    let (mut sender, mut receiver) = victim.split();
    let mut frames = 0;
    let mut total = 0;
    while let Ok(Some(frame)) = receiver.recv(Wait::Poll) {
        assert!((1..=FRAME_BYTES_MAX).contains(&frame.len()));
        // Touches every byte, so that an invalid one is found.
        std::hint::black_box(
            frame
                .iter()
                .fold(0, |sum: u8, byte| sum.wrapping_add(*byte)),
        );
        frames += 1;
        total += frame.len();
        assert!(frames <= RING_BYTES / 16 && total <= RING_BYTES);
    }
    // More than the ring would wait for a peer that does not read; half of the ring does not wait.
    if let Ok(room) = sender.reserve(RING_BYTES / 2) {
        // SAFETY: the room is writable, and has that many bytes.
        unsafe { room.write_bytes(1, RING_BYTES / 2) };
        assert!(sender.commit(RING_BYTES / 2).is_ok());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::conformance::random_numbers;

    #[test]
    fn positions_that_cannot_be_are_refused() {
        let capacity = RING_BYTES as u64;
        for (position, is_refused) in [
            (8, false),
            (capacity, false),
            (capacity + 8, true),
            (1, true),
            (u64::MAX, true),
            (u64::MAX - 7, true),
        ] {
            let (hostile, victim) = Hostile::new().unwrap();
            // One frame that fills the ring.
            hostile.ring(&8u64.to_le_bytes()).unwrap();
            hostile.produced(position).unwrap();
            let (_sender, mut receiver) = victim.split();
            let result = receiver.recv(Wait::Until(Instant::now()));
            let error = match result {
                Ok(Some(frame)) => {
                    assert!(position > 8 && !is_refused);
                    assert_eq!(frame.len(), 8);
                    continue;
                }
                Ok(None) => unreachable!("{position} was not seen"),
                Err(error) => error,
            };
            let Error::PeerMisbehaved { what, .. } = error else {
                unreachable!("{error}")
            };
            assert_eq!(what.contains("position"), is_refused, "{position}: {error}");
        }
    }

    #[test]
    fn lengths_that_cannot_be_are_refused() {
        for (header, what) in [
            (0, "of that length"),
            (FRAME_BYTES_MAX as u64 + 1, "of that length"),
            (u64::MAX, "of that length"),
            (1 << 32 | 8, "of that length"),
            (25, "longer than what was sent"),
            (FRAME_BYTES_MAX as u64, "longer than what was sent"),
        ] {
            let (hostile, victim) = Hostile::new().unwrap();
            hostile.ring(&u64::to_le_bytes(header)).unwrap();
            hostile.produced(32).unwrap();
            let (_sender, mut receiver) = victim.split();
            for _ in 0..2 {
                let error = receiver.recv(Wait::Poll).unwrap_err();
                assert!(error.to_string().contains(what), "{header}: {error}");
            }
        }
    }

    #[test]
    fn a_received_frame_does_not_change() {
        let (hostile, victim) = Hostile::new().unwrap();
        hostile
            .ring(&[8, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8])
            .unwrap();
        hostile.produced(16).unwrap();
        let (_sender, mut receiver) = victim.split();
        let frame = receiver.recv(Wait::Poll).unwrap().unwrap();
        hostile.ring(&[0xff; 64]).unwrap();
        assert_eq!(frame, [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn positions_that_go_back_are_refused() {
        let (hostile, victim) = Hostile::new().unwrap();
        hostile.ring(&8u64.to_le_bytes()).unwrap();
        hostile.produced(16).unwrap();
        let (mut sender, mut receiver) = victim.split();
        assert!(receiver.recv(Wait::Poll).unwrap().is_some());
        hostile.produced(8).unwrap();
        let error = receiver.recv(Wait::Poll).unwrap_err();
        assert!(
            matches!(error, Error::PeerMisbehaved { got: 8, .. }),
            "{error}"
        );

        // Nothing was sent, so nothing can have been consumed.
        hostile.consumed(8).unwrap();
        let half = RING_BYTES / 2;
        sender.reserve(half).unwrap();
        sender.commit(half).unwrap();
        hostile.consumed(half as u64 + 16).unwrap();
        let error = sender.reserve(half).unwrap_err();
        assert!(matches!(error, Error::PeerMisbehaved { .. }), "{error}");
    }

    #[test]
    fn arbitrary_memory_is_survived() {
        let mut random = random_numbers(4);
        for round in 0..2_000u64 {
            let words = 2 + random() % 512;
            let mut data: Vec<u8> = (0..words).flat_map(|_| random().to_le_bytes()).collect();
            // Mostly plausible, since wild values are refused at once.
            if round % 4 != 0 {
                data[..8].copy_from_slice(&(random() % 9_000 * 8).to_le_bytes());
                data[8..16].copy_from_slice(&[0; 8]);
                for header in data[16..].chunks_exact_mut(24) {
                    header[..8].copy_from_slice(&(random() % 20).to_le_bytes());
                }
            }
            fuzz_ring(&data);
        }
    }

    #[test]
    fn shared_memory_that_is_not_as_announced_is_refused() {
        let good = 8 << 20;
        let (_mapping, file) = Mapping::create(good).unwrap();
        assert!(Mapping::open(file.as_fd(), good as u64).is_ok());
        for (bytes, what) in [
            (0, "of that size"),
            (4096, "of that size"),
            (good as u64 + 4096, "of that size"),
            (u64::MAX, "of that size"),
            (1 << 60, "of that size"),
            (good as u64 * 2, "wrong size"),
        ] {
            let error = Mapping::open(file.as_fd(), bytes).err().unwrap();
            assert!(error.to_string().contains(what), "{bytes}: {error}");
        }
        for (offset, what) in [
            (0, "another layout"),
            (8, "another layout"),
            (16, "another layout"),
        ] {
            let (_mapping, file) = Mapping::create(good).unwrap();
            rustix::io::pwrite(&file, &[0x55], offset).unwrap();
            let error = Mapping::open(file.as_fd(), good as u64).err().unwrap();
            assert!(error.to_string().contains(what), "{offset}: {error}");
        }
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let unsealed = rustix::fs::memfd_create("unsealed", flags).unwrap();
        rustix::fs::ftruncate(&unsealed, (HEAD_BYTES + 2 * good) as u64).unwrap();
        let error = Mapping::open(unsealed.as_fd(), good as u64).err().unwrap();
        assert!(error.to_string().contains("can shrink"), "{error}");
        let (socket, _other) = socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        assert!(Mapping::open(socket.as_fd(), good as u64).is_err());
    }
}
