//! Register files of a warp: rows of 32 lanes, and access to them.

use crate::code::{CONST, Pred, Row, SINK_PRED};

/// A row of 32-bit registers, aligned so that vector loads never cross cache lines.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C, align(64))]
pub(crate) struct Lanes32(pub(crate) [u32; 32]);

#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C, align(64))]
pub(crate) struct Lanes64(pub(crate) [u64; 32]);

/// Pointers to the running frame's registers and to the constants.
///
/// Invariant: [`Warp`](super::run::warp::Warp) builds it from vectors that hold at least the rows
/// and predicates of the running function, and rebuilds it whenever they grow. The code is of a
/// [`Verified`](crate::verify) program, so it names no others. Builds with debug assertions check
/// every index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Files {
    #[cfg(debug_assertions)]
    pub(crate) counts: Counts,
    pub(crate) r32: *mut Lanes32,
    pub(crate) r64: *mut Lanes64,
    pub(crate) preds: *mut u32,
    pub(crate) c32: *const Lanes32,
    pub(crate) c64: *const Lanes64,
}

/// The rows of each file, which an index must be below.
#[cfg(debug_assertions)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counts {
    pub(crate) r32: u32,
    pub(crate) r64: u32,
    pub(crate) preds: u32,
    pub(crate) c32: usize,
    pub(crate) c64: usize,
}

/// Lanes processed at once, as many as vector registers hold.
pub(crate) const CHUNK: usize = 8;
pub(crate) const CHUNKS: usize = 32 / CHUNK;
pub(crate) type Chunk = [u32; CHUNK];
pub(crate) type Chunk64 = [u64; CHUNK];

/// Returns for chunk `i` the lanes of `mask` from `x`, and the others from `y`.
#[inline(always)]
pub(crate) fn blend(mask: u32, i: usize, x: Chunk, y: Chunk) -> Chunk {
    let mut out = y;
    for l in 0..CHUNK {
        let bit = 1 << (i * CHUNK + l);
        out[l] = if mask & bit != 0 { x[l] } else { y[l] };
    }
    out
}

#[inline(always)]
pub(crate) fn blend64(mask: u32, i: usize, x: Chunk64, y: Chunk64) -> Chunk64 {
    let mut out = y;
    for l in 0..CHUNK {
        let bit = 1 << (i * CHUNK + l);
        out[l] = if mask & bit != 0 { x[l] } else { y[l] };
    }
    out
}

/// Iterates over the lanes of a mask, lowest first.
pub(crate) fn lanes(mask: u32) -> impl Iterator<Item = usize> {
    let mut rest = mask;
    std::iter::from_fn(move || {
        let lane = rest.trailing_zeros() as usize;
        rest &= rest.wrapping_sub(1);
        (lane < 32).then_some(lane)
    })
}

/// Writes a row's lanes of a mask, chunk by chunk. The usual case of all lanes is tested once. The
/// value is an expression rather than a function, so that it is compiled for the caller's
/// instruction set.
macro_rules! write_chunks {
    ($files:ident, $d:expr, $mask:expr, |$i:ident| $value:expr) => {
        match $mask {
            u32::MAX => {
                for $i in 0..$crate::lanes::CHUNKS {
                    $files.set_chunk($d, $i, u32::MAX, $value);
                }
            }
            mask => {
                for $i in 0..$crate::lanes::CHUNKS {
                    $files.set_chunk($d, $i, mask, $value);
                }
            }
        }
    };
}
pub(crate) use write_chunks;

/// As [`write_chunks`], for rows of 64 bits.
macro_rules! write_chunks64 {
    ($files:ident, $d:expr, $mask:expr, |$i:ident| $value:expr) => {
        match $mask {
            u32::MAX => {
                for $i in 0..$crate::lanes::CHUNKS {
                    $files.set_chunk64($d, $i, u32::MAX, $value);
                }
            }
            mask => {
                for $i in 0..$crate::lanes::CHUNKS {
                    $files.set_chunk64($d, $i, mask, $value);
                }
            }
        }
    };
}
pub(crate) use write_chunks64;

impl Files {
    /// Returns chunk `i` of a source row.
    #[inline(always)]
    pub(crate) fn chunk(&self, row: Row, i: usize) -> Chunk {
        let row: *const Chunk = self.row32(row).as_ptr().cast();
        debug_assert!(i < CHUNKS);
        // SAFETY: a row has `CHUNKS` chunks, and `i` is below that.
        unsafe { *row.add(i) }
    }

    #[inline(always)]
    pub(crate) fn chunk64(&self, row: Row, i: usize) -> Chunk64 {
        let row: *const Chunk64 = self.row64(row).as_ptr().cast();
        debug_assert!(i < CHUNKS);
        // SAFETY: a row has `CHUNKS` chunks, and `i` is below that.
        unsafe { *row.add(i) }
    }

