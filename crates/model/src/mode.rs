//! Treatment of a call's class at a level of optimisation.

use outboard_api::{
    decl::Class,
    optimise::{Level, Sending},
};
use serde::Serialize;

use crate::Error;

/// Bytes of a message whose size the recording does not have, because the call sends none at the
/// top level. The paper also takes 64 bytes for a usual payload.
pub const SMALL_MESSAGE_BYTES: u64 = 64;

/// The three kinds of calls in the paper's cost model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    Local,
    Async,
    Sync,
}

impl Mode {
    pub fn of(class: Class, level: Level) -> Mode {
        let sync = level.sending == Sending::Sync;
        match class {
            Class::Unsupported => Mode::Local,
            Class::Local if level.local => Mode::Local,
            Class::Outstanding if !sync => Mode::Async,
            Class::Shadowed if level.shadows => Mode::Async,
            Class::Local | Class::Outstanding | Class::Shadowed | Class::Synchronous => Mode::Sync,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Mode::Local => "local",
            Mode::Async => "async",
            Mode::Sync => "sync",
        }
    }
}

/// Levels that both models support, in the order in which each frees more calls.
pub const LEVELS: [Level; 4] = [
    Level {
        sending: Sending::Sync,
        shadows: false,
        local: false,
    },
    Level {
        sending: Sending::Outstanding,
        shadows: false,
        local: false,
    },
    Level {
        sending: Sending::Outstanding,
        shadows: true,
        local: false,
    },
    Level::ALL_OF_IT,
];

/// Refuses levels that batch messages.
pub fn check_level(level: Level) -> Result<Level, Error> {
    match level.batch() {
        None => Ok(level),
        Some(_) => Err(Error::Batches {
            level: level.to_string(),
        }),
    }
}
