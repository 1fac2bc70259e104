//! Data connections: further tcp connections of a session, to the same port, which prove with the
//! session's key that they belong to it.
//!
//! ```text
//!  client                                         server
//!    │◄── over the session: how many, key ──────────┤
//!    ├── connect, hello with the key ──────────────►│ hands each to the session
//!    │◄──────────────────────────────── welcome ────┤ once all have come
//! ```

use std::{
    net::TcpStream,
    os::fd::{AsFd, AsRawFd, OwnedFd, RawFd},
    sync::OnceLock,
    time::{Duration, Instant},
};

use outboard_wire::{
    handshake::{ClientHello, Purpose, RELEASE, SessionKey},
    limits::{
        DATA_CONNECTIONS, DATA_CONNECTIONS_CORES_MIN, DATA_CONNECTIONS_FEW,
        DATA_CONNECTIONS_FEW_CORES_MIN, DATA_CONNECTIONS_MAX,
    },
};

use crate::{
    Error, Link, Stream, Way, cores, emulated::Attachment, fill_standard_descriptors,
    opening::DialError, opening::Opening,
};

/// Number of data connections that a session of this process should have, by the machine's cores,
/// or by the environment (`OUTBOARD_DATA_CONNECTIONS`, for tests and measurements).
pub fn data_connections_wanted() -> usize {
    let by_cores = || match cores::count() {
        DATA_CONNECTIONS_CORES_MIN.. => DATA_CONNECTIONS,
        DATA_CONNECTIONS_FEW_CORES_MIN.. => DATA_CONNECTIONS_FEW,
        _ => 0,
    };
    said().map_or_else(by_cores, |said| said.min(DATA_CONNECTIONS_MAX))
}

/// Returns true if the environment sets the number.
pub fn data_connections_are_set() -> bool {
    said().is_some()
}

fn said() -> Option<usize> {
    static SAID: OnceLock<Option<usize>> = OnceLock::new();
    *SAID.get_or_init(|| {
        std::env::var("OUTBOARD_DATA_CONNECTIONS")
            .ok()?
            .parse()
            .ok()
    })
}

/// Opens `count` data connections to the session's server, or none, over the network of the
/// session's attachment if it has one. Returns the numbers of their sockets too: a forked child
/// must close its copies.
pub fn open_data_connections(
    server: &Way,
    attachment: Option<&Attachment>,
    key: SessionKey,
    count: usize,
    deadline: Instant,
) -> Result<Vec<(Link, RawFd)>, DialError> {
    let hello = ClientHello {
        release: RELEASE.into(),
        purpose: Purpose::DataConnection { key },
        pid: std::process::id(),
        program: String::new(),
        emulation: None,
        is_rdma: false,
        token: None,
        grant: None,
        window: 0,
    };
    fill_standard_descriptors();
    let connect = || {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = left.max(Duration::from_millis(1));
        let socket = TcpStream::connect_timeout(&server.address, left)
            .map_err(Error::io("connecting a data connection"))?;
        let stream = Stream::try_from(OwnedFd::from(socket))?;
        let stream = stream.with_credentials(server.credentials.clone());
        let mut stream = stream.secure(deadline)?;
        let opening = Opening::send(&mut stream, &hello, deadline)?;
        Ok((stream, opening))
    };
    let mut connections: Vec<(Stream, Opening)> = (0..count)
        .map(|_| connect())
        .collect::<Result<_, DialError>>()?;
    for (stream, opening) in &mut connections {
        opening.prove(stream, deadline)?;
    }
    // The server welcomes none before all have come.
    connections
        .into_iter()
        .map(|(mut stream, opening)| {
            opening.read_welcome(&mut stream, deadline)?;
            let fd = stream.as_fd().as_raw_fd();
            let link = stream.into_link_client(deadline)?;
            let link = match attachment {
                Some(attachment) => link.attached(attachment)?,
                None => link,
            };
            Ok((link, fd))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::{io::Write as _, net::TcpListener, thread};

    use outboard_wire::{
        handshake::{self, PREAMBLE_BYTES, Preamble, ServerWelcome},
        limits::SESSION_KEY_BYTES,
    };

    use super::*;
    use crate::Wait;

    const KEY: SessionKey = SessionKey::new([7; SESSION_KEY_BYTES]);
    const PATIENCE: Duration = Duration::from_secs(10);

    type Opened = Result<Vec<(Link, RawFd)>, DialError>;

    /// Accepts `count` data connections, then answers each.
    fn server(listener: &TcpListener, count: usize, answer: &[u8]) -> Vec<Stream> {
        let deadline = Instant::now() + PATIENCE;
        let mut streams: Vec<Stream> = (0..count)
            .map(|_| Stream::try_from(OwnedFd::from(listener.accept().unwrap().0)).unwrap())
            .collect();
        for stream in &mut streams {
            let mut preamble = [0; PREAMBLE_BYTES];
            stream.read_exact_deadline(&mut preamble, deadline).unwrap();
            let preamble = Preamble::decode(&preamble).unwrap();
            let mut document = vec![0; preamble.document_bytes];
            stream.read_exact_deadline(&mut document, deadline).unwrap();
            let hello = handshake::decode_hello(&document).unwrap();
            assert_eq!(hello.purpose, Purpose::DataConnection { key: KEY });
        }
        for stream in &mut streams {
            stream.write_all_deadline(answer, deadline).unwrap();
        }
        streams
    }

    fn open(answer: Vec<u8>) -> (Opened, Vec<Stream>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let accepting = thread::spawn(move || server(&listener, 2, &answer));
        let ours = open_data_connections(&at.into(), None, KEY, 2, Instant::now() + PATIENCE);
        (ours, accepting.join().unwrap())
    }

    #[test]
    fn data_connections_carry_frames_once_all_are_welcomed() {
        let welcome = ServerWelcome {
            release: RELEASE.into(),
            ..ServerWelcome::default()
        };
        let (ours, theirs) = open(handshake::encode_welcome(&welcome).unwrap());
        for ((ours, _), theirs) in ours.unwrap().into_iter().zip(theirs) {
            let (mut sender, _) = ours.split();
            sender.send(&[b"hello"]).unwrap();
            sender.flush().unwrap();
            let (_, mut receiver) = theirs.into_link_server().unwrap().split();
            let frame = receiver.recv(Wait::Until(Instant::now() + PATIENCE));
            assert_eq!(frame.unwrap(), Some(&b"hello"[..]));
        }
    }

    #[test]
    fn a_refusal_is_an_error_with_its_reason() {
        let (ours, _) = open(handshake::encode_refusal("no session has this key"));
        let error = ours.err().unwrap().to_string();
        assert!(error.contains("no session has this key"), "{error}");
    }

    #[test]
    fn a_stranger_that_answers_is_no_server() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let answering = thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            socket.write_all(&[b'x'; PREAMBLE_BYTES]).unwrap();
            socket
        });
        let error = open_data_connections(&at.into(), None, KEY, 1, Instant::now() + PATIENCE);
        assert!(matches!(error, Err(DialError::Handshake(_))));
        drop(answering.join());
    }
}
