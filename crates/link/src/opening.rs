//! The client's half of a handshake, the same on every connection of a session.

use std::time::Instant;

use outboard_trust::{Transcript, random};
use outboard_wire::handshake::{
    self, ClientHello, HandshakeError, PREAMBLE_BYTES, Preamble, ServerWelcome, TokenHello,
};

use crate::{Error, Stream};

/// Reason why no session came about.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    #[error(transparent)]
    Link(#[from] Error),
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
}

/// A hello that was sent.
pub(crate) struct Opening {
    /// As it was sent.
    hello: Vec<u8>,
}

impl Opening {
    /// Sends the hello; the link and the token are filled in, and the grant unless there is one.
    pub(crate) fn send(
        stream: &mut Stream,
        hello: &ClientHello,
        deadline: Instant,
    ) -> Result<Opening, DialError> {
        let token = match &stream.credentials().token {
            None => None,
            Some(token) => Some(TokenHello {
                id: token.id,
                nonce: random().map_err(Error::io("drawing a random number"))?,
            }),
        };
        let hello = handshake::encode_hello(&ClientHello {
            is_rdma: stream.rdma().is_some(),
            token,
            grant: hello
                .grant
                .clone()
                .or_else(|| stream.credentials().grant.clone()),
            ..hello.clone()
        })?;
        stream.write_all_deadline(&hello, deadline)?;
        Ok(Opening { hello })
    }

    /// If there is a token: has the server prove that it knows it, and sends the client's proof.
    pub(crate) fn prove(&self, stream: &mut Stream, deadline: Instant) -> Result<(), DialError> {
        let Some(token) = stream.credentials().token.clone() else {
            return Ok(());
        };
        let (preamble, document) = read_answer(stream, deadline)?;
        let challenge = handshake::decode_challenge(&preamble, &document)?;
        let transcript = Transcript::new(&stream.binding(), &self.hello, &challenge.nonce);
        if !transcript.is_of_server(&token.key, &challenge.proof) {
            return Err(HandshakeError::Unproven.into());
        }
        let proof = transcript.client_proof(&token.key);
        Ok(stream.write_all_deadline(&proof, deadline)?)
    }

    /// Reads the server's last word.
    pub(crate) fn read_welcome(
        self,
        stream: &mut Stream,
        deadline: Instant,
    ) -> Result<ServerWelcome, DialError> {
        let (preamble, document) = read_answer(stream, deadline)?;
        Ok(handshake::decode_welcome(&preamble, &document)?)
    }
}

/// Opens `stream` from the hello to the welcome.
pub(crate) fn open(
    stream: &mut Stream,
    hello: &ClientHello,
    deadline: Instant,
) -> Result<ServerWelcome, DialError> {
    let opening = Opening::send(stream, hello, deadline)?;
    opening.prove(stream, deadline)?;
    opening.read_welcome(stream, deadline)
}

fn read_answer(stream: &mut Stream, deadline: Instant) -> Result<(Preamble, Vec<u8>), DialError> {
    let mut preamble = [0; PREAMBLE_BYTES];
    stream.read_exact_deadline(&mut preamble, deadline)?;
    let preamble = Preamble::decode(&preamble)?;
    // A refusal says more than a version that differs, so it is read first.
    let mut document = vec![0; preamble.document_bytes];
    if !preamble.refused {
        preamble.check_version()?;
    }
    stream.read_exact_deadline(&mut document, deadline)?;
    Ok((preamble, document))
}
