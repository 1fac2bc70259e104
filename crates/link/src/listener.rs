//! Listens at an [`Endpoint`], or connects to one.

use std::{
    fs,
    io::{self, ErrorKind},
    net::{SocketAddr, SocketAddrV6, TcpListener, TcpStream, ToSocketAddrs},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        linux::fs::MetadataExt,
        unix::fs::{FileTypeExt, PermissionsExt},
    },
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use outboard_trust::Fingerprint;
use outboard_wire::limits::ACCEPT_BACKLOG_MAX;
use rustix::{
    event::PollFlags,
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType},
};

use crate::{
    Endpoint, Error, Host, Peer, RdmaOptions, Stream,
    credentials::{Credentials, grant_for},
    deadline::{deadline_after, elapsed_ms, timed_out},
    rdma, sys,
};

/// Names the user whose server a client uses, besides its own and root's.
const SERVER_UID_VARIABLE: &str = "OUTBOARD_SERVER_UID";
const TAKING_OVER: &str = "taking over a listening socket";

/// A socket that accepts clients. Dropping it removes the socket file of a shm endpoint.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    endpoint: Endpoint,
    /// Removed when this is dropped.
    file: Option<SocketFile>,
}

impl Listener {
    /// Listens at `endpoint`. A socket file is replaced if no server answers there, otherwise the
    /// result is [`Error::AddressInUse`]. Two servers that start at one path in the same instant
    /// may both replace it; the later one wins.
    pub fn bind(endpoint: &Endpoint) -> Result<Self, Error> {
        match endpoint {
            Endpoint::Shm(path) => Self::bind_shm(endpoint, path),
            Endpoint::Tcp { host, port } | Endpoint::Tls { host, port, .. } => {
                let (socket, port) = bind_tcp(endpoint, host, *port)?;
                Ok(Self::over_tcp(socket, endpoint.with_port(port)))
            }
            Endpoint::Rdma {
                host,
                port,
                options,
                ..
            } => {
                rdma::check(options)?;
                let (socket, port) = bind_tcp(endpoint, host, *port)?;
                Ok(Self::over_tcp(socket, endpoint.with_port(port)))
            }
        }
    }

    /// Listens on a socket that a service manager has opened: a unix socket with a path, or a tcp
    /// port. A socket file stays when this is dropped.
    pub fn adopt(socket: OwnedFd) -> Result<Self, Error> {
        const DOING: &str = TAKING_OVER;
        check_listening(&socket)?;
        let address = rustix::net::getsockname(&socket).map_err(Error::io(DOING))?;
        let endpoint = match (
            SocketAddr::try_from(address.clone()),
            address.address_family(),
        ) {
            (Ok(address), _) => format!("tcp://{address}"),
            (_, AddressFamily::UNIX) => {
                let unix = SocketAddrUnix::try_from(address).map_err(Error::io(DOING))?;
                let path = unix
                    .path_bytes()
                    .and_then(|path| std::str::from_utf8(path).ok());
                let path = path.ok_or(Error::NoListener("a unix socket without a path"))?;
                format!("shm:{path}")
            }
            _ => return Err(Error::NoListener("a socket that is neither unix nor tcp")),
        };
        let endpoint = endpoint
            .parse()
            .map_err(|_| Error::NoListener("a socket whose address is none of Outboard's"))?;
        Ok(Self::over_tcp(socket, endpoint))
    }

    /// Listens at `endpoint` on the socket of another server that listens there, too. A
    /// socket file that the other server removes at its end stays that one's until
    /// [`own_file`](Self::own_file).
    pub fn take_over(
        socket: OwnedFd,
        endpoint: &Endpoint,
        removes_file: bool,
    ) -> Result<Self, Error> {
        check_listening(&socket)?;
        if let Endpoint::Rdma { options, .. } = endpoint {
            rdma::check(options)?;
        }
        let file = match endpoint {
            Endpoint::Shm(path) if removes_file => {
                let mut file = SocketFile::new(path).map_err(Error::io(TAKING_OVER))?;
                file.owner_pid = None;
                Some(file)
            }
            _ => None,
        };
        Ok(Self {
            socket,
            endpoint: endpoint.clone(),
            file,
        })
    }

    /// Makes the socket file of a listener that was taken over its own: it is removed when this is
    /// dropped.
    pub fn own_file(&mut self) {
        if let Some(file) = &mut self.file {
            file.owner_pid = Some(std::process::id());
        }
    }

    /// Returns true if dropping the listener removes its socket file.
    pub fn removes_file(&self) -> bool {
        let file = self.file.as_ref();
        file.is_some_and(|file| file.owner_pid.is_some())
    }

