//! Tokens: a key of 256 bits, and an id by which a server finds it.

use std::{fmt, io, path::Path, str::FromStr};

use thiserror::Error;

use crate::{
    hex,
    secret_file::{SecretFileError, read_secret},
};

/// Length of a token's id, which is no secret.
pub const ID_BYTES: usize = 8;
/// Length of the number that each side of a handshake draws.
pub const NONCE_BYTES: usize = 32;
const KEY_BYTES: usize = 32;
/// Begins a token's text.
const PREFIX: &str = "outboard-token-1";
/// Longest file with one token.
const FILE_BYTES_MAX: u64 = 4 << 10;

/// The secret of a token.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenKey(pub(crate) [u8; KEY_BYTES]);

/// A token, as its owner has it. Its text is `outboard-token-1:ID:KEY` in hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    pub id: [u8; ID_BYTES],
    pub key: TokenKey,
}

/// Reason why there is no token.
#[derive(Debug, Error)]
pub enum TokenError {
    #[error("the token's file {0}")]
    File(#[from] SecretFileError),
    #[error("{path} holds no token: a line {PREFIX}:... as outboard token create prints it")]
    NoToken { path: String },
    #[error("this is no token: it is to be {PREFIX}:ID:KEY")]
    Malformed,
}

impl TokenKey {
    /// Draws a key, by which nobody can prove anything that was not drawn with it.
    pub fn random() -> io::Result<TokenKey> {
        random().map(TokenKey)
    }

    /// Compares in a time that tells nothing about where the keys differ.
    pub fn is(&self, other: &TokenKey) -> bool {
        let differences = self.0.iter().zip(&other.0).fold(0, |d, (a, b)| d | (a ^ b));
        std::hint::black_box(differences) == 0
    }
}

/// Shows nothing of the secret.
impl fmt::Debug for TokenKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenKey(..)")
    }
}

impl Token {
    /// Draws a new token.
    pub fn random() -> io::Result<Token> {
        Ok(Token {
            id: random()?,
            key: TokenKey::random()?,
        })
    }

    /// Reads the token in a file of its owner's: its only line that is neither empty nor begins
    /// with #.
    pub fn read(path: &Path) -> Result<Token, TokenError> {
        let text = read_secret(path, FILE_BYTES_MAX)?;
        let lines = text.lines().map(str::trim);
        let mut lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        match (lines.next(), lines.next()) {
            (Some(line), None) => line.parse().ok(),
            _ => None,
        }
        .ok_or_else(|| TokenError::NoToken {
            path: path.display().to_string(),
        })
    }

    /// Returns the token's text, with its secret.
    pub fn to_text(&self) -> String {
        let (id, key) = (hex::encode(&self.id), hex::encode(&self.key.0));
        format!("{PREFIX}:{id}:{key}")
    }
}

impl FromStr for Token {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Token, TokenError> {
        let mut parts = text.split(':');
        let parts = (parts.next(), parts.next(), parts.next(), parts.next());
        match parts {
            (Some(PREFIX), Some(id), Some(key), None) => {
                let (id, key) = (hex::decode(id), hex::decode(key));
                let token = id.zip(key).map(|(id, key)| Token {
                    id,
                    key: TokenKey(key),
                });
                token.ok_or(TokenError::Malformed)
            }
            _ => Err(TokenError::Malformed),
        }
    }
}

/// Returns bytes of the system's random source.
pub fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        let flags = rustix::rand::GetRandomFlags::empty();
        filled +=
            rustix::io::retry_on_intr(|| rustix::rand::getrandom(&mut bytes[filled..], flags))?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::write_new_secret;

    #[test]
    fn a_token_is_read_as_it_was_written_and_not_shown() {
        let token = Token::random().unwrap();
        assert_ne!(token, Token::random().unwrap());
        let text = token.to_text();
        assert_eq!(text.parse::<Token>().unwrap(), token);
        assert!(!format!("{token:?}").contains(&hex::encode(&token.key.0[..4])));
        let short = &text[..text.len() - 1];
        let other = text.replace("token-1", "token-2");
        let more = format!("{text}:00");
        for wrong in ["", "x", short, &other, &more] {
            assert!(wrong.parse::<Token>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_tokens_file_holds_one() {
        let folder = tempfile::tempdir().unwrap();
        let token = Token::random().unwrap();
        let text = token.to_text();
        for (at, (lines, is_one)) in [
            (format!("# for the GPU\n\n  {text}\n"), true),
            (text.clone(), true),
            (format!("{text}\n{text}\n"), false),
            ("# none\n".into(), false),
            ("gibberish".into(), false),
        ]
        .into_iter()
        .enumerate()
        {
            let path = folder.path().join(at.to_string());
            write_new_secret(&path, &lines).unwrap();
            assert_eq!(
                Token::read(&path).ok(),
                is_one.then(|| token.clone()),
                "{lines}"
            );
        }
    }
}
