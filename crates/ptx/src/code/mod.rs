//! The lowered form: a dense instruction set that the interpreter executes, and the tables that it
//! refers to.
//!
//! Registers are in rows of 32 lanes, in three files: rows of `u32` (everything up to 32 bits,
//! narrower values zero-extended), rows of `u64`, and predicates, one mask per register. A [`Row`]
//! is an index into the frame of the running function or, with [`CONST`] set, into the module's
//! table of splatted constants.

mod kernel;
pub(crate) mod mbarrier;
mod operations;
mod tensor;
mod texture;
mod video;

pub use self::kernel::{Kernel, KernelParam};
pub use self::operations::*;
pub use self::tensor::*;
pub use self::texture::*;
pub use self::video::*;
use crate::position::Position;

/// A row of a register file; see the module's documentation.
pub type Row = u32;
/// A predicate register of the running function.
pub type Pred = u16;

/// Set in a [`Row`] that indexes constants.
pub const CONST: Row = 1 << 31;
/// A destination whose value is discarded.
pub const SINK: Row = u32::MAX;
pub const SINK_PRED: Pred = u16::MAX;

/// Windows of generic addresses that are not host addresses; they lie above every user address of
/// the host.
pub const SHARED_WINDOW: u64 = 0x0100_0000_0000_0000;
pub const LOCAL_WINDOW: u64 = 0x0200_0000_0000_0000;
pub const PARAM_WINDOW: u64 = 0x0300_0000_0000_0000;
/// Window of function "addresses": window plus index.
pub const FUNCTION_WINDOW: u64 = 0x0400_0000_0000_0000;
/// Bits that distinguish the windows.
pub const WINDOW_MASK: u64 = 0xff00_0000_0000_0000;

/// A module after lowering. The interpreter executes it only after [`crate::verify`] has checked
/// that every row, predicate, branch target and table index is in range.
#[derive(Clone, Debug, Default)]
pub struct Program {
    pub code: Vec<Code>,
    /// Line in the PTX text for each instruction.
    pub lines: Vec<u32>,
    pub functions: Vec<Function>,
    /// Splatted constants, `[value; 32]` a row.
    pub consts32: Vec<[u32; 32]>,
    pub consts64: Vec<[u64; 32]>,
    /// Operand lists of vector accesses.
    pub rows: Vec<Row>,
    pub calls: Vec<Call>,
    /// Targets of `brx.idx`, as ranges of `targets`.
    pub targets: Vec<u32>,
    /// Loads, stores and atomics that are volatile or have an ordering, ascending.
    pub strong: Vec<u32>,
    pub tensors: Vec<Tensor>,
    pub videos: Vec<VideoInstruction>,
    pub textures: Vec<TextureInstruction>,
    /// Instructions of a long text that cannot run here, ascending, and why.
    pub refused: Vec<(u32, String)>,
    /// Whether kernels call `malloc` or `free`.
    pub uses_heap: bool,
}

impl Program {
    /// Returns why a trap stands for another instruction, if it does.
    pub(crate) fn refusal(&self, pc: u32) -> Option<&str> {
        let found = self.refused.binary_search_by_key(&pc, |(at, _)| *at).ok()?;
        Some(&self.refused[found].1)
    }
}

/// A function's code, and the registers and memory that it needs.
#[derive(Debug, Clone, Default)]
pub struct Function {
    pub name: String,
    /// A kernel, which cannot be called.
    pub kernel: bool,
    /// First instruction; `None` for a function that is only declared.
    pub entry: Option<u32>,
    pub rows32: u32,
    pub rows64: u32,
    pub preds: u32,
    /// Bytes of the frame in local memory: return value, parameters, variables.
    pub frame_bytes: u32,
    /// Return value and parameters: offsets in the frame and sizes.
    pub returns: Vec<ParamSlot>,
    pub params: Vec<ParamSlot>,
    pub at: Position,
}

/// A formal parameter in a function's frame, or an actual one in the caller's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParamSlot {
    pub offset: u32,
    pub bytes: u32,
}

