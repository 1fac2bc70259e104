//! The exporter: a process of the server's that answers HTTP requests for its metrics. It asks the
//! supervisor as the worker of a status query does, so the supervisor reads no stranger's bytes.
//! [`Exporter`] is the supervisor's end: it starts the process, again if it has failed.

use std::{
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    process::Child,
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use outboard_wire::doc::{StatusAnswer, StatusQuestion, from_bytes};
use tracing::{debug, warn};

use super::{admission::Report, control::Control, limits, metrics, status};

/// The supervisor's end of the process.
pub(super) struct Exporter {
    listener: TcpListener,
    process: Option<(Child, Control)>,
    /// Earliest start of the process.
    next_at: Instant,
}

impl Exporter {
    /// Answers requests that come to `listener`.
    pub(super) fn new(listener: TcpListener) -> Exporter {
        Exporter {
            listener,
            process: None,
            next_at: Instant::now(),
        }
    }

    pub(super) fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    pub(super) fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    pub(super) fn control(&self) -> Option<&Control> {
        self.process.as_ref().map(|(_, control)| control)
    }

    /// Returns when to act even if nothing is heard.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.process.is_none().then_some(self.next_at)
    }

    /// Starts the process if it does not run.
    pub(super) fn refill(
        &mut self,
        start: impl FnOnce(BorrowedFd<'_>) -> io::Result<(Child, Control)>,
    ) {
        if self.process.is_some() || self.next_at > Instant::now() {
            return;
        }
        match start(self.listener.as_fd()) {
            Ok(process) => self.process = Some(process),
            Err(error) => self.back_off(&error.to_string()),
        }
    }

    /// Answers what the process asks.
    pub(super) fn hear(&mut self, answer: impl FnOnce(StatusQuestion) -> StatusAnswer) {
        let Some((child, control)) = &mut self.process else {
            return;
        };
        let heard = match control.receive() {
            Ok(Some((Report::Asks(question), _))) => status::answer(control, &answer(question)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
            Ok(_) => Err(io::ErrorKind::NotConnected.into()),
        };
        if let Err(error) = heard {
            let _ = child.kill().and_then(|()| child.wait());
            self.process = None;
            self.back_off(&error.to_string());
        }
    }

    pub(super) fn end(&mut self) {
        if let Some((mut child, _)) = self.process.take() {
            let _ = child.kill().and_then(|()| child.wait());
        }
    }

    fn back_off(&mut self, why: &str) {
        warn!(
            why,
            "the process that answers for metrics failed; it starts again"
        );
        self.next_at = Instant::now() + Duration::from_millis(limits::METRICS_RETRY_MS);
    }
}

/// Serves until the supervisor has gone. Each of a few threads has one connection at a time.
pub(super) fn serve(control: Control, listener: OwnedFd) -> io::Result<()> {
    let listener = TcpListener::from(listener);
    let control = Mutex::new(control);
    thread::scope(|scope| {
        let serve = || serve_in_turn(&control, &listener);
        for _ in 1..limits::METRICS_CONNECTIONS_MAX {
            // With fewer threads, requests wait for each other.
            let _ = thread::Builder::new().spawn_scoped(scope, serve);
        }
        serve();
    });
    Ok(())
}

fn serve_in_turn(control: &Mutex<Control>, listener: &TcpListener) {
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) => {
                debug!(%error, "no connection for metrics");
                thread::sleep(Duration::from_millis(limits::PAUSE_MS));
                continue;
            }
        };
        if let Err(error) = answer(control, stream) {
            debug!(%error, "a request for metrics that has no answer");
        }
    }
}

/// Answers one request, within a time limit.
fn answer(control: &Mutex<Control>, mut stream: TcpStream) -> io::Result<()> {
    let deadline = Instant::now() + Duration::from_millis(limits::METRICS_MS_MAX);
    let (code, body) = match asked_path(&mut stream, deadline)? {
        Some(path) if path == "/metrics" => ("200 OK", text(control)?),
        Some(_) => ("404 Not Found", "the metrics are at /metrics\n".into()),
        None => ("400 Bad Request", "GET /metrics\n".into()),
    };
    let head = format!(
        "HTTP/1.1 {code}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.set_write_timeout(Some(left(deadline)?))?;
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}

/// Reads a request. Returns its path; `None` for what is no GET request.
fn asked_path(stream: &mut TcpStream, deadline: Instant) -> io::Result<Option<String>> {
    let mut bytes = [0; limits::METRICS_REQUEST_BYTES_MAX];
    let mut len = 0;
    loop {
        stream.set_read_timeout(Some(left(deadline)?))?;
        match stream.read(&mut bytes[len..])? {
            0 => return Ok(None),
            count => len += count,
        }
        let mut headers = [httparse::EMPTY_HEADER; limits::METRICS_HEADERS_MAX];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(&bytes[..len]) {
            Ok(httparse::Status::Complete(_)) => {
                let path = request.path.filter(|_| request.method == Some("GET"));
                return Ok(path.map(String::from));
            }
            Ok(httparse::Status::Partial) if len < bytes.len() => {}
            _ => return Ok(None),
        }
    }
}

fn left(deadline: Instant) -> io::Result<Duration> {
    match deadline.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
        left => Ok(left),
    }
}

fn text(control: &Mutex<Control>) -> io::Result<String> {
    let control = control.lock().unwrap_or_else(PoisonError::into_inner);
    let document = status::ask(&control, StatusQuestion::Now)?;
    match from_bytes(&document).map_err(io::Error::other)? {
        StatusAnswer::Now(status) => Ok(metrics::exposition(&status)),
        _ => Err(io::Error::other("no status")),
    }
}
