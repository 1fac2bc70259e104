//! Buffers of the program's, filled with records and given back.

use std::{cell::Cell, ffi::c_void};

use parking_lot::Mutex;

use crate::records::Record;

/// `CUpti_BuffersCallbackRequestFunc`.
pub(crate) type Request = unsafe extern "C" fn(*mut *mut u8, *mut usize, *mut usize);
/// `CUpti_BuffersCallbackCompleteFunc`.
pub(crate) type Complete = unsafe extern "C" fn(*mut c_void, u32, *mut u8, usize, usize);

/// Records begin at multiples of this.
const ALIGN: usize = 8;
/// Buffers that threads asked for at the same moment.
const SPARE_MAX: usize = 64;

/// Memory of the program's between its two callbacks.
struct Buffer {
    address: usize,
    bytes: usize,
    used: usize,
    /// 0: as many as fit.
    records_max: usize,
    records: usize,
}

struct Buffers {
    callbacks: Option<(Request, Complete)>,
    current: Option<Buffer>,
    spare: Vec<Buffer>,
    /// Records that found no buffer since the program asked.
    dropped: usize,
}

static BUFFERS: Mutex<Buffers> = Mutex::new(Buffers {
    callbacks: None,
    current: None,
    spare: Vec::new(),
    dropped: 0,
});

thread_local! {
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread is in one of the program's two functions.
pub(crate) fn is_in_callback() -> bool {
    IN_CALLBACK.get()
}

/// Runs one of the program's two functions.
fn in_callback(run: impl FnOnce()) {
    let outer = IN_CALLBACK.replace(true);
    run();
    IN_CALLBACK.set(outer);
}

/// Buffers come from and go to these functions from now on.
pub(crate) fn register(request: Request, complete: Complete) {
    BUFFERS.lock().callbacks = Some((request, complete));
}

pub(crate) fn is_registered() -> bool {
    BUFFERS.lock().callbacks.is_some()
}

/// Writes a record, or counts it as dropped where the program has no buffer for it. Calls that the program's two functions
/// make have no records: each would ask for a buffer again, without end.
pub(crate) fn write<R: Record>(record: &R) {
    if is_in_callback() {
        return;
    }
    let mut full = None;
    let mut asked = false;
    let callbacks = loop {
        let mut buffers = BUFFERS.lock();
        let Some((request, complete)) = buffers.callbacks else {
            buffers.dropped += 1;
            return;
        };
        if buffers.current.is_none() {
            buffers.current = buffers.spare.pop();
        }
        let is_put = buffers.current.as_mut().map(|buffer| buffer.put(record));
        match is_put {
            Some(true) => break complete,
            // One full buffer at a time: a second one that does not take the record is too small for any.
            Some(false) if full.is_none() => {
                full = buffers.current.take();
                continue;
            }
            None if !asked => {}
            _ => {
                buffers.dropped += 1;
                break complete;
            }
        }
        drop(buffers);
        asked = true;
        // SAFETY: the program's function, called without a lock of ours.
        if let Some(buffer) = unsafe { Buffer::request(request) } {
            let mut buffers = BUFFERS.lock();
            if buffers.spare.len() < SPARE_MAX {
                buffers.spare.push(buffer);
            }
        }
    };
    if let Some(buffer) = full {
        // SAFETY: as above.
        unsafe { buffer.complete(callbacks) };
    }
}

/// Gives all buffers that hold anything back.
pub(crate) fn flush() {
    let (buffers, complete) = {
        let mut buffers = BUFFERS.lock();
        let Some((_, complete)) = buffers.callbacks else {
            return;
        };
        let mut all: Vec<Buffer> = buffers.current.take().into_iter().collect();
        all.append(&mut buffers.spare);
        (all, complete)
    };
    for buffer in buffers {
        // SAFETY: the program's function, called without a lock of ours.
        unsafe { buffer.complete(complete) };
    }
}

/// Records dropped since the last time, and those that the server dropped.
pub(crate) fn take_dropped() -> usize {
    std::mem::take(&mut BUFFERS.lock().dropped)
}

pub(crate) fn add_dropped(more: u64) {
    let mut buffers = BUFFERS.lock();
    buffers.dropped = buffers
        .dropped
        .saturating_add(usize::try_from(more).unwrap_or(usize::MAX));
}

impl Buffer {
    /// # Safety
    /// A function of the program's of this type.
    unsafe fn request(request: Request) -> Option<Buffer> {
        let (mut address, mut bytes, mut records_max) = (std::ptr::null_mut::<u8>(), 0, 0);
        // SAFETY: the caller's promise; three outputs.
        in_callback(|| unsafe { request(&mut address, &mut bytes, &mut records_max) });
        let is_usable = !address.is_null() && (address as usize).is_multiple_of(ALIGN);
        is_usable.then_some(Buffer {
            address: address as usize,
            bytes,
            used: 0,
            records_max,
            records: 0,
        })
    }

    /// # Safety
    /// A function of the program's of this type; the memory is its own from now on.
    unsafe fn complete(self, complete: Complete) {
        // SAFETY: the caller's promise.
        in_callback(|| unsafe {
            complete(
                std::ptr::null_mut(),
                0,
                self.address as *mut u8,
                self.bytes,
                self.used,
            );
        });
    }

    /// Appends a record; false where it does not fit.
    fn put<R: Record>(&mut self, record: &R) -> bool {
        let fits = self.bytes.saturating_sub(self.used) >= R::BYTES
            && (self.records_max == 0 || self.records < self.records_max);
        if !fits {
            return false;
        }
        let bytes = record.bytes();
        // SAFETY: the program's buffer is this long, and ours until it is completed; a record is no longer than it says.
        unsafe {
            let to = (self.address + self.used) as *mut u8;
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
            std::ptr::write_bytes(to.add(bytes.len()), 0, R::BYTES - bytes.len());
        }
        self.used += R::BYTES;
        self.records += 1;
        true
    }
}
