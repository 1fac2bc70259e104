//! Roles of those who send requests. The name of a token says its role.

use std::path::PathBuf;

use outboard_pool::api::PoolError;
use outboard_trust::{Store, Token, now_s};

const BOX: &str = "box.";
const OPERATOR: &str = "operator.";
const ANYONE: &str = "anyone";

/// The one who sends a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Caller {
    /// No tokens are asked for.
    Anyone,
    /// A box, by its name.
    Box(String),
    /// An operator, by the token's name.
    Operator(String),
    Holder(String),
}

/// Finds out who sends a request. The file of tokens is read anew for each.
pub(crate) fn caller(
    tokens: Option<&PathBuf>,
    bearer: Option<&str>,
) -> Result<Caller, (u16, String)> {
    let Some(file) = tokens else {
        return Ok(Caller::Anyone);
    };
    let wrong = || {
        (
            401,
            "a token is needed, and it is missing, wrong, revoked or expired".into(),
        )
    };
    let token: Token = bearer
        .and_then(|text| text.parse().ok())
        .ok_or_else(wrong)?;
    let store = Store::read(file).map_err(|error| {
        tracing::warn!(%error, "no tokens, so no requests");
        (
            503,
            String::from("the manager cannot look at its tokens; its log says why"),
        )
    })?;
    let entry = store.find(&token.id);
    let entry = entry.filter(|entry| entry.is_valid(now_s()) && entry.token.key.is(&token.key));
    let name = &entry.ok_or_else(wrong)?.name;
    Ok(if let Some(of) = name.strip_prefix(BOX) {
        Caller::Box(of.into())
    } else if name.starts_with(OPERATOR) {
        Caller::Operator(name.clone())
    } else {
        Caller::Holder(name.clone())
    })
}

impl Caller {
    /// Returns the name by which the audit knows the caller. Boxes only tell what is.
    pub(crate) fn name(&self) -> Option<String> {
        match self {
            Caller::Anyone => Some(ANYONE.into()),
            Caller::Box(_) => None,
            Caller::Operator(name) | Caller::Holder(name) => Some(name.clone()),
        }
    }

    pub(crate) fn may_speak_for(&self, of: &str) -> Result<(), PoolError> {
        match self {
            Caller::Anyone => Ok(()),
            Caller::Box(name) if name == of => Ok(()),
            _ => Err(forbidden(&format!(
                "the token {BOX}{of} speaks for the box {of}"
            ))),
        }
    }

    pub(crate) fn may_operate(&self) -> Result<(), PoolError> {
        match self {
            Caller::Anyone | Caller::Operator(_) => Ok(()),
            _ => Err(forbidden(
                "tokens whose names begin with operator. may do that",
            )),
        }
    }

    /// Returns the name under which claims of this caller are kept; `asked` if anyone may claim.
    pub(crate) fn owner(&self, asked: &str) -> Result<String, PoolError> {
        match self {
            Caller::Anyone if asked.is_empty() => Ok(ANYONE.into()),
            Caller::Operator(_) if asked.is_empty() => Err(forbidden(
                "operators do not claim: use a holder's token, one without operator. or box.",
            )),
            Caller::Anyone | Caller::Operator(_) => Ok(asked.into()),
            Caller::Holder(name) => Ok(name.clone()),
            Caller::Box(_) => Err(forbidden("a box claims nothing")),
        }
    }

    pub(crate) fn may_end(&self, owner: &str) -> Result<(), PoolError> {
        match self {
            Caller::Anyone | Caller::Operator(_) => Ok(()),
            Caller::Holder(name) if name == owner => Ok(()),
            _ => Err(forbidden("the lease is another holder's")),
        }
    }
}

fn forbidden(text: &str) -> PoolError {
    PoolError::Forbidden(text.into())
}
