//! Modifiers: the dotted parts of an opcode, all of which must be understood.

use crate::code::Rounding;
use crate::parse::ast::Type;

const PARTS_MAX: usize = 16;

/// Modifiers of one instruction. Lowering takes those it knows; an instruction with any left over
/// is unsupported.
#[derive(Debug, Clone, Copy)]
pub(super) struct Modifiers<'a> {
    parts: [&'a str; PARTS_MAX],
    len: usize,
}

impl<'a> Modifiers<'a> {
    /// Splits `add.s32` into `add` and its modifiers. None if there are too many.
    pub(super) fn split(opcode: &'a str) -> Option<(&'a str, Self)> {
        let mut parts = opcode.split('.');
        let name = parts.next()?;
        let mut out = Modifiers {
            parts: [""; PARTS_MAX],
            len: 0,
        };
        for part in parts {
            *out.parts.get_mut(out.len)? = part;
            out.len += 1;
        }
        Some((name, out))
    }

    fn remove(&mut self, index: usize) -> &'a str {
        let part = self.parts[index];
        self.parts.copy_within(index + 1..self.len, index);
        self.len -= 1;
        part
    }

    /// Takes one occurrence of `name`.
    pub(super) fn take(&mut self, name: &str) -> bool {
        let found = self.parts[..self.len].iter().position(|&p| p == name);
        found.map(|i| self.remove(i)).is_some()
    }

    /// Takes the first modifier that is one of `names`.
    pub(super) fn take_any(&mut self, names: &[&str]) -> Option<&'a str> {
        let index = self.parts[..self.len]
            .iter()
            .position(|p| names.contains(p))?;
        Some(self.remove(index))
    }

    /// Takes the first modifier.
    pub(super) fn take_first(&mut self) -> Option<&'a str> {
        (self.len > 0).then(|| self.remove(0))
    }

    /// Takes the first modifier that `f` understands.
    pub(super) fn take_map<T>(&mut self, f: impl Fn(&str) -> Option<T>) -> Option<T> {
        let (index, value) = self.parts[..self.len]
            .iter()
            .enumerate()
            .find_map(|(i, p)| Some((i, f(p)?)))?;
        self.remove(index);
        Some(value)
    }

    /// Takes the first type.
    pub(super) fn ty(&mut self) -> Option<Type> {
        self.take_map(Type::from_name)
    }

    /// Takes a float rounding: `.rn .rz .rm .rp`.
    pub(super) fn rounding(&mut self) -> Option<Rounding> {
        self.take_map(|p| {
            Some(match p {
                "rn" => Rounding::Nearest,
                "rz" => Rounding::Zero,
                "rm" => Rounding::Down,
                "rp" => Rounding::Up,
                _ => return None,
            })
        })
    }

    /// Returns all modifiers not taken yet.
    pub(super) fn all(&self) -> &[&'a str] {
        &self.parts[..self.len]
    }

    /// Returns the first modifier not taken, if any is left.
    pub(super) fn rest(&self) -> Option<&'a str> {
        self.parts[..self.len].first().copied()
    }
}