    /// Writes the lanes of `mask` of chunk `i`.
    #[inline(always)]
    pub(crate) fn set_chunk(&self, d: Row, i: usize, mask: u32, value: Chunk) {
        debug_assert!(i < CHUNKS);
        // SAFETY: `d` is in range by the invariant of `Files`; a row has `CHUNKS` chunks.
        unsafe {
            let at = self.to32(d).cast::<Chunk>().add(i);
            *at = if mask == u32::MAX {
                value
            } else {
                blend(mask, i, value, *at)
            };
        }
    }

    #[inline(always)]
    pub(crate) fn set_chunk64(&self, d: Row, i: usize, mask: u32, value: Chunk64) {
        debug_assert!(i < CHUNKS);
        // SAFETY: `d` is in range by the invariant of `Files`; a row has `CHUNKS` chunks.
        unsafe {
            let at = self.to64(d).cast::<Chunk64>().add(i);
            *at = if mask == u32::MAX {
                value
            } else {
                blend64(mask, i, value, *at)
            };
        }
    }

    /// Writes all lanes, given by halves of the warp.
    #[inline(always)]
    pub(crate) fn set_halves32(&self, d: Row, value: [[u32; 16]; 2]) {
        // SAFETY: `d` is in range by the invariant of `Files`; two halves are a row.
        unsafe { *self.to32(d).cast() = value }
    }

    #[inline(always)]
    pub(crate) fn set_halves64(&self, d: Row, value: [[u64; 16]; 2]) {
        // SAFETY: `d` is in range by the invariant of `Files`; two halves are a row.
        unsafe { *self.to64(d).cast() = value }
    }

    /// Writes the halves of a row to memory.
    ///
    /// # Safety
    /// Half a row must fit at each address.
    #[inline(always)]
    pub(crate) unsafe fn scatter32(&self, row: Row, to: [u64; 2]) {
        let halves: *const [u32; 16] = self.row32(row).as_ptr().cast();
        // SAFETY: the caller guarantees the room; a row has two halves.
        unsafe {
            (to[0] as *mut [u32; 16]).write_unaligned(*halves);
            (to[1] as *mut [u32; 16]).write_unaligned(*halves.add(1));
        }
    }

    /// # Safety
    /// As for `scatter32`.
    #[inline(always)]
    pub(crate) unsafe fn scatter64(&self, row: Row, to: [u64; 2]) {
        let halves: *const [u64; 16] = self.row64(row).as_ptr().cast();
        // SAFETY: the caller guarantees the room; a row has two halves.
        unsafe {
            (to[0] as *mut [u64; 16]).write_unaligned(*halves);
            (to[1] as *mut [u64; 16]).write_unaligned(*halves.add(1));
        }
    }

    /// Returns the address of a destination row.
    #[inline(always)]
    fn to32(&self, d: Row) -> *mut Lanes32 {
        #[cfg(debug_assertions)]
        assert!(d < self.counts.r32, "row {d:#x}");
        // SAFETY: `d` is in range by the invariant of `Files`.
        unsafe { self.r32.add(d as usize) }
    }

    #[inline(always)]
    fn to64(&self, d: Row) -> *mut Lanes64 {
        #[cfg(debug_assertions)]
        assert!(d < self.counts.r64, "row {d:#x}");
        // SAFETY: `d` is in range by the invariant of `Files`.
        unsafe { self.r64.add(d as usize) }
    }

    #[inline(always)]
    fn pred_at(&self, pred: Pred) -> *mut u32 {
        #[cfg(debug_assertions)]
        assert!(u32::from(pred) < self.counts.preds, "predicate {pred}");
        // SAFETY: `pred` is in range by the invariant of `Files`.
        unsafe { self.preds.add(pred as usize) }
    }

    /// Returns the address of a source row, which is computed once whichever file it is in.
    #[inline(always)]
    fn at32(&self, row: Row) -> *const Lanes32 {
        #[cfg(debug_assertions)]
        match row & CONST {
            0 => assert!(row < self.counts.r32, "row {row}"),
            _ => assert!(((row & !CONST) as usize) < self.counts.c32, "row {row:#x}"),
        }
        let file = match row & CONST {
            0 => self.r32.cast_const(),
            _ => self.c32,
        };
        file.wrapping_add((row & !CONST) as usize)
    }

    #[inline(always)]
    fn at64(&self, row: Row) -> *const Lanes64 {
        #[cfg(debug_assertions)]
        match row & CONST {
            0 => assert!(row < self.counts.r64, "row {row}"),
            _ => assert!(((row & !CONST) as usize) < self.counts.c64, "row {row:#x}"),
        }
        let file = match row & CONST {
            0 => self.r64.cast_const(),
            _ => self.c64,
        };
        file.wrapping_add((row & !CONST) as usize)
    }

    /// Returns a source row in place. No register may be written while it is used.
    #[inline(always)]
    pub(crate) fn row32(&self, row: Row) -> &[u32; 32] {
        let at = self.at32(row);
        // SAFETY: `row` is in range by the invariant of `Files`.
        unsafe { &(*at).0 }
    }

