//! Lowering of operands to rows: registers, constants, special registers, symbols, addresses; and
//! scratch registers.

use super::function::{Lowering, Symbol};
use super::special::SPECIAL_UNSUPPORTED;
use crate::code::{
    Base, Bin32, Bin64, CONST, FUNCTION_WINDOW, FloatFlags, Mem, MemSpace, Narrow, Op, Pred, Row,
    SINK, SINK_PRED, Shift64, Special, Un32, Width,
};
use crate::error::Error;
use crate::parse::ast::{Operand, Type};
use crate::parse::lexer::{Number, clipped};

/// How strictly an operand's width must fit the instruction's type.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Fit {
    Exact,
    /// `ld`, `st` and `cvt` take wider registers (PTX ISA 9.4.1).
    Wider,
}

impl<'a> Lowering<'_, '_, 'a> {
    pub(super) fn temp32(&mut self) -> Result<Row, Error> {
        if let Some(&row) = self.temps.rows32.0.get(self.temps.rows32.1) {
            self.temps.rows32.1 += 1;
            return Ok(row);
        }
        let row = self.register(Type::B32, 1)?;
        self.temps.rows32.0.push(row);
        self.temps.rows32.1 += 1;
        Ok(row)
    }

    pub(super) fn temp64(&mut self) -> Result<Row, Error> {
        if let Some(&row) = self.temps.rows64.0.get(self.temps.rows64.1) {
            self.temps.rows64.1 += 1;
            return Ok(row);
        }
        let row = self.register(Type::B64, 1)?;
        self.temps.rows64.0.push(row);
        self.temps.rows64.1 += 1;
        Ok(row)
    }

    pub(super) fn temp_pred(&mut self) -> Result<Pred, Error> {
        if let Some(&pred) = self.temps.preds.0.get(self.temps.preds.1) {
            self.temps.preds.1 += 1;
            return Ok(pred);
        }
        let pred = self.new_pred()?;
        self.temps.preds.0.push(pred);
        self.temps.preds.1 += 1;
        Ok(pred)
    }

    pub(super) fn const32(&mut self, value: u32) -> Row {
        let program = &mut self.context.program;
        *self.context.consts32.entry(value).or_insert_with(|| {
            program.consts32.push([value; 32]);
            (program.consts32.len() as u32 - 1) | CONST
        })
    }

    pub(super) fn const64(&mut self, value: u64) -> Row {
        let program = &mut self.context.program;
        *self.context.consts64.entry(value).or_insert_with(|| {
            program.consts64.push([value; 32]);
            (program.consts64.len() as u32 - 1) | CONST
        })
    }

    /// Returns a predicate by its name, as guard or operand.
    pub(super) fn pred_name(&self, name: &str) -> Result<Pred, Error> {
        match self.find(name) {
            Some(Symbol::Register {
                ty: Type::Pred,
                index,
            }) => Ok(index as Pred),
            Some(_) => Err(self.invalid(&format!("`{}` is no predicate", clipped(name)))),
            None => Err(self.unknown(name)),
        }
    }

    /// Returns a source predicate, and whether it is negated. Constants become scratch predicates.
    pub(super) fn pred(&mut self, operand: &Operand<'a>) -> Result<(Pred, bool), Error> {
        match *operand {
            Operand::Name(name) => Ok((self.pred_name(name)?, false)),
            Operand::Negated(name) => Ok((self.pred_name(name)?, true)),
            Operand::Number(Number::Integer(value)) => {
                let pred = self.temp_pred()?;
                self.emit(Op::PredConst {
                    value: value != 0,
                    d: pred,
                })?;
                Ok((pred, false))
            }
            _ => Err(self.invalid("expected a predicate")),
        }
    }

    pub(super) fn is_predicate(&self, operand: &Operand<'a>) -> bool {
        let name = match *operand {
            Operand::Name(name) | Operand::Negated(name) => name,
            _ => return false,
        };
        matches!(
            self.find(name),
            Some(Symbol::Register { ty: Type::Pred, .. })
        )
    }

    pub(super) fn pred_dest(&self, operand: &Operand<'a>) -> Result<Pred, Error> {
        match *operand {
            Operand::Name("_") => Ok(SINK_PRED),
            Operand::Name(name) => self.pred_name(name),
            _ => Err(self.invalid("expected a destination predicate")),
        }
    }

