//! Requests to a manager.

use std::{
    fmt,
    io::{self, Read as _, Write as _},
    net::{TcpStream, ToSocketAddrs as _},
    os::fd::{AsFd, BorrowedFd},
    path::PathBuf,
    str::FromStr,
    time::{Duration, Instant},
};

use outboard_pool::api::PoolError;
use outboard_trust::{Authorities, CertificateFileError, Expected, Fingerprint, Secured, TlsError};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use thiserror::Error;

use crate::{http, limits, operations::Operation};

/// Address of a manager: `http://HOST:PORT`, or `https://HOST:PORT`, where `?fingerprint=...` may
/// follow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManagerUrl {
    host: String,
    port: u16,
    security: Security,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Security {
    Plain,
    /// The manager has a certificate of the host.
    Certificate,
    /// The manager has this key.
    Key(Fingerprint),
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "{0:?} is no manager's address: http://HOST:PORT or https://HOST:PORT, where ?fingerprint=sha256:... may follow https"
)]
pub struct UrlError(String);

const NOT_ENCRYPTED: &str = "whatever listens there does not encrypt; a manager without --tls has an address of http://, and prints it when it starts";

/// Addresses of a pool's managers, one of which leads: one address, or several with commas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManagerUrls(Vec<ManagerUrl>);

/// Reason why a request has no result.
#[derive(Debug, Error)]
pub enum ClientError {
    #[error("the manager at {url} does not answer: {source}")]
    Io { url: ManagerUrl, source: io::Error },
    #[error("the manager at {url}: {source}")]
    Untrusted { url: ManagerUrl, source: io::Error },
    #[error("{0}")]
    Refused(PoolError),
    #[error("the manager at {url} answers with something else: {why}")]
    Strange { url: ManagerUrl, why: String },
}

/// A connection to the manager that leads, which is made when it is needed.
pub struct Client {
    urls: ManagerUrls,
    /// Place of the manager that is asked.
    at: usize,
    bearer: Option<String>,
    /// File of the authorities of managers' certificates; None: those of the system.
    ca: Option<PathBuf>,
    stream: Option<Channel>,
    /// Set while the answer to a request is still to come.
    is_begun: bool,
}

/// A connection, which is encrypted or not.
struct Channel {
    socket: TcpStream,
    tls: Option<Secured>,
}

impl FromStr for ManagerUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<ManagerUrl, UrlError> {
        let wrong = || UrlError(text.chars().take(100).collect());
        let (rest, security) = match (text.strip_prefix("http://"), text.strip_prefix("https://")) {
            (Some(rest), _) => (rest, Security::Plain),
            (_, Some(rest)) => match rest.split_once("?fingerprint=") {
                None => (rest, Security::Certificate),
                Some((rest, pin)) => (rest, Security::Key(pin.parse().map_err(|_| wrong())?)),
            },
            _ => return Err(wrong()),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = rest.rsplit_once(':').ok_or_else(wrong)?;
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:%".contains(&byte);
        match port.parse() {
            Ok(port) if port > 0 && !bare.is_empty() && bare.bytes().all(is_host) => {
                Ok(ManagerUrl {
                    host: bare.into(),
                    port,
                    security,
                })
            }
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for ManagerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.security {
            Security::Plain => "http",
            Security::Certificate | Security::Key(_) => "https",
        };
        match self.host.contains(':') {
            true => write!(f, "{scheme}://[{}]:{}", self.host, self.port)?,
            false => write!(f, "{scheme}://{}:{}", self.host, self.port)?,
        }
        match self.security {
            Security::Key(pin) => write!(f, "?fingerprint={pin}"),
            Security::Plain | Security::Certificate => Ok(()),
        }
    }
}

impl FromStr for ManagerUrls {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<ManagerUrls, UrlError> {
        let urls: Vec<ManagerUrl> = text.split(',').map(str::parse).collect::<Result<_, _>>()?;
        match urls.len() <= limits::MANAGERS_MAX {
            true => Ok(ManagerUrls(urls)),
            false => Err(UrlError(text.chars().take(100).collect())),
        }
    }
}

impl ManagerUrls {
    /// Returns each address alone.
    pub(crate) fn each(&self) -> impl Iterator<Item = ManagerUrls> {
        self.0.iter().cloned().map(ManagerUrls::from)
    }
}

impl From<ManagerUrl> for ManagerUrls {
    fn from(url: ManagerUrl) -> ManagerUrls {
        ManagerUrls(vec![url])
    }
}

impl fmt::Display for ManagerUrls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let urls: Vec<String> = self.0.iter().map(ManagerUrl::to_string).collect();
        f.write_str(&urls.join(","))
    }
}

