//! The one switch of the optimisations: it decides which calls of a program wait for the server.
//!
//! The steps are those of the literature's factor analysis: outstanding requests (OR), shadow
//! resources (SR), locality. At every level results, error codes and the moment of errors are
//! equal.

use std::{fmt, num::NonZeroU16, str::FromStr};

use crate::decl::Class;

/// Variable in which `outboard run --optimise` leaves the level for the client library.
pub const VARIABLE: &str = "OUTBOARD_OPTIMISE";
/// Messages in one batch, at most.
pub const BATCH_MAX: u16 = 1024;

/// How messages that need no reply are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Sending {
    /// Each gets a reply, and the call returns with it.
    Sync,
    /// This many at a time, or as soon as a call waits.
    Batch(NonZeroU16),
    /// Each at once, without a reply.
    Outstanding,
}

/// A level: how messages are sent, and what the client answers itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Level {
    pub sending: Sending,
    /// True if shadowed calls return without a reply.
    pub shadows: bool,
    /// True if the client does not ask what it knows.
    pub local: bool,
}

/// Every level in its written form, with its meaning: for help and documents.
pub const LEVELS: &[(&str, &str)] = &[
    (
        "sync",
        "every call waits for the server's answer, those that the client could answer itself too",
    ),
    (
        "batch=N",
        "as or, but messages that need no answer are kept until there are N (1 to 1024), a call waits, or 1 ms is over; \
         batch=N+sr and batch=N+sr+local with what these add",
    ),
    (
        "or",
        "outstanding requests: calls without a result are sent and not waited for",
    ),
    (
        "or+sr",
        "and shadow resources: nor are calls whose result the client makes up, such as allocations, streams and events",
    ),
    (
        "or+sr+local",
        "and locality: what the client knows is not asked (the default)",
    ),
];

/// Messages of a call by the time it is about to return.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
pub enum Did {
    Nothing,
    Sent,
    Waited,
}

impl Level {
    pub const ALL_OF_IT: Level = Level {
        sending: Sending::Outstanding,
        shadows: true,
        local: true,
    };

    /// Returns true if a call of this class must make a round trip to the server before it returns.
    pub fn owes_round_trip(self, class: Class, did: Did) -> bool {
        let sync = self.sending == Sending::Sync;
        match (class, did) {
            (Class::Unsupported, _) | (_, Did::Waited) => false,
            (Class::Outstanding, _) => sync,
            (Class::Shadowed, _) => !self.shadows,
            (Class::Local, _) => !self.local,
            // For example a wait for a stream that is known to be idle.
            (Class::Synchronous, Did::Nothing) => !self.local,
            // Its arguments allowed it to send without a reply, which most calls of its name may
            // not.
            (Class::Synchronous, Did::Sent) => sync,
        }
    }

    /// Number of messages in a batch; `None` if messages are not batched.
    pub fn batch(self) -> Option<NonZeroU16> {
        match self.sending {
            Sending::Batch(size) => Some(size),
            Sending::Sync | Sending::Outstanding => None,
        }
    }
}

impl Default for Level {
    fn default() -> Level {
        Level::ALL_OF_IT
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.sending {
            Sending::Sync => return f.write_str("sync"),
            Sending::Batch(size) => write!(f, "batch={size}")?,
            Sending::Outstanding => f.write_str("or")?,
        }
        f.write_str(if self.shadows { "+sr" } else { "" })?;
        f.write_str(if self.local { "+local" } else { "" })
    }
}

/// A text that names no level.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LevelError(String);

impl fmt::Display for LevelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let forms: Vec<&str> = LEVELS.iter().map(|(form, _)| *form).collect();
        write!(
            f,
            "{:?} is no level of optimisation; the levels are {}, N from 1 to {BATCH_MAX}",
            self.0,
            forms.join(", ")
        )
    }
}

impl std::error::Error for LevelError {}

impl FromStr for Level {
    type Err = LevelError;

    fn from_str(text: &str) -> Result<Level, LevelError> {
        let error = || LevelError(text.into());
        let (sending, rest) = match text.split_once('+') {
            Some((sending, rest)) => (sending, Some(rest)),
            None => (text, None),
        };
        let sending = match (sending, sending.strip_prefix("batch=")) {
            ("sync", _) => Sending::Sync,
            ("or", _) => Sending::Outstanding,
            (_, Some(digits)) if digits.bytes().all(|b| b.is_ascii_digit()) => {
                let size: NonZeroU16 = digits.parse().map_err(|_| error())?;
                if size.get() > BATCH_MAX {
                    return Err(error());
                }
                Sending::Batch(size)
            }
            _ => return Err(error()),
        };
        // Each step builds on the one before it.
        let (shadows, local) = match (rest, sending) {
            (None, _) => (false, false),
            (Some(_), Sending::Sync) => return Err(error()),
            (Some("sr"), _) => (true, false),
            (Some("sr+local"), _) => (true, true),
            (Some(_), _) => return Err(error()),
        };
        Ok(Level {
            sending,
            shadows,
            local,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_level_is_written_as_it_is_read() {
        for text in [
            "sync",
            "batch=1",
            "batch=1024",
            "batch=16+sr",
            "batch=16+sr+local",
            "or",
            "or+sr",
            "or+sr+local",
        ] {
            assert_eq!(
                text.parse::<Level>().map(|l| l.to_string()),
                Ok(text.into())
            );
        }
        assert_eq!(Level::default().to_string(), "or+sr+local");
        for (form, _) in LEVELS {
            assert!(
                form.replace('N', "8").parse::<Level>().is_ok(),
                "{form} is documented"
            );
        }
    }

    #[test]
    fn what_is_no_level_is_refused_with_a_list_of_them() {
        for text in [
            "",
            "SYNC",
            "none",
            "batch",
            "batch=",
            "batch=0",
            "batch=+1",
            "batch=1025",
            "batch=x",
            "or+local",
            "or+",
            "or+sr+",
            "or+sr+local+",
            "sync+sr",
            "or +sr",
            " or",
        ] {
            let error = text.parse::<Level>().expect_err(text).to_string();
            assert!(
                error.contains(&format!("{text:?}")) && error.contains("or+sr+local"),
                "{error}"
            );
        }
    }

    #[test]
    fn each_level_frees_one_more_class() {
        use Class::*;
        let owed = |level: &str, did| {
            let level: Level = level.parse().expect(level);
            [Outstanding, Shadowed, Local, Synchronous].map(|c| level.owes_round_trip(c, did))
        };
        assert_eq!(owed("sync", Did::Sent), [true; 4]);
        assert_eq!(owed("or", Did::Sent), [false, true, true, false]);
        assert_eq!(owed("batch=8", Did::Sent), owed("or", Did::Sent));
        assert_eq!(owed("or+sr", Did::Sent), [false, false, true, false]);
        assert_eq!(owed("or+sr+local", Did::Sent), [false; 4]);
        assert_eq!(owed("sync", Did::Nothing), [true; 4]);
        assert_eq!(owed("or", Did::Nothing), [false, true, true, true]);
        assert_eq!(owed("or+sr", Did::Nothing), [false, false, true, true]);
        assert_eq!(owed("or+sr+local", Did::Nothing), [false; 4]);
        for level in ["sync", "or", "or+sr", "or+sr+local"] {
            assert_eq!(owed(level, Did::Waited), [false; 4]);
        }
    }
}
