//! Lowering of one function: scopes, registers, frames, labels.

use std::collections::HashMap;

use super::Context;
use super::modifiers::Modifiers;
use super::shared::Reserved;
pub(super) use super::symbol::Symbol;
use crate::code::{Base, Code, Function, Guard, Mem, MemSpace, Op, Pred, Row, StackOp, Width};
use crate::error::{Error, Position};
use crate::limits::{
    INSTRUCTIONS_MAX, LOCAL_BYTES_MAX, PREDICATES_PER_FUNCTION_MAX, REGISTERS_PER_FUNCTION_MAX,
    REGISTERS_PER_MODULE_MAX,
};
use crate::parse::ast::{self, Instruction, Space, Statement, Type, Variable};
use crate::parse::lexer::clipped;

/// Frames of functions have lengths that are multiples of this, so that every natural alignment is
/// kept.
pub(super) const FRAME_ALIGN: u32 = 16;

#[derive(Default)]
pub(super) struct Scope<'a> {
    names: HashMap<&'a str, Symbol>,
    /// Sizes of the elements of variables, in bytes.
    elements: HashMap<&'a str, u32>,
    /// Ranges `%r<N>`: by prefix, the symbol of `%r0` and N.
    ranges: HashMap<&'a str, (Symbol, u32)>,
    pub(super) targets: HashMap<&'a str, Vec<&'a str>>,
    /// Call prototypes: sizes of return values and parameters, in bytes.
    pub(super) prototypes: HashMap<&'a str, (Vec<u32>, Vec<u32>)>,
}

/// The function being lowered.
pub(super) struct Lowering<'c, 'm, 'a> {
    pub(super) context: &'c mut Context<'m, 'a>,
    pub(super) index: u32,
    unit: u32,
    /// The target that the unit is written for, such as 80 of `sm_80`.
    pub(super) target: u32,
    pub(super) kernel: bool,
    pub(super) scopes: Vec<Scope<'a>>,
    pub(super) rows32: u32,
    pub(super) rows64: u32,
    pub(super) preds: u32,
    pub(super) frame_bytes: u32,
    /// Static shared memory of a kernel, with that of the functions that it may call.
    shared: Reserved,
    /// Code address of each label, once known.
    labels: Vec<Option<u32>>,
    /// Instructions and entries of `targets` that wait for a label's address.
    pub(super) fixups: Vec<(Fixup, u32, Position)>,
    /// Scratch registers, reused by every instruction.
    pub(super) temps: super::temps::Temps,
    pub(super) guard: Guard,
    pub(super) at: Position,
    /// `.reg` parameters and return values with their positions in the frame.
    reg_returns: Vec<(Type, u32, u32)>,
    /// Bytes that the caller had allocated with `alloca`, saved if this function allocates some.
    taken: Option<Row>,
}

#[derive(Clone, Copy)]
pub(super) enum Fixup {
    Branch(u32),
    Target(u32),
}

/// Whether an access is strong rather than weak (PTX ISA 8.4), which race checks need to know.
fn is_strong(opcode: &str) -> bool {
    let mut parts = opcode.split('.');
    matches!(parts.next(), Some("ld" | "st" | "atom" | "red"))
        && parts.any(|part| {
            matches!(
                part,
                "volatile" | "relaxed" | "acquire" | "release" | "acq_rel" | "mmio"
            )
        })
}

