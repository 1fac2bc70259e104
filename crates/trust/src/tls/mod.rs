//! TLS 1.3 between two keys that know each other by their fingerprints: raw public keys (RFC 7250)
//! instead of certificates, so there is no name, no authority and no date to check.
//!
//! rustls does the handshake. It then hands out the traffic secrets, and [`Sealer`] and [`Opener`]
//! make and read the records: each direction by itself, in whatever thread and process has that
//! half of the connection ([`TlsState`] goes from one process to another).

mod error;
mod handshake;
mod identity;
mod records;
mod schedule;
mod verify;

pub use error::TlsError;
pub use handshake::{Channel, RecordIo, open_as_client, open_as_server};
pub use identity::{
    Fingerprint, FingerprintError, Identity, IdentityError, PUBLIC_KEY_BYTES, PublicKey,
    PublicKeyError, SIGNATURE_BYTES, authorized_count, is_authorized,
};
pub use records::{Opener, RECORD_BYTES_MAX, Sealer};
pub use schedule::TlsState;
