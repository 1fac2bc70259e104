//! Health checks: a thread for each backend asks it, and tells the engine.

use super::Tasks;
use super::room::{is_late, read_some, write_all};
use crate::config::{Check, CheckKind, Checked};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};
use tracing::info;

/// Longest beginning of an answer over HTTP that is read.
const ANSWER_BYTES_MAX: usize = 4096;
/// Interval at which a backend's share grows during a slow start.
const STEP: Duration = Duration::from_secs(1);

/// Asks an Outboard server whether it answers; an error says why it does not.
pub type Greet = fn(&str, Duration) -> Result<(), String>;

/// Running checks. They end when this is dropped.
#[derive(Default)]
pub(super) struct Checks(Vec<(Checked, Sender<()>)>);

impl Checks {
    /// Replaces the checks: those that stay the same go on.
    pub(super) fn replace(&mut self, wanted: &[Checked], greet: Greet, tasks: &Tasks) {
        self.0.retain(|(one, _)| wanted.contains(one));
        for one in wanted {
            if self.0.iter().any(|(running, _)| running == one) {
                continue;
            }
            let (end, ended) = channel();
            let (checked, tasks) = (one.clone(), tasks.clone());
            let check = move || follow(&checked, greet, &tasks, &ended);
            let name = "health".to_string();
            match std::thread::Builder::new().name(name).spawn(check) {
                Ok(_) => self.0.push((one.clone(), end)),
                Err(error) => {
                    tracing::error!(%error, backend = %one.backend, "no thread for its check");
                }
            }
        }
    }
}

/// Health of a backend, as its checks told.
struct Health {
    is_up: bool,
    /// Results in a row that differ from `is_up`.
    differing: u32,
    is_first: bool,
    /// It has come back, and starts slowly.
    has_risen: bool,
    since: Instant,
    /// Time of its slow start before `since`.
    started: Duration,
}

impl Health {
    /// A backend is as the engine knows it until its first check, which decides by itself: up, or
    /// as other checks or the process before left it.
    fn new(check: &Check, known: Option<u32>) -> Health {
        Health {
            is_up: known.is_some(),
            differing: 0,
            is_first: true,
            has_risen: known.is_some_and(|share| share < 100),
            since: Instant::now(),
            started: check.slow_start * known.unwrap_or_default().min(100) / 100,
        }
    }

    /// Notes a result. Returns whether the health has changed.
    fn note(&mut self, check: &Check, answers: bool) -> bool {
        let is_first = std::mem::take(&mut self.is_first);
        if answers == self.is_up {
            self.differing = 0;
            return false;
        }
        self.differing += 1;
        let needed = if answers { check.rise } else { check.fall };
        if self.differing < needed && !is_first {
            return false;
        }
        (self.is_up, self.has_risen, self.differing) = (answers, answers, 0);
        (self.since, self.started) = (Instant::now(), Duration::ZERO);
        true
    }

    /// Hundredths of its weight that a backend gets.
    fn share(&self, check: &Check) -> Option<u32> {
        if !self.is_up {
            return None;
        }
        let slow = check.slow_start.as_millis();
        let passed = (self.started + self.since.elapsed()).as_millis();
        if !self.has_risen || passed >= slow {
            return Some(100);
        }
        Some((passed * 100 / slow).clamp(1, 100) as u32)
    }
}

