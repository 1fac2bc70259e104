//! Operations, types and modifiers of which [`super::Op`] is made.

use super::Row;

/// Modifiers of float arithmetic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FloatFlags {
    /// Whether subnormal inputs and results become zero.
    pub ftz: bool,
    /// Whether results are clamped to [0, 1], and NaN becomes 0.
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
    Add,
    Sub,
    AddSatS,
    SubSatS,
    MulLo,
    MulHiS,
    MulHiU,
    Mul24LoS,
    Mul24LoU,
    Mul24HiS,
    Mul24HiU,
    DivS,
    DivU,
    RemS,
    RemU,
    MinS,
    MinU,
    MaxS,
    MaxU,
    And,
    Or,
    Xor,
    Shl,
    ShrS,
    ShrU,
    CopySign,
    Bmsk,
    BmskWrap,
    SzextSClamp,
    SzextUClamp,
    SzextSWrap,
    SzextUWrap,
    /// 16-bit floats, one or two in a row; packed integer min, max and add of newer ISAs are
    /// refused.
    F16(HalfOp),
    F16x2(HalfOp),
    Bf16(HalfOp),
    Bf16x2(HalfOp),
    /// Packs two 16-bit values: low, high.
    Pack16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HalfOp {
    Add,
    Sub,
    Mul,
    /// For f16 only.
    MulFtz,
    Min,
    Max,
    MinNan,
    MaxNan,
    /// Of the first operand only.
    Abs,
    Neg,
}

/// u32 -> u32
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Un32 {
    Mov,
    Not,
    Cnot,
    Neg,
    Abs,
    Popc,
    Clz,
    Brev,
    BfindU,
    BfindS,
    BfindShiftU,
    BfindShiftS,
    SignExtend8,
    SignExtend16,
    ZeroExtend8,
    ZeroExtend16,
    NegF,
    AbsF,
    /// Float functions with flags.
    RcpF(Rounding),
    SqrtF(Rounding),
    RsqrtF,
    SinF,
    CosF,
    Ex2F,
    Lg2F,
    TanhF,
    Ex2F16,
    TanhF16,
    Ex2F16x2,
    TanhF16x2,
    Ex2Bf16,
    TanhBf16,
    Ex2Bf16x2,
    TanhBf16x2,
    /// For one or two halves: subnormals become zero; values are clamped to [0, 1].
    FlushF16,
    SaturateF16,
}

/// (u32, u32, u32) -> u32
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tern32 {
    MadLo,
    MadHiS,
    MadHiU,
    MadHiSatS,
    Mad24HiSatS,
    /// Position of the n-th set bit.
    Fns,
    Mad24LoS,
    Mad24LoU,
    Mad24HiS,
    Mad24HiU,
    SadS,
    SadU,
    BfeS,
    BfeU,
    ShfLClamp,
    ShfLWrap,
    ShfRClamp,
    ShfRWrap,
    Prmt,
    PrmtF4e,
    PrmtB4e,
    PrmtRc8,
    PrmtEcl,
    PrmtEcr,
    PrmtRc16,
    /// Four- and two-way dot products, with the signedness of a and b.
    Dp4a(bool, bool),
    Dp2aLo(bool, bool),
    Dp2aHi(bool, bool),
    FmaF16,
    FmaF16x2,
    FmaBf16,
    FmaBf16x2,
    FmaReluF16,
    FmaReluF16x2,
    FmaReluBf16,
    FmaReluBf16x2,
    /// Selects a where c >= 0, otherwise b.
    SlctS,
    SlctF,
}

