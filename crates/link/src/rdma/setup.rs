//! Messages of both sides over the tcp connection after the handshake: one of fixed length each
//! way, and a word from the client once it is ready to receive.
//!
//! ```text
//!  client                                     server
//!    ├── Setup ─────────────────────────────────►│ chooses its device, registers its rings,
//!    │                                           │ connects both queue pairs
//!    │◄───────────────── Setup, or the reason ───┤
//!    │ connects both                             │
//!    ├── READY ─────────────────────────────────►│
//! ```

use std::time::Instant;

use outboard_verbs::{Chosen, PSN_MASK, Remote, is_v4};
use outboard_wire::limits::RING_BYTES_MAX;

use super::{control::CONTROL_PAGE_BYTES, ring::RING_BYTES_MIN, window::Window};
use crate::{
    error::{Error, RdmaError},
    socket::Socket,
};

/// "OUTBRDMA" in ASCII.
const MAGIC: [u8; 8] = *b"OUTBRDMA";
/// Changed with the message, the layout of the control words, or the ring's protocol.
const VERSION: u32 = 2;
const READY: [u8; 8] = *b"OUTRREDY";
pub(super) const SETUP_BYTES: usize = 256;
const REASON_BYTES_MAX: usize = 128;

/// One side's setup, with every field checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Setup {
    pub(super) gid: [u8; 16],
    pub(super) lid: u16,
    pub(super) mtu: u16,
    pub(super) partition: u16,
    pub(super) is_ethernet: bool,
    /// Queue pairs for what the server sends and for what the client sends: each with its number
    /// and first packet's number.
    pub(super) queues: [(u32, u32); 2],
    pub(super) ring: Window,
    pub(super) control: Window,
}

impl Setup {
    pub(super) fn remote(&self, direction: usize) -> Remote {
        let (number, psn) = self.queues[direction];
        Remote {
            number,
            psn,
            gid: self.gid,
            lid: self.lid,
            mtu: self.mtu,
        }
    }

    /// Checks that our `chosen` device can reach the side that sent this setup.
    pub(super) fn suits(&self, chosen: &Chosen) -> Result<(), RdmaError> {
        let layer = |is_ethernet| match is_ethernet {
            true => "Ethernet",
            false => "InfiniBand",
        };
        let gid = |gid: &[u8; 16]| std::net::Ipv6Addr::from(*gid).to_string();
        let differ =
            |what, ours: String, theirs: String| Err(RdmaError::Differ { what, ours, theirs });
        if chosen.is_ethernet != self.is_ethernet {
            return differ(
                "the link layer",
                chosen.link_layer().into(),
                layer(self.is_ethernet).into(),
            );
        }
        if chosen.is_ethernet && is_v4(&chosen.gid) != is_v4(&self.gid) {
            return differ("the GID", gid(&chosen.gid), gid(&self.gid));
        }
        if chosen.partition != self.partition {
            let key = |partition: u16| format!("{partition:#06x}");
            return differ("the partition", key(chosen.partition), key(self.partition));
        }
        Ok(())
    }
}

