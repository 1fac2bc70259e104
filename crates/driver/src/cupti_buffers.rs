//! Buffers of `BYTES` bytes for CUPTI's records of work: lent to CUPTI when it asks for one, and
//! read and freed when it returns one.

use std::{
    alloc::{Layout, alloc, dealloc},
    ffi::{c_int, c_void},
    slice,
};

/// `CUpti_BuffersCallbackRequestFunc`
pub type Request = unsafe extern "C" fn(*mut *mut u8, *mut usize, *mut usize);
/// `CUpti_BuffersCallbackCompleteFunc`
pub type Complete = unsafe extern "C" fn(*mut c_void, u32, *mut u8, usize, usize);
/// `cuptiActivityGetNextRecord`
pub type Next = unsafe extern "C" fn(*mut u8, usize, *mut *mut u8) -> c_int;

/// Alignment that CUPTI asks for: `ACTIVITY_RECORD_ALIGNMENT`.
const ALIGN: usize = 8;

const fn layout<const BYTES: usize>() -> Layout {
    match Layout::from_size_align(BYTES, ALIGN) {
        Ok(layout) => layout,
        Err(_) => Layout::new::<u64>(),
    }
}

/// Lends CUPTI a buffer, or none if there is no memory.
///
/// # Safety
/// The pointers are the outputs of a [`Request`].
pub unsafe extern "C" fn lend<const BYTES: usize>(
    buffer: *mut *mut u8,
    bytes: *mut usize,
    records_max: *mut usize,
) {
    const { assert!(BYTES >= ALIGN && BYTES.is_multiple_of(ALIGN)) };
    // SAFETY: the layout is not empty; the outputs are the caller's.
    unsafe {
        let memory = alloc(layout::<BYTES>());
        buffer.write(memory);
        bytes.write(if memory.is_null() { 0 } else { BYTES });
        records_max.write(0);
    }
}

/// Reads the records of a buffer that CUPTI returns, then frees it. Each record comes with
/// everything after it. Without `next` no record is read.
///
/// # Safety
/// `buffer` is null or was lent by [`lend`] with the same `BYTES`, which CUPTI has filled up to
/// `valid_bytes`; `next` is CUPTI's.
pub unsafe fn take_back<const BYTES: usize>(
    next: Option<Next>,
    buffer: *mut u8,
    valid_bytes: usize,
    mut each: impl FnMut(&[u8]),
) {
    if buffer.is_null() {
        return;
    }
    let valid_bytes = valid_bytes.min(BYTES);
    if let Some(next) = next.filter(|_| valid_bytes > 0) {
        let mut record = std::ptr::null_mut();
        let end = buffer as usize + valid_bytes;
        // SAFETY: a buffer of CUPTI's own records, which it walks itself.
        while unsafe { next(buffer, valid_bytes, &mut record) } == 0 && !record.is_null() {
            if (record as usize) < buffer as usize || record as usize >= end {
                break;
            }
            // SAFETY: inside the buffer, checked above.
            each(unsafe { slice::from_raw_parts(record, end - record as usize) });
        }
    }
    // SAFETY: allocated by `lend` with this layout.
    unsafe { dealloc(buffer, layout::<BYTES>()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Walks records of 8 bytes as CUPTI does, and ends with one outside the buffer.
    unsafe extern "C" fn next(buffer: *mut u8, valid: usize, record: *mut *mut u8) -> c_int {
        // SAFETY: the test's own pointers.
        unsafe {
            let at = match (*record).is_null() {
                true => 0,
                false => *record as usize - buffer as usize + 8,
            };
            *record = buffer.wrapping_add(at);
            c_int::from(at > valid)
        }
    }

    #[test]
    fn records_inside_the_buffer_are_read_and_the_walk_ends_with_it() {
        let (mut buffer, mut bytes, mut records) = (std::ptr::null_mut::<u8>(), 0, 7);
        // SAFETY: valid outputs; the buffer goes back once.
        unsafe {
            lend::<64>(&mut buffer, &mut bytes, &mut records);
            assert_eq!((bytes, records), (64, 0));
            buffer.write_bytes(0, bytes);
            let mut lengths = Vec::new();
            take_back::<64>(Some(next), buffer, 24, |record| lengths.push(record.len()));
            assert_eq!(lengths, [24, 16, 8]);
            // Nothing to read, and nothing to free.
            take_back::<64>(Some(next), std::ptr::null_mut(), 24, |_| unreachable!());
        }
    }
}