/// Lowers a body; returns the static shared memory of a kernel.
pub(super) fn lower<'a>(
    context: &mut Context<'_, 'a>,
    function: &ast::Function<'a>,
    index: u32,
) -> Result<Reserved, Error> {
    let Some(body) = &function.body else {
        return Ok(Reserved::default());
    };
    let info = context.program.functions[index as usize].clone();
    let shared = context.layout.shared.of_kernel(index);
    let target = context.ast.targets.get(function.unit as usize);
    let target = target.copied().unwrap_or(u32::MAX);
    let mut lowering = Lowering {
        context,
        index,
        unit: function.unit,
        target,
        kernel: function.kernel,
        scopes: vec![Scope::default()],
        rows32: 0,
        rows64: 0,
        preds: 0,
        frame_bytes: info.frame_bytes,
        shared,
        labels: Vec::new(),
        fixups: Vec::new(),
        temps: Default::default(),
        guard: Guard::ALWAYS,
        at: function.at,
        reg_returns: Vec::new(),
        taken: None,
    };
    let entry = lowering.context.program.code.len() as u32;
    lowering.declare_params(function, &info)?;
    if !function.kernel && takes_memory(body) {
        let d = lowering.register(Type::B64, 1)?;
        let a = lowering.const64(0);
        lowering.taken = Some(d);
        let op = StackOp::Save;
        lowering.emit(Op::Stack { op, d, a })?;
    }
    lowering.block(body)?;
    lowering.at = function.at;
    lowering.emit_return()?;
    lowering.finish()?;
    let (rows32, rows64, preds) = (lowering.rows32, lowering.rows64, lowering.preds);
    let (frame_bytes, shared) = (lowering.frame_bytes, lowering.shared);
    let out = &mut context.program.functions[index as usize];
    out.entry = Some(entry);
    (out.rows32, out.rows64, out.preds) = (rows32, rows64, preds);
    out.frame_bytes = frame_bytes.next_multiple_of(FRAME_ALIGN);
    Ok(shared)
}

impl<'a> Lowering<'_, '_, 'a> {
    fn declare_params(
        &mut self,
        function: &ast::Function<'a>,
        info: &Function,
    ) -> Result<(), Error> {
        for (var, slot) in function.returns.iter().zip(&info.returns) {
            if var.space == Space::Reg {
                let index = self.scalar(var)?;
                self.declare(var.name, Symbol::Register { ty: var.ty, index }, var.at)?;
                self.reg_returns.push((var.ty, index, slot.offset));
            } else {
                self.declare(
                    var.name,
                    Symbol::Frame {
                        offset: slot.offset,
                        bytes: slot.bytes,
                    },
                    var.at,
                )?;
            }
        }
        for (var, slot) in function.params.iter().zip(&info.params) {
            let symbol = if self.kernel {
                Symbol::KernelParam {
                    offset: slot.offset,
                    bytes: slot.bytes,
                }
            } else if var.space == Space::Reg {
                let index = self.scalar(var)?;
                let mem = Mem {
                    space: MemSpace::Frame,
                    base: Base::None,
                    offset: slot.offset.into(),
                };
                self.emit(Op::Ld {
                    width: self.whole_width(var.ty)?,
                    mem,
                    d: index,
                })?;
                Symbol::Register { ty: var.ty, index }
            } else {
                Symbol::Frame {
                    offset: slot.offset,
                    bytes: slot.bytes,
                }
            };
            self.declare(var.name, symbol, var.at)?;
        }
        Ok(())
    }

    /// Returns the memory width of a register's whole value.
    pub(super) fn whole_width(&self, ty: Type) -> Result<Width, Error> {
        Ok(match ty.bytes() {
            _ if ty == Type::Pred => return Err(self.invalid("a predicate has no place in memory")),
            1 => Width::U8,
            2 => Width::U16,
            4 => Width::B32,
            8 => Width::B64,
            _ => return Err(self.invalid("128-bit registers are not supported")),
        })
    }

    pub(super) fn emit_return(&mut self) -> Result<(), Error> {
        for i in 0..self.reg_returns.len() {
            let (ty, index, offset) = self.reg_returns[i];
            let mem = Mem {
                space: MemSpace::Frame,
                base: Base::None,
                offset: offset.into(),
            };
            self.emit(Op::St {
                width: self.whole_width(ty)?,
                mem,
                a: index,
            })?;
        }
        if let Some(a) = self.taken {
            let op = StackOp::Restore;
            self.emit(Op::Stack { op, d: a, a })?;
        }
        self.emit(if self.kernel { Op::Exit } else { Op::Ret })
    }

