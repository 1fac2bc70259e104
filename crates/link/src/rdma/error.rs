//! Errors for what RDMA lacks or refuses, with what the user can do about it.

use std::io;

use crate::Error;

/// Reason why an RDMA link cannot be made, or has failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RdmaError {
    #[error(
        "RDMA needs libibverbs, which cannot be loaded ({reason}); install it with its providers (Debian, Ubuntu: \
         libibverbs1 ibverbs-providers; Fedora, RHEL: libibverbs)"
    )]
    NoLibrary { reason: String },

    #[error(
        "the installed libibverbs is too old: it has no {symbol}; rdma-core 17 or newer is needed"
    )]
    OldLibrary { symbol: &'static str },

    #[error(
        "there is no RDMA device here (`ibv_devices` shows them); in a container, /dev/infiniband must be passed in"
    )]
    NoDevice,

    #[error("there is no RDMA device {asked:?} here; there is {}", have.join(", "))]
    NoSuchDevice { asked: String, have: Vec<String> },

    #[error(
        "port {port} of RDMA device {device} is not active; is its cable in and its network interface up?"
    )]
    PortDown { device: String, port: u8 },

    #[error("RDMA device {device} has no port {port}")]
    NoSuchPort { device: String, port: u8 },

    #[error(
        "port {port} of RDMA device {device} has no GID; does its network interface have an address?"
    )]
    NoGid { device: String, port: u8 },

    #[error(
        "port {port} of RDMA device {device} has no GID {index}; it has {have:?} (`ibv_devinfo -v` shows them)"
    )]
    NoSuchGid {
        device: String,
        port: u8,
        index: u8,
        have: Vec<u8>,
    },

    #[error(
        "an MTU of {asked} bytes is more than port {port} of RDMA device {device} carries: {largest}"
    )]
    Mtu {
        device: String,
        port: u8,
        asked: u16,
        largest: u16,
    },

    #[error("port {port} of RDMA device {device} is not a member of partition {asked:#06x}")]
    NoPartition {
        device: String,
        port: u8,
        asked: u16,
    },

    #[error(
        "{needed} bytes must be locked in memory for RDMA, and this process may lock {limit}: raise `ulimit -l` \
         (LimitMEMLOCK= of a systemd unit, --ulimit memlock=-1 of a container)"
    )]
    MemoryLock { needed: u64, limit: u64 },

    #[error("bad RDMA options: {reason}")]
    Options { reason: String },

    #[error("the two sides cannot talk RDMA: {what} is {ours} here and {theirs} there")]
    Differ {
        what: &'static str,
        ours: String,
        theirs: String,
    },

    #[error("the peer has no RDMA link for us: {reason}")]
    PeerCannot { reason: String },

    #[error("the peer's RDMA device refused an access to its memory ({status})")]
    AccessRefused { status: String },

    #[error("the peer's RDMA device does not answer ({status})")]
    Unanswered { status: String },

    #[error("an RDMA request failed: {status} (vendor's code {vendor:#x})")]
    Failed { status: String, vendor: u32 },

    #[error("{doing}: {}", io::Error::from_raw_os_error(*errno))]
    Verbs { doing: &'static str, errno: i32 },
}

impl RdmaError {
    /// Converts the failure of a connection into a link's error. A peer that did not answer for
    /// `unanswered_ms` has vanished; a connection that ended without a reason is closed.
    pub(super) fn into_link_error(self, unanswered_ms: u64) -> Error {
        match self {
            Self::Unanswered { .. } => Error::Vanished { ms: unanswered_ms },
            Self::Failed { status, .. } if status.is_empty() => Error::Closed,
            error => error.into(),
        }
    }

    /// Makes an error of errno, for a call that just failed while `doing` something.
    pub(super) fn last(doing: &'static str) -> Self {
        let errno = io::Error::last_os_error().raw_os_error().unwrap_or(0);
        Self::Verbs { doing, errno }
    }

    /// Converts the result of a call that returns its errno.
    pub(super) fn of(rc: i32, doing: &'static str) -> Result<(), Self> {
        match rc {
            0 => Ok(()),
            -1 => Err(Self::last(doing)),
            errno => Err(Self::Verbs {
                doing,
                errno: errno.abs(),
            }),
        }
    }
}
