//! The tokens that a server knows: one a line, in a file of the server's user.
//!
//! ```text
//!   NAME ID KEY CREATED EXPIRES      times in seconds since 1970; EXPIRES may be never
//! ```
//!
//! The file holds the keys themselves, since an HMAC cannot be checked without: who reads it can
//! use every token in it.

use std::{
    ffi::OsString,
    fs, io,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};
use thiserror::Error;

use crate::{
    hex,
    secret_file::{SecretFileError, read_secret, write_new_secret},
    token::{ID_BYTES, Token, TokenKey},
};

const FILE_BYTES_MAX: u64 = 4 << 20;
pub const NAME_BYTES_MAX: usize = 64;
/// Longest wait for another change of the file, and the pause between two tries.
const LOCK_MS_MAX: u64 = 10_000;
const LOCK_POLL_MS: u64 = 20;
const NEVER: &str = "never";
const HEAD: &str = "# Tokens of an Outboard server: NAME ID KEY CREATED EXPIRES. Secret: who reads the keys can use them.\n";

/// A token, as a server has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub name: String,
    pub token: Token,
    /// In seconds since 1970.
    pub created_s: u64,
    /// The first second in which the token is not valid; None: it stays valid.
    pub expires_s: Option<u64>,
}

/// All tokens of a server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Store {
    entries: Vec<Entry>,
}

/// Reason why a server's tokens cannot be read or changed.
#[derive(Debug, Error)]
pub enum StoreError {
    #[error(transparent)]
    File(#[from] SecretFileError),
    #[error("{}, line {line}: {reason}", path.display())]
    Line {
        path: PathBuf,
        line: usize,
        reason: &'static str,
    },
    #[error("there is a token of the name {0} already; revoke it first, or choose another name")]
    Taken(String),
    #[error("there is no token of the name {}", shortened(.0))]
    Unknown(String),
    #[error(
        "{:?} is no name of a token: letters, digits and . _ - @ are, at most {NAME_BYTES_MAX}",
        shortened(.0)
    )]
    Name(String),
    #[error(
        "nothing is changed: another process has kept {} locked for {seconds} s (lsof shows which); if that is no \
         outboard token, end it or remove this file",
        path.display()
    )]
    Locked { path: PathBuf, seconds: u64 },
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
}

/// Returns the beginning of a text that a user gave as a name.
fn shortened(text: &str) -> String {
    let mut short: String = text.chars().take(NAME_BYTES_MAX).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

impl Store {
    pub fn read(path: &Path) -> Result<Store, StoreError> {
        let text = read_secret(path, FILE_BYTES_MAX)?;
        Store::parse(&text).map_err(|(line, reason)| StoreError::Line {
            path: path.into(),
            line,
            reason,
        })
    }

    /// Parses a file's text; the error is the line's number and what is wrong with it.
    pub fn parse(text: &str) -> Result<Store, (usize, &'static str)> {
        let mut entries: Vec<Entry> = Vec::new();
        for (at, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let entry = Entry::parse(line).map_err(|reason| (at + 1, reason))?;
            let is_again =
                |other: &Entry| other.name == entry.name || other.token.id == entry.token.id;
            if entries.iter().any(is_again) {
                return Err((at + 1, "its name or id was in an earlier line"));
            }
            entries.push(entry);
        }
        Ok(Store { entries })
    }

    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Returns the token of this id, expired or not.
    pub fn find(&self, id: &[u8; ID_BYTES]) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.token.id == *id)
    }

    pub fn add(&mut self, entry: Entry) -> Result<(), StoreError> {
        if !is_name(&entry.name) {
            return Err(StoreError::Name(entry.name));
        }
        if self.entries.iter().any(|other| other.name == entry.name) {
            return Err(StoreError::Taken(entry.name));
        }
        self.entries.push(entry);
        Ok(())
    }

    pub fn remove(&mut self, name: &str) -> Result<(), StoreError> {
        let before = self.entries.len();
        self.entries.retain(|entry| entry.name != name);
        match self.entries.len() < before {
            true => Ok(()),
            false => Err(StoreError::Unknown(name.into())),
        }
    }

    /// Changes the tokens in a file, which is replaced in one step: a server that reads it
    /// meanwhile sees all of the old tokens or all of the new. A missing file has no tokens.
    pub fn change<T, E: From<StoreError>>(
        path: &Path,
        change: impl FnOnce(&mut Store) -> Result<T, E>,
    ) -> Result<T, E> {
        let io = |source| StoreError::Io {
            path: path.into(),
            source,
        };
        let beside = |suffix: &str| {
            let mut name = OsString::from(path);
            name.push(suffix);
            PathBuf::from(name)
        };
        let _lock = lock(&beside(".lock"), LOCK_MS_MAX)?;
        let mut store = match Store::read(path) {
            Err(StoreError::File(SecretFileError::Io { source, .. }))
                if source.kind() == io::ErrorKind::NotFound =>
            {
                Store::default()
            }
            read => read?,
        };
        let result = change(&mut store)?;
        let new = beside(".new");
        // Left by a change that was interrupted.
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io(error).into()),
            _ => {}
        }
        write_new_secret(&new, &store.to_text()).map_err(StoreError::from)?;
        fs::rename(&new, path).map_err(io)?;
        Ok(result)
    }

    fn to_text(&self) -> String {
        let mut text = String::from(HEAD);
        for entry in &self.entries {
            let Entry {
                name,
                token,
                created_s,
                expires_s,
            } = entry;
            let (id, key) = (hex::encode(&token.id), hex::encode(&token.key.0));
            let expires = expires_s.map_or(NEVER.into(), |at| at.to_string());
            text.push_str(&format!("{name} {id} {key} {created_s} {expires}\n"));
        }
        text
    }
}

