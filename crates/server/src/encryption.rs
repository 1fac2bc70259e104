//! The server's end of an encrypted connection. The handshake is the worker's, before it has a
//! device: a hostile or slow one costs that process alone.

use std::{ffi::OsString, os::unix::ffi::OsStringExt as _, path::PathBuf, time::Instant};

use outboard_link::{Error as LinkError, Stream};
use outboard_session::handshake::{self, Error};
use outboard_trust::{Fingerprint, Identity, TlsError, is_authorized};
use tracing::warn;

use super::admission::TlsTerms;

/// First bytes of a client that does not encrypt.
const PLAIN: [u8; 5] = *b"OUTBO";
const WRONG_ADDRESS: &str = "this port is that of a tcps:// address, not of a tcp:// one; the server prints the address when it starts";
const NOT_NOW: &str = "the server cannot look at the keys that it serves; its log says why";

/// Does the handshake. Returns the client's key, of which it has the private half.
pub(super) fn begin(
    stream: &mut Stream,
    terms: &TlsTerms,
    deadline: Instant,
) -> Result<Fingerprint, Error> {
    let identity = Identity::read(&path(&terms.key)).map_err(|error| {
        warn!(%error, "no key, so no clients");
        LinkError::from(error)
    })?;
    stream
        .secure_server(&identity, deadline)
        .map_err(|error| match error {
            LinkError::Tls(error) if matches!(*error, TlsError::NotTls { first } if first == PLAIN) => {
                handshake::refuse(stream, WRONG_ADDRESS);
                Error::Refused(WRONG_ADDRESS.into())
            }
            error => error.into(),
        })
}

/// Refuses a client whose key is not listed.
pub(super) fn authorize(key: Fingerprint, terms: &TlsTerms) -> Result<(), Error> {
    let Some(list) = &terms.authorized else {
        return Ok(());
    };
    match is_authorized(&path(list), key) {
        Ok(true) => Ok(()),
        Ok(false) => Err(Error::Refused(format!(
            "the key {key} is not authorized: those who run the server add it to the file of --authorized (outboard \
             keygen makes a key that stays the same)"
        ))),
        Err(error) => {
            warn!(%error, "nobody is authorized");
            Err(Error::Refused(NOT_NOW.into()))
        }
    }
}

fn path(bytes: &[u8]) -> PathBuf {
    OsString::from_vec(bytes.to_vec()).into()
}
