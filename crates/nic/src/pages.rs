//! Pages of doorbells. Where kernels of a GPU that is reached by Outboard's own driver ring, they
//! are that driver's pinned memory: the server has the same pages, and a kernel that runs is heard.

use std::{
    collections::BTreeSet,
    ffi::{c_int, c_void},
};

use outboard_net::Mapped;
use parking_lot::Mutex;

use crate::gpu;

const PAGE_BYTES: usize = 4096;

/// Pages that nobody uses. A driver's page is never freed: its context may be gone.
static SPARE: Mutex<Vec<Mapped>> = Mutex::new(Vec::new());

/// Addresses of pages that programs were given.
static SHOWN: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

/// Returns 1 if these bytes are of one page of the adapter's. The preloaded library asks, for a
/// driver that refuses to register it as I/O memory.
#[unsafe(no_mangle)]
pub extern "C" fn outboard_nic_has_page(at: *const c_void, bytes: usize) -> c_int {
    let (start, base) = (at as usize, at as usize & !(PAGE_BYTES - 1));
    let is_in_page = start
        .checked_add(bytes)
        .is_some_and(|end| end <= base + PAGE_BYTES);
    (is_in_page && SHOWN.lock().contains(&base)).into()
}

/// Returns a zeroed page; `None` if there is no memory.
pub(crate) fn take() -> Option<Mapped> {
    if let Some(page) = SPARE.lock().pop() {
        return Some(page);
    }
    let page = match gpu::pinned(PAGE_BYTES) {
        // SAFETY: the driver's memory, which is never freed.
        Some(at) => unsafe { Mapped::new(at, PAGE_BYTES, at.as_ptr() as u64) },
        None => Mapped::allocate(PAGE_BYTES)?,
    };
    SHOWN.lock().insert(page.address() as usize);
    Some(page)
}

/// Takes back a page that no queue pair has.
pub(crate) fn give_back(page: Mapped) {
    page.write(0, &[0; PAGE_BYTES]);
    SPARE.lock().push(page);
}

/// The page of a queue pair that verbs have made.
pub(crate) struct Page {
    memory: Mapped,
    /// A program may write its doorbell itself, by kernels, too.
    is_shown: bool,
}

impl Page {
    pub(crate) fn take(is_shown: bool) -> Option<Page> {
        let memory = match is_shown {
            true => take()?,
            false => Mapped::allocate(PAGE_BYTES)?,
        };
        Some(Page { memory, is_shown })
    }

    pub(crate) fn memory(&self) -> Mapped {
        self.memory.clone()
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        if self.is_shown {
            give_back(self.memory.clone());
        }
    }
}
