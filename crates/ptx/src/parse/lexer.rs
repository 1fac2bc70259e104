//! Splits PTX text into tokens.

use crate::error::{Error, Position};

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Token<'a> {
    /// An identifier, directive or opcode with its modifiers: `.reg`, `ld.global.v2.f32`, `%tid.x`,
    /// `$L__BB0_1`. Directives are one part each: `.reg.b32` is two words.
    /// `::` belongs to it (`.shared::cta`), a single `:` does not.
    Word(&'a str),
    Number(Number),
    /// Without its quotes, with escapes as written.
    Text(&'a str),
    Punct(u8),
    End,
}

/// A literal. PTX integers have 64 bits; the reader decides on signedness.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    Integer(u64),
    /// `0fXXXXXXXX`: bits of a single.
    Single(u32),
    /// `0dXXXXXXXXXXXXXXXX` and decimal fractions: bits of a double.
    Double(u64),
}

impl Number {
    pub fn negated(self) -> Self {
        match self {
            Number::Integer(v) => Number::Integer(v.wrapping_neg()),
            Number::Single(v) => Number::Single(v ^ 1 << 31),
            Number::Double(v) => Number::Double(v ^ 1 << 63),
        }
    }

    /// Returns the bits for a value of 32-bit float type; 16-bit types have no literals of their
    /// own.
    pub fn single_bits(self) -> u32 {
        match self {
            Number::Integer(v) => v as u32,
            Number::Single(v) => v,
            Number::Double(v) => (f64::from_bits(v) as f32).to_bits(),
        }
    }

    pub fn double_bits(self) -> u64 {
        match self {
            Number::Integer(v) => v,
            Number::Single(v) => f64::from(f32::from_bits(v)).to_bits(),
            Number::Double(v) => v,
        }
    }
}

pub struct Lexer<'a> {
    text: &'a str,
    offset: usize,
    line: u32,
    line_start: usize,
}

/// Whether a text begins with a float literal.
pub(super) fn begins_with_float(text: &str) -> bool {
    matches!(
        Lexer::new(text).read(),
        Ok((Token::Number(Number::Single(_) | Number::Double(_)), _))
    )
}

impl<'a> Lexer<'a> {
    pub fn new(text: &'a str) -> Self {
        Lexer {
            text,
            offset: 0,
            line: 1,
            line_start: 0,
        }
    }

    pub(super) fn text(&self) -> &'a str {
        self.text
    }

    /// Returns the next token and where it begins.
    pub fn read(&mut self) -> Result<(Token<'a>, Position), Error> {
        self.skip_space()?;
        let at = self.position();
        let Some(&first) = self.bytes().first() else {
            return Ok((Token::End, at));
        };
        let token = match first {
            b'0'..=b'9' => self.number(at)?,
            b'"' => self.quoted(at)?,
            _ if is_word_start(first) => self.word(),
            _ if first.is_ascii_graphic() => {
                self.offset += 1;
                Token::Punct(first)
            }
            _ => {
                return Err(Error::Syntax {
                    at,
                    expected: "PTX text".into(),
                    found: format!("byte {first:#04x}"),
                });
            }
        };
        Ok((token, at))
    }

    fn bytes(&self) -> &'a [u8] {
        &self.text.as_bytes()[self.offset..]
    }

    fn position(&self) -> Position {
        Position {
            line: self.line,
            column: (self.offset - self.line_start) as u32 + 1,
            offset: self.offset as u32,
        }
    }

    fn skip_space(&mut self) -> Result<(), Error> {
        loop {
            match self.bytes() {
                [b'\n', ..] => self.newline(),
                [b' ' | b'\t' | b'\r' | 0x0b | 0x0c, ..] => self.offset += 1,
                // Many images end the text with a NUL.
                [0, ..] => self.offset += 1,
                [b'/', b'/', ..] => {
                    let rest = self.bytes();
                    self.offset += rest.iter().position(|&b| b == b'\n').unwrap_or(rest.len());
                }
                [b'/', b'*', ..] => self.block_comment()?,
                _ => return Ok(()),
            }
        }
    }

    fn newline(&mut self) {
        self.offset += 1;
        self.line += 1;
        self.line_start = self.offset;
    }

    fn block_comment(&mut self) -> Result<(), Error> {
        let at = self.position();
        self.offset += 2;
        loop {
            match self.bytes() {
                [] => {
                    return Err(Error::Syntax {
                        at,
                        expected: "`*/`".into(),
                        found: "end of text".into(),
                    });
                }
                [b'*', b'/', ..] => {
                    self.offset += 2;
                    return Ok(());
                }
                [b'\n', ..] => self.newline(),
                _ => self.offset += 1,
            }
        }
    }

    fn word(&mut self) -> Token<'a> {
        let bytes = self.bytes();
        // A directive may follow another without a space: `.reg.b32`.
        let directive = bytes[0] == b'.';
        let mut len = 1;
        while let Some(&b) = bytes.get(len) {
            if directive && b == b'.' {
                break;
            } else if is_word_start(b) || b.is_ascii_digit() {
                len += 1;
            } else if b == b':' && bytes.get(len + 1) == Some(&b':') && bytes[..len].contains(&b'.')
            {
                len += 2;
            } else {
                break;
            }
        }
        let word = &self.text[self.offset..self.offset + len];
        self.offset += len;
        Token::Word(word)
    }

    fn quoted(&mut self, at: Position) -> Result<Token<'a>, Error> {
        let bytes = self.bytes();
        let mut len = 1;
        loop {
            match bytes.get(len) {
                Some(b'"') => break,
                Some(b'\\') => len += 2,
                Some(b'\n') | None => {
                    return Err(Error::Syntax {
                        at,
                        expected: "closing `\"`".into(),
                        found: "end of line".into(),
                    });
                }
                Some(_) => len += 1,
            }
        }
        let text = self
            .text
            .get(self.offset + 1..self.offset + len)
            .unwrap_or_default();
        self.offset += len + 1;
        Ok(Token::Text(text))
    }

    fn number(&mut self, at: Position) -> Result<Token<'a>, Error> {
        let rest = self.bytes();
        // Digits, letters of prefixes and suffixes, one fraction, and an exponent with its sign.
        let hex_like =
            rest[0] == b'0' && matches!(rest.get(1), Some(b'x' | b'X' | b'f' | b'F' | b'd' | b'D'));
        let mut len = 1;
        while let Some(&b) = rest.get(len) {
            let exponent_sign =
                matches!(b, b'+' | b'-') && !hex_like && matches!(rest[len - 1], b'e' | b'E');
            if b.is_ascii_alphanumeric() || (b == b'.' && !hex_like) || exponent_sign {
                len += 1;
            } else {
                break;
            }
        }
        let text = &self.text[self.offset..self.offset + len];
        let bad = || Error::Syntax {
            at,
            expected: "a number".into(),
            found: format!("`{}`", clipped(text)),
        };
        let number = parse_number(text).ok_or_else(bad)?;
        self.offset += len;
        Ok(Token::Number(number))
    }
}

