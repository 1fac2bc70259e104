//! Queries of a server: its identity, and the round-trip time.

use std::{
    fs,
    io::{self, ErrorKind},
    os::unix::fs::FileTypeExt as _,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use outboard_api::CUresult;
use outboard_link::{
    DialError, Endpoint, Error, Link, Receiver, Sender, Stream, Wait, dial, emulated::emulation,
    greet as greet_stream,
};
use outboard_wire::{
    Message as _,
    doc::{STATUS_BYTES_MAX, StatusAnswer, StatusQuestion, from_bytes},
    frame::{self, decode_reply},
    handshake::{ClientHello, HandshakeError, Purpose, ServerWelcome},
    messages::{Echo, EchoReply, Ping},
    network::Network,
};

/// Time limit for a reply: a server opens its device first, which takes seconds on a machine with
/// several sleeping GPUs.
const ANSWER_MS_MAX: u64 = 60_000;
/// Time limit for a greeting, which opens no device. It may have to wait until silent clients have
/// been dropped, after HANDSHAKE_MS_MAX.
const GREETING_MS_MAX: u64 = 10_000;
const PING_MS_MAX: u64 = 5_000;
const ECHO_TOKEN: u32 = 2;

/// A server that answers.
pub(crate) struct Server {
    pub(crate) welcome: ServerWelcome,
    sender: Sender,
    receiver: Receiver,
}

/// Fails unless a server of this release answers.
pub(crate) fn greet(endpoint: &Endpoint) -> anyhow::Result<()> {
    greet_over(endpoint, None).map(drop)
}

/// Fails unless a server of this release answers within a time.
pub(crate) fn greet_within(endpoint: &Endpoint, longest: Duration) -> anyhow::Result<()> {
    let hello = hello(Purpose::Greeting, None)?;
    connect(endpoint, &hello, longest.as_millis() as u64).map(drop)
}

/// Fails unless a server of this release answers, and emulates the network, if one is given.
pub(crate) fn greet_over(
    endpoint: &Endpoint,
    network: Option<Network>,
) -> anyhow::Result<ServerWelcome> {
    let hello = hello(Purpose::Greeting, network)?;
    connect(endpoint, &hello, GREETING_MS_MAX).map(|(_, welcome)| welcome)
}

/// Fails unless a server of this release answers, and admits a program with this grant now.
pub(crate) fn greet_with_grant(
    endpoint: &Endpoint,
    network: Option<Network>,
    grant: Vec<u8>,
) -> anyhow::Result<ServerWelcome> {
    let hello = ClientHello {
        grant: Some(grant),
        ..hello(Purpose::Greeting, network)?
    };
    connect(endpoint, &hello, GREETING_MS_MAX).map(|(_, welcome)| welcome)
}

impl Server {
    pub(crate) fn query(endpoint: &Endpoint) -> anyhow::Result<Server> {
        Server::query_with(endpoint, None, None)
    }

    /// Asks a server over an emulated network, if one is given, and with the grant of a lease.
    pub(crate) fn query_with(
        endpoint: &Endpoint,
        network: Option<Network>,
        grant: Option<&[u8]>,
    ) -> anyhow::Result<Server> {
        let hello = |purpose| -> anyhow::Result<ClientHello> {
            Ok(ClientHello {
                grant: grant.map(<[u8]>::to_vec),
                ..hello(purpose, network)?
            })
        };
        // A stopped or stuck server is noticed sooner by a query that opens no device.
        connect(endpoint, &hello(Purpose::Greeting)?, GREETING_MS_MAX)?;
        let (link, welcome) = connect(endpoint, &hello(Purpose::Query)?, ANSWER_MS_MAX)?;
        let (sender, receiver) = link.split();
        Ok(Server {
            welcome,
            sender,
            receiver,
        })
    }

    /// Sends bytes and requests a reply of `answer_bytes` bytes; [`answered`](Self::answered) waits
    /// for it.
    pub(crate) fn ask_echo(&mut self, there: &[u8], answer_bytes: u32) -> anyhow::Result<()> {
        let message = Echo {
            answer_bytes,
            data: there,
        };
        let mut frame = self.sender.reserve(frame::request_len(&message))?;
        frame::encode_request(&mut frame, ECHO_TOKEN, 0, &message)?;
        frame.commit()?;
        Ok(self.sender.flush()?)
    }

    /// Waits for the next reply to [`ask_echo`](Self::ask_echo). Returns its length in bytes.
    pub(crate) fn answered(&mut self, timeout: Duration) -> anyhow::Result<usize> {
        let deadline = Wait::Until(Instant::now() + timeout);
        while let Some(answer) = self.receiver.recv(deadline)? {
            let (header, mut body) = decode_reply(answer)?;
            if (header.note, header.token) != (0, ECHO_TOKEN) {
                continue;
            }
            if header.status != 0 {
                anyhow::bail!("the server refused an echo: {}", CUresult(header.status));
            }
            return Ok(EchoReply::decode(&mut body)?.data.len());
        }
        anyhow::bail!("the server did not answer within {} s", timeout.as_secs())
    }

    /// Measures one message each way.
    pub(crate) fn ping(&mut self) -> anyhow::Result<Duration> {
        const TOKEN: u32 = 1;
        let start = Instant::now();
        let mut frame = self.sender.reserve(frame::request_len(&Ping {}))?;
        frame::encode_request(&mut frame, TOKEN, 0, &Ping {})?;
        frame.commit()?;
        self.sender.flush()?;
        let deadline = Wait::Until(start + Duration::from_millis(PING_MS_MAX));
        while let Some(answer) = self.receiver.recv(deadline)? {
            let (header, _) = decode_reply(answer)?;
            if (header.note, header.token) == (0, TOKEN) {
                return Ok(start.elapsed());
            }
        }
        anyhow::bail!("the server did not answer a message within {PING_MS_MAX} ms")
    }
}

/// A connection over which a server says what it sees of itself.
pub(crate) struct StatusQueries {
    stream: Stream,
}

impl StatusQueries {
    pub(crate) fn open(endpoint: &Endpoint) -> anyhow::Result<StatusQueries> {
        let hello = hello(Purpose::Status, None)?;
        match greet_stream(endpoint, &hello, Duration::from_millis(GREETING_MS_MAX)) {
            Ok((stream, _)) => Ok(StatusQueries { stream }),
            Err(error) => Err(explain(endpoint, error)),
        }
    }

    pub(crate) fn ask(&mut self, question: StatusQuestion) -> anyhow::Result<StatusAnswer> {
        let deadline = Instant::now() + Duration::from_millis(PING_MS_MAX);
        let mut len = [0; 4];
        let stream = &mut self.stream;
        stream.write_all_deadline(&question.to_bytes(), deadline)?;
        stream.read_exact_deadline(&mut len, deadline)?;
        let len = u32::from_le_bytes(len) as usize;
        anyhow::ensure!(
            len <= STATUS_BYTES_MAX,
            "the server's answer has {len} bytes, {STATUS_BYTES_MAX} at most are accepted"
        );
        let mut document = vec![0; len];
        stream.read_exact_deadline(&mut document, deadline)?;
        from_bytes(&document).context("the server's answer cannot be read")
    }
}

fn connect(
    endpoint: &Endpoint,
    hello: &ClientHello,
    ms_max: u64,
) -> anyhow::Result<(Link, ServerWelcome)> {
    match dial(endpoint, hello, Duration::from_millis(ms_max)) {
        Ok((link, _, welcome)) => Ok((link, welcome)),
        Err(error) => Err(explain(endpoint, error)),
    }
}

fn hello(purpose: Purpose, network: Option<Network>) -> anyhow::Result<ClientHello> {
    Ok(ClientHello {
        release: env!("CARGO_PKG_VERSION").into(),
        purpose,
        pid: std::process::id(),
        program: "outboard".into(),
        emulation: network.map(emulation).transpose()?,
        is_rdma: false,
        token: None,
        grant: None,
        window: 0,
    })
}

/// Refusal by the permissions of a local server's socket.
#[derive(Debug, thiserror::Error)]
#[error(
    "the server at {endpoint} cannot be asked: {why}; a shm address is open to the user who started the server, to root, and to the users of its --allow-uid in the group of its socket"
)]
pub(crate) struct NotAllowed {
    endpoint: String,
    why: io::Error,
}

