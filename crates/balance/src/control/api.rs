//! Commands over a Unix socket: one line of JSON there, one back.

use super::question::{Answering, QUESTION_BYTES_MAX, Question};
use crate::config::PlaneTable;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;
use std::time::Duration;

/// Time for each step of an exchange.
const TIME_MAX: Duration = Duration::from_secs(15);

/// Ways to the loop.
pub(super) struct Doors {
    pub(super) answering: Answering,
    pub(super) plane: PlaneTable,
    /// Connections of processes that take over.
    pub(super) takers: Sender<UnixStream>,
}

impl Doors {
    fn hand_over(&self, stream: UnixStream) -> io::Result<()> {
        let gone = |_| io::Error::from(io::ErrorKind::BrokenPipe);
        self.takers.send(stream).map_err(gone)?;
        self.answering.tasks.tell(|_| ());
        Ok(())
    }
}

/// Listens at a path that only this user can open. What an earlier process left there is removed
/// if nobody listens.
pub(super) fn listen(path: &Path) -> io::Result<UnixListener> {
    if let Ok(about) = std::fs::symlink_metadata(path) {
        if !about.file_type().is_socket() {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "there is a file, and it is no socket",
            ));
        }
        if UnixStream::connect(path).is_ok() {
            return Err(io::Error::new(
                io::ErrorKind::AddrInUse,
                "another balancer answers there; run --take-over goes on in its place",
            ));
        }
        std::fs::remove_file(path)?;
    }
    bind(path)
}

/// A socket's path that is removed, unless it replaces another.
pub(super) struct Beside(PathBuf);

impl Beside {
    pub(super) fn replace(self, path: &Path) -> io::Result<()> {
        std::fs::rename(&self.0, path)
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Listens beside a path whose listener is to be replaced.
pub(super) fn listen_beside(path: &Path) -> io::Result<(UnixListener, Beside)> {
    let mut beside = path.as_os_str().to_os_string();
    beside.push(".new");
    let beside = PathBuf::from(beside);
    let _ = std::fs::remove_file(&beside);
    Ok((bind(&beside)?, Beside(beside)))
}

fn bind(path: &Path) -> io::Result<UnixListener> {
    let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
    let listener = UnixListener::bind(path);
    rustix::process::umask(before);
    let listener = listener?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Answers commands, one after the other, for as long as the process lives.
pub(super) fn serve(listener: &UnixListener, doors: &Doors) {
    loop {
        let Ok((stream, _)) = listener.accept() else {
            std::thread::sleep(Duration::from_millis(50));
            continue;
        };
        if let Err(error) = answer(stream, doors) {
            tracing::debug!(%error, "a command without an answer");
        }
    }
}

fn answer(mut stream: UnixStream, doors: &Doors) -> io::Result<()> {
    stream.set_read_timeout(Some(TIME_MAX))?;
    stream.set_write_timeout(Some(TIME_MAX))?;
    let mut line = String::new();
    BufReader::new((&stream).take(QUESTION_BYTES_MAX as u64)).read_line(&mut line)?;
    let answer = match serde_json::from_str(&line) {
        Ok(Question::HandOver { plane }) if plane == doors.plane => {
            return doors.hand_over(stream);
        }
        Ok(question) => doors
            .answering
            .act(question)
            .map_err(|error| error.to_string()),
        Err(error) => Err(format!("not a command: {error}")),
    };
    stream.write_all(&serde_json::to_vec(&answer)?)
}
