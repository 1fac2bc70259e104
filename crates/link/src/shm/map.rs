//! The memory that both processes map: its layout, its checks, and the only code that touches it.
//!
//! ```text
//!  file    0           HEAD_BYTES         + ring_bytes        + ring_bytes
//!          │ Header, 2 × Control │ ring 0, server→client │ ring 1, client→server │
//!  mapped  │ head │ ring 0 │ ring 0 again │ ring 1 │ ring 1 again │
//! ```
//!
//! Each ring is mapped twice in a row, so that a frame that wraps is contiguous. The file is sealed
//! against shrinking, so that no access can fault.

use std::{
    io,
    ops::Deref,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    ptr::{self, NonNull},
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

use outboard_wire::limits::{FRAME_BYTES_MAX, RING_BYTES, RING_BYTES_MAX};
use rustix::{
    fs::SealFlags,
    mm::{MapFlags, ProtFlags},
};

use super::{
    file::{SEALS, check_memory_file, memory_file},
    ring::Control,
};
use crate::{Error, copying};

/// "outboard" in ASCII, little-endian.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"outboard");
/// Changed with the layout of the file or the ring's protocol.
pub(super) const LAYOUT_VERSION: u32 = 1;
/// Room for the header and the control words: one page of the largest page size in use.
pub(super) const HEAD_BYTES: usize = 64 << 10;
pub(super) const CONTROLS_OFFSET: usize = 1024;
/// Smallest ring in which a sender of the longest frames need not wait for each to be read.
const RING_BYTES_MIN: usize = (2 * FRAME_BYTES_MAX).next_power_of_two();

/// The first bytes of the file.
#[repr(C)]
struct Header {
    magic: AtomicU64,
    version: AtomicU32,
    reserved: AtomicU32,
    ring_bytes: AtomicU64,
}

const _: () = {
    assert!(size_of::<Header>() == 24);
    assert!(size_of::<Header>() <= CONTROLS_OFFSET);
    assert!(CONTROLS_OFFSET.is_multiple_of(align_of::<Control>()));
    assert!(CONTROLS_OFFSET + 2 * size_of::<Control>() <= HEAD_BYTES);
    assert!(RING_BYTES.is_power_of_two());
    assert!(RING_BYTES_MIN <= RING_BYTES && RING_BYTES <= RING_BYTES_MAX);
};

/// Fails if this process gets no memory for the rings of a link.
pub fn check_available() -> io::Result<()> {
    check_memory_file(file_bytes(RING_BYTES) as u64)
}

/// Direction of frames, which selects one of the two rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    ToClient = 0,
    ToServer = 1,
}

/// The mapped file.
pub(super) struct Mapping {
    base: NonNull<u8>,
    /// A power of two.
    ring_bytes: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread. Its words are atomics; a ring's
// bytes are written by the only `Writer` of this process, and copied out through raw pointers.
unsafe impl Send for Mapping {}
// SAFETY: threads share only the words, which are atomics, and the addresses of the rings.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Creates a sealed file and maps it.
    pub(super) fn create(ring_bytes: usize) -> Result<(Self, OwnedFd), Error> {
        const DOING: &str = "making shared memory";
        let bytes = file_bytes(ring_bytes) as u64;
        let file = memory_file("outboard-link", bytes).map_err(Error::io(DOING))?;
        let mapping = Self::map(file.as_fd(), ring_bytes)?;
        let header = mapping.header();
        header
            .ring_bytes
            .store(ring_bytes as u64, Ordering::Relaxed);
        header.version.store(LAYOUT_VERSION, Ordering::Relaxed);
        header.magic.store(MAGIC, Ordering::Release);
        Ok((mapping, file))
    }