pub(super) fn encode(said: Result<&Setup, &str>) -> [u8; SETUP_BYTES] {
    let mut bytes = [0; SETUP_BYTES];
    let mut at = 0;
    let mut put = |part: &[u8]| {
        bytes[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    };
    put(&MAGIC);
    put(&VERSION.to_le_bytes());
    match said {
        Ok(setup) => {
            put(&0u32.to_le_bytes());
            put(&setup.gid);
            put(&setup.lid.to_le_bytes());
            put(&setup.mtu.to_le_bytes());
            put(&setup.partition.to_le_bytes());
            put(&u16::from(setup.is_ethernet).to_le_bytes());
            for (number, psn) in setup.queues {
                put(&number.to_le_bytes());
                put(&psn.to_le_bytes());
            }
            for window in [setup.ring, setup.control] {
                put(&window.address.to_le_bytes());
                put(&window.bytes.to_le_bytes());
                put(&window.key.to_le_bytes());
                put(&0u32.to_le_bytes());
            }
        }
        Err(reason) => {
            let mut len = reason.len().min(REASON_BYTES_MAX);
            while !reason.is_char_boundary(len) {
                len -= 1;
            }
            put(&(len as u32).max(1).to_le_bytes());
            put(&reason.as_bytes()[..len]);
        }
    }
    bytes
}

/// Decodes a side's message: its setup, or the reason why it has none.
pub(super) fn decode(bytes: &[u8; SETUP_BYTES]) -> Result<Setup, Error> {
    let mut rest = Fields(bytes);
    let magic = u64::from_le_bytes(rest.take());
    expect(
        "an RDMA setup of another kind",
        magic,
        u64::from_le_bytes(MAGIC),
    )?;
    expect(
        "an RDMA setup of another version",
        rest.u32().into(),
        VERSION.into(),
    )?;
    let reason_len = rest.u32() as usize;
    if reason_len > 0 {
        let reason = rest.reason(reason_len);
        return Err(RdmaError::PeerCannot { reason }.into());
    }
    let setup = Setup {
        gid: rest.take(),
        lid: rest.u16(),
        mtu: rest.u16(),
        partition: rest.u16(),
        is_ethernet: match rest.u16() {
            0 => false,
            1 => true,
            got => return Err(misbehaved("a link layer that is none", got.into(), 1)),
        },
        queues: [(rest.u32(), rest.u32()), (rest.u32(), rest.u32())],
        ring: rest.window(),
        control: rest.window(),
    };
    check_queues(&setup)?;
    check_windows(&setup)?;
    Ok(setup)
}

fn check_queues(setup: &Setup) -> Result<(), Error> {
    if !(256..=4096).contains(&setup.mtu) || !setup.mtu.is_power_of_two() {
        return Err(misbehaved("an MTU that is none", setup.mtu.into(), 4096));
    }
    let numbers = setup
        .queues
        .into_iter()
        .flat_map(|(number, psn)| [number, psn]);
    match numbers.max() {
        Some(most) if most > PSN_MASK => Err(misbehaved(
            "a queue pair that is none",
            most.into(),
            PSN_MASK.into(),
        )),
        _ => Ok(()),
    }
}

fn check_windows(setup: &Setup) -> Result<(), Error> {
    let (least, most) = (RING_BYTES_MIN as u64, RING_BYTES_MAX as u64);
    let bytes = setup.ring.bytes;
    if !bytes.is_power_of_two() || !(least..=most).contains(&bytes) {
        return Err(misbehaved("a ring of that size", bytes, most));
    }
    expect(
        "control words of that size",
        setup.control.bytes,
        CONTROL_PAGE_BYTES as u64,
    )?;
    for window in [setup.ring, setup.control] {
        // Addresses end after it.
        let most = u64::MAX - window.bytes;
        if window.address > most || !window.address.is_multiple_of(8) {
            return Err(misbehaved("memory at that address", window.address, most));
        }
    }
    Ok(())
}

pub(super) fn send(
    socket: &mut Socket,
    said: Result<&Setup, &str>,
    deadline: Instant,
) -> Result<(), Error> {
    socket.write_all_deadline(&encode(said), deadline)
}

pub(super) fn receive(socket: &mut Socket, deadline: Instant) -> Result<Setup, Error> {
    let mut bytes = [0; SETUP_BYTES];
    socket.read_exact_deadline(&mut bytes, deadline)?;
    decode(&bytes)
}

pub(super) fn send_ready(socket: &mut Socket, deadline: Instant) -> Result<(), Error> {
    socket.write_all_deadline(&READY, deadline)
}

pub(super) fn receive_ready(socket: &mut Socket, deadline: Instant) -> Result<(), Error> {
    let mut word = [0; READY.len()];
    socket.read_exact_deadline(&mut word, deadline)?;
    let [got, ready] = [word, READY].map(u64::from_le_bytes);
    expect("a word other than that it is ready", got, ready)
}

/// The unread part of a message. It is always long enough: messages have a fixed length.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        match self.0.split_first_chunk::<N>() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => [0; N],
        }
    }

    fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.take())
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    /// Reads a reason of `len` bytes. It is shown to people: characters that move the cursor are
    /// left out.
    fn reason(&self, len: usize) -> String {
        let bytes = self.0.get(..len.min(REASON_BYTES_MAX)).unwrap_or_default();
        String::from_utf8_lossy(bytes)
            .chars()
            .filter(|c| !c.is_control())
            .collect()
    }

    fn window(&mut self) -> Window {
        let window = Window {
            address: u64::from_le_bytes(self.take()),
            bytes: u64::from_le_bytes(self.take()),
            key: self.u32(),
        };
        self.u32();
        window
    }
}

