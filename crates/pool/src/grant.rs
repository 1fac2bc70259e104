//! Grants: signed statements of a manager that a lease has GPUs.

use outboard_trust::{Identity, PublicKey, SIGNATURE_BYTES};
#[cfg(feature = "schemas")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{limits::GRANT_BYTES_MAX, uuid::Uuid};

/// First bytes of the signed ones: no signature of another protocol or version is one here.
const CONTEXT: &[u8] = b"outboard grant 1\0";

/// The GPUs of a lease that one box has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(JsonSchema))]
pub struct Grant {
    /// The pool's id.
    pub pool: String,
    /// The manager's incarnation, by whose time the deadline is.
    pub incarnation: u64,
    pub lease: u64,
    /// Name of the box.
    pub of: String,
    pub owner: String,
    /// Each GPU with its epoch.
    pub gpus: Vec<(Uuid, u64)>,
    pub deadline_ms: u64,
}

/// Reason why bytes are no grant.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum GrantError {
    #[error("the grant has {0} bytes, at most {GRANT_BYTES_MAX} are accepted")]
    TooLong(usize),
    #[error("the grant is cut or damaged")]
    Malformed,
    #[error("the grant is not signed by the manager of this server's pool")]
    Forged,
}

impl Grant {
    /// Returns the signature and the grant.
    pub fn sign(&self, key: &Identity) -> Result<Vec<u8>, GrantError> {
        let document = postcard::to_stdvec(self).map_err(|_| GrantError::Malformed)?;
        let signature = key.sign(&signed(&document)).ok_or(GrantError::Malformed)?;
        Ok([&signature[..], &document].concat())
    }

    /// Reads a grant whose signature is right.
    pub fn verify(bytes: &[u8], key: &PublicKey) -> Result<Grant, GrantError> {
        if bytes.len() > GRANT_BYTES_MAX {
            return Err(GrantError::TooLong(bytes.len()));
        }
        let (signature, document) = bytes
            .split_first_chunk::<SIGNATURE_BYTES>()
            .ok_or(GrantError::Malformed)?;
        if !key.verify(&signed(document), signature) {
            return Err(GrantError::Forged);
        }
        postcard::from_bytes(document).map_err(|_| GrantError::Malformed)
    }
}

fn signed(document: &[u8]) -> Vec<u8> {
    [CONTEXT, document].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_managers_unchanged_grants_are_read() {
        let (key, other) = (Identity::random().unwrap(), Identity::random().unwrap());
        let grant = Grant {
            pool: "ab".into(),
            incarnation: 2,
            lease: 3,
            of: "box".into(),
            owner: "alice".into(),
            gpus: vec![(Uuid([7; 16]), 4)],
            deadline_ms: 5,
        };
        let bytes = grant.sign(&key).unwrap();
        let public = key.public_key();
        assert_eq!(Grant::verify(&bytes, &public), Ok(grant.clone()));
        let forged = grant.sign(&other).unwrap();
        assert_eq!(Grant::verify(&forged, &public), Err(GrantError::Forged));
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert!(Grant::verify(&changed, &public).is_err(), "{at}");
            assert!(Grant::verify(&bytes[..at], &public).is_err(), "{at}");
        }
        let long = vec![0; GRANT_BYTES_MAX + 1];
        let said = Grant::verify(&long, &public);
        assert_eq!(said, Err(GrantError::TooLong(GRANT_BYTES_MAX + 1)));
    }
}
