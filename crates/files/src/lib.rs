//! Opens files that a user has named. A pipe, a device, a socket or a folder in the place of a file
//! is an error at once: opening or reading one could wait, or yield bytes, without end.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use rustix::{fs::OFlags, io::Errno};

/// Opens a file to be read.
pub fn open(path: &Path) -> io::Result<File> {
    open_with(OpenOptions::new().read(true), path)
}

/// Opens a file in the way of `options`, which must not truncate it.
pub fn open_with(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let file = match open_at_once(options, path) {
        Err(error) if has_no_other_end(&error) => return Err(no_file()),
        opened => opened?,
    };
    let kind = file.metadata()?.file_type();
    match kind.is_file() {
        true => Ok(file),
        false if kind.is_dir() => Err(Errno::ISDIR.into()),
        false => Err(no_file()),
    }
}

/// Reads a text of at most `bytes_max` bytes.
pub fn read_text(path: &Path, bytes_max: u64) -> io::Result<String> {
    text_of(open(path)?, bytes_max)
}

/// Reads the rest of an open file as a text of at most `bytes_max` bytes.
pub fn text_of(file: File, bytes_max: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        let text = format!("it has more than {bytes_max} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
    }
    let not_text = |_| io::Error::new(io::ErrorKind::InvalidData, "it is not text (UTF-8)");
    String::from_utf8(bytes).map_err(not_text)
}

/// Opens what exists, and is no file, to write into it: a pipe that somebody reads, a device.
pub fn open_stream(path: &Path) -> io::Result<File> {
    let file = match open_at_once(OpenOptions::new().write(true), path) {
        Err(error) if has_no_other_end(&error) => {
            return Err(io::Error::other("nobody reads this pipe"));
        }
        opened => opened?,
    };
    // From here on a full pipe is waited for.
    let flags = rustix::fs::fcntl_getfl(&file)?;
    rustix::fs::fcntl_setfl(&file, flags - OFlags::NONBLOCK)?;
    Ok(file)
}

/// Returns whether the error says that the path leads to something other than a file.
pub fn is_no_file(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::InvalidInput | io::ErrorKind::IsADirectory
    )
}

/// Opens without waiting for the other end of a pipe.
fn open_at_once(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
    options.custom_flags(flags).open(path)
}

/// Returns whether opening failed because of a socket, or of a pipe that nobody reads.
fn has_no_other_end(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::NXIO.raw_os_error())
}

fn no_file() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "this is no file")
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Write as _, os::unix::net::UnixListener, path::PathBuf};

    use super::*;

    fn pipe_in(folder: &Path) -> PathBuf {
        let path = folder.join("pipe");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        path
    }

    #[test]
    fn what_is_no_file_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = pipe_in(folder.path());
        let socket = folder.path().join("socket");
        let _listener = UnixListener::bind(&socket).unwrap();
        let ways: [fn(&mut OpenOptions) -> &mut OpenOptions; 3] = [
            |options| options.read(true),
            |options| options.write(true),
            |options| options.append(true).create(true),
        ];
        for way in ways {
            for path in [&pipe, &socket, Path::new("/dev/zero"), folder.path()] {
                let error = open_with(way(&mut OpenOptions::new()), path).unwrap_err();
                assert!(is_no_file(&error), "{}: {error}", path.display());
            }
        }
        let missing = open(&folder.path().join("none")).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        assert!(!is_no_file(&missing));
    }

    #[test]
    fn a_text_has_a_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        fs::write(&path, "four").unwrap();
        assert_eq!(read_text(&path, 4).unwrap(), "four");
        let said = read_text(&path, 3).unwrap_err().to_string();
        assert!(said.contains("more than 3 bytes"), "{said}");
        fs::write(&path, [0xff]).unwrap();
        let said = read_text(&path, 4).unwrap_err().to_string();
        assert!(said.contains("not text"), "{said}");
    }

    #[test]
    fn a_pipe_is_written_if_somebody_reads_it() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = pipe_in(folder.path());
        let said = open_stream(&pipe).unwrap_err().to_string();
        assert!(said.contains("nobody reads"), "{said}");
        let mut reader = open_at_once(OpenOptions::new().read(true), &pipe).unwrap();
        open_stream(&pipe).unwrap().write_all(b"all").unwrap();
        let mut read = String::new();
        reader.read_to_string(&mut read).unwrap();
        assert_eq!(read, "all");
    }
}