fn parse_number(text: &str) -> Option<Number> {
    let lower = text.to_ascii_lowercase();
    if let Some(hex) = lower.strip_prefix("0f") {
        return (hex.len() == 8).then(|| u32::from_str_radix(hex, 16).ok().map(Number::Single))?;
    }
    if let Some(hex) = lower.strip_prefix("0d") {
        return (hex.len() == 16).then(|| u64::from_str_radix(hex, 16).ok().map(Number::Double))?;
    }
    if let Some(hex) = lower.strip_prefix("0x") {
        return u64::from_str_radix(hex.trim_end_matches('u'), 16)
            .ok()
            .map(Number::Integer);
    }
    if lower.contains(['.', 'e']) {
        return lower
            .parse::<f64>()
            .ok()
            .map(|v| Number::Double(v.to_bits()));
    }
    let digits = lower.trim_end_matches('u');
    let value = match digits.strip_prefix("0b") {
        Some(binary) => u64::from_str_radix(binary, 2),
        None if digits.len() > 1 && digits.starts_with('0') => u64::from_str_radix(digits, 8),
        None => digits.parse(),
    };
    value.ok().map(Number::Integer)
}

fn is_word_start(b: u8) -> bool {
    b.is_ascii_alphabetic() || matches!(b, b'_' | b'$' | b'%' | b'.')
}

/// Cuts a token for a message: enough to find it, never a megabyte.
pub fn clipped(text: &str) -> &str {
    const QUOTED_CHARS_MAX: usize = 120;
    text.char_indices()
        .nth(QUOTED_CHARS_MAX)
        .map_or(text, |(end, _)| &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(text: &str) -> Vec<Token<'_>> {
        let mut lexer = Lexer::new(text);
        let mut out = Vec::new();
        loop {
            match lexer.read().unwrap().0 {
                Token::End => return out,
                token => out.push(token),
            }
        }
    }

    #[test]
    fn words_keep_their_modifiers() {
        assert_eq!(
            tokens("@!%p1 ld.shared::cta.v2.f32 {%f1,_}, [a+4]; // c\n$L__1: /* x\n */ .reg.b32"),
            [
                Token::Punct(b'@'),
                Token::Punct(b'!'),
                Token::Word("%p1"),
                Token::Word("ld.shared::cta.v2.f32"),
                Token::Punct(b'{'),
                Token::Word("%f1"),
                Token::Punct(b','),
                Token::Word("_"),
                Token::Punct(b'}'),
                Token::Punct(b','),
                Token::Punct(b'['),
                Token::Word("a"),
                Token::Punct(b'+'),
                Token::Number(Number::Integer(4)),
                Token::Punct(b']'),
                Token::Punct(b';'),
                Token::Word("$L__1"),
                Token::Punct(b':'),
                Token::Word(".reg"),
                Token::Word(".b32"),
            ]
        );
    }

    #[test]
    fn numbers_in_every_base() {
        let numbers: Vec<_> = tokens(
            "0x1F 017 0b101 42U 0f3F800000 0d3FF0000000000000 1.5e+2 0 18446744073709551615",
        );
        let expected = [
            Number::Integer(31),
            Number::Integer(15),
            Number::Integer(5),
            Number::Integer(42),
            Number::Single(0x3f80_0000),
            Number::Double(1f64.to_bits()),
            Number::Double(150f64.to_bits()),
            Number::Integer(0),
            Number::Integer(u64::MAX),
        ];
        assert_eq!(numbers, expected.map(Token::Number));
    }

    #[test]
    fn errors_say_where() {
        let mut lexer = Lexer::new("a\n  0xZZ");
        lexer.read().unwrap();
        match lexer.read() {
            Err(Error::Syntax { at, found, .. }) => {
                assert_eq!((at.line, at.column, found.as_str()), (2, 3, "`0xZZ`"));
            }
            other => panic!("{other:?}"),
        }
    }
}
