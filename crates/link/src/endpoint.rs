//! Addresses of servers: `shm:///path`, `tcp://host:port`, `tcps://host:port`, where
//! `?fingerprint=...` may follow, `rdma://host:port?device=...`, or `rdmas://`, where both may.

use std::{
    fmt,
    net::{Ipv4Addr, Ipv6Addr},
    path::{Path, PathBuf},
    str::FromStr,
};

use crate::rdma::RdmaOptions;
use outboard_trust::Fingerprint;
use outboard_wire::limits::{PORT_DEFAULT, SERVERS_MAX, UNIX_PATH_BYTES_MAX};

/// The address of a server. [`FromStr`] reads what [`Display`](fmt::Display) writes as an equal
/// value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Endpoint {
    /// A unix socket on this host; everything after the handshake travels through shared memory.
    Shm(PathBuf),
    Tcp {
        host: Host,
        port: u16,
    },
    /// A tcp port whose connections are encrypted (TLS 1.3).
    Tls {
        host: Host,
        port: u16,
        /// The server's key, by which a client knows the server; without it by a certificate.
        fingerprint: Option<Fingerprint>,
    },
    /// A tcp port over which the two sides set up RDMA.
    Rdma {
        host: Host,
        port: u16,
        options: Box<RdmaOptions>,
        set_up: SetUp,
    },
}

/// The tcp connection over which two sides set up RDMA. What their adapters send afterwards is
/// never encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SetUp {
    Open,
    /// Encrypted (TLS 1.3), with the server's key as in [`Endpoint::Tls`].
    Encrypted(Option<Fingerprint>),
}

/// The host of a network endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Host {
    V4(Ipv4Addr),
    /// An address and, for link-local ones, the interface: `[fe80::1%eth0]`.
    V6(Ipv6Addr, Option<String>),
    Name(String),
}

/// Reason why a URL names no server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "bad server address {url:?}: {reason}; accepted are shm:///absolute/path, shm:relative/path, tcp://host, \
     tcp://host:port, tcp://1.2.3.4:port and tcp://[ipv6]:port (default port {PORT_DEFAULT}), the same with tcps://, where \
     ?fingerprint=sha256:... may follow, and with rdma://, \
     where ?device=mlx5_0&port=1&gid=3&mtu=4096&traffic_class=106&pkey=0xffff may follow, or some of it, and with rdmas://, \
     where both may"
)]
pub struct EndpointError {
    pub url: String,
    pub reason: String,
}

/// Reason why a list of URLs names no servers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    #[error("{count} servers are named, at most {SERVERS_MAX} are used by one program")]
    TooMany { count: usize },
}

/// Schemes: the words before an address's colon.
const SCHEMES: [&str; 5] = ["shm", "tcp", "tcps", "rdma", "rdmas"];
/// Name of the option that is the server's key.
const FINGERPRINT: &str = "fingerprint";

impl Endpoint {
    /// Reads addresses with commas between them. A comma after which no address begins is part of
    /// the path before it.
    pub fn list(urls: &str) -> Result<Vec<Endpoint>, ListError> {
        let begins = |text: &str| {
            let scheme = text.split_once(':').map(|(scheme, _)| scheme);
            scheme.is_some_and(|scheme| SCHEMES.contains(&scheme))
        };
        let mut parts: Vec<String> = Vec::new();
        for part in urls.split(',') {
            match parts.last_mut() {
                Some(before) if before.starts_with("shm:") && !begins(part) && !part.is_empty() => {
                    before.push(',');
                    before.push_str(part);
                }
                _ => parts.push(part.to_owned()),
            }
        }
        if parts.len() > SERVERS_MAX {
            return Err(ListError::TooMany { count: parts.len() });
        }
        let endpoints = parts.iter().map(|url| url.parse());
        Ok(endpoints.collect::<Result<_, EndpointError>>()?)
    }
}

impl Endpoint {
    /// Returns whether the tcp connections of this address are encrypted.
    pub fn is_encrypted(&self) -> bool {
        match self {
            Self::Tls { .. } => true,
            Self::Rdma { set_up, .. } => *set_up != SetUp::Open,
            Self::Shm(_) | Self::Tcp { .. } => false,
        }
    }

    /// Returns whether the data of a session can be read or changed on a network.
    pub fn has_open_data(&self) -> bool {
        matches!(self, Self::Tcp { .. } | Self::Rdma { .. })
    }