    /// Maps a file that the peer made, after checking it.
    pub(super) fn open(file: BorrowedFd<'_>, ring_bytes: u64) -> Result<Self, Error> {
        const DOING: &str = "looking at the server's shared memory";
        let ring_bytes_checked = usize::try_from(ring_bytes)
            .ok()
            .filter(|&bytes| {
                bytes.is_power_of_two() && (RING_BYTES_MIN..=RING_BYTES_MAX).contains(&bytes)
            })
            .ok_or_else(|| misbehaved("a ring of that size", ring_bytes, RING_BYTES_MAX as u64))?;
        let size = rustix::fs::fstat(file).map_err(Error::io(DOING))?.st_size as u64;
        let expected = file_bytes(ring_bytes_checked) as u64;
        if size != expected {
            return Err(misbehaved(
                "shared memory of the wrong size",
                size,
                expected,
            ));
        }
        // Fails for a file that is not a memfd, too.
        let seals = rustix::fs::fcntl_get_seals(file).unwrap_or(SealFlags::empty());
        if !seals.contains(SealFlags::SHRINK) {
            return Err(misbehaved(
                "shared memory that can shrink",
                seals.bits().into(),
                SEALS.bits().into(),
            ));
        }
        let mapping = Self::map(file, ring_bytes_checked)?;
        let header = mapping.header();
        let found = [
            header.magic.load(Ordering::Acquire),
            header.version.load(Ordering::Relaxed).into(),
            header.ring_bytes.load(Ordering::Relaxed),
        ];
        let wanted = [MAGIC, LAYOUT_VERSION.into(), ring_bytes];
        match found
            .iter()
            .zip(wanted)
            .find(|(found, wanted)| **found != *wanted)
        {
            None => Ok(mapping),
            Some((&found, wanted)) => {
                Err(misbehaved("shared memory of another layout", found, wanted))
            }
        }
    }

    /// Returns the part of `direction` that adds frames.
    ///
    /// # Safety
    ///
    /// Called at most once in this process for one mapping and direction.
    pub(super) unsafe fn writer(self: &Arc<Self>, direction: Direction) -> Writer {
        Writer(Ring::new(self, direction))
    }

    /// Returns the part of `direction` that takes frames.
    pub(super) fn reader(self: &Arc<Self>, direction: Direction) -> Reader {
        Reader(Ring::new(self, direction))
    }

    fn map(file: BorrowedFd<'_>, ring_bytes: usize) -> Result<Self, Error> {
        const DOING: &str = "mapping shared memory";
        // SAFETY: a fresh mapping at an address of the kernel's choice touches nothing that exists.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                ptr::null_mut(),
                mapped_bytes(ring_bytes),
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }
        .map_err(Error::io(DOING))?;
        let base = NonNull::new(base.cast::<u8>()).ok_or(Error::Misuse("mapped at address 0"))?;
        // From here on, dropping unmaps.
        let mapping = Self { base, ring_bytes };
        let ring = |index: usize| HEAD_BYTES + index * ring_bytes;
        for (at, len, from) in [
            (0, HEAD_BYTES, 0),
            (ring(0), ring_bytes, ring(0)),
            (ring(1), ring_bytes, ring(0)),
            (ring(2), ring_bytes, ring(1)),
            (ring(3), ring_bytes, ring(1)),
        ] {
            // SAFETY: `at + len` is within the reservation above, which is ours alone; FIXED
            // replaces its pages.
            unsafe {
                rustix::mm::mmap(
                    base.as_ptr().add(at).cast(),
                    len,
                    ProtFlags::READ | ProtFlags::WRITE,
                    MapFlags::SHARED | MapFlags::FIXED,
                    file,
                    from as u64,
                )
            }
            .map_err(Error::io(DOING))?;
        }
        Ok(mapping)
    }

    fn header(&self) -> &Header {
        // SAFETY: the mapping starts with HEAD_BYTES readable and writable bytes at page alignment,
        // which live as long as `self`; Header consists of atomics, for which any bytes are valid
        // and concurrent writes are fine.
        unsafe { self.base.cast::<Header>().as_ref() }
    }

    #[inline]
    fn control(&self, direction: Direction) -> &Control {
        let offset = CONTROLS_OFFSET + direction as usize * size_of::<Control>();
        // SAFETY: within the head and aligned, by the assertions above; Control consists of
        // atomics.
        unsafe { self.base.add(offset).cast::<Control>().as_ref() }
    }

    /// Start of a ring.
    fn bytes(&self, direction: Direction) -> NonNull<u8> {
        // SAFETY: within the mapping: both rings come after its head, each mapped twice in a row.
        unsafe {
            self.base
                .add(HEAD_BYTES + direction as usize * 2 * self.ring_bytes)
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `map` reserved all of it, and every reference into it borrows from `self`. An
        // error would mean that it is not mapped.
        let _ =
            unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), mapped_bytes(self.ring_bytes)) };
    }
}

/// One ring of a mapping; derefs to its control words. The addresses of these and of the bytes are
/// computed once, not for every frame.
#[derive(Clone)]
pub(super) struct Ring {
    control: NonNull<Control>,
    bytes: NonNull<u8>,
    /// The ring's size minus one.
    mask: usize,
    /// Keeps the ring mapped.
    _mapping: Arc<Mapping>,
}

