//! TLS 1.3 between two sides that know each other by the fingerprints of their keys, or by
//! certificates. A key alone (RFC 7250) has no name, no authority and no date to check. The client
//! says which it wants to see and which it shows.
//!
//! rustls does the handshake. It then hands out the traffic secrets, and [`Sealer`] and [`Opener`]
//! make and read the records: each direction by itself, in whatever thread and process has that
//! half of the connection ([`TlsState`] goes from one process to another). Where the kernel makes
//! and reads the records instead, [`KernelSealer`] and [`KernelOpener`] give it the keys.

mod certificates;
mod error;
mod files;
mod handshake;
mod identity;
mod kernel;
mod records;
mod schedule;
mod secured;
mod subject;
mod verify;

pub use certificates::{
    Authorities, Certificate, CertificateFault, CertificateFileError, CertificateText, Presented,
};
pub use error::TlsError;
pub use files::CertificateFiles;
pub use handshake::{
    Channel, Expected, Own, RecordIo, ServerOwn, Shown, open_as_client, open_as_server,
};
pub use identity::{
    Fingerprint, FingerprintError, Identity, IdentityError, Listed, PUBLIC_KEY_BYTES, PublicKey,
    PublicKeyError, SIGNATURE_BYTES, authorized_count, is_authorized,
};
pub use kernel::{KernelKey, KernelOpener, KernelSealer};
pub use records::{ALERT, END, HANDSHAKE, KEY_UPDATE, Opener, RECORD_BYTES_MAX, Sealer};
pub use schedule::TlsState;
pub use secured::Secured;
