//! Initialisation, version, error names, and the calls that find functions.

use std::ffi::{CStr, c_char, c_void};

use outboard_api::{
    CUDA_VERSION, CUresult,
    cuda::CUuuid,
    enums::*,
    procaddr::{Missing, Table},
};

use super::{Done, export_tables, put, put_optional};
use crate::{exports, log, observe::times, process, state::driver};

pub(crate) unsafe fn cuInit(flags: u32) -> Done {
    if flags != 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    process::start()
}

pub(crate) unsafe fn cuDriverGetVersion(version: *mut i32) -> Done {
    // SAFETY: see the module's contract.
    unsafe { put(version, CUDA_VERSION as i32) }
}

pub(crate) unsafe fn cuGetErrorName(error: CUresult, name: *mut *const c_char) -> Done {
    // SAFETY: see the module's contract.
    unsafe { error_text(error.name(), name) }
}

pub(crate) unsafe fn cuGetErrorString(error: CUresult, text: *mut *const c_char) -> Done {
    // SAFETY: see the module's contract.
    unsafe { error_text(error.text(), text) }
}

unsafe fn error_text(text: Option<&'static CStr>, out: *mut *const c_char) -> Done {
    // SAFETY: see the module's contract.
    unsafe { put(out, text.map_or(std::ptr::null(), CStr::as_ptr))? };
    text.map(|_| ()).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
}

pub(crate) unsafe fn cuGetExportTable(table: *mut *const c_void, id: *const CUuuid) -> Done {
    if table.is_null() || id.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: checked above. NULL is written first, since a caller that ignores an error would
    // otherwise jump to a random address.
    unsafe {
        table.write(std::ptr::null());
        table.write(export_tables::find(&*id)?);
    }
    Ok(())
}

pub(crate) unsafe fn cuGetProcAddress(
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: i32,
    flags: u64,
) -> Done {
    // SAFETY: see the module's contract.
    match unsafe { find(symbol, version, flags) } {
        // SAFETY: as above.
        Ok(address) => unsafe { put(function, address) },
        Err(error) => {
            // SAFETY: as above.
            unsafe { put_optional(function, std::ptr::null_mut()) };
            Err(error.unwrap_or(CUresult::CUDA_ERROR_NOT_FOUND))
        }
    }
}

pub(crate) unsafe fn cuGetProcAddress_v2(
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: i32,
    flags: u64,
    status: *mut u32,
) -> Done {
    // SAFETY: see the module's contract.
    let found = unsafe { find(symbol, version, flags) };
    // SAFETY: as above.
    unsafe {
        match found {
            Ok(address) => {
                put(function, address)?;
                put_optional(status, CU_GET_PROC_ADDRESS_SUCCESS);
            }
            Err(Some(error)) => return Err(error),
            // A missing function is a result, not an error.
            Err(None) => {
                put(function, std::ptr::null_mut())?;
                put_optional(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
            }
        }
    }
    Ok(())
}

/// Returns the address of a function; `Err(None)` if there is none.
unsafe fn find(
    symbol: *const c_char,
    version: i32,
    flags: u64,
) -> Result<*mut c_void, Option<CUresult>> {
    static TABLE: std::sync::OnceLock<Option<Table>> = std::sync::OnceLock::new();
    let known = u64::from(
        CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM,
    );
    if symbol.is_null() || version < 0 || flags & !known != 0 {
        return Err(Some(CUresult::CUDA_ERROR_INVALID_VALUE));
    }
    // SAFETY: a C string of the caller's, checked above.
    let name = unsafe { CStr::from_ptr(symbol) }.to_string_lossy();
    let table = TABLE
        .get_or_init(|| Table::new().ok())
        .as_ref()
        .ok_or(Some(CUresult::CUDA_ERROR_UNKNOWN))?;
    let exported = match table.resolve(&name, version as u32, flags) {
        Ok(exported) => exported,
        Err(missing) => {
            log::debug(format_args!(
                "cuGetProcAddress({name}, {version}, {flags}): {missing:?} not found"
            ));
            debug_assert!(matches!(missing, Missing::Symbol | Missing::Version));
            return Err(None);
        }
    };
    let address = exports::find(&exported).ok_or(None)?;
    Ok(address.cast_mut())
}

/// Restarts the times of calls, if they are being measured. There is nothing else to switch on.
pub(crate) unsafe fn cuProfilerStart() -> Done {
    driver()?.contexts.current().map(|_| times::restart())
}

pub(crate) unsafe fn cuProfilerStop() -> Done {
    driver()?.contexts.current().map(|_| times::stop())
}

pub(crate) unsafe fn cuProfilerInitialize() -> Done {
    Err(CUresult::CUDA_ERROR_NOT_SUPPORTED)
}
