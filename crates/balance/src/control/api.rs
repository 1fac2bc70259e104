//! Commands over a Unix socket: one line of JSON there, one back.

use super::question::{Answering, QUESTION_BYTES_MAX, Question};
use super::room::{self, is_late, read_some, write_all};
use crate::config::PlaneTable;
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Time for a question to come, for its answer to go, and for the rest of a question that is
/// refused before it has come whole.
const QUESTION_MAX: Duration = Duration::from_secs(5);
const ANSWER_MAX: Duration = Duration::from_secs(15);
const REST_MAX: Duration = Duration::from_millis(500);
/// Time for another process to find out who listens, and between two looks whether it has.
const TURN_MAX: Duration = Duration::from_secs(2);
const TURN_PAUSE: Duration = Duration::from_millis(5);
/// Answer to a connection that makes room for newer ones.
const TOO_MANY: &[u8] = br#"{"Err":"more connections than places: newer ones were served first"}"#;

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
    let _turn = turn(path)?;
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

/// Waits for the lock of a path, a file beside it that stays: of two that start at once, the second
/// finds the first, and does not remove its socket.
fn turn(path: &Path) -> io::Result<OwnedFd> {
    let mut beside = path.as_os_str().to_os_string();
    beside.push(".lock");
    let mut options = File::options();
    let options = options.write(true).create(true).mode(0o600);
    let file: OwnedFd = outboard_files::open_with(options, Path::new(&beside))?.into();
    let deadline = Instant::now() + TURN_MAX;
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => sleep(TURN_PAUSE),
            Err(Errno::WOULDBLOCK) => {
                let message = "another balancer has been starting there for seconds";
                return Err(io::Error::new(io::ErrorKind::AddrInUse, message));
            }
            Err(error) => return Err(error.into()),
        }
    }
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

/// Answers commands for as long as the process lives.
pub(super) fn serve(listener: &UnixListener, doors: Doors) {
    let accept = || listener.accept().map(|(stream, _)| stream);
    room::serve("api", TOO_MANY, accept, move |stream, came| {
        answer(stream, &doors, came)
    });
}

fn answer(mut stream: UnixStream, doors: &Doors, came: &dyn Fn() -> bool) -> io::Result<()> {
    let line = read_line(&mut stream, Instant::now() + QUESTION_MAX)?;
    if !came() {
        return Ok(());
    }
    let is_whole = line.is_ok();
    let question = line.and_then(|line| {
        serde_json::from_slice(&line).map_err(|error| format!("not a command: {error}"))
    });
    let answer = match question {
        Ok(Question::HandOver { plane }) if plane == doors.plane => {
            return doors.hand_over(stream);
        }
        Ok(question) => doors
            .answering
            .act(question)
            .map_err(|error| error.to_string()),
        Err(why) => Err(why),
    };
    let end = Instant::now() + ANSWER_MAX;
    write_all(&mut stream, &serde_json::to_vec(&answer)?, end)?;
    match is_whole {
        true => Ok(()),
        false => room::read_rest(&mut stream, REST_MAX),
    }
}

/// Reads a question up to the end of its line or of the stream; an error inside says what is wrong.
fn read_line(stream: &mut UnixStream, end: Instant) -> io::Result<Result<Vec<u8>, String>> {
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') {
        if line.len() >= QUESTION_BYTES_MAX {
            return Ok(Err("not a command: longer than 1 MiB".into()));
        }
        let mut piece = [0; 4096];
        match read_some(stream, &mut piece, end) {
            Ok(0) => break,
            Ok(count) => line.extend_from_slice(&piece[..count]),
            Err(error) if is_late(&error) => {
                let what = format!("no whole line within {} s", QUESTION_MAX.as_secs());
                return Ok(Err(what));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(Ok(line))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Tasks;
    use crate::control::links::Interfaces;
    use std::io::{Read as _, Write as _};
    use std::sync::{Arc, mpsc::channel};

    #[test]
    fn those_that_are_silent_keep_no_command_waiting() {
        let folder = std::env::temp_dir().join(format!("api-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let path = folder.join("api");
        let listener = listen(&path).expect("a socket");
        let (_, wake) = std::io::pipe().expect("a pipe");
        let doors = Doors {
            answering: Answering {
                interfaces: Interfaces::default(),
                tasks: Tasks {
                    sender: channel().0,
                    wake: Arc::new(wake.into()),
                },
                reload: Arc::new(|| Err("as it was".into())),
            },
            plane: PlaneTable::default(),
            takers: channel().0,
        };
        std::thread::spawn(move || serve(&listener, doors));
        let connect = || UnixStream::connect(&path).expect("connected");
        let mut silent: Vec<_> = (0..100).map(|_| connect()).collect();
        let begin = Instant::now();
        for (question, part) in [
            (&b"\"reload\"\n"[..], "as it was"),
            (b"\xff\xfe\n", "not a command"),
            (b"7\n", "not a command"),
        ] {
            let mut stream = connect();
            stream.write_all(question).expect("sent");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).expect("an answer");
            assert!(answer.contains(part), "{answer}");
        }
        assert!(begin.elapsed() < QUESTION_MAX / 2);
        let mut answer = String::new();
        silent[0].read_to_string(&mut answer).expect("an answer");
        assert!(answer.contains("more connections than places"), "{answer}");
        std::fs::remove_dir_all(&folder).expect("removed");
    }

    #[test]
    fn of_those_that_start_at_once_one_listens() {
        let folder = std::env::temp_dir().join(format!("api-at-once-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        for round in 0..50 {
            let path = folder.join(format!("{round}"));
            // A balancer that was killed has left its socket.
            drop(bind(&path).expect("a socket"));
            let together = std::sync::Barrier::new(4);
            let start = || {
                together.wait();
                listen(&path)
            };
            let listeners: Vec<_> = std::thread::scope(|scope| {
                let starting: Vec<_> = (0..4).map(|_| scope.spawn(start)).collect();
                let ended = starting.into_iter().map(|one| one.join().expect("ended"));
                ended.filter_map(Result::ok).collect()
            });
            assert_eq!(listeners.len(), 1);
            assert!(UnixStream::connect(&path).is_ok());
        }
        std::fs::remove_dir_all(&folder).expect("removed");
    }
}
