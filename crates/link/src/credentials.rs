//! Secrets by which a client and a server prove to each other who they are.

use std::{
    env, fmt,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use outboard_trust::{
    Authorities, Certificate, Expected, Fingerprint, Identity, Own, Token, hex, read_secret,
};

use crate::Error;

/// Names the file of the token for every server on a network; empty: no token is used.
pub const TOKEN_FILE_VARIABLE: &str = "OUTBOARD_TOKEN_FILE";

/// Names the file of the key by which a client is known over tcps; without it the key of the user's
/// settings, if there is one, else a new one for each process.
pub const KEY_FILE_VARIABLE: &str = "OUTBOARD_KEY_FILE";

/// Names the files of the certificate by which a client is known over tcps, in place of a key, and
/// of its private key.
pub const CERTIFICATE_VARIABLE: &str = "OUTBOARD_CERTIFICATE";
pub const CERTIFICATE_KEY_VARIABLE: &str = "OUTBOARD_CERTIFICATE_KEY";
/// Names the file of the authorities that servers' certificates are checked against, in place of
/// the system's.
pub const CA_VARIABLE: &str = "OUTBOARD_CA";

/// Names the file of the grants for servers of a pool: lines with a server's address, as the
/// program names it, and a grant in hexadecimal digits.
pub const GRANT_FILE_VARIABLE: &str = "OUTBOARD_GRANT_FILE";
const GRANT_FILE_BYTES_MAX: u64 = 256 << 10;

/// The file that [`use_token_file`] has set.
static TOKEN_FILE: OnceLock<PathBuf> = OnceLock::new();

/// Makes this process use the token in `file`, whatever the environment says. Returns false if a
/// file was set before.
pub fn use_token_file(file: &Path) -> bool {
    TOKEN_FILE.set(file.into()).is_ok()
}

/// Files of certificates for all servers; None leaves it to the environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertificateFiles {
    pub authorities: Option<PathBuf>,
    /// The client's own certificate, and its private key.
    pub own: Option<(PathBuf, PathBuf)>,
}

/// The files that [`use_certificate_files`] has set.
static CERTIFICATE_FILES: OnceLock<CertificateFiles> = OnceLock::new();

/// Makes this process use these files. Returns false if some were set before.
pub fn use_certificate_files(files: CertificateFiles) -> bool {
    CERTIFICATE_FILES.set(files).is_ok()
}

/// The secrets for one server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Credentials {
    pub(crate) token: Option<Token>,
    /// Proof of this side, and the server that it expects; None: nothing is encrypted.
    pub(crate) tls: Option<Arc<(Own, Expected)>>,
    /// The grant for the server, if it is one of a pool.
    pub(crate) grant: Option<Vec<u8>>,
}

/// The way to a session's server for its data connections.
#[derive(Clone, Debug)]
pub struct Way {
    pub(crate) address: SocketAddr,
    pub(crate) credentials: Credentials,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)
    }
}

impl From<SocketAddr> for Way {
    /// Makes a way to a server that asks for no token.
    fn from(address: SocketAddr) -> Way {
        Way {
            address,
            credentials: Credentials::default(),
        }
    }
}

impl Credentials {
    /// Returns the secrets for a server on a network, by its host and port.
    pub(crate) fn of(server: &str) -> Result<Credentials, Error> {
        let file = match (TOKEN_FILE.get(), env::var_os(TOKEN_FILE_VARIABLE)) {
            (Some(file), _) => Some(file.clone()),
            (None, Some(file)) if file.is_empty() => None,
            (None, Some(file)) => Some(file.into()),
            (None, None) => config_folder()
                .map(|folder| folder.join("tokens").join(server))
                // One that may not be looked at is one, too.
                .filter(|file| file.try_exists().unwrap_or(true)),
        };
        let token = file.map(|file| Token::read(&file)).transpose()?;
        Ok(Credentials {
            token,
            ..Credentials::default()
        })
    }

    /// Returns the secrets for a server that is known by its key, or by a certificate of its host.
    pub(crate) fn encrypted(
        self,
        host: &str,
        key: Option<Fingerprint>,
    ) -> Result<Credentials, Error> {
        let files = CERTIFICATE_FILES.get().cloned().unwrap_or_default();
        let expected = match key {
            Some(key) => Expected::Key(key),
            None => {
                let authorities = match files.authorities.or_else(|| named(CA_VARIABLE)) {
                    Some(file) => Authorities::read(&file)?,
                    None => Authorities::of_system()?,
                };
                Expected::of_host(host, authorities)?
            }
        };
        let own = match files
            .own
            .map_or_else(own_of_environment, |own| Ok(Some(own)))?
        {
            Some((certificate, key)) => Own::Certificate(Certificate::read(&certificate, &key)?),
            None => Own::Key(own_key()?),
        };
        Ok(Credentials {
            tls: Some(Arc::new((own, expected))),
            ..self
        })
    }
}

fn named(variable: &str) -> Option<PathBuf> {
    let value = env::var_os(variable).filter(|file| !file.is_empty());
    value.map(PathBuf::from)
}

fn own_of_environment() -> Result<Option<(PathBuf, PathBuf)>, Error> {
    match (named(CERTIFICATE_VARIABLE), named(CERTIFICATE_KEY_VARIABLE)) {
        (Some(certificate), Some(key)) => Ok(Some((certificate, key))),
        (None, None) => Ok(None),
        _ => Err(Error::HalfCertificate),
    }
}

/// Returns the key that is named, the user's own, or a new one.
fn own_key() -> Result<Identity, Error> {
    let file = named(KEY_FILE_VARIABLE).or_else(|| {
        let file = default_key_file()?;
        file.try_exists().unwrap_or(true).then_some(file)
    });
    Ok(match file {
        Some(file) => Identity::read(&file),
        None => Identity::random(),
    }?)
}

/// Returns the grant for the server of this address. Without a file there is none.
pub(crate) fn grant_for(address: &str) -> Result<Option<Vec<u8>>, Error> {
    let Some(file) = env::var_os(GRANT_FILE_VARIABLE).filter(|file| !file.is_empty()) else {
        return Ok(None);
    };
    let text = read_secret(Path::new(&file), GRANT_FILE_BYTES_MAX);
    let text = text.map_err(|error| Error::Grants(error.to_string()))?;
    let mut lines = text.lines().filter_map(|line| line.split_once(' '));
    let found = lines.find(|(server, _)| *server == address);
    found.map_or(Ok(None), |(_, digits)| {
        let grant = hex::decode_all(digits.trim());
        let wrong = || Error::Grants("it has a line that is no address and grant".into());
        grant.map(Some).ok_or_else(wrong)
    })
}

/// Returns the file of the user's own key: `key` in the folder of the settings.
pub fn default_key_file() -> Option<PathBuf> {
    Some(config_folder()?.join("key"))
}

/// Returns the folder of the user's settings: `$XDG_CONFIG_HOME/outboard`, or
/// `~/.config/outboard`.
pub fn config_folder() -> Option<PathBuf> {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty());
    let base = set("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(Path::new(&set("HOME")?).join(".config")))?;
    Some(base.join("outboard"))
}