impl Client {
    /// Connects later. The file of authorities is for managers with certificates; without it these
    /// are the system's.
    pub fn new(urls: ManagerUrls, bearer: Option<String>, ca: Option<PathBuf>) -> Client {
        Client {
            urls,
            at: 0,
            bearer,
            ca,
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
        loop {
            let one = match self.urls.0.len() {
                1 => deadline,
                _ => deadline
                    .min(Instant::now() + waits + Duration::from_millis(limits::CONNECT_MS_MAX)),
            };
            let had_one = self.stream.is_some();
            let mut said = self.exchange(method, path, body, one);
            // A connection that was kept may have ended meanwhile. Requests can be repeated.
            if said.is_err() && had_one {
                said = self.exchange(method, path, body, one);
            }
            let said = self.document_of(said);
            if !self.turn_after(&said) || Instant::now() >= deadline {
                return said;
            }
        }
    }

    /// Turns to the next manager if this one does not lead. Returns whether it did.
    fn turn_after<T>(&mut self, said: &Result<T, ClientError>) -> bool {
        let leads_not = matches!(
            said,
            Err(ClientError::Io { .. }
                | ClientError::Refused(PoolError::Elsewhere(_) | PoolError::NotNow(_)))
        );
        if !leads_not || self.urls.0.len() == 1 {
            return false;
        }
        self.stream = None;
        self.at = (self.at + 1) % self.urls.0.len();
        if self.at == 0 {
            std::thread::sleep(Duration::from_millis(limits::STORE_RETRY_MS));
        }
        true
    }

    pub(crate) fn url(&self) -> &ManagerUrl {
        &self.urls.0[self.at]
    }

    /// Sends a request once. Returns the status and the body.
    pub(crate) fn raw(
        &mut self,
        path: &str,
        body: &[u8],
        deadline: Instant,
    ) -> io::Result<(u16, Vec<u8>)> {
        self.exchange("POST", path, body, deadline)
    }

    /// Sends a request on a connection of its own, and hands each piece of its answer to `take`
    /// until that says that it has enough, or the answer ends.
    pub(crate) fn stream(
        &mut self,
        path: &str,
        body: &[u8],
        deadline: Instant,
        take: &mut dyn FnMut(&[u8]) -> bool,
    ) -> io::Result<()> {
        let mut stream = self.connect()?;
        stream.send(&self.request("POST", path, body), deadline)?;
        let mut bytes = Vec::new();
        loop {
            stream.receive(&mut bytes, deadline)?;
            let (data, is_whole) = http::begun_answer(&bytes)?;
            if take(&data) || is_whole {
                return Ok(());
            }
        }
    }

    fn request(&self, method: &str, path: &str, body: &[u8]) -> Vec<u8> {
        let url = self.url();
        let host = format!("{}:{}", url.host, url.port);
        http::write_request(method, path, &host, self.bearer.as_deref(), body)
    }

    /// Returns the document of an answer, or the manager's refusal.
    fn document_of<T: DeserializeOwned>(
        &self,
        said: io::Result<(u16, Vec<u8>)>,
    ) -> Result<T, ClientError> {
        let (status, body) = said.map_err(|source| self.failed(source))?;
        if status == 200 {
            return serde_json::from_slice(&body).map_err(|error| self.strange(&error.to_string()));
        }
        let said = serde_json::from_slice(&body).map(printable);
        match said.and_then(serde_json::from_value) {
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
        stream.send(&self.request(method, path, body), deadline)?;
        let answer = read_answer(&mut stream, deadline)?;
        self.stream = Some(stream);
        Ok(answer)
    }

    fn connect(&self) -> io::Result<Channel> {
        let tls = self.expected()?.map(|server| Secured::client(&server));
        let tls = tls.transpose().map_err(io::Error::other)?;
        let socket = self.connect_socket()?;
        let mut channel = Channel { socket, tls };
        if self.urls.0.len() > 1 {
            self.check_leads(&mut channel)?;
        }
        Ok(channel)
    }

    /// Asks one of several managers whether it leads: one that is stopped accepts connections, too.
    fn check_leads(&self, channel: &mut Channel) -> io::Result<()> {
        let deadline = Instant::now() + Duration::from_millis(limits::LEADS_MS_MAX);
        channel.send(
            &self.request("GET", &Operation::Leader.path(&[]), b""),
            deadline,
        )?;
        match read_answer(channel, deadline)? {
            // A token that is wrong is reported by the request itself.
            (200 | 401 | 403, _) => Ok(()),
            _ => Err(io::Error::other("another manager leads")),
        }
    }

    /// Returns the manager that is expected, if the connection is to be encrypted.
    fn expected(&self) -> io::Result<Option<Expected>> {
        match self.url().security {
            Security::Plain => Ok(None),
            Security::Key(pin) => Ok(Some(Expected::Key(pin))),
            Security::Certificate => {
                let authorities = match &self.ca {
                    Some(file) => Authorities::read(file),
                    None => Authorities::of_system(),
                };
                let authorities = authorities.map_err(io::Error::other)?;
                let expected = Expected::of_host(&self.url().host, authorities);
                expected.map(Some).map_err(io::Error::other)
            }
        }
    }

    fn connect_socket(&self) -> io::Result<TcpStream> {
        let timeout = Duration::from_millis(limits::CONNECT_MS_MAX);
        let addresses = (self.url().host.as_str(), self.url().port).to_socket_addrs()?;
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
            let request = self.request("POST", path, &serde_json::to_vec(body)?);
            let deadline = Instant::now() + Duration::from_millis(limits::ANSWER_MS_MAX);
            stream.send(&request, deadline)?;
            Ok(stream)
        });
        match sent {
            Ok(stream) => {
                self.stream = Some(stream);
                self.is_begun = true;
                Ok(())
            }
            Err(source) => {
                let said = Err(self.failed(source));
                self.turn_after(&said);
                said
            }
        }
    }

