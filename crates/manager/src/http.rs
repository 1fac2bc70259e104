//! Requests and answers as bytes (HTTP/1.1, bodies with their length).

use std::io;

use base64ct::{Base64, Encoding as _};

use crate::limits;

/// A request that has come whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) method: String,
    /// Path without the query.
    pub(crate) path: String,
    /// Text after `?`.
    pub(crate) query: String,
    /// Text after "Bearer ", or for GET the password: browsers send that with whatever another page
    /// makes them send, too.
    pub(crate) bearer: Option<String>,
    pub(crate) host: Option<String>,
    /// Page that a browser sends it for.
    pub(crate) origin: Option<String>,
    /// True if the client wants no further answer on the connection.
    pub(crate) is_last: bool,
    pub(crate) body: Vec<u8>,
}

/// Reason why bytes are no request: a status and a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed {
    pub(crate) status: u16,
    pub(crate) text: &'static str,
}

const NO_REQUEST: Malformed = malformed(400, "not a request of HTTP/1.1");
const LONG_HEAD: Malformed = malformed(431, "the head is longer than 8 KiB");
const MANY_HEADERS: Malformed = malformed(431, "the head has more than 32 headers");
const NO_LENGTH: Malformed = malformed(411, "a body needs its Content-Length");
const LONG_BODY: Malformed = malformed(413, "the body is longer than 256 KiB");
const WRONG_LENGTH: Malformed = malformed(400, "Content-Length is not one number");

const fn malformed(status: u16, text: &'static str) -> Malformed {
    Malformed { status, text }
}