    fn unknown(&self, name: &str) -> Error {
        if SPECIAL_UNSUPPORTED
            .iter()
            .any(|prefix| name.starts_with(prefix))
        {
            return self.unsupported(&format!("special register `{}`", clipped(name)));
        }
        self.invalid(&format!("unknown name `{}`", clipped(name)))
    }

    fn check_width(&self, declared: Type, wanted: Type, fit: Fit, name: &str) -> Result<(), Error> {
        let (have, want) = (declared.bytes(), wanted.bytes());
        let plain = !matches!(declared, Type::Pred | Type::B128);
        let fits = plain && (have == want || (have > want && fit == Fit::Wider));
        if fits {
            return Ok(());
        }
        Err(self.invalid(&format!(
            "`{}` has {} bits, the instruction wants {}",
            clipped(name),
            have * 8,
            want * 8
        )))
    }

    /// Returns the row of a source operand of up to 32 bits.
    pub(super) fn src32(&mut self, operand: &Operand<'a>, ty: Type) -> Result<Row, Error> {
        self.src32_fit(operand, ty, Fit::Exact)
    }

    pub(super) fn src32_fit(
        &mut self,
        operand: &Operand<'a>,
        ty: Type,
        fit: Fit,
    ) -> Result<Row, Error> {
        match *operand {
            Operand::Number(number) => {
                let bits = match ty {
                    Type::F32 | Type::Tf32 => number.single_bits(),
                    _ => match number {
                        Number::Integer(v) => v as u32,
                        Number::Single(v) => v,
                        Number::Double(_) => {
                            return Err(self.invalid("a double as operand of this type"));
                        }
                    },
                };
                let bits = match ty.bytes() {
                    1 => bits & 0xff,
                    2 => bits & 0xffff,
                    _ => bits,
                };
                Ok(self.const32(bits))
            }
            // The only constant that PTX predefines.
            Operand::Name("WARP_SZ") => Ok(self.const32(32)),
            Operand::Name(name) => match self.find(name) {
                Some(Symbol::Register {
                    ty: declared,
                    index,
                }) => {
                    self.check_width(declared, ty, fit, name)?;
                    if declared.bytes() == 8 {
                        let d = self.temp32()?;
                        self.emit(Op::Narrow {
                            op: Narrow::Low,
                            d,
                            a: index,
                        })?;
                        return Ok(d);
                    }
                    Ok(index)
                }
                Some(Symbol::Special(which)) => {
                    let d = self.temp32()?;
                    self.special32(which, d)?;
                    Ok(d)
                }
                Some(Symbol::Shared { offset }) => Ok(self.const32(offset)),
                Some(_) => Err(self.invalid(&format!("`{}` is no 32-bit value", clipped(name)))),
                None => Err(self.unknown(name)),
            },
            Operand::Offset(name, offset) if self.is_symbol(name) => {
                self.narrow_address(name, offset)
            }
            Operand::Offset(name, offset) => self.sum32(name, offset, ty, fit),
            Operand::Element {
                array,
                index: None,
                offset,
            } => {
                let (offset, _) = self.element_offset(array, offset)?;
                self.narrow_address(array, offset)
            }
            _ => Err(self.invalid("expected a register or constant")),
        }
    }

    /// Lowers `%r1+4` used as a value: the register plus a constant, of the register's width.
    fn sum32(&mut self, name: &'a str, offset: i64, ty: Type, fit: Fit) -> Result<Row, Error> {
        let declared = self.summand(name, ty)?;
        let a = self.src32_fit(&Operand::Name(name), ty, fit)?;
        let (b, d) = (self.const32(offset as u32), self.temp32()?);
        self.emit(Op::Bin32 {
            op: Bin32::Add,
            d,
            a,
            b,
        })?;
        if declared.bytes() == 2 {
            self.truncate16(d, d)?;
        }
        Ok(d)
    }

    /// Returns the type of a register to which a constant may be added.
    fn summand(&self, name: &str, ty: Type) -> Result<Type, Error> {
        match self.find(name) {
            Some(Symbol::Register { ty: declared, .. })
                if !declared.is_float() && !ty.is_float() =>
            {
                Ok(declared)
            }
            Some(_) => Err(self.invalid(&format!(
                "a constant added to `{}`, which is no register of integers",
                clipped(name)
            ))),
            None => Err(self.unknown(name)),
        }
    }