    /// Returns whether another server can be sent to this address: a tcp port, also that of rdma's
    /// set-up, encrypted only if the server is known by its key, since certificates are checked
    /// with files of the client's.
    pub fn is_for_peers(&self) -> bool {
        match self {
            Self::Tcp { .. } => true,
            Self::Tls { fingerprint, .. } => fingerprint.is_some(),
            Self::Rdma { set_up, .. } => *set_up != SetUp::Encrypted(None),
            Self::Shm(_) => false,
        }
    }

    /// Returns the server's key of an encrypted address.
    pub fn pin(&self) -> Option<Fingerprint> {
        match self {
            Self::Tls { fingerprint, .. } => *fingerprint,
            Self::Rdma {
                set_up: SetUp::Encrypted(fingerprint),
                ..
            } => *fingerprint,
            _ => None,
        }
    }

    /// Makes an address of a tcp port one of encrypted connections, to a server with this key, or
    /// with a certificate.
    #[must_use]
    pub fn encrypted(self, key: Option<Fingerprint>) -> Endpoint {
        match self {
            Self::Tcp { host, port } => Self::Tls {
                host,
                port,
                fingerprint: key,
            },
            Self::Rdma {
                host,
                port,
                options,
                set_up: SetUp::Open,
            } => Self::Rdma {
                host,
                port,
                options,
                set_up: SetUp::Encrypted(key),
            },
            other => other,
        }
    }

    /// Returns the address with another port; that of a file as it is.
    #[must_use]
    pub(crate) fn with_port(&self, chosen: u16) -> Endpoint {
        let mut endpoint = self.clone();
        match &mut endpoint {
            Self::Shm(_) => {}
            Self::Tcp { port, .. } | Self::Tls { port, .. } | Self::Rdma { port, .. } => {
                *port = chosen;
            }
        }
        endpoint
    }

    /// Returns a rdma address with other options; others as they are.
    #[must_use]
    pub fn with_rdma(mut self, said: RdmaOptions) -> Endpoint {
        if let Self::Rdma { options, .. } = &mut self {
            **options = said;
        }
        self
    }

    /// Returns an encrypted address with another key; others as they are.
    #[must_use]
    pub fn with_pin(&self, pin: Option<Fingerprint>) -> Endpoint {
        let mut endpoint = self.clone();
        match &mut endpoint {
            Self::Tls { fingerprint, .. }
            | Self::Rdma {
                set_up: SetUp::Encrypted(fingerprint),
                ..
            } => *fingerprint = pin,
            _ => {}
        }
        endpoint
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(url: &str) -> Result<Self, EndpointError> {
        let parsed = match url.split_once(':') {
            Some(("shm", rest)) => parse_shm(rest),
            Some(("tcp", rest)) => match rest.strip_prefix("//") {
                Some(authority) => {
                    parse_authority(authority).map(|(host, port)| Endpoint::Tcp { host, port })
                }
                None => Err("tcp: must be followed by //".into()),
            },
            Some(("tcps", rest)) => match rest.strip_prefix("//") {
                Some(rest) => parse_tls(rest),
                None => Err("tcps: must be followed by //".into()),
            },
            Some(("rdma", rest)) => match rest.strip_prefix("//") {
                Some(rest) => parse_rdma(rest),
                None => Err("rdma: must be followed by //".into()),
            },
            Some(("rdmas", rest)) => match rest.strip_prefix("//") {
                Some(rest) => parse_rdma_encrypted(rest),
                None => Err("rdmas: must be followed by //".into()),
            },
            Some((scheme, rest)) if rest.starts_with("//") => {
                Err(format!("there is no link of kind {scheme:?}"))
            }
            _ => Err("it does not start with shm:, tcp://, tcps://, rdma:// or rdmas://".into()),
        };
        parsed.map_err(|reason| EndpointError {
            url: url.into(),
            reason,
        })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shm(path) if path.is_absolute() => write!(f, "shm://{}", path.display()),
            Self::Shm(path) => write!(f, "shm:{}", path.display()),
            Self::Tcp { host, port } => write!(f, "tcp://{host}:{port}"),
            Self::Tls {
                host,
                port,
                fingerprint,
            } => {
                write!(f, "tcps://{host}:{port}")?;
                match fingerprint {
                    None => Ok(()),
                    Some(fingerprint) => write!(f, "?fingerprint={fingerprint}"),
                }
            }
            Self::Rdma {
                host,
                port,
                options,
                set_up,
            } => {
                let (scheme, fingerprint) = match set_up {
                    SetUp::Open => ("rdma", None),
                    SetUp::Encrypted(fingerprint) => ("rdmas", *fingerprint),
                };
                write!(f, "{scheme}://{host}:{port}")?;
                let options = (!options.is_empty()).then(|| options.to_string());
                let fingerprint = fingerprint.map(|key| format!("{FINGERPRINT}={key}"));
                let mut query = [fingerprint, options].into_iter().flatten();
                query.try_fold('?', |before, part| {
                    write!(f, "{before}{part}").map(|()| '&')
                })?;
                Ok(())
            }
        }
    }
}

