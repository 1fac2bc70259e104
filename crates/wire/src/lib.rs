//! The protocol of a session, without any input or output: what the bytes are, never how they travel.
//!
//! ```text
//!   Hello ─────────────►            one each, over the raw connection          [handshake]
//!         ◄───────────── Welcome
//!   RequestHeader + op ────────►    any number, in one order a process         [frame], [messages]
//!         ◄──────── ReplyHeader + reply or note
//! ```
//!
//! Nothing here trusts the other end: every decoder is bounded and answers an error for bytes that mean nothing.

pub mod codec;
pub mod doc;
pub mod frame;
pub mod handshake;
pub mod limits;
pub mod network;

/// Every message, generated from the declarations of `outboard-api`.
pub mod messages {
    use std::borrow::Cow;

    use outboard_api::decl::Answer;

    use crate::codec::{DecodeError, EncodeError, Message, Op, Reader, Writer};

    include!(concat!(env!("OUT_DIR"), "/messages.rs"));
}

pub use codec::{DecodeError, EncodeError, Message, Op, Reader, Writer};
pub use outboard_api::decl::Answer;
