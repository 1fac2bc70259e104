//! Commands and metrics over HTTP/1.1, one request a connection.
//!
//! Requests are bounded in size, time and number at once. A connection that has not sent its
//! request makes room for a newer one, so slow senders keep nobody waiting.

use super::metrics;
use super::question::{Answering, DOORS, Door, QUESTION_BYTES_MAX, Question, Refusal};
use super::room::{self, is_late, read_some, write_all};
use serde_json::{Map, Value};
use std::io;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Time for a request to come, and for its answer to go.
const TIME_MAX: Duration = Duration::from_secs(3);
/// Time for the rest of a request that is refused before it has come whole.
const REST_MAX: Duration = Duration::from_millis(500);
const HEAD_BYTES_MAX: usize = 8192;
const HEADERS_MAX: usize = 64;
/// Answer to a connection that makes room for newer ones.
const TOO_MANY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n\
    Content-Length: 71\r\nConnection: close\r\n\r\n\
    {\"error\":\"more connections than places: newer ones were served first\"}\n";
/// Connections that one answer shows at most.
const FLOWS_MAX: usize = 10_000;
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
const JSON: &str = "application/json";

/// Those who may ask at an address.
#[derive(Clone)]
pub(super) enum Access {
    /// All, for what [`Door::Open`] has.
    Open,
    /// Holders of a token, for everything. The hash is compared in constant time.
    Token(blake3::Hash),
}

impl Access {
    pub(super) fn token(token: &str) -> Access {
        Access::Token(blake3::hash(token.as_bytes()))
    }
}

/// Answers requests for as long as the process lives.
pub(super) fn serve(listener: &TcpListener, access: &Access, answering: &Answering) {
    let (access, answering) = (access.clone(), answering.clone());
    let accept = || listener.accept().map(|(stream, _)| stream);
    room::serve("http", TOO_MANY, accept, move |stream, came| {
        answer(stream, &access, &answering, came)
    });
}

/// Status and body of an answer.
struct Answer {
    code: u16,
    kind: &'static str,
    body: String,
}

impl Answer {
    fn json(code: u16, value: &Value) -> Answer {
        Answer {
            code,
            kind: JSON,
            body: format!("{value}\n"),
        }
    }

    fn refused(code: u16, why: &str) -> Answer {
        Answer::json(code, &serde_json::json!({ "error": why }))
    }

    fn reason(&self) -> &'static str {
        match self.code {
            200 => "OK",
            400 => "Bad Request",
            401 => "Unauthorized",
            404 => "Not Found",
            405 => "Method Not Allowed",
            408 => "Request Timeout",
            409 => "Conflict",
            413 => "Content Too Large",
            _ => "Service Unavailable",
        }
    }
}

fn answer(
    mut stream: TcpStream,
    access: &Access,
    answering: &Answering,
    came: &dyn Fn() -> bool,
) -> io::Result<()> {
    let asked = read_request(&mut stream, Instant::now() + TIME_MAX)?;
    if !came() {
        return Ok(());
    }
    let is_whole = asked.is_ok();
    let answer = match asked {
        Ok(request) => respond(&request, access, answering),
        Err((code, why)) => Answer::refused(code, why),
    };
    let challenge = match answer.code {
        401 => "WWW-Authenticate: Bearer\r\n",
        _ => "",
    };
    let whole = format!(
        "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\n{challenge}Connection: close\r\n\r\n{}",
        answer.code,
        answer.reason(),
        answer.kind,
        answer.body.len(),
        answer.body
    );
    write_all(&mut stream, whole.as_bytes(), Instant::now() + TIME_MAX)?;
    if !is_whole {
        room::read_rest(&mut stream, REST_MAX)?;
    }
    Ok(())
}

/// A request that has come whole.
#[derive(Debug, PartialEq, Eq)]
struct Request {
    method: String,
    path: String,
    query: String,
    bearer: Option<String>,
    body: Vec<u8>,
}

