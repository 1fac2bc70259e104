//! `atom` and `red` on the host's atomics, so that blocks on other threads, copies and the host see
//! whole values.

use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering::SeqCst};

use crate::code::{AtomOp, HalfOp, Mem, SINK};
use crate::interp::core::{Core, Stop};
use crate::interp::memory::access::Pointers;
use crate::lanes::lanes;
use crate::number::float::flush;
use crate::number::half::{self, Bf16, F16};

impl Core<'_> {
    #[inline(never)]
    pub(crate) fn atomic(
        &mut self,
        op: AtomOp,
        wide: bool,
        list: u32,
        mem: &Mem,
        mask: u32,
    ) -> Result<(), Stop> {
        let [d, b, c] = [0, 1, 2].map(|i| self.program.rows[list as usize + i]);
        let bytes = match op {
            AtomOp::Cas16 | AtomOp::AddF16 | AtomOp::AddBf16 => 2,
            _ if wide => 8,
            _ => 4,
        };
        let mut at = Pointers::new();
        self.pointers(mem, bytes, mask, true, &mut at)?;
        let at = at.0;
        for lane in lanes(mask) {
            // Lanes run in order: those with one address see each other's results, as on a GPU.
            match bytes {
                8 => {
                    let old = atomic64(
                        op,
                        at[lane],
                        self.files.lane64(b, lane),
                        self.files.lane64(c, lane),
                    );
                    if d != SINK {
                        self.files.set_lane64(d, lane, old);
                    }
                }
                4 => {
                    // PTX ISA, atom: f32 additions flush subnormals in global memory, not in shared
                    // memory.
                    let shared = at[lane].wrapping_sub(self.shared as u64) < self.shared_bytes;
                    let op = if op == AtomOp::AddF && !shared {
                        AtomOp::AddFtzF
                    } else {
                        op
                    };
                    let old = atomic32(
                        op,
                        at[lane],
                        self.files.lane32(b, lane),
                        self.files.lane32(c, lane),
                    );
                    if d != SINK {
                        self.files.set_lane32(d, lane, old);
                    }
                }
                _ => {
                    let old = atomic16(
                        op,
                        at[lane],
                        self.files.lane32(b, lane) as u16,
                        self.files.lane32(c, lane) as u16,
                    );
                    if d != SINK {
                        self.files.set_lane32(d, lane, old.into());
                    }
                }
            }
        }
        Ok(())
    }
}

pub(in crate::interp) fn atomic32(op: AtomOp, at: u64, b: u32, c: u32) -> u32 {
    // SAFETY: `Core::pointers` checked bounds and alignment for this access.
    let cell = unsafe { AtomicU32::from_ptr(at as *mut u32) };
    let update = |f: &dyn Fn(u32) -> u32| update32(cell, f);
    match op {
        AtomOp::Add => cell.fetch_add(b, SeqCst),
        AtomOp::MinU => cell.fetch_min(b, SeqCst),
        AtomOp::MaxU => cell.fetch_max(b, SeqCst),
        AtomOp::MinS => update(&|v| (v as i32).min(b as i32) as u32),
        AtomOp::MaxS => update(&|v| (v as i32).max(b as i32) as u32),
        AtomOp::And => cell.fetch_and(b, SeqCst),
        AtomOp::Or => cell.fetch_or(b, SeqCst),
        AtomOp::Xor => cell.fetch_xor(b, SeqCst),
        AtomOp::Exch => cell.swap(b, SeqCst),
        AtomOp::Cas => cell
            .compare_exchange(b, c, SeqCst, SeqCst)
            .unwrap_or_else(|seen| seen),
        AtomOp::Inc => update(&|v| if v >= b { 0 } else { v + 1 }),
        AtomOp::Dec => update(&|v| if v == 0 || v > b { b } else { v - 1 }),
        AtomOp::AddF => update(&|v| {
            let sum = f32::from_bits(v) + f32::from_bits(b);
            if sum.is_nan() {
                0x7fff_ffff
            } else {
                sum.to_bits()
            }
        }),
        AtomOp::AddFtzF => update(&|v| {
            let sum = flush(flush(f32::from_bits(v)) + flush(f32::from_bits(b)));
            if sum.is_nan() {
                0x7fff_ffff
            } else {
                sum.to_bits()
            }
        }),
        AtomOp::AddBf16x2 => {
            update(&|v| half::packed(v, b, |x, y| half::binary::<Bf16>(HalfOp::Add, x, y)))
        }
        _ => update(&|v| half::packed(v, b, |x, y| half::binary::<F16>(HalfOp::Add, x, y))),
    }
}

fn update32(cell: &AtomicU32, f: &dyn Fn(u32) -> u32) -> u32 {
    let mut seen = cell.load(SeqCst);
    loop {
        match cell.compare_exchange_weak(seen, f(seen), SeqCst, SeqCst) {
            Ok(old) => return old,
            Err(now) => seen = now,
        }
    }
}

pub(in crate::interp) fn atomic64(op: AtomOp, at: u64, b: u64, c: u64) -> u64 {
    // SAFETY: `Core::pointers` checked bounds and alignment for this access.
    let cell = unsafe { AtomicU64::from_ptr(at as *mut u64) };
    let update = |f: &dyn Fn(u64) -> u64| {
        let mut seen = cell.load(SeqCst);
        loop {
            match cell.compare_exchange_weak(seen, f(seen), SeqCst, SeqCst) {
                Ok(old) => return old,
                Err(now) => seen = now,
            }
        }
    };
    match op {
        AtomOp::Add => cell.fetch_add(b, SeqCst),
        AtomOp::MinU => cell.fetch_min(b, SeqCst),
        AtomOp::MaxU => cell.fetch_max(b, SeqCst),
        AtomOp::MinS => update(&|v| (v as i64).min(b as i64) as u64),
        AtomOp::MaxS => update(&|v| (v as i64).max(b as i64) as u64),
        AtomOp::And => cell.fetch_and(b, SeqCst),
        AtomOp::Or => cell.fetch_or(b, SeqCst),
        AtomOp::Xor => cell.fetch_xor(b, SeqCst),
        AtomOp::Exch => cell.swap(b, SeqCst),
        AtomOp::Cas => cell
            .compare_exchange(b, c, SeqCst, SeqCst)
            .unwrap_or_else(|seen| seen),
        _ => update(&|v| (f64::from_bits(v) + f64::from_bits(b)).to_bits()),
    }
}

fn atomic16(op: AtomOp, at: u64, b: u16, c: u16) -> u16 {
    // SAFETY: `Core::pointers` checked bounds and alignment for this access.
    let cell = unsafe { AtomicU16::from_ptr(at as *mut u16) };
    if op == AtomOp::Cas16 {
        return cell
            .compare_exchange(b, c, SeqCst, SeqCst)
            .unwrap_or_else(|seen| seen);
    }
    let mut seen = cell.load(SeqCst);
    loop {
        let sum = match op {
            AtomOp::AddBf16 => half::binary::<Bf16>(HalfOp::Add, seen.into(), b.into()),
            _ => half::binary::<F16>(HalfOp::Add, seen.into(), b.into()),
        };
        match cell.compare_exchange_weak(seen, sum as u16, SeqCst, SeqCst) {
            Ok(old) => return old,
            Err(now) => seen = now,
        }
    }
}
