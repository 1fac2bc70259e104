//! Key pairs, and the fingerprints by which they are known.

use std::{
    fmt, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
};

use ring::{
    digest,
    rand::SystemRandom,
    signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey},
};
use rustls::{
    crypto::ring::sign::any_eddsa_type,
    pki_types::{CertificateDer, PrivatePkcs8KeyDer},
    sign::CertifiedKey,
};
use thiserror::Error;

use crate::{
    hex,
    secret_file::{SecretFileError, read_secret, write_new_secret},
};

const DIGEST_BYTES: usize = 32;
/// Length of a public key's own bytes, and of a signature.
pub const PUBLIC_KEY_BYTES: usize = 32;
pub const SIGNATURE_BYTES: usize = 64;
const PREFIX: &str = "sha256:";
/// Begins the name of a certificate in a list.
const CERTIFICATE_PREFIX: &str = "cert:";
/// Begins the line of a key in its file; the key's PKCS#8 follows in hexadecimal digits.
const FILE_PREFIX: &str = "outboard-key-1:";
const FILE_BYTES_MAX: u64 = 4 << 10;
const AUTHORIZED_BYTES_MAX: u64 = 4 << 20;

/// SHA-256 of a public key in its DER form; as text `sha256:` and 64 digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; DIGEST_BYTES]);

#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "{0:?} is no fingerprint: {PREFIX} and 64 hexadecimal digits, as outboard keygen prints them"
)]
pub struct FingerprintError(String);

/// A key pair (Ed25519).
#[derive(Clone)]
pub struct Identity {
    pkcs8: Vec<u8>,
    pub(super) certified: Arc<CertifiedKey>,
    fingerprint: Fingerprint,
}

/// The public half of a key; as text its hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PublicKey([u8; PUBLIC_KEY_BYTES]);

#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0:?} is no public key: 64 hexadecimal digits")]
pub struct PublicKeyError(String);

