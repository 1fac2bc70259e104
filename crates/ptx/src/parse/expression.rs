//! Constant integer expressions (PTX ISA 4.5.4, 4.5.6): C's operators on 64 bits, signed unless an
//! operand is unsigned.

use super::ast::Operand;
use super::lexer::{Number, Token};
use super::parser::Parser;
use crate::error::Error;
use crate::limits::NESTING_DEPTH_MAX;

#[derive(Clone, Copy)]
struct Value {
    bits: u64,
    signed: bool,
}

impl Value {
    fn truth(holds: bool) -> Value {
        Value {
            bits: holds.into(),
            signed: true,
        }
    }
}

/// Binary operators from the weakest to the strongest; of two with a common beginning the longer
/// one first.
const LEVELS: &[&[&str]] = &[
    &["||"],
    &["&&"],
    &["|"],
    &["^"],
    &["&"],
    &["==", "!="],
    &["<=", ">=", "<", ">"],
    &["<<", ">>"],
    &["+", "-"],
    &["*", "/", "%"],
];
/// The last of [`LEVELS`].
const FACTORS: usize = LEVELS.len() - 1;

impl<'a> Parser<'a> {
    /// Parses an operand that begins with a number, a sign or a parenthesis.
    pub(super) fn constant(&mut self) -> Result<Operand<'a>, Error> {
        if let Token::Number(number @ (Number::Single(_) | Number::Double(_))) = self.token {
            self.advance()?;
            return Ok(Operand::Number(number));
        }
        let value = self.choice(0)?;
        Ok(Operand::Number(Number::Integer(value.bits)))
    }

    /// Parses a constant integer, or an expression of some.
    pub(super) fn whole(&mut self, what: &str) -> Result<u64, Error> {
        match self.token {
            Token::Number(Number::Integer(_)) | Token::Punct(b'(' | b'-' | b'~') => {
                Ok(self.choice(0)?.bits)
            }
            _ => Err(self.expected(what)),
        }
    }

    /// Parses `+8`, `-8`, `+-8`, `+4*2-1` or nothing.
    pub(super) fn signed_offset(&mut self) -> Result<i64, Error> {
        let mut offset = 0_i64;
        while let Token::Punct(sign @ (b'+' | b'-')) = self.token {
            self.advance()?;
            let summand = self.binary(FACTORS, 0)?.bits as i64;
            offset = match sign {
                b'+' => offset.wrapping_add(summand),
                _ => offset.wrapping_sub(summand),
            };
        }
        Ok(offset)
    }

    /// Parses `a ? b : c`, or an expression that binds more strongly.
    fn choice(&mut self, depth: usize) -> Result<Value, Error> {
        if depth > NESTING_DEPTH_MAX {
            return Err(self.expected("a flatter expression"));
        }
        let value = self.binary(0, depth)?;
        if !self.take_punct(b'?')? {
            return Ok(value);
        }
        let yes = self.choice(depth + 1)?;
        self.punct(b':')?;
        let no = self.choice(depth + 1)?;
        let signed = yes.signed && no.signed;
        let bits = if value.bits != 0 { yes.bits } else { no.bits };
        Ok(Value { bits, signed })
    }

    fn binary(&mut self, level: usize, depth: usize) -> Result<Value, Error> {
        let Some(operators) = LEVELS.get(level) else {
            return self.unary(depth);
        };
        let mut left = self.binary(level + 1, depth)?;
        while let Some(operator) = operators.iter().copied().find(|o| self.is_operator(o)) {
            for _ in operator.bytes() {
                self.advance()?;
            }
            let right = self.binary(level + 1, depth)?;
            left = self.apply(operator, left, right)?;
        }
        Ok(left)
    }

    /// Whether the text continues with this operator, and not with a longer one.
    fn is_operator(&self, operator: &str) -> bool {
        let at = self.at.offset as usize;
        let Some(rest) = self.text().get(at..).and_then(|t| t.strip_prefix(operator)) else {
            return false;
        };
        let doubled = |c| rest.starts_with(c);
        match (self.token, operator) {
            // Only before a space; otherwise `%` begins a register's name.
            (Token::Word("%"), "%") => true,
            (Token::Punct(_), "|") => !doubled('|'),
            (Token::Punct(_), "&") => !doubled('&'),
            (Token::Punct(_), "<") => !doubled('<'),
            (Token::Punct(_), ">") => !doubled('>'),
            (Token::Punct(_), _) => true,
            _ => false,
        }
    }

    fn unary(&mut self, depth: usize) -> Result<Value, Error> {
        if depth > NESTING_DEPTH_MAX {
            return Err(self.expected("a flatter expression"));
        }
        match self.token {
            Token::Number(Number::Integer(bits)) => {
                self.advance()?;
                let signed = i64::try_from(bits).is_ok();
                Ok(Value { bits, signed })
            }
            Token::Word("WARP_SZ") => {
                self.advance()?;
                Ok(Value {
                    bits: 32,
                    signed: true,
                })
            }
            Token::Punct(sign @ (b'-' | b'~' | b'!' | b'+')) => {
                self.advance()?;
                let value = self.unary(depth + 1)?;
                Ok(match sign {
                    b'-' => Value {
                        bits: value.bits.wrapping_neg(),
                        ..value
                    },
                    b'~' => Value {
                        bits: !value.bits,
                        ..value
                    },
                    b'!' => Value::truth(value.bits == 0),
                    _ => value,
                })
            }
            Token::Punct(b'(') => {
                self.advance()?;
                if let Token::Word(cast @ (".s64" | ".u64")) = self.token {
                    self.advance()?;
                    self.punct(b')')?;
                    let value = self.unary(depth + 1)?;
                    let signed = cast == ".s64";
                    return Ok(Value { signed, ..value });
                }
                let value = self.choice(depth + 1)?;
                self.punct(b')')?;
                Ok(value)
            }
            _ => Err(self.expected("a constant")),
        }
    }

    fn apply(&self, operator: &str, a: Value, b: Value) -> Result<Value, Error> {
        let signed = a.signed && b.signed;
        let (x, y) = (a.bits, b.bits);
        let (i, j) = (x as i64, y as i64);
        // Shifts by 64 and more leave nothing, as in PTX's own shifts.
        let distance = u32::try_from(y).unwrap_or(u32::MAX);
        if matches!(operator, "/" | "%") && y == 0 {
            return Err(self.expected("a divisor other than 0"));
        }
        let less = if signed { i < j } else { x < y };
        let bits = match operator {
            "+" => x.wrapping_add(y),
            "-" => x.wrapping_sub(y),
            "*" => x.wrapping_mul(y),
            "/" if signed => i.wrapping_div(j) as u64,
            "/" => x / y,
            "%" if signed => i.wrapping_rem(j) as u64,
            "%" => x % y,
            "&" => x & y,
            "|" => x | y,
            "^" => x ^ y,
            "<<" => {
                let bits = x.checked_shl(distance).unwrap_or(0);
                return Ok(Value { bits, ..a });
            }
            ">>" => {
                let bits = match a.signed {
                    true => (i >> distance.min(63)) as u64,
                    false => x.checked_shr(distance).unwrap_or(0),
                };
                return Ok(Value { bits, ..a });
            }
            "==" => return Ok(Value::truth(x == y)),
            "!=" => return Ok(Value::truth(x != y)),
            "<" => return Ok(Value::truth(less)),
            ">=" => return Ok(Value::truth(!less)),
            "<=" => return Ok(Value::truth(less || x == y)),
            ">" => return Ok(Value::truth(!less && x != y)),
            "&&" => return Ok(Value::truth(x != 0 && y != 0)),
            _ => return Ok(Value::truth(x != 0 || y != 0)),
        };
        Ok(Value { bits, signed })
    }
}
