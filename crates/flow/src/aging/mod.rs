//! Deletes connections of which no packet came for a time.
//!
//! Packets only write the time into their connection's state ([`State::seen_ms`]). Three ways find
//! out which connections are over:
//!
//! - [`Scan`] looks at a part of all states at regular intervals.
//! - [`Wheel`] has a list for each tick of time. An entry whose connection has been used since it
//!   was put there is put into a later list.
//! - Lazily: [`crate::FlowTable::insert_over`] replaces connections that are over by new ones, and
//!   a lookup takes a connection that is over for absent. Nothing else is done.

mod states;
mod timeouts;
mod wheel;

pub use states::{Scan, State, States};
pub use timeouts::{ACK, FIN, Phase, RST, SYN, Timeouts};
pub use wheel::{Due, Timers, Wheel};
