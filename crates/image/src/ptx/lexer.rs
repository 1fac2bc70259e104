//! Splits PTX into words and punctuation, and skips everything else.

use crate::Error;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Token<'a> {
    /// A directive with its dot, a name, or a number.
    Word(&'a str),
    Text,
    Punct(u8),
}

pub(super) struct Lexer<'a> {
    text: &'a str,
    /// Offset of the next byte. May be set back to an earlier value.
    pub(super) at: usize,
}

impl<'a> Lexer<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    pub(super) fn next(&mut self) -> Result<Option<Token<'a>>, Error> {
        self.skip_blank()?;
        let start = self.at;
        let Some(first) = self.peek(0) else {
            return Ok(None);
        };
        self.at += 1;
        if first == b'"' {
            return self.skip_string().map(|()| Some(Token::Text));
        }
        if first != b'.' && !is_word(first) {
            return Ok(Some(Token::Punct(first)));
        }
        while self.peek(0).is_some_and(is_word) {
            self.at += 1;
        }
        // Word bytes are ASCII, so both ends are character boundaries.
        Ok(self.text.get(start..self.at).map(Token::Word))
    }

    /// Consumes `punct` if it comes next.
    pub(super) fn accept(&mut self, punct: u8) -> Result<bool, Error> {
        self.skip_blank()?;
        let found = self.peek(0) == Some(punct);
        self.at += usize::from(found);
        Ok(found)
    }

    /// Moves past the bracket that closes the one just read.
    pub(super) fn skip_to_closing(&mut self, open: u8, close: u8) -> Result<(), Error> {
        let mut depth = 1u32;
        while depth > 0 {
            self.skip_blank()?;
            let Some(byte) = self.peek(0) else {
                return Err(self.error("a closing bracket or brace"));
            };
            self.at += 1;
            if byte == b'"' {
                self.skip_string()?;
            } else if byte == open {
                depth += 1;
            } else if byte == close {
                depth -= 1;
            }
        }
        Ok(())
    }

    fn skip_blank(&mut self) -> Result<(), Error> {
        loop {
            match (self.peek(0), self.peek(1)) {
                (Some(byte), _) if byte.is_ascii_whitespace() => self.at += 1,
                (Some(b'/'), Some(b'/')) => self.at = self.find("\n").unwrap_or(self.text.len()),
                (Some(b'/'), Some(b'*')) => {
                    self.at += 2;
                    self.at = self
                        .find("*/")
                        .ok_or_else(|| self.error("the end of a comment"))?
                        + 2;
                }
                _ => return Ok(()),
            }
        }
    }

    /// After the opening quote.
    fn skip_string(&mut self) -> Result<(), Error> {
        loop {
            match self.peek(0) {
                None => return Err(self.error("the end of a string")),
                Some(b'"') => break,
                Some(b'\\') => self.at += 2,
                Some(_) => self.at += 1,
            }
        }
        self.at += 1;
        Ok(())
    }

    fn peek(&self, ahead: usize) -> Option<u8> {
        self.text.as_bytes().get(self.at + ahead).copied()
    }

    /// Searches bytes from here: this position may be inside a character.
    fn find(&self, needle: &str) -> Option<usize> {
        let rest = self.text.as_bytes().get(self.at..)?;
        rest.windows(needle.len())
            .position(|window| window == needle.as_bytes())
            .map(|found| self.at + found)
    }

    /// An error at the last token read.
    pub(super) fn error(&self, expected: &'static str) -> Error {
        const SHOWN_BYTES: usize = 40;
        let before = self
            .text
            .as_bytes()
            .get(..self.at)
            .unwrap_or(self.text.as_bytes());
        let line = 1 + before.iter().filter(|&&byte| byte == b'\n').count();
        let start = before
            .iter()
            .rposition(|&byte| byte == b'\n')
            .map_or(0, |newline| newline + 1);
        let rest = self.text.as_bytes().get(start..).unwrap_or_default();
        let shown = rest.split(|&byte| byte == b'\n').next().unwrap_or_default();
        let shown = String::from_utf8_lossy(shown.get(..SHOWN_BYTES).unwrap_or(shown))
            .trim()
            .to_owned();
        Error::Ptx {
            line: u32::try_from(line).unwrap_or(u32::MAX),
            expected,
            found: shown,
        }
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'%')
}
