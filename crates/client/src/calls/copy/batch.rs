//! Batches of copies. Their attributes say when the sources are read: in the stream's order, during
//! the call, or at any time, which the stream's order is, too. Of the rest of the attributes only
//! wrong values matter: managed memory does not move, so it needs no hints about its place.

use std::{ffi::c_void, ops::Range};

use outboard_api::{
    CUresult,
    cuda::{CU_STREAM_LEGACY, CUdeviceptr, CUmemcpyAttributes, CUstream},
    enums::*,
};

use super::{
    super::{Done, Out},
    between, copy_on,
    end::{CopyEnd, MemoryKind},
};
use crate::{
    observe::{conditions, record},
    state::{Driver, StreamRef, are_several, driver, on_stream},
};

/// Index in place of a copy's for errors of no single copy.
const NO_COPY: usize = usize::MAX;

/// The arrays of a batch, of the lengths that the call gives.
struct Batch<'c> {
    dsts: &'c [CUdeviceptr],
    srcs: &'c [CUdeviceptr],
    sizes: &'c [usize],
    attributes: &'c [CUmemcpyAttributes],
    /// The first copy of each of the attributes; ascending from 0.
    firsts: &'c [usize],
}

/// An error, with the index of the copy that it is about.
type Failed = (usize, CUresult);

fn of_no_copy(error: CUresult) -> Failed {
    (NO_COPY, error)
}

impl<'c> Batch<'c> {
    /// Refuses arrays that are missing, and attributes that are not one for each copy.
    ///
    /// # Safety
    /// The first three arrays must be NULL or have `count` entries, the other two NULL or
    /// `attribute_count`, until the call returns.
    unsafe fn new(
        (dsts, srcs, sizes): (*mut CUdeviceptr, *mut CUdeviceptr, *mut usize),
        count: usize,
        (attributes, firsts): (*mut c_void, *mut usize),
        attribute_count: usize,
    ) -> Result<Self, CUresult> {
        let refused = Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        let is_missing = dsts.is_null() || srcs.is_null() || sizes.is_null();
        if is_missing || attributes.is_null() || firsts.is_null() {
            return refused;
        }
        if attribute_count == 0 || attribute_count > count {
            return refused;
        }
        // SAFETY: not NULL, so they have as many entries by this function's contract.
        let batch = unsafe {
            Batch {
                dsts: std::slice::from_raw_parts(dsts, count),
                srcs: std::slice::from_raw_parts(srcs, count),
                sizes: std::slice::from_raw_parts(sizes, count),
                attributes: std::slice::from_raw_parts(attributes.cast(), attribute_count),
                firsts: std::slice::from_raw_parts(firsts, attribute_count),
            }
        };
        let is_ascending = batch.firsts.is_sorted_by(|one, next| one < next);
        let is_inside = batch.firsts.last().is_some_and(|last| *last < count);
        match batch.firsts.first() == Some(&0) && is_ascending && is_inside {
            true => Ok(batch),
            false => refused,
        }
    }

    /// Returns the copies of each of the attributes.
    fn runs(&self) -> impl Iterator<Item = (Range<usize>, &'c CUmemcpyAttributes)> {
        let count = self.dsts.len();
        let ends = self.firsts.iter().skip(1).copied().chain([count]);
        let runs = self.firsts.iter().zip(ends);
        runs.map(|(first, end)| *first..end).zip(self.attributes)
    }

    /// Sends the copies one after the other, and waits if a source in device memory is to be read
    /// during the call.
    fn send(&self, stream: CUstream) -> Result<(), Failed> {
        check_stream(stream).map_err(of_no_copy)?;
        for (copies, attributes) in self.runs() {
            check(attributes).map_err(|error| (copies.start, error))?;
        }
        let mut is_awaited = false;
        for (copies, attributes) in self.runs() {
            let is_now = attributes.src_access_order == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
            let entries = self.dsts.iter().zip(self.srcs).zip(self.sizes).enumerate();
            for (index, ((dst, src), bytes)) in entries.take(copies.end).skip(copies.start) {
                let whole @ (dst, src, bytes) = (*dst, *src, *bytes);
                let here = || match is_now {
                    true => copy_during_call(stream, whole).map(|reads| is_awaited |= reads),
                    false => copy_on(stream, CopyEnd::any(dst), CopyEnd::any(src), bytes),
                };
                between(stream, false, whole, here).map_err(|error| (index, error))?;
            }
        }
        match is_awaited {
            true => at_stream(stream, Driver::synchronize_stream).map_err(of_no_copy),
            false => Ok(()),
        }
    }
}

