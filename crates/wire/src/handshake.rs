//! The first bytes of a connection. They are the same in every version of Outboard, so that an old
//! client and a new server can tell each other their versions.
//!
//! ```text
//!   offset  bytes  client's Hello             server's Welcome
//!   0       8      "OUTBOARD"                 "OUTBOARD"
//!   8       2      protocol version           protocol version
//!   10      2      0                          0 welcome, 1 refused, 2 challenge
//!   12      4      length of the document     length of the document
//!   16      8      fingerprint                fingerprint
//!   24      ...    postcard of ClientHello    postcard of ServerWelcome, UTF-8: why refused, or
//!                                             postcard of ServerChallenge
//! ```
//!
//! A challenge comes before the welcome if the server asks for tokens. The client answers it with
//! its proof, of [`PROOF_BYTES`](limits::PROOF_BYTES).

use std::fmt;

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use thiserror::Error;

use crate::{
    doc::DeviceCard,
    limits::{self, NONCE_BYTES, PROOF_BYTES, SESSION_KEY_BYTES, TOKEN_ID_BYTES},
    messages::FINGERPRINT,
    network::Network,
};

pub const MAGIC: [u8; 8] = *b"OUTBOARD";
pub const PROTOCOL_VERSION: u16 = 3;
pub const PREAMBLE_BYTES: usize = 24;
/// Kinds of answers in a preamble.
const WELCOMED: u16 = 0;
const REFUSED: u16 = 1;
const CHALLENGED: u16 = 2;
/// The release that this code is part of.
pub const RELEASE: &str = env!("CARGO_PKG_VERSION");
/// Longest release name that is accepted.
const RELEASE_BYTES_MAX: usize = 64;

/// Refusal of a connection with a key that the server does not know. A session's client reads in it
/// that the session is over.
pub const NOT_AWAITED: &str = "no session of it awaits a further connection with this key";

/// Reason why a client connects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Purpose {
    /// Run a CUDA program.
    Session,
    /// Describe the devices (`outboard doctor`): they are opened, but no memory can be allocated.
    Query,
    /// Check that a server of this release answers (`outboard run`): no device is opened or named.
    Greeting,
    /// Answer the management library: no device is opened or named.
    Management,
    /// Carry the data of long copies for the session whose key this is.
    DataConnection { key: SessionKey },
    /// Ask the worker of the session whose key this is whether it lives
    /// ([`Beat`](crate::heartbeat::Beat)).
    Heartbeat { key: SessionKey },
    /// Ask what the server sees of itself ([`StatusQuestion`](crate::doc::StatusQuestion)): its
    /// sessions, its GPUs, its counts (`outboard top`).
    Status,
    /// Bring the data of copies from another server, for the session that awaits this key. It is
    /// the only proof that is asked for: the server that connects has no token.
    Peer { key: SessionKey },
}

/// Secret that a server gives to one session's client. A further connection presents it to become
/// part of the session.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionKey([u8; SESSION_KEY_BYTES]);

impl SessionKey {
    pub const fn new(bytes: [u8; SESSION_KEY_BYTES]) -> SessionKey {
        SessionKey(bytes)
    }

    pub fn bytes(&self) -> &[u8; SESSION_KEY_BYTES] {
        &self.0
    }

    /// Compares in a time that tells nothing about where the keys differ.
    pub fn is(&self, other: &SessionKey) -> bool {
        let differences = self.0.iter().zip(&other.0).fold(0, |d, (a, b)| d | (a ^ b));
        std::hint::black_box(differences) == 0
    }
}

/// Shows nothing of the secret.
impl fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionKey(..)")
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientHello {
    /// The release that the client is part of. It comes first in every release, so that any other
    /// release can read it.
    pub release: String,
    pub purpose: Purpose,
    pub pid: u32,
    /// The program's name, for the server's log.
    pub program: String,
    /// The network that both sides are to emulate between them; the server emulates it or refuses
    /// the client.
    pub emulation: Option<Emulation>,
    /// True if this connection goes on to set up RDMA instead of carrying frames. The dialling side
    /// sets it by the address.
    pub is_rdma: bool,
    /// The token that the client will prove to have. The dialling side sets it.
    pub token: Option<TokenHello>,
    /// The grant by which a server of a pool gives a session. The dialling side sets it.
    pub grant: Option<Vec<u8>>,
    /// The address window that the client wants: one number for each of its servers, below
    /// [`SERVERS_MAX`](crate::limits::SERVERS_MAX), so that their windows do not overlap.
    pub window: u8,
}

/// The name of a client's token, and the number that makes this handshake unlike any other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenHello {
    pub id: [u8; TOKEN_ID_BYTES],
    pub nonce: [u8; NONCE_BYTES],
}