    /// Returns the low half of a symbol's address: addresses in small spaces have 32 bits.
    pub(super) fn narrow_address(&mut self, name: &str, offset: i64) -> Result<Row, Error> {
        let (wide, d) = (self.symbol_address(name, offset)?, self.temp32()?);
        self.emit(Op::Narrow {
            op: Narrow::Low,
            d,
            a: wide,
        })?;
        Ok(d)
    }

    pub(super) fn special32(&mut self, which: Special, d: Row) -> Result<(), Error> {
        if which.is_wide() {
            let wide = self.temp64()?;
            self.emit(Op::Special64 { which, d: wide })?;
            return self.emit(Op::Narrow {
                op: Narrow::Low,
                d,
                a: wide,
            });
        }
        self.emit(Op::Special32 { which, d })
    }

    /// Returns the row of a source operand of 64 bits.
    pub(super) fn src64(&mut self, operand: &Operand<'a>, ty: Type) -> Result<Row, Error> {
        match *operand {
            Operand::Number(number) => {
                let bits = match (ty, number) {
                    (_, Number::Integer(v)) if ty != Type::F64 => v,
                    (Type::F64, _) | (_, Number::Double(_)) => number.double_bits(),
                    _ => return Err(self.invalid("a single as operand of this type")),
                };
                Ok(self.const64(bits))
            }
            Operand::Name(name) => match self.find(name) {
                Some(Symbol::Register {
                    ty: declared,
                    index,
                }) => {
                    self.check_width(declared, ty, Fit::Exact, name)?;
                    Ok(index)
                }
                Some(Symbol::Special(which)) => {
                    let d = self.temp64()?;
                    self.special64(which, d)?;
                    Ok(d)
                }
                Some(_) => self.symbol_address(name, 0),
                None => Err(self.unknown(name)),
            },
            Operand::Element {
                array,
                index: None,
                offset,
            } => {
                let (offset, _) = self.element_offset(array, offset)?;
                self.symbol_address(array, offset)
            }
            Operand::Offset(name, offset) => match self.find(name) {
                Some(Symbol::Register { .. }) => {
                    self.summand(name, ty)?;
                    let a = self.src64(&Operand::Name(name), ty)?;
                    let (b, d) = (self.const64(offset as u64), self.temp64()?);
                    self.emit(Op::Bin64 {
                        op: Bin64::Add,
                        d,
                        a,
                        b,
                    })?;
                    Ok(d)
                }
                _ => self.symbol_address(name, offset),
            },
            _ => Err(self.invalid("expected a register or constant")),
        }
    }

    pub(super) fn special64(&mut self, which: Special, d: Row) -> Result<(), Error> {
        if which.is_wide() {
            return self.emit(Op::Special64 { which, d });
        }
        let narrow = self.temp32()?;
        self.emit(Op::Special32 { which, d: narrow })?;
        let hi = self.const32(0);
        self.emit(Op::Pack64 { d, lo: narrow, hi })
    }

    /// Returns a symbol's address in its own space, in a row of 64 bits.
    pub(super) fn symbol_address(&mut self, name: &str, offset: i64) -> Result<Row, Error> {
        Ok(match self.find(name) {
            Some(Symbol::Global { address }) => self.const64(address.wrapping_add_signed(offset)),
            Some(Symbol::Shared { offset: at } | Symbol::KernelParam { offset: at, .. }) => {
                self.const64(u64::from(at).wrapping_add_signed(offset))
            }
            Some(Symbol::Frame { offset: at, .. }) => {
                let d = self.temp64()?;
                self.emit(Op::FrameAddress {
                    d,
                    offset: at.wrapping_add(offset as u32),
                })?;
                d
            }
            Some(Symbol::DynamicShared) => {
                let (low, d) = (self.temp32()?, self.temp64()?);
                self.emit(Op::Special32 {
                    which: Special::DynamicSharedStart,
                    d: low,
                })?;
                let hi = self.const32(0);
                self.emit(Op::Pack64 { d, lo: low, hi })?;
                if offset != 0 {
                    let b = self.const64(offset as u64);
                    self.emit(Op::Bin64 {
                        op: Bin64::Add,
                        d,
                        a: d,
                        b,
                    })?;
                }
                d
            }
            Some(Symbol::Function { index }) => self.const64(FUNCTION_WINDOW | u64::from(index)),
            Some(_) => return Err(self.invalid(&format!("`{}` has no address", clipped(name)))),
            None => return Err(self.unknown(name)),
        })
    }