    fn block(&mut self, body: &[Statement<'a>]) -> Result<(), Error> {
        // Labels may be used before they are defined.
        for statement in body {
            if let Statement::Label(name, at) = *statement {
                let id = self.labels.len() as u32;
                self.labels.push(None);
                self.declare(name, Symbol::Label { id }, at)?;
            } else if let Statement::Targets { name, labels, .. } = statement {
                self.scope().targets.insert(name, labels.clone());
            }
        }
        for statement in body {
            match statement {
                Statement::Variable(var) => self.variable(var)?,
                Statement::Label(name, at) => {
                    if let Some(Symbol::Label { id }) = self.find(name) {
                        if self.labels[id as usize].is_some() {
                            return Err(Error::Invalid {
                                at: *at,
                                message: format!("label `{}` stands twice", clipped(name)),
                            });
                        }
                        self.labels[id as usize] = Some(self.context.program.code.len() as u32);
                    }
                }
                Statement::Instruction(instruction) => self.statement(instruction)?,
                Statement::Block(inner) => {
                    self.scopes.push(Scope::default());
                    self.block(inner)?;
                    self.scopes.pop();
                }
                Statement::Prototype {
                    name,
                    returns,
                    params,
                } => {
                    let sizes = |vars: &[Variable<'_>]| {
                        vars.iter().map(|v| v.bytes as u32).collect::<Vec<_>>()
                    };
                    let sizes = (sizes(returns), sizes(params));
                    self.scope().prototypes.insert(name, sizes);
                }
                Statement::Targets { .. } => {}
            }
        }
        Ok(())
    }

    fn scope(&mut self) -> &mut Scope<'a> {
        let last = self.scopes.len() - 1;
        &mut self.scopes[last]
    }

    fn statement(&mut self, instruction: &Instruction<'a>) -> Result<(), Error> {
        self.at = instruction.at;
        self.temps.reset();
        self.guard = match instruction.guard {
            None => Guard::ALWAYS,
            Some((name, negated)) => Guard {
                pred: self.pred_name(name)?,
                negated,
            },
        };
        let Some((name, modifiers)) = Modifiers::split(instruction.opcode) else {
            return Err(self.unsupported("too many modifiers"));
        };
        let first = self.context.program.code.len() as u32;
        let mark = self.mark();
        match self.instruction(name, modifiers, &instruction.operands) {
            Err(error) if self.may_refuse_later(&error) => {
                self.refuse_when_reached(mark, &error)?;
            }
            lowered => lowered?,
        }
        if is_strong(instruction.opcode) {
            let program = &mut self.context.program;
            program.strong.extend(first..program.code.len() as u32);
        }
        self.guard = Guard::ALWAYS;
        Ok(())
    }

    pub(super) fn emit(&mut self, op: Op) -> Result<(), Error> {
        self.emit_guarded(self.guard, op)
    }

    pub(super) fn emit_guarded(&mut self, guard: Guard, op: Op) -> Result<(), Error> {
        let program = &mut self.context.program;
        Context::limit(
            self.at,
            "instructions of a module",
            program.code.len() as u64 + 1,
            INSTRUCTIONS_MAX as u64,
        )?;
        program.code.push(Code { guard, op });
        program.lines.push(self.at.line);
        Ok(())
    }