    #[inline(always)]
    pub(crate) fn row64(&self, row: Row) -> &[u64; 32] {
        let at = self.at64(row);
        // SAFETY: `row` is in range by the invariant of `Files`.
        unsafe { &(*at).0 }
    }

    /// Copies a source row, so that it may also be the destination.
    #[inline(always)]
    pub(crate) fn get32(&self, row: Row) -> [u32; 32] {
        let at = self.at32(row);
        // SAFETY: `row` is in range by the invariant of `Files`.
        unsafe { (*at).0 }
    }

    #[inline(always)]
    pub(crate) fn get64(&self, row: Row) -> [u64; 32] {
        let at = self.at64(row);
        // SAFETY: `row` is in range by the invariant of `Files`.
        unsafe { (*at).0 }
    }

    #[inline(always)]
    pub(crate) fn lane32(&self, row: Row, lane: usize) -> u32 {
        let at = self.at32(row);
        // SAFETY: `row` is in range by the invariant of `Files`; lanes are below 32.
        unsafe { (*at).0[lane & 31] }
    }

    #[inline(always)]
    pub(crate) fn lane64(&self, row: Row, lane: usize) -> u64 {
        let at = self.at64(row);
        // SAFETY: `row` is in range by the invariant of `Files`; lanes are below 32.
        unsafe { (*at).0[lane & 31] }
    }

    #[inline(always)]
    pub(crate) fn pred(&self, pred: Pred, negated: bool) -> u32 {
        // SAFETY: `pred` is in range by the invariant of `Files`.
        let value = unsafe { *self.pred_at(pred) };
        if negated { !value } else { value }
    }

    #[inline(always)]
    pub(crate) fn set_pred(&self, d: Pred, mask: u32, value: u32) {
        if d == SINK_PRED {
            return;
        }
        // SAFETY: `d` is in range by the invariant of `Files`.
        unsafe {
            let at = self.pred_at(d);
            *at = (*at & !mask) | (value & mask);
        }
    }

    #[inline(always)]
    pub(crate) fn set32(&self, d: Row, mask: u32, value: &[u32; 32]) {
        // SAFETY: `d` is in range by the invariant of `Files`.
        let out = unsafe { &mut (*self.to32(d)).0 };
        if mask == u32::MAX {
            *out = *value;
        } else {
            for l in 0..32 {
                out[l] = if mask >> l & 1 != 0 { value[l] } else { out[l] };
            }
        }
    }

    #[inline(always)]
    pub(crate) fn set64(&self, d: Row, mask: u32, value: &[u64; 32]) {
        // SAFETY: `d` is in range by the invariant of `Files`.
        let out = unsafe { &mut (*self.to64(d)).0 };
        if mask == u32::MAX {
            *out = *value;
        } else {
            for l in 0..32 {
                out[l] = if mask >> l & 1 != 0 { value[l] } else { out[l] };
            }
        }
    }

    #[inline(always)]
    pub(crate) fn set_lane32(&self, d: Row, lane: usize, value: u32) {
        // SAFETY: `d` is in range by the invariant of `Files`; lanes are below 32.
        unsafe { (*self.to32(d)).0[lane & 31] = value }
    }

    #[inline(always)]
    pub(crate) fn set_lane64(&self, d: Row, lane: usize, value: u64) {
        // SAFETY: `d` is in range by the invariant of `Files`; lanes are below 32.
        unsafe { (*self.to64(d)).0[lane & 31] = value }
    }

    /// Computes every lane and stores those of the mask; for operations that vectorise.
    #[inline(always)]
    pub(crate) fn put32(&self, d: Row, mask: u32, f: impl Fn(usize) -> u32) {
        let mut value = [0; 32];
        for (l, v) in value.iter_mut().enumerate() {
            *v = f(l);
        }
        self.set32(d, mask, &value);
    }

    #[inline(always)]
    pub(crate) fn put64(&self, d: Row, mask: u32, f: impl Fn(usize) -> u64) {
        let mut value = [0; 32];
        for (l, v) in value.iter_mut().enumerate() {
            *v = f(l);
        }
        self.set64(d, mask, &value);
    }

    /// Computes the lanes of the mask one by one; for operations that do not vectorise.
    #[inline(always)]
    pub(crate) fn each32(&self, d: Row, mask: u32, f: impl Fn(usize) -> u32) {
        for l in lanes(mask) {
            let value = f(l);
            self.set_lane32(d, l, value);
        }
    }

    #[inline(always)]
    pub(crate) fn each64(&self, d: Row, mask: u32, f: impl Fn(usize) -> u64) {
        for l in lanes(mask) {
            let value = f(l);
            self.set_lane64(d, l, value);
        }
    }
}

/// Returns the mask of the lanes where `f` is true.
#[inline(always)]
pub(crate) fn mask_of(f: impl Fn(usize) -> bool) -> u32 {
    let mut bits = [0u32; 32];
    for (l, bit) in bits.iter_mut().enumerate() {
        *bit = u32::from(f(l)) << l;
    }
    bits.iter().fold(0, |all, bit| all | bit)
}
