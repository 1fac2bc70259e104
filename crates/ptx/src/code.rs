//! The lowered form: one dense instruction set that the interpreter dispatches on, and the tables it refers to.
//!
//! Registers live in rows of 32 lanes. There are three files: rows of `u32` (everything up to 32 bits, narrower
//! values zero-extended), rows of `u64`, and predicates, one mask a register. A [`Row`] is an index into the frame of
//! the running function or, with [`CONST`] set, into the module's table of splatted constants.

use crate::error::Position;

/// Row of a register file; see the module's documentation.
pub type Row = u32;
/// Predicate register of the running function.
pub type Pred = u16;

/// Set in a [`Row`] that indexes constants.
pub const CONST: Row = 1 << 31;
/// A destination that is thrown away.
pub const SINK: Row = u32::MAX;
pub const SINK_PRED: Pred = u16::MAX;

/// Generic addresses that are not host addresses: windows above every user address of the host.
pub const SHARED_WINDOW: u64 = 0x0100_0000_0000_0000;
pub const LOCAL_WINDOW: u64 = 0x0200_0000_0000_0000;
pub const PARAM_WINDOW: u64 = 0x0300_0000_0000_0000;
/// "Addresses" of functions: window plus index.
pub const FUNCTION_WINDOW: u64 = 0x0400_0000_0000_0000;
/// Bits that tell the windows apart.
pub const WINDOW_MASK: u64 = 0xff00_0000_0000_0000;

/// The module after lowering. Built only by [`crate::lower`], which guarantees that every row, predicate, branch
/// target and table index in it is in range: the interpreter relies on that.
#[derive(Debug, Default)]
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
    /// Bytes of module-wide variables in shared memory, before each kernel's own.
    pub uses_heap: bool,
}

/// What a function needs from the machine.
#[derive(Debug, Clone, Default)]
pub struct Function {
    pub name: String,
    /// An entry: cannot be called.
    pub kernel: bool,
    /// First instruction; None for a function that is only declared.
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
    /// Places in the caller's frame.
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

/// Functions that CUDA's device runtime supplies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runtime {
    Vprintf,
    Malloc,
    Free,
    AssertFail,
}

/// Guard of an instruction: runs where the predicate is `!negated`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Guard {
    pub pred: Pred,
    pub negated: bool,
}

impl Guard {
    pub const ALWAYS: Guard = Guard { pred: SINK_PRED, negated: false };
}

#[derive(Debug, Clone, Copy)]
pub struct Code {
    pub guard: Guard,
    pub op: Op,
}

/// Modifiers of float arithmetic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FloatFlags {
    /// Subnormal inputs and results become zero.
    pub ftz: bool,
    /// Results are clamped to [0, 1], NaN becomes 0.
    pub sat: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Rounding {
    #[default]
    Nearest,
    Zero,
    Down,
    Up,
}

