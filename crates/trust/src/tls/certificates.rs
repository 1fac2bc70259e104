//! Certificates (X.509): the files of chains, their keys and authorities, and what can be wrong
//! with the one that a peer shows.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use rustls::{
    CertificateError as Wrong, Error as RustlsError, RootCertStore,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier},
    crypto::{CryptoProvider, ring::sign::any_supported_type},
    pki_types::{
        CertificateDer, CertificateRevocationListDer, PrivateKeyDer, UnixTime, pem::PemObject as _,
    },
    server::{VerifierBuilderError, WebPkiClientVerifier},
    sign::CertifiedKey,
};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{
    identity::Fingerprint,
    subject::{NameError, Subject},
    verify::provider,
};
use crate::{
    date, now_s,
    secret_file::{SecretFileError, read_group_secret},
};

const CHAIN_BYTES_MAX: u64 = 32 << 10;
const KEY_BYTES_MAX: u64 = 16 << 10;
const AUTHORITIES_BYTES_MAX: u64 = 4 << 20;

/// A certificate's chain and its private key, as PEM texts that fit each other.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateText {
    chain: String,
    key: String,
}

/// A certificate whose key this side has.
#[derive(Clone)]
pub struct Certificate {
    pub(super) certified: Arc<CertifiedKey>,
    /// Its public key alone, for peers that know the server by its key.
    pub(super) raw: Arc<CertifiedKey>,
    fingerprint: Fingerprint,
    subject: Subject,
}

/// Certificates of those who sign others, and their lists of revoked ones.
#[derive(Debug, Clone)]
pub struct Authorities {
    roots: Arc<RootCertStore>,
    revoked: Vec<CertificateRevocationListDer<'static>>,
}

/// The certificate of a peer, which has its private key. Nothing else of it is checked yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Presented(pub(super) Vec<CertificateDer<'static>>);

/// Reason why a file of certificates cannot be used.
#[derive(Debug, Error)]
pub enum CertificateFileError {
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Key(#[from] SecretFileError),
    #[error("{} holds no certificate in PEM form (-----BEGIN CERTIFICATE-----)", path.display())]
    NoCertificate { path: PathBuf },
    #[error(
        "{} holds no private key that can be used: PEM form without a password, RSA of 2048 bits and more, ECDSA on P-256 \
         or P-384, or Ed25519",
        path.display()
    )]
    NoKey { path: PathBuf },
    #[error("the key in {} is not that of the first certificate in {}", key.display(), chain.display())]
    Mismatch { chain: PathBuf, key: PathBuf },
    #[error("{}: a certificate or revocation list in it cannot be read", path.display())]
    Unreadable { path: PathBuf },
    #[error(
        "this machine has no certificates of authorities: name a file of them with --ca or OUTBOARD_CA"
    )]
    NoSystem,
}

/// Reason why a peer's certificate is not accepted, after the words "its certificate".
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CertificateFault {
    #[error("has expired on {on} (this machine's clock says {now})")]
    Expired { on: String, now: String },
    #[error("is not valid before {from} (this machine's clock says {now})")]
    NotYet { from: String, now: String },
    #[error("is for another name: not for {wanted}, but for {}", names(given))]
    OtherName { wanted: String, given: Vec<String> },
    #[error("is signed by no authority that is trusted here")]
    Stranger,
    #[error("was revoked by its authority")]
    Revoked,
    #[error(
        "is not for this use: a server's needs serverAuth as extended key usage, a client's clientAuth"
    )]
    Purpose,
    #[error("is that of an authority, which signs others and is shown by nobody")]
    Authority,
    #[error("has {0}")]
    Name(#[from] NameError),
    #[error("cannot be checked: {0}")]
    Other(String),
}

fn names(given: &[String]) -> String {
    match given {
        [] => "none".into(),
        given => given.join(", "),
    }
}