/// Reason why a key cannot be used.
#[derive(Debug, Error)]
pub enum IdentityError {
    #[error("the key's file {0}")]
    File(#[from] SecretFileError),
    #[error("{} holds no key: outboard keygen makes one", path.display())]
    NoKey { path: PathBuf },
    #[error("the system made no key")]
    NotMade,
    #[error("{}: {source}", path.display())]
    Authorized { path: PathBuf, source: io::Error },
    #[error("{}, line {line}: {source}", path.display())]
    Line {
        path: PathBuf,
        line: usize,
        source: FingerprintError,
    },
    #[error("{} can be changed by others (its mode is {mode:04o}): chmod go-w it", path.display())]
    Writable { path: PathBuf, mode: u32 },
}

impl Fingerprint {
    pub(super) fn of(public_key: &[u8]) -> Fingerprint {
        let mut bytes = [0; DIGEST_BYTES];
        bytes.copy_from_slice(digest::digest(&digest::SHA256, public_key).as_ref());
        Fingerprint(bytes)
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", hex::encode(&self.0))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Fingerprint {
    type Err = FingerprintError;

    fn from_str(text: &str) -> Result<Fingerprint, FingerprintError> {
        let digits = text.strip_prefix(PREFIX);
        let bytes = digits.and_then(hex::decode);
        bytes
            .map(Fingerprint)
            .ok_or_else(|| FingerprintError(text.chars().take(100).collect()))
    }
}

impl PublicKey {
    /// Returns whether the key's owner has signed the bytes.
    pub fn verify(&self, bytes: &[u8], signature: &[u8; SIGNATURE_BYTES]) -> bool {
        let key = UnparsedPublicKey::new(&ED25519, &self.0);
        key.verify(bytes, signature).is_ok()
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(&self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for PublicKey {
    type Err = PublicKeyError;

    fn from_str(text: &str) -> Result<PublicKey, PublicKeyError> {
        let bytes = hex::decode(text).map(PublicKey);
        bytes.ok_or_else(|| PublicKeyError(text.chars().take(80).collect()))
    }
}

impl Identity {
    /// Makes a new key pair.
    pub fn random() -> Result<Identity, IdentityError> {
        let made = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new());
        let pkcs8 = made.map_err(|_| IdentityError::NotMade)?;
        Identity::of(pkcs8.as_ref().to_vec()).ok_or(IdentityError::NotMade)
    }

    /// Reads a key pair from a file that nobody but its owner can read.
    pub fn read(path: &Path) -> Result<Identity, IdentityError> {
        let text = read_secret(path, FILE_BYTES_MAX)?;
        let lines = text.lines().map(str::trim);
        let mut lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        let digits = lines.next().and_then(|line| line.strip_prefix(FILE_PREFIX));
        digits
            .and_then(hex::decode_all)
            .and_then(Identity::of)
            .ok_or_else(|| IdentityError::NoKey { path: path.into() })
    }

    /// Writes the key pair into a file that did not exist before, with mode 0600.
    pub fn write(&self, path: &Path) -> Result<(), IdentityError> {
        let text = format!(
            "# A key of Outboard's. Secret. Its fingerprint: {}\n{FILE_PREFIX}{}\n",
            self.fingerprint,
            hex::encode(&self.pkcs8)
        );
        Ok(write_new_secret(path, &text)?)
    }

    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    pub fn public_key(&self) -> PublicKey {
        let mut bytes = [0; PUBLIC_KEY_BYTES];
        if let Ok(pair) = Ed25519KeyPair::from_pkcs8_maybe_unchecked(&self.pkcs8) {
            bytes.copy_from_slice(pair.public_key().as_ref());
        }
        PublicKey(bytes)
    }

    /// Signs bytes that begin with a text that no other use of the key begins with.
    pub fn sign(&self, bytes: &[u8]) -> Option<[u8; SIGNATURE_BYTES]> {
        let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(&self.pkcs8).ok()?;
        pair.sign(bytes).as_ref().try_into().ok()
    }

    fn of(pkcs8: Vec<u8>) -> Option<Identity> {
        let key = any_eddsa_type(&PrivatePkcs8KeyDer::from(pkcs8.clone())).ok()?;
        let public = key.public_key()?.as_ref().to_vec();
        Some(Identity {
            pkcs8,
            fingerprint: Fingerprint::of(&public),
            certified: Arc::new(CertifiedKey::new(vec![CertificateDer::from(public)], key)),
        })
    }
}

/// Shows nothing of the secret.
impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({})", self.fingerprint)
    }
}

impl PartialEq for Identity {
    fn eq(&self, other: &Identity) -> bool {
        self.fingerprint == other.fingerprint
    }
}

impl Eq for Identity {}

/// The one who may be listed in a file of those who are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listed<'a> {
    Key(Fingerprint),
    /// Name of a certificate.
    Certificate(&'a str),
}

/// Returns whether a file lists this key or certificate: a fingerprint, or `cert:` and a name, on
/// each line; a remark may follow. The file is no secret, but nobody else may change it.
pub fn is_authorized(path: &Path, who: Listed<'_>) -> Result<bool, IdentityError> {
    let mut found = false;
    for_each_listed(path, |listed| found |= listed == who)?;
    Ok(found)
}

/// Returns the number of keys and certificates that a file lists.
pub fn authorized_count(path: &Path) -> Result<usize, IdentityError> {
    let mut count = 0;
    for_each_listed(path, |_| count += 1)?;
    Ok(count)
}

fn for_each_listed(path: &Path, mut visit: impl FnMut(Listed<'_>)) -> Result<(), IdentityError> {
    let failed = |source| IdentityError::Authorized {
        path: path.into(),
        source,
    };
    let file = outboard_files::open(path).map_err(failed)?;
    let mode = file.metadata().map_err(failed)?.mode() & 0o7777;
    if mode & 0o022 != 0 {
        return Err(IdentityError::Writable {
            path: path.into(),
            mode,
        });
    }
    let text = outboard_files::text_of(file, AUTHORIZED_BYTES_MAX).map_err(failed)?;
    for (at, line) in text.lines().enumerate() {
        let word = line.split_ascii_whitespace().next();
        let Some(word) = word.filter(|word| !word.starts_with('#')) else {
            continue;
        };
        if let Some(name) = word.strip_prefix(CERTIFICATE_PREFIX) {
            visit(Listed::Certificate(name));
            continue;
        }
        let listed = word.parse().map_err(|source| IdentityError::Line {
            path: path.into(),
            line: at + 1,
            source,
        })?;
        visit(Listed::Key(listed));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;

    #[test]
    fn a_key_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let key = Identity::random().unwrap();
        key.write(&path).unwrap();
        assert_eq!(
            Identity::read(&path).unwrap().fingerprint(),
            key.fingerprint()
        );
        assert!(key.write(&path).is_err(), "a key was overwritten");
        let shown = key.fingerprint().to_string();
        assert_eq!(shown.parse::<Fingerprint>().unwrap(), key.fingerprint());
        for wrong in ["", "sha256:", &shown[1..], &shown[..70], "md5:00"] {
            assert!(wrong.parse::<Fingerprint>().is_err(), "{wrong}");
        }
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, &text[..text.len() - 9]).unwrap();
        assert!(Identity::read(&path).is_err());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o604)).unwrap();
        let said = Identity::read(&path).unwrap_err().to_string();
        assert!(said.contains("chmod 600"), "{said}");
    }

    #[test]
    fn a_signature_is_of_its_key_and_bytes() {
        let (key, other) = (Identity::random().unwrap(), Identity::random().unwrap());
        let signature = key.sign(b"said").unwrap();
        let public: PublicKey = key.public_key().to_string().parse().unwrap();
        assert!(public.verify(b"said", &signature));
        assert!(!public.verify(b"sais", &signature));
        assert!(!other.public_key().verify(b"said", &signature));
        let mut changed = signature;
        changed[63] ^= 1;
        assert!(!public.verify(b"said", &changed));
        assert!("12".parse::<PublicKey>().is_err());
    }

    #[test]
    fn a_file_lists_who_is_authorized() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("authorized");
        let (one, other) = (Identity::random().unwrap(), Identity::random().unwrap());
        fs::write(&path, format!("# friends\n\n{} alice\n", one.fingerprint())).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(is_authorized(&path, Listed::Key(one.fingerprint())).unwrap());
        assert!(!is_authorized(&path, Listed::Key(other.fingerprint())).unwrap());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o664)).unwrap();
        let said = is_authorized(&path, Listed::Key(one.fingerprint()))
            .unwrap_err()
            .to_string();
        assert!(said.contains("go-w"), "{said}");
        fs::write(&path, "alice").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let said = is_authorized(&path, Listed::Key(one.fingerprint()))
            .unwrap_err()
            .to_string();
        assert!(said.contains("line 1"), "{said}");
    }
}
