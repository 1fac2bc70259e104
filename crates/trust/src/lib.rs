//! Secrets by which programs and servers know each other, and the proofs that they have them. No
//! network I/O: `link` sends what is made here.
//!
//! ```text
//!  client                                         server
//!    ├── hello: the token's id, a nonce ───────────►│ finds the key in its file
//!    │◄── challenge: a nonce, the server's proof ───┤
//!    ├── the client's proof ───────────────────────►│
//!    │◄──────────────────────── welcome, or why not ┤
//! ```
//!
//! A proof is an HMAC, keyed with the token's key, over both messages. So each side has seen the
//! other's nonce, and neither a replayed nor a reflected proof is right.
//!
//! - `token`: a token, as its owner has it.
//! - `store`: the tokens of a server, in a file.
//! - `proof`: the two proofs.
//! - `tls`: TLS 1.3 between sides that know each other by keys or certificates: the handshake, and
//!   the records after it.
//! - `secret_file`: files that only their owner can read.

mod date;
pub mod hex;
mod proof;
mod secret_file;
mod store;
mod tls;
mod token;

pub use date::{date, now_s, parse_lifetime};
pub use proof::{PROOF_BYTES, Transcript, peer_key};
pub use secret_file::{SecretFileError, read_secret, write_new_secret};
pub use store::{Entry, NAME_BYTES_MAX, Store, StoreError};
pub use tls::{
    ALERT, Authorities, Certificate, CertificateFault, CertificateFileError, CertificateFiles,
    CertificateText, Channel, END, Expected, Fingerprint, FingerprintError, HANDSHAKE, Identity,
    IdentityError, KEY_UPDATE, KernelKey, KernelOpener, KernelSealer, Listed, Opener, Own,
    PUBLIC_KEY_BYTES, Presented, PublicKey, PublicKeyError, RECORD_BYTES_MAX, RecordIo,
    SIGNATURE_BYTES, Sealer, Secured, ServerOwn, Shown, TlsError, TlsState, authorized_count,
    is_authorized, open_as_client, open_as_server,
};
pub use token::{ID_BYTES, NONCE_BYTES, Token, TokenError, TokenKey, random};
