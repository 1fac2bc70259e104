//! Errors of encrypted connections.

use rustls::AlertDescription;
use thiserror::Error;

use super::certificates::CertificateFault;

/// Reason why there is no encrypted connection, or none any more.
#[derive(Debug, Error)]
pub enum TlsError {
    #[error("the peer does not speak TLS (its first bytes are {first:02x?})")]
    NotTls { first: [u8; 5] },
    #[error(
        "the server has another key than the one in its address: its key was changed, or it is another server that \
         listens here"
    )]
    OtherKey,
    #[error("the server's certificate {fault}{}", advice(fault))]
    Certificate { fault: CertificateFault },
    #[error(
        "the server has a key and no certificate: add ?fingerprint=sha256:..., which it prints when it starts, to its \
         address"
    )]
    NoCertificate,
    #[error(
        "the client asks for a certificate, and this server has none: its address here has no fingerprint"
    )]
    CertificateAsked,
    #[error("the peer gave the handshake up: {}", reason(*alert))]
    Declined { alert: AlertDescription },
    #[error(
        "{host:?} is no name for which a certificate can be checked; a ?fingerprint=sha256:... can"
    )]
    NoName { host: String },
    #[error("the authorities cannot be used: {0}")]
    Verifier(String),
    #[error("no encrypted connection: {0}")]
    Handshake(#[source] rustls::Error),
    #[error("the keys cannot be derived")]
    Keys,
    #[error("a record was changed on its way, or is none")]
    Record,
    #[error("the peer closed the connection")]
    Closed,
    #[error("the peer gave the connection up (alert {0})")]
    Alert(u8),
}

/// Returns what a user can do about a fault of the server's certificate.
fn advice(fault: &CertificateFault) -> &'static str {
    match fault {
        CertificateFault::Stranger => {
            ": name the file of its authority with --ca or OUTBOARD_CA, or add ?fingerprint=sha256:... to the address"
        }
        CertificateFault::OtherName { .. } => ": use a name that it has in the address",
        _ => "",
    }
}

/// Returns what an alert says about this side's certificate or key.
fn reason(alert: AlertDescription) -> String {
    let said = match alert {
        AlertDescription::CertificateExpired => {
            "by its clock this side's certificate has expired, or is not valid yet"
        }
        AlertDescription::UnknownCA => "it does not trust the authority of this side's certificate",
        AlertDescription::CertificateRevoked => "this side's certificate was revoked",
        AlertDescription::BadCertificate => "this side's certificate is for another name",
        AlertDescription::UnsupportedCertificate => "this side's certificate is for another use",
        AlertDescription::CertificateUnknown => "this side's certificate cannot be checked",
        AlertDescription::AccessDenied => "it expects another key than this side's",
        AlertDescription::CertificateRequired => "it asks for a certificate",
        _ => return format!("{alert:?}"),
    };
    said.into()
}
