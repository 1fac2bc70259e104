//! The name that a certificate is of, and its dates.

use rustls::pki_types::CertificateDer;
use thiserror::Error;
use x509_cert::{
    Certificate,
    der::Decode as _,
    ext::pkix::{SubjectAltName, name::GeneralName},
};

/// Longest name of a certificate that is used.
const NAME_BYTES_MAX: usize = 200;

/// Reason why a certificate has no name for a tenant, after the word "has".
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NameError {
    #[error("a form that cannot be read ({0})")]
    Form(String),
    #[error("no name: neither DNS, email or URI as subject alternative name, nor a common name")]
    None,
    #[error(
        "a name that cannot be used, {0:?}: at most {NAME_BYTES_MAX} letters, digits and signs without a space"
    )]
    Strange(String),
}

/// Name and dates of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Subject {
    /// The first DNS, email or URI name; the common name if there is none.
    pub(super) name: Result<String, NameError>,
    /// From and until when it is valid, in seconds since 1970.
    pub(super) valid_s: [u64; 2],
}

impl Subject {
    pub(super) fn of(certificate: &CertificateDer<'_>) -> Result<Subject, NameError> {
        let form = |error: x509_cert::der::Error| NameError::Form(error.to_string());
        let parsed = Certificate::from_der(certificate).map_err(form)?;
        let about = parsed.tbs_certificate();
        let validity = about.validity();
        let alternative = about.get_extension::<SubjectAltName>().map_err(form)?;
        let alternative = alternative.and_then(|(_, names)| names.0.iter().find_map(of_program));
        let name = match alternative {
            Some(name) => Some(name),
            None => {
                let common = about.subject().common_name().map_err(form)?;
                common.map(|name| name.value().into_owned())
            }
        };
        Ok(Subject {
            name: name.ok_or(NameError::None).and_then(usable),
            valid_s: [validity.not_before, validity.not_after]
                .map(|time| time.to_unix_duration().as_secs()),
        })
    }
}

fn of_program(name: &GeneralName) -> Option<String> {
    match name {
        GeneralName::DnsName(name)
        | GeneralName::Rfc822Name(name)
        | GeneralName::UniformResourceIdentifier(name) => Some(name.to_string()),
        _ => None,
    }
}

/// Names go into logs, tables and lists of words.
fn usable(name: String) -> Result<String, NameError> {
    let is_fine = !name.is_empty()
        && name.len() <= NAME_BYTES_MAX
        && name.bytes().all(|byte| byte.is_ascii_graphic());
    match is_fine {
        true => Ok(name),
        false => Err(NameError::Strange(name.chars().take(80).collect())),
    }
}
