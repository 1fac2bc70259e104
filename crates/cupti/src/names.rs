//! Names that programs keep pointers to. Each is stored once and never freed.

use std::{
    collections::HashMap,
    ffi::{CStr, CString},
};

use parking_lot::Mutex;

/// Most names of kernels in a process, and most bytes of them; later kernels share one name that
/// says so.
const NAMES_MAX: usize = 1 << 18;
const NAMES_BYTES_MAX: usize = 256 << 20;

#[derive(Default)]
struct Names {
    kept: HashMap<String, &'static CStr>,
    bytes: usize,
}

static NAMES: Mutex<Option<Names>> = Mutex::new(None);

pub(crate) fn keep(name: &str) -> &'static CStr {
    let mut names = NAMES.lock();
    let Names { kept: names, bytes } = names.get_or_insert_default();
    if let Some(kept) = names.get(name) {
        return kept;
    }
    if names.len() >= NAMES_MAX || name.len() > NAMES_BYTES_MAX - *bytes {
        return c"a kernel (more names than are kept)";
    }
    *bytes += name.len();
    let text: Vec<u8> = name.bytes().filter(|byte| *byte != 0).collect();
    let kept: &'static CStr = CString::new(text).map_or(c"", |text| Box::leak(text.into()));
    names.insert(name.to_string(), kept);
    kept
}
