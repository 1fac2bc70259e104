//! The state file: a dump is written beside it and renamed, so it is whole or as it was, wherever
//! the process or the machine ends.

use crate::engine::Engine;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tracing::warn;

/// Longest state file that is read.
pub(super) const STATE_BYTES_MAX: u64 = 16 << 30;

pub(super) fn write(path: &Path, dump: &[u8]) -> io::Result<()> {
    let mut beside = path.as_os_str().to_os_string();
    beside.push(".new");
    let beside = PathBuf::from(beside);
    let written = write_new(&beside, dump).and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        // On a full disk it would keep what others need.
        let _ = fs::remove_file(&beside);
        return written;
    }
    let folder = path.parent().filter(|one| !one.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

fn write_new(path: &Path, dump: &[u8]) -> io::Result<()> {
    // Who is connected to what is nobody else's business.
    let mut options = File::options();
    let options = options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(path)?;
    file.write_all(dump)?;
    file.sync_all()
}

/// Reads the file; `None` if there is none.
pub(super) fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
        Ok(about) if about.len() > STATE_BYTES_MAX => Err(io::ErrorKind::FileTooLarge.into()),
        Ok(_) => fs::read(path).map(Some),
    }
}

/// Dumps while frames pass. They are written by a thread: a disk that is slow stops no frames.
pub(super) struct Dumps {
    path: PathBuf,
    every: Duration,
    next: Instant,
    writing: Option<JoinHandle<()>>,
}

impl Dumps {
    pub(super) fn new(path: &Path, every: Duration) -> Dumps {
        Dumps {
            path: path.to_path_buf(),
            every,
            next: Instant::now() + every,
            writing: None,
        }
    }

    /// Begins a dump if it is time for one, and the one before is written.
    pub(super) fn dump(&mut self, engine: &Engine) {
        if Instant::now() < self.next || self.is_writing() {
            return;
        }
        self.next = Instant::now() + self.every;
        let (path, dump) = (self.path.clone(), engine.dump_meanwhile());
        let write = move || {
            if let Err(error) = write(&path, &dump) {
                warn!(%error, path = %path.display(), "connections are not written down");
            }
        };
        let thread = std::thread::Builder::new().name("dump".into());
        match thread.spawn(write) {
            Ok(thread) => self.writing = Some(thread),
            Err(error) => warn!(%error, "no thread to write connections down"),
        }
    }

    pub(super) fn is_writing(&self) -> bool {
        self.writing.as_ref().is_some_and(|one| !one.is_finished())
    }

    /// Waits for the dump that is being written: two at once would spoil each other.
    pub(super) fn finish(&mut self) {
        // A panic of the writer has been reported, and leaves the file as it was.
        let _ = self.writing.take().map(JoinHandle::join);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dump_that_cannot_be_written_leaves_the_one_before() {
        let folder = std::env::temp_dir().join(format!("state-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let path = folder.join("state");
        write(&path, b"first").expect("written");
        // What is beside it cannot be replaced by a file.
        fs::create_dir(folder.join("state.new")).expect("a folder");
        assert!(write(&path, b"second").is_err());
        assert_eq!(read(&path).expect("read"), Some(b"first".to_vec()));
        fs::remove_dir_all(&folder).expect("removed");
    }
}
