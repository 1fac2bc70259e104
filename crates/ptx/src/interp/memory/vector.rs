//! Loads and stores of vectors: a lane's vector of up to 16 bytes is one access of the host.
//!
//! PTX leaves open the order in which a vector's elements are read and written (9.7.9.1). But an
//! aligned vector is one access on every GPU, and programs rely on it: CUB's scans pass a sum and
//! its state from block to block as a pair.

#[cfg(target_arch = "x86_64")]
use std::arch::{asm, x86_64::__m128i};

use crate::code::{Mem, SINK, Width};
use crate::interp::core::{Core, Stop};
use crate::interp::memory::access::Pointers;
use crate::lanes::lanes;
use crate::words::{read8, read16, read32, read64, write8, write16, write32, write64};

/// A lane's bytes, the first one lowest.
type Whole = u128;
/// Length of the parts in which longer vectors, which exist from sm_100 on, are accessed.
const WHOLE_BYTES: u32 = 16;

impl Core<'_> {
    pub(crate) fn load_vector(
        &mut self,
        width: Width,
        n: u8,
        list: u32,
        mem: &Mem,
        mask: u32,
    ) -> Result<(), Stop> {
        let (step, count) = (width.bytes(), u32::from(n));
        let mut at = Pointers::new();
        self.pointers(mem, step * count, mask, false, &mut at)?;
        // Inactive lanes point where an active one does, or in local memory to their own part.
        let mut all: [Whole; 32] = [0; 32];
        let each = WHOLE_BYTES / step;
        for i in 0..count {
            if i % each == 0 {
                let bytes = step * (count - i).min(each);
                all = at.0.map(|at| read(at + u64::from(i * step), bytes));
            }
            let d = self.program.rows[(list + i) as usize];
            if d == SINK {
                continue;
            }
            let element = all.map(|whole| (whole >> (i % each * step * 8)) as u64);
            match width {
                Width::B32 => self.files.set32(d, mask, &element.map(|e| e as u32)),
                _ if width.is_wide() => {
                    let extended = element.map(|e| extended(width, e));
                    self.files.set64(d, mask, &extended);
                }
                _ => {
                    let extended = element.map(|e| extended(width, e) as u32);
                    self.files.set32(d, mask, &extended);
                }
            }
        }
        Ok(())
    }

    pub(crate) fn store_vector(
        &mut self,
        width: Width,
        n: u8,
        list: u32,
        mem: &Mem,
        mask: u32,
    ) -> Result<(), Stop> {
        let (step, count) = (width.bytes(), u32::from(n));
        let mut at = Pointers::new();
        self.pointers(mem, step * count, mask, true, &mut at)?;
        let mut all: [Whole; 32] = [0; 32];
        let kept = u64::MAX >> (64 - step * 8);
        let each = WHOLE_BYTES / step;
        for i in 0..count {
            let a = self.program.rows[(list + i) as usize];
            for (l, whole) in all.iter_mut().enumerate() {
                let element = if width.is_wide() {
                    self.files.lane64(a, l)
                } else {
                    self.files.lane32(a, l).into()
                };
                *whole |= Whole::from(element & kept) << (i % each * step * 8);
            }
            let done = i % each + 1;
            if done == each || i + 1 == count {
                let from = u64::from((i + 1 - done) * step);
                for l in lanes(mask) {
                    write(at.0[l] + from, step * done, all[l]);
                }
                all = [0; 32];
            }
        }
        Ok(())
    }
}

/// Extends the lowest bits of an element to its register.
fn extended(width: Width, element: u64) -> u64 {
    match width {
        Width::U8 | Width::U8x64 => element as u8 as u64,
        Width::S8 | Width::S8x64 => element as i8 as u64,
        Width::U16 | Width::U16x64 => element as u16 as u64,
        Width::S16 | Width::S16x64 => element as i16 as u64,
        Width::S32x64 => element as i32 as u64,
        Width::B64 => element,
        _ => element as u32 as u64,
    }
}

/// Reads through a pointer that [`super::access`] has checked: in bounds, and aligned to the
/// vector.
#[inline(always)]
fn read(at: u64, bytes: u32) -> Whole {
    match bytes {
        1 => read8(at).into(),
        2 => read16(at).into(),
        4 => read32(at).into(),
        8 => read64(at).into(),
        _ => read128(at),
    }
}

#[inline(always)]
fn write(at: u64, bytes: u32, whole: Whole) {
    match bytes {
        1 => write8(at, whole as u8),
        2 => write16(at, whole as u16),
        4 => write32(at, whole as u32),
        8 => write64(at, whole as u64),
        _ => write128(at, whole),
    }
}

/// Reads 16 bytes in one access if the host has AVX, for which vendors guarantee it at aligned
/// addresses; elsewhere in two. In assembly, because a compiler may split an ordinary access.
#[inline(always)]
fn read128(at: u64) -> Whole {
    #[cfg(target_arch = "x86_64")]
    {
        let value: __m128i;
        // SAFETY: [`super::access`] checked the address; every x86-64 has SSE.
        unsafe {
            asm!("movups {value}, [{at}]", value = out(xmm_reg) value, at = in(reg) at,
                options(nostack, preserves_flags, readonly));
        }
        // SAFETY: any 16 bytes are a valid number.
        unsafe { std::mem::transmute::<__m128i, Whole>(value) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        Whole::from(read64(at)) | Whole::from(read64(at + 8)) << 64
    }
}

#[inline(always)]
fn write128(at: u64, whole: Whole) {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: any 16 bytes are a valid vector.
        let value = unsafe { std::mem::transmute::<Whole, __m128i>(whole) };
        // SAFETY: `pointers` has checked the 16 bytes; a running kernel holds the range lock.
        unsafe {
            asm!("movups [{at}], {value}", value = in(xmm_reg) value, at = in(reg) at,
                options(nostack, preserves_flags));
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        write64(at, whole as u64);
        write64(at + 8, (whole >> 64) as u64);
    }
}