/// The answer of a server that asks for tokens, before it welcomes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerChallenge {
    /// Comes first, as in [`ClientHello`].
    pub release: String,
    pub nonce: [u8; NONCE_BYTES],
    /// Proof that the server has the client's token.
    pub proof: [u8; PROOF_BYTES],
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Emulation {
    pub network: Network,
    /// The client's clock; the server must have the same one.
    pub clock: Clock,
}

/// Identifies a clock, so that two processes can tell whether theirs is the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clock {
    /// The text of `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
    /// `CLOCK_MONOTONIC` when this document was written.
    pub now_ns: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerWelcome {
    /// Comes first, as in [`ClientHello`].
    pub release: String,
    pub session: u64,
    /// The version of the server's driver: 13000 is CUDA 13.0.
    pub driver_version: u32,
    /// The devices run PTX and no machine code, so a compiler of kernels for them must stop at PTX.
    #[serde(default)]
    pub ptx_only: bool,
    /// Address range in which the client may place device memory. Empty unless the purpose is
    /// `Purpose::Session`.
    pub window_base: u64,
    pub window_bytes: u64,
    /// The client must give each allocation memory of its own, exact to the byte, at an address
    /// that is not used again: the server finds accesses before and after it.
    pub exact_memory: bool,
    /// The session shares device memory with others, so the server may refuse an allocation that is
    /// within the quota: the client must await its answer to each.
    #[serde(default)]
    pub confirms_memory: bool,
    pub devices: Vec<DeviceCard>,
    /// Secret by which further connections become part of the session. None unless the purpose is
    /// `Purpose::Session`.
    pub key: Option<SessionKey>,
}

/// Reason why no session came about.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum HandshakeError {
    #[error("the peer does not speak Outboard's protocol (its first bytes are {first:02x?})")]
    NotOutboard { first: [u8; 8] },
    #[error(
        "protocol versions differ: here {ours}, there {theirs}; use the same release of Outboard on both sides"
    )]
    Version { ours: u16, theirs: u16 },
    #[error(
        "the two sides were built from different declarations (here {ours}, there {theirs}); use the same release of Outboard on both sides"
    )]
    Fingerprint { ours: Build, theirs: Build },
    #[error(
        "the two sides are of different releases (here {ours}, there {theirs}); use the same release of Outboard on both sides"
    )]
    Release { ours: String, theirs: String },
    #[error("the handshake's document is {len} bytes long, at most {max} are accepted")]
    TooLong { len: usize, max: usize },
    #[error("the handshake's document is damaged, or of another release")]
    Document(String),
    #[error("address window {window} is asked for: a program has at most {max} servers")]
    Window { window: u8, max: usize },
    #[error("the server refused the session: {0}")]
    Refused(String),
    #[error(
        "the server does not prove that it knows this token: the token is wrong, revoked or expired there, or it is \
         another server that listens here"
    )]
    Unproven,
    #[error(
        "the server asks for no token, but there is one for it here: it was started without --tokens, or it is another \
         server that listens here (OUTBOARD_TOKEN_FILE= uses no token)"
    )]
    NoChallenge,
    #[error("the server challenges a client that has named no token")]
    Unasked,
}

/// Release and declarations that one side was built from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Build {
    pub release: String,
    pub fingerprint: u64,
}

impl fmt::Display for Build {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} with {:016x}", self.release, self.fingerprint)
    }
}

impl HandshakeError {
    /// Returns whether the server says that it does not know the connection's key.
    #[must_use]
    pub fn is_not_awaited(&self) -> bool {
        matches!(self, HandshakeError::Refused(why) if why == NOT_AWAITED)
    }

    /// Returns the error as the other side words it: "here" becomes "there".
    #[must_use]
    pub fn from_the_other_side(self) -> HandshakeError {
        match self {
            HandshakeError::Version { ours, theirs } => HandshakeError::Version {
                ours: theirs,
                theirs: ours,
            },
            HandshakeError::Fingerprint { ours, theirs } => HandshakeError::Fingerprint {
                ours: theirs,
                theirs: ours,
            },
            HandshakeError::Release { ours, theirs } => HandshakeError::Release {
                ours: theirs,
                theirs: ours,
            },
            other => other,
        }
    }
}

/// The fixed part of a hello or welcome, read before anything else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preamble {
    pub version: u16,
    pub refused: bool,
    pub challenges: bool,
    pub document_bytes: usize,
    pub fingerprint: u64,
}

