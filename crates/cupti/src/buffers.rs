//! Buffers that the program provides, filled with records and returned.

use std::{cell::Cell, ffi::c_void, sync::atomic::AtomicBool};

use parking_lot::Mutex;

use crate::log;
use outboard_api::cupti_records::Record;

/// `CUpti_BuffersCallbackRequestFunc`.
pub(crate) type Request = unsafe extern "C" fn(*mut *mut u8, *mut usize, *mut usize);
/// `CUpti_BuffersCallbackCompleteFunc`.
pub(crate) type Complete = unsafe extern "C" fn(*mut c_void, u32, *mut u8, usize, usize);

/// Alignment of records in a buffer, in bytes.
const ALIGN: usize = 8;
/// Most buffers kept in reserve, if several threads requested one at the same moment. Further ones
/// are returned unused.
const SPARE_MAX: usize = 64;

/// Memory of the program, between the calls of its two callbacks.
struct Buffer {
    address: usize,
    bytes: usize,
    used: usize,
    /// Most records for this buffer; 0 for as many as fit.
    records_max: usize,
    records: usize,
}

struct Buffers {
    callbacks: Option<(Request, Complete)>,
    current: Option<Buffer>,
    spare: Vec<Buffer>,
    /// Records dropped for lack of a buffer, since the program last read this number.
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

/// Returns true if the calling thread is in one of the program's two callbacks.
pub(crate) fn is_in_callback() -> bool {
    IN_CALLBACK.get()
}

/// Runs one of the program's two callbacks.
fn in_callback(run: impl FnOnce()) {
    let outer = IN_CALLBACK.replace(true);
    run();
    IN_CALLBACK.set(outer);
}

/// Sets the functions that buffers come from and go to.
pub(crate) fn register(request: Request, complete: Complete) {
    BUFFERS.lock().callbacks = Some((request, complete));
}

pub(crate) fn is_registered() -> bool {
    BUFFERS.lock().callbacks.is_some()
}

/// Writes a record, or counts it as dropped if the program has no buffer for it. Calls made by the
/// program's two callbacks have no records: each would request a buffer again, without end.
pub(crate) fn write<R: Record>(record: &R) {
    if is_in_callback() {
        return;
    }
    let mut full = None;
    let mut asked = false;
    let callbacks = loop {
        let mut buffers = BUFFERS.lock();
        let Some((request, complete)) = buffers.callbacks else {
            buffers.dropped = buffers.dropped.saturating_add(1);
            return;
        };
        if buffers.current.is_none() {
            buffers.current = buffers.spare.pop();
        }
        let is_put = buffers.current.as_mut().map(|buffer| buffer.put(record));
        match is_put {
            Some(true) => break complete,
            // Only one full buffer is replaced: a second one without room is too small for any
            // record.
            Some(false) if full.is_none() => {
                full = buffers.current.take();
                continue;
            }
            None if !asked => {}
            _ => {
                buffers.dropped = buffers.dropped.saturating_add(1);
                break complete;
            }
        }
        drop(buffers);
        asked = true;
        // SAFETY: the program's function, called while none of our locks is held.
        let unused = unsafe { Buffer::request(request) }.and_then(keep);
        if let Some(buffer) = unused {
            // SAFETY: the program's function, called while none of our locks is held.
            unsafe { buffer.complete(complete) };
        }
    };
    if let Some(buffer) = full {
        // SAFETY: the program's function, called while none of our locks is held.
        unsafe { buffer.complete(callbacks) };
    }
}

/// Keeps a buffer for the records to come. Returns one that is of no use: it is not aligned, or one
/// too many.
fn keep(buffer: Buffer) -> Option<Buffer> {
    if !buffer.address.is_multiple_of(ALIGN) {
        static SAID: AtomicBool = AtomicBool::new(false);
        log::warn_once(
            &SAID,
            format_args!("a buffer for records is not aligned to {ALIGN} bytes: it is not used"),
        );
        return Some(buffer);
    }
    let mut buffers = BUFFERS.lock();
    if buffers.spare.len() >= SPARE_MAX {
        return Some(buffer);
    }
    buffers.spare.push(buffer);
    None
}

/// Returns all buffers that hold records to the program.
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
        // SAFETY: the program's function, called while none of our locks is held.
        unsafe { buffer.complete(complete) };
    }
}

/// Takes the number of records dropped since the last call, here and by the server.
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
    /// `request` is the program's function of this type.
    unsafe fn request(request: Request) -> Option<Buffer> {
        let (mut address, mut bytes, mut records_max) = (std::ptr::null_mut::<u8>(), 0, 0);
        // SAFETY: the caller's promise; three outputs.
        in_callback(|| unsafe { request(&mut address, &mut bytes, &mut records_max) });
        (!address.is_null()).then_some(Buffer {
            address: address as usize,
            bytes,
            used: 0,
            records_max,
            records: 0,
        })
    }

    /// # Safety
    /// `complete` must be the program's function of this type. It owns the memory from now on.
    unsafe fn complete(self, complete: Complete) {
        // SAFETY: the program's function of this type, by this function's contract.
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

    /// Appends a record. Returns false if it does not fit.
    fn put<R: Record>(&mut self, record: &R) -> bool {
        let fits = self.bytes.saturating_sub(self.used) >= R::BYTES
            && (self.records_max == 0 || self.records < self.records_max);
        if !fits {
            return false;
        }
        let bytes = record.bytes();
        // SAFETY: the program's buffer is this long, and ours until it is completed; a record is no
        // longer than it says.
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
