//! Connections whose records the kernel makes and reads: data passes as over a connection without
//! encryption, and is decrypted straight into its place. What is not data comes here.

use std::{
    os::fd::{AsFd, OwnedFd},
    time::Instant,
};

use outboard_trust::{
    ALERT, END, HANDSHAKE, KEY_UPDATE, KernelOpener, KernelSealer, Opener, Sealer, TlsError,
};
use rustix::{
    event::PollFlags,
    io::Errno,
    net::sockopt::{self, Timeout},
};

use super::{
    liveness::{self, Watch},
    sealing::{Seal, Sealing},
};
use crate::{Error, deadline::timed_out, socket::Records, sys};

/// Decryption of what a link receives.
pub(super) enum Opening {
    /// None: the connection is open.
    Open,
    /// By this process.
    Own(Box<Opener>),
    /// By the kernel.
    Kernel(Box<KernelOpener>),
}

/// Longest message of a record that is no data and that a connection survives, or is ended by in
/// order.
const CONTROL_BYTES_MAX: usize = 16;

/// Gives the keys to the kernel, each direction by itself. A direction whose keys it does not take
/// stays in this process.
pub(super) fn hand_over(socket: &OwnedFd, (sealer, opener): Records) -> (Seal, Opening) {
    if sys::use_kernel_tls(socket).is_err() {
        return (
            Seal::Own(Sealing::new(sealer)),
            Opening::Own(Box::new(opener)),
        );
    }
    let seal = match sealing(socket, &sealer) {
        Some(kernel) => Seal::Kernel(Box::new(kernel)),
        None => Seal::Own(Sealing::new(sealer)),
    };
    let opening = match opening(socket, &opener) {
        Some(kernel) => Opening::Kernel(Box::new(kernel)),
        None => Opening::Own(Box::new(opener)),
    };
    (seal, opening)
}

fn sealing(socket: &OwnedFd, sealer: &Sealer) -> Option<KernelSealer> {
    let kernel = KernelSealer::of(sealer);
    sys::set_kernel_tls_key(socket, sys::TLS_TX, &kernel.key().ok()?).ok()?;
    Some(kernel)
}

fn opening(socket: &OwnedFd, opener: &Opener) -> Option<KernelOpener> {
    let kernel = KernelOpener::of(opener)?;
    sys::set_kernel_tls_key(socket, sys::TLS_RX, &kernel.key().ok()?).ok()?;
    // Peers pad nothing; a record that is padded all the same is read a second time.
    let _ = sys::expect_no_padding(socket);
    Some(kernel)
}

/// Changes the key of what is sent. Nothing may be on its way into the socket.
#[cold]
pub(super) fn update(
    socket: &OwnedFd,
    sealer: &mut KernelSealer,
    deadline: Option<Instant>,
    is_closed: impl Fn() -> bool,
) -> Result<(), Error> {
    let start = Instant::now();
    let mut watch = Watch::default();
    loop {
        match sys::send_control(socket, HANDSHAKE, &KEY_UPDATE, false) {
            Ok(sent) if sent == KEY_UPDATE.len() => break,
            Ok(_) => return Err(Error::Misuse("a key update in parts")),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let now = Instant::now();
                if deadline.is_some_and(|deadline| now >= deadline) {
                    return Err(timed_out("sending to the peer", start));
                }
                let tick = now + liveness::TICK;
                let has_room = sys::wait_one(socket.as_fd(), PollFlags::OUT, Some(tick))
                    .map_err(Error::io("waiting for the peer"))?;
                if !has_room {
                    watch.look(socket)?;
                }
            }
            Err(error) => return Err(Error::io("changing the key")(error)),
        }
        if is_closed() {
            return Err(Error::Closed);
        }
    }
    let key = sealer.update()?;
    sys::set_kernel_tls_key(socket, sys::TLS_TX, &key).map_err(Error::io("changing the key"))
}

/// Says that nothing follows, after all that was sent before. The kernel may still have records
/// that found no room in the connection, and drops them when the connection ends; a call that
/// blocks for its own record waits for these as well, and one that took less than its time has
/// left none.
pub(super) fn end(socket: &OwnedFd, is_closed: impl Fn() -> bool) -> Result<(), Error> {
    const DOING: &str = "ending the connection";
    sockopt::set_socket_timeout(socket, Timeout::Send, Some(liveness::TICK))
        .map_err(Error::io(DOING))?;
    let mut watch = Watch::default();
    loop {
        let start = Instant::now();
        match sys::send_control(socket, ALERT, &END, true) {
            Ok(_) if start.elapsed() < liveness::TICK => return Ok(()),
            Ok(_) | Err(Errno::AGAIN) => watch.look(socket)?,
            Err(Errno::INTR) => {}
            Err(error) => return Err(Error::io(DOING)(error)),
        }
        if is_closed() {
            return Err(Error::Closed);
        }
    }
}

/// Takes the record at the front, which is no data. [`Error::Closed`] if it says that nothing
/// follows.
#[cold]
pub(super) fn take_control(socket: &OwnedFd, opener: &mut KernelOpener) -> Result<(), Error> {
    let mut message = [0; CONTROL_BYTES_MAX];
    let (count, kind) = match sys::receive_control(socket, &mut message) {
        Ok(received) => received,
        Err(error) => return Err(fault(error)),
    };
    let key = opener.control(kind, &message[..count])?;
    sys::set_kernel_tls_key(socket, sys::TLS_RX, &key).map_err(Error::io("changing the key"))
}

