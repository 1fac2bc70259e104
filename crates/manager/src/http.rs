//! Requests and answers as bytes (HTTP/1.1, bodies with their length).

use std::io;

use crate::limits;

/// A request that has come whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    /// Text after "Bearer ".
    pub(crate) bearer: Option<String>,
    pub(crate) body: Vec<u8>,
}

/// Takes a whole request from the bytes that have come. `None` if more must come.
pub(crate) fn take_request(bytes: &mut Vec<u8>) -> io::Result<Option<Request>> {
    let mut headers = [httparse::EMPTY_HEADER; limits::HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    let head = match request.parse(bytes).map_err(io::Error::other)? {
        httparse::Status::Complete(head) => head,
        httparse::Status::Partial if bytes.len() < limits::HEAD_BYTES_MAX => return Ok(None),
        httparse::Status::Partial => return Err(too_long("head")),
    };
    let length = body_length(request.headers, limits::BODY_BYTES_MAX)?;
    if bytes.len() < head + length {
        return Ok(None);
    }
    let bearer = header(request.headers, "authorization");
    let request = Request {
        method: request.method.unwrap_or_default().into(),
        path: request.path.unwrap_or_default().into(),
        bearer: bearer.and_then(|text| Some(text.strip_prefix("Bearer ")?.trim().into())),
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
    let length = body_length(answer.headers, limits::ANSWER_BYTES_MAX)?;
    let whole = bytes.get(head..head + length);
    Ok(whole.map(|body| (answer.code.unwrap_or(0), body.into())))
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

pub(crate) fn write_answer(status: u16, kind: &str, body: &[u8]) -> Vec<u8> {
    let reason = match status {
        200 => "OK",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        409 => "Conflict",
        422 => "Unprocessable Content",
        429 => "Too Many Requests",
        _ => "Service Unavailable",
    };
    let head = format!(
        "HTTP/1.1 {status} {reason}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
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
        assert_eq!(twice, whole);
    }

    #[test]
    fn answers_are_read_as_they_were_written_at_every_cut() {
        let whole = write_answer(409, "text/plain", b"no");
        for cut in 0..whole.len() {
            assert_eq!(take_answer(&whole[..cut]).unwrap(), None, "{cut}");
        }
        assert_eq!(take_answer(&whole).unwrap(), Some((409, b"no".to_vec())));
    }

    #[test]
    fn wrong_or_endless_requests_are_errors() {
        let long = format!("GET /{} HTTP/1.1\r\n", "x".repeat(limits::HEAD_BYTES_MAX));
        for wrong in [
            "nonsense\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: +1\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
            &long,
        ] {
            assert!(
                take_request(&mut wrong.as_bytes().to_vec()).is_err(),
                "{wrong}"
            );
        }
    }
}
