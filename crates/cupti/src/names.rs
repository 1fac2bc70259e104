//! Names that programs keep pointers to. Each is stored once and never freed.

use std::{
    collections::HashMap,
    ffi::{CStr, CString},
};

use parking_lot::Mutex;

/// Most names of kernels in a process; later kernels share one name that says so.
const NAMES_MAX: usize = 1 << 18;

static NAMES: Mutex<Option<HashMap<String, &'static CStr>>> = Mutex::new(None);

pub(crate) fn keep(name: &str) -> &'static CStr {
    let mut names = NAMES.lock();
    let names = names.get_or_insert_default();
    if let Some(kept) = names.get(name) {
        return kept;
    }
    if names.len() >= NAMES_MAX {
        return c"a kernel (more names than are kept)";
    }
    let text: Vec<u8> = name.bytes().filter(|byte| *byte != 0).collect();
    let kept: &'static CStr = CString::new(text).map_or(c"", |text| Box::leak(text.into()));
    names.insert(name.to_string(), kept);
    kept
}