    /// Closes the socket, and leaves its file to the server that has taken it over.
    pub fn leave(mut self) {
        if let Some(file) = &mut self.file {
            file.owner_pid = None;
        }
    }

    /// Makes a tcp address one of encrypted connections, with this key or a certificate.
    #[must_use]
    pub fn encrypted(self, key: Option<Fingerprint>) -> Self {
        let endpoint = self.endpoint.clone().encrypted(key);
        Self { endpoint, ..self }
    }

    fn over_tcp(socket: OwnedFd, endpoint: Endpoint) -> Self {
        Self {
            socket,
            endpoint,
            file: None,
        }
    }

    /// Returns the address at which it listens, for `tcp://host:0` with the port that the kernel
    /// chose.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Returns the next client; waits for one until `deadline`, if there is one. Clients that
    /// disconnected before they were accepted are skipped.
    pub fn accept(&self, deadline: Option<Instant>) -> Result<(Stream, Peer), Error> {
        let start = Instant::now();
        loop {
            // The listening socket is non-blocking, so a client that gave up after poll cannot
            // block this thread.
            match rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC) {
                Ok(socket) => {
                    let stream = dressed(Stream::try_from(socket)?, &self.endpoint)?;
                    match stream.peer() {
                        Ok(peer) => return Ok((stream, peer)),
                        Err(error) if error.is_disconnect() => {}
                        Err(error) => return Err(error),
                    }
                }
                Err(Errno::AGAIN) => {
                    let ready = sys::wait_one(self.socket.as_fd(), PollFlags::IN, deadline)
                        .map_err(Error::io("waiting for a client"))?;
                    if !ready {
                        return Err(timed_out("waiting for a client", start));
                    }
                }
                Err(Errno::INTR | Errno::CONNABORTED | Errno::PROTO) => {}
                Err(error) => return Err(Error::io("accepting a client")(error)),
            }
        }
    }

    /// Lets other users open the socket file of a shm endpoint: those of `group`, or of the file's
    /// own group. Does nothing for other endpoints. The caller checks who connects.
    pub fn open_to_group(&self, group: Option<u32>) -> Result<(), Error> {
        const DOING: &str = "opening the socket to other users";
        let Some(file) = &self.file else {
            return Ok(());
        };
        if let Some(group) = group {
            std::os::unix::fs::lchown(&file.path, None, Some(group)).map_err(Error::io(DOING))?;
        }
        fs::set_permissions(&file.path, fs::Permissions::from_mode(0o660)).map_err(Error::io(DOING))
    }

    fn bind_shm(endpoint: &Endpoint, path: &Path) -> Result<Self, Error> {
        const DOING: &str = "listening on a unix socket";
        let address = SocketAddrUnix::new(path).map_err(Error::io(DOING))?;
        clear_stale_socket(endpoint, path, &address)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .map_err(Error::io(DOING))?;
        rustix::net::bind(&socket, &address).map_err(in_use(endpoint, DOING))?;
        // Between bind and listen no client can connect, so the socket is never open to other
        // users.
        let file = SocketFile::new(path).map_err(Error::io(DOING))?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(Error::io(DOING))?;
        rustix::net::listen(&socket, ACCEPT_BACKLOG_MAX as i32).map_err(in_use(endpoint, DOING))?;
        Ok(Self {
            socket,
            endpoint: endpoint.clone(),
            file: Some(file),
        })
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Checks that a socket of another process listens for streams, and makes it non-blocking.
fn check_listening(socket: &OwnedFd) -> Result<(), Error> {
    match rustix::net::sockopt::socket_type(socket) {
        Ok(SocketType::STREAM) => {}
        Ok(_) => {
            return Err(Error::NoListener(
                "a socket of another type than stream, such as datagram or seqpacket",
            ));
        }
        Err(Errno::NOTSOCK) => return Err(Error::NoListener("this is no socket")),
        Err(error) => return Err(Error::io(TAKING_OVER)(error)),
    }
    let is_listening = rustix::net::sockopt::socket_acceptconn(socket);
    if !is_listening.map_err(Error::io(TAKING_OVER))? {
        return Err(Error::NoListener("a socket that does not listen"));
    }
    rustix::io::ioctl_fionbio(socket, true).map_err(Error::io(TAKING_OVER))
}

fn bind_tcp(endpoint: &Endpoint, host: &Host, port: u16) -> Result<(OwnedFd, u16), Error> {
    const DOING: &str = "listening on a tcp port";
    let addresses = resolve(host, port).map_err(Error::io("looking up the host to listen on"))?;
    let listener = TcpListener::bind(addresses.as_slice()).map_err(in_use(endpoint, DOING))?;
    // Again, for a longer backlog than the standard library's.
    rustix::net::listen(&listener, ACCEPT_BACKLOG_MAX as i32).map_err(in_use(endpoint, DOING))?;
    listener.set_nonblocking(true).map_err(Error::io(DOING))?;
    let port = listener.local_addr().map_err(Error::io(DOING))?.port();
    Ok((listener.into(), port))
}

/// Gives the stream the RDMA options of `endpoint`, if it has any.
fn dressed(stream: Stream, endpoint: &Endpoint) -> Result<Stream, Error> {
    match endpoint {
        Endpoint::Rdma { options, .. } => stream.with_rdma(RdmaOptions::clone(options)),
        _ => Ok(stream),
    }
}

/// Connects to the server at `endpoint` within `timeout`, before the handshake. The lookup of a
/// host's name takes as long as the resolver does, in addition.
pub fn connect(endpoint: &Endpoint, timeout: Duration) -> Result<Stream, Error> {
    let credentials = match endpoint {
        // On one machine the kernel says who is who.
        Endpoint::Shm(_) => Credentials::default(),
        Endpoint::Tcp { host, port }
        | Endpoint::Tls { host, port, .. }
        | Endpoint::Rdma { host, port, .. } => {
            let credentials = Credentials::of(&format!("{host}:{port}"))?;
            match endpoint.is_encrypted() {
                true => credentials.encrypted(&host.name(), endpoint.pin())?,
                false => credentials,
            }
        }
    };
    let credentials = Credentials {
        grant: grant_for(&endpoint.to_string())?,
        ..credentials
    };
    let deadline = deadline_after(timeout);
    let socket = match endpoint {
        Endpoint::Shm(path) => connect_shm(endpoint, path, timeout)?,
        Endpoint::Tcp { host, port } | Endpoint::Tls { host, port, .. } => {
            connect_tcp(endpoint, host, *port, timeout)?
        }
        Endpoint::Rdma {
            host,
            port,
            options,
            ..
        } => {
            // A lack of RDMA here is reported before the server is contacted.
            rdma::check(options)?;
            connect_tcp(endpoint, host, *port, timeout)?
        }
    };
    let stream = Stream::try_from(socket)?.with_credentials(credentials);
    dressed(stream.secure(deadline)?, endpoint)
}

fn connect_shm(endpoint: &Endpoint, path: &Path, timeout: Duration) -> Result<OwnedFd, Error> {
    let start = Instant::now();
    let deadline = deadline_after(timeout);
    let address = SocketAddrUnix::new(path).map_err(Error::io("connecting"))?;
    loop {
        match connect_unix(&address) {
            Ok(socket) => {
                check_owner(endpoint, socket.as_fd())?;
                return Ok(socket);
            }
            // The backlog is full, or a signal came. The kernel offers no event for room in the
            // backlog.
            Err(Errno::AGAIN | Errno::INTR) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(Errno::AGAIN) => {
                return Err(Error::Crowded {
                    endpoint: endpoint.to_string(),
                    ms: elapsed_ms(start),
                });
            }
            Err(Errno::INTR) => return Err(timed_out("connecting", start)),
            Err(error) => return Err(no_server(endpoint, error.into())),
        }
    }
}

/// Refuses a server of another user: anybody may listen in a folder that everybody can write to,
/// and the program's data would go there.
fn check_owner(endpoint: &Endpoint, socket: BorrowedFd<'_>) -> Result<(), Error> {
    let server = sys::peer_credentials(socket).map_err(Error::io("asking who listens"))?;
    let client = rustix::process::geteuid().as_raw();
    let named = std::env::var(SERVER_UID_VARIABLE).ok();
    match is_trusted(server.uid, client, named.as_deref()) {
        true => Ok(()),
        false => Err(Error::Stranger {
            endpoint: endpoint.to_string(),
            uid: server.uid,
            variable: SERVER_UID_VARIABLE,
        }),
    }
}

/// Returns whether a client uses a server on the same machine: its own, root's, or that of the user
/// whom it names.
fn is_trusted(server: u32, client: u32, named: Option<&str>) -> bool {
    server == client || server == 0 || named.is_some_and(|uid| uid.parse() == Ok(server))
}

fn connect_unix(address: &SocketAddrUnix) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, address)?;
    Ok(socket)
}