/// (u32, u32) -> u32
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bin32 {
    Add, Sub, AddSatS, SubSatS, MulLo, MulHiS, MulHiU, Mul24LoS, Mul24LoU, Mul24HiS, Mul24HiU,
    DivS, DivU, RemS, RemU, MinS, MinU, MaxS, MaxU,
    And, Or, Xor, Shl, ShrS, ShrU, CopySign, Bmsk, BmskWrap, SzextSClamp, SzextUClamp, SzextSWrap, SzextUWrap,
    /// 16-bit halves packed: integer min/max/add of newer ISAs are refused; these are floats.
    F16(HalfOp), F16x2(HalfOp), Bf16(HalfOp), Bf16x2(HalfOp),
    /// Pack two 16-bit values: low, high.
    Pack16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HalfOp {
    Add, Sub, Mul, Min, Max, MinNan, MaxNan,
}

/// u32 -> u32
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Un32 {
    Mov, Not, Cnot, Neg, Abs, Popc, Clz, Brev, BfindU, BfindS, BfindShiftU, BfindShiftS,
    SignExtend8, SignExtend16, ZeroExtend8, ZeroExtend16,
    NegF, AbsF,
    /// Float functions with flags.
    RcpF(Rounding), SqrtF(Rounding), RsqrtF, SinF, CosF, Ex2F, Lg2F, TanhF,
    Ex2F16, TanhF16, Ex2F16x2, TanhF16x2, Ex2Bf16, TanhBf16, Ex2Bf16x2, TanhBf16x2,
}

/// (u32, u32, u32) -> u32
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tern32 {
    MadLo, MadHiS, MadHiU, MadHiSatS, Mad24LoS, Mad24LoU, Mad24HiS, Mad24HiU,
    SadS, SadU, BfeS, BfeU,
    ShfLClamp, ShfLWrap, ShfRClamp, ShfRWrap,
    Prmt, PrmtF4e, PrmtB4e, PrmtRc8, PrmtEcl, PrmtEcr, PrmtRc16,
    /// Four- and two-way dot products: signedness of a and b.
    Dp4a(bool, bool), Dp2aLo(bool, bool), Dp2aHi(bool, bool),
    FmaF16, FmaF16x2, FmaBf16, FmaBf16x2, FmaReluF16, FmaReluF16x2, FmaReluBf16, FmaReluBf16x2,
    /// a where c >= 0, else b.
    SlctS, SlctF,
}

/// (f32, f32) -> f32, with flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BinF32 {
    Add, Sub, Mul, Div, Min, Max, MinNan, MaxNan, MinXorsign, MaxXorsign,
    AddR(Rounding), SubR(Rounding), MulR(Rounding), DivR(Rounding),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BinF64 {
    Add, Sub, Mul, Div, Min, Max, CopySign,
    AddR(Rounding), SubR(Rounding), MulR(Rounding), DivR(Rounding),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bin64 {
    Add, Sub, MulLo, MulHiS, MulHiU, DivS, DivU, RemS, RemU, MinS, MinU, MaxS, MaxU, And, Or, Xor,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Un64 {
    Mov, Not, Cnot, Neg, Abs, Brev, NegF, AbsF,
    RcpF(Rounding), SqrtF(Rounding), RcpApproxF, RsqrtApproxF,
}

/// u64 -> u32
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Narrow {
    Popc, Clz, BfindU, BfindS, BfindShiftU, BfindShiftS, Low, High,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tern64 {
    MadLo, MadHiS, MadHiU, SadS, SadU,
}

/// Shifts of 64 bits by 32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shift64 {
    Shl, ShrS, ShrU,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carry {
    /// d = a + b (+ carry), writing the carry or not: see `CarryOp`.
    Add, Sub, MadLo, MadHiU, MadHiS,
}

/// Comparison; the unordered ones are true with a NaN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cmp {
    Eq, Ne, Lt, Le, Gt, Ge, EqU, NeU, LtU, LeU, GtU, GeU, Num, Nan,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CmpType {
    U32, S32, U64, S64, F16, Bf16, F32, F64,
}

/// Source or destination of `cvt`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CvtType {
    U8, S8, U16, S16, U32, S32, U64, S64, F16, Bf16, F32, F64,
}

impl CvtType {
    pub fn is_wide(self) -> bool {
        matches!(self, CvtType::U64 | CvtType::S64 | CvtType::F64)
    }

    pub fn is_float(self) -> bool {
        matches!(self, CvtType::F16 | CvtType::Bf16 | CvtType::F32 | CvtType::F64)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cvt {
    pub from: CvtType,
    pub to: CvtType,
    /// To a float: rounding of the result. To an integer, or with `integral`: rounding to an integer.
    pub rounding: Rounding,
    /// `cvt.rni.f32.f32`: a float rounded to an integral float.
    pub integral: bool,
    pub ftz: bool,
    pub sat: bool,
    pub relu: bool,
}

/// Which memory an access names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemSpace {
    /// Host addresses in mapped ranges, and the windows.
    Generic,
    /// As generic, but a window is an illegal address.
    Global,
    Shared,
    /// The thread's local memory by absolute offset.
    Local,
    /// The thread's local memory relative to the running function's frame.
    Frame,
    /// Kernel parameters, read only.
    Param,
}

/// Base of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Base {
    None,
    Row32(Row),
    Row64(Row),
}

#[derive(Debug, Clone, Copy)]
pub struct Mem {
    pub space: MemSpace,
    pub base: Base,
    pub offset: i64,
}

/// How a register meets memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Width {
    U8, S8, U16, S16, B32,
    /// Into a 64-bit register.
    U8x64, S8x64, U16x64, S16x64, U32x64, S32x64, B64,
}

impl Width {
    pub fn bytes(self) -> u32 {
        match self {
            Width::U8 | Width::S8 | Width::U8x64 | Width::S8x64 => 1,
            Width::U16 | Width::S16 | Width::U16x64 | Width::S16x64 => 2,
            Width::B32 | Width::U32x64 | Width::S32x64 => 4,
            Width::B64 => 8,
        }
    }

    /// Whether the register is 64 bits wide.
    pub fn is_wide(self) -> bool {
        matches!(
            self,
            Width::U8x64 | Width::S8x64 | Width::U16x64 | Width::S16x64 | Width::U32x64 | Width::S32x64 | Width::B64
        )
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtomOp {
    Add, MinS, MinU, MaxS, MaxU, And, Or, Xor, Exch, Cas, Inc, Dec, AddF, AddF16, AddF16x2, AddBf16, AddBf16x2,
    /// Vector and 16-bit compare-and-swap.
    Cas16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Special {
    Tid(u8), Ntid(u8), Ctaid(u8), Nctaid(u8), LaneId, WarpId, NwarpId, SmId, NsmId, GridId,
    Clock, ClockHi, Clock64, GlobalTimer, GlobalTimerLo, GlobalTimerHi,
    LanemaskEq, LanemaskLt, LanemaskLe, LanemaskGt, LanemaskGe,
    Envreg(u8), DynamicSharedBytes, TotalSharedBytes, Zero,
    /// Offset of dynamic shared memory, which depends on the kernel.
    DynamicSharedStart,
}

impl Special {
    /// Whether the register is 64 bits wide.
    pub fn is_wide(self) -> bool {
        matches!(self, Special::GridId | Special::Clock64 | Special::GlobalTimer)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shfl {
    Up, Down, Bfly, Idx,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Vote {
    All, Any, Uni, Ballot,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Redux {
    Add, MinS, MinU, MaxS, MaxU, And, Or, Xor,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BarKind {
    Sync,
    Arrive,
    /// Population count into a row, conjunction and disjunction into a predicate.
    RedPopc, RedAnd, RedOr,
}

/// One instruction for a whole warp.
#[derive(Debug, Clone, Copy)]
pub enum Op {
    Bin32 { op: Bin32, d: Row, a: Row, b: Row },
    Un32 { op: Un32, flags: FloatFlags, d: Row, a: Row },
    Tern32 { op: Tern32, d: Row, a: Row, b: Row, c: Row },
    Lop3 { lut: u8, d: Row, a: Row, b: Row, c: Row },
    BinF32 { op: BinF32, flags: FloatFlags, d: Row, a: Row, b: Row },
    FmaF32 { rounding: Rounding, flags: FloatFlags, d: Row, a: Row, b: Row, c: Row },
    Bin64 { op: Bin64, d: Row, a: Row, b: Row },
    Un64 { op: Un64, d: Row, a: Row },
    Tern64 { op: Tern64, d: Row, a: Row, b: Row, c: Row },
    BinF64 { op: BinF64, d: Row, a: Row, b: Row },
    FmaF64 { rounding: Rounding, d: Row, a: Row, b: Row, c: Row },
    Shift64 { op: Shift64, d: Row, a: Row, b: Row },
    Narrow { op: Narrow, d: Row, a: Row },
    /// 32 x 32 -> 64
    MulWide { signed: bool, d: Row, a: Row, b: Row },
    MadWide { signed: bool, d: Row, a: Row, b: Row, c: Row },
    /// Two 32-bit halves to 64 bits: low, high.
    Pack64 { d: Row, lo: Row, hi: Row },
    Bfe64 { signed: bool, d: Row, a: Row, pos: Row, len: Row },
    /// f = a inserted into b.
    Bfi32 { d: Row, a: Row, b: Row, pos: Row, len: Row },
    Bfi64 { d: Row, a: Row, b: Row, pos: Row, len: Row },
    Slct64 { float: bool, d: Row, a: Row, b: Row, c: Row },
    Carry32 { op: Carry, read: bool, write: bool, d: Row, a: Row, b: Row, c: Row },
    Carry64 { op: Carry, read: bool, write: bool, d: Row, a: Row, b: Row, c: Row },
    Cvt { cvt: Cvt, d: Row, a: Row },
    /// Two floats to a packed pair: a is the high half.
    CvtPack { to: CvtType, rounding: Rounding, relu: bool, d: Row, a: Row, b: Row },
    /// f32 with its mantissa rounded to 10 bits, ties away.
    CvtTf32 { d: Row, a: Row },
    Setp { ty: CmpType, cmp: Cmp, ftz: bool, d: Pred, a: Row, b: Row },
    /// Two comparisons of packed halves.
    SetpX2 { bf16: bool, cmp: Cmp, ftz: bool, d: Pred, q: Pred, a: Row, b: Row },
    Testp { wide: bool, test: Test, d: Pred, a: Row },
    /// d = lut[a | b << 1]
    PredOp { lut: u8, d: Pred, a: Pred, b: Pred },
    /// d = value where the guard holds
    PredConst { value: bool, d: Pred },
    Sel32 { d: Row, a: Row, b: Row, p: Pred, negated: bool },
    Sel64 { d: Row, a: Row, b: Row, p: Pred, negated: bool },
    Special32 { which: Special, d: Row },
    Special64 { which: Special, d: Row },
    /// Absolute local offset of a place in the frame.
    FrameAddress { d: Row, offset: u32 },
    Ld { width: Width, mem: Mem, d: Row },
    St { width: Width, mem: Mem, a: Row },
    /// `n` registers listed in `Program::rows` from `list`.
    LdVec { width: Width, n: u8, list: u32, mem: Mem },
    StVec { width: Width, n: u8, list: u32, mem: Mem },
    /// `list` names d, b, c in `Program::rows`.
    Atom { op: AtomOp, wide: bool, list: u32, mem: Mem },
    /// Copies `bytes` (4, 8, 16) to shared memory; only as many as the row `take` says come from the source, zeros
    /// fill the rest. `list`: source row or SINK, whether it is wide, low and high half of the offset.
    CpAsync { bytes: u8, take: Row, to: Mem, list: u32 },
    /// Whether generic addresses fall into a window.
    Isspacep { space: MemSpace, d: Pred, a: Row },
    Fence,
    Bra { target: u32 },
    BrxIdx { index: Row, first: u32, count: u32 },
    Call { call: u32 },
    Ret,
    Exit,
    Trap,
    /// A hint to let other blocks run.
    Yield,
    Bar { kind: BarKind, id: Row, count: Row, pred: Pred, negated: bool, d: Row },
    WarpSync { mask: Row },
    /// `list` names the rows of b, c and the member mask.
    Shfl { mode: Shfl, d: Row, p: Pred, a: Row, list: u32 },
    Vote { mode: Vote, d: Row, pd: Pred, pred: Pred, negated: bool, mask: Row },
    MatchAny { wide: bool, d: Row, a: Row, mask: Row },
    MatchAll { wide: bool, d: Row, p: Pred, a: Row, mask: Row },
    Redux { op: Redux, d: Row, a: Row, mask: Row },
    ActiveMask { d: Row },
    Nop,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Test {
    Finite, Infinite, Number, NotANumber, Normal, Subnormal,
}
