//! Commands, declared once: the Unix socket takes them as JSON, HTTP as a method, a path and the
//! fields as query or body.

use super::links::Interfaces;
use super::status::{Flow, Health, Status};
use super::{NoAnswer, Tasks};
use crate::config::PlaneTable;
use crate::engine::{Frame, Phase};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

/// Longest command.
pub const QUESTION_BYTES_MAX: usize = 1 << 20;
pub(super) const FLOWS_MAX: usize = 100_000;
/// Frames that one command may have explained.
pub const FRAMES_MAX: usize = 1000;

/// Doors at which a command is answered over HTTP; the Unix socket answers all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Door {
    /// GET, at the addresses for metrics and for control.
    Open,
    /// GET, at the address for control.
    Get,
    /// POST, at the address for control.
    Post,
    /// Nowhere over HTTP.
    Socket,
}

macro_rules! questions {
    ($($(#[$doc:meta])* $path:literal $door:ident $name:ident $({ $($fields:tt)* })?,)*) => {
        /// A command.
        #[derive(Debug, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub enum Question {
            $($(#[$doc])* #[serde(rename = $path)] $name $({ $($fields)* })?,)*
        }

        /// Names of all commands, and their doors.
        pub(super) const DOORS: &[(&str, Door)] = &[$(($path, Door::$door)),*];
    };
}

questions! {
    "status" Open Status,
    /// Says if each service has a backend for new clients.
    "health" Open Health,
    "flows" Get Flows {
        #[serde(default = "flows_default")]
        limit: usize,
        #[serde(default)]
        phase: Option<Phase>,
    },
    /// Drains a backend, or ends that.
    "drain" Post Drain {
        backend: SocketAddr,
        #[serde(default = "yes")]
        drain: bool,
    },
    /// Explains frames that come in at a port, each by lines.
    "explain" Post Explain {
        frames: Vec<Bytes>,
        #[serde(default)]
        port: u16,
    },
    /// Reads the configuration again.
    "reload" Post Reload,
    /// Hands data plane and connections over to the process that asks, if its plane is the same.
    "hand-over" Socket HandOver { plane: PlaneTable },
}

fn flows_default() -> usize {
    1000
}

fn yes() -> bool {
    true
}

/// Bytes, as hexadecimal digits with blanks and colons between them where one likes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bytes(pub Vec<u8>);

impl FromStr for Bytes {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Bytes, &'static str> {
        let digit = |one: u8| char::from(one).to_digit(16);
        let is_between = |one: &u8| one.is_ascii_whitespace() || *one == b':';
        let digits: Option<Vec<u32>> = text
            .bytes()
            .filter(|one| !is_between(one))
            .map(digit)
            .collect();
        let digits = digits.filter(|digits| digits.len() % 2 == 0);
        let digits = digits.ok_or("the packet is not whole bytes in hexadecimal")?;
        let byte = |pair: &[u32]| (pair[0] << 4 | pair[1]) as u8;
        Ok(Bytes(digits.chunks_exact(2).map(byte).collect()))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Bytes, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map_err(de::Error::custom)
    }
}

/// Reads the configuration again; an error says why it stays as it was.
pub(super) type Reload = std::sync::Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Those that answer commands.
#[derive(Clone)]
pub(super) struct Answering {
    pub(super) interfaces: Interfaces,
    pub(super) tasks: Tasks,
    pub(super) reload: Reload,
}

/// Why a command is not carried out.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error(transparent)]
    Busy(#[from] NoAnswer),
    #[error("{0}")]
    Refused(String),
    /// Of a question that means nothing here.
    #[error("{0}")]
    Wrong(String),
}

impl Answering {
    pub(super) fn status(&self) -> Result<Status, NoAnswer> {
        let mut status = self.tasks.ask(|engine| Status::of(engine))?;
        status.interfaces_gone = self.interfaces.gone();
        Ok(status)
    }

    pub(super) fn act(&self, question: Question) -> Result<serde_json::Value, Refusal> {
        let tasks = &self.tasks;
        match question {
            Question::Status => json(&self.status()?),
            Question::Health => {
                let mut health = tasks.ask(|engine| Health::of(engine))?;
                health.interfaces_gone = self.interfaces.gone();
                health.healthy &= health.interfaces_gone.is_empty();
                json(&health)
            }
            Question::Drain { backend, drain } => {
                match tasks.ask(move |engine| engine.drain(backend, drain))? {
                    0 => Err(Refusal::Refused(format!("{backend} is no backend"))),
                    drained => json(&drained),
                }
            }
            Question::Flows { limit, phase } => {
                let flows = tasks.ask(move |engine| {
                    let wanted = engine
                        .connections()
                        .filter(|one| phase.is_none_or(|p| p == one.phase));
                    // The loop passes no frames meanwhile: what can wait is done here.
                    let wanted = wanted.take(limit.min(FLOWS_MAX));
                    wanted.cloned().collect::<Vec<_>>()
                });
                json(&flows?.iter().map(Flow::of).collect::<Vec<_>>())
            }
            Question::Explain { frames, .. } if frames.len() > FRAMES_MAX => {
                let what = format!("{} frames; {FRAMES_MAX} at most", frames.len());
                Err(Refusal::Refused(what))
            }
            Question::Explain { frames, port } => {
                let explained = tasks.ask(move |engine| {
                    let ports = engine.ports().len();
                    if usize::from(port) >= ports {
                        return Err(Refusal::Wrong(format!(
                            "no port {port}: there are {ports}, counted from 0, by the order of \
                             interfaces in the file"
                        )));
                    }
                    let explain = |Bytes(bytes)| {
                        engine.explain(&Frame {
                            bytes,
                            port,
                            ..Frame::default()
                        })
                    };
                    Ok(frames.into_iter().map(explain).collect::<Vec<_>>())
                });
                json(&explained??)
            }
            Question::Reload => {
                (self.reload)().map_err(Refusal::Refused)?;
                Ok(serde_json::Value::Null)
            }
            Question::HandOver { .. } => Err(Refusal::Refused(
                "the running balancer has another [plane], so it cannot hand its own over".into(),
            )),
        }
    }
}

fn json<T: Serialize>(answer: &T) -> Result<serde_json::Value, Refusal> {
    serde_json::to_value(answer).map_err(|error| Refusal::Refused(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read_from_digits_and_written_as_such() {
        let bytes: Bytes = "45 00:fF".parse().expect("three");
        assert_eq!(bytes, Bytes(vec![0x45, 0, 0xff]));
        assert_eq!(bytes.to_string(), "4500ff");
        for wrong in ["4", "4g", "+1", "456", "é"] {
            assert!(wrong.parse::<Bytes>().is_err(), "{wrong}");
        }
    }
}
