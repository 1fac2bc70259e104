//! Copies from host memory to host memory, by way of the device.
//!
//! For these the driver's asynchronous copies wait until all earlier work of their stream is done
//! (CUDA Driver API, "API synchronization behavior"). The session's thread must not wait: the work
//! may itself need a message that this thread has yet to receive. Two copies, to the device and
//! back, wait for nothing (580.159, H100).

use std::{ffi::c_void, ptr, sync::Arc};

use outboard_api::{
    cuda::{CUDA_MEMCPY3D, CUmemLocation, CUmemPoolProps},
    enums::{
        CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE, CU_MEMORYTYPE_ARRAY,
        CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_HOST, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
        CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES,
    },
};
use outboard_device::{Cx, Failure};
use rustc_hash::FxHashMap;

use super::{
    Nvidia,
    addresses::Span,
    calls::CheckedBox,
    host_calls,
    owned::{ContextHold, Mark, Owned, given_back},
    table::{Driver, Refused, real},
};

/// Bytes of a copy that are on the device at a time. The pieces of a copy follow each other through
/// the same memory.
const PIECE_BYTES: u64 = 2 << 20;
/// Pieces of a copy that are submitted without a look at what the stream waits for: two works each,
/// of the some 1,020 that a stream takes behind a host function.
const PIECES_AT_ONCE_MAX: usize = 32;
/// Device memory for pieces and packed boxes of one session, per device, in bytes: part of what is
/// kept free beside a session's quota.
const POOL_BYTES_MAX: u64 = 64 << 20;

/// Pools of device memory that copies pass through.
#[derive(Default)]
pub(super) struct Pools {
    /// By the session's number of the device.
    of_devices: Vec<(usize, Owned<real::Pool>)>,
    /// The end of the last copy in each stream, by the session's numbers of context and stream,
    /// unless it is known to be reached.
    ends: FxHashMap<(u64, u64), Mark>,
}

impl Pools {
    pub(super) fn is_empty(&self) -> bool {
        self.of_devices.is_empty()
    }

    /// Tells if a copy may still use their memory, as far as is known.
    pub(super) fn are_used(&self) -> bool {
        !self.ends.is_empty()
    }

    /// Forgets copies of a context that is gone: their marks would keep it.
    pub(super) fn forget_context(&mut self, gone: u64) {
        self.ends.retain(|(context, _), _| *context != gone);
    }

    /// Forgets copies that are over, of which the driver then knows too that they are.
    fn see_ends(&mut self) {
        self.ends.retain(|_, end| match end.reached() {
            Ok(false) => true,
            reached => {
                given_back(reached.and_then(|_| end.synchronize()));
                false
            }
        });
    }
}

impl Nvidia {
    /// Copies between the session's host memory and pinned memory of this process, or a device.
    pub(super) fn copy_slot(
        &mut self,
        cx: &mut Cx<'_>,
        (stream_id, stream): (u64, real::Stream),
        dst: Span,
        src: Span,
    ) -> Result<(), Failure> {
        if !self.host.is_host(dst.address()) && !self.host.is_host(src.address()) {
            return Ok(self.driver.memcpy(dst, src, stream)?);
        }
        self.copy_on_host(cx, (stream_id, stream), dst, src)
    }

    /// Copies from the session's host memory to such memory.
    #[cold]
    pub(super) fn copy_on_host(
        &mut self,
        cx: &mut Cx<'_>,
        (stream_id, stream): (u64, real::Stream),
        dst: Span,
        src: Span,
    ) -> Result<(), Failure> {
        if self.copy_by_device(cx, (stream_id, stream), dst, src)? {
            return Ok(());
        }
        cx.has_service()?;
        let current = self.context(cx.context)?.hold.handle;
        let copy = |driver: &Driver| driver.memcpy(dst, src, stream);
        let (driver, device) = self.aside();
        Ok(host_calls::held_up(
            driver, current, device, cx.service, copy,
        )?)
    }

    /// Copies from host to host by way of the device, or into a graph as it is. Returns false if
    /// there is no device memory for that.
    fn copy_by_device(
        &mut self,
        cx: &mut Cx<'_>,
        (stream_id, stream): (u64, real::Stream),
        dst: Span,
        src: Span,
    ) -> Result<bool, Failure> {
        if self.capturing(stream)? {
            self.captures_on_host(stream)?;
            self.driver.memcpy(dst, src, stream)?;
            return Ok(true);
        }
        let len = dst.len().min(src.len());
        let Some((pool, bounce)) = self.bounce(stream_id, stream, len.min(PIECE_BYTES))? else {
            return Ok(false);
        };
        let copy = |driver: &Driver, (at, len)| {
            let part = |span: Span| {
                // SAFETY: a part of a span that was checked.
                unsafe { Span::new_unchecked(span.address() + at, len) }
            };
            // SAFETY: memory of the pool, which is freed in this stream after both copies.
            let bounce = unsafe { Span::new_unchecked(bounce, len) };
            driver.memcpy(bounce, part(src), stream)?;
            driver.memcpy(part(dst), bounce, stream)
        };
        let copied = self.copy_pieces(cx, pieces(len), copy);
        self.end_copy((cx.context, stream_id), &pool, bounce, stream);
        copied?;
        Ok(true)
    }

