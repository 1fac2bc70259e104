//! Requests to the members of a cluster.

use std::{
    io,
    path::PathBuf,
    time::{Duration, Instant},
};

use base64ct::{Base64, Encoding as _};
use serde_json::Value;

use super::EtcdUrl;
use crate::{Client, client::timed_out, limits};

/// Connections to the members, one of which is asked.
pub(crate) struct Cluster {
    members: Vec<Client>,
    at: usize,
}

impl Cluster {
    /// Connects later. The file of authorities is for members with certificates.
    pub(crate) fn new(url: &EtcdUrl, ca: Option<&PathBuf>) -> Cluster {
        let member = |url| Client::new(url, None, ca.cloned());
        Cluster {
            members: url.members.each().map(member).collect(),
            at: 0,
        }
    }

    /// Asks one member once: what changes something may have happened although an error came.
    pub(crate) fn once(&mut self, path: &str, body: &Value) -> io::Result<Value> {
        let deadline = Instant::now() + Duration::from_millis(limits::ETCD_MS_MAX);
        let said = self.members[self.at].raw(path, body.to_string().as_bytes(), deadline);
        let said = said.and_then(|(status, bytes)| document(status, &bytes));
        said.map_err(|error| {
            let error = timed_out(error);
            let url = self.members[self.at].url();
            self.at = (self.at + 1) % self.members.len();
            io::Error::new(error.kind(), format!("{url}: {error}"))
        })
    }

    /// Asks each member in turn until one answers. For requests that can be repeated.
    pub(crate) fn ask(&mut self, path: &str, body: &Value) -> io::Result<Value> {
        let mut said = self.once(path, body);
        for _ in 1..self.members.len() {
            if said.is_ok() {
                break;
            }
            said = self.once(path, body);
        }
        said
    }

    /// Reads the lines of an answer that goes on until `take` has enough.
    pub(crate) fn lines(
        &mut self,
        path: &str,
        body: &Value,
        take: &mut dyn FnMut(&Value) -> io::Result<bool>,
    ) -> io::Result<()> {
        let deadline = Instant::now() + Duration::from_millis(limits::ETCD_MS_MAX);
        let mut seen = 0;
        let mut outcome = Ok(());
        let mut pieces = |data: &[u8]| {
            while let Some(length) = data[seen..].iter().position(|byte| *byte == b'\n') {
                let line = serde_json::from_slice(&data[seen..seen + length]);
                seen += length + 1;
                match line.map_err(io::Error::other).and_then(|it| take(&it)) {
                    Ok(false) => {}
                    Ok(true) => return true,
                    Err(error) => {
                        outcome = Err(error);
                        return true;
                    }
                }
            }
            false
        };
        let body = body.to_string();
        let client = &mut self.members[self.at];
        let read = client.stream(path, body.as_bytes(), deadline, &mut pieces);
        read.and(outcome)
    }
}

fn document(status: u16, bytes: &[u8]) -> io::Result<Value> {
    let read = serde_json::from_slice(bytes);
    let value: Value = read.map_err(|_| {
        io::Error::other(format!("an answer that is not etcd's, of status {status}"))
    })?;
    match status {
        200 => Ok(value),
        _ => Err(io::Error::other(format!(
            "etcd refuses: {}",
            value["error"].as_str().unwrap_or("it does not say why")
        ))),
    }
}

/// Returns bytes as the gateway writes them.
pub(super) fn text(bytes: &[u8]) -> Value {
    Base64::encode_string(bytes).into()
}

/// Returns the bytes that the gateway wrote; a field that is empty is left out.
pub(super) fn bytes(value: &Value) -> io::Result<Vec<u8>> {
    Base64::decode_vec(value.as_str().unwrap_or("")).map_err(io::Error::other)
}

/// Returns a number that the gateway wrote; 0 is left out.
pub(super) fn number(value: &Value) -> io::Result<u64> {
    match value {
        Value::Null => Ok(0),
        Value::String(text) => text.parse().map_err(io::Error::other),
        other => other
            .as_u64()
            .ok_or_else(|| io::Error::other(format!("{other} is no number"))),
    }
}

/// Returns the first key after all that begin with this one.
pub(super) fn end_of(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    // Prefixes end with a slash.
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}
