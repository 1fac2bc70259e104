//! The kinds of links.

use std::fmt;

/// A kind of link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LinkKind {
    Shm,
    Tcp,
    /// Frames that a network adapter writes: RoCE or InfiniBand.
    Rdma,
    /// A network emulated over one of the others; nothing but frames passes.
    Emulated,
}

impl LinkKind {
    /// Returns the kind's name, which a URL begins with except for emulated links.
    pub fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Tcp => "tcp",
            Self::Rdma => "rdma",
            Self::Emulated => "emulated",
        }
    }
}

impl fmt::Display for LinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
