//! Values inside of instructions that the interpreter trusts: sizes, axes, shapes, parts of
//! registers, and the number of rows that a shape needs.

use super::Defect;
use super::operands::atomic_bytes;
use crate::code::{
    Access, BitField, Element, Fragment, Mem, MemSpace, Mma, MmaShape, Op, Role, Special, StackOp,
    Sum, Tensor, TextureInstruction, TextureOp, Video, VideoInstruction, VideoOp,
};

/// Bytes of the longest vector that one access reads or writes.
const VECTOR_BYTES_MAX: u32 = 32;
/// Alignment of `alloca`, at most.
const ALIGN_MAX: u32 = 1 << 16;

pub(super) fn of_op(op: &Op) -> Result<(), Defect> {
    match op {
        Op::LdVec { width, n, .. } => vector(width.bytes() * u32::from(*n)),
        Op::St { mem, .. } | Op::Mbarrier { mem, .. } => written(mem),
        Op::StVec { width, n, mem, .. } => {
            written(mem)?;
            vector(width.bytes() * u32::from(*n))
        }
        Op::Atom { op, wide, mem, .. } => {
            written(mem)?;
            require(
                !*wide || atomic_bytes(*op, true) == 8,
                "an atomic of 16 bits on 64",
            )
        }
        Op::CpAsync { bytes, to, .. } => {
            written(to)?;
            require(
                matches!(bytes, 4 | 8 | 16),
                "an asynchronous copy of this size",
            )
        }
        Op::Special32 { which, .. } | Op::Special64 { which, .. } => special(*which),
        Op::Stack {
            op: StackOp::Take { align },
            ..
        } => require(
            align.is_power_of_two() && *align <= ALIGN_MAX,
            "an alignment that is no power of two",
        ),
        _ => Ok(()),
    }
}

fn require(holds: bool, otherwise: &'static str) -> Result<(), Defect> {
    match holds {
        true => Ok(()),
        false => Err(Defect::Form(otherwise)),
    }
}

fn vector(bytes: u32) -> Result<(), Defect> {
    require(
        bytes.is_power_of_two() && bytes <= VECTOR_BYTES_MAX,
        "a vector of this length",
    )
}

/// Checks that an instruction does not write kernel parameters.
fn written(mem: &Mem) -> Result<(), Defect> {
    require(mem.space != MemSpace::Param, "a write to kernel parameters")
}

fn special(which: Special) -> Result<(), Defect> {
    match which {
        Special::Tid(axis) | Special::Ntid(axis) | Special::Ctaid(axis) | Special::Nctaid(axis) => {
            require(axis < 3, "a fourth axis")
        }
        Special::Envreg(number) => require(number < 32, "a special register of this number"),
        _ => Ok(()),
    }
}

pub(super) fn of_tensor(tensor: &Tensor) -> Result<(), Defect> {
    match tensor {
        Tensor::Mma(mma) => of_mma(mma),
        Tensor::LoadMatrix { rows, .. } => {
            require(matches!(rows.len(), 1 | 2 | 4), "this number of matrices")
        }
        Tensor::MoveMatrix { .. } => Ok(()),
        Tensor::Transfer {
            store,
            fragment,
            mem,
            rows,
            ..
        } => {
            if *store {
                written(mem)?;
            }
            let shape = fragment.shape;
            let known = match fragment.role {
                Role::A(element) | Role::B(element) => shape.is_of_wmma(element),
                Role::C(sum) => factors(sum).iter().any(|&e| shape.is_of_wmma(e)),
            };
            require(known, "a fragment of an unknown shape")?;
            let count = match fragment.role {
                Role::A(Element::F16) | Role::B(Element::F16) => 8,
                _ => fragment.registers(),
            };
            require(rows.len() == count, "a fragment of another number of rows")
        }
    }
}

/// Returns the types of factors whose products have sums of this type.
fn factors(sum: Sum) -> &'static [Element] {
    match sum {
        Sum::F16 => &[Element::F16],
        Sum::F32 => &[Element::F16, Element::Bf16, Element::Tf32],
        Sum::F64 => &[Element::F64],
        Sum::S32 => &[Element::S8, Element::S4, Element::B1],
    }
}