/// Returns the error for what the kernel says of a connection that it reads.
pub(super) fn fault(error: Errno) -> Error {
    match error {
        // A record was changed, is too long, or is none.
        Errno::BADMSG | Errno::MSGSIZE | Errno::INVAL => TlsError::Record.into(),
        error => Error::io("receiving")(error),
    }
}

/// Run where the kernel has TLS: in a guest (`tests/rdma/test_kernel_tls.py`).
#[cfg(test)]
mod tests {
    use std::{
        io::Write as _,
        net::{TcpListener, TcpStream},
    };

    use outboard_trust::TlsState;

    use super::*;
    use crate::{KernelTls, Wait, kernel_tls, tcp::Connection, tcp::Receiver, tcp::Sender};

    const DATA: u8 = 23;
    const TO_SERVER: [u8; 32] = [1; 32];
    const TO_CLIENT: [u8; 32] = [2; 32];

    fn is_possible() -> bool {
        let is_required = std::env::var_os("OUTBOARD_KERNEL_TLS_REQUIRED").is_some();
        is_required || kernel_tls() == KernelTls::Used
    }

    /// Keys change after two records.
    fn state(out: [u8; 32], inward: [u8; 32]) -> TlsState {
        TlsState::before_update(out, inward, 2)
    }

    /// Returns a bare client socket, and the server's halves, whose records the kernel has.
    fn pair() -> (TcpStream, Sender, Receiver) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        let records = state(TO_CLIENT, TO_SERVER).resume().unwrap();
        let link = Connection::new(server.into(), None).unwrap();
        let link = link.encrypted(records, true);
        assert!(link.is_in_kernel());
        let (sender, receiver) = link.split();
        (client, sender, receiver)
    }

    fn frame(len: usize) -> Vec<u8> {
        let content = (0..len).map(|n| (n % 251) as u8);
        (len as u32)
            .to_le_bytes()
            .into_iter()
            .chain(content)
            .collect()
    }

    fn sealer() -> Sealer {
        state(TO_SERVER, TO_CLIENT).resume().unwrap().0
    }

    fn received(receiver: &mut Receiver) -> Result<usize, Error> {
        let frame = receiver.recv(Wait::Forever)?;
        Ok(frame.map_or(0, <[u8]>::len))
    }

    #[test]
    fn a_changed_record_is_an_error() {
        for at in [5, 4_000, 16_000] {
            if !is_possible() {
                return;
            }
            let (mut client, _sender, mut receiver) = pair();
            let mut bytes = Vec::new();
            let mut sealer = sealer();
            sealer.seal(&frame(9_000), &mut bytes).unwrap();
            let whole = bytes.len();
            sealer.seal(&frame(9_000), &mut bytes).unwrap();
            bytes[at] ^= 1;
            client.write_all(&bytes).unwrap();
            if at > whole {
                assert_eq!(received(&mut receiver).unwrap(), 9_000);
            }
            let error = received(&mut receiver).unwrap_err();
            assert!(matches!(error, Error::Tls(_)), "{at}: {error:?}");
        }
    }

    #[test]
    fn a_record_that_comes_again_is_an_error() {
        if !is_possible() {
            return;
        }
        let (mut client, _sender, mut receiver) = pair();
        let mut bytes = Vec::new();
        sealer().seal(&frame(100), &mut bytes).unwrap();
        client.write_all(&bytes).unwrap();
        assert_eq!(received(&mut receiver).unwrap(), 100);
        client.write_all(&bytes).unwrap();
        let error = received(&mut receiver).unwrap_err();
        assert!(matches!(error, Error::Tls(_)), "{error:?}");
    }

    #[test]
    fn records_that_are_no_data_end_the_link_or_change_its_key() {
        const TICKET: &[u8] = &[4, 0, 0, 0];
        const LONG: &[u8] = &[24; 100];
        for (kind, message, expected) in [
            (ALERT, &END[..], "the link is closed"),
            (ALERT, &[2, 42], "alert 42"),
            (ALERT, &[2], "a record"),
            (HANDSHAKE, TICKET, "a record"),
            (HANDSHAKE, &KEY_UPDATE[..3], "a record"),
            (HANDSHAKE, LONG, "a record"),
            (HANDSHAKE, &[24, 0, 0, 1, 1], "a record"),
            (20, &[1], "a record"),
        ] {
            if !is_possible() {
                return;
            }
            let (mut client, _sender, mut receiver) = pair();
            let mut sealer = sealer();
            let mut send = |make: &mut dyn FnMut(&mut Sealer, &mut Vec<u8>)| {
                let mut bytes = Vec::new();
                make(&mut sealer, &mut bytes);
                client.write_all(&bytes).unwrap();
            };
            // An empty record is nothing, by itself and among others.
            send(&mut |sealer, bytes| sealer.seal_record(DATA, &[], bytes).unwrap());
            assert!(receiver.recv(Wait::Poll).unwrap().is_none());
            send(&mut |sealer, bytes| {
                sealer.seal(&frame(100), bytes).unwrap();
                sealer.seal_record(DATA, &[], bytes).unwrap();
                // The key changes before this.
                sealer.seal(&frame(200), bytes).unwrap();
                sealer.seal_record(kind, message, bytes).unwrap();
            });
            assert_eq!(received(&mut receiver).unwrap(), 100);
            assert_eq!(received(&mut receiver).unwrap(), 200);
            let error = received(&mut receiver).unwrap_err().to_string();
            assert!(error.contains(expected), "{kind} {message:?}: {error}");
        }
    }
}