impl Endpoint {
    /// Returns true if both are one place to listen at: the same socket file, or the same port of
    /// the same host, as they are written.
    pub fn is_same_place(&self, other: &Endpoint) -> bool {
        match (self, other) {
            (Endpoint::Shm(path), Endpoint::Shm(other)) => path == other,
            _ => self.port_of().is_some() && self.port_of() == other.port_of(),
        }
    }

    fn port_of(&self) -> Option<(&Host, u16)> {
        match self {
            Endpoint::Shm(_) => None,
            Endpoint::Tcp { host, port }
            | Endpoint::Tls { host, port, .. }
            | Endpoint::Rdma { host, port, .. } => Some((host, *port)),
        }
    }
}

impl Host {
    /// Returns the name or address that a certificate is to be for.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::V4(address) => address.to_string(),
            Self::V6(address, _) => address.to_string(),
            Self::Name(name) => name.clone(),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::V4(address) => write!(f, "{address}"),
            Self::V6(address, None) => write!(f, "[{address}]"),
            Self::V6(address, Some(zone)) => write!(f, "[{address}%{zone}]"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

fn parse_shm(rest: &str) -> Result<Endpoint, String> {
    let path = match rest.strip_prefix("//") {
        Some(path) if path.starts_with('/') => path,
        Some("") => return Err("the path is missing".into()),
        Some(host) => {
            return Err(format!(
                "shm:// names a host, {host:?}; an absolute path needs three slashes"
            ));
        }
        None if rest.is_empty() => return Err("the path is missing".into()),
        None => rest,
    };
    if path.contains('\0') {
        return Err("the path contains a NUL byte".into());
    }
    if matches!(path.rsplit('/').next(), Some("" | "." | "..")) {
        return Err("the path is that of a folder".into());
    }
    // Programs that inherit the URL may run elsewhere.
    let path = std::path::absolute(Path::new(path)).map_err(|error| error.to_string())?;
    let len = path.as_os_str().len();
    if len > UNIX_PATH_BYTES_MAX {
        return Err(format!(
            "the path has {len} bytes, a socket's has at most {UNIX_PATH_BYTES_MAX}"
        ));
    }
    Ok(Endpoint::Shm(path))
}

fn parse_tls(rest: &str) -> Result<Endpoint, String> {
    let (authority, query) = rest.split_once('?').unwrap_or((rest, ""));
    let fingerprint = match query.split_once('=') {
        None if query.is_empty() => None,
        Some((FINGERPRINT, text)) => Some(text.parse().map_err(|e| format!("{e}"))?),
        _ => return Err(format!("{query:?} is not fingerprint=sha256:...")),
    };
    let (host, port) = parse_authority(authority)?;
    Ok(Endpoint::Tls {
        host,
        port,
        fingerprint,
    })
}

fn parse_rdma(rest: &str) -> Result<Endpoint, String> {
    let (authority, query) = rest.split_once('?').unwrap_or((rest, ""));
    let options = Box::new(query.parse()?);
    let (host, port) = parse_authority(authority)?;
    Ok(Endpoint::Rdma {
        host,
        port,
        options,
        set_up: SetUp::Open,
    })
}

fn parse_rdma_encrypted(rest: &str) -> Result<Endpoint, String> {
    let (authority, query) = rest.split_once('?').unwrap_or((rest, ""));
    let mut fingerprint = None;
    let mut options = Vec::new();
    for part in query.split('&') {
        match part.split_once('=') {
            Some((FINGERPRINT, text)) => {
                let key = text.parse().map_err(|e| format!("{e}"))?;
                if fingerprint.replace(key).is_some() {
                    return Err(format!("{FINGERPRINT} is said twice"));
                }
            }
            _ => options.push(part),
        }
    }
    let open = parse_rdma(&format!("{authority}?{}", options.join("&")))?;
    Ok(open.encrypted(fingerprint))
}

fn parse_authority(authority: &str) -> Result<(Host, u16), String> {
    let (host, port) = if let Some(rest) = authority.strip_prefix('[') {
        let (inside, after) = rest
            .split_once(']')
            .ok_or("the closing ] of an IPv6 address is missing")?;
        let port = match after {
            "" => None,
            _ => Some(after.strip_prefix(':').ok_or("only :port may follow ]")?),
        };
        (parse_v6(inside)?, port)
    } else {
        let (host, port) = match authority.split_once(':') {
            Some((_, port)) if port.contains(':') => {
                return Err("an IPv6 address must stand in [ ]".into());
            }
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        };
        (parse_host(host)?, port)
    };
    let port = match port {
        None => PORT_DEFAULT,
        Some(digits) if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) => digits
            .parse()
            .map_err(|_| format!("port {digits} is above 65535"))?,
        Some(other) => return Err(format!("{other:?} is not a port")),
    };
    Ok((host, port))
}

fn parse_v6(text: &str) -> Result<Host, String> {
    let (address, zone) = match text.split_once('%') {
        Some((address, zone)) => (address, Some(zone)),
        None => (text, None),
    };
    let zone_is_fine = |zone: &str| {
        !zone.is_empty()
            && zone
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
    };
    if zone.is_some_and(|zone| !zone_is_fine(zone)) {
        return Err(format!("{text:?} has no proper interface after %"));
    }
    let address = address
        .parse()
        .map_err(|_| format!("{address:?} is not an IPv6 address"))?;
    Ok(Host::V6(address, zone.map(Into::into)))
}

fn parse_host(text: &str) -> Result<Host, String> {
    if text.is_empty() {
        return Err("the host is missing".into());
    }
    if let Ok(address) = text.parse() {
        return Ok(Host::V4(address));
    }
    if text.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        return Err(format!("{text:?} is not an IPv4 address"));
    }
    // RFC 1123 names, and the underscore that container names use.
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    if text.len() > 253 || text.starts_with('-') || !text.bytes().all(allowed) {
        return Err(format!("{text:?} is not a host name"));
    }
    Ok(Host::Name(text.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_servers() {
        let list = |urls: &str| {
            let list = Endpoint::list(urls).map_err(|error| error.to_string());
            list.map(|all| all.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        let two = ["tcp://a:4833", "shm:///run/b,c"].map(String::from);
        assert_eq!(list("tcp://a,shm:///run/b,c"), Ok(two.to_vec()));
        assert_eq!(list("tcp://a:4833"), Ok(two[..1].to_vec()));
        for wrong in ["", "tcp://a,", ",tcp://a", "tcp://a,b", "tcp://a,,tcp://b"] {
            assert!(list(wrong).is_err(), "{wrong:?}");
        }
        for scheme in SCHEMES {
            let second = format!("{scheme}://{}", if scheme == "shm" { "/b" } else { "b" });
            let found = list(&format!("shm:///a,{second}")).map(|all| all.len());
            assert_eq!(found, Ok(2), "{second}");
        }
        let many = ["tcp://a"; SERVERS_MAX + 1].join(",");
        assert_eq!(
            list(&many).err().as_deref(),
            Some("9 servers are named, at most 8 are used by one program")
        );
    }

    #[test]
    fn accepted_forms_round_trip() {
        let pin = format!("fingerprint=sha256:{}", "0f".repeat(32));
        let pinned = format!("tcps://gpu-7:9?{pin}");
        for (url, shown) in [
            (pinned.as_str(), pinned.as_str()),
            ("tcps://[::1]", "tcps://[::1]:4833"),
            ("shm:///run/outboard.sock", "shm:///run/outboard.sock"),
            ("shm:/run/outboard.sock", "shm:///run/outboard.sock"),
            ("tcp://gpu-7.example.org", "tcp://gpu-7.example.org:4833"),
            ("tcp://gpu_7:1", "tcp://gpu_7:1"),
            ("tcp://10.0.0.7:0", "tcp://10.0.0.7:0"),
            ("tcp://[::1]", "tcp://[::1]:4833"),
            ("tcp://[FE80::1%eth0]:65535", "tcp://[fe80::1%eth0]:65535"),
            ("rdma://gpu-7", "rdma://gpu-7:4833"),
            ("rdma://[::1]:9?", "rdma://[::1]:9"),
            ("rdmas://[::1]:9?", "rdmas://[::1]:9"),
            ("rdmas://gpu-7?gid=1", "rdmas://gpu-7:4833?gid=1"),
            (
                format!("rdmas://gpu-7?gid=1&{pin}&device=rxe0").as_str(),
                format!("rdmas://gpu-7:4833?{pin}&device=rxe0&gid=1").as_str(),
            ),
            (
                "rdma://10.0.0.7?gid=0x3&device=mlx5_0",
                "rdma://10.0.0.7:4833?device=mlx5_0&gid=3",
            ),
        ] {
            let endpoint: Endpoint = url.parse().unwrap();
            assert_eq!(endpoint.to_string(), shown);
            assert_eq!(shown.parse::<Endpoint>().unwrap(), endpoint);
        }
    }

    #[test]
    fn an_rdma_address_with_a_key_has_open_data_all_the_same() {
        let pin = "0f".repeat(32);
        let plain: Endpoint = "rdma://a?gid=1".parse().unwrap();
        let fingerprint: Fingerprint = format!("sha256:{pin}").parse().unwrap();
        let encrypted = plain.clone().encrypted(Some(fingerprint));
        let shown = format!("rdmas://a:4833?fingerprint=sha256:{pin}&gid=1");
        assert_eq!(encrypted.to_string(), shown);
        assert_eq!(encrypted.pin(), Some(fingerprint));
        assert!(encrypted.is_encrypted() && !plain.is_encrypted());
        assert!(encrypted.has_open_data() && plain.has_open_data());
        assert!(encrypted.is_same_place(&plain));
        assert_eq!(encrypted.with_pin(None).to_string(), "rdmas://a:4833?gid=1");
        let said = format!("rdmas://a?fingerprint=sha256:{pin}&fingerprint=sha256:{pin}");
        let error = said.parse::<Endpoint>().unwrap_err();
        assert!(error.reason.contains("said twice"), "{error}");
    }

    #[test]
    fn relative_paths_are_taken_from_the_current_folder() {
        let endpoint: Endpoint = "shm:some/socket".parse().unwrap();
        let here = std::env::current_dir().unwrap();
        assert_eq!(endpoint, Endpoint::Shm(here.join("some/socket")));
    }

    #[test]
    fn refusals_say_why_and_what_is_accepted() {
        let long = format!("shm:///{}", "x".repeat(200));
        for (url, reason) in [
            ("", "does not start with"),
            ("localhost:4833", "does not start with"),
            ("http://x", "no link of kind \"http\""),
            ("verbs://x", "no link of kind \"verbs\""),
            ("rdma:x", "followed by //"),
            ("rdma://", "host is missing"),
            ("rdma://x?gid", "not NAME=VALUE"),
            ("rdma://x?colour=red", "none of device"),
            ("rdma://x?mtu=1500", "none of 256"),
            ("rdma://x?fingerprint=sha256:00", "none of device"),
            ("rdmas:x", "followed by //"),
            ("rdmas://x?colour=red", "none of device"),
            ("rdmas://x?gid=1&fingerprint=sha256:00", "no fingerprint"),
            ("tcp://x?gid=3", "not a host name"),
            ("shm:", "path is missing"),
            ("shm://", "path is missing"),
            ("shm://run/x", "three slashes"),
            ("shm:///run/", "folder"),
            ("shm:/.//.", "folder"),
            ("shm:///run/..", "folder"),
            ("shm:///a\0b", "NUL"),
            (&long, "at most 107"),
            ("tcp:x", "followed by //"),
            ("tcp://", "host is missing"),
            ("tcp://:4833", "host is missing"),
            ("tcp://host:", "not a port"),
            ("tcp://host:+1", "not a port"),
            ("tcp://host:65536", "above 65535"),
            ("tcp://host:99999999999999999999", "above 65535"),
            ("tcp://host:4833/", "not a port"),
            ("tcp://host/", "not a host name"),
            ("tcps:x", "followed by //"),
            ("tcps://x?key=1", "is not fingerprint="),
            ("tcps://x?fingerprint=sha256:00", "no fingerprint"),
            ("tcp://x?fingerprint=sha256:00", "not a host name"),
            ("tcp://a b", "not a host name"),
            ("tcp://-a", "not a host name"),
            ("tcp://1.2.3", "not an IPv4"),
            ("tcp://256.1.1.1", "not an IPv4"),
            ("tcp://::1", "in [ ]"),
            ("tcp://[::1", "closing ]"),
            ("tcp://[::1]4833", "only :port"),
            ("tcp://[::g]", "not an IPv6"),
            ("tcp://[::1%]", "interface"),
        ] {
            let error = url.parse::<Endpoint>().unwrap_err();
            assert!(error.reason.contains(reason), "{url:?}: {error}");
            assert!(error.to_string().contains("tcp://host:port"), "{error}");
        }
    }
}
