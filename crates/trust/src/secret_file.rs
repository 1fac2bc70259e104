//! Files that hold secrets: only their owner can read them.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use outboard_files::is_no_file;
use thiserror::Error;

/// Reason why a file is not used as a secret's.
#[derive(Debug, Error)]
pub enum SecretFileError {
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{} is no file", path.display())]
    NoFile { path: PathBuf },
    #[error(
        "{} holds a secret, and others can read or change it (its mode is {mode:04o}): chmod 600 it, and make a new \
         secret if others had the time to read this one",
        path.display()
    )]
    Open { path: PathBuf, mode: u32 },
    #[error("{} holds a secret, and is the file of user {uid}, who is neither you nor root", path.display())]
    Owner { path: PathBuf, uid: u32 },
    #[error("{} has more than {max} bytes", path.display())]
    TooLong { path: PathBuf, max: u64 },
    #[error("{} is not text", path.display())]
    NotText { path: PathBuf },
}

/// Reads a text of at most `max` bytes, from a file that nobody but its owner can read. The owner
/// is this process's user or root.
pub fn read_secret(path: &Path, max: u64) -> Result<String, SecretFileError> {
    read_with(path, max, 0o077)
}

/// Reads a secret that the file's group may read, too: keys of certificates are shared so.
pub(crate) fn read_group_secret(path: &Path, max: u64) -> Result<String, SecretFileError> {
    read_with(path, max, 0o037)
}

/// Reads a secret from a file whose mode has none of the bits `refused`.
fn read_with(path: &Path, max: u64, refused: u32) -> Result<String, SecretFileError> {
    let io = |source| SecretFileError::Io {
        path: path.into(),
        source,
    };
    let file = outboard_files::open(path).map_err(|error| match is_no_file(&error) {
        true => SecretFileError::NoFile { path: path.into() },
        false => io(error),
    })?;
    check(path, &file, refused)?;
    let mut bytes = Vec::new();
    file.take(max + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > max {
        return Err(SecretFileError::TooLong {
            path: path.into(),
            max,
        });
    }
    String::from_utf8(bytes).map_err(|_| SecretFileError::NotText { path: path.into() })
}

fn check(path: &Path, file: &File, refused: u32) -> Result<(), SecretFileError> {
    let path = || PathBuf::from(path);
    let metadata = file.metadata().map_err(|source| SecretFileError::Io {
        path: path(),
        source,
    })?;
    let (mode, uid) = (metadata.mode() & 0o7777, metadata.uid());
    if mode & refused != 0 {
        return Err(SecretFileError::Open { path: path(), mode });
    }
    if uid != 0 && uid != rustix::process::geteuid().as_raw() {
        return Err(SecretFileError::Owner { path: path(), uid });
    }
    Ok(())
}

/// Writes a file that did not exist before, with mode 0600. What cannot be written whole leaves no
/// file.
pub fn write_new_secret(path: &Path, text: &str) -> Result<(), SecretFileError> {
    let io = |source| SecretFileError::Io {
        path: path.into(),
        source,
    };
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(path);
    let mut file = file.map_err(io)?;
    file.write_all(text.as_bytes())
        .and_then(|()| file.sync_all())
        .map_err(|error| {
            let _ = fs::remove_file(path);
            io(error)
        })
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;

    #[test]
    fn a_secret_that_others_can_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        write_new_secret(&path, "hush").unwrap();
        assert!(write_new_secret(&path, "again").is_err());
        assert_eq!(read_secret(&path, 4).unwrap(), "hush");
        let long = read_secret(&path, 3).unwrap_err().to_string();
        assert!(long.contains("more than 3 bytes"), "{long}");
        for mode in [0o644, 0o640, 0o620, 0o601, 0o660] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let said = read_secret(&path, 4).unwrap_err().to_string();
            assert!(said.contains("chmod 600"), "{mode:o}: {said}");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
        assert_eq!(read_secret(&path, 4).unwrap(), "hush");
    }

    #[test]
    fn what_is_no_text_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let said = |path: &Path| read_secret(path, 9).unwrap_err().to_string();
        assert!(said(&folder.path().join("none")).contains("No such file"));
        assert!(said(folder.path()).contains("is no file"));
        let fifo = folder.path().join("fifo");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        assert!(said(&fifo).contains("is no file"));
        let binary = folder.path().join("binary");
        write_new_secret(&binary, "x").unwrap();
        fs::write(&binary, [0xff]).unwrap();
        assert!(said(&binary).contains("is not text"));
    }
}