/// Locks a file that its owner alone can open: others could keep it locked. Changes of the tokens
/// take turns by it.
fn lock(path: &Path, ms_max: u64) -> Result<fs::File, StoreError> {
    let io = |source| StoreError::Io {
        path: path.into(),
        source,
    };
    let mut options = fs::OpenOptions::new();
    options.create(true).truncate(false).write(true).mode(0o600);
    let file = outboard_files::open_with(&mut options, path).map_err(io)?;
    let metadata = file.metadata().map_err(io)?;
    if metadata.mode() & 0o077 != 0 {
        file.set_permissions(fs::Permissions::from_mode(0o600))
            .map_err(io)?;
    }
    let deadline = Instant::now() + Duration::from_millis(ms_max);
    loop {
        let locked = flock(&file, FlockOperation::NonBlockingLockExclusive);
        match locked {
            Ok(()) => return Ok(file),
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(LOCK_POLL_MS));
            }
            Err(Errno::WOULDBLOCK) => {
                return Err(StoreError::Locked {
                    path: path.into(),
                    seconds: ms_max / 1_000,
                });
            }
            Err(error) => return Err(io(error.into())),
        }
    }
}

impl Entry {
    fn parse(line: &str) -> Result<Entry, &'static str> {
        let mut words = line.split_ascii_whitespace();
        let words = [(); 6].map(|()| words.next());
        let [
            Some(name),
            Some(id),
            Some(key),
            Some(created),
            Some(expires),
            None,
        ] = words
        else {
            return Err("it is not NAME ID KEY CREATED EXPIRES");
        };
        if !is_name(name) {
            return Err("it does not begin with a name");
        }
        let expires_s = match expires {
            NEVER => None,
            text => Some(text.parse().map_err(|_| "EXPIRES is no time")?),
        };
        Ok(Entry {
            name: name.into(),
            token: Token {
                id: hex::decode(id).ok_or("ID is not 16 hexadecimal digits")?,
                key: TokenKey(hex::decode(key).ok_or("KEY is not 64 hexadecimal digits")?),
            },
            created_s: created.parse().map_err(|_| "CREATED is no time")?,
            expires_s,
        })
    }

    /// Returns whether the token is valid at this time.
    pub fn is_valid(&self, now_s: u64) -> bool {
        self.expires_s.is_none_or(|expires_s| now_s < expires_s)
    }

    /// Returns the id as it is shown.
    pub fn id_text(&self) -> String {
        hex::encode(&self.token.id)
    }
}

/// Returns whether a word can be a token's name, which appears in logs and files.
fn is_name(word: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-@".contains(&byte);
    (1..=NAME_BYTES_MAX).contains(&word.len()) && word.bytes().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, expires_s: Option<u64>) -> Entry {
        Entry {
            name: name.into(),
            token: Token::random().unwrap(),
            created_s: 5,
            expires_s,
        }
    }

    #[test]
    fn tokens_are_kept_found_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens");
        let (alice, bob) = (entry("alice", None), entry("bob@ci", Some(10)));
        for added in [&alice, &bob] {
            Store::change(&path, |store| store.add(added.clone())).unwrap();
        }
        let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600);
        let store = Store::read(&path).unwrap();
        assert_eq!(store.entries(), [alice.clone(), bob.clone()]);
        assert_eq!(store.find(&bob.token.id), Some(&bob));
        assert!(alice.is_valid(u64::MAX) && bob.is_valid(9) && !bob.is_valid(10));
        let again = Store::change(&path, |store| store.add(entry("alice", None)));
        assert!(matches!(again, Err(StoreError::Taken(_))));
        for name in ["", "two words", "new\nline", "ü", &"x".repeat(65)] {
            let wrong = Store::change(&path, |store| store.add(entry(name, None)));
            assert!(matches!(wrong, Err(StoreError::Name(_))), "{name}");
        }
        Store::change(&path, |store| store.remove("alice")).unwrap();
        assert_eq!(Store::read(&path).unwrap().entries(), [bob]);
        let unknown = Store::change(&path, |store| store.remove("alice"));
        assert!(matches!(unknown, Err(StoreError::Unknown(_))));
    }

    #[test]
    fn only_the_owner_can_hold_the_lock_and_nobody_for_ever() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens.lock");
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let held = lock(&path, 0).unwrap();
        assert_eq!(held.metadata().unwrap().mode() & 0o777, 0o600);
        let said = lock(&path, 50).unwrap_err().to_string();
        assert!(said.contains("tokens.lock locked"), "{said}");
        drop(held);
        lock(&path, 0).unwrap();
        fs::remove_file(&path).unwrap();
        let made = lock(&path, 0).unwrap();
        assert_eq!(made.metadata().unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_wrong_line_is_named() {
        let good = entry("a", None);
        let line = Store {
            entries: vec![good],
        }
        .to_text()
        .replace(HEAD, "");
        assert!(Store::parse(&line).is_ok());
        for (text, at) in [
            (format!("\n{line}{line}"), 3),
            (line.replace("never", "soon"), 1),
            (line.replace(" 5 ", " -5 "), 1),
            (line.replace("never", ""), 1),
            (line.replace("never", "never x"), 1),
            (format!("#\n{}", &line[4..]), 2),
        ] {
            let (wrong, reason) = Store::parse(&text).unwrap_err();
            assert_eq!(wrong, at, "{text}: {reason}");
        }
    }
}
