//! Options and logs of the JIT, as programs pass them with an image.

use std::{
    ffi::{c_char, c_void},
    sync::atomic::{AtomicU32, Ordering},
};

use outboard_api::{CUresult, enums::*};
use outboard_wire::doc::JitOptions;

use crate::log;

/// The arguments that a program passes with an image: options, and buffers for the JIT's messages.
#[derive(Default)]
pub(crate) struct Jit {
    pub(crate) options: JitOptions,
    info: Option<LogBuffer>,
    error: Option<LogBuffer>,
}

struct LogBuffer {
    address: *mut c_char,
    /// The size option, which the driver replaces by the length that it wrote.
    size: *mut *mut c_void,
}

impl Jit {
    /// # Safety
    /// The arrays must be NULL or have `count` entries, as `cuModuleLoadDataEx` describes them.
    pub(crate) unsafe fn read(
        count: u32,
        options: *mut u32,
        values: *mut *mut c_void,
    ) -> Result<Jit, CUresult> {
        let mut jit = Jit::default();
        if count == 0 {
            return Ok(jit);
        }
        if options.is_null() || values.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let (mut info, mut error) = (
            (std::ptr::null_mut(), std::ptr::null_mut()),
            (std::ptr::null_mut(), std::ptr::null_mut()),
        );
        for index in 0..count as usize {
            // SAFETY: not NULL, so they have `count` entries by this function's contract.
            let (option, slot, value) = unsafe {
                let slot = values.add(index);
                (*options.add(index), slot, *slot)
            };
            match option {
                CU_JIT_INFO_LOG_BUFFER => info.0 = value.cast(),
                CU_JIT_ERROR_LOG_BUFFER => error.0 = value.cast(),
                CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES => {
                    jit.options.info_log_bytes = value as usize as u32;
                    info.1 = slot;
                }
                CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES => {
                    jit.options.error_log_bytes = value as usize as u32;
                    error.1 = slot;
                }
                // Pointers, which are useless in another process, or outputs.
                CU_JIT_WALL_TIME
                | CU_JIT_GLOBAL_SYMBOL_NAMES
                | CU_JIT_GLOBAL_SYMBOL_ADDRESSES
                | CU_JIT_GLOBAL_SYMBOL_COUNT => {}
                other => jit.options.numbers.push((other, value as usize as u32)),
            }
        }
        let buffer = |(address, size): (*mut c_char, *mut *mut c_void)| {
            (!address.is_null()).then_some(LogBuffer { address, size })
        };
        jit.info = buffer(info);
        jit.error = buffer(error);
        Ok(jit)
    }

    /// Writes the JIT's messages. If the program requested none, logs the reason why an image was
    /// refused.
    pub(crate) fn say(&self, status: CUresult, info: &[u8], error: &[u8]) {
        self.write_logs(info, error);
        if status != CUresult::CUDA_SUCCESS && !error.is_empty() {
            say_refused(status, String::from_utf8_lossy(error).trim_end(), self);
        }
    }

    /// Writes the JIT's messages to the program's buffers.
    pub(crate) fn write_logs(&self, info: &[u8], error: &[u8]) {
        for (buffer, room, text) in [
            (&self.info, self.options.info_log_bytes, info),
            (&self.error, self.options.error_log_bytes, error),
        ] {
            let Some(buffer) = buffer else { continue };
            let kept = text.len().min((room as usize).saturating_sub(1));
            // SAFETY: `read`'s options give a buffer of `room` bytes and the word of its size.
            unsafe {
                if room > 0 {
                    std::ptr::copy_nonoverlapping(text.as_ptr().cast(), buffer.address, kept);
                    buffer.address.add(kept).write(0);
                }
                if !buffer.size.is_null() {
                    buffer
                        .size
                        .write((kept + usize::from(kept > 0)) as *mut c_void);
                }
            }
        }
    }
}

/// Logs the first few refused images of a program that requested no log: it would never learn the
/// reason.
fn say_refused(status: CUresult, said: &str, jit: &Jit) {
    const SAID_MAX: u32 = 4;
    static SAID: AtomicU32 = AtomicU32::new(0);
    if jit.error.is_none() && SAID.fetch_add(1, Ordering::Relaxed) < SAID_MAX {
        log::warn(format_args!("an image was refused with {status}: {said}"));
    } else {
        log::debug(said);
    }
}
