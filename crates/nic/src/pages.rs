//! Pages of doorbells. Where kernels of a GPU that is reached by Outboard's own driver ring, they
//! are that driver's pinned memory: the server has the same pages, and a kernel that runs is heard.

use outboard_net::Mapped;
use parking_lot::Mutex;

use crate::gpu;

const PAGE_BYTES: usize = 4096;

/// Pages that nobody uses. A driver's page is never freed: its context may be gone.
static SPARE: Mutex<Vec<Mapped>> = Mutex::new(Vec::new());

/// Returns a zeroed page; `None` if there is no memory.
pub(crate) fn take() -> Option<Mapped> {
    if let Some(page) = SPARE.lock().pop() {
        return Some(page);
    }
    match gpu::pinned(PAGE_BYTES) {
        // SAFETY: the driver's memory, which is never freed.
        Some(at) => Some(unsafe { Mapped::new(at, PAGE_BYTES, at.as_ptr() as u64) }),
        None => Mapped::allocate(PAGE_BYTES),
    }
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