impl Preamble {
    /// Decodes the peer's preamble. A refusal is no error here, so that its reason can be read.
    pub fn decode(bytes: &[u8; PREAMBLE_BYTES]) -> Result<Preamble, HandshakeError> {
        let [
            m0,
            m1,
            m2,
            m3,
            m4,
            m5,
            m6,
            m7,
            v0,
            v1,
            s0,
            s1,
            l0,
            l1,
            l2,
            l3,
            fingerprint @ ..,
        ] = *bytes;
        let magic = [m0, m1, m2, m3, m4, m5, m6, m7];
        if magic != MAGIC {
            return Err(HandshakeError::NotOutboard { first: magic });
        }
        let preamble = Preamble {
            version: u16::from_le_bytes([v0, v1]),
            refused: !matches!(u16::from_le_bytes([s0, s1]), WELCOMED | CHALLENGED),
            challenges: u16::from_le_bytes([s0, s1]) == CHALLENGED,
            document_bytes: u32::from_le_bytes([l0, l1, l2, l3]) as usize,
            fingerprint: u64::from_le_bytes(fingerprint),
        };
        if preamble.document_bytes > limits::HANDSHAKE_BYTES_MAX {
            return Err(HandshakeError::TooLong {
                len: preamble.document_bytes,
                max: limits::HANDSHAKE_BYTES_MAX,
            });
        }
        Ok(preamble)
    }

    /// Checks that the protocol's version is ours. Called before the document is read, whose form
    /// depends on it.
    pub fn check_version(&self) -> Result<(), HandshakeError> {
        match self.version == PROTOCOL_VERSION {
            true => Ok(()),
            false => Err(HandshakeError::Version {
                ours: PROTOCOL_VERSION,
                theirs: self.version,
            }),
        }
    }

    /// Checks that version and fingerprint are ours. Of a document with another fingerprint only
    /// the release is read.
    pub fn check(&self, document: &[u8]) -> Result<(), HandshakeError> {
        self.check_version()?;
        if self.fingerprint != FINGERPRINT {
            return Err(HandshakeError::Fingerprint {
                ours: Build {
                    release: RELEASE.into(),
                    fingerprint: FINGERPRINT,
                },
                theirs: Build {
                    release: plain(release_of(document)),
                    fingerprint: self.fingerprint,
                },
            });
        }
        Ok(())
    }

    fn encode(kind: u16, document: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(PREAMBLE_BYTES + document.len());
        out.extend(MAGIC);
        out.extend(PROTOCOL_VERSION.to_le_bytes());
        out.extend(kind.to_le_bytes());
        out.extend((document.len() as u32).to_le_bytes());
        out.extend(FINGERPRINT.to_le_bytes());
        out.extend(document);
        out
    }
}

/// Encodes the client's whole first message.
pub fn encode_hello(hello: &ClientHello) -> Result<Vec<u8>, HandshakeError> {
    Ok(Preamble::encode(WELCOMED, &to_document(hello)?))
}

/// Encodes the server's answer to a client that it accepts.
pub fn encode_welcome(welcome: &ServerWelcome) -> Result<Vec<u8>, HandshakeError> {
    Ok(Preamble::encode(WELCOMED, &to_document(welcome)?))
}

/// Encodes the server's answer to a client that it refuses.
pub fn encode_refusal(why: &str) -> Vec<u8> {
    Preamble::encode(
        REFUSED,
        &why.as_bytes()[..why.len().min(limits::HANDSHAKE_BYTES_MAX)],
    )
}

/// Encodes the answer of a server that asks for tokens.
pub fn encode_challenge(challenge: &ServerChallenge) -> Result<Vec<u8>, HandshakeError> {
    Ok(Preamble::encode(CHALLENGED, &to_document(challenge)?))
}

/// Decodes the client's document, if the client is of this release.
pub fn decode_hello(document: &[u8]) -> Result<ClientHello, HandshakeError> {
    let hello: ClientHello = from_document(document)?;
    check_release(&hello.release)?;
    if usize::from(hello.window) >= limits::SERVERS_MAX {
        return Err(HandshakeError::Window {
            window: hello.window,
            max: limits::SERVERS_MAX,
        });
    }
    Ok(hello)
}

/// Decodes the server's document after its preamble, a welcome or a refusal.
pub fn decode_welcome(
    preamble: &Preamble,
    document: &[u8],
) -> Result<ServerWelcome, HandshakeError> {
    if preamble.refused {
        return Err(HandshakeError::Refused(
            String::from_utf8_lossy(document).into_owned(),
        ));
    }
    preamble.check(document)?;
    if preamble.challenges {
        return Err(HandshakeError::Unasked);
    }
    let welcome: ServerWelcome = from_document(document)?;
    check_release(&welcome.release)?;
    Ok(welcome)
}

/// Decodes the answer of a server to a client that has named a token. Everything but a challenge
/// and a refusal is an error: a server without the token must not pass for one that has it.
pub fn decode_challenge(
    preamble: &Preamble,
    document: &[u8],
) -> Result<ServerChallenge, HandshakeError> {
    if !preamble.challenges {
        // A welcome is as good as any, and a refusal says why.
        decode_welcome(preamble, document)?;
        return Err(HandshakeError::NoChallenge);
    }
    preamble.check(document)?;
    let challenge: ServerChallenge = from_document(document)?;
    check_release(&challenge.release)?;
    Ok(challenge)
}

