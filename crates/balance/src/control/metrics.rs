//! Metrics for Prometheus, and the status as JSON, over HTTP.

use super::Tasks;
use super::status::{BackendStatus, Status};
use std::fmt::Write as _;
use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Time for one request.
const REQUEST_MAX: Duration = Duration::from_secs(5);
const REQUEST_BYTES_MAX: usize = 8192;
const HEADERS_MAX: usize = 64;

/// Answers requests, one after the other, for as long as the process lives.
pub(super) fn serve(listener: &TcpListener, tasks: &Tasks) {
    loop {
        let Ok((stream, _)) = listener.accept() else {
            std::thread::sleep(Duration::from_millis(50));
            continue;
        };
        if let Err(error) = answer(stream, tasks) {
            tracing::debug!(%error, "a request for metrics without an answer");
        }
    }
}

fn answer(mut stream: TcpStream, tasks: &Tasks) -> io::Result<()> {
    let deadline = Instant::now() + REQUEST_MAX;
    let path = asked_path(&mut stream, deadline)?;
    let status = || {
        tasks
            .ask(|engine| Status::of(engine))
            .map_err(io::Error::other)
    };
    let (code, kind, body) = match path.as_deref() {
        Some("/metrics") => (
            "200 OK",
            "text/plain; version=0.0.4; charset=utf-8",
            exposition(&status()?),
        ),
        Some("/status") => (
            "200 OK",
            "application/json",
            serde_json::to_string(&status()?)?,
        ),
        Some(_) => (
            "404 Not Found",
            "text/plain",
            "/metrics and /status are here\n".into(),
        ),
        None => ("400 Bad Request", "text/plain", "GET /metrics\n".into()),
    };
    let head = format!(
        "HTTP/1.1 {code}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.set_write_timeout(Some(REQUEST_MAX))?;
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}

/// Reads a request. Returns its path; `None` for what is no GET request.
fn asked_path(stream: &mut TcpStream, deadline: Instant) -> io::Result<Option<String>> {
    let mut bytes = [0; REQUEST_BYTES_MAX];
    let mut length = 0;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut bytes[length..])? {
            0 => return Ok(None),
            count => length += count,
        }
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(&bytes[..length]) {
            Ok(httparse::Status::Complete(_)) => {
                let path = request.path.filter(|_| request.method == Some("GET"));
                return Ok(path.map(String::from));
            }
            Ok(httparse::Status::Partial) if length < bytes.len() => {}
            _ => return Ok(None),
        }
    }
}

struct Text(String);

impl Text {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "# HELP outboard_balance_{name} {help}");
        let _ = writeln!(self.0, "# TYPE outboard_balance_{name} {kind}");
    }

    fn value(&mut self, name: &str, labels: &[(&str, &str)], value: u64) {
        let labels: Vec<_> = labels
            .iter()
            .map(|(label, text)| {
                let text = text
                    .replace('\\', "\\\\")
                    .replace('"', "\\\"")
                    .replace('\n', "\\n");
                format!("{label}=\"{text}\"")
            })
            .collect();
        let labels = if labels.is_empty() {
            String::new()
        } else {
            format!("{{{}}}", labels.join(","))
        };
        let _ = writeln!(self.0, "outboard_balance_{name}{labels} {value}");
    }
}

/// Writes the status in Prometheus' text format.
fn exposition(status: &Status) -> String {
    let mut text = Text(String::new());
    add_totals(&mut text, status);
    for (name, help, values) in [
        ("packets_total", "Packets sent on", status.packets),
        ("bytes_total", "Bytes sent on", status.bytes),
    ] {
        text.family(name, "counter", help);
        text.value(name, &[("from", "client")], values[0]);
        text.value(name, &[("from", "backend")], values[1]);
    }
    text.family("dropped_total", "counter", "Frames not sent on, by reason");
    for (reason, count) in &status.dropped {
        text.value("dropped_total", &[("reason", reason)], *count);
    }
    add_backends(&mut text, status);
    text.0
}

fn add_totals(text: &mut Text, status: &Status) {
    let gauges = [
        ("connections", "Open connections", status.connections),
        (
            "half_open_connections",
            "Connections not confirmed yet",
            status.half_open,
        ),
        (
            "fragmented_packets",
            "Packets of which fragments are due",
            status.fragmented,
        ),
    ];
    for (name, help, value) in gauges {
        text.family(name, "gauge", help);
        text.value(name, &[], value as u64);
    }
    let evicted = status.half_open_evicted;
    let completed = status.checksums_completed;
    let counters = [
        ("opened_total", "Connections opened", status.opened),
        ("expired_total", "Connections over by time", status.expired),
        (
            "half_open_evicted_total",
            "Half-open connections that made room",
            evicted,
        ),
        (
            "icmp_errors_total",
            "ICMP errors translated",
            status.icmp_errors,
        ),
        ("fragments_total", "Fragments sent on", status.fragments),
        (
            "answered_total",
            "Echoes and neighbours' questions answered",
            status.answered,
        ),
        (
            "checksums_completed_total",
            "Checksums filled in that a host left out",
            completed,
        ),
    ];
    for (name, help, value) in counters {
        text.family(name, "counter", help);
        text.value(name, &[], value);
    }
}

fn add_backends(text: &mut Text, status: &Status) {
    type Of = fn(&BackendStatus) -> u64;
    let families: [(&str, &str, &str, Of); 4] = [
        (
            "backend_connections",
            "gauge",
            "Open connections of a backend",
            |one| one.connections,
        ),
        (
            "backend_opened_total",
            "counter",
            "Connections opened to a backend",
            |one| one.opened,
        ),
        (
            "backend_up",
            "gauge",
            "1 if the backend's checks succeed",
            |one| one.is_up.into(),
        ),
        (
            "backend_draining",
            "gauge",
            "1 if the backend is drained",
            |one| one.is_drained.into(),
        ),
    ];
    for (name, kind, help, of) in families {
        text.family(name, kind, help);
        for service in &status.services {
            for one in &service.backends {
                let labels = [("service", &*service.name), ("backend", &*one.address)];
                text.value(name, &labels, of(one));
            }
        }
    }
}
