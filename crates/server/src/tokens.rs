//! The server's half of a proof by token ([`outboard_trust`]).
//!
//! A stranger gets the same answers, after the same work, whether it names a token that was never
//! given, one that has expired or one that is valid: a challenge, and then a refusal in the same
//! words. Only the log says which it was.

use std::{path::Path, time::Instant};

use outboard_link::Stream;
use outboard_session::handshake::{Error, Hello};
use outboard_trust::{Entry, Store, TokenKey, Transcript, now_s, random};
use outboard_wire::{
    handshake::{RELEASE, ServerChallenge, encode_challenge},
    limits::PROOF_BYTES,
};
use tracing::warn;

const NO_TOKEN: &str = "this server asks for a token: name the file of yours with --token-file or OUTBOARD_TOKEN_FILE, or get one from those who run the server (outboard token create)";
const WRONG_TOKEN: &str = "the token is not valid here: it is wrong, revoked or expired";
const NOT_NOW: &str = "the server cannot look at its tokens; its log says why";

/// Has the client prove that it has one of the tokens in the file, and proves that the server knows
/// it. Returns the token's name.
pub(super) fn prove(
    stream: &mut Stream,
    hello: &Hello,
    file: &Path,
    deadline: Instant,
) -> Result<String, Error> {
    let refused = |why: &str| Err(Error::Refused(why.into()));
    let Some(presented) = hello.hello.token else {
        return refused(NO_TOKEN);
    };
    // Read for each client, so that a token that was revoked is of no use at once.
    let found = Store::read(file).map(|store| store.find(&presented.id).cloned());
    let drawn = TokenKey::random().and_then(|key| Ok((key, random()?)));
    let (found, drawn, nonce) = match (found, drawn) {
        (Ok(found), Ok((key, nonce))) => (found, key, nonce),
        (Err(error), _) => {
            warn!(%error, "no tokens, so no clients");
            return refused(NOT_NOW);
        }
        (_, Err(error)) => {
            warn!(%error, "the system has no random numbers");
            return refused(NOT_NOW);
        }
    };
    let valid = found.as_ref().filter(|entry| entry.is_valid(now_s()));
    if valid.is_none() {
        warn!("{}", why_not(found.as_ref()));
    }
    // Nobody has the drawn key, so no proof of it is right.
    let key = valid.map_or(&drawn, |entry| &entry.token.key);
    let transcript = Transcript::new(&stream.binding(), &hello.bytes, &nonce);
    let challenge = encode_challenge(&ServerChallenge {
        release: RELEASE.into(),
        nonce,
        proof: transcript.server_proof(key),
    })?;
    stream.write_all_deadline(&challenge, deadline)?;
    let mut proof = [0; PROOF_BYTES];
    stream.read_exact_deadline(&mut proof, deadline)?;
    match (transcript.is_of_client(key, &proof), valid) {
        (true, Some(entry)) => Ok(entry.name.clone()),
        _ => refused(WRONG_TOKEN),
    }
}

fn why_not(found: Option<&Entry>) -> String {
    match found {
        Some(expired) => format!("the token {} has expired", expired.name),
        None => "a token that is not here, or not any more".into(),
    }
}