    /// Returns the connection of the request that was sent.
    pub fn waits_on(&self) -> Option<BorrowedFd<'_>> {
        self.stream.as_ref().map(|stream| stream.socket.as_fd())
    }

    /// Reads the answer of the request that was sent.
    pub fn finish<T: DeserializeOwned>(&mut self) -> Result<T, ClientError> {
        self.is_begun = false;
        let deadline = Instant::now() + Duration::from_millis(limits::ANSWER_MS_MAX);
        let said = match self.stream.take() {
            Some(mut stream) => read_answer(&mut stream, deadline),
            None => Err(io::ErrorKind::NotConnected.into()),
        };
        let said = self.document_of(said);
        self.turn_after(&said);
        said
    }

    /// Returns whether there is another manager to ask.
    pub fn has_others(&self) -> bool {
        self.urls.0.len() > 1
    }

    /// Waits no longer for the answer of the request that was sent: the next one is sent to another
    /// manager, if there are several.
    pub fn give_up<T>(&mut self) -> Result<T, ClientError> {
        self.is_begun = false;
        self.stream = None;
        let said = Err(self.failed(io::ErrorKind::TimedOut.into()));
        self.turn_after(&said);
        said
    }

    fn failed(&self, source: io::Error) -> ClientError {
        let url = self.url().clone();
        let source = timed_out(source);
        let inner = source.get_ref();
        match inner.is_some_and(|it| it.is::<TlsError>() || it.is::<CertificateFileError>()) {
            true => ClientError::Untrusted { url, source },
            false => ClientError::Io { url, source },
        }
    }

    fn strange(&self, why: &str) -> ClientError {
        ClientError::Strange {
            url: self.url().clone(),
            why: why.into(),
        }
    }
}

impl Channel {
    /// Sends a request, after the handshake if there was none.
    fn send(&mut self, request: &[u8], deadline: Instant) -> io::Result<()> {
        self.socket.set_write_timeout(Some(left(deadline)?))?;
        let Some(tls) = &mut self.tls else {
            return self.socket.write_all(request);
        };
        tls.send(request).map_err(io::Error::other)?;
        loop {
            let Some(tls) = &mut self.tls else {
                return Ok(());
            };
            self.socket.write_all(&tls.take_output())?;
            if !tls.is_handshaking() {
                return Ok(());
            }
            self.receive(&mut Vec::new(), deadline)?;
        }
    }

