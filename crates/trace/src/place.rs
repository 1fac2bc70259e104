//! Chooses the file of a process: FILE for the first, FILE.PID for the others of a program.

use std::{
    ffi::OsString,
    fs::{File, OpenOptions},
    io::{self, Read},
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, flock};

use crate::{error::Error, format::MAGIC, limits::PLACES_MAX};

/// Checks before a program starts that its recording can be written there, and empties the file:
/// replaces an older recording, refuses anything else.
pub fn claim(path: &Path) -> Result<(), Error> {
    let io_error = |error: io::Error| Error::io(path, &error);
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    let mut file = options.open(path).map_err(io_error)?;
    if !file.metadata().map_err(io_error)?.is_file() {
        return Err(Error::Taken { path: path.into() });
    }
    let mut head = [0; MAGIC.len()];
    let is_ours = match file.read_exact(&mut head) {
        Ok(()) => head == MAGIC,
        Err(_) => file.metadata().map_err(io_error)?.len() == 0,
    };
    if !is_ours {
        return Err(Error::Taken { path: path.into() });
    }
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Err(Error::Io {
            path: path.into(),
            what: "another program is recording to it".into(),
        });
    }
    file.set_len(0).map_err(io_error)?;
    // A full disk shows now, not after the program has run.
    io::Write::write_all(&mut file, &[0; 4096])
        .and_then(|()| file.set_len(0))
        .map_err(io_error)
}

/// Returns true if the file begins like a recording.
pub fn is_recording(path: &Path) -> io::Result<bool> {
    let mut head = [0; MAGIC.len()];
    match File::open(path)?.read_exact(&mut head) {
        Ok(()) => Ok(head == MAGIC),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// Opens a file for this process alone. It is locked while it is open.
pub(crate) fn open(path: &Path) -> Result<(File, PathBuf), Error> {
    if let Some(file) = open_if_empty(path)? {
        return Ok((file, path.into()));
    }
    let pid = std::process::id();
    for number in 1..=PLACES_MAX {
        let mut name: OsString = path.as_os_str().to_owned();
        name.push(format!(".{pid}"));
        // A process may execute another program, and a pid may come again.
        if number > 1 {
            name.push(format!(".{number}"));
        }
        match OpenOptions::new().write(true).create_new(true).open(&name) {
            Ok(file) => return Ok((file, name.into())),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(Error::io(Path::new(&name), &error)),
        }
    }
    Err(Error::Taken { path: path.into() })
}

/// Opens the file if no process has written to it.
fn open_if_empty(path: &Path) -> Result<Option<File>, Error> {
    let io_error = |error: io::Error| Error::io(path, &error);
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    let file = options.open(path).map_err(io_error)?;
    let is_free = flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
        && file.metadata().map_err(io_error)?.len() == 0;
    Ok(is_free.then_some(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_recordings_are_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        claim(&path).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"");
        for content in [&b"#!/bin/sh\n"[..], b"x", b"\x89OBTR"] {
            std::fs::write(&path, content).unwrap();
            assert_eq!(claim(&path), Err(Error::Taken { path: path.clone() }));
            assert_eq!(std::fs::read(&path).unwrap(), content);
        }
        crate::write(&path, &crate::Trace::default()).unwrap();
        claim(&path).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"");
    }

    #[test]
    fn what_cannot_be_written_is_found_out() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("no/such/folder");
        assert!(matches!(claim(&missing), Err(Error::Io { .. })));
        assert!(matches!(claim(folder.path()), Err(Error::Io { .. })));
        let full = Path::new("/dev/full");
        assert!(claim(full).is_err());
    }

    #[test]
    fn the_first_process_has_the_name_others_their_number() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        claim(&path).unwrap();
        let (_first, at) = open(&path).unwrap();
        assert_eq!(at, path);
        let pid = std::process::id();
        let (second, at) = open(&path).unwrap();
        assert_eq!(at, folder.path().join(format!("a.{pid}")));
        drop(second);
        let (_third, at) = open(&path).unwrap();
        assert_eq!(at, folder.path().join(format!("a.{pid}.2")));
        // In use, so it is not replaced.
        assert!(matches!(claim(&path), Err(Error::Io { .. })));
    }
}