/// One call site.
#[derive(Debug, Clone)]
pub struct Call {
    pub callee: Callee,
    /// Positions in the caller's frame.
    pub returns: Vec<ParamSlot>,
    pub params: Vec<ParamSlot>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Callee {
    Function(u32),
    /// Row of 64 bits that holds function addresses.
    Indirect(Row),
    Runtime(Runtime),
}

/// Operations on memory of `alloca`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StackOp {
    /// Allocates `a` bytes in local memory; d receives their address.
    Take { align: u32 },
    /// d receives the number of bytes allocated.
    Save,
    /// Sets the number of bytes allocated to `a`.
    Restore,
}

/// Functions that CUDA's device runtime provides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runtime {
    Vprintf,
    Malloc,
    Free,
    AssertFail,
    /// `__cudaCDP2*`: a launch's parameters, a launch, a copy, a stream, memory; and calls that do
    /// nothing here.
    ChildBuffer,
    ChildLaunch,
    ChildCopy,
    ChildStream,
    ChildMalloc,
    ChildFree,
    ChildNothing,
    /// `cudaGraphSetConditional`. A condition's handle is the address of its value.
    SetConditional,
    /// `cudaGraphLaunch`.
    GraphLaunch,
}

/// Guard of an instruction: it runs in lanes whose predicate differs from `negated`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Guard {
    pub pred: Pred,
    pub negated: bool,
}

impl Guard {
    pub const ALWAYS: Guard = Guard {
        pred: SINK_PRED,
        negated: false,
    };
}

#[derive(Debug, Clone, Copy)]
pub struct Code {
    pub guard: Guard,
    pub op: Op,
}