fn connect_tcp(
    endpoint: &Endpoint,
    host: &Host,
    port: u16,
    timeout: Duration,
) -> Result<OwnedFd, Error> {
    let start = Instant::now();
    let deadline = deadline_after(timeout);
    let addresses = resolve(host, port).map_err(|error| no_server(endpoint, error))?;
    let mut last = None;
    let count = addresses.len();
    for (index, address) in addresses.into_iter().enumerate() {
        // Each address has its share of the time left, so that one without an answer leaves time
        // for the others.
        let left = deadline.saturating_duration_since(Instant::now()) / (count - index) as u32;
        if left.is_zero() {
            return Err(timed_out("connecting", start));
        }
        match TcpStream::connect_timeout(&address, left) {
            Ok(socket) => return Ok(socket.into()),
            Err(error) => last = Some(error),
        }
    }
    match last {
        Some(error) if error.kind() == ErrorKind::TimedOut => Err(timed_out("connecting", start)),
        Some(error) => Err(no_server(endpoint, error)),
        None => Err(no_server(
            endpoint,
            io::Error::new(ErrorKind::NotFound, "the host has no address"),
        )),
    }
}

/// Returns the addresses of a tcp port; none of a local socket.
pub(crate) fn addresses_of(endpoint: &Endpoint) -> io::Result<Vec<SocketAddr>> {
    match endpoint {
        Endpoint::Shm(_) => Ok(Vec::new()),
        Endpoint::Tcp { host, port }
        | Endpoint::Tls { host, port, .. }
        | Endpoint::Rdma { host, port, .. } => resolve(host, *port),
    }
}