/// Calls a function with a stream and the server that has it.
fn at_stream(stream: CUstream, call: impl FnOnce(&Driver, &StreamRef) -> Done) -> Done {
    let _selected = are_several().then(|| on_stream(stream));
    let driver = driver()?;
    call(driver, &*driver.work_stream(stream)?)
}

/// Refuses the legacy stream, and one that is captured, whose capture goes on.
fn check_stream(stream: CUstream) -> Done {
    if stream.is_null() || stream == CU_STREAM_LEGACY {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    at_stream(stream, |_, stream| match stream.is_capturing() {
        true => Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
        false => Ok(()),
    })
}

fn check(attributes: &CUmemcpyAttributes) -> Done {
    let orders = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM..=CU_MEMCPY_SRC_ACCESS_ORDER_ANY;
    let has_other_flags = attributes.flags & !CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE != 0;
    match orders.contains(&attributes.src_access_order) && !has_other_flags {
        true => Ok(()),
        false => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
}

/// Makes a copy whose source the program may change when the call returns. Returns whether the
/// source is still to be read.
fn copy_during_call(
    stream: CUstream,
    (dst, src, bytes): (u64, u64, usize),
) -> Result<bool, CUresult> {
    let driver = driver()?;
    let stream = driver.work_stream(stream)?;
    driver.copy_read_now(CopyEnd::any(dst), CopyEnd::any(src), bytes, &stream)
}

impl Driver {
    /// Copies with a source that is read before this returns, unless it is memory of the device:
    /// that is read in the stream's order, and the result is true. Host memory is read without a
    /// wait for earlier work, which by the program's word does not use it; a copy to host memory
    /// waits.
    fn copy_read_now(
        &self,
        dst: CopyEnd,
        src: CopyEnd,
        bytes: usize,
        stream: &StreamRef,
    ) -> Result<bool, CUresult> {
        if bytes == 0 {
            return Ok(false);
        }
        if dst.address == 0 || src.address == 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let (to, from) = (dst.kind(self, bytes)?, src.kind(self, bytes)?);
        let (dst, src) = (dst.address, src.address);
        let is_on_device = from == MemoryKind::Device;
        if to != MemoryKind::Device || is_on_device {
            let ends = (CopyEnd::known(dst, to), CopyEnd::known(src, from));
            self.copy(ends.0, ends.1, bytes, stream, !is_on_device)?;
            return Ok(is_on_device);
        }
        self.keep_pace_of_copy(stream, (to, from), bytes)?;
        let source = src as *const u8;
        let copy = || match from {
            MemoryKind::Shared => self.copy_in_shared(dst, source, bytes, stream, false),
            _ => self.copy_in_taken(dst, source, bytes, stream, false),
        };
        match conditions::is_recorded() {
            true => record::copying(record::Way::ToDevice, bytes, copy)?,
            false => copy()?,
        }
        Ok(false)
    }
}

pub(crate) unsafe fn cuMemcpyBatchAsync(
    dsts: *mut CUdeviceptr,
    srcs: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    attributes: *mut c_void,
    attribute_indices: *mut usize,
    attribute_count: usize,
    failed: Out<'_, usize>,
    stream: CUstream,
) -> Done {
    let (copies, attributes) = ((dsts, srcs, sizes), (attributes, attribute_indices));
    // SAFETY: arrays of these lengths: the driver API asks it of its callers.
    let batch = unsafe { Batch::new(copies, count, attributes, attribute_count) };
    let sent = batch
        .map_err(of_no_copy)
        .and_then(|batch| batch.send(stream));
    sent.map_err(|(copy, error)| {
        failed.put_optional(copy);
        error
    })
}

pub(crate) unsafe fn cuMemcpyBatchAsync_v2(
    dsts: *mut CUdeviceptr,
    srcs: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    attributes: *mut c_void,
    attribute_indices: *mut usize,
    attribute_count: usize,
    stream: CUstream,
) -> Done {
    // SAFETY: what the caller has promised, but for a place for the failed copy's index.
    unsafe {
        cuMemcpyBatchAsync(
            dsts,
            srcs,
            sizes,
            count,
            attributes,
            attribute_indices,
            attribute_count,
            Out::none(),
            stream,
        )
    }
}