/// One instruction for a whole warp.
#[derive(Debug, Clone, Copy)]
pub enum Op {
    Bin32 {
        op: Bin32,
        d: Row,
        a: Row,
        b: Row,
    },
    Un32 {
        op: Un32,
        flags: FloatFlags,
        d: Row,
        a: Row,
    },
    Tern32 {
        op: Tern32,
        d: Row,
        a: Row,
        b: Row,
        c: Row,
    },
    Lop3 {
        lut: u8,
        d: Row,
        a: Row,
        b: Row,
        c: Row,
    },
    BinF32 {
        op: BinF32,
        flags: FloatFlags,
        d: Row,
        a: Row,
        b: Row,
    },
    FmaF32 {
        rounding: Rounding,
        flags: FloatFlags,
        d: Row,
        a: Row,
        b: Row,
        c: Row,
    },
    Bin64 {
        op: Bin64,
        d: Row,
        a: Row,
        b: Row,
    },
    Un64 {
        op: Un64,
        d: Row,
        a: Row,
    },
    Tern64 {
        op: Tern64,
        d: Row,
        a: Row,
        b: Row,
        c: Row,
    },
    BinF64 {
        op: BinF64,
        d: Row,
        a: Row,
        b: Row,
    },
    FmaF64 {
        rounding: Rounding,
        d: Row,
        a: Row,
        b: Row,
        c: Row,
    },
    Shift64 {
        op: Shift64,
        d: Row,
        a: Row,
        b: Row,
    },
    Narrow {
        op: Narrow,
        d: Row,
        a: Row,
    },
    /// Multiplies 32 x 32 bits to 64.
    MulWide {
        signed: bool,
        d: Row,
        a: Row,
        b: Row,
    },
    MadWide {
        signed: bool,
        d: Row,
        a: Row,
        b: Row,
        c: Row,
    },
    /// Packs two 32-bit halves into 64 bits: low, high.
    Pack64 {
        d: Row,
        lo: Row,
        hi: Row,
    },
    Bfe64 {
        signed: bool,
        d: Row,
        a: Row,
        pos: Row,
        len: Row,
    },
    /// Inserts a into b.
    Bfi32 {
        d: Row,
        a: Row,
        b: Row,
        pos: Row,
        len: Row,
    },
    Bfi64 {
        d: Row,
        a: Row,
        b: Row,
        pos: Row,
        len: Row,
    },
    Slct64 {
        float: bool,
        d: Row,
        a: Row,
        b: Row,
        c: Row,
    },
    Carry32 {
        op: Carry,
        read: bool,
        write: bool,
        d: Row,
        a: Row,
        b: Row,
        c: Row,
    },
    Carry64 {
        op: Carry,
        read: bool,
        write: bool,
        d: Row,
        a: Row,
        b: Row,
        c: Row,
    },
    Cvt {
        cvt: Cvt,
        d: Row,
        a: Row,
    },
    /// Converts two floats to a packed pair; a becomes the high half.
    CvtPack {
        to: CvtType,
        rounding: Rounding,
        relu: bool,
        d: Row,
        a: Row,
        b: Row,
    },
    /// Converts two singles to a pair of 8-bit floats, saturated to finite numbers; a becomes the
    /// high one.
    PackFloat8 {
        format: Float8,
        relu: bool,
        d: Row,
        a: Row,
        b: Row,
    },
    /// Converts a pair of 8-bit floats to a pair of f16.
    UnpackFloat8 {
        format: Float8,
        relu: bool,
        d: Row,
        a: Row,
    },
    /// Rounds the mantissa of an f32 to 10 bits, ties away from zero.
    CvtTf32 {
        d: Row,
        a: Row,
    },
    Setp {
        ty: CmpType,
        cmp: Cmp,
        ftz: bool,
        d: Pred,
        a: Row,
        b: Row,
    },
    /// Compares packed halves, with two results.
    SetpX2 {
        bf16: bool,
        cmp: Cmp,
        ftz: bool,
        d: Pred,
        q: Pred,
        a: Row,
        b: Row,
    },
    Testp {
        wide: bool,
        test: Test,
        d: Pred,
        a: Row,
    },
    /// d = lut[a | b << 1]
    PredOp {
        lut: u8,
        d: Pred,
        a: Pred,
        b: Pred,
    },
    /// d = value where the guard holds
    PredConst {
        value: bool,
        d: Pred,
    },
    Sel32 {
        d: Row,
        a: Row,
        b: Row,
        p: Pred,
        negated: bool,
    },
    Sel64 {
        d: Row,
        a: Row,
        b: Row,
        p: Pred,
        negated: bool,
    },
    Special32 {
        which: Special,
        d: Row,
    },
    Special64 {
        which: Special,
        d: Row,
    },
    /// Computes the absolute local offset of a position in the frame.
    FrameAddress {
        d: Row,
        offset: u32,
    },
    Ld {
        width: Width,
        mem: Mem,
        d: Row,
    },
    St {
        width: Width,
        mem: Mem,
        a: Row,
    },
    /// `n` registers listed in `Program::rows` from `list`.
    LdVec {
        width: Width,
        n: u8,
        list: u32,
        mem: Mem,
    },
    StVec {
        width: Width,
        n: u8,
        list: u32,
        mem: Mem,
    },
    /// Rows of d, b, c are in `Program::rows` from `list`.
    Atom {
        op: AtomOp,
        wide: bool,
        list: u32,
        mem: Mem,
    },
    /// Copies `bytes` (4, 8, 16) to shared memory. Only as many as the row `take` says come from
    /// the source; zeros fill the rest. `list`: source row or SINK, whether it is wide, low and
    /// high half of the offset.
    CpAsync {
        bytes: u8,
        take: Row,
        to: Mem,
        list: u32,
    },
    /// Tests whether generic addresses fall into a window.
    Isspacep {
        space: MemSpace,
        d: Pred,
        a: Row,
    },
    /// In `Program::rows` from `list`: destination of 64 bits, count or parity, state, destination
    /// predicate.
    Mbarrier {
        op: Mbarrier,
        list: u32,
        mem: Mem,
    },
    Fence,
    Bra {
        target: u32,
    },
    BrxIdx {
        index: Row,
        first: u32,
        count: u32,
    },
    Call {
        call: u32,
    },
    Ret,
    Exit,
    Trap,
    /// Allocates or frees a thread's memory above its frames.
    Stack {
        op: StackOp,
        d: Row,
        a: Row,
    },
    /// A hint to let other blocks run.
    Yield,
    Bar {
        kind: BarKind,
        id: Row,
        count: Row,
        pred: Pred,
        negated: bool,
        d: Row,
    },
    WarpSync {
        mask: Row,
    },
    /// In `Program::rows` from `list`: the rows of b, c and the member mask.
    Shfl {
        mode: Shfl,
        d: Row,
        p: Pred,
        a: Row,
        list: u32,
    },
    Vote {
        mode: Vote,
        d: Row,
        pd: Pred,
        pred: Pred,
        negated: bool,
        mask: Row,
    },
    MatchAny {
        wide: bool,
        d: Row,
        a: Row,
        mask: Row,
    },
    MatchAll {
        wide: bool,
        d: Row,
        p: Pred,
        a: Row,
        mask: Row,
    },
    Redux {
        op: Redux,
        d: Row,
        a: Row,
        mask: Row,
    },
    ActiveMask {
        d: Row,
    },
    /// One of [`Program::textures`].
    Texture {
        index: u32,
    },
    /// One of [`Program::videos`].
    Video {
        index: u32,
    },
    /// One of [`Program::tensors`].
    Tensor {
        index: u32,
    },
    Nop,
}

