//! Handles: numbers that the client chooses for objects, never addresses.
//!
//! The top byte is the kind of object, so that one kind is never taken for another. The next byte
//! is the number of the server whose object it is; contexts have it further below. The rest counts
//! up and is never reused, so that a destroyed object's handle stays invalid.

use std::sync::atomic::{AtomicU64, Ordering};

use outboard_api::{
    CUresult,
    cuda::{CUarray, CUcontext, CUfunction, CUlinkState, CUmipmappedArray, CUstream},
};
use parking_lot::RwLock;
use rustc_hash::FxHashSet;

use super::Driver;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum HandleKind {
    Context = b'C',
    Stream = b'S',
    Event = b'E',
    Library = b'L',
    Module = b'M',
    Kernel = b'K',
    Graph = b'G',
    GraphExec = b'X',
    Node = b'N',
    Pool = b'P',
    Array = b'A',
    Mipmap = b'I',
    Texture = b'T',
    Surface = b'F',
    Link = b'J',
    Allocation = b'V',
    UserObject = b'U',
}

const KIND_SHIFT: u32 = 56;
const SERVER_SHIFT: u32 = 48;
const CONTEXT_SERVER_SHIFT: u32 = 20;
/// Contexts of one server if there are several, at most.
pub(crate) const CONTEXTS_MAX: u64 = 1 << CONTEXT_SERVER_SHIFT;

/// Returns the number below which no object of a server has its number.
pub(crate) fn first_number(server: u8) -> u64 {
    u64::from(server) << SERVER_SHIFT
}

/// Returns the number below which no context of a server has its number. Messages leave a context
/// 24 bits for its number (`outboard_wire::frame::of_call`).
pub(crate) fn first_context(server: u8) -> u64 {
    u64::from(server) << CONTEXT_SERVER_SHIFT
}

/// Returns the number of the server whose object a handle names.
pub(crate) fn server_of(handle: u64) -> u8 {
    match kind_of(handle) == HandleKind::Context as u8 {
        true => (handle >> CONTEXT_SERVER_SHIFT) as u8 & 0xf,
        false => (handle >> SERVER_SHIFT) as u8,
    }
}

/// Returns the top byte of a handle.
pub(crate) fn kind_of(handle: u64) -> u8 {
    (handle >> KIND_SHIFT) as u8
}

impl HandleKind {
    const ALL: [HandleKind; 17] = [
        HandleKind::Context,
        HandleKind::Stream,
        HandleKind::Event,
        HandleKind::Library,
        HandleKind::Module,
        HandleKind::Kernel,
        HandleKind::Graph,
        HandleKind::GraphExec,
        HandleKind::Node,
        HandleKind::Pool,
        HandleKind::Array,
        HandleKind::Mipmap,
        HandleKind::Texture,
        HandleKind::Surface,
        HandleKind::Link,
        HandleKind::Allocation,
        HandleKind::UserObject,
    ];

    /// Returns whether a handle is of a kind that there is.
    pub(crate) fn is_known(handle: u64) -> bool {
        HandleKind::ALL
            .iter()
            .any(|kind| *kind as u8 == kind_of(handle))
    }

    /// Returns whether a handle is a library's, a module's or a kernel's. Their numbers are unique
    /// among all servers, and tell nothing of one.
    pub(crate) fn is_of_library(handle: u64) -> bool {
        [HandleKind::Library, HandleKind::Module, HandleKind::Kernel]
            .iter()
            .any(|kind| *kind as u8 == kind_of(handle))
    }

    pub(crate) fn tag(self, number: u64) -> u64 {
        u64::from(self as u8) << KIND_SHIFT | number
    }

    /// Returns the driver's error for an unknown handle of this kind.
    fn unknown(self) -> CUresult {
        match self {
            HandleKind::Graph | HandleKind::GraphExec | HandleKind::Node => {
                CUresult::CUDA_ERROR_INVALID_VALUE
            }
            _ => CUresult::CUDA_ERROR_INVALID_HANDLE,
        }
    }

    /// Returns the number inside a handle of this kind.
    pub(crate) fn number(self, handle: u64) -> Option<u64> {
        (kind_of(handle) == self as u8).then_some(handle & ((1 << KIND_SHIFT) - 1))
    }
}

/// Handles of objects that have no state of their own in the client.
pub(crate) struct Handles {
    next: AtomicU64,
    known: RwLock<FxHashSet<u64>>,
}

impl Handles {
    pub(crate) fn of(server: u8) -> Handles {
        Handles {
            next: AtomicU64::new(first_number(server) + 1),
            known: RwLock::default(),
        }
    }

    /// Returns a new handle of this kind.
    pub(crate) fn mint(&self, kind: HandleKind) -> u64 {
        self.mint_range(kind, 1)
    }

    /// Returns the first of `count` consecutive handles.
    pub(crate) fn mint_range(&self, kind: HandleKind, count: u64) -> u64 {
        kind.tag(self.next.fetch_add(count, Ordering::Relaxed))
    }

    /// Records that the object exists.
    pub(crate) fn learn(&self, handle: u64) {
        self.known.write().insert(handle);
    }

    pub(crate) fn check(&self, kind: HandleKind, handle: u64) -> Result<u64, CUresult> {
        let known = kind_of(handle) == kind as u8 && self.known.read().contains(&handle);
        known.then_some(handle).ok_or(kind.unknown())
    }

    /// Removes a destroyed object.
    pub(crate) fn retire(&self, kind: HandleKind, handle: u64) -> Result<u64, CUresult> {
        let known = kind_of(handle) == kind as u8 && self.known.write().remove(&handle);
        known.then_some(handle).ok_or(kind.unknown())
    }
}

/// Functions that generated stubs use to convert a CUDA handle to its number in messages, and back.
macro_rules! stateless {
    ($($kind:ident $ctype:ident: $wire:ident $retire:ident $mint:ident $handle:ident;)*) => {
        #[allow(dead_code)]
        impl Driver {$(
            pub(crate) fn $wire(&self, handle: $ctype) -> Result<u64, CUresult> {
                self.handles.check(HandleKind::$kind, handle.0 as u64)
            }

            pub(crate) fn $retire(&self, handle: $ctype) -> Result<u64, CUresult> {
                self.handles.retire(HandleKind::$kind, handle.0 as u64)
            }

            pub(crate) fn $mint(&self) -> u64 {
                self.handles.mint(HandleKind::$kind)
            }

            /// Returns the CUDA handle of a new object.
            pub(crate) fn $handle(&self, number: u64) -> $ctype {
                self.handles.learn(number);
                $ctype(number as usize)
            }
        )*}
    };
}

stateless! {
    Array CUarray: wire_array retire_array mint_array handle_array;
    Mipmap CUmipmappedArray: wire_mipmap retire_mipmap mint_mipmap handle_mipmap;
    Link CUlinkState: wire_link retire_link mint_link handle_link;
}

impl Driver {
    /// Returns the number of a stream for work.
    pub(crate) fn wire_stream(&self, stream: CUstream) -> Result<u64, CUresult> {
        let stream = self.work_stream(stream)?;
        Ok(stream.wire())
    }

    pub(crate) fn wire_context(&self, context: CUcontext) -> Result<u64, CUresult> {
        self.contexts.get(context).map(|c| c.handle.0 as u64)
    }

    pub(crate) fn wire_kernel(&self, function: CUfunction) -> Result<u64, CUresult> {
        self.libraries.kernel(function).map(|k| k.wire)
    }
}