type Refused = (u16, &'static str);
const NO_REQUEST: Refused = (400, "not a request of HTTP");
const LATE: Refused = (408, "the request has not come whole within 3 s");

/// Reads a request. What is none has its status and a reason.
fn read_request(stream: &mut TcpStream, deadline: Instant) -> io::Result<Result<Request, Refused>> {
    let mut bytes = Vec::new();
    let mut wanted = HEAD_BYTES_MAX;
    loop {
        let mut piece = [0; 4096];
        let room = piece.len().min(wanted - bytes.len());
        match read_some(stream, &mut piece[..room], deadline) {
            Ok(0) => return Ok(Err(NO_REQUEST)),
            Ok(count) => bytes.extend_from_slice(&piece[..count]),
            Err(error) if is_late(&error) => return Ok(Err(LATE)),
            Err(error) => return Err(error),
        }
        match take(&bytes) {
            Ok(Taken::Whole(request)) => return Ok(Ok(request)),
            Ok(Taken::Until(length)) => wanted = length,
            Err(refused) => return Ok(Err(refused)),
        }
    }
}

/// A request as far as it has come.
enum Taken {
    Whole(Request),
    /// Only part of a body of this many bytes.
    Until(usize),
}

fn take(bytes: &[u8]) -> Result<Taken, Refused> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    let head = match request.parse(bytes).map_err(|_| NO_REQUEST)? {
        httparse::Status::Complete(head) => head,
        httparse::Status::Partial if bytes.len() < HEAD_BYTES_MAX => {
            return Ok(Taken::Until(HEAD_BYTES_MAX));
        }
        httparse::Status::Partial => return Err((413, "the head is longer than 8 KiB")),
    };
    let of = |name: &str| {
        let one = request
            .headers
            .iter()
            .find(|one| one.name.eq_ignore_ascii_case(name))?;
        std::str::from_utf8(one.value).ok().map(str::trim)
    };
    if request.headers.iter().any(|one| !one.value.is_ascii()) {
        return Err((400, "a header is not ASCII"));
    }
    if of("transfer-encoding").is_some() {
        return Err((400, "a body needs its Content-Length"));
    }
    let length = length_of(request.headers)?;
    if length > QUESTION_BYTES_MAX {
        return Err((413, "the body is longer than 1 MiB"));
    }
    let Some(body) = bytes.get(head..head + length) else {
        return Ok(Taken::Until(head + length));
    };
    let target = request.path.unwrap_or_default();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let bearer = of("authorization").and_then(|text| {
        let (scheme, token) = text.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(token)
    });
    Ok(Taken::Whole(Request {
        method: request.method.unwrap_or_default().into(),
        path: path.into(),
        query: query.into(),
        bearer: bearer.map(|text| text.trim().into()),
        body: body.into(),
    }))
}

