//! Addresses of the library's exported functions, for calls that find a function by its name.
//!
//! `entry` defines the functions and stands above the calls, so it hands the table down when the
//! library is loaded.

use std::{ffi::c_void, sync::OnceLock};

/// The address of an exported function.
#[derive(Clone, Copy)]
pub(crate) struct Export(pub(crate) *const c_void);

// SAFETY: the address of a function, never written through.
unsafe impl Sync for Export {}

/// Every exported symbol and its address, by name.
type Exports = &'static [(&'static str, Export)];

static EXPORTS: OnceLock<Exports> = OnceLock::new();

/// Sets the table, once, before the first call.
pub(crate) fn set(exports: Exports) {
    let _ = EXPORTS.set(exports);
}

/// Returns the address of an exported function.
pub(crate) fn find(symbol: &str) -> Option<*const c_void> {
    let exports = EXPORTS.get()?;
    let at = exports.binary_search_by_key(&symbol, |(name, _)| name);
    Some(exports[at.ok()?].1.0)
}