fn resolve(host: &Host, port: u16) -> io::Result<Vec<SocketAddr>> {
    match host {
        Host::V4(address) => Ok(vec![(*address, port).into()]),
        Host::V6(address, None) => Ok(vec![SocketAddrV6::new(*address, port, 0, 0).into()]),
        Host::V6(address, Some(zone)) => Ok((format!("{address}%{zone}").as_str(), port)
            .to_socket_addrs()?
            .collect()),
        Host::Name(name) => Ok((name.as_str(), port).to_socket_addrs()?.collect()),
    }
}

/// Removes a socket file if no server answers there.
fn clear_stale_socket(
    endpoint: &Endpoint,
    path: &Path,
    address: &SocketAddrUnix,
) -> Result<(), Error> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.file_type().is_socket() => {}
        Ok(_) => {
            return Err(Error::NotASocket {
                path: path.display().to_string(),
            });
        }
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Error::io("looking at the socket's path")(error)),
    }
    match connect_unix(address) {
        Err(Errno::CONNREFUSED) => match fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(Error::io("removing a stale socket file")(error))
            }
            _ => Ok(()),
        },
        Err(Errno::NOENT) => Ok(()),
        // A server answered, or would if its backlog were not full.
        Ok(_) | Err(Errno::AGAIN) => Err(Error::AddressInUse {
            endpoint: endpoint.to_string(),
        }),
        Err(error) => Err(Error::io("trying whether a server answers at the socket")(
            error,
        )),
    }
}

fn in_use<E: Into<io::Error>>(endpoint: &Endpoint, doing: &'static str) -> impl FnOnce(E) -> Error {
    move |error| {
        let error = error.into();
        match error.kind() {
            ErrorKind::AddrInUse => Error::AddressInUse {
                endpoint: endpoint.to_string(),
            },
            _ => Error::io(doing)(error),
        }
    }
}

fn no_server(endpoint: &Endpoint, source: io::Error) -> Error {
    Error::NoServer {
        endpoint: endpoint.to_string(),
        source,
    }
}

/// The file of a unix socket. The process that made it removes it with the listener, if it is still
/// the same file.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    inode: (u64, u64),
    /// None if another process removes the file.
    owner_pid: Option<u32>,
}

impl SocketFile {
    fn new(path: &Path) -> io::Result<Self> {
        let metadata = fs::symlink_metadata(path)?;
        Ok(Self {
            path: path.into(),
            inode: (metadata.st_dev(), metadata.st_ino()),
            owner_pid: Some(std::process::id()),
        })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let same_file =
            fs::symlink_metadata(&self.path).is_ok_and(|m| (m.st_dev(), m.st_ino()) == self.inode);
        if same_file && self.owner_pid == Some(std::process::id()) {
            // An error cannot be reported here; the next server replaces the file.
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::is_trusted;

    #[test]
    fn a_client_trusts_itself_and_root_and_whom_it_names() {
        for (server, named, trusted) in [
            (1000, None, true),
            (0, None, true),
            (1001, None, false),
            (1001, Some("1001"), true),
            (1001, Some("1002"), false),
            (1001, Some("any"), false),
        ] {
            assert_eq!(
                is_trusted(server, 1000, named),
                trusted,
                "{server} {named:?}"
            );
        }
    }
}