    /// Returns a destination register: its row and declared type.
    pub(super) fn dest(
        &self,
        operand: &Operand<'a>,
        ty: Type,
        fit: Fit,
    ) -> Result<(Row, Type), Error> {
        match *operand {
            Operand::Name("_") => Ok((SINK, ty)),
            Operand::Name(name) => match self.find(name) {
                Some(Symbol::Register {
                    ty: declared,
                    index,
                }) => {
                    self.check_width(declared, ty, fit, name)?;
                    Ok((index, declared))
                }
                Some(_) => Err(self.invalid(&format!("`{}` cannot be written", clipped(name)))),
                None => Err(self.unknown(name)),
            },
            _ => Err(self.invalid("expected a destination register")),
        }
    }

    /// Returns a destination of exactly the type's width.
    pub(super) fn dst(&mut self, operand: &Operand<'a>, ty: Type) -> Result<Row, Error> {
        let (row, _) = self.dest(operand, ty, Fit::Exact)?;
        if row != SINK {
            return Ok(row);
        }
        if ty.bytes() == 8 {
            self.temp64()
        } else {
            self.temp32()
        }
    }

    /// Returns the row of a source operand, in the file of the type's width.
    pub(super) fn src(&mut self, operand: &Operand<'a>, ty: Type) -> Result<Row, Error> {
        if ty.bytes() == 8 {
            self.src64(operand, ty)
        } else {
            self.src32(operand, ty)
        }
    }

    /// Sign-extends a 16-bit or 8-bit source to 32 bits. Rows hold narrow values zero-extended.
    pub(super) fn extended(&mut self, row: Row, ty: Type) -> Result<Row, Error> {
        let op = match ty {
            Type::S16 => Un32::SignExtend16,
            Type::S8 => Un32::SignExtend8,
            _ => return Ok(row),
        };
        let d = self.temp32()?;
        self.emit(Op::Un32 {
            op,
            flags: FloatFlags::default(),
            d,
            a: row,
        })?;
        Ok(d)
    }

    /// Zero-extends a result to the form of 16-bit registers.
    pub(super) fn truncate16(&mut self, d: Row, a: Row) -> Result<(), Error> {
        self.emit(Op::Un32 {
            op: Un32::ZeroExtend16,
            flags: FloatFlags::default(),
            d,
            a,
        })
    }

    /// Returns the place of an array's element: the offset from the array in bytes, and the size of
    /// an element.
    fn element_offset(&self, array: &str, offset: i64) -> Result<(i64, u32), Error> {
        let Some(bytes) = self.element_bytes(array) else {
            return Err(self.invalid(&format!("`{}` is no array", clipped(array))));
        };
        Ok((offset.wrapping_mul(bytes.into()), bytes))
    }

    /// Lowers `array[%r1+1]` used as an address.
    fn element(
        &mut self,
        array: &'a str,
        index: Option<&'a str>,
        offset: i64,
        space: Option<MemSpace>,
    ) -> Result<Mem, Error> {
        let (offset, bytes) = self.element_offset(array, offset)?;
        let mem = self.address(Some(array), offset, space)?;
        let Some(index) = index else {
            return Ok(mem);
        };
        let b = self.const32(bytes.trailing_zeros());
        if matches!(mem.space, MemSpace::Generic | MemSpace::Global) {
            let (a, d) = (self.index64(index)?, self.temp64()?);
            let op = Shift64::Shl;
            self.emit(Op::Shift64 { op, d, a, b })?;
            let base = Base::Row64(d);
            return Ok(Mem { base, ..mem });
        }
        let (a, d) = (
            self.src32(&Operand::Name(index), Type::U32)?,
            self.temp32()?,
        );
        let op = Bin32::Shl;
        self.emit(Op::Bin32 { op, d, a, b })?;
        if let Base::Row32(start) = mem.base {
            let op = Bin32::Add;
            self.emit(Op::Bin32 {
                op,
                d,
                a: d,
                b: start,
            })?;
        }
        let base = Base::Row32(d);
        Ok(Mem { base, ..mem })
    }

    /// Returns an index in a row of 64 bits.
    fn index64(&mut self, index: &'a str) -> Result<Row, Error> {
        let operand = Operand::Name(index);
        let Some(Symbol::Register { ty, .. }) = self.find(index) else {
            return Err(self.invalid(&format!("`{}` is no register", clipped(index))));
        };
        if ty.bytes() == 8 {
            return self.src64(&operand, ty);
        }
        let lo = self.src32(&operand, ty)?;
        let hi = match ty.is_signed() {
            true => {
                let (op, b, d) = (Bin32::ShrS, self.const32(31), self.temp32()?);
                self.emit(Op::Bin32 { op, d, a: lo, b })?;
                d
            }
            false => self.const32(0),
        };
        let d = self.temp64()?;
        self.emit(Op::Pack64 { d, lo, hi })?;
        Ok(d)
    }

