//! The operands of each instruction: the one list of where they stand and what they must name. The
//! verifier reads it, and the fuzzer changes operands by it.

use crate::code::{
    Access, AtomOp, BarKind, Base, CmpType, DetailRows, Mbarrier, Mem, Mma, Op, Pred, Row, StackOp,
    Tensor, TextureInstruction, TextureOp, VideoInstruction, Vote, Width,
};

/// The use that an instruction makes of a row or a predicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Read32,
    Read64,
    Write32,
    Write64,
    /// These may be [`SINK`](crate::code::SINK) instead of a row.
    MayRead32,
    MayWrite32,
    MayWrite64,
    /// A predicate in a list of rows, or [`SINK_PRED`](crate::code::SINK_PRED).
    MayWritePred,
    /// A word that names no row.
    Word,
}

impl Use {
    fn read(wide: bool) -> Self {
        if wide { Use::Read64 } else { Use::Read32 }
    }

    fn write(wide: bool) -> Self {
        if wide { Use::Write64 } else { Use::Write32 }
    }

    fn may_write(wide: bool) -> Self {
        if wide {
            Use::MayWrite64
        } else {
            Use::MayWrite32
        }
    }
}

/// Tables of a [`Program`](crate::code::Program) that instructions index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Table {
    Calls,
    Tensors,
    Textures,
    Videos,
}