fn follow(checked: &Checked, greet: Greet, tasks: &Tasks, ended: &Receiver<()>) {
    let check = &checked.check;
    let (service, backend) = (checked.service, checked.backend);
    let known = tasks.ask(move |engine| engine.health(&service, backend));
    let mut health = Health::new(check, known.unwrap_or(Some(100)));
    let mut told = None;
    let mut next = Instant::now();
    loop {
        if Instant::now() >= next {
            next = Instant::now() + check.interval;
            let answer = ask(checked, greet);
            if health.note(check, answer.is_ok()) {
                match &answer {
                    Ok(()) => info!(service = checked.name, backend = %checked.backend, "is up"),
                    Err(why) => {
                        info!(service = checked.name, backend = %checked.backend, why, "is down");
                    }
                }
            }
        }
        let share = health.share(check);
        if told != Some(share) {
            told = Some(share);
            tasks.tell(move |engine| engine.set_health(&service, backend, share));
        }
        let grows = share.is_some_and(|share| share < 100);
        let pause = next.saturating_duration_since(Instant::now());
        let pause = if grows { pause.min(STEP) } else { pause };
        if ended.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}

fn ask(checked: &Checked, greet: Greet) -> Result<(), String> {
    let check = &checked.check;
    if check.kind == CheckKind::Outboard {
        return greet(&checked.asked, check.timeout);
    }
    let address = checked.asked.parse::<SocketAddr>();
    let address = address.map_err(|error| format!("{}: {error}", checked.asked))?;
    ask_at(address, check).map_err(|error| match is_late(&error) {
        true => format!("no answer within {} ms", check.timeout.as_millis()),
        false => error.to_string(),
    })
}

fn ask_at(address: SocketAddr, check: &Check) -> io::Result<()> {
    let deadline = Instant::now() + check.timeout;
    let mut stream = TcpStream::connect_timeout(&address, check.timeout)?;
    if check.kind == CheckKind::Tcp {
        return Ok(());
    }
    let path = &check.path;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    write_all(&mut stream, request.as_bytes(), deadline)?;
    let mut answer = Vec::new();
    while answer.len() < ANSWER_BYTES_MAX {
        let mut piece = [0; 512];
        match read_some(&mut stream, &mut piece, deadline)? {
            0 => break,
            count => answer.extend_from_slice(&piece[..count]),
        }
        match status(&answer) {
            Some(200..400) => return Ok(()),
            Some(status) => return Err(io::Error::other(format!("HTTP {status}"))),
            None => {}
        }
    }
    Err(io::Error::other("no answer of HTTP"))
}

/// Returns the status of an answer once its first line is there.
fn status(answer: &[u8]) -> Option<u16> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut response = httparse::Response::new(&mut headers);
    let _ = response.parse(answer);
    response.code.filter(|_| response.reason.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};

    fn check() -> Check {
        Check {
            kind: CheckKind::Tcp,
            interval: Duration::from_millis(10),
            timeout: Duration::from_millis(500),
            rise: 2,
            fall: 3,
            slow_start: Duration::from_secs(3600),
            path: "/".into(),
        }
    }

    #[test]
    fn health_rises_and_falls_after_so_many_in_a_row() {
        let mut health = Health::new(&check(), Some(100));
        let mut changes = |answers: &[bool]| {
            let check = check();
            answers
                .iter()
                .map(|one| health.note(&check, *one))
                .collect::<Vec<_>>()
        };
        assert_eq!(changes(&[false]), [true], "the first decides");
        assert_eq!(
            changes(&[true, false, true, true]),
            [false, false, false, true]
        );
        assert_eq!(changes(&[false, false, true, false, false]), [false; 5]);
        assert_eq!(changes(&[false]), [true]);
    }

    #[test]
    fn a_backend_that_rises_starts_slowly() {
        let mut health = Health::new(&check(), Some(100));
        assert_eq!(health.share(&check()), Some(100));
        assert!(health.note(&check(), false));
        assert_eq!(health.share(&check()), None);
        assert!(!health.note(&check(), true) && health.note(&check(), true));
        assert_eq!(health.share(&check()), Some(1));
        health.started = Duration::from_secs(1800);
        assert_eq!(health.share(&check()), Some(50));
    }

    #[test]
    fn a_slow_start_goes_on_with_the_next_check() {
        let mut health = Health::new(&check(), Some(40));
        assert_eq!(health.share(&check()), Some(40));
        assert!(!health.note(&check(), true), "it is up already");
        assert_eq!(health.share(&check()), Some(40));
        // One that was down has its slow start before it.
        let mut health = Health::new(&check(), None);
        assert_eq!(health.share(&check()), None);
        assert!(health.note(&check(), true), "the first decides");
        assert_eq!(health.share(&check()), Some(1));
    }

    #[test]
    fn servers_are_asked_over_http() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        let answers = [
            "HTTP/1.1 204 No Content\r\n\r\n",
            "HTTP/1.1 503 Busy\r\n\r\n",
            "nonsense",
            "",
        ];
        let serve = move || {
            for answer in answers {
                let (mut stream, _) = listener.accept().expect("a connection");
                let mut request = [0; 256];
                let count = stream.read(&mut request).expect("a request");
                assert!(request[..count].starts_with(b"GET /health HTTP/1.1\r\n"));
                stream.write_all(answer.as_bytes()).expect("sent");
            }
        };
        let server = std::thread::spawn(serve);
        let checked = Checked {
            name: "a".into(),
            service: (address, 6),
            backend: address,
            asked: address.to_string(),
            check: Check {
                kind: CheckKind::Http,
                path: "/health".into(),
                ..check()
            },
        };
        let ask = || super::ask(&checked, |_, _| Ok(()));
        assert_eq!(ask(), Ok(()));
        assert_eq!(ask(), Err("HTTP 503".into()));
        assert!(ask().is_err() && ask().is_err());
        server.join().expect("served");
        assert!(ask().is_err(), "nobody listens");
    }

    #[test]
    fn a_server_that_is_silent_is_said_to_be_so() {
        let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = silent.local_addr().expect("its address");
        let checked = Checked {
            name: "a".into(),
            service: (address, 6),
            backend: address,
            asked: address.to_string(),
            check: Check {
                kind: CheckKind::Http,
                timeout: Duration::from_millis(50),
                ..check()
            },
        };
        let asked = super::ask(&checked, |_, _| Ok(()));
        assert_eq!(asked, Err("no answer within 50 ms".into()));
    }
}
