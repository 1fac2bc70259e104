//! Commands over a Unix socket: one line of JSON there, one back.

use super::status::{Flow, Status};
use super::{NoAnswer, Tasks};
use crate::config::PlaneTable;
use crate::engine::{Frame, Phase};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;
use std::time::Duration;

/// Longest line.
const QUESTION_BYTES_MAX: u64 = 1 << 20;
const TIME_MAX: Duration = Duration::from_secs(15);
pub const FLOWS_MAX: usize = 100_000;

/// A command.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Question {
    Status,
    /// Drains a backend, or ends that.
    Drain {
        backend: SocketAddr,
        drain: bool,
    },
    Flows {
        limit: usize,
        phase: Option<Phase>,
    },
    /// Explains frames that come in at a port, each by lines.
    Explain {
        frames: Vec<Vec<u8>>,
        port: u16,
    },
    /// Reads the configuration again.
    Reload,
    /// Hands data plane and connections over to the process that asks, if its plane is the same.
    HandOver {
        plane: PlaneTable,
    },
}

/// Reads the configuration again; an error says why it stays as it was.
pub(super) type Reload = std::sync::Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Ways to the loop.
pub(super) struct Doors {
    pub(super) tasks: Tasks,
    pub(super) reload: Reload,
    pub(super) plane: PlaneTable,
    /// Connections of processes that take over.
    pub(super) takers: Sender<UnixStream>,
}

impl Doors {
    fn hand_over(&self, stream: UnixStream) -> io::Result<()> {
        let gone = |_| io::Error::from(io::ErrorKind::BrokenPipe);
        self.takers.send(stream).map_err(gone)?;
        self.tasks.tell(|_| ());
        Ok(())
    }
}

/// Why a command has no answer.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    #[error("{}: {source}; is outboard balance running there?", path.display())]
    Connect { path: PathBuf, source: io::Error },
    #[error("the balancer's socket: {0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Refused(String),
    #[error("an answer that is not understood: {0}")]
    Answer(#[from] serde_json::Error),
}

/// Connects to a running balancer, and sends it a question.
pub(super) fn open(path: &Path, question: &Question) -> Result<UnixStream, ApiError> {
    let mut stream = UnixStream::connect(path).map_err(|source| ApiError::Connect {
        path: path.to_path_buf(),
        source,
    })?;
    stream.set_read_timeout(Some(TIME_MAX))?;
    stream.set_write_timeout(Some(TIME_MAX))?;
    let mut line = serde_json::to_vec(question)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    Ok(stream)
}

/// Asks a running balancer.
pub fn ask<T: DeserializeOwned>(path: &Path, question: &Question) -> Result<T, ApiError> {
    let mut stream = open(path, question)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let answer: Result<serde_json::Value, String> = serde_json::from_str(&answer)?;
    Ok(serde_json::from_value(answer.map_err(ApiError::Refused)?)?)
}

/// Listens at a path that only this user can open. What an earlier process left there is removed
/// if nobody listens.
pub(super) fn listen(path: &Path) -> io::Result<UnixListener> {
    if let Ok(about) = std::fs::symlink_metadata(path) {
        if !about.file_type().is_socket() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        if UnixStream::connect(path).is_ok() {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        std::fs::remove_file(path)?;
    }
    bind(path)
}

/// Listens at a path in place of whoever listens there.
pub(super) fn listen_instead(path: &Path) -> io::Result<UnixListener> {
    let mut beside = path.as_os_str().to_os_string();
    beside.push(".new");
    let beside = PathBuf::from(beside);
    let _ = std::fs::remove_file(&beside);
    let listener = bind(&beside)?;
    std::fs::rename(&beside, path)?;
    Ok(listener)
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
    BufReader::new((&stream).take(QUESTION_BYTES_MAX)).read_line(&mut line)?;
    let answer = match serde_json::from_str(&line) {
        Ok(Question::HandOver { plane }) if plane == doors.plane => {
            return doors.hand_over(stream);
        }
        Ok(question) => act(question, &doors.tasks, &doors.reload),
        Err(error) => Err(format!("not a command: {error}")),
    };
    stream.write_all(&serde_json::to_vec(&answer)?)
}

fn act(question: Question, tasks: &Tasks, reload: &Reload) -> Result<serde_json::Value, String> {
    match question {
        Question::Status => json(tasks.ask(|engine| Status::of(engine))),
        Question::Drain { backend, drain } => {
            match tasks.ask(move |engine| engine.drain(backend, drain)) {
                Ok(0) => Err(format!("{backend} is no backend")),
                drained => json(drained),
            }
        }
        Question::Flows { limit, phase } => json(tasks.ask(move |engine| {
            let wanted = engine
                .connections()
                .filter(|one| phase.is_none_or(|p| p == one.phase));
            wanted
                .take(limit.min(FLOWS_MAX))
                .map(Flow::of)
                .collect::<Vec<_>>()
        })),
        Question::Explain { frames, port } => json(tasks.ask(move |engine| {
            let explain = |bytes| {
                engine.explain(&Frame {
                    bytes,
                    port,
                    ..Frame::default()
                })
            };
            frames.into_iter().map(explain).collect::<Vec<_>>()
        })),
        Question::Reload => reload().map(|()| serde_json::Value::Null),
        Question::HandOver { .. } => {
            Err("the running balancer has another [plane], so it cannot hand its own over".into())
        }
    }
}

fn json<T: Serialize>(answer: Result<T, NoAnswer>) -> Result<serde_json::Value, String> {
    let answer = answer.map_err(|error| error.to_string())?;
    serde_json::to_value(answer).map_err(|error| error.to_string())
}