fn expect(what: &'static str, got: u64, allowed: u64) -> Result<(), Error> {
    match got == allowed {
        true => Ok(()),
        false => Err(misbehaved(what, got, allowed)),
    }
}

fn misbehaved(what: &'static str, got: u64, allowed: u64) -> Error {
    Error::PeerMisbehaved { what, got, allowed }
}

/// A valid setup, for tests and fuzzing.
pub(super) fn example() -> Setup {
    Setup {
        gid: [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8],
        lid: 9,
        mtu: 1024,
        partition: 0x7fff,
        is_ethernet: true,
        queues: [(17, 0x123456), (18, 0)],
        ring: Window {
            address: 0x7f00_0000_0000,
            bytes: RING_BYTES_MIN as u64,
            key: 0x11,
        },
        control: Window {
            address: 0x7e00_0000_0000,
            bytes: CONTROL_PAGE_BYTES as u64,
            key: 0x22,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::random_numbers;

    #[test]
    fn the_message_is_laid_out_as_it_always_was() {
        let bytes = encode(Ok(&example()));
        assert_eq!(bytes[..16], *b"OUTBRDMA\x02\0\0\0\0\0\0\0");
        assert_eq!(bytes[16..24], [0xfe, 0x80, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[32..40], [9, 0, 0, 4, 0xff, 0x7f, 1, 0]);
        assert_eq!(bytes[40..48], [17, 0, 0, 0, 0x56, 0x34, 0x12, 0]);
        assert_eq!(bytes[56..64], 0x7f00_0000_0000u64.to_le_bytes());
        assert_eq!(bytes[72..76], [0x11, 0, 0, 0]);
        assert!(bytes[104..].iter().all(|&byte| byte == 0));
        assert_eq!(decode(&bytes).unwrap(), example());
    }

    #[test]
    fn a_refusal_says_why() {
        let long = "é".repeat(100);
        for (reason, shown) in [
            ("no device", "no device"),
            ("a\u{1b}[2J\nb", "a[2Jb"),
            (&long, &long[..128]),
            ("", ""),
        ] {
            let error = decode(&encode(Err(reason))).unwrap_err();
            let Some(RdmaError::PeerCannot { reason }) = error.rdma() else {
                unreachable!("{error}");
            };
            assert_eq!(reason.trim_end_matches('\0'), shown);
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for (at, byte, what) in [
            (0, b'X', "of another kind"),
            (8, 1, "of another version"),
            (35, 3, "MTU"),
            (34, 1, "MTU"),
            (38, 2, "link layer"),
            (43, 1, "queue pair"),
            (47, 1, "queue pair"),
            (66, 0x41, "ring of that size"),
            (71, 0x80, "ring of that size"),
            (56, 1, "address"),
            (89, 0xff, "control words"),
        ] {
            let mut bytes = encode(Ok(&example()));
            bytes[at] = byte;
            let error = decode(&bytes).unwrap_err();
            assert!(
                matches!(error, Error::PeerMisbehaved { .. }),
                "{at}: {error}"
            );
            assert!(error.to_string().contains(what), "{at}: {error}");
        }
        let mut bytes = encode(Ok(&example()));
        bytes[56..64].copy_from_slice(&(u64::MAX - 7).to_le_bytes());
        assert!(decode(&bytes).unwrap_err().to_string().contains("address"));
    }

    #[test]
    fn noise_is_never_a_setup_that_breaks_a_rule() {
        let mut random = random_numbers(11);
        for _ in 0..20_000 {
            let mut bytes = encode(Ok(&example()));
            for _ in 0..1 + random() % 4 {
                bytes[random() as usize % SETUP_BYTES] = random() as u8;
            }
            let Ok(setup) = decode(&bytes) else { continue };
            assert!(
                setup.ring.bytes.is_power_of_two() && setup.ring.bytes <= RING_BYTES_MAX as u64
            );
            assert!(setup.ring.address.checked_add(setup.ring.bytes).is_some());
            assert!(
                setup
                    .queues
                    .iter()
                    .all(|&(number, psn)| number.max(psn) <= PSN_MASK)
            );
        }
    }
}