fn explain(endpoint: &Endpoint, error: DialError) -> anyhow::Error {
    match error {
        DialError::Link(Error::NoServer { source, .. })
            if source.kind() == ErrorKind::PermissionDenied =>
        {
            anyhow::Error::new(NotAllowed {
                endpoint: endpoint.to_string(),
                why: source,
            })
        }
        DialError::Link(Error::NoServer { source, .. }) => {
            anyhow::anyhow!("no server at {endpoint}: {}", unserved(endpoint, &source))
        }
        DialError::Link(error @ Error::TimedOut { .. }) => anyhow::anyhow!(
            "no server at {endpoint}: {error}; is the machine up, and does a firewall let you through?"
        ),
        // These name the address themselves.
        DialError::Link(
            error @ (Error::Crowded { .. } | Error::Silent { .. } | Error::Stranger { .. }),
        ) => error.into(),
        // Usually something is missing on this machine.
        DialError::Link(error @ Error::Rdma(_)) => error.into(),
        DialError::Link(error) if error.is_disconnect() && endpoint.is_encrypted() => {
            anyhow::anyhow!(
                "no encrypted connection to {endpoint}: whatever listens there hung up; a server without --tls has an address \
             of tcp://, and prints it when it starts"
            )
        }
        DialError::Link(error) if error.is_disconnect() => anyhow::anyhow!(
            "no server at {endpoint}: whatever listens there hung up; is it an Outboard server? Its log says more"
        ),
        DialError::Handshake(HandshakeError::NotOutboard { first }) => anyhow::anyhow!(
            "no server at {endpoint}: what listens there speaks another protocol (it said {:?})",
            String::from_utf8_lossy(&first)
        ),
        error => anyhow::Error::new(error).context(format!("the server at {endpoint}")),
    }
}

