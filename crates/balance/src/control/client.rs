//! Asking a running balancer: at its socket for commands, or over HTTP.

use super::question::{DOORS, Door, Question};
use super::room::is_late;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time for each step of an exchange.
const TIME_MAX: Duration = Duration::from_secs(15);
const ANSWER_BYTES_MAX: u64 = 256 << 20;
const HEADERS_MAX: usize = 64;

/// A running balancer, as its user reaches it.
#[derive(Clone, Debug)]
pub enum Api {
    Socket(PathBuf),
    Http { address: SocketAddr, token: String },
}

/// Why a command has no answer.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    #[error("{at}: {why}; is outboard balance running there?")]
    Connect { at: String, why: io::Error },
    #[error("the balancer: {0}")]
    Io(io::Error),
    #[error("the balancer: no answer within {} ms", .0.as_millis())]
    Late(Duration),
    #[error("{0}")]
    Refused(String),
    #[error("an answer that is not understood: {0}")]
    Answer(#[from] serde_json::Error),
}

impl From<io::Error> for ApiError {
    fn from(error: io::Error) -> ApiError {
        match is_late(&error) {
            true => ApiError::Late(TIME_MAX),
            false => ApiError::Io(error),
        }
    }
}

/// Connects to a running balancer, and sends it a question.
pub(super) fn open(path: &Path, question: &Question) -> Result<UnixStream, ApiError> {
    let mut stream = UnixStream::connect(path).map_err(|why| ApiError::Connect {
        at: path.display().to_string(),
        why,
    })?;
    stream.set_read_timeout(Some(TIME_MAX))?;
    stream.set_write_timeout(Some(TIME_MAX))?;
    let mut line = serde_json::to_vec(question)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    Ok(stream)
}

impl Api {
    /// Asks the balancer.
    pub fn ask<T: DeserializeOwned>(&self, question: &Question) -> Result<T, ApiError> {
        let answer = match self {
            Api::Socket(path) => {
                let mut answer = String::new();
                open(path, question)?.read_to_string(&mut answer)?;
                let answer: Result<serde_json::Value, String> = serde_json::from_str(&answer)?;
                answer.map_err(ApiError::Refused)?
            }
            Api::Http { address, token } => ask_over_http(*address, token, question)?,
        };
        Ok(serde_json::from_value(answer)?)
    }
}

/// Asks a running balancer at its address for control.
fn ask_over_http(address: SocketAddr, token: &str, question: &Question) -> Result<Value, ApiError> {
    let connect = |why| ApiError::Connect {
        at: format!("http://{address}"),
        why,
    };
    let mut stream = TcpStream::connect_timeout(&address, TIME_MAX).map_err(connect)?;
    stream.set_read_timeout(Some(TIME_MAX))?;
    stream.set_write_timeout(Some(TIME_MAX))?;
    stream.write_all(&request_of(address, token, question)?)?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut headers);
    let head = match response.parse(&answer) {
        Ok(httparse::Status::Complete(head)) => head,
        _ => return Err(io::Error::from(io::ErrorKind::InvalidData).into()),
    };
    let value: Value = serde_json::from_slice(&answer[head..])?;
    match (response.code, value["error"].as_str()) {
        (Some(200), _) => Ok(value),
        (_, Some(why)) => Err(ApiError::Refused(why.into())),
        // A health that is bad is an answer, too.
        (_, None) => Ok(value),
    }
}

pub(super) fn request_of(
    address: SocketAddr,
    token: &str,
    question: &Question,
) -> serde_json::Result<Vec<u8>> {
    let (name, fields) = match serde_json::to_value(question)? {
        Value::Object(tagged) => tagged.into_iter().next().unwrap_or_default(),
        Value::String(name) => (name, Value::Object(Map::new())),
        _ => Default::default(),
    };
    let is_post = DOORS.contains(&(&name, Door::Post));
    let (method, query, body) = match fields {
        fields if is_post => ("POST", String::new(), fields.to_string()),
        Value::Object(fields) => {
            let set = fields.iter().filter(|(_, value)| !value.is_null());
            let pair = |(name, value): (&String, &Value)| match value.as_str() {
                Some(text) => format!("{name}={text}"),
                None => format!("{name}={value}"),
            };
            let pairs: Vec<_> = set.map(pair).collect();
            ("GET", format!("?{}", pairs.join("&")), String::new())
        }
        _ => ("GET", String::new(), String::new()),
    };
    Ok(format!(
        "{method} /{name}{query} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
    .into_bytes())
}
