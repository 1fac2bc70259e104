//! Data that CUDA runtimes keep with a context, by keys of their own.

use std::{ffi::c_void, sync::OnceLock};

use outboard_api::cuda::CUcontext;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

/// Destroys a value when its context is gone.
pub(crate) type Destroy =
    Option<unsafe extern "C" fn(context: CUcontext, key: *mut c_void, value: *mut c_void)>;

/// A value, and the function for its end.
pub(crate) struct Stored {
    pub(crate) value: *mut c_void,
    pub(crate) destroy: Destroy,
}

// SAFETY: the runtime's own pointers, only returned to it.
unsafe impl Send for Stored {}

/// Returns the values by context and key.
pub(crate) fn storage() -> &'static Mutex<FxHashMap<(usize, usize), Stored>> {
    static STORAGE: OnceLock<Mutex<FxHashMap<(usize, usize), Stored>>> = OnceLock::new();
    STORAGE.get_or_init(Mutex::default)
}

/// Destroys the data that runtimes keep with a context that is gone.
pub(crate) fn destroy_storage(context: CUcontext) {
    let gone: Vec<(usize, Stored)> = {
        let mut storage = storage().lock();
        let keys: Vec<_> = storage
            .keys()
            .filter(|(c, _)| *c == context.0)
            .copied()
            .collect();
        keys.into_iter()
            .filter_map(|key| storage.remove(&key).map(|s| (key.1, s)))
            .collect()
    };
    for (key, stored) in gone {
        if let Some(destroy) = stored.destroy {
            // SAFETY: the runtime registered this function for this purpose, with these arguments.
            unsafe { destroy(context, key as *mut c_void, stored.value) };
        }
    }
}