    fn variable(&mut self, var: &Variable<'a>) -> Result<(), Error> {
        self.at = var.at;
        let symbol = match var.space {
            Space::Reg => {
                let symbol = self.registers(var)?;
                if var.ranged {
                    self.scope().ranges.insert(var.name, (symbol, var.count));
                    return Ok(());
                }
                symbol
            }
            Space::Local | Space::Param => {
                let offset = self.frame(var.bytes, var.align)?;
                Symbol::Frame {
                    offset,
                    bytes: var.bytes as u32,
                }
            }
            Space::Shared if var.bytes == 0 => Symbol::DynamicShared,
            Space::Shared => {
                let place = match self.kernel {
                    true => self.shared.add(var.bytes, var.align),
                    false => self.context.layout.shared.inner(var),
                };
                let offset = u32::try_from(place).unwrap_or(u32::MAX);
                Symbol::Shared { offset }
            }
            Space::Const | Space::Global => {
                let Some(offset) = self.context.layout.inner(var) else {
                    return Err(self.unsupported("this variable inside a function"));
                };
                Symbol::Global {
                    address: self.context.base.wrapping_add(offset),
                }
            }
        };
        if var.space != Space::Reg {
            self.scope().elements.insert(var.name, var.ty.bytes());
        }
        self.declare(var.name, symbol, var.at)
    }

    /// Returns the size in bytes of the elements of a variable.
    pub(super) fn element_bytes(&self, name: &str) -> Option<u32> {
        let scopes = self.scopes.iter().rev();
        let inner = scopes.filter_map(|scope| scope.elements.get(name)).next();
        inner.copied().or_else(|| {
            let found = self.context.layout.find(self.unit, name);
            found.map(|symbol| symbol.element_bytes)
        })
    }

    /// Allocates the register of a parameter.
    fn scalar(&mut self, var: &Variable<'a>) -> Result<u32, Error> {
        self.at = var.at;
        if var.ranged || var.bytes != u64::from(var.ty.bytes()) {
            return Err(self.invalid("a vector of registers as parameter"));
        }
        self.register(var.ty, 1)
    }

    /// Allocates the registers that a declaration names; returns the first of a range.
    fn registers(&mut self, var: &Variable<'a>) -> Result<Symbol, Error> {
        let (ty, elements) = (var.ty, (var.bytes / u64::from(var.ty.bytes())) as u32);
        if elements > 1 && (ty == Type::Pred || elements > 4 || elements * ty.bytes() > 16) {
            return Err(self.invalid("a vector register of this type"));
        }
        let index = self.register(ty, var.count.saturating_mul(elements))?;
        Ok(match elements {
            1 => Symbol::Register { ty, index },
            count => Symbol::VectorRegister { ty, index, count },
        })
    }

    /// Allocates bytes in the frame.
    pub(super) fn frame(&mut self, bytes: u64, align: u32) -> Result<u32, Error> {
        let offset =
            u64::from(self.frame_bytes).next_multiple_of(u64::from(align.clamp(1, FRAME_ALIGN)));
        let end = offset.saturating_add(bytes);
        Context::limit(
            self.at,
            "local memory of a thread in bytes",
            end,
            LOCAL_BYTES_MAX.into(),
        )?;
        self.frame_bytes = end as u32;
        Ok(offset as u32)
    }

    /// Allocates `count` consecutive registers.
    pub(super) fn register(&mut self, ty: Type, count: u32) -> Result<u32, Error> {
        self.context.registers += u64::from(count);
        Context::limit(
            self.at,
            "registers of a module",
            self.context.registers,
            REGISTERS_PER_MODULE_MAX,
        )?;
        let (next, limit) = match ty {
            Type::Pred => (&mut self.preds, PREDICATES_PER_FUNCTION_MAX),
            // Two rows each: low half and high half.
            Type::B128 => {
                let count = u64::from(count) * 2;
                let count = u32::try_from(count).unwrap_or(u32::MAX);
                return self.register(Type::B64, count);
            }
            _ if ty.bytes() == 8 => (&mut self.rows64, REGISTERS_PER_FUNCTION_MAX),
            _ => (&mut self.rows32, REGISTERS_PER_FUNCTION_MAX),
        };
        let first = *next;
        let end = u64::from(first) + u64::from(count);
        Context::limit(self.at, "registers of a function", end, limit.into())?;
        *next = end as u32;
        Ok(first)
    }