/// Operations that may do more than compute, load and store for the lanes of a mask: jump, wait,
/// exit, involve several lanes.
macro_rules! control_ops {
    () => {
        $crate::code::Op::Bra { .. }
            | $crate::code::Op::BrxIdx { .. }
            | $crate::code::Op::Call { .. }
            | $crate::code::Op::Ret
            | $crate::code::Op::Exit
            | $crate::code::Op::Trap
            | $crate::code::Op::Yield
            | $crate::code::Op::Bar { .. }
            | $crate::code::Op::WarpSync { .. }
            | $crate::code::Op::Shfl { .. }
            | $crate::code::Op::Vote { .. }
            | $crate::code::Op::MatchAny { .. }
            | $crate::code::Op::MatchAll { .. }
            | $crate::code::Op::Redux { .. }
            | $crate::code::Op::Tensor { .. }
            | $crate::code::Op::Atom { .. }
    };
}
pub(crate) use control_ops;

/// Operations on memory.
macro_rules! memory_ops {
    () => {
        $crate::code::Op::Ld { .. }
            | $crate::code::Op::St { .. }
            | $crate::code::Op::LdVec { .. }
            | $crate::code::Op::StVec { .. }
            | $crate::code::Op::CpAsync { .. }
            | $crate::code::Op::Mbarrier { .. }
            | $crate::code::Op::Stack { .. }
            | $crate::code::Op::Texture { .. }
            | $crate::code::Op::Fence
    };
}
pub(crate) use memory_ops;

/// Arithmetic of integers and floats.
macro_rules! arithmetic_ops {
    () => {
        $crate::code::Op::Bin32 { .. }
            | $crate::code::Op::Un32 { .. }
            | $crate::code::Op::Tern32 { .. }
            | $crate::code::Op::Lop3 { .. }
            | $crate::code::Op::BinF32 { .. }
            | $crate::code::Op::FmaF32 { .. }
            | $crate::code::Op::Bin64 { .. }
            | $crate::code::Op::Un64 { .. }
            | $crate::code::Op::Tern64 { .. }
            | $crate::code::Op::BinF64 { .. }
            | $crate::code::Op::FmaF64 { .. }
            | $crate::code::Op::Shift64 { .. }
            | $crate::code::Op::Narrow { .. }
            | $crate::code::Op::MulWide { .. }
            | $crate::code::Op::MadWide { .. }
            | $crate::code::Op::Pack64 { .. }
            | $crate::code::Op::Bfe64 { .. }
            | $crate::code::Op::Bfi32 { .. }
            | $crate::code::Op::Bfi64 { .. }
            | $crate::code::Op::Carry32 { .. }
            | $crate::code::Op::Carry64 { .. }
    };
}
pub(crate) use arithmetic_ops;

impl Op {
    /// Whether it is one of [`control_ops`].
    pub fn is_control(&self) -> bool {
        matches!(self, control_ops!())
    }
}
