//! The state that instructions work on, and the instructions without a function of their own.

use crate::code::{CONST, Carry, Op, Program, Row, arithmetic_ops, control_ops, memory_ops};
use crate::error::FaultKind;
use crate::interp::Env;
use crate::interp::range_cache::RangeCache;
use crate::interp::storage::Storage;
use crate::lanes::Files;
use crate::memory::Ranges;

/// Why a lane cannot go on.
#[derive(Debug)]
pub(crate) struct Trouble {
    pub(crate) kind: FaultKind,
    pub(crate) lane: usize,
}

pub(crate) type Stop = Box<Trouble>;

impl Trouble {
    pub(crate) fn at_lane(kind: FaultKind, lane: usize) -> Stop {
        Box::new(Trouble { kind, lane })
    }
}

/// The state that instructions of one warp work on.
pub(crate) struct Core<'e> {
    pub(crate) env: &'e Env<'e>,
    pub(crate) program: &'e Program,
    pub(crate) ranges: &'e Ranges,
    pub(crate) cache: &'e mut RangeCache,
    pub(crate) storage: &'e mut Storage,
    pub(crate) files: Files,
    /// The current instruction; set for instructions that read the program or may fault.
    pub(crate) pc: u32,
    pub(crate) shared: *mut u8,
    pub(crate) shared_bytes: u64,
    /// Local memory of lane 0; that of lane `l` is `l * stride` bytes further.
    pub(crate) local: *mut u8,
    pub(crate) stride: u64,
    /// Start of the running function's frame in local memory.
    pub(crate) frame_local: u64,
    pub(crate) block: [u32; 3],
    pub(crate) warp: u32,
    pub(crate) worker: u32,
    /// Lanes that exist and have not exited.
    pub(crate) live: u32,
    /// Entries of [`Storage::seen`] that are valid.
    pub(crate) known: u32,
}