    /// Appends what comes next.
    fn receive(&mut self, bytes: &mut Vec<u8>, deadline: Instant) -> io::Result<()> {
        let mut piece = [0; 16 << 10];
        let count = loop {
            self.socket.set_read_timeout(Some(left(deadline)?))?;
            match self.socket.read(&mut piece) {
                // A process that was stopped and goes on: the time is not over.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                said => break said?,
            }
        };
        let Some(tls) = &mut self.tls else {
            bytes.extend_from_slice(&piece[..count]);
            return match count {
                0 => Err(io::ErrorKind::ConnectionReset.into()),
                _ => Ok(()),
            };
        };
        // A server that does not encrypt hangs up, or answers that this is no request.
        let is_plain = count == 0 || piece.starts_with(b"HTTP/");
        if tls.is_handshaking() && is_plain {
            return Err(io::Error::other(NOT_ENCRYPTED));
        }
        if count == 0 {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        if let Err(error) = tls.receive(&piece[..count], bytes) {
            // The alert tells the manager why.
            let _ = self.socket.write_all(&tls.take_output());
            return Err(io::Error::other(error));
        }
        Ok(())
    }
}

/// Reads a whole answer: its status and its document.
fn read_answer(stream: &mut Channel, deadline: Instant) -> io::Result<(u16, Vec<u8>)> {
    let mut bytes = Vec::new();
    loop {
        stream.receive(&mut bytes, deadline)?;
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

/// Names a timeout: a socket says of its own that it would block.
pub(crate) fn timed_out(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            io::Error::new(io::ErrorKind::TimedOut, "no answer in time")
        }
        _ => error,
    }
}

/// Returns a refusal whose texts control no terminal: who answers may not be the manager.
fn printable(said: Value) -> Value {
    let plain = |letter: char| match letter.is_control() {
        true => '\u{fffd}',
        false => letter,
    };
    match said {
        Value::String(text) => Value::String(text.chars().map(plain).collect()),
        Value::Object(fields) => {
            let fields = fields.into_iter();
            Value::Object(fields.map(|(name, of)| (name, printable(of))).collect())
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Says that it leads, once, and no more.
    fn leads_and_stops() -> ManagerUrl {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = [0; 4_096];
            assert!(stream.read(&mut asked).unwrap() > 0);
            let said = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
            stream.write_all(said).unwrap();
            while stream.read(&mut asked).unwrap_or(0) > 0 {}
        });
        url.parse().unwrap()
    }

    #[test]
    fn a_manager_that_is_given_up_is_not_asked_again_at_once() {
        let urls = ManagerUrls(vec![leads_and_stops(), leads_and_stops()]);
        let mut client = Client::new(urls.clone(), None, None);
        let body = serde_json::json!({});
        for url in &urls.0 {
            client.begin("/v1/boxes/report", &body).unwrap();
            assert_eq!(client.url(), url);
            let said = client.give_up::<serde_json::Value>();
            let error = said.expect_err("nothing was said");
            let late = format!("{url} does not answer: no answer in time");
            assert!(error.to_string().contains(&late), "{error}");
        }
        assert_eq!(client.url(), &urls.0[0]);
    }

    #[test]
    fn addresses() {
        let pinned = format!("https://[::1]:5?fingerprint=sha256:{}", "7".repeat(64));
        for (text, shown) in [
            ("http://localhost:1", "http://localhost:1"),
            ("http://10.0.0.7:4834/", "http://10.0.0.7:4834"),
            ("http://[::1]:5", "http://[::1]:5"),
            ("https://pool.example:7/", "https://pool.example:7"),
            (pinned.as_str(), pinned.as_str()),
        ] {
            assert_eq!(text.parse::<ManagerUrl>().unwrap().to_string(), shown);
        }
        for wrong in [
            "",
            "localhost:1",
            "ftp://a:1",
            "https://a:1?fingerprint=sha256:7",
            "https://a:1?ca=b",
            "http://a:1?fingerprint=sha256:",
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
