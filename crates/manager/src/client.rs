//! Requests to a manager.

use std::{
    fmt,
    io::{self, Read as _, Write as _},
    net::{TcpStream, ToSocketAddrs as _},
    os::fd::{AsFd, BorrowedFd},
    str::FromStr,
    time::{Duration, Instant},
};

use outboard_pool::api::PoolError;
use serde::{Serialize, de::DeserializeOwned};
use thiserror::Error;

use crate::{http, limits};

/// Address of a manager: `http://HOST:PORT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManagerUrl {
    host: String,
    port: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0:?} is no manager's address: http://HOST:PORT")]
pub struct UrlError(String);

/// Reason why a request has no result.
#[derive(Debug, Error)]
pub enum ClientError {
    #[error("the manager at {url} does not answer: {source}")]
    Io { url: ManagerUrl, source: io::Error },
    #[error("{0}")]
    Refused(PoolError),
    #[error("the manager at {url} answers with something else: {why}")]
    Strange { url: ManagerUrl, why: String },
}

/// A connection to a manager, which is made when it is needed.
pub struct Client {
    url: ManagerUrl,
    bearer: Option<String>,
    stream: Option<TcpStream>,
    /// Set while the answer to a request is still to come.
    is_begun: bool,
}

impl FromStr for ManagerUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<ManagerUrl, UrlError> {
        let wrong = || UrlError(text.chars().take(100).collect());
        let rest = text.strip_prefix("http://").ok_or_else(wrong)?;
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = rest.rsplit_once(':').ok_or_else(wrong)?;
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:%".contains(&byte);
        match port.parse() {
            Ok(port) if port > 0 && !bare.is_empty() && bare.bytes().all(is_host) => {
                Ok(ManagerUrl {
                    host: bare.into(),
                    port,
                })
            }
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for ManagerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "http://[{}]:{}", self.host, self.port),
            false => write!(f, "http://{}:{}", self.host, self.port),
        }
    }
}

impl Client {
    pub fn new(url: ManagerUrl, bearer: Option<String>) -> Client {
        Client {
            url,
            bearer,
            stream: None,
            is_begun: false,
        }
    }

    pub fn get<T: DeserializeOwned>(&mut self, path: &str) -> Result<T, ClientError> {
        self.ask("GET", path, b"", Duration::ZERO)
    }

    /// Sends a document. The manager may wait for as long as `waits` before it answers.
    pub fn post<T: DeserializeOwned>(
        &mut self,
        path: &str,
        body: &impl Serialize,
        waits: Duration,
    ) -> Result<T, ClientError> {
        let body = serde_json::to_vec(body).map_err(|error| self.strange(&error.to_string()))?;
        self.ask("POST", path, &body, waits)
    }

    fn ask<T: DeserializeOwned>(
        &mut self,
        method: &str,
        path: &str,
        body: &[u8],
        waits: Duration,
    ) -> Result<T, ClientError> {
        let deadline = Instant::now() + waits + Duration::from_millis(limits::ANSWER_MS_MAX);
        if std::mem::take(&mut self.is_begun) {
            // The next answer would be that of the other request.
            self.stream = None;
        }
        let had_one = self.stream.is_some();
        let mut said = self.exchange(method, path, body, deadline);
        // A connection that was kept may have ended meanwhile. Requests can be repeated.
        if said.is_err() && had_one {
            said = self.exchange(method, path, body, deadline);
        }
        self.document_of(said)
    }

    /// Returns the document of an answer, or the manager's refusal.
    fn document_of<T: DeserializeOwned>(
        &self,
        said: io::Result<(u16, Vec<u8>)>,
    ) -> Result<T, ClientError> {
        let (status, body) = said.map_err(|source| ClientError::Io {
            url: self.url.clone(),
            source,
        })?;
        if status == 200 {
            return serde_json::from_slice(&body).map_err(|error| self.strange(&error.to_string()));
        }
        match serde_json::from_slice(&body) {
            Ok(error) => Err(ClientError::Refused(error)),
            Err(_) => Err(self.strange(&format!("the status {status}"))),
        }
    }

