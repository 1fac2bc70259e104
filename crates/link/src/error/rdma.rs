//! Errors of a rdma link: those of the adapter, and those between the two sides.

use super::Error;

/// Reason why a rdma link cannot be made, or has failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RdmaError {
    /// The adapter lacks something, or refused a request.
    #[error(transparent)]
    Verbs(#[from] outboard_verbs::Error),

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
}

impl From<RdmaError> for Error {
    /// Boxes the error: a long error type costs every message some instructions.
    fn from(error: RdmaError) -> Self {
        Self::Rdma(Box::new(error))
    }
}

impl From<outboard_verbs::Error> for Error {
    /// A peer whose adapter does not answer has vanished; a connection that ended without a reason
    /// is closed.
    fn from(error: outboard_verbs::Error) -> Self {
        match error {
            outboard_verbs::Error::Unanswered { ms, .. }
            | outboard_verbs::Error::Stalled { ms } => Self::Vanished { ms },
            outboard_verbs::Error::Ended => Self::Closed,
            error => RdmaError::Verbs(error).into(),
        }
    }
}

impl From<Box<outboard_verbs::Error>> for Error {
    fn from(error: Box<outboard_verbs::Error>) -> Self {
        (*error).into()
    }
}