/// Returns the length of the body. Whoever reads the request before must find the same one.
fn length_of(headers: &[httparse::Header<'_>]) -> Result<usize, Refused> {
    let is_length = |one: &&httparse::Header<'_>| one.name.eq_ignore_ascii_case("content-length");
    let mut lengths = headers.iter().filter(is_length).map(|one| one.value);
    let Some(first) = lengths.next() else {
        return Ok(0);
    };
    let is_number = !first.is_empty() && first.iter().all(u8::is_ascii_digit);
    if !is_number || lengths.any(|other| other != first) {
        return Err((400, "Content-Length is not one number"));
    }
    let number = std::str::from_utf8(first).ok();
    // What is no number of this machine's is longer than any limit.
    Ok(number
        .and_then(|text| text.parse().ok())
        .unwrap_or(usize::MAX))
}

fn respond(request: &Request, access: &Access, answering: &Answering) -> Answer {
    if let Access::Token(expected) = access {
        let given = request.bearer.as_deref().unwrap_or_default();
        // Hashes compare in constant time, and texts of any length have one of one length.
        if blake3::hash(given.as_bytes()) != *expected {
            return Answer::refused(
                401,
                "the token for control is needed: Authorization: Bearer ...",
            );
        }
    }
    if request.path == "/metrics" {
        if request.method != "GET" {
            return Answer::refused(405, "GET /metrics");
        }
        return match answering.status() {
            Ok(status) => Answer {
                code: 200,
                kind: TEXT,
                body: metrics::exposition(&status),
            },
            Err(error) => Answer::refused(503, &error.to_string()),
        };
    }
    let question = match question_of(request, access) {
        Ok(question) => question,
        Err((code, why)) => return Answer::refused(code, &why),
    };
    let is_health = matches!(question, Question::Health);
    match answering.act(question) {
        Ok(value) if is_health && value["healthy"] == Value::Bool(false) => {
            Answer::json(503, &value)
        }
        Ok(value) => Answer::json(200, &value),
        Err(error @ Refusal::Busy(_)) => Answer::refused(503, &error.to_string()),
        Err(error @ Refusal::Wrong(_)) => Answer::refused(400, &error.to_string()),
        Err(error @ Refusal::Refused(_)) => Answer::refused(409, &error.to_string()),
    }
}

/// Finds the command that a request means, if it may be asked here.
fn question_of(request: &Request, access: &Access) -> Result<Question, (u16, String)> {
    let is_here = |door: Door| match door {
        Door::Open => true,
        Door::Get | Door::Post => matches!(access, Access::Token(_)),
        Door::Socket => false,
    };
    let named = |(name, door): &&(&str, Door)| {
        is_here(*door) && request.path.strip_prefix('/') == Some(*name)
    };
    let Some((name, door)) = DOORS.iter().find(named) else {
        let here = DOORS.iter().filter(|(_, door)| is_here(*door));
        let names: Vec<_> = here.map(|(name, _)| format!("/{name}")).collect();
        return Err((404, format!("/metrics and {} are here", names.join(", "))));
    };
    let method = if *door == Door::Post { "POST" } else { "GET" };
    if request.method != method {
        return Err((405, format!("{method} {}", request.path)));
    }
    if *door == Door::Post && !request.query.is_empty() {
        return Err((400, format!("{name}: its fields come as JSON in the body")));
    }
    let fields = match *door {
        Door::Post if request.body.is_empty() => Value::Object(Map::new()),
        Door::Post => serde_json::from_slice(&request.body)
            .map_err(|error| (400, format!("the body is not JSON: {error}")))?,
        _ => fields_of(&request.query).map_err(|why| (400, format!("{name}: {why}")))?,
    };
    let is_empty = fields.as_object().is_some_and(Map::is_empty);
    let with_fields = || serde_json::from_value(serde_json::json!({ *name: fields }));
    let question = match is_empty {
        // Either a command without fields, or one whose fields all have defaults.
        true => serde_json::from_value(Value::from(*name)).or_else(|_| with_fields()),
        false => with_fields(),
    };
    match question.map_err(|error| (400, format!("{name}: {error}")))? {
        Question::Flows { limit, phase } => Ok(Question::Flows {
            limit: limit.min(FLOWS_MAX),
            phase,
        }),
        question => Ok(question),
    }
}

/// Reads the fields of a query: numbers as such, all else as text.
fn fields_of(query: &str) -> Result<Value, &'static str> {
    let mut fields = Map::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').ok_or("a field without a value")?;
        let number = value.parse::<u64>().map(Value::from);
        let value = number.unwrap_or_else(|_| value.into());
        if fields.insert(name.to_string(), value).is_some() {
            return Err("a field that is there twice");
        }
    }
    Ok(fields.into())
}

#[cfg(test)]
mod tests {
    use super::super::client::request_of;
    use super::*;
    use crate::config::PlaneTable;
    use crate::control::Bytes;
    use crate::engine::Phase;

    fn here(question: &Question, access: &Access) -> Result<String, u16> {
        let address = "127.0.0.1:9186".parse().expect("an address");
        let bytes = request_of(address, "a token", question).expect("a request");
        for length in 0..bytes.len() {
            assert!(matches!(take(&bytes[..length]), Ok(Taken::Until(_))));
        }
        let Ok(Taken::Whole(request)) = take(&bytes) else {
            panic!("a whole request");
        };
        assert_eq!(request.bearer.as_deref(), Some("a token"));
        let asked = question_of(&request, access).map_err(|(code, _)| code)?;
        Ok(format!("{asked:?}"))
    }