fn of_mma(mma: &Mma) -> Result<(), Defect> {
    let shape = mma.shape;
    require(
        mma.a.has_sums(mma.c, mma.d) && mma.a.is_multiplied_by(mma.b),
        "types that are not multiplied",
    )?;
    let fragment = |role, shape| Fragment { role, shape }.registers();
    let lens = [&mma.rows_a, &mma.rows_b, &mma.rows_c, &mma.rows_d].map(Vec::len);
    if mma.quarters.is_some() {
        let sums = |sum| if sum == Sum::F32 { 8 } else { 4 };
        require(
            shape.is_of_quarters(mma.a) && lens == [2, 2, sums(mma.c), sums(mma.d)],
            "quarters of another shape",
        )?;
        return require(mma.sparse.is_none(), "sparse quarters");
    }
    let stored = match &mma.sparse {
        Some(sparse) => {
            let selectors = shape.selectors(mma.a);
            require(sparse.selector < selectors, "a selector out of range")?;
            require(mma.c == mma.d, "sums of two types")?;
            MmaShape {
                k: shape.k / 2,
                ..shape
            }
        }
        None => {
            let known = shape.is_of_mma(mma.a) || shape.is_of_wmma(mma.a);
            require(known, "a product of an unknown shape")?;
            shape
        }
    };
    let (a, b) = (
        fragment(Role::A(mma.a), stored),
        fragment(Role::B(mma.b), shape),
    );
    let sums = [mma.c, mma.d].map(|sum| fragment(Role::C(sum), shape));
    // `wmma` holds the factors of halves twice.
    let doubled = mma.sparse.is_none() && mma.a == Element::F16 && shape.is_of_wmma(mma.a);
    let fits = lens == [a, b, sums[0], sums[1]] || doubled && lens == [8, 8, sums[0], sums[1]];
    require(fits, "a product of another number of rows")
}

pub(super) fn of_texture(texture: &TextureInstruction) -> Result<(), Defect> {
    // A query names no coordinates.
    let has_coordinates = !matches!(texture.op, TextureOp::Query { .. });
    require(
        !has_coordinates || (1..=3).contains(&texture.geometry.dimensions),
        "a geometry of this number of dimensions",
    )?;
    match texture.op {
        TextureOp::Gather { channel } => require(channel < 4, "a fifth channel"),
        TextureOp::Surface { access, bytes, .. } => {
            let all = u32::from(bytes) * texture.values.len() as u32;
            require(
                bytes.is_power_of_two() && all.is_power_of_two() && all <= 16,
                "an access of this size to a surface",
            )?;
            let is_reduction = matches!(access, Access::Reduce(_));
            require(
                bytes <= 8 && (!is_reduction || bytes >= 4),
                "a reduction of this size",
            )
        }
        _ => Ok(()),
    }
}

pub(super) fn of_video(video: &VideoInstruction) -> Result<(), Defect> {
    match video {
        VideoInstruction::Plain(video) => of_plain_video(video),
        VideoInstruction::Mad(mad) => {
            part(mad.a_part, 64)?;
            part(mad.b_part, 64)?;
            require(mad.shift < 32, "a shift by this count")
        }
    }
}

fn of_plain_video(video: &Video) -> Result<(), Defect> {
    require(video.results <= 4, "this number of results")?;
    for at in video.a_parts.iter().chain(&video.b_parts) {
        part(*at, 64)?;
    }
    for at in video.d_parts.iter().flatten() {
        part(*at, 32)?;
    }
    // Counts of shifts are unsigned.
    let shifts = matches!(video.op, VideoOp::Shl { .. } | VideoOp::Shr { .. });
    require(!shifts || !video.signed[2], "a signed count of a shift")
}

/// Checks that a part of `bits` bits holds at least one bit and at most 32.
fn part(part: BitField, bits: u8) -> Result<(), Defect> {
    let fits = (1..=32).contains(&part.bits) && part.first <= bits - part.bits;
    require(fits, "a part outside of its register")
}