    fn exchange(
        &mut self,
        method: &str,
        path: &str,
        body: &[u8],
        deadline: Instant,
    ) -> io::Result<(u16, Vec<u8>)> {
        // A connection that failed is not used again.
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => self.connect()?,
        };
        let host = format!("{}:{}", self.url.host, self.url.port);
        let request = http::write_request(method, path, &host, self.bearer.as_deref(), body);
        stream.set_write_timeout(Some(left(deadline)?))?;
        stream.write_all(&request)?;
        let answer = read_answer(&mut stream, deadline)?;
        self.stream = Some(stream);
        Ok(answer)
    }

    fn connect(&self) -> io::Result<TcpStream> {
        let timeout = Duration::from_millis(limits::CONNECT_MS_MAX);
        let addresses = (self.url.host.as_str(), self.url.port).to_socket_addrs()?;
        let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
        for address in addresses {
            match TcpStream::connect_timeout(&address, timeout) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    return Ok(stream);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Sends a request whose answer is read by [`finish`](Self::finish), so that the caller can
    /// wait for other things too.
    pub fn begin(&mut self, path: &str, body: &impl Serialize) -> Result<(), ClientError> {
        let sent = self.connect().and_then(|mut stream| {
            let body = serde_json::to_vec(body)?;
            let host = format!("{}:{}", self.url.host, self.url.port);
            let bearer = self.bearer.as_deref();
            let request = http::write_request("POST", path, &host, bearer, &body);
            stream.set_write_timeout(Some(Duration::from_millis(limits::ANSWER_MS_MAX)))?;
            stream.write_all(&request)?;
            Ok(stream)
        });
        match sent {
            Ok(stream) => {
                self.stream = Some(stream);
                self.is_begun = true;
                Ok(())
            }
            Err(source) => Err(ClientError::Io {
                url: self.url.clone(),
                source,
            }),
        }
    }

    /// Returns the connection of the request that was sent.
    pub fn waits_on(&self) -> Option<BorrowedFd<'_>> {
        self.stream.as_ref().map(AsFd::as_fd)
    }

    /// Reads the answer of the request that was sent.
    pub fn finish<T: DeserializeOwned>(&mut self) -> Result<T, ClientError> {
        self.is_begun = false;
        let deadline = Instant::now() + Duration::from_millis(limits::ANSWER_MS_MAX);
        let said = match self.stream.take() {
            Some(mut stream) => read_answer(&mut stream, deadline),
            None => Err(io::ErrorKind::NotConnected.into()),
        };
        self.document_of(said)
    }

    fn strange(&self, why: &str) -> ClientError {
        ClientError::Strange {
            url: self.url.clone(),
            why: why.into(),
        }
    }
}

/// Reads a whole answer: its status and its document.
fn read_answer(stream: &mut TcpStream, deadline: Instant) -> io::Result<(u16, Vec<u8>)> {
    let mut bytes = Vec::new();
    let mut piece = [0; 16 << 10];
    loop {
        stream.set_read_timeout(Some(left(deadline)?))?;
        let count = stream.read(&mut piece)?;
        if count == 0 {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        bytes.extend_from_slice(&piece[..count]);
        if let Some(answer) = http::take_answer(&bytes)? {
            return Ok(answer);
        }
    }
}

fn left(deadline: Instant) -> io::Result<Duration> {
    match deadline.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
        left => Ok(left),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for (text, shown) in [
            ("http://localhost:1", "http://localhost:1"),
            ("http://10.0.0.7:4834/", "http://10.0.0.7:4834"),
            ("http://[::1]:5", "http://[::1]:5"),
        ] {
            assert_eq!(text.parse::<ManagerUrl>().unwrap().to_string(), shown);
        }
        for wrong in [
            "",
            "localhost:1",
            "https://a:1",
            "http://a",
            "http://:1",
            "http://a:0",
            "http://a b:1",
            "http://a:99999",
        ] {
            assert!(wrong.parse::<ManagerUrl>().is_err(), "{wrong}");
        }
    }
}