/// One operand.
pub(crate) enum Operand<'o> {
    Row(Use, &'o mut Row),
    ReadPred(&'o mut Pred),
    /// May be [`SINK_PRED`](crate::code::SINK_PRED).
    WritePred(&'o mut Pred),
    /// An instruction of the same function.
    Target(&'o mut u32),
    /// Entries of `Program::targets`: the first, and their number.
    Targets(&'o mut u32, u32),
    /// Entries of `Program::rows`: the first, their number, and the use of each. The last use is
    /// that of all further ones.
    List(&'o mut u32, u32, [Use; 4]),
    Item(Table, &'o mut u32),
}

use Operand::{Item, List, ReadPred, Target, Targets, WritePred};
use Use::{MayRead32, MayWrite32, MayWritePred, Read32, Read64, Word, Write32, Write64};

/// Calls `see` for each operand of `op`.
pub(crate) fn operands(op: &mut Op, see: &mut impl FnMut(Operand<'_>)) {
    match op {
        Op::Bin32 { d, a, b, .. }
        | Op::BinF32 { d, a, b, .. }
        | Op::CvtPack { d, a, b, .. }
        | Op::PackFloat8 { d, a, b, .. } => rows(see, [(Write32, d), (Read32, a), (Read32, b)]),
        Op::Un32 { d, a, .. } | Op::UnpackFloat8 { d, a, .. } | Op::CvtTf32 { d, a } => {
            rows(see, [(Write32, d), (Read32, a)]);
        }
        Op::Tern32 { d, a, b, c, .. }
        | Op::Lop3 { d, a, b, c, .. }
        | Op::FmaF32 { d, a, b, c, .. } => {
            rows(see, [(Write32, d), (Read32, a), (Read32, b), (Read32, c)]);
        }
        Op::Cvt { cvt, d, a } => rows(
            see,
            [
                (Use::write(cvt.to.is_wide()), d),
                (Use::read(cvt.from.is_wide()), a),
            ],
        ),
        Op::Special32 { d, .. } | Op::ActiveMask { d } => rows(see, [(Write32, d)]),
        Op::Special64 { d, .. } | Op::FrameAddress { d, .. } => rows(see, [(Write64, d)]),
        Op::Bfi32 { d, a, b, pos, len } => {
            rows(see, [(Write32, d), (Read32, a), (Read32, b)]);
            rows(see, [(Read32, pos), (Read32, len)]);
        }
        Op::Carry32 { d, a, b, c, .. } => {
            // Additions and subtractions leave the third operand unused.
            rows(see, [(Write32, d), (Read32, a), (Read32, b), (Read32, c)]);
        }
        Op::Narrow { d, a, .. } => rows(see, [(Write32, d), (Read64, a)]),
        Op::Sel32 { d, a, b, p, .. } => {
            rows(see, [(Write32, d), (Read32, a), (Read32, b)]);
            see(ReadPred(p));
        }
        Op::Sel64 { d, a, b, p, .. } => {
            rows(see, [(Write64, d), (Read64, a), (Read64, b)]);
            see(ReadPred(p));
        }
        op => wide(op, see),
    }
}

/// Instructions on 64 bits.
fn wide(op: &mut Op, see: &mut impl FnMut(Operand<'_>)) {
    match op {
        Op::Bin64 { d, a, b, .. } | Op::BinF64 { d, a, b, .. } => {
            rows(see, [(Write64, d), (Read64, a), (Read64, b)]);
        }
        Op::Un64 { d, a, .. } => rows(see, [(Write64, d), (Read64, a)]),
        Op::Tern64 { d, a, b, c, .. } | Op::FmaF64 { d, a, b, c, .. } => {
            rows(see, [(Write64, d), (Read64, a), (Read64, b), (Read64, c)]);
        }
        Op::Carry64 { d, a, b, c, .. } => {
            rows(see, [(Write64, d), (Read64, a), (Read64, b), (Read64, c)]);
        }
        Op::Shift64 { d, a, b, .. } => rows(see, [(Write64, d), (Read64, a), (Read32, b)]),
        Op::MulWide { d, a, b, .. } => rows(see, [(Write64, d), (Read32, a), (Read32, b)]),
        Op::MadWide { d, a, b, c, .. } => {
            rows(see, [(Write64, d), (Read32, a), (Read32, b), (Read64, c)]);
        }
        Op::Pack64 { d, lo, hi } => rows(see, [(Write64, d), (Read32, lo), (Read32, hi)]),
        Op::Bfe64 { d, a, pos, len, .. } => {
            rows(
                see,
                [(Write64, d), (Read64, a), (Read32, pos), (Read32, len)],
            );
        }
        Op::Bfi64 { d, a, b, pos, len } => {
            rows(see, [(Write64, d), (Read64, a), (Read64, b)]);
            rows(see, [(Read32, pos), (Read32, len)]);
        }
        Op::Slct64 { d, a, b, c, .. } => {
            rows(see, [(Write64, d), (Read64, a), (Read64, b), (Read32, c)]);
        }
        op => predicates(op, see),
    }
}

/// Instructions whose results are predicates.
fn predicates(op: &mut Op, see: &mut impl FnMut(Operand<'_>)) {
    match op {
        Op::Setp { ty, d, a, b, .. } => {
            let read = Use::read(matches!(ty, CmpType::U64 | CmpType::S64 | CmpType::F64));
            see(WritePred(d));
            rows(see, [(read, a), (read, b)]);
        }
        Op::SetpX2 { d, q, a, b, .. } => {
            see(WritePred(d));
            see(WritePred(q));
            rows(see, [(Read32, a), (Read32, b)]);
        }
        Op::Testp { wide, d, a, .. } => {
            see(WritePred(d));
            rows(see, [(Use::read(*wide), a)]);
        }
        Op::PredOp { d, a, b, .. } => {
            see(WritePred(d));
            see(ReadPred(a));
            see(ReadPred(b));
        }
        Op::PredConst { d, .. } => see(WritePred(d)),
        Op::Isspacep { d, a, .. } => {
            see(WritePred(d));
            rows(see, [(Read64, a)]);
        }
        op => memory(op, see),
    }
}

/// Accesses to memory.
fn memory(op: &mut Op, see: &mut impl FnMut(Operand<'_>)) {
    match op {
        Op::Ld { width, mem, d } => {
            rows(see, [(Use::write(width.is_wide()), d)]);
            address(mem, see);
        }
        Op::St { width, mem, a } => {
            rows(see, [(Use::read(width.is_wide()), a)]);
            address(mem, see);
        }
        Op::LdVec {
            width,
            n,
            list,
            mem,
        } => {
            see(List(list, (*n).into(), [loaded(*width); 4]));
            address(mem, see);
        }
        Op::StVec {
            width,
            n,
            list,
            mem,
        } => {
            see(List(list, (*n).into(), [Use::read(width.is_wide()); 4]));
            address(mem, see);
        }
        Op::Atom {
            op,
            wide,
            list,
            mem,
        } => {
            let wide = *wide && atomic_bytes(*op, *wide) == 8;
            let read = Use::read(wide);
            see(List(list, 3, [Use::may_write(wide), read, read, Word]));
            address(mem, see);
        }
        // The first word of the list is a row, which the second describes: see `copy_source`.
        Op::CpAsync { take, to, list, .. } => {
            rows(see, [(MayRead32, take)]);
            see(List(list, 4, [Word; 4]));
            address(to, see);
        }
        Op::Mbarrier { op, list, mem } => {
            let d = match op {
                Mbarrier::Arrive | Mbarrier::ArriveDrop => Write64,
                _ => Word,
            };
            let state = if *op == Mbarrier::TestWait {
                Read64
            } else {
                Word
            };
            see(List(list, 4, [d, Read32, state, MayWritePred]));
            address(mem, see);
        }
        op => control(op, see),
    }
}

fn loaded(width: Width) -> Use {
    Use::may_write(width.is_wide())
}

/// Returns the size of an atomic access.
pub(crate) fn atomic_bytes(op: AtomOp, wide: bool) -> u32 {
    match op {
        AtomOp::Cas16 | AtomOp::AddF16 | AtomOp::AddBf16 => 2,
        _ if wide => 8,
        _ => 4,
    }
}

/// Jumps, calls and barriers.
fn control(op: &mut Op, see: &mut impl FnMut(Operand<'_>)) {
    match op {
        Op::Bra { target } => see(Target(target)),
        Op::BrxIdx {
            index,
            first,
            count,
        } => {
            rows(see, [(Read32, index)]);
            see(Targets(first, *count));
        }
        Op::Call { call } => see(Item(Table::Calls, call)),
        Op::Stack { op, d, a } => match op {
            StackOp::Take { .. } => rows(see, [(Write64, d), (Read64, a)]),
            StackOp::Save => rows(see, [(Write64, d)]),
            StackOp::Restore => rows(see, [(Read64, a)]),
        },
        Op::Bar {
            kind,
            id,
            count,
            pred,
            d,
            ..
        } => {
            rows(see, [(Read32, id), (MayRead32, count)]);
            // A barrier without a reduction reads no predicate.
            see(WritePred(pred));
            match kind {
                BarKind::Sync | BarKind::Arrive => {}
                BarKind::RedPopc => rows(see, [(Write32, d)]),
                BarKind::RedAnd | BarKind::RedOr => rows(see, [(MayWritePred, d)]),
            }
        }
        op => together(op, see),
    }
}

/// Instructions that several lanes execute together, and those with an entry in a table.
fn together(op: &mut Op, see: &mut impl FnMut(Operand<'_>)) {
    match op {
        Op::WarpSync { mask } => rows(see, [(Read32, mask)]),
        Op::Shfl { d, p, a, list, .. } => {
            rows(see, [(MayWrite32, d), (Read32, a)]);
            see(WritePred(p));
            see(List(list, 3, [Read32; 4]));
        }
        Op::Vote {
            mode,
            d,
            pd,
            pred,
            mask,
            ..
        } => {
            match mode {
                Vote::Ballot => rows(see, [(Write32, d)]),
                _ => see(WritePred(pd)),
            }
            see(ReadPred(pred));
            rows(see, [(Read32, mask)]);
        }
        Op::MatchAny { wide, d, a, mask } => {
            rows(see, [(Write32, d), (Use::read(*wide), a), (Read32, mask)]);
        }
        Op::MatchAll {
            wide,
            d,
            p,
            a,
            mask,
        } => {
            rows(see, [(Write32, d), (Use::read(*wide), a), (Read32, mask)]);
            see(WritePred(p));
        }
        Op::Redux { d, a, mask, .. } => {
            rows(see, [(Write32, d), (Read32, a), (Read32, mask)]);
        }
        Op::Texture { index } => see(Item(Table::Textures, index)),
        Op::Video { index } => see(Item(Table::Videos, index)),
        Op::Tensor { index } => see(Item(Table::Tensors, index)),
        // The functions before this one handle all others; these have no operands.
        _ => {}
    }
}

/// Calls `see` for each row of a matrix instruction.
pub(crate) fn of_tensor(tensor: &mut Tensor, see: &mut impl FnMut(Operand<'_>)) {
    match tensor {
        Tensor::Mma(mma) => of_mma(mma, see),
        Tensor::LoadMatrix { mem, rows: to, .. } => {
            to.iter_mut()
                .for_each(|row| see(Operand::Row(Write32, row)));
            address(mem, see);
        }
        Tensor::MoveMatrix { d, a } => rows(see, [(Write32, d), (Read32, a)]),
        Tensor::Transfer {
            store,
            fragment,
            mem,
            stride,
            rows: list,
            ..
        } => {
            let wide = fragment.is_wide();
            let each = if *store {
                Use::read(wide)
            } else {
                Use::write(wide)
            };
            list.iter_mut().for_each(|row| see(Operand::Row(each, row)));
            rows(see, [(MayRead32, stride)]);
            address(mem, see);
        }
    }
}

fn of_mma(mma: &mut Mma, see: &mut impl FnMut(Operand<'_>)) {
    let wide = mma.a == crate::code::Element::F64;
    let (read, write) = (Use::read(wide), Use::write(wide));
    for list in [&mut mma.rows_a, &mut mma.rows_b, &mut mma.rows_c] {
        list.iter_mut().for_each(|row| see(Operand::Row(read, row)));
    }
    mma.rows_d
        .iter_mut()
        .for_each(|row| see(Operand::Row(write, row)));
    if let Some(sparse) = &mut mma.sparse {
        rows(see, [(Read32, &mut sparse.metadata)]);
    }
}

/// Calls `see` for each row of an instruction on a texture or surface.
pub(crate) fn of_texture(texture: &mut TextureInstruction, see: &mut impl FnMut(Operand<'_>)) {
    let value = match texture.op {
        TextureOp::Sample { .. } | TextureOp::Gather { .. } | TextureOp::Query { .. } => MayWrite32,
        TextureOp::Surface {
            access: Access::Load,
            bytes,
            ..
        } => Use::may_write(bytes == 8),
        TextureOp::Surface { bytes, .. } => Use::read(bytes == 8),
        TextureOp::Formatted { .. } => Read32,
    };
    rows(
        see,
        [(Read64, &mut texture.object), (Read32, &mut texture.layer)],
    );
    for row in texture.at.iter_mut().chain(&mut texture.offset) {
        see(Operand::Row(Read32, row));
    }
    match &mut texture.detail {
        DetailRows::Base => {}
        DetailRows::Level(row) => rows(see, [(Read32, row)]),
        DetailRows::Gradients(gradients) => {
            let all = gradients.as_flattened_mut();
            all.iter_mut()
                .for_each(|row| see(Operand::Row(Read32, row)));
        }
    }
    texture
        .values
        .iter_mut()
        .for_each(|row| see(Operand::Row(value, row)));
}

/// Calls `see` for each row of a video instruction.
pub(crate) fn of_video(video: &mut VideoInstruction, see: &mut impl FnMut(Operand<'_>)) {
    match video {
        VideoInstruction::Plain(v) => {
            let (a, b, c) = (&mut v.a, &mut v.b, &mut v.c);
            rows(
                see,
                [
                    (Write32, &mut v.d),
                    (Read32, a),
                    (Read32, b),
                    (MayRead32, c),
                ],
            );
        }
        VideoInstruction::Mad(v) => {
            let (a, b, c) = (&mut v.a, &mut v.b, &mut v.c);
            rows(
                see,
                [(Write32, &mut v.d), (Read32, a), (Read32, b), (Read32, c)],
            );
        }
    }
}

fn rows<const N: usize>(see: &mut impl FnMut(Operand<'_>), rows: [(Use, &mut Row); N]) {
    for (used, row) in rows {
        see(Operand::Row(used, row));
    }
}

fn address(mem: &mut Mem, see: &mut impl FnMut(Operand<'_>)) {
    match &mut mem.base {
        Base::None => {}
        Base::Row32(row) => rows(see, [(Read32, row)]),
        Base::Row64(row) => rows(see, [(Read64, row)]),
    }
}
