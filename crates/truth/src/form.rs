//! One form of an instruction: its text, and the registers, predicates and memory that it reads and
//! writes.
//!
//! An operand is `NAME:TYPE`, optionally `NAME:TYPE*COUNT` (that many registers, or elements in
//! memory), and optionally with `@CLASS`, which chooses the values it is tried with
//! (`crate::values`). Its name tells its role:
//! | name | |
//! |---|---|
//! | `a b c f`, with a digit or without | a source |
//! | `d e`, likewise | a result |
//! | `t` | a register that is neither |
//! | `global shared local` | the address of a thread's cell in that space: source, then result |
//! | `window` | a cell in shared memory by its generic address |
//!
//! A second use of an operand is written as its register, `%d`, or `%d*4`. Declarations outside the
//! kernel, such as functions, come first, followed by ` ;; `; `KERNEL` in them makes names unique.

/// A PTX type, as far as a test needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PtxType {
    Pred,
    /// Integers and bits: whether signed, and the number of bits.
    Int(bool, u32),
    F16,
    Bf16,
    F16x2,
    Bf16x2,
    Tf32,
    F32,
    F64,
}

impl PtxType {
    fn from_name(name: &str) -> Option<PtxType> {
        Some(match name {
            "pred" => PtxType::Pred,
            "f16" => PtxType::F16,
            "bf16" => PtxType::Bf16,
            "f16x2" => PtxType::F16x2,
            "bf16x2" => PtxType::Bf16x2,
            "tf32" => PtxType::Tf32,
            "f32" => PtxType::F32,
            "f64" => PtxType::F64,
            _ => {
                let (letter, bits) = name.split_at_checked(1)?;
                let signed = match letter {
                    "b" | "u" => false,
                    "s" => true,
                    _ => return None,
                };
                match bits {
                    "8" | "16" | "32" | "64" => PtxType::Int(signed, bits.parse().ok()?),
                    _ => return None,
                }
            }
        })
    }

    /// Returns the size in memory, in bytes.
    pub fn bytes(self) -> usize {
        match self {
            PtxType::Pred => 1,
            PtxType::Int(_, bits) => bits as usize / 8,
            PtxType::F16 | PtxType::Bf16 => 2,
            PtxType::F64 => 8,
            _ => 4,
        }
    }

    /// Returns the size in a register, in bytes: bytes are held in 32 bits.
    pub fn register_bytes(self) -> usize {
        match self {
            PtxType::Int(_, 8) => 4,
            other => other.bytes(),
        }
    }
}

/// The role of an operand in its instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Source,
    Result,
    Scratch,
    Cell(Space),
}

/// The memory that a cell is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    Global,
    Shared,
    Local,
    /// Shared memory, by its generic address.
    Window,
}

/// One operand.
#[derive(Clone, Debug)]
pub struct Operand {
    pub name: String,
    pub role: Role,
    pub kind: PtxType,
    /// Registers, or elements of a cell; 1 if no count is given.
    pub count: usize,
    /// Whether the text gave a count, so that registers are numbered.
    pub counted: bool,
    /// Class of the values it is tried with; empty for the type's own.
    pub class: String,
}

impl Operand {
    /// Returns its registers, as the instruction names them.
    pub fn registers(&self) -> Vec<String> {
        if self.counted && !matches!(self.role, Role::Cell(_)) {
            (0..self.count)
                .map(|i| format!("%{}{i}", self.name))
                .collect()
        } else {
            vec![format!("%{}", self.name)]
        }
    }
}

/// Target of texts, unless a form needs a later one.
pub const TARGET: u32 = 80;

/// One form.
#[derive(Clone, Debug)]
pub struct Form {
    /// The declaration's text after expansion, which identifies the form.
    pub declared: String,
    /// Declarations before the kernel, with `KERNEL` for its name; usually none.
    pub before: String,
    /// PTX, without the final `;`.
    pub text: String,
    pub operands: Vec<Operand>,
    /// The architecture that its text is for.
    pub target: u32,
}

