//! Encodes and decodes the bytes of a session. Does no input or output: that is crate `link`'s.
//!
//! ```text
//!   Hello ─────────────►            one each, over the raw connection          [handshake]
//!         ◄───────────── Welcome
//!   RequestHeader + op ────────►    any number, in one order a process         [frame], [messages]
//!         ◄──────── ReplyHeader + reply or note
//! ```
//!
//! Nothing here trusts the peer: every decoder has limits, and returns an error for bytes that have
//! no meaning.

pub mod codec;
pub mod doc;
pub mod frame;
#[cfg(test)]
mod golden_tests;
pub mod handshake;
pub mod heartbeat;
pub mod lease;
pub mod limits;
pub mod network;
pub mod runs;
pub mod several;

/// Every message, generated from the declarations of `outboard-api`.
pub mod messages {
    use std::borrow::Cow;

    use outboard_api::decl::Answer;

    use crate::codec::{
        Content, Data, DecodeError, Encode, EncodeError, Message, Op, Reader, Room,
    };

    include!(concat!(env!("OUT_DIR"), "/messages.rs"));
}

pub use codec::{
    Content, Data, DecodeError, Encode, EncodeError, Message, Op, Reader, Room, Writer,
};
pub use outboard_api::decl::Answer;