impl CertificateText {
    /// Reads both files, and checks that they can be used. The key's may be read by its group.
    pub fn read(chain: &Path, key: &Path) -> Result<CertificateText, CertificateFileError> {
        let text = CertificateText {
            chain: read(chain, CHAIN_BYTES_MAX)?,
            key: read_group_secret(key, KEY_BYTES_MAX)?,
        };
        text.parse_as(chain, key)?;
        Ok(text)
    }

    pub fn parse(&self) -> Result<Certificate, CertificateFileError> {
        self.parse_as(Path::new("the certificate"), Path::new("the key"))
    }

    fn parse_as(&self, chain: &Path, key: &Path) -> Result<Certificate, CertificateFileError> {
        let (at_chain, at_key) = (|| PathBuf::from(chain), || PathBuf::from(key));
        let unreadable = || CertificateFileError::Unreadable { path: at_chain() };
        let no_key = || CertificateFileError::NoKey { path: at_key() };
        let certificates: Vec<_> = CertificateDer::pem_slice_iter(self.chain.as_bytes())
            .collect::<Result<_, _>>()
            .map_err(|_| unreadable())?;
        let first = certificates.first();
        let first =
            first.ok_or_else(|| CertificateFileError::NoCertificate { path: at_chain() })?;
        let subject = Subject::of(first).map_err(|_| unreadable())?;
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).map_err(|_| no_key())?;
        let key = any_supported_type(&key).map_err(|_| no_key())?;
        let public = key.public_key().ok_or_else(no_key)?.as_ref().to_vec();
        let certified = CertifiedKey::new(certificates, Arc::clone(&key));
        match certified.keys_match() {
            Ok(()) => {}
            Err(RustlsError::InconsistentKeys(_)) => {
                let (chain, key) = (at_chain(), at_key());
                return Err(CertificateFileError::Mismatch { chain, key });
            }
            Err(_) => return Err(unreadable()),
        }
        Ok(Certificate {
            certified: Arc::new(certified),
            fingerprint: Fingerprint::of(&public),
            raw: Arc::new(CertifiedKey::new(vec![CertificateDer::from(public)], key)),
            subject,
        })
    }
}

/// Shows nothing of the key.
impl fmt::Debug for CertificateText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CertificateText(..)")
    }
}

impl Certificate {
    /// Reads the chain, this certificate first, and its key.
    pub fn read(chain: &Path, key: &Path) -> Result<Certificate, CertificateFileError> {
        CertificateText::read(chain, key)?.parse_as(chain, key)
    }

    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// Returns what is wrong with its dates now.
    pub fn fault_of_dates(&self) -> Option<CertificateFault> {
        let (now, [from, until]) = (now_s(), self.subject.valid_s);
        let said = date(now);
        match now {
            _ if now < from => Some(CertificateFault::NotYet {
                from: date(from),
                now: said,
            }),
            _ if now > until => Some(CertificateFault::Expired {
                on: date(until),
                now: said,
            }),
            _ => None,
        }
    }
}

/// Its name, and until when it is valid.
impl fmt::Display for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let until = date(self.subject.valid_s[1]);
        match &self.subject.name {
            Ok(name) => write!(f, "certificate of {name}, valid until {until}"),
            Err(_) => write!(f, "certificate, valid until {until}"),
        }
    }
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Certificate({self})")
    }
}

impl Authorities {
    /// Reads certificates in PEM form, at least one, and revocation lists.
    pub fn read(path: &Path) -> Result<Authorities, CertificateFileError> {
        let text = read(path, AUTHORITIES_BYTES_MAX)?;
        let unreadable = || CertificateFileError::Unreadable { path: path.into() };
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(text.as_bytes()) {
            let certificate = certificate.map_err(|_| unreadable())?;
            roots.add(certificate).map_err(|_| unreadable())?;
        }
        if roots.is_empty() {
            return Err(CertificateFileError::NoCertificate { path: path.into() });
        }
        let revoked = CertificateRevocationListDer::pem_slice_iter(text.as_bytes());
        let authorities = Authorities {
            roots: Arc::new(roots),
            revoked: revoked
                .collect::<Result<_, _>>()
                .map_err(|_| unreadable())?,
        };
        // A list that cannot be used is reported now.
        let verifier = authorities.server_verifier(&Arc::new(provider()));
        verifier.map_err(|_| unreadable())?;
        Ok(authorities)
    }