/// Why nobody answers at an address, and what helps.
fn unserved(endpoint: &Endpoint, source: &io::Error) -> String {
    let is_socket =
        |path: &Path| fs::metadata(path).is_ok_and(|found| found.file_type().is_socket());
    match endpoint {
        Endpoint::Shm(path) if path.exists() && !is_socket(path) => {
            format!("{} is not a socket", path.display())
        }
        Endpoint::Shm(_) => format!("{source}; start one with outboard serve --listen {endpoint}"),
        _ if source.kind() == ErrorKind::ConnectionRefused => {
            format!("{source}; start one with outboard serve --listen {endpoint}")
        }
        // A name that does not resolve, a network that is not reached.
        _ => format!("{source}; is the address right?"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_of_another_user_is_not_to_be_started_again() {
        let endpoint: Endpoint = "shm:///run/gpu.sock".parse().unwrap();
        let said = |errno| {
            let error = Error::NoServer {
                endpoint: endpoint.to_string(),
                source: std::io::Error::from_raw_os_error(errno),
            };
            explain(&endpoint, DialError::Link(error))
        };
        let denied = said(rustix::io::Errno::ACCESS.raw_os_error());
        assert!(denied.is::<NotAllowed>());
        let denied = denied.to_string();
        assert!(denied.contains("the user who started"), "{denied}");
        assert!(!denied.contains("start one"), "{denied}");
        let missing = said(rustix::io::Errno::NOENT.raw_os_error()).to_string();
        assert!(
            missing.contains("start one with outboard serve"),
            "{missing}"
        );
    }
}
