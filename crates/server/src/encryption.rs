//! The server's end of an encrypted connection. The handshake is the worker's, before it has a
//! device: a hostile or slow one costs that process alone.

use std::{ffi::OsString, os::unix::ffi::OsStringExt as _, path::PathBuf, time::Instant};

use outboard_link::{Error as LinkError, Stream};
use outboard_session::handshake::{self, Error};
use outboard_trust::{
    Authorities, Identity, Listed, Presented, ServerOwn, Shown, TlsError, is_authorized,
};
use tracing::warn;

use super::admission::TlsTerms;

/// First bytes of a client that does not encrypt.
const PLAIN: [u8; 5] = *b"OUTBO";
const WRONG_ADDRESS: &str = "this port is that of a tcps:// or rdmas:// address, not of a tcp:// or rdma:// one; the server prints the address when it starts";
const NOT_NOW: &str = "the server cannot look at the keys that it serves; its log says why";
const NO_CERTIFICATE: &str = "this server asks for a certificate of the authorities that it knows: outboard run --certificate FILE --key FILE, or \
     OUTBOARD_CERTIFICATE and OUTBOARD_CERTIFICATE_KEY";
const NO_KEY: &str = "this server knows programs by their keys (outboard keygen), not by certificates: run the program without one";

/// Does the handshake. Returns what the client has shown, of which it has the private key.
pub(super) fn begin(
    stream: &mut Stream,
    terms: &TlsTerms,
    deadline: Instant,
) -> Result<Shown, Error> {
    let own = own(terms).inspect_err(|error| warn!(%error, "no key, so no clients"))?;
    stream
        .secure_server(&own, deadline)
        .map_err(|error| match error {
            LinkError::Tls(error) if matches!(*error, TlsError::NotTls { first } if first == PLAIN) => {
                handshake::refuse(stream, WRONG_ADDRESS);
                Error::Refused(WRONG_ADDRESS.into())
            }
            error => error.into(),
        })
}

fn own(terms: &TlsTerms) -> Result<ServerOwn, LinkError> {
    let key = terms.key.as_ref().map(|key| Identity::read(&path(key)));
    let certificate = terms.certificate.as_ref().map(|text| text.parse());
    Ok(ServerOwn {
        key: key.transpose()?,
        certificate: certificate.transpose()?,
    })
}

/// Refuses a client whose key is not listed, or whose certificate is none of those that are asked
/// for. Returns its name as a tenant, if it was asked for one.
pub(super) fn authorize(shown: &Shown, terms: &TlsTerms) -> Result<Option<String>, Error> {
    let refused = |why: String| Err(Error::Refused(why));
    match (shown, &terms.client_ca, &terms.authorized) {
        (_, None, None) => Ok(None),
        (Shown::Certificate(chain), Some(authorities), list) => {
            let name = check(chain, authorities)?;
            if let Some(list) = list
                && !is_listed(list, Listed::Certificate(&name))?
            {
                return refused(format!(
                    "the certificate of {name} is not authorized: those who run the server add the line cert:{name} to the \
                     file of --authorized"
                ));
            }
            Ok(Some(format!("cert:{name}")))
        }
        (Shown::Certificate(_), None, Some(_)) => refused(NO_KEY.into()),
        (Shown::Key(key), _, Some(list)) => match is_listed(list, Listed::Key(*key))? {
            true => Ok(Some(format!("key:{key}"))),
            false if terms.client_ca.is_some() => refused(NO_CERTIFICATE.into()),
            false => refused(format!(
                "the key {key} is not authorized: those who run the server add it to the file of --authorized (outboard \
                 keygen makes a key that stays the same)"
            )),
        },
        (Shown::Key(_) | Shown::Nothing, ..) => refused(NO_CERTIFICATE.into()),
    }
}

/// Returns the name of a client's certificate.
fn check(chain: &Presented, authorities: &[u8]) -> Result<String, Error> {
    let authorities = Authorities::read(&path(authorities)).map_err(|error| {
        warn!(%error, "no certificate can be checked");
        Error::Refused(NOT_NOW.into())
    })?;
    authorities
        .check_client(chain)
        .map_err(|fault| Error::Refused(format!("the program's certificate {fault}")))
}

fn is_listed(list: &[u8], who: Listed<'_>) -> Result<bool, Error> {
    is_authorized(&path(list), who).map_err(|error| {
        warn!(%error, "nobody is authorized");
        Error::Refused(NOT_NOW.into())
    })
}

fn path(bytes: &[u8]) -> PathBuf {
    OsString::from_vec(bytes.to_vec()).into()
}
