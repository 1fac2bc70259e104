//! The state file: a dump is written beside it and renamed, so it is whole or as it was, wherever
//! the process or the machine ends.

use crate::engine::Engine;
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tracing::warn;

/// Longest dump that is taken over from a running balancer.
pub(super) const STATE_BYTES_MAX: u64 = 16 << 30;
/// Longest state file that is read, beside a share for each connection that there is room for.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// A connection has fewer bytes in a dump.
const CONNECTION_BYTES_MAX: u64 = 192;

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
    let options = options.write(true).create(true).mode(0o600);
    let mut file = outboard_files::open_with(options, path)?;
    file.set_len(0)?;
    file.write_all(dump)?;
    file.sync_all()
}

/// A state file that no other balancer uses meanwhile: it would write over what this one wrote. A
/// file beside it has the lock, and stays. A successor gets the lock by the file's descriptor.
#[derive(Debug)]
pub(super) struct Lock {
    state: PathBuf,
    file: OwnedFd,
}

impl Lock {
    pub(super) fn take(state: &Path) -> io::Result<Lock> {
        let state = std::path::absolute(state)?;
        let mut beside = state.as_os_str().to_os_string();
        beside.push(".lock");
        let mut options = File::options();
        let options = options.write(true).create(true).mode(0o600);
        let file: OwnedFd = outboard_files::open_with(options, Path::new(&beside))?.into();
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Lock { state, file }),
            Err(Errno::WOULDBLOCK) => Err(io::Error::new(
                io::ErrorKind::AddrInUse,
                "another balancer keeps its connections there; run --take-over goes on in its place",
            )),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes the lock that another process has handed over with its state file's path.
    pub(super) fn adopt(state: PathBuf, file: OwnedFd) -> Lock {
        Lock { state, file }
    }

    pub(super) fn parts(&self) -> (&Path, BorrowedFd<'_>) {
        (&self.state, self.file.as_fd())
    }

    /// Returns the lock of a file, which is this one or has to be free.
    pub(super) fn or_of(this: Option<Lock>, state: &Path) -> io::Result<Lock> {
        let path = std::path::absolute(state)?;
        match this {
            Some(lock) if lock.state == path => Ok(lock),
            _ => Lock::take(state),
        }
    }
}

/// Reads the file of a table with room for `connections_max`; `None` if there is none. It goes
/// into memory whole, so its length has a limit.
pub(super) fn read(path: &Path, connections_max: usize) -> io::Result<Option<Vec<u8>>> {
    let file = match outboard_files::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let longest = FILE_BYTES_MAX + CONNECTION_BYTES_MAX * connections_max as u64;
    let mut dump = Vec::new();
    if file.metadata()?.len() <= longest {
        // It may grow while it is read.
        file.take(longest + 1).read_to_end(&mut dump)?;
        if dump.len() as u64 <= longest {
            return Ok(Some(dump));
        }
    }
    let what = format!("it has more than {longest} bytes, which limits.connections allows for");
    Err(io::Error::new(io::ErrorKind::FileTooLarge, what))
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
        assert_eq!(read(&path, 1).expect("read"), Some(b"first".to_vec()));
        fs::remove_dir_all(&folder).expect("removed");
    }

    #[test]
    fn a_state_file_is_one_balancer_s_until_that_and_its_successor_end() {
        let folder = std::env::temp_dir().join(format!("locked-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let path = folder.join("state");
        let first = Lock::take(&path).expect("free");
        let error = Lock::take(&path).expect_err("taken").to_string();
        assert!(error.contains("another balancer"), "{error}");
        let (state, file) = first.parts();
        let next = Lock::adopt(state.into(), file.try_clone_to_owned().expect("a number"));
        drop(first);
        assert!(Lock::take(&path).is_err());
        let next = Lock::or_of(Some(next), &path).expect("its own");
        Lock::or_of(None, &path).expect_err("taken");
        let other = Lock::or_of(Some(next), &folder.join("other")).expect("free");
        Lock::take(&path).expect("free again");
        drop(other);
        fs::remove_dir_all(&folder).expect("removed");
    }

    #[test]
    fn what_is_no_file_or_too_long_is_no_state() {
        let folder = std::env::temp_dir().join(format!("no-state-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let path = folder.join("state");
        std::os::unix::fs::symlink("/dev/zero", &path).expect("a link");
        let error = read(&path, 1).expect_err("endless").to_string();
        assert!(error.contains("no file"), "{error}");
        fs::remove_file(&path).expect("removed");
        assert_eq!(read(&path, 1).expect("none"), None);
        let file = File::create(&path).expect("a file");
        file.set_len(FILE_BYTES_MAX + 2 * CONNECTION_BYTES_MAX)
            .expect("holes");
        let error = read(&path, 1).expect_err("too long").to_string();
        assert!(error.contains("limits.connections"), "{error}");
        let pipe = folder.join("state.new");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0)
            .expect("a pipe");
        assert!(write(&path, b"first").is_err(), "nobody reads that pipe");
        fs::remove_dir_all(&folder).expect("removed");
    }
}