    /// Submits the pieces of a copy. So many that a stream may not take them all while it waits for
    /// the client are submitted with the client served.
    fn copy_pieces<P: Send>(
        &mut self,
        cx: &mut Cx<'_>,
        mut pieces: impl ExactSizeIterator<Item = P> + Send,
        copy: impl Fn(&Driver, P) -> Result<(), Refused> + Sync,
    ) -> Result<(), Failure> {
        let are_many = pieces.len() > PIECES_AT_ONCE_MAX;
        let mut submit = |driver: &Driver| pieces.try_for_each(|piece| copy(driver, piece));
        if !are_many {
            return Ok(submit(&self.driver)?);
        }
        let current = self.context(cx.context)?.hold.handle;
        let (driver, device) = self.aside();
        if device.may_wait_for_client() {
            cx.has_service()?;
        }
        let submitted = host_calls::aside(driver, current, device, cx.service, submit);
        Ok(submitted?)
    }

    /// Copies a box in a stream.
    pub(super) fn copy_checked_box(
        &mut self,
        cx: &mut Cx<'_>,
        (stream_id, stream): (u64, real::Stream),
        copy: &CheckedBox,
    ) -> Result<(), Failure> {
        if !self.is_on_host(copy) {
            return Ok(self.driver.memcpy_box(copy, stream)?);
        }
        if self.capturing(stream)? {
            self.captures_on_host(stream)?;
            return Ok(self.driver.memcpy_box(copy, stream)?);
        }
        let len = box_bytes(&copy.0).min(PIECE_BYTES);
        let Some((pool, bounce)) = self.bounce(stream_id, stream, len)? else {
            cx.has_service()?;
            let current = self.context(cx.context)?.hold.handle;
            let wait = |driver: &Driver| driver.memcpy_box(copy, stream);
            let (driver, device) = self.aside();
            return Ok(host_calls::held_up(
                driver, current, device, cx.service, wait,
            )?);
        };
        let by_device = |driver: &Driver, piece| {
            let [to_device, to_host] = by_way_of(&part_of_box(copy, piece), bounce);
            driver.memcpy_box(&to_device, stream)?;
            driver.memcpy_box(&to_host, stream)
        };
        let copied = self.copy_pieces(cx, box_pieces(&copy.0), by_device);
        self.end_copy((cx.context, stream_id), &pool, bounce, stream);
        copied
    }

    /// Notes that the graph that a stream captures copies from host memory to host memory.
    pub(super) fn captures_on_host(&mut self, stream: real::Stream) -> Result<(), Failure> {
        let graph = self.driver.capture(stream)?.graph;
        self.graphs.mark_on_host(graph);
        Ok(())
    }

    /// Whether a box goes from host memory to host memory.
    pub(super) fn is_on_host(&self, copy: &CheckedBox) -> bool {
        let copy = &copy.0;
        let is_host = |kind, address| match kind {
            CU_MEMORYTYPE_HOST => true,
            CU_MEMORYTYPE_ARRAY => false,
            _ => self.host.is_host(address),
        };
        if box_bytes(copy) == 0 {
            return false;
        }
        let rows = copy.src_z * copy.src_height + copy.src_y;
        let src = copy.src_device + (rows * copy.src_pitch + copy.src_x_in_bytes) as u64;
        let rows = copy.dst_z * copy.dst_height + copy.dst_y;
        let dst = copy.dst_device + (rows * copy.dst_pitch + copy.dst_x_in_bytes) as u64;
        is_host(copy.src_memory_type, src) && is_host(copy.dst_memory_type, dst)
    }

    /// Allocates device memory in a stream; `None` if there is none left.
    fn bounce(
        &mut self,
        stream_id: u64,
        stream: real::Stream,
        len: u64,
    ) -> Result<Option<(Arc<ContextHold>, u64)>, Failure> {
        let hold = self.stream_hold(stream_id)?;
        let pool = self.pool(&hold);
        let allocated =
            pool.and_then(|pool| hold.driver.cuMemAllocFromPoolAsync(len, pool, stream));
        Ok(allocated.ok().map(|address| (hold, address)))
    }

