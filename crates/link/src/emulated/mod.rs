//! A network that is not there: messages between processes of one machine arrive when they would over one that is.

mod wire;

pub use wire::{End, Wire};
