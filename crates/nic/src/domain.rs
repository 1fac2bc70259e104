//! Protection domains, and the adapter's port.

use std::{ffi::c_void, ptr::NonNull, sync::atomic::AtomicU32};

use outboard_net::Mapped;
use outboard_verbs::abi::{
    IBV_ALLOCATOR_USE_DEFAULT, MLX5DV_RES_TYPE_DBR, ibv_alloc, ibv_context, ibv_free, ibv_pd,
    ibv_td, ibv_td_init_attr,
};

use crate::refused::fail;

const PAGE_BYTES: usize = 4096;
const RECORD_BYTES: usize = 8;

/// The only port.
pub(crate) const PORT: u8 = 1;

/// A protection domain; programs have the address of its first field, whose handle is the domain's
/// number in the adapter.
#[repr(C)]
pub(crate) struct Domain {
    pub(crate) pd: ibv_pd,
    /// Registrations, addresses and queue pairs.
    pub(crate) uses: AtomicU32,
    /// The domain whose number it has, or null.
    pub(crate) parent: *mut Domain,
    /// Its queue pairs have a doorbell's page that a program may write itself.
    pub(crate) is_of_threads: bool,
    pub(crate) allocators: Option<Allocators>,
}

/// Functions of a program by which the memory of its queues is allocated.
#[derive(Clone, Copy)]
pub(crate) struct Allocators {
    pub(crate) alloc: ibv_alloc,
    pub(crate) free: ibv_free,
    /// Number of the program's.
    pub(crate) context: usize,
}

/// Memory that a program has allocated for a queue; none of ours. It is given back when dropped.
#[derive(Default)]
pub(crate) struct Given(Vec<Piece>);

struct Piece {
    domain: usize,
    at: usize,
    kind: u64,
    of: Allocators,
}

impl Given {
    /// Asks for memory for an object of a domain; `None` if there is none.
    pub(crate) fn take(&mut self, domain: &Domain, bytes: usize, kind: u64) -> Option<Mapped> {
        let Some(of) = domain.allocators else {
            return Mapped::allocate(bytes);
        };
        let pd = (&raw const domain.pd).cast_mut();
        let alignment = match kind {
            MLX5DV_RES_TYPE_DBR => RECORD_BYTES,
            _ => PAGE_BYTES,
        };
        // Adapters take whole pages.
        let bytes_asked = bytes.next_multiple_of(alignment);
        // SAFETY: the program's function, for its domain.
        let at = unsafe { (of.alloc)(pd, of.context as *mut c_void, bytes_asked, alignment, kind) };
        if at as usize == IBV_ALLOCATOR_USE_DEFAULT {
            return Mapped::allocate(bytes);
        }
        let at = NonNull::new(at.cast::<u8>())?;
        self.0.push(Piece {
            domain: pd as usize,
            at: at.as_ptr() as usize,
            kind,
            of,
        });
        // SAFETY: as many bytes, which the program keeps until they are given back.
        let memory = unsafe { Mapped::new(at, bytes, at.as_ptr() as u64) };
        memory.write(0, &vec![0; bytes]);
        Some(memory)
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        for piece in self.0.drain(..) {
            let (domain, at) = (piece.domain as *mut ibv_pd, piece.at as *mut c_void);
            let context = piece.of.context as *mut c_void;
            // SAFETY: the program's function, for what it gave; the domain outlives its objects.
            unsafe { (piece.of.free)(domain, context, at, piece.kind) };
        }
    }
}

/// # Safety
///
/// `context` is open.
pub(crate) unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    asked: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    // SAFETY: null, or the program's.
    match unsafe { asked.as_ref() } {
        Some(asked) if asked.comp_mask == 0 => Box::into_raw(Box::new(ibv_td { context })),
        _ => fail(libc::EINVAL),
    }
}

/// # Safety
///
/// `td` is null or from [`alloc_td`], and is not used again.
pub(crate) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> i32 {
    match td.is_null() {
        true => libc::EINVAL,
        false => {
            // SAFETY: made by `Box::into_raw`, and given back once.
            drop(unsafe { Box::from_raw(td) });
            0
        }
    }
}
