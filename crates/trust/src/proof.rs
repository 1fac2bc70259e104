//! Proofs that both sides of a handshake have the same token.

use ring::{digest, hmac};

use crate::token::{NONCE_BYTES, TokenKey};

pub const PROOF_BYTES: usize = 32;
/// First bytes of what is proved: no proof of another protocol or version is one here.
const CONTEXT: &[u8] = b"outboard token 1\0";
const SERVER: &[u8; 6] = b"server";
const CLIENT: &[u8; 6] = b"client";
const PEER: &[u8] = b"outboard peer 1\0";

/// Digest of what both sides have said: the client's hello, in which its nonce and the token's id
/// are, and the server's nonce.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transcript([u8; PROOF_BYTES]);

impl Transcript {
    /// Takes the hello as it was sent, preamble and document. `binding` is what the encrypted
    /// channel below derives for both its ends, zeros if there is none: so nobody in between can
    /// pass proofs on from one channel to another.
    pub fn new(
        binding: &[u8; PROOF_BYTES],
        hello: &[u8],
        server_nonce: &[u8; NONCE_BYTES],
    ) -> Transcript {
        let mut context = digest::Context::new(&digest::SHA256);
        context.update(CONTEXT);
        context.update(binding);
        context.update(&(hello.len() as u64).to_le_bytes());
        context.update(hello);
        context.update(server_nonce);
        let mut bytes = [0; PROOF_BYTES];
        bytes.copy_from_slice(context.finish().as_ref());
        Transcript(bytes)
    }

    pub fn server_proof(&self, key: &TokenKey) -> [u8; PROOF_BYTES] {
        self.proof(key, SERVER)
    }

    pub fn client_proof(&self, key: &TokenKey) -> [u8; PROOF_BYTES] {
        self.proof(key, CLIENT)
    }

    /// Returns whether the server that sent `proof` has the key. Takes the same time for each wrong
    /// proof.
    pub fn is_of_server(&self, key: &TokenKey, proof: &[u8; PROOF_BYTES]) -> bool {
        hmac::verify(&hmac_key(key), &self.said_by(SERVER), proof).is_ok()
    }

    /// Like [`is_of_server`](Self::is_of_server), for a client.
    pub fn is_of_client(&self, key: &TokenKey, proof: &[u8; PROOF_BYTES]) -> bool {
        hmac::verify(&hmac_key(key), &self.said_by(CLIENT), proof).is_ok()
    }

    fn proof(&self, key: &TokenKey, side: &[u8; 6]) -> [u8; PROOF_BYTES] {
        let tag = hmac::sign(&hmac_key(key), &self.said_by(side));
        let mut proof = [0; PROOF_BYTES];
        proof.copy_from_slice(tag.as_ref());
        proof
    }

    fn said_by(&self, side: &[u8; 6]) -> Vec<u8> {
        [&side[..], &self.0].concat()
    }
}

/// Derives the key that another server shows from the secret of a way between two servers. Only the
/// client chooses the secret that a server is told, so it is not sent as it is: no bytes of a
/// client's choice go to an address of its choice.
pub fn peer_key(secret: &[u8; PROOF_BYTES]) -> [u8; PROOF_BYTES] {
    let mut context = digest::Context::new(&digest::SHA256);
    context.update(PEER);
    context.update(secret);
    let mut key = [0; PROOF_BYTES];
    key.copy_from_slice(context.finish().as_ref());
    key
}

fn hmac_key(key: &TokenKey) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, &key.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [u8; PROOF_BYTES] = [0; PROOF_BYTES];

    #[test]
    fn a_proof_holds_for_its_side_key_and_messages_only() {
        let (key, other) = (TokenKey([1; 32]), TokenKey([2; 32]));
        let said = Transcript::new(&NONE, b"hello", &[3; NONCE_BYTES]);
        let (server, client) = (said.server_proof(&key), said.client_proof(&key));
        assert!(said.is_of_server(&key, &server) && said.is_of_client(&key, &client));
        // Reflected.
        assert!(!said.is_of_server(&key, &client) && !said.is_of_client(&key, &server));
        assert!(!said.is_of_server(&other, &server) && !said.is_of_client(&other, &client));
        // Replayed: other nonces, another hello, another channel.
        for other in [
            Transcript::new(&NONE, b"hello", &[4; NONCE_BYTES]),
            Transcript::new(&NONE, b"hellp", &[3; NONCE_BYTES]),
            Transcript::new(&NONE, b"hello\x03", &[3; NONCE_BYTES]),
            Transcript::new(&[9; PROOF_BYTES], b"hello", &[3; NONCE_BYTES]),
        ] {
            assert!(!other.is_of_server(&key, &server) && !other.is_of_client(&key, &client));
        }
        for at in 0..PROOF_BYTES {
            let mut flipped = client;
            flipped[at] ^= 1;
            assert!(!said.is_of_client(&key, &flipped), "{at}");
        }
    }
}
