//! Loads and stores: translation of addresses to host pointers, with every lane checked, then the
//! access itself.

use crate::check::{Watching, watch::Accesses};
use crate::code::{
    Base, LOCAL_WINDOW, Mem, MemSpace, Op, PARAM_WINDOW, Row, SHARED_WINDOW, SINK, WINDOW_MASK,
    Width,
};
use crate::error::FaultKind;
use crate::interp::core::{Core, Stop, Trouble};
use crate::interp::range_cache::RangeCache;
use crate::lanes::lanes;
use crate::words::{read8, read16, read32, read64, write8, write16, write32, write64};

/// Host pointers of 32 lanes. Those outside the mask point where an active lane does, or into their
/// own local memory. Filled in place, because a returned value would be copied several times.
#[repr(align(64))]
pub(crate) struct Pointers(pub(crate) [u64; 32]);

impl Pointers {
    #[inline(always)]
    pub(crate) fn new() -> Self {
        Pointers([0; 32])
    }
}

impl Core<'_> {
    /// Returns the range of an instruction's last access: first address and end.
    #[inline(always)]
    pub(crate) fn cached_range(&self, pc: u32) -> (u64, u64) {
        self.cache.entries[pc as usize % RangeCache::ENTRIES]
    }

    /// Returns the addresses of an operand before translation.
    #[inline(always)]
    pub(crate) fn addresses(&self, mem: &Mem, out: &mut [u64; 32]) {
        let offset = mem.offset as u64;
        match mem.base {
            Base::None => *out = [offset; 32],
            Base::Row64(row) => {
                let row = self.files.row64(row);
                for l in 0..32 {
                    out[l] = row[l].wrapping_add(offset);
                }
            }
            Base::Row32(row) if matches!(mem.space, MemSpace::Generic | MemSpace::Global) => {
                let row = self.files.row32(row);
                for l in 0..32 {
                    out[l] = u64::from(row[l]).wrapping_add(offset);
                }
            }
            // The addresses of these spaces have 32 bits: a[m - t] begins below 0.
            Base::Row32(row) => {
                let row = self.files.row32(row);
                for l in 0..32 {
                    out[l] = u64::from(row[l].wrapping_add(offset as u32));
                }
            }
        }
    }

    /// Returns host pointers for an access of `bytes` by the lanes of `mask`, all checked for
    /// bounds and alignment.
    #[inline(always)]
    pub(crate) fn pointers(
        &mut self,
        mem: &Mem,
        bytes: u32,
        mask: u32,
        write: bool,
        out: &mut Pointers,
    ) -> Result<(), Stop> {
        self.addresses(mem, &mut out.0);
        self.translate(mem.space, bytes, mask, write, out)
    }

    /// Translates addresses in a state space to host pointers, in place.
    #[inline(always)]
    pub(crate) fn translate(
        &mut self,
        space: MemSpace,
        bytes: u32,
        mask: u32,
        write: bool,
        out: &mut Pointers,
    ) -> Result<(), Stop> {
        let at = &mut out.0;
        if mask != u32::MAX {
            // Inactive lanes follow the first active one, so that the checks need not distinguish
            // them.
            let first = at[(mask.trailing_zeros() & 31) as usize];
            for (l, a) in at.iter_mut().enumerate() {
                *a = if mask >> l & 1 != 0 { *a } else { first };
            }
        }
        let size = u64::from(bytes);
        match space {
            MemSpace::Generic | MemSpace::Global => {
                let entry = (self.pc as usize) % RangeCache::ENTRIES;
                let (low, high) = self.cache.entries[entry];
                if outside(at, low, high - low, size) {
                    self.resolve_slowly(at, space, size, mask, write, entry)?;
                }
            }
            MemSpace::Shared => {
                let window = (self.shared as u64, self.shared_bytes, "shared memory");
                self.window(at, window, size, mask, write)?
            }
            MemSpace::Param => {
                let base = self.env.params.as_ptr() as u64;
                let window = (base, self.env.param_bytes, "the kernel's parameters");
                self.window(at, window, size, mask, write)?;
            }
            MemSpace::Local | MemSpace::Frame => {
                let frame = if space == MemSpace::Frame {
                    self.frame_local
                } else {
                    0
                };
                for a in at.iter_mut() {
                    *a = a.wrapping_add(frame);
                }
                let window = (self.local as u64, self.stride, "local memory");
                self.window(at, window, size, mask, write)?;
                // Each lane has its own part.
                for (l, a) in at.iter_mut().enumerate() {
                    *a += l as u64 * self.stride;
                }
            }
        }
        if let Some(watch) = self.env.watch
            && !matches!(space, MemSpace::Param | MemSpace::Local | MemSpace::Frame)
        {
            self.watched(watch, at, bytes, mask, write);
        }
        Ok(())
    }

    /// Reports an instruction's accesses to the checker.
    #[cold]
    #[inline(never)]
    fn watched(&self, watch: &Watching<'_>, at: &[u64; 32], bytes: u32, mask: u32, write: bool) {
        let values = match self.program.code[self.pc as usize].op {
            Op::St { width, a, .. } if !width.is_wide() => Some(self.files.row32(a)),
            _ => None,
        };
        watch.accesses(&Accesses {
            pc: self.pc,
            block: self.env.linear(self.block),
            warp: self.warp,
            mask,
            at,
            bytes,
            write,
            ranges: self.ranges,
            heap: self.env.heap.map_or((0, 0), crate::heap::Heap::range),
            shared: (self.shared as u64, self.shared_bytes),
            values,
        });
    }

    /// Translates offsets into a small buffer: its address, its length in bytes, and its name.
    #[inline(always)]
    fn window(
        &self,
        at: &mut [u64; 32],
        (base, limit, what): (u64, u64, &'static str),
        size: u64,
        mask: u32,
        write: bool,
    ) -> Result<(), Stop> {
        if outside(at, 0, limit, size) {
            return Err(first_outside(at, (limit, what), size, mask, write));
        }
        for a in at {
            *a += base;
        }
        Ok(())
    }

    /// Translates addresses for which the cached range did not suffice: other ranges, windows, or a
    /// fault.
    #[cold]
    #[inline(never)]
    fn resolve_slowly(
        &mut self,
        at: &mut [u64; 32],
        space: MemSpace,
        size: u64,
        mask: u32,
        write: bool,
        entry: usize,
    ) -> Result<(), Stop> {
        for lane in lanes(mask) {
            let address = at[lane];
            let fault = || access_fault(address, size, write, lane);
            if address & (size - 1) != 0 {
                return Err(fault());
            }
            let offset = address & !WINDOW_MASK;
            let (base, limit) = match address & WINDOW_MASK {
                0 => {
                    // Usually in the range of the lane before.
                    let (low, high) = self.cache.entries[entry];
                    if address < low || address >= high || high - address < size {
                        let found = self.ranges.find(address);
                        let found = found.filter(|(_, end)| end - address >= size);
                        self.cache.entries[entry] = found.ok_or_else(fault)?;
                    }
                    continue;
                }
                _ if space == MemSpace::Global => return Err(fault()),
                SHARED_WINDOW => (self.shared as u64, self.shared_bytes),
                LOCAL_WINDOW => (self.local as u64 + lane as u64 * self.stride, self.stride),
                PARAM_WINDOW if !write => (self.env.params.as_ptr() as u64, self.env.param_bytes),
                _ => return Err(fault()),
            };
            if offset > limit || limit - offset < size {
                return Err(fault());
            }
            at[lane] = base + offset;
        }
        // Inactive lanes are read too, and must not keep an address that was never checked.
        let first = at[(mask.trailing_zeros() & 31) as usize];
        for (l, a) in at.iter_mut().enumerate() {
            *a = if mask >> l & 1 != 0 { *a } else { first };
        }
        Ok(())
    }

    /// Returns a pointer to `bytes` at one lane's generic address, for the device runtime's strings
    /// and arguments.
    pub(crate) fn lane_pointer(
        &mut self,
        address: u64,
        bytes: u64,
        lane: usize,
    ) -> Result<*const u8, Stop> {
        let fault = || access_fault(address, bytes, false, lane);
        let offset = address & !WINDOW_MASK;
        let (base, limit) = match address & WINDOW_MASK {
            0 => {
                return match self.ranges.find(address) {
                    Some((_, end)) if end - address >= bytes => Ok(address as *const u8),
                    _ => Err(fault()),
                };
            }
            SHARED_WINDOW => (self.shared as u64, self.shared_bytes),
            LOCAL_WINDOW => (self.local as u64 + lane as u64 * self.stride, self.stride),
            PARAM_WINDOW => (self.env.params.as_ptr() as u64, self.env.param_bytes),
            _ => return Err(fault()),
        };
        if offset > limit || limit - offset < bytes {
            Err(fault())
        } else {
            Ok((base + offset) as *const u8)
        }
    }

    #[inline(always)]
    pub(crate) fn load(&mut self, width: Width, mem: &Mem, d: Row, mask: u32) -> Result<(), Stop> {
        let mut at = Pointers::new();
        self.pointers(mem, width.bytes(), mask, false, &mut at)?;
        self.load_from(width, &at.0, 0, d, mask);
        Ok(())
    }

    #[inline(always)]
    fn load_from(&self, width: Width, at: &[u64; 32], offset: u64, d: Row, mask: u32) {
        if width == Width::B32 {
            if mask == u32::MAX && offset == 0 && contiguous(at, 4) {
                // SAFETY: `pointers` has checked each of the 32 neighbouring lanes.
                let value = unsafe { (at[0] as *const [u32; 32]).read_unaligned() };
                return self.files.set32(d, mask, &value);
            }
            // Inactive lanes point where an active one does, or in local memory to their own part.
            let mut value = [0; 32];
            for l in 0..32 {
                value[l] = read32(at[l] + offset);
            }
            return self.files.set32(d, mask, &value);
        }
        if width == Width::B64 {
            let mut value = [0; 32];
            for l in 0..32 {
                value[l] = read64(at[l] + offset);
            }
            return self.files.set64(d, mask, &value);
        }
        self.load_narrow(width, at, offset, d, mask);
    }

    /// Loads that extend to the register's width.
    #[inline(never)]
    fn load_narrow(&self, width: Width, at: &[u64; 32], offset: u64, d: Row, mask: u32) {
        for l in lanes(mask) {
            let at = at[l] + offset;
            let value = match width {
                Width::U8 | Width::U8x64 => read8(at).into(),
                Width::S8 | Width::S8x64 => read8(at) as i8 as u64,
                Width::U16 | Width::U16x64 => read16(at).into(),
                Width::S16 | Width::S16x64 => read16(at) as i16 as u64,
                Width::S32x64 => read32(at) as i32 as u64,
                _ => read32(at).into(),
            };
            if width.is_wide() {
                self.files.set_lane64(d, l, value)
            } else {
                self.files.set_lane32(d, l, value as u32)
            }
        }
    }

    #[inline(always)]
    pub(crate) fn store(&mut self, width: Width, mem: &Mem, a: Row, mask: u32) -> Result<(), Stop> {
        let mut at = Pointers::new();
        self.pointers(mem, width.bytes(), mask, true, &mut at)?;
        self.store_to(width, &at.0, 0, a, mask);
        Ok(())
    }

    #[inline(always)]
    fn store_to(&self, width: Width, at: &[u64; 32], offset: u64, a: Row, mask: u32) {
        if width == Width::B32 && mask == u32::MAX {
            let value = self.files.get32(a);
            if offset == 0 && contiguous(at, 4) {
                // SAFETY: `pointers` has checked each of the 32 neighbouring lanes.
                return unsafe { (at[0] as *mut [u32; 32]).write_unaligned(value) };
            }
            for l in 0..32 {
                write32(at[l] + offset, value[l]);
            }
            return;
        }
        self.store_lanes(width, at, offset, a, mask);
    }

    #[inline(never)]
    fn store_lanes(&self, width: Width, at: &[u64; 32], offset: u64, a: Row, mask: u32) {
        for l in lanes(mask) {
            let at = at[l] + offset;
            let value = if width.is_wide() {
                self.files.lane64(a, l)
            } else {
                self.files.lane32(a, l).into()
            };
            match width.bytes() {
                1 => write8(at, value as u8),
                2 => write16(at, value as u16),
                4 => write32(at, value as u32),
                _ => write64(at, value),
            }
        }
    }

    #[inline(never)]
    pub(crate) fn cp_async(
        &mut self,
        bytes: u8,
        take: Row,
        to: &Mem,
        list: u32,
        mask: u32,
    ) -> Result<(), Stop> {
        let [base, wide, low, high] = [0, 1, 2, 3].map(|i| self.program.rows[list as usize + i]);
        let base = match (base, wide) {
            (SINK, _) => Base::None,
            (row, 0) => Base::Row32(row),
            (row, _) => Base::Row64(row),
        };
        let offset = (u64::from(high) << 32 | u64::from(low)) as i64;
        let from = Mem {
            space: MemSpace::Global,
            base,
            offset,
        };
        let mut to_at = Pointers::new();
        self.pointers(to, bytes.into(), mask, true, &mut to_at)?;
        // Lanes that take nothing do not access their source.
        let mut reading = mask;
        if take != SINK {
            reading &= crate::lanes::mask_of(|l| self.files.lane32(take, l) != 0);
        }
        let mut from_at = Pointers::new();
        if reading != 0 {
            self.pointers(&from, bytes.into(), reading, false, &mut from_at)?;
        }
        for l in lanes(mask) {
            let taken = if take == SINK {
                bytes.into()
            } else {
                self.files.lane32(take, l).min(bytes.into())
            };
            let mut data = [0u8; 16];
            for (i, byte) in data.iter_mut().enumerate().take(taken as usize) {
                *byte = read8(from_at.0[l] + i as u64);
            }
            for (i, byte) in data.iter().enumerate().take(bytes.into()) {
                write8(to_at.0[l] + i as u64, *byte);
            }
        }
        Ok(())
    }

    /// Copies within one lane's local memory.
    #[inline(never)]
    pub(crate) fn copy_local(&mut self, lane: usize, to: u64, from: u64, bytes: u32) {
        debug_assert!(
            to + u64::from(bytes) <= self.stride && from + u64::from(bytes) <= self.stride
        );
        // SAFETY: both ranges lie in frames, for which the warp's local memory was grown before
        // they were entered.
        unsafe {
            let lane = self.local.add(lane * self.stride as usize);
            std::ptr::copy(
                lane.add(from as usize),
                lane.add(to as usize),
                bytes as usize,
            );
        }
    }

    #[inline(never)]
    pub(crate) fn isspacep(&self, space: MemSpace, a: Row) -> u32 {
        crate::lanes::mask_of(|l| {
            let window = self.files.lane64(a, l) & WINDOW_MASK;
            match space {
                MemSpace::Shared => window == SHARED_WINDOW,
                MemSpace::Local => window == LOCAL_WINDOW,
                MemSpace::Param => window == PARAM_WINDOW,
                _ => window == 0,
            }
        })
    }
}

