//! Initialisation, version, error names, and the calls that find functions.

use std::ffi::{CStr, c_char, c_void};

use outboard_api::{
    CUDA_VERSION, CUresult,
    cuda::CUuuid,
    enums::*,
    procaddr::{Missing, Table},
};

use super::{Done, In, Out, Text, export_tables};
use crate::{exports, log, observe::times, process, state::driver};

pub(crate) fn cuInit(flags: u32) -> Done {
    if flags != 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    process::start()
}

pub(crate) fn cuDriverGetVersion(version: Out<'_, i32>) -> Done {
    version.put(CUDA_VERSION as i32)
}

pub(crate) fn cuGetErrorName(error: CUresult, name: Out<'_, *const c_char>) -> Done {
    error_text(error.name(), name)
}

pub(crate) fn cuGetErrorString(error: CUresult, text: Out<'_, *const c_char>) -> Done {
    error_text(error.text(), text)
}

fn error_text(text: Option<&'static CStr>, out: Out<'_, *const c_char>) -> Done {
    out.put(text.map_or(std::ptr::null(), CStr::as_ptr))?;
    text.map(|_| ()).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
}

pub(crate) fn cuGetExportTable(table: Out<'_, *const c_void>, id: In<'_, CUuuid>) -> Done {
    let id = id.get()?;
    // NULL is written first, since a caller that ignores an error would otherwise jump to a random
    // address.
    table.put(std::ptr::null())?;
    table.put(export_tables::find(&id)?)
}

pub(crate) fn cuGetProcAddress(
    symbol: Text<'_>,
    function: Out<'_, *mut c_void>,
    version: i32,
    flags: u64,
) -> Done {
    match find(symbol, version, flags) {
        Ok(address) => function.put(address),
        Err(error) => {
            function.put_optional(std::ptr::null_mut());
            Err(error.unwrap_or(CUresult::CUDA_ERROR_NOT_FOUND))
        }
    }
}

pub(crate) fn cuGetProcAddress_v2(
    symbol: Text<'_>,
    function: Out<'_, *mut c_void>,
    version: i32,
    flags: u64,
    status: Out<'_, u32>,
) -> Done {
    match find(symbol, version, flags) {
        Ok(address) => {
            function.put(address)?;
            status.put_optional(CU_GET_PROC_ADDRESS_SUCCESS);
        }
        Err(Some(error)) => return Err(error),
        // A missing function is a result, not an error.
        Err(None) => {
            function.put(std::ptr::null_mut())?;
            status.put_optional(CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
        }
    }
    Ok(())
}

/// Returns the address of a function; `Err(None)` if there is none.
fn find(symbol: Text<'_>, version: i32, flags: u64) -> Result<*mut c_void, Option<CUresult>> {
    static TABLE: std::sync::OnceLock<Option<Table>> = std::sync::OnceLock::new();
    let known = u64::from(
        CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM,
    );
    let name = symbol.get()?.to_string_lossy();
    if version < 0 || flags & !known != 0 {
        return Err(Some(CUresult::CUDA_ERROR_INVALID_VALUE));
    }
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
pub(crate) fn cuProfilerStart() -> Done {
    driver()?.contexts.current().map(|_| times::restart())
}

pub(crate) fn cuProfilerStop() -> Done {
    driver()?.contexts.current().map(|_| times::stop())
}

pub(crate) fn cuProfilerInitialize() -> Done {
    Err(CUresult::CUDA_ERROR_NOT_SUPPORTED)
}
