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
    take_storage(context).destroy();
}

/// Data of a context that is gone, with the functions that end it.
#[must_use]
pub(crate) struct Gone(Vec<(CUcontext, usize, Stored)>);

/// Takes the data that runtimes keep with a context out of the table.
pub(crate) fn take_storage(context: CUcontext) -> Gone {
    let of_context = |(of, _): &(usize, usize), _: &mut Stored| *of == context.0;
    let mut storage = storage().lock();
    let gone = storage.extract_if(of_context);
    Gone(gone.map(|((_, key), kept)| (context, key, kept)).collect())
}

impl Gone {
    /// Returns whether no function has to be called.
    pub(crate) fn is_silent(&self) -> bool {
        self.0.iter().all(|(_, _, kept)| kept.destroy.is_none())
    }

    /// Calls the functions: no lock may be held.
    pub(crate) fn destroy(self) {
        for (context, key, kept) in self.0 {
            if let Some(destroy) = kept.destroy {
                // SAFETY: the runtime registered this function for this purpose, with these
                // arguments.
                unsafe { destroy(context, key as *mut c_void, kept.value) };
            }
        }
    }
}
