//! Chooses the file of a process: FILE for the first, FILE.PID for the others of a program.

use std::{
    ffi::OsString,
    fs::{File, OpenOptions},
    io::{self, Read},
    os::fd::AsRawFd as _,
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
    let mut file = outboard_files::open_with(&mut options, path).map_err(io_error)?;
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
    match outboard_files::open(path)?.read_exact(&mut head) {
        Ok(()) => Ok(head == MAGIC),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// A process's own file.
pub(crate) struct Place {
    pub(crate) file: File,
    pub(crate) path: PathBuf,
    /// True if the file asked for has contents that no process is writing: an older recording, or
    /// anything.
    pub(crate) is_beside: bool,
}

/// Opens a file for this process alone. It is locked while it is open.
pub(crate) fn open(path: &Path) -> Result<Place, Error> {
    let is_beside = match open_asked(path)? {
        Asked::Free(file) => {
            return Ok(Place {
                file,
                path: path.into(),
                is_beside: false,
            });
        }
        Asked::BeingWritten => false,
        Asked::Full => true,
    };
    let pid = std::process::id();
    for number in 1..=PLACES_MAX {
        let mut name: OsString = path.as_os_str().to_owned();
        name.push(format!(".{pid}"));
        // A process may execute another program, and a pid may come again.
        if number > 1 {
            name.push(format!(".{number}"));
        }
        match OpenOptions::new().write(true).create_new(true).open(&name) {
            Ok(file) => {
                return Ok(Place {
                    file: above_standard(file),
                    path: name.into(),
                    is_beside,
                });
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(Error::io(Path::new(&name), &error)),
        }
    }
    Err(Error::Taken { path: path.into() })
}

/// The file that was asked for.
enum Asked {
    /// Empty, and locked for this process now.
    Free(File),
    BeingWritten,
    Full,
}

fn open_asked(path: &Path) -> Result<Asked, Error> {
    let io_error = |error: io::Error| Error::io(path, &error);
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    let file = above_standard(outboard_files::open_with(&mut options, path).map_err(io_error)?);
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Ok(Asked::BeingWritten);
    }
    Ok(match file.metadata().map_err(io_error)?.len() {
        0 => Asked::Free(file),
        _ => Asked::Full,
    })
}

/// Moves the file away from the numbers of standard input, output and error: a program that was
/// started without them would print into it.
fn above_standard(file: File) -> File {
    match file.as_raw_fd() {
        0..=2 => rustix::io::fcntl_dupfd_cloexec(&file, 3).map_or(file, File::from),
        _ => file,
    }
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
        let first = open(&path).unwrap();
        assert_eq!((&first.path, first.is_beside), (&path, false));
        let pid = std::process::id();
        let second = open(&path).unwrap();
        let named = folder.path().join(format!("a.{pid}"));
        assert_eq!((second.path, second.is_beside), (named, false));
        drop(second.file);
        let third = open(&path).unwrap();
        assert_eq!(third.path, folder.path().join(format!("a.{pid}.2")));
        // In use, so it is not replaced.
        assert!(matches!(claim(&path), Err(Error::Io { .. })));
    }

    #[test]
    fn a_file_that_was_there_before_is_told_of() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        std::fs::write(&path, "of the program").unwrap();
        let place = open(&path).unwrap();
        let named = folder.path().join(format!("a.{}", std::process::id()));
        assert_eq!((place.path, place.is_beside), (named, true));
        assert_eq!(std::fs::read(&path).unwrap(), b"of the program");
    }
}
