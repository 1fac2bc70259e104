//! The settings of a server, and why it cannot start.

use std::{
    ffi::OsString,
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use outboard_link::Endpoint;
use thiserror::Error;

use crate::{
    access::Access, devices::DeviceOptions, hand_over::HandOverError, peers::PeerNetwork,
    pool::PoolOptions, sandbox::Sandbox, shares::Shares,
};

/// The settings of a server.
#[derive(Debug, Clone)]
pub struct ServeOptions {
    pub listen: Vec<Endpoint>,
    /// Time for a peer's hello.
    pub greet_ms: u64,
    /// How long a client that only asks may say nothing.
    pub query_idle_ms: u64,
    /// Programs served at the same time, at most.
    pub sessions_max: usize,
    /// Workers kept ready, each with its device open.
    pub spares: usize,
    pub device: DeviceOptions,
    pub access: Access,
    /// Folder that keeps module images between sessions.
    pub cache: Option<PathBuf>,
    /// Address for requests for metrics, over HTTP.
    pub metrics: Option<SocketAddr>,
    /// File with a line for each session that has ended.
    pub audit: Option<PathBuf>,
    /// This machine's memory that a worker may use for its client, device memory apart.
    pub host_memory_bytes: u64,
    pub shares: Shares,
    /// The rights of workers; None leaves them those of the server's user.
    pub sandbox: Option<Sandbox>,
    /// True to have the kernel encrypt connections, where it can.
    pub kernel_tls: bool,
    /// File at which a new server takes over from this one, and this one from one that runs.
    pub hand_over: Option<PathBuf>,
    /// How long sessions go on once a new server has taken over.
    pub drain_ms: u64,
    /// Networks of the servers that bring data of copies, or get it; none if there are none.
    pub peer_copies: Vec<PeerNetwork>,
    /// Options for the RDMA device that programs' endpoints may use, if one is lent.
    pub net_device: Option<String>,
    /// The pool that the server is part of.
    pub pool: Option<PoolOptions>,
    /// True to stop at the end of standard input.
    pub until_eof: bool,
    /// Arguments with which this executable becomes a worker. The number of the worker's socket is
    /// appended.
    pub worker_args: Vec<OsString>,
}

/// Why a server cannot start.
#[derive(Debug, Error)]
pub enum ServeError {
    #[error("cannot listen{}: {source}", unless_named(endpoint, source))]
    Listen {
        endpoint: Box<Endpoint>,
        source: outboard_link::Error,
    },
    #[error("no address to listen at")]
    NoEndpoint,
    #[error("cannot answer requests for metrics at {address}: {source}")]
    Metrics {
        address: SocketAddr,
        source: io::Error,
    },
    #[error("cannot write the audit file {}: {source}", path.display())]
    Audit { path: PathBuf, source: io::Error },
    #[error("the state of the box in {}: {source}", path.display())]
    Pool { path: PathBuf, source: io::Error },
    #[error("the GPUs of this machine cannot be found out: {0}")]
    Inventory(io::Error),
    #[error("--share compute= cannot be kept: {0}")]
    Compute(String),
    #[error("--share gpu-percent= cannot be kept: {0}")]
    GpuPercent(String),
    #[error("the certificate: {0}")]
    Certificate(#[from] outboard_trust::CertificateFileError),
    #[error("nobody can be served here: {}: {source} ({what_for})", path.display())]
    Missing {
        path: &'static Path,
        what_for: &'static str,
        source: io::Error,
    },
    #[error("--hand-over {}: {source}", path.display())]
    HandOver {
        path: PathBuf,
        source: HandOverError,
    },
    #[error("nobody can be served here: a worker cannot be started: {0}")]
    Worker(io::Error),
    #[error("{doing}: {source}")]
    Io {
        doing: &'static str,
        source: io::Error,
    },
}

/// The address, unless the error names it itself.
fn unless_named(endpoint: &Endpoint, error: &outboard_link::Error) -> String {
    let address = endpoint.to_string();
    match error.to_string().contains(&address) {
        true => String::new(),
        false => format!(" at {address}"),
    }
}

impl ServeError {
    pub(super) fn listen(endpoint: &Endpoint) -> impl FnOnce(outboard_link::Error) -> ServeError {
        let endpoint = Box::new(endpoint.clone());
        move |source| ServeError::Listen { endpoint, source }
    }

    pub(super) fn hand_over<E: Into<HandOverError>>(path: &Path) -> impl FnOnce(E) -> ServeError {
        let path = path.into();
        move |source| ServeError::HandOver {
            path,
            source: source.into(),
        }
    }

    pub(super) fn io<E: Into<io::Error>>(doing: &'static str) -> impl FnOnce(E) -> ServeError {
        move |error| ServeError::Io {
            doing,
            source: error.into(),
        }
    }
}