    /// Frees a copy's device memory once the copy is over, and marks its end.
    fn end_copy(
        &mut self,
        of: (u64, u64),
        hold: &Arc<ContextHold>,
        bounce: u64,
        stream: real::Stream,
    ) {
        free(&hold.driver, bounce, stream);
        // After a fault of the GPU nothing can be marked, and nothing runs.
        if let Ok(end) = hold.mark(stream) {
            self.pools.ends.insert(of, end);
        }
    }

    /// Gives back the memory of pools that no copy uses, and returns how many bytes copies use.
    pub(super) fn trim_pools(&mut self) -> u64 {
        self.pools.see_ends();
        let trim = |pool: &Owned<real::Pool>| {
            given_back(self.driver.cuMemPoolTrimTo(pool.handle(), 0));
            let mut reserved = 0_u64;
            let value = (&raw mut reserved).cast::<c_void>();
            let attribute = CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT;
            // SAFETY: the attribute's value is a `cuuint64_t` (cuda.h).
            let asked = unsafe {
                self.driver
                    .cuMemPoolGetAttribute(pool.handle(), attribute, value)
            };
            asked.map_or(0, |()| reserved)
        };
        let pools = self.pools.of_devices.iter();
        pools.map(|(_, pool)| trim(pool)).sum()
    }

    fn pool(&mut self, hold: &Arc<ContextHold>) -> Result<real::Pool, Refused> {
        let mut pools = self.pools.of_devices.iter();
        let known = pools.find(|(device, _)| *device == hold.device);
        if let Some((_, pool)) = known {
            return Ok(pool.handle());
        }
        let pool = make_pool(&hold.driver, self.devices[hold.device].ordinal)?;
        let owned = Owned::new(&self.base, pool, |driver, pool| {
            driver.cuMemPoolDestroy(pool)
        });
        self.pools.of_devices.push((hold.device, owned));
        Ok(pool)
    }
}

/// Makes a pool in which memory that one stream freed makes no other stream wait.
fn make_pool(driver: &Driver, ordinal: i32) -> Result<real::Pool, Refused> {
    let properties = CUmemPoolProps {
        alloc_type: CU_MEM_ALLOCATION_TYPE_PINNED,
        handle_types: 0,
        location: CUmemLocation {
            kind: CU_MEM_LOCATION_TYPE_DEVICE,
            id: ordinal,
        },
        win32_security_attributes: ptr::null_mut(),
        max_size: POOL_BYTES_MAX as usize,
        usage: 0,
        reserved: [0; 54],
    };
    let mut pool = real::Pool::NULL;
    // SAFETY: one record in, and one place out.
    unsafe { driver.cuMemPoolCreate(&mut pool, &properties) }?;
    let (mut kept, mut no) = (POOL_BYTES_MAX, 0_i32);
    let (kept, no): (*mut u64, *mut i32) = (&mut kept, &mut no);
    for (attribute, value) in [
        (CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, kept.cast::<c_void>()),
        (
            CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES,
            no.cast::<c_void>(),
        ),
    ] {
        // SAFETY: the attributes' values are a `cuuint64_t` and an `int` (cuda.h).
        let set = unsafe { driver.cuMemPoolSetAttribute(pool, attribute, value) };
        if set.is_err() {
            given_back(driver.cuMemPoolDestroy(pool));
        }
        set?;
    }
    Ok(pool)
}

fn free(driver: &Driver, address: u64, stream: real::Stream) {
    // SAFETY: memory of a pool of this file, of which later work knows nothing.
    given_back(unsafe { driver.cuMemFreeAsync(address, stream) });
}

/// Splits a copy: where each piece begins, and how long it is.
fn pieces(len: u64) -> impl ExactSizeIterator<Item = (u64, u64)> {
    (0..len.div_ceil(PIECE_BYTES) as usize).map(move |i| {
        let at = i as u64 * PIECE_BYTES;
        (at, PIECE_BYTES.min(len - at))
    })
}

fn box_bytes(copy: &CUDA_MEMCPY3D) -> u64 {
    // Checked not to overflow, since both ends hold the whole box.
    (copy.width_in_bytes * copy.height * copy.depth) as u64
}

/// A part of a box: where it begins, and how large it is, in bytes, rows and slices.
#[derive(Clone, Copy, Debug, PartialEq)]
struct BoxPiece {
    at: [usize; 3],
    size: [usize; 3],
}

