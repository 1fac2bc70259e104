//! Opens files that a user has named. A pipe, a device, a socket or a folder in the place of a file
//! is an error at once: opening or reading one could wait, or yield bytes, without end.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
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

/// How an output gets to its path.
#[derive(Debug, PartialEq, Eq)]
pub enum Output {
    /// It is written to what is there by [`open_stream`]: a pipe, a device, a file by its
    /// descriptor.
    Stream,
    /// It takes the place of the file at this path, whose last name is no link, or becomes one.
    Replaces(PathBuf),
}

/// Most links between a path and its file, as Linux has it.
const LINKS_MAX: usize = 40;

/// Returns how an output gets to a path. What a symbolic link leads to is replaced, and the link
/// stays.
pub fn output(path: &Path) -> io::Result<Output> {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        let folder = match path.parent() {
            Some(parent) if parent != Path::new("") => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        // A file there is an open one: renaming would not reach who has it open.
        if folder.canonicalize()?.starts_with("/proc") {
            return Ok(Output::Stream);
        }
        match path.symlink_metadata() {
            Ok(there) if there.is_symlink() => path = folder.join(path.read_link()?),
            Ok(there) if !there.is_file() => return Ok(Output::Stream),
            Ok(_) => return Ok(Output::Replaces(path)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Output::Replaces(path));
            }
            Err(error) => return Err(error),
        }
    }
    Err(Errno::LOOP.into())
}

/// Opens what exists, and is no file of its own, to write into it, after what is there: a pipe that
/// somebody reads, a device, standard output by its path.
pub fn open_stream(path: &Path) -> io::Result<File> {
    let file = match open_at_once(OpenOptions::new().append(true), path) {
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
    use std::{
        fs,
        io::Write as _,
        os::unix::{fs::symlink, net::UnixListener},
        path::PathBuf,
    };

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
    fn an_output_replaces_what_links_lead_to() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("file"), "").unwrap();
        fs::create_dir(at("below")).unwrap();
        symlink("below/other", at("link")).unwrap();
        symlink("../file", at("below/other")).unwrap();
        symlink("missing", at("dangling")).unwrap();
        symlink("/proc/self/fd/1", at("out")).unwrap();
        symlink("circle", at("circle")).unwrap();
        let replaces = |path| Output::Replaces(path);
        assert_eq!(output(&at("file")).unwrap(), replaces(at("file")));
        let through = output(&at("link")).unwrap();
        assert_eq!(through, replaces(at("below").join("../file")));
        assert_eq!(output(&at("dangling")).unwrap(), replaces(at("missing")));
        assert_eq!(output(&at("new")).unwrap(), replaces(at("new")));
        for stream in [
            at("out"),
            at("below"),
            "/dev/null".into(),
            "/dev/fd/1".into(),
        ] {
            assert_eq!(output(&stream).unwrap(), Output::Stream, "{stream:?}");
        }
        assert!(output(&at("circle")).is_err());
        let nowhere = output(&at("nowhere").join("file")).unwrap_err();
        assert_eq!(nowhere.kind(), io::ErrorKind::NotFound);
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
