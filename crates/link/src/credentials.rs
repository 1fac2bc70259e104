//! Secrets by which a client and a server prove to each other who they are.

use std::{
    env, fmt,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use outboard_trust::{Fingerprint, Identity, Token, hex, read_secret};

use crate::Error;

/// Names the file of the token for every server on a network; empty: no token is used.
pub const TOKEN_FILE_VARIABLE: &str = "OUTBOARD_TOKEN_FILE";

/// Names the file of the key by which a client is known over tcps; without it the key of the user's
/// settings, if there is one, else a new one for each process.
pub const KEY_FILE_VARIABLE: &str = "OUTBOARD_KEY_FILE";

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

/// The secrets for one server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Credentials {
    pub(crate) token: Option<Token>,
    /// This side's key, and that of the server; None: nothing is encrypted.
    pub(crate) keys: Option<(Identity, Fingerprint)>,
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

    /// Returns the secrets for a server that is known by its key.
    pub(crate) fn with_key_of(self, server: Fingerprint) -> Result<Credentials, Error> {
        let named = env::var_os(KEY_FILE_VARIABLE).filter(|file| !file.is_empty());
        let file = named.map(PathBuf::from).or_else(|| {
            let file = default_key_file()?;
            file.try_exists().unwrap_or(true).then_some(file)
        });
        let identity = match file {
            Some(file) => Identity::read(&file),
            None => Identity::random(),
        };
        Ok(Credentials {
            keys: Some((identity?, server)),
            ..self
        })
    }
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