    /// Lowers an address operand. `space` is named by the opcode; `None` means generic.
    pub(super) fn mem(
        &mut self,
        operand: &Operand<'a>,
        space: Option<MemSpace>,
    ) -> Result<Mem, Error> {
        match *operand {
            Operand::Element {
                array,
                index,
                offset,
            } => self.element(array, index, offset, space),
            Operand::Address { base, offset } => self.address(base, offset, space),
            _ => Err(self.invalid("expected an address")),
        }
    }

    /// Lowers `[base+offset]`.
    fn address(
        &mut self,
        base: Option<&'a str>,
        offset: i64,
        space: Option<MemSpace>,
    ) -> Result<Mem, Error> {
        let space_of = |default| space.unwrap_or(default);
        let Some(name) = base else {
            return Ok(Mem {
                space: space_of(MemSpace::Generic),
                base: Base::None,
                offset,
            });
        };
        let symbol = self.find(name);
        let fixed = |natural: MemSpace, at: i64| {
            // `ld.param` names a function's parameter, which is in the frame; a module's variables
            // are generic.
            let agrees = match space {
                None => true,
                Some(MemSpace::Global | MemSpace::Generic) => natural == MemSpace::Generic,
                Some(MemSpace::Param | MemSpace::Local) => {
                    matches!(natural, MemSpace::Param | MemSpace::Frame)
                }
                Some(space) => space == natural,
            };
            if agrees {
                Ok(Mem {
                    space: natural,
                    base: Base::None,
                    offset: at.wrapping_add(offset),
                })
            } else {
                Err(self.invalid("variable of another state space"))
            }
        };
        match symbol {
            Some(Symbol::Register { ty, index }) if ty.bytes() == 8 => Ok(Mem {
                space: self.register_space(space),
                base: Base::Row64(index),
                offset,
            }),
            Some(Symbol::Register { ty, index }) if ty.bytes() == 4 => Ok(Mem {
                space: self.register_space(space),
                base: Base::Row32(index),
                offset,
            }),
            Some(Symbol::Global { address }) => fixed(MemSpace::Generic, address as i64),
            Some(Symbol::Shared { offset: at }) => fixed(MemSpace::Shared, at.into()),
            Some(Symbol::KernelParam { offset: at, .. }) => fixed(MemSpace::Param, at.into()),
            Some(Symbol::Frame { offset: at, .. }) => fixed(MemSpace::Frame, at.into()),
            Some(Symbol::DynamicShared) => {
                let row = self.temp32()?;
                self.emit(Op::Special32 {
                    which: Special::DynamicSharedStart,
                    d: row,
                })?;
                Ok(Mem {
                    space: MemSpace::Shared,
                    base: Base::Row32(row),
                    offset,
                })
            }
            Some(_) => Err(self.invalid(&format!("`{}` is no address", clipped(name)))),
            None => Err(self.unknown(name)),
        }
    }

    /// Returns the space for an address in a register: parameters of functions have local
    /// addresses.
    fn register_space(&self, space: Option<MemSpace>) -> MemSpace {
        match space {
            Some(MemSpace::Param) if !self.kernel => MemSpace::Local,
            Some(space) => space,
            None => MemSpace::Generic,
        }
    }

    /// Returns the memory width of `ty` for a register declared as `declared`; loads extend to the
    /// register's width.
    pub(super) fn width(&self, ty: Type, declared: Type) -> Result<Width, Error> {
        let wide = declared.bytes() == 8;
        Ok(match (ty.bytes(), ty.is_signed(), wide) {
            (1, false, false) => Width::U8,
            (1, true, false) => Width::S8,
            (2, false, false) => Width::U16,
            (2, true, false) => Width::S16,
            (4, _, false) => Width::B32,
            (1, false, true) => Width::U8x64,
            (1, true, true) => Width::S8x64,
            (2, false, true) => Width::U16x64,
            (2, true, true) => Width::S16x64,
            (4, false, true) => Width::U32x64,
            (4, true, true) => Width::S32x64,
            (8, _, true) => Width::B64,
            _ => return Err(self.unsupported("this width of access")),
        })
    }
}