    /// Returns the authorities that this machine trusts, which are read once.
    pub fn of_system() -> Result<Authorities, CertificateFileError> {
        static SYSTEM: OnceLock<Arc<RootCertStore>> = OnceLock::new();
        let roots = SYSTEM.get_or_init(|| {
            let mut roots = RootCertStore::empty();
            // Some systems carry certificates that are not well made.
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
            Arc::new(roots)
        });
        match roots.is_empty() {
            true => Err(CertificateFileError::NoSystem),
            false => Ok(Authorities {
                roots: Arc::clone(roots),
                revoked: Vec::new(),
            }),
        }
    }

    /// Checks a client's certificate. Returns the name that it is of.
    pub fn check_client(&self, shown: &Presented) -> Result<String, CertificateFault> {
        let provider = Arc::new(provider());
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&self.roots), provider)
                .with_crls(self.revoked.clone())
                .only_check_end_entity_revocation()
                .allow_unknown_revocation_status()
                .build()
                .map_err(|error| CertificateFault::Other(error.to_string()))?;
        let (first, more) = match &shown.0[..] {
            [first, more @ ..] => (first, more),
            [] => return Err(CertificateFault::Other("there is none".into())),
        };
        verifier
            .verify_client_cert(first, more, UnixTime::now())
            .map_err(|error| CertificateFault::of(&error))?;
        Ok(Subject::of(first)?.name?)
    }

    pub(super) fn server_verifier(
        &self,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Arc<dyn ServerCertVerifier>, VerifierBuilderError> {
        let roots = Arc::clone(&self.roots);
        let builder = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(provider));
        let verifier = builder
            .with_crls(self.revoked.clone())
            .only_check_end_entity_revocation()
            .allow_unknown_revocation_status()
            .build()?;
        Ok(verifier)
    }
}

impl CertificateFault {
    /// Returns the fault that the verifier has found.
    pub(super) fn of(error: &RustlsError) -> CertificateFault {
        let date = |time: &UnixTime| date(time.as_secs());
        let RustlsError::InvalidCertificate(wrong) = error else {
            return CertificateFault::Other(error.to_string());
        };
        match wrong {
            Wrong::ExpiredContext { time, not_after } => CertificateFault::Expired {
                on: date(not_after),
                now: date(time),
            },
            Wrong::NotValidYetContext { time, not_before } => CertificateFault::NotYet {
                from: date(not_before),
                now: date(time),
            },
            Wrong::NotValidForNameContext {
                expected,
                presented,
            } => CertificateFault::OtherName {
                wanted: expected.to_str().into_owned(),
                given: presented.iter().map(|name| plain(name)).collect(),
            },
            // An authority of the same name and another key looks like a wrong signature.
            Wrong::UnknownIssuer | Wrong::BadSignature => CertificateFault::Stranger,
            Wrong::Revoked => CertificateFault::Revoked,
            Wrong::InvalidPurpose | Wrong::InvalidPurposeContext { .. } => {
                CertificateFault::Purpose
            }
            Wrong::Other(other) if other.to_string().contains("CaUsedAsEndEntity") => {
                CertificateFault::Authority
            }
            wrong => CertificateFault::Other(wrong.to_string()),
        }
    }
}

/// Returns a name of a certificate without its kind, which the verifier puts around it:
/// `IpAddress(127.0.0.2)`, `DnsName("gpu-host")`.
fn plain(name: &str) -> String {
    let inner = name.split_once('(').map_or(name, |(_, inner)| inner);
    inner.trim_end_matches(')').trim_matches('"').to_owned()
}

fn read(path: &Path, max: u64) -> Result<String, CertificateFileError> {
    outboard_files::read_text(path, max).map_err(|source| CertificateFileError::Io {
        path: path.into(),
        source,
    })
}