impl Form {
    /// Parses one expanded line.
    pub fn parse(declared: &str) -> Result<Form, String> {
        let mut operands: Vec<Operand> = Vec::new();
        let mut text = String::new();
        let (before, mut rest) = declared.split_once(" ;; ").unwrap_or(("", declared));
        while let Some(colon) = rest.find(':') {
            let start = rest[..colon]
                .rfind(|c: char| !c.is_ascii_alphanumeric())
                .map_or(0, |at| at + 1);
            let (name, tail) = (&rest[start..colon], &rest[colon + 1..]);
            let type_end = tail
                .find(|c: char| !c.is_ascii_alphanumeric())
                .unwrap_or(tail.len());
            let (Some(role), Some(kind)) = (role(name), PtxType::from_name(&tail[..type_end]))
            else {
                text.push_str(&rest[..=colon]);
                rest = tail;
                continue;
            };
            text.push_str(&rest[..start]);
            rest = &tail[type_end..];
            let (count, after) = suffix(rest, '*');
            let (class, after) = suffix(after, '@');
            rest = after;
            let operand = Operand {
                name: name.into(),
                role,
                kind,
                count: match count {
                    Some(count) => count.parse().map_err(|_| format!("`*{count}`"))?,
                    None => 1,
                },
                counted: count.is_some(),
                class: class.unwrap_or_default().into(),
            };
            text.push_str(&operand.registers().join(", "));
            if operands.iter().any(|o| o.name == operand.name) {
                return Err(format!("two operands `{name}`"));
            }
            operands.push(operand);
        }
        text.push_str(rest);
        for operand in operands.iter().filter(|o| o.counted) {
            let again = format!("%{}*{}", operand.name, operand.count);
            text = text.replace(&again, &operand.registers().join(", "));
        }
        Ok(Form {
            declared: declared.into(),
            before: before.into(),
            text,
            operands,
            target: TARGET,
        })
    }

    /// Returns the opcode with its modifiers, of the last instruction of the text.
    pub fn opcode(&self) -> &str {
        let last = self.text.rsplit(';').next().unwrap_or_default().trim();
        last.split(' ').next().unwrap_or_default()
    }

    /// Returns the kinds and classes of the inputs, one for each register or element.
    pub fn inputs(&self) -> Vec<(PtxType, &str)> {
        self.operands
            .iter()
            .filter(|o| matches!(o.role, Role::Source | Role::Cell(_)))
            .flat_map(|o| std::iter::repeat_n((o.kind, o.class.as_str()), o.count))
            .collect()
    }

    /// Returns the results in the order in which they are stored: kind, and elements per thread.
    pub fn results(&self) -> Vec<(&Operand, PtxType, usize)> {
        let mut out = Vec::new();
        for operand in &self.operands {
            match operand.role {
                Role::Result => out.extend((0..operand.count).map(|_| (operand, operand.kind, 1))),
                Role::Cell(_) => out.push((operand, operand.kind, operand.count)),
                Role::Source | Role::Scratch => {}
            }
        }
        out
    }
}

fn role(name: &str) -> Option<Role> {
    let space = match name {
        "global" => Some(Space::Global),
        "shared" => Some(Space::Shared),
        "local" => Some(Space::Local),
        "window" => Some(Space::Window),
        _ => None,
    };
    if let Some(space) = space {
        return Some(Role::Cell(space));
    }
    let (letter, digits) = name.split_at_checked(1)?;
    if !digits.chars().all(|c| c.is_ascii_digit()) {
        return None;
    }
    match letter {
        "a" | "b" | "c" | "f" => Some(Role::Source),
        "d" | "e" => Some(Role::Result),
        "t" => Some(Role::Scratch),
        _ => None,
    }
}

/// Returns the text after `mark`, and the rest.
fn suffix(text: &str, mark: char) -> (Option<&str>, &str) {
    let Some(rest) = text.strip_prefix(mark) else {
        return (None, text);
    };
    let end = rest
        .find(|c: char| !c.is_ascii_alphanumeric())
        .unwrap_or(rest.len());
    (Some(&rest[..end]), &rest[end..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operands_become_registers() {
        let form =
            Form::parse("atom.global.add.u32 d:u32, [global:u32], b:u32@small; x.v2 {e:f32*2}, %b");
        let form = form.unwrap_or_else(|e| unreachable!("{e}"));
        assert_eq!(
            form.text,
            "atom.global.add.u32 %d, [%global], %b; x.v2 {%e0, %e1}, %b"
        );
        assert_eq!(form.opcode(), "x.v2");
        assert_eq!(
            form.inputs(),
            [
                (PtxType::Int(false, 32), ""),
                (PtxType::Int(false, 32), "small")
            ]
        );
        assert_eq!(form.results().len(), 4);
    }

    #[test]
    fn what_is_no_operand_stays() {
        let form = Form::parse("bar.sync 0; L: ld.shared::cta.u32 d:u32, [shared:u32]");
        let form = form.unwrap_or_else(|e| unreachable!("{e}"));
        assert_eq!(form.text, "bar.sync 0; L: ld.shared::cta.u32 %d, [%shared]");
    }
}
