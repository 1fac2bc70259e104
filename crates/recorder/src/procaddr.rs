//! `cuGetProcAddress`: the driver says which functions exist, and ours are returned in place of
//! those that we pass on.

use std::{
    collections::HashMap,
    ffi::{CStr, c_char, c_void},
    sync::{OnceLock, atomic::Ordering},
};

use outboard_api::{CUDA_VERSION, CUresult, procaddr::Table};

use crate::driver::{Exports, exports};

struct Ours {
    exports: &'static Exports,
    /// Indices by the driver's address.
    by_address: HashMap<usize, usize>,
    by_name: HashMap<&'static [u8], usize>,
    table: Option<Table>,
}

fn ours() -> Option<&'static Ours> {
    static OURS: OnceLock<Ours> = OnceLock::new();
    let exports = exports()?;
    Some(OURS.get_or_init(|| {
        Ours {
            exports,
            by_address: (exports.slots.iter().enumerate())
                .map(|(index, slot)| (slot.load(Ordering::Relaxed) as usize, index))
                .collect(),
            by_name: (exports.ours.iter().enumerate())
                .map(|(index, (name, _))| (name.to_bytes(), index))
                .collect(),
            table: Table::new().ok(),
        }
    }))
}

/// Puts our function in place of the driver's, if the driver found one.
///
/// # Safety
/// The arguments and the result of a call of `cuGetProcAddress`.
pub(crate) unsafe fn replace(
    result: CUresult,
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: i32,
    flags: u64,
) {
    if result != CUresult::CUDA_SUCCESS || symbol.is_null() || function.is_null() {
        return;
    }
    // SAFETY: the call has succeeded, so the name is valid and the output is written.
    let (name, real) = unsafe { (CStr::from_ptr(symbol), *function) };
    if real.is_null() {
        return;
    }
    let Some(ours) = ours() else { return };
    let by_address = ours.by_address.get(&(real as usize)).copied();
    let index = by_address.or_else(|| {
        // The driver may return another address than the exported one. A function of a later
        // version than we know may have another type, and is passed on.
        let version = u32::try_from(version).ok().filter(|v| *v <= CUDA_VERSION)?;
        let table = ours.table.as_ref()?;
        let exported = table
            .resolve(&name.to_string_lossy(), version, flags)
            .ok()?;
        ours.by_name.get(exported.as_bytes()).copied()
    });
    if let Some(index) = index {
        // SAFETY: the driver has written to it in the program's call.
        unsafe { function.write(ours.exports.ours[index].1.0.cast_mut()) };
    }
}