    fn declare(&mut self, name: &'a str, symbol: Symbol, at: Position) -> Result<(), Error> {
        if self.scope().names.insert(name, symbol).is_some() {
            return Err(Error::Invalid {
                at,
                message: format!("`{}` is declared twice", clipped(name)),
            });
        }
        Ok(())
    }

    /// Returns the innermost meaning of a name.
    pub(super) fn find(&self, name: &str) -> Option<Symbol> {
        let prefix = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let number: Option<u32> = name[prefix.len()..].parse().ok();
        for scope in self.scopes.iter().rev() {
            if let Some(&symbol) = scope.names.get(name) {
                return Some(symbol);
            }
            let range = number.and_then(|n| Some((n, *scope.ranges.get(prefix)?)));
            if let Some((n, (first, count))) = range
                && n < count
            {
                return Some(first.following(n));
            }
        }
        if let Some(special) = super::special::special(name) {
            return Some(Symbol::Special(special));
        }
        if let Some(symbol) = self.context.layout.find(self.unit, name) {
            return Some(match symbol.space {
                Space::Shared if symbol.dynamic => Symbol::DynamicShared,
                Space::Shared => Symbol::Shared {
                    offset: symbol.offset as u32,
                },
                _ => Symbol::Global {
                    address: self.context.base.wrapping_add(symbol.offset),
                },
            });
        }
        let function = self
            .context
            .layout
            .functions
            .by_name
            .get(&(self.unit, name));
        match function {
            Some(&index) => Some(Symbol::Function { index }),
            None => {
                let (vector, element) = name.split_once('.')?;
                (!vector.is_empty() && !element.contains('.')).then_some(())?;
                self.find(vector)?.element(element)
            }
        }
    }

    pub(super) fn fixup(&mut self, fixup: Fixup, label: &str) -> Result<(), Error> {
        let Some(Symbol::Label { id }) = self.find(label) else {
            return Err(self.invalid(&format!("unknown label `{}`", clipped(label))));
        };
        self.fixups.push((fixup, id, self.at));
        Ok(())
    }

    fn finish(&mut self) -> Result<(), Error> {
        for &(fixup, id, at) in &self.fixups {
            let Some(target) = self.labels[id as usize] else {
                return Err(Error::Invalid {
                    at,
                    message: "label out of scope".into(),
                });
            };
            let program = &mut self.context.program;
            match fixup {
                Fixup::Branch(code) => program.code[code as usize].op = Op::Bra { target },
                Fixup::Target(index) => program.targets[index as usize] = target,
            }
        }
        Ok(())
    }

    /// Returns the text of the current instruction, for messages.
    fn source(&self) -> String {
        let rest = self
            .context
            .text
            .get(self.at.offset as usize..)
            .unwrap_or_default();
        let end = rest.find([';', '\n']).unwrap_or(rest.len());
        clipped(rest[..end].trim()).to_owned()
    }

    pub(super) fn unsupported(&self, reason: &str) -> Error {
        Error::Unsupported {
            at: self.at,
            instruction: self.source(),
            reason: reason.into(),
        }
    }

    pub(super) fn invalid(&self, message: &str) -> Error {
        Error::Invalid {
            at: self.at,
            message: format!("{message} in `{}`", self.source()),
        }
    }

    pub(super) fn rows(&mut self, rows: &[Row]) -> u32 {
        let list = self.context.program.rows.len() as u32;
        self.context.program.rows.extend_from_slice(rows);
        list
    }

    pub(super) fn new_pred(&mut self) -> Result<Pred, Error> {
        self.register(Type::Pred, 1).map(|index| index as Pred)
    }
}

/// Whether a function allocates memory on its stack, and so must free it when it returns.
fn takes_memory(body: &[Statement<'_>]) -> bool {
    body.iter().any(|statement| match statement {
        Statement::Instruction(instruction) => instruction.opcode.starts_with("alloca"),
        Statement::Block(block) => takes_memory(block),
        _ => false,
    })
}