/// Whether any lane's access of `size` bytes leaves `[low, low + span)` or is misaligned.
#[inline(always)]
fn outside(at: &[u64; 32], low: u64, span: u64, size: u64) -> bool {
    let last = span.wrapping_sub(size);
    let (mut beyond, mut bits) = (0, 0);
    for &a in at {
        let offset = a.wrapping_sub(low);
        // The top bit is set if the offset is "negative" or past the last possible one: both are
        // far below 2^63.
        beyond |= offset | last.wrapping_sub(offset);
        bits |= a;
    }
    (beyond | last) >> 63 != 0 || bits & (size - 1) != 0
}

/// Returns the fault of the first lane that `outside` found.
#[cold]
#[inline(never)]
fn first_outside(
    at: &[u64; 32],
    (limit, what): (u64, &'static str),
    size: u64,
    mask: u32,
    write: bool,
) -> Stop {
    let bad = |&lane: &usize| at[lane] & (size - 1) != 0 || limit < size || at[lane] > limit - size;
    let lane = lanes(mask).find(bad).unwrap_or(0);
    let address = at[lane];
    if address & (size - 1) != 0 {
        return access_fault(address, size, write, lane);
    }
    let kind = FaultKind::OutsideOf {
        what,
        limit,
        address,
        bytes: size as u32,
        write,
    };
    Trouble::at_lane(kind, lane)
}

/// Whether lane `l` points `l * size` bytes after lane 0.
#[inline(always)]
fn contiguous(at: &[u64; 32], size: u64) -> bool {
    // Most rows that are not contiguous differ at the ends already.
    if at[31] != at[0].wrapping_add(31 * size) {
        return false;
    }
    let mut different = 0;
    for (l, &a) in at.iter().enumerate() {
        different |= a ^ at[0].wrapping_add(l as u64 * size);
    }
    different == 0
}

pub(crate) fn access_fault(address: u64, bytes: u64, write: bool, lane: usize) -> Stop {
    let bytes = bytes as u32;
    let kind = if bytes.is_power_of_two() && address & u64::from(bytes - 1) != 0 {
        FaultKind::MisalignedAddress {
            address,
            bytes,
            write,
        }
    } else {
        FaultKind::IllegalAddress {
            address,
            bytes,
            write,
        }
    };
    Trouble::at_lane(kind, lane)
}