    #[test]
    fn commands_come_as_they_were_asked_at_the_doors_that_are_theirs() {
        let backend = "192.0.2.11:4833".parse().expect("an address");
        let frames = vec![Bytes(vec![0x45, 0]), Bytes(Vec::new())];
        let phase = Some(Phase::Established);
        let limit = 7;
        let open = [Question::Status, Question::Health];
        let others = [
            Question::Flows { limit, phase },
            Question::Flows { limit, phase: None },
            Question::Drain {
                backend,
                drain: false,
            },
            Question::Explain { frames, port: 2 },
            Question::Reload,
        ];
        let token = Access::token("a token");
        for (question, at_open) in open
            .iter()
            .map(|one| (one, true))
            .chain(others.iter().map(|one| (one, false)))
        {
            let whole = format!("{question:?}");
            assert_eq!(here(question, &token), Ok(whole.clone()));
            assert_eq!(
                here(question, &Access::Open),
                if at_open { Ok(whole) } else { Err(404) }
            );
        }
        let plane = PlaneTable::default();
        assert_eq!(here(&Question::HandOver { plane }, &token), Err(404));
    }

    #[test]
    fn a_field_that_means_nothing_is_refused() {
        let code = |method: &str, target: &str, body: &str| {
            let length = body.len();
            let request = format!(
                "{method} {target} HTTP/1.1\r\nauthorization: bearer a token\r\n\
                 Content-Length: {length}\r\n\r\n{body}"
            );
            let Ok(Taken::Whole(request)) = take(request.as_bytes()) else {
                panic!("a whole request");
            };
            assert_eq!(request.bearer.as_deref(), Some("a token"));
            question_of(&request, &Access::token("a token")).map_or_else(|(code, _)| code, |_| 200)
        };
        assert_eq!(code("GET", "/flows?limit=1&phase=established", ""), 200);
        assert_eq!(code("GET", "/flows?", ""), 200);
        let drain = |more: &str| format!("{{\"backend\": \"192.0.2.11:1\"{more}}}");
        assert_eq!(code("POST", "/drain", &drain("")), 200);
        assert_eq!(code("POST", "/drain", &drain(", \"drian\": false")), 400);
        assert_eq!(code("POST", "/drain?drain=false", &drain("")), 400);
        for target in [
            "/flows?limt=1",
            "/flows?limit",
            "/flows?limit=1&limit=2",
            "/status?a=1",
        ] {
            assert_eq!(code("GET", target, ""), 400, "{target}");
        }
    }

    #[test]
    fn the_length_of_a_body_is_one_number() {
        let code = |headers: &[u8]| {
            let request = [b"POST /reload HTTP/1.1\r\n", headers, b"\r\n\r\n{}"].concat();
            match take(&request) {
                Ok(Taken::Whole(request)) => (200, request.body.len()),
                Ok(Taken::Until(_)) => (0, 0),
                Err((code, _)) => (code, 0),
            }
        };
        assert_eq!(code(b"Content-Length: 2"), (200, 2));
        assert_eq!(code(b"Content-Length: 2\r\ncontent-length: 2"), (200, 2));
        for wrong in [
            &b"Content-Length: 2\r\nContent-Length: 1"[..],
            b"Content-Length: +2",
            b"Content-Length: 1, 2",
            b"Content-Length:",
            b"Content-Length: \xb2",
            b"Content-Length: 2\r\nA: \xff",
            b"Transfer-Encoding: \x01\xff",
            b"Transfer-Encoding: none\r\nContent-Length: 2",
        ] {
            assert_eq!(code(wrong), (400, 0), "{}", wrong.escape_ascii());
        }
        assert_eq!(code(b"Content-Length: 99999999999999999999999"), (413, 0));
    }

    #[test]
    fn any_bytes_are_a_request_or_refused() {
        let good = b"POST /drain HTTP/1.1\r\nContent-Length: 2\r\nA: b\r\n\r\n{}";
        let mut random = outboard_flow::random::Random::new(1);
        for _ in 0..20_000 {
            let mut bytes = good.to_vec();
            for _ in 0..=random.below(4) {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] = random.below(256) as u8;
            }
            if let Ok(Taken::Whole(request)) = take(&bytes) {
                let _ = question_of(&request, &Access::Open);
            }
        }
    }
}