/// Takes a whole request from the bytes that have come. `None` if more must come.
pub(crate) fn take_request(bytes: &mut Vec<u8>) -> Result<Option<Request>, Malformed> {
    let mut headers = [httparse::EMPTY_HEADER; limits::HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    let head = match request.parse(bytes) {
        Ok(httparse::Status::Complete(head)) if head <= limits::HEAD_BYTES_MAX => head,
        Ok(httparse::Status::Partial) if bytes.len() < limits::HEAD_BYTES_MAX => return Ok(None),
        Ok(_) => return Err(LONG_HEAD),
        Err(httparse::Error::TooManyHeaders) => return Err(MANY_HEADERS),
        Err(_) => return Err(NO_REQUEST),
    };
    let length = request_length(request.headers)?;
    if bytes.len() < head + length {
        return Ok(None);
    }
    let text = |name| header(request.headers, name);
    let bearer = text("authorization");
    let keeps = text("connection").map_or(request.version == Some(1), |said| {
        !said.eq_ignore_ascii_case("close")
    });
    let target = request.path.unwrap_or_default();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let request = Request {
        method: request.method.unwrap_or_default().into(),
        path: path.into(),
        query: query.into(),
        bearer: bearer.and_then(|text| match text.split_once(' ')? {
            ("Bearer", token) => Some(token.trim().into()),
            ("Basic", text) if request.method == Some("GET") => password(text.trim()),
            _ => None,
        }),
        host: text("host").map(Into::into),
        origin: text("origin").map(Into::into),
        is_last: !keeps,
        body: bytes[head..head + length].into(),
    };
    bytes.drain(..head + length);
    Ok(Some(request))
}

/// Returns status and body of a whole answer. `None` if more must come.
pub(crate) fn take_answer(bytes: &[u8]) -> io::Result<Option<(u16, Vec<u8>)>> {
    let mut headers = [httparse::EMPTY_HEADER; limits::HEADERS_MAX];
    let mut answer = httparse::Response::new(&mut headers);
    let head = match answer.parse(bytes).map_err(io::Error::other)? {
        httparse::Status::Complete(head) => head,
        httparse::Status::Partial if bytes.len() < limits::HEAD_BYTES_MAX => return Ok(None),
        httparse::Status::Partial => return Err(too_long("head")),
    };
    let status = answer.code.unwrap_or(0);
    if is_chunked(answer.headers) {
        let (body, is_whole) = chunks(&bytes[head..])?;
        return Ok(is_whole.then_some((status, body)));
    }
    let length = body_length(answer.headers, limits::ANSWER_BYTES_MAX)?;
    let whole = bytes.get(head..head + length);
    Ok(whole.map(|body| (status, body.into())))
}

/// Returns what has come of an answer's body, and whether that is all.
pub(crate) fn begun_answer(bytes: &[u8]) -> io::Result<(Vec<u8>, bool)> {
    let mut headers = [httparse::EMPTY_HEADER; limits::HEADERS_MAX];
    let mut answer = httparse::Response::new(&mut headers);
    match answer.parse(bytes).map_err(io::Error::other)? {
        httparse::Status::Complete(head) if is_chunked(answer.headers) => chunks(&bytes[head..]),
        httparse::Status::Complete(_) => {
            let answer = take_answer(bytes)?;
            Ok(answer.map_or((Vec::new(), false), |(_, body)| (body, true)))
        }
        httparse::Status::Partial if bytes.len() < limits::HEAD_BYTES_MAX => {
            Ok((Vec::new(), false))
        }
        httparse::Status::Partial => Err(too_long("head")),
    }
}

fn is_chunked(headers: &[httparse::Header<'_>]) -> bool {
    header(headers, "transfer-encoding").is_some_and(|it| it.eq_ignore_ascii_case("chunked"))
}

/// Returns the data of the whole chunks (RFC 9112, section 7.1), and whether the last one is there.
fn chunks(mut bytes: &[u8]) -> io::Result<(Vec<u8>, bool)> {
    let mut data = Vec::new();
    loop {
        let size = httparse::parse_chunk_size(bytes);
        let size = size.map_err(|_| io::Error::other("a chunk's size is no number"))?;
        let httparse::Status::Complete((head, size)) = size else {
            return Ok((data, false));
        };
        let is_short = |size: &usize| data.len() + size <= limits::ANSWER_BYTES_MAX;
        let size = usize::try_from(size).ok().filter(is_short);
        let size = size.ok_or_else(|| too_long("body"))?;
        let end = head + size;
        if bytes.len() < end + 2 {
            return Ok((data, false));
        }
        if &bytes[end..end + 2] != b"\r\n" {
            return Err(io::Error::other("a chunk without its end"));
        }
        if size == 0 {
            return Ok((data, true));
        }
        data.extend_from_slice(&bytes[head..end]);
        bytes = &bytes[end + 2..];
    }
}

pub(crate) fn write_request(
    method: &str,
    path: &str,
    host: &str,
    bearer: Option<&str>,
    body: &[u8],
) -> Vec<u8> {
    let mut head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n",
        body.len()
    );
    if let Some(bearer) = bearer {
        head.push_str(&format!("Authorization: Bearer {bearer}\r\n"));
    }
    [head.as_bytes(), b"\r\n", body].concat()
}

/// `more` has further lines of the head, each with its end.
pub(crate) fn write_answer(status: u16, kind: &str, more: &str, body: &[u8]) -> Vec<u8> {
    let reason = match status {
        200 => "OK",
        303 => "See Other",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        409 => "Conflict",
        410 => "Gone",
        411 => "Length Required",
        413 => "Content Too Large",
        421 => "Misdirected Request",
        422 => "Unprocessable Content",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        _ => "Service Unavailable",
    };
    let head = format!(
        "HTTP/1.1 {status} {reason}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\
        X-Content-Type-Options: nosniff\r\nCache-Control: no-store\r\n{more}\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// Returns the length of a request's body. Whoever reads the request before must find the same.
fn request_length(headers: &[httparse::Header<'_>]) -> Result<usize, Malformed> {
    let of = |name: &'static str| {
        let is_it = move |one: &&httparse::Header<'_>| one.name.eq_ignore_ascii_case(name);
        headers.iter().filter(is_it).map(|one| one.value)
    };
    if of("transfer-encoding").next().is_some() {
        return Err(NO_LENGTH);
    }
    let mut lengths = of("content-length");
    let Some(first) = lengths.next() else {
        return Ok(0);
    };
    let is_number = !first.is_empty() && first.iter().all(u8::is_ascii_digit);
    if !is_number || lengths.any(|other| other != first) {
        return Err(WRONG_LENGTH);
    }
    let number = std::str::from_utf8(first).ok();
    // What is no number of this machine's is longer than any limit.
    let number = number.and_then(|text| text.parse().ok());
    number
        .filter(|length| *length <= limits::BODY_BYTES_MAX)
        .ok_or(LONG_BODY)
}

fn body_length(headers: &[httparse::Header<'_>], max: usize) -> io::Result<usize> {
    if header(headers, "transfer-encoding").is_some() {
        return Err(io::Error::other("a body without its length"));
    }
    let Some(text) = header(headers, "content-length") else {
        return Ok(0);
    };
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse() {
        Ok(length) if is_number && length <= max => Ok(length),
        _ => Err(too_long("body")),
    }
}

/// Returns the password of `NAME:PASSWORD` in base 64.
fn password(text: &str) -> Option<String> {
    let text = Base64::decode_vec(text).ok()?;
    let text = String::from_utf8(text).ok()?;
    Some(text.split_once(':')?.1.into())
}

impl Request {
    /// Returns whether a browser sends it for a page that another server has.
    pub(crate) fn is_of_other_page(&self) -> bool {
        self.origin.as_ref().is_some_and(|origin| {
            let at = origin.split_once("://").map(|(_, at)| at);
            at.is_none() || at != self.host.as_deref()
        })
    }
}

fn header<'a>(headers: &[httparse::Header<'a>], name: &str) -> Option<&'a str> {
    let found = headers
        .iter()
        .find(|header| header.name.eq_ignore_ascii_case(name));
    found.and_then(|header| std::str::from_utf8(header.value).ok())
}

fn too_long(what: &str) -> io::Error {
    io::Error::other(format!(
        "the {what} is too long, or its length is no number"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_as_they_were_written_at_every_cut() {
        let whole = write_request("POST", "/v1/x", "h:1", Some("secret"), b"{\"a\":1}");
        for cut in 0..whole.len() {
            let mut bytes = whole[..cut].to_vec();
            assert_eq!(take_request(&mut bytes).unwrap(), None, "{cut}");
        }
        let mut twice = [&whole[..], &whole].concat();
        let request = take_request(&mut twice).unwrap().unwrap();
        assert_eq!(
            (request.method.as_str(), request.path.as_str()),
            ("POST", "/v1/x")
        );
        assert_eq!(request.bearer.as_deref(), Some("secret"));
        assert_eq!(request.body, b"{\"a\":1}");
        assert!(!request.is_last && !request.is_of_other_page());
        assert_eq!(twice, whole);
    }

    #[test]
    fn pages_of_others_and_last_requests_are_known() {
        for (head, token) in [
            (
                "GET / HTTP/1.1\r\nAuthorization: Basic eDphOmI=\r\n\r\n",
                Some("a:b"),
            ),
            ("GET / HTTP/1.1\r\nAuthorization: Basic %\r\n\r\n", None),
            (
                "GET / HTTP/1.1\r\nAuthorization: Bearer a:b\r\n\r\n",
                Some("a:b"),
            ),
            (
                "POST / HTTP/1.1\r\nAuthorization: Basic eDphOmI=\r\n\r\n",
                None,
            ),
        ] {
            let request = take_request(&mut head.as_bytes().to_vec())
                .unwrap()
                .unwrap();
            assert_eq!(request.bearer.as_deref(), token, "{head}");
        }
        for (head, is_last, is_of_other) in [
            (
                "GET /a?b=c HTTP/1.1\r\nHost: h:1\r\nOrigin: http://h:1\r\n\r\n",
                false,
                false,
            ),
            (
                "GET /a?b=c HTTP/1.0\r\nHost: h:1\r\nOrigin: http://h\r\n\r\n",
                true,
                true,
            ),
            (
                "GET /a?b=c HTTP/1.1\r\nOrigin: null\r\nConnection: Close\r\n\r\n",
                true,
                true,
            ),
        ] {
            let request = take_request(&mut head.as_bytes().to_vec())
                .unwrap()
                .unwrap();
            assert_eq!(
                (request.path.as_str(), request.query.as_str()),
                ("/a", "b=c")
            );
            assert_eq!(
                (request.is_last, request.is_of_other_page()),
                (is_last, is_of_other)
            );
        }
    }

    #[test]
    fn answers_are_read_as_they_were_written_at_every_cut() {
        let whole = write_answer(409, "text/plain", "A: b\r\n", b"no");
        for cut in 0..whole.len() {
            assert_eq!(take_answer(&whole[..cut]).unwrap(), None, "{cut}");
        }
        assert_eq!(take_answer(&whole).unwrap(), Some((409, b"no".to_vec())));
    }

    #[test]
    fn answers_in_chunks_are_read_at_every_cut() {
        let whole = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
        for cut in 0..whole.len() {
            assert_eq!(take_answer(&whole[..cut]).unwrap(), None, "{cut}");
        }
        assert_eq!(take_answer(whole).unwrap(), Some((200, b"abcde".to_vec())));
        let first = whole.len() - 12;
        assert_eq!(
            begun_answer(&whole[..first]).unwrap(),
            (b"abc".to_vec(), false)
        );
        for wrong in ["x\r\n", "1\r\nabc", "ffffffffffff\r\n"] {
            let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
            assert!(take_answer(format!("{head}{wrong}").as_bytes()).is_err());
        }
    }

    #[test]
    fn wrong_or_endless_requests_are_refused_with_their_status() {
        let long = format!("GET /{} HTTP/1.1\r\n", "x".repeat(limits::HEAD_BYTES_MAX));
        let whole = format!("{long}\r\n");
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(33));
        let post = |headers: &str| format!("POST / HTTP/1.1\r\n{headers}\r\n\r\n{{}}");
        for (wrong, said) in [
            (whole, LONG_HEAD),
            (long, LONG_HEAD),
            (many, MANY_HEADERS),
            ("nonsense\r\n\r\n".into(), NO_REQUEST),
            ("GET / HTTP/2.0\r\n\r\n".into(), NO_REQUEST),
            (post("Content-Length: -1"), WRONG_LENGTH),
            (post("Content-Length: +1"), WRONG_LENGTH),
            (post("Content-Length:"), WRONG_LENGTH),
            (post("Content-Length: 1, 1"), WRONG_LENGTH),
            (post("Content-Length: \u{b2}"), WRONG_LENGTH),
            (post("Content-Length: 2\r\ncontent-length: 1"), WRONG_LENGTH),
            (post("Content-Length: 99999999"), LONG_BODY),
            (post("Content-Length: 99999999999999999999999"), LONG_BODY),
            (post("Transfer-Encoding: chunked"), NO_LENGTH),
            (
                post("Content-Length: 2\r\nTransfer-Encoding: \u{b2}"),
                NO_LENGTH,
            ),
        ] {
            let taken = take_request(&mut wrong.clone().into_bytes());
            assert_eq!(taken, Err(said), "{wrong}");
        }
        let twice = post("Content-Length: 2\r\ncontent-length: 2");
        let taken = take_request(&mut twice.into_bytes()).unwrap().unwrap();
        assert_eq!(taken.body, b"{}");
    }
}