/// (f32, f32) -> f32, with flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BinF32 {
    Add,
    Sub,
    Mul,
    Div,
    DivApprox,
    Min,
    Max,
    MinNan,
    MaxNan,
    MinXorsign,
    MaxXorsign,
    AddR(Rounding),
    SubR(Rounding),
    MulR(Rounding),
    DivR(Rounding),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BinF64 {
    Add,
    Sub,
    Mul,
    Div,
    Min,
    Max,
    CopySign,
    AddR(Rounding),
    SubR(Rounding),
    MulR(Rounding),
    DivR(Rounding),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bin64 {
    Add,
    Sub,
    MulLo,
    MulHiS,
    MulHiU,
    DivS,
    DivU,
    RemS,
    RemU,
    MinS,
    MinU,
    MaxS,
    MaxU,
    And,
    Or,
    Xor,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Un64 {
    Mov,
    Not,
    Cnot,
    Neg,
    Abs,
    Brev,
    NegF,
    AbsF,
    RcpF(Rounding),
    SqrtF(Rounding),
    RcpApproxF,
    RsqrtApproxF,
    /// Uses only the upper words.
    RsqrtApproxFtzF,
}

/// u64 -> u32
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Narrow {
    Popc,
    Clz,
    BfindU,
    BfindS,
    BfindShiftU,
    BfindShiftS,
    Low,
    High,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tern64 {
    MadLo,
    MadHiS,
    MadHiU,
    SadS,
    SadU,
}

/// Shifts of 64-bit values by a 32-bit count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shift64 {
    Shl,
    ShrS,
    ShrU,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carry {
    /// d = a + b, plus one if the carry flag is read and set; writes the carry.
    Add,
    /// d = a - b, minus one if the carry flag is read and not set; writes whether nothing was
    /// borrowed.
    Sub,
    MadLo,
    MadHiU,
    MadHiS,
}

/// A comparison; the unordered ones are true if an operand is NaN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cmp {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    EqU,
    NeU,
    LtU,
    LeU,
    GtU,
    GeU,
    Num,
    Nan,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CmpType {
    U32,
    S32,
    U64,
    S64,
    F16,
    Bf16,
    F32,
    F64,
}

/// Formats of 8-bit floats, by the bits of their exponent and mantissa.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Float8 {
    /// Has no infinities: the largest number is 448.
    E4M3,
    E5M2,
}

/// Source or destination type of `cvt`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CvtType {
    U8,
    S8,
    U16,
    S16,
    U32,
    S32,
    U64,
    S64,
    F16,
    Bf16,
    F32,
    F64,
}

impl CvtType {
    pub fn is_wide(self) -> bool {
        matches!(self, CvtType::U64 | CvtType::S64 | CvtType::F64)
    }

    pub fn is_float(self) -> bool {
        matches!(
            self,
            CvtType::F16 | CvtType::Bf16 | CvtType::F32 | CvtType::F64
        )
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cvt {
    pub from: CvtType,
    pub to: CvtType,
    /// To a float: rounding of the result. To an integer, or with `integral`: rounding to an
    /// integer.
    pub rounding: Rounding,
    /// `cvt.rni.f32.f32`: rounds a float to an integral float.
    pub integral: bool,
    pub ftz: bool,
    pub sat: bool,
    pub relu: bool,
}

/// The memory that an access names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemSpace {
    /// Host addresses in mapped ranges, and the windows.
    Generic,
    /// Generic, except that a window is an illegal address.
    Global,
    Shared,
    /// The thread's local memory, by absolute offset.
    Local,
    /// The thread's local memory, relative to the running function's frame.
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

/// The size of a memory access, and its extension to the register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Width {
    U8,
    S8,
    U16,
    S16,
    B32,
    /// Into a 64-bit register.
    U8x64,
    S8x64,
    U16x64,
    S16x64,
    U32x64,
    S32x64,
    B64,
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
            Width::U8x64
                | Width::S8x64
                | Width::U16x64
                | Width::S16x64
                | Width::U32x64
                | Width::S32x64
                | Width::B64
        )
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtomOp {
    Add,
    MinS,
    MinU,
    MaxS,
    MaxU,
    And,
    Or,
    Xor,
    Exch,
    Cas,
    Inc,
    Dec,
    AddF,
    /// With subnormals flushed; chosen at run time by the address's space.
    AddFtzF,
    AddF16,
    AddF16x2,
    AddBf16,
    AddBf16x2,
    /// Compare-and-swap of 16 bits.
    Cas16,
}

/// Operations on barriers in shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mbarrier {
    Init,
    Invalidate,
    Arrive,
    ArriveDrop,
    TestWait,
    TestParity,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Special {
    Tid(u8),
    Ntid(u8),
    Ctaid(u8),
    Nctaid(u8),
    LaneId,
    WarpId,
    NwarpId,
    SmId,
    NsmId,
    GridId,
    Clock,
    ClockHi,
    Clock64,
    GlobalTimer,
    GlobalTimerLo,
    GlobalTimerHi,
    LanemaskEq,
    LanemaskLt,
    LanemaskLe,
    LanemaskGt,
    LanemaskGe,
    Envreg(u8),
    DynamicSharedBytes,
    TotalSharedBytes,
    /// A special register that is zero here: a performance counter, the fourth element of `%tid`.
    Zero,
    /// A special register of 64 bits that is zero here.
    Zero64,
    CurrentGraph,
    /// Offset of dynamic shared memory, which depends on the kernel.
    DynamicSharedStart,
}

impl Special {
    /// Whether the register is 64 bits wide.
    pub fn is_wide(self) -> bool {
        matches!(
            self,
            Special::GridId
                | Special::Clock64
                | Special::GlobalTimer
                | Special::Zero64
                | Special::CurrentGraph
        )
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shfl {
    Up,
    Down,
    Bfly,
    Idx,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Vote {
    All,
    Any,
    Uni,
    Ballot,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Redux {
    Add,
    MinS,
    MinU,
    MaxS,
    MaxU,
    And,
    Or,
    Xor,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BarKind {
    Sync,
    Arrive,
    /// Population count into a row; conjunction and disjunction into a predicate.
    RedPopc,
    RedAnd,
    RedOr,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Test {
    Finite,
    Infinite,
    Number,
    NotANumber,
    Normal,
    Subnormal,
}