fn check_release(theirs: &str) -> Result<(), HandshakeError> {
    match theirs == RELEASE {
        true => Ok(()),
        false => Err(HandshakeError::Release {
            ours: RELEASE.into(),
            theirs: plain(theirs),
        }),
    }
}

/// Reads the release at a document's start; empty if that is not text.
fn release_of(document: &[u8]) -> &str {
    postcard::take_from_bytes(document).map_or("", |(release, _)| release)
}

/// Returns a peer's release if an error may show it, otherwise a fixed text.
fn plain(release: &str) -> String {
    let is_plain = release.bytes().all(|byte| byte.is_ascii_graphic());
    match is_plain && (1..=RELEASE_BYTES_MAX).contains(&release.len()) {
        true => release.into(),
        false => "an unknown release".into(),
    }
}

fn to_document<T: Serialize>(value: &T) -> Result<Vec<u8>, HandshakeError> {
    let document =
        postcard::to_stdvec(value).map_err(|e| HandshakeError::Document(e.to_string()))?;
    if document.len() > limits::HANDSHAKE_BYTES_MAX {
        return Err(HandshakeError::TooLong {
            len: document.len(),
            max: limits::HANDSHAKE_BYTES_MAX,
        });
    }
    Ok(document)
}

fn from_document<T: DeserializeOwned>(document: &[u8]) -> Result<T, HandshakeError> {
    postcard::from_bytes(document).map_err(|e| HandshakeError::Document(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(release: &str) -> (Preamble, Vec<u8>) {
        let hello = ClientHello {
            release: release.into(),
            purpose: Purpose::Greeting,
            pid: 1,
            program: "test".into(),
            emulation: None,
            is_rdma: false,
            token: None,
            grant: None,
            window: 0,
        };
        let bytes = encode_hello(&hello).unwrap();
        let (preamble, document) = bytes.split_at(PREAMBLE_BYTES);
        let preamble = Preamble::decode(preamble.try_into().unwrap()).unwrap();
        (preamble, document.to_vec())
    }

    #[test]
    fn another_release_is_refused_and_both_are_named() {
        let (preamble, document) = hello(RELEASE);
        assert_eq!(preamble.check(&document), Ok(()));
        assert_eq!(decode_hello(&document).unwrap().release, RELEASE);
        let error = decode_hello(&hello("9.8.7").1).unwrap_err();
        let said = format!("different releases (here {RELEASE}, there 9.8.7)");
        assert!(error.to_string().contains(&said), "{error}");
        let there = error.from_the_other_side().to_string();
        let said = format!("here 9.8.7, there {RELEASE}");
        assert!(there.contains(&said), "{there}");
        let welcome = encode_welcome(&ServerWelcome {
            release: "\u{1b}[H".into(),
            ..ServerWelcome::default()
        });
        let error = decode_welcome(&preamble, &welcome.unwrap()[PREAMBLE_BYTES..]).unwrap_err();
        assert!(
            error.to_string().contains("there an unknown release"),
            "{error}"
        );
    }

    #[test]
    fn the_fingerprint_covers_the_documents() {
        let documents = crate::messages::DOCUMENTS;
        for name in [
            "ClientHello",
            "ServerWelcome",
            "DeviceCard",
            "KernelCard",
            "NvmlSnapshot",
            "TensorMapArguments",
        ] {
            assert!(
                documents.contains(&format!("pub struct {name} {{")),
                "{name}"
            );
        }
        assert!(documents.contains("pub exact_memory: bool"));
        assert!(documents.contains("pub const LAUNCH_ATTRIBUTE_BYTES: usize = 72;"));
        let other = documents.replacen("pub exact_memory: bool, ", "", 1);
        assert_eq!(outboard_api::decl::fingerprint(documents), FINGERPRINT);
        assert_ne!(outboard_api::decl::fingerprint(&other), FINGERPRINT);
    }

    #[test]
    fn other_declarations_are_refused_with_both_releases() {
        let (mut preamble, document) = hello("9.8.7");
        preamble.fingerprint ^= 1;
        let (ours, theirs) = (FINGERPRINT, FINGERPRINT ^ 1);
        let said = preamble.check(&document).unwrap_err().to_string();
        let named = format!("here {RELEASE} with {ours:016x}, there 9.8.7 with {theirs:016x}");
        assert!(said.contains(&named), "{said}");
        // A document with another beginning is not believed.
        for document in [&b""[..], &[0xff; 40], b"\x03\x1b[H", &[200, 1]] {
            let said = preamble.check(document).unwrap_err().to_string();
            assert!(said.contains("there an unknown release with"), "{said}");
        }
    }
}