// SAFETY: it points into the mapping, which it keeps alive, and which belongs to no thread.
unsafe impl Send for Ring {}
// SAFETY: threads share only the control words, which are atomics, and the address of the bytes.
unsafe impl Sync for Ring {}

impl Ring {
    fn new(mapping: &Arc<Mapping>, direction: Direction) -> Self {
        Self {
            control: NonNull::from(mapping.control(direction)),
            bytes: mapping.bytes(direction),
            mask: mapping.ring_bytes - 1,
            _mapping: Arc::clone(mapping),
        }
    }

    pub(super) fn capacity(&self) -> u64 {
        self.mask as u64 + 1
    }

    /// Address of `position`, modulo the ring's size. As many bytes as the ring has follow each
    /// address, since the ring is mapped twice in a row.
    #[inline(always)]
    fn start(&self, position: u64) -> NonNull<u8> {
        // SAFETY: the offset is below the ring's size.
        unsafe { self.bytes.add(position as usize & self.mask) }
    }

    /// The word at `position`, which is rounded down to a multiple of eight.
    #[inline(always)]
    fn word(&self, position: u64) -> &AtomicU64 {
        let start = self.start(position & !7);
        // SAFETY: eight bytes follow, since a ring has at least a page; they are aligned, since a
        // ring's start is, and stay mapped for as long as `self`. Concurrent writes are allowed.
        unsafe { start.cast().as_ref() }
    }
}

impl Deref for Ring {
    type Target = Control;

    #[inline]
    fn deref(&self) -> &Control {
        // SAFETY: in the mapping, which is kept alive; Control consists of atomics.
        unsafe { self.control.as_ref() }
    }
}

/// Access to the bytes of a ring for its only producer in this process.
pub(super) struct Writer(Ring);

impl Writer {
    pub(super) fn ring(&self) -> &Ring {
        &self.0
    }

    /// Returns the start of room for a frame, writable for as long as the ring is mapped. The
    /// peer's process can read and, if it is hostile, write it at any time: it must never become a
    /// reference.
    #[inline]
    pub(super) fn room(&mut self, position: u64) -> NonNull<u8> {
        self.0.start(position)
    }

    /// Writes eight bytes at a multiple of eight.
    #[inline]
    pub(super) fn put_u64(&mut self, position: u64, value: u64) {
        self.0
            .word(position)
            .store(value.to_le(), Ordering::Relaxed);
    }
}

/// Access to the bytes of a ring for its only consumer.
pub(super) struct Reader(Ring);

impl Reader {
    pub(super) fn ring(&self) -> &Ring {
        &self.0
    }

    /// Reads eight bytes at a multiple of eight.
    #[inline]
    pub(super) fn get_u64(&self, position: u64) -> u64 {
        u64::from_le(self.0.word(position).load(Ordering::Relaxed))
    }

    /// Copies the bytes of a frame out of the ring. A hostile peer can change them meanwhile, so
    /// that the copy is neither the old nor the new frame, but never afterwards.
    #[inline]
    pub(super) fn copy(&self, position: u64, len: usize, out: &mut Vec<u8>) {
        assert!(len <= self.0.mask, "longer than the ring");
        let bytes = self.0.start(position);
        out.clear();
        out.reserve(len);
        // SAFETY: at least `len` bytes are mapped there, and `out` has room for them. They are read
        // through a raw pointer, because the peer may write them at any time; the ring's positions
        // order this copy after the writes of a peer that keeps the rules.
        unsafe {
            ptr::copy_nonoverlapping(bytes.as_ptr(), out.as_mut_ptr(), len);
            out.set_len(len);
        }
    }

    /// Copies bytes of a frame out of the ring into memory of this process, as [`copy`](Self::copy)
    /// does.
    pub(super) fn copy_to(&self, position: u64, out: &mut [u8]) {
        assert!(out.len() <= self.0.mask, "longer than the ring");
        let bytes = self.0.start(position);
        // SAFETY: at least `out.len()` bytes are mapped there, and are read through a raw pointer,
        // as in `copy`. No slice of the ring exists, so that they cannot overlap `out`.
        unsafe { copying::copy(bytes.as_ptr(), out.as_mut_ptr(), out.len()) };
    }
}

fn file_bytes(ring_bytes: usize) -> usize {
    HEAD_BYTES + 2 * ring_bytes
}

fn mapped_bytes(ring_bytes: usize) -> usize {
    HEAD_BYTES + 4 * ring_bytes
}

fn misbehaved(what: &'static str, got: u64, allowed: u64) -> Error {
    Error::PeerMisbehaved { what, got, allowed }
}