/// Splits a box into parts of at most [`PIECE_BYTES`]: whole slices, else whole rows, else parts of
/// rows.
fn box_pieces(copy: &CUDA_MEMCPY3D) -> impl ExactSizeIterator<Item = BoxPiece> + use<> {
    let whole = [copy.width_in_bytes, copy.height, copy.depth];
    let mut room = PIECE_BYTES as usize;
    // A part has one row, or one slice, where the box is split below these.
    let most = whole.map(|size| {
        let most = size.min(room).max(1);
        room = if most < size { 1 } else { room / most };
        most
    });
    let [columns, rows, slices] = [0, 1, 2].map(|i| whole[i].div_ceil(most[i]));
    (0..columns * rows * slices).map(move |i| {
        let index = [i % columns, i / columns % rows, i / columns / rows];
        let at = [0, 1, 2].map(|i| index[i] * most[i]);
        let size = [0, 1, 2].map(|i| most[i].min(whole[i] - at[i]));
        BoxPiece { at, size }
    })
}

/// Returns the copy of a part of a box.
fn part_of_box(copy: &CheckedBox, piece: BoxPiece) -> CheckedBox {
    let ([x, y, z], [width_in_bytes, height, depth]) = (piece.at, piece.size);
    let copy = copy.0;
    let part = CUDA_MEMCPY3D {
        src_x_in_bytes: copy.src_x_in_bytes + x,
        src_y: copy.src_y + y,
        src_z: copy.src_z + z,
        dst_x_in_bytes: copy.dst_x_in_bytes + x,
        dst_y: copy.dst_y + y,
        dst_z: copy.dst_z + z,
        width_in_bytes,
        height,
        depth,
        ..copy
    };
    // SAFETY: a part of a box whose ends were checked.
    unsafe { CheckedBox::new(part) }
}

/// Splits a box copy in two: to packed rows at `bounce`, and from there.
fn by_way_of(copy: &CheckedBox, bounce: u64) -> [CheckedBox; 2] {
    let copy = copy.0;
    let to_device = CUDA_MEMCPY3D {
        dst_x_in_bytes: 0,
        dst_y: 0,
        dst_z: 0,
        dst_memory_type: CU_MEMORYTYPE_DEVICE,
        dst_device: bounce,
        dst_pitch: copy.width_in_bytes,
        dst_height: copy.height,
        ..copy
    };
    let to_host = CUDA_MEMCPY3D {
        src_x_in_bytes: 0,
        src_y: 0,
        src_z: 0,
        src_memory_type: CU_MEMORYTYPE_DEVICE,
        src_device: bounce,
        src_pitch: copy.width_in_bytes,
        src_height: copy.height,
        ..copy
    };
    // SAFETY: the ends of `copy` were checked, and `bounce` has room for all of its packed rows.
    [to_device, to_host].map(|copy| unsafe { CheckedBox::new(copy) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_a_copy() {
        assert_eq!(pieces(0).count(), 0);
        assert_eq!(pieces(1).collect::<Vec<_>>(), [(0, 1)]);
        let all: Vec<_> = pieces(2 * PIECE_BYTES + 5).collect();
        assert_eq!(
            all,
            [
                (0, PIECE_BYTES),
                (PIECE_BYTES, PIECE_BYTES),
                (2 * PIECE_BYTES, 5)
            ]
        );
    }

    #[test]
    fn pieces_cover_a_box_once() {
        let of = |[width_in_bytes, height, depth]: [usize; 3]| {
            // SAFETY: all zeros are a record of no copy.
            let none: CUDA_MEMCPY3D = unsafe { std::mem::zeroed() };
            box_pieces(&CUDA_MEMCPY3D {
                width_in_bytes,
                height,
                depth,
                ..none
            })
        };
        let most = PIECE_BYTES as usize;
        for (whole, count) in [
            ([most, 1, 1], 1),
            ([most + 1, 3, 2], 12),
            ([most / 2, 5, 2], 6),
            ([most / 8, 4, 5], 3),
            ([1, 1, 1], 1),
            ([0, 1, 1], 0),
        ] {
            let pieces: Vec<_> = of(whole).collect();
            assert_eq!(pieces.len(), count, "{whole:?}");
            let bytes = |piece: &BoxPiece| piece.size.iter().product::<usize>();
            assert!(pieces.iter().all(|piece| bytes(piece) <= most));
            assert!(pieces.iter().all(|piece| {
                (0..3).all(|i| piece.size[i] > 0 && piece.at[i] + piece.size[i] <= whole[i])
            }));
            let total: usize = pieces.iter().map(bytes).sum();
            assert_eq!(total, whole.iter().product::<usize>(), "{whole:?}");
            let last = pieces
                .iter()
                .any(|a| pieces.iter().filter(|b| a.at == b.at).count() > 1);
            assert!(!last, "{whole:?}");
        }
    }
}