impl Core<'_> {
    /// Executes an instruction that only computes, loads and stores.
    #[inline(always)]
    pub(crate) fn execute(&mut self, op: &Op, mask: u32) -> Result<(), Stop> {
        match *op {
            Op::Ld { width, ref mem, d } => self.load(width, mem, d, mask)?,
            Op::St { width, ref mem, a } => self.store(width, mem, a, mask)?,
            Op::LdVec {
                width,
                n,
                list,
                ref mem,
            } => self.load_vector(width, n, list, mem, mask)?,
            Op::StVec {
                width,
                n,
                list,
                ref mem,
            } => self.store_vector(width, n, list, mem, mask)?,
            Op::CpAsync {
                bytes,
                take,
                ref to,
                list,
            } => self.cp_async(bytes, take, to, list, mask)?,
            Op::Mbarrier { op, list, ref mem } => self.mbarrier(op, list, mem, mask)?,
            Op::Stack { op, d, a } => self.stack(op, d, a, mask)?,
            Op::Texture { index } => self.texture(index, mask)?,
            Op::Fence => {
                std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
                if let Some(watch) = self.env.watch {
                    watch.fence(self.env.linear(self.block), self.warp, mask);
                }
            }
            // `dispatch` executes these.
            control_ops!() => {}
            _ => self.compute(op, mask),
        }
        Ok(())
    }

    /// Executes [`arithmetic_ops`], and others that touch no memory.
    #[inline(always)]
    fn compute(&mut self, op: &Op, mask: u32) {
        let files = self.files;
        match *op {
            Op::Bin32 { op, d, a, b } => files.bin32(op, mask, d, a, b),
            Op::Un32 { op, flags, d, a } => files.un32(op, flags, mask, d, a),
            Op::Tern32 { op, d, a, b, c } => files.tern32(op, mask, d, a, b, c),
            Op::Lop3 { lut, d, a, b, c } => files.lop3(lut, mask, d, a, b, c),
            Op::BinF32 { op, flags, d, a, b } => files.bin_f32(op, flags, mask, d, a, b),
            Op::FmaF32 {
                rounding,
                flags,
                d,
                a,
                b,
                c,
            } => files.fma_f32(rounding, flags, mask, d, [a, b, c]),
            Op::Bin64 { op, d, a, b } => files.bin64(op, mask, d, a, b),
            Op::Un64 { op, d, a } => files.un64(op, mask, d, a),
            Op::Tern64 { op, d, a, b, c } => files.tern64(op, mask, d, a, b, c),
            Op::BinF64 { op, d, a, b } => files.bin_f64(op, mask, d, a, b),
            Op::FmaF64 {
                rounding,
                d,
                a,
                b,
                c,
            } => files.fma_f64(rounding, mask, d, [a, b, c]),
            Op::Shift64 { op, d, a, b } => files.shift64(op, mask, d, a, b),
            Op::Narrow { op, d, a } => files.narrow(op, mask, d, a),
            Op::MulWide { signed, d, a, b } => files.mul_wide(signed, mask, d, a, b),
            Op::MadWide { signed, d, a, b, c } => files.mad_wide(signed, mask, d, a, b, c),
            Op::Pack64 { d, lo, hi } => files.pack64(mask, d, lo, hi),
            Op::Bfe64 {
                signed,
                d,
                a,
                pos,
                len,
            } => files.bfe64(signed, mask, d, a, pos, len),
            Op::Bfi32 { d, a, b, pos, len } => files.bfi32(mask, d, a, b, pos, len),
            Op::Bfi64 { d, a, b, pos, len } => files.bfi64(mask, d, a, b, pos, len),
            Op::Carry32 {
                op,
                read,
                write,
                d,
                a,
                b,
                c,
            } => {
                let carry = files.carry32(op, self.carry_in(op, read), mask, d, [a, b, c]);
                self.set_carry(write, mask, carry);
            }
            Op::Carry64 {
                op,
                read,
                write,
                d,
                a,
                b,
                c,
            } => {
                let carry = files.carry64(op, self.carry_in(op, read), mask, d, [a, b, c]);
                self.set_carry(write, mask, carry);
            }
            _ => self.choose(op, mask),
        }
    }

    /// Executes conversions, comparisons and selections, and reads special registers.
    #[inline(always)]
    fn choose(&mut self, op: &Op, mask: u32) {
        let files = self.files;
        match *op {
            Op::Setp {
                ty,
                cmp,
                ftz,
                d,
                a,
                b,
            } => files.setp(ty, cmp, ftz, mask, d, a, b),
            Op::SetpX2 {
                bf16,
                cmp,
                ftz: _,
                d,
                q,
                a,
                b,
            } => files.setp_x2(bf16, cmp, mask, [d, q], a, b),
            Op::Testp { wide, test, d, a } => files.testp(wide, test, mask, d, a),
            Op::PredConst { value, d } => files.set_pred(d, mask, if value { u32::MAX } else { 0 }),
            Op::Isspacep { space, d, a } => {
                let value = self.isspacep(space, a);
                files.set_pred(d, mask, value);
            }
            Op::Special32 { which, d } => self.special32(which, d, mask),
            Op::Special64 { which, d } => self.special64(which, d, mask),
            Op::FrameAddress { d, offset } => {
                files.set64(d, mask, &[self.frame_local + u64::from(offset); 32])
            }
            Op::Video { index } => files.video(&self.program.videos[index as usize], mask),
            Op::ActiveMask { d } => files.set32(d, mask, &[mask; 32]),
            Op::Nop => {}
            Op::Cvt { cvt, d, a } => files.cvt(cvt, mask, d, a),
            Op::CvtPack {
                to,
                rounding,
                relu,
                d,
                a,
                b,
            } => files.cvt_pack(to, rounding, relu, mask, d, a, b),
            Op::PackFloat8 {
                format,
                relu,
                d,
                a,
                b,
            } => files.pack_float8(format, relu, mask, [d, a, b]),
            Op::UnpackFloat8 { format, relu, d, a } => {
                files.unpack_float8(format, relu, mask, d, a)
            }
            Op::CvtTf32 { d, a } => files.cvt_tf32(mask, d, a),
            Op::Slct64 { .. } | Op::PredOp { .. } | Op::Sel32 { .. } | Op::Sel64 { .. } => {
                self.select(op, mask);
            }
            memory_ops!() | arithmetic_ops!() | control_ops!() => {}
        }
    }

    /// Executes selections, and functions of predicates.
    #[inline(always)]
    fn select(&mut self, op: &Op, mask: u32) {
        let files = self.files;
        match *op {
            Op::Slct64 { float, d, a, b, c } => {
                let (a, b, c) = (files.get64(a), files.get64(b), files.get32(c));
                let chosen = |l: usize| {
                    if float {
                        f32::from_bits(c[l]) >= 0.0
                    } else {
                        c[l] as i32 >= 0
                    }
                };
                files.put64(d, mask, |l| if chosen(l) { a[l] } else { b[l] });
            }
            Op::PredOp { lut, d, a, b } => {
                let (a, b) = (files.pred(a, false), files.pred(b, false));
                let on = |bit: u8, value: u32| if lut & bit != 0 { value } else { 0 };
                let value = on(1, !a & !b) | on(2, a & !b) | on(4, !a & b) | on(8, a & b);
                files.set_pred(d, mask, value);
            }
            Op::Sel32 {
                d,
                a,
                b,
                p,
                negated,
            } => {
                let (a, b, p) = (files.get32(a), files.get32(b), files.pred(p, negated));
                files.put32(d, mask, |l| if p >> l & 1 != 0 { a[l] } else { b[l] });
            }
            Op::Sel64 {
                d,
                a,
                b,
                p,
                negated,
            } => {
                let (a, b, p) = (files.get64(a), files.get64(b), files.pred(p, negated));
                files.put64(d, mask, |l| if p >> l & 1 != 0 { a[l] } else { b[l] });
            }
            _ => {}
        }
    }

    /// Returns the lanes to which an operation adds a flag: the carry flag if it reads it,
    /// otherwise no carry and no borrow.
    fn carry_in(&self, op: Carry, read: bool) -> u32 {
        match op {
            _ if read => self.storage.carry,
            Carry::Sub => u32::MAX,
            _ => 0,
        }
    }

    fn set_carry(&mut self, write: bool, mask: u32, carry: u32) {
        if write {
            self.storage.carry = (self.storage.carry & !mask) | (carry & mask);
        }
    }

    /// Returns the lanes that must take part, according to the lanes given.
    #[inline(never)]
    pub(in crate::interp) fn members(&self, op: Op, mask: u32) -> u32 {
        let row: Row = match op {
            Op::WarpSync { mask }
            | Op::Vote { mask, .. }
            | Op::MatchAny { mask, .. }
            | Op::MatchAll { mask, .. }
            | Op::Redux { mask, .. } => mask,
            Op::Shfl { list, .. } => self.program.rows[list as usize + 2],
            Op::Tensor { .. } => return u32::MAX,
            _ => return mask,
        };
        let members = self.files.get32(row);
        if row & CONST != 0 {
            return mask | members[0];
        }
        crate::lanes::lanes(mask).fold(mask, |all, l| all | members[l])
    }

    /// Returns the lanes of a group whose members have not all come. Lanes that name each other,
    /// even by others, wait together.
    pub(in crate::interp) fn waiting(&self, op: Op, mask: u32) -> u32 {
        let of = |lane: usize| self.members(op, 1 << lane) & self.live;
        let mut waiting = crate::lanes::lanes(mask)
            .filter(|&lane| of(lane) & !mask != 0)
            .fold(0, |all, lane| all | 1 << lane);
        loop {
            let named = crate::lanes::lanes(waiting).fold(0, |all, lane| all | of(lane));
            let more = crate::lanes::lanes(mask)
                .filter(|&lane| (1 << lane | of(lane)) & (waiting | named) != 0)
                .fold(waiting, |all, lane| all | 1 << lane);
            if more == waiting {
                return waiting;
            }
            waiting = more;
        }
    }

    #[inline(never)]
    pub(in crate::interp) fn collective(
        &mut self,
        op: Op,
        members: u32,
        mask: u32,
    ) -> Result<(), Stop> {
        match op {
            Op::Shfl {
                mode,
                d,
                p,
                a,
                list,
            } => self.shfl(mode, d, p, a, list, mask),
            Op::Vote {
                mode,
                d,
                pd,
                pred,
                negated,
                mask: row,
            } => {
                let value = self.files.pred(pred, negated);
                self.by_members(row, mask, members, |core, members, mask| {
                    core.vote(mode, d, pd, value, members, mask);
                });
            }
            // All sources are read before any result is written, because `d` may be `a`.
            Op::MatchAny {
                wide,
                d,
                a,
                mask: row,
            } => {
                let a = self.values(wide, a);
                self.by_members(row, mask, members, |core, members, mask| {
                    core.match_any(d, &a, members, mask);
                });
            }
            Op::MatchAll {
                wide,
                d,
                p,
                a,
                mask: row,
            } => {
                let a = self.values(wide, a);
                self.by_members(row, mask, members, |core, members, mask| {
                    core.match_all((d, p), &a, members, mask);
                });
            }
            Op::Redux {
                op,
                d,
                a,
                mask: row,
            } => {
                let a = self.files.get32(a);
                self.by_members(row, mask, members, |core, members, mask| {
                    core.redux(op, d, &a, members, mask);
                });
            }
            Op::Tensor { index } => return self.tensor(index, mask),
            _ => {}
        }
        Ok(())
    }

    /// Calls `f` for each set of lanes that named the same members: halves of a warp may vote
    /// separately at once.
    fn by_members(&mut self, row: Row, mask: u32, live: u32, f: impl Fn(&mut Self, u32, u32)) {
        let masks = self.files.get32(row);
        let mut rest = mask;
        while rest != 0 {
            let members = masks[rest.trailing_zeros() as usize];
            let same = crate::lanes::lanes(rest)
                .filter(|&l| masks[l] == members)
                .fold(0, |m, l| m | 1 << l);
            f(self, (members | same) & (live | mask), same);
            rest &= !same;
        }
    }
}
