//! Errors for what RDMA lacks or refuses, with what the user can do about it.

use std::io;

/// Reason why a device cannot be used, or a connection has failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
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

    #[error("the peer's RDMA device refused an access to its memory ({status})")]
    AccessRefused { status: String },

    /// The device gave its peer up, `ms` after the first try at the latest.
    #[error("the peer's RDMA device does not answer ({status})")]
    Unanswered { status: String, ms: u64 },

    /// Neither did the device carry a request out in this time, nor give its peer up.
    #[error("the RDMA device has made no progress for {ms} ms")]
    Stalled { ms: u64 },

    /// The connection ended and no reason is known: the peer, or its device, broke it.
    #[error("the RDMA connection has ended")]
    Ended,

    #[error("an RDMA request failed: {status} (vendor's code {vendor:#x})")]
    Failed { status: String, vendor: u32 },

    #[error("the program has closed the RDMA device's descriptor")]
    DescriptorClosed,

    #[error("{call}: {reason}")]
    Call { call: &'static str, reason: String },

    #[error("the RDMA device's driver {what}")]
    Incomplete { what: &'static str },

    #[error("{doing}: {}", io::Error::from_raw_os_error(*errno))]
    System { doing: &'static str, errno: i32 },
}

impl Error {
    /// Makes an error of errno, for a call that just failed while `doing` something.
    pub(crate) fn last(doing: &'static str) -> Self {
        let errno = io::Error::last_os_error().raw_os_error().unwrap_or(0);
        Self::System { doing, errno }
    }

    /// Converts the result of a call that returns its errno.
    pub(crate) fn of(rc: i32, doing: &'static str) -> Result<(), Self> {
        match rc {
            0 => Ok(()),
            -1 => Err(Self::last(doing)),
            errno => Err(Self::System {
                doing,
                errno: errno.abs(),
            }),
        }
    }

    /// Converts an error of the kernel, met while `doing` something, for `map_err`.
    pub(crate) fn kernel(doing: &'static str) -> impl FnOnce(rustix::io::Errno) -> Self {
        move |errno| Self::System {
            doing,
            errno: errno.raw_os_error(),
        }
    }
}
