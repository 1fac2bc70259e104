//! One thing that was looked at, and what helps.

use serde::Serialize;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    Ok,
    /// Nothing is wrong, but something is not available.
    Note,
    Fail,
}

#[derive(Debug, Serialize)]
pub(super) struct Finding {
    pub(super) what: &'static str,
    pub(super) verdict: Verdict,
    pub(super) found: String,
    /// The remedy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) remedy: Option<String>,
}

impl Finding {
    pub(super) fn ok(what: &'static str, found: impl Into<String>) -> Finding {
        Finding {
            what,
            verdict: Verdict::Ok,
            found: found.into(),
            remedy: None,
        }
    }

    pub(super) fn note(
        what: &'static str,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Finding {
        Finding {
            verdict: Verdict::Note,
            remedy: Some(remedy.into()),
            ..Finding::ok(what, found)
        }
    }

    pub(super) fn fail(
        what: &'static str,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Finding {
        Finding {
            verdict: Verdict::Fail,
            ..Finding::note(what, found, remedy)
        }
    }
}
