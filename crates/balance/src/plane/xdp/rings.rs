//! The memory that an AF_XDP socket and the kernel share: frames, and four rings of their numbers.

use crate::plane::mapping::Mapping;
use crate::plane::sys;
use rustix::net::SendFlags;
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

/// Length of a frame's place.
pub(super) const CHUNK_BYTES: usize = 4096;
/// Places of frames for each direction, and entries of each ring.
const CHUNKS: usize = 2048;
const FRAMES_BYTES: usize = 2 * CHUNKS * CHUNK_BYTES;
const XDP_MAX_TX_SKB_BUDGET: libc::c_int = 9;

/// One ring: `own` is the number of entries that this side has handled, `theirs` the kernel's.
struct Ring<T> {
    mapping: Mapping,
    own: usize,
    theirs: usize,
    entries: usize,
    next: u32,
    kind: std::marker::PhantomData<T>,
}

impl<T: Copy> Ring<T> {
    /// Maps a ring. `produces` says that this side fills it.
    fn map(
        socket: &OwnedFd,
        at: u64,
        offsets: &libc::xdp_ring_offset,
        produces: bool,
    ) -> io::Result<Ring<T>> {
        let entries = offsets.desc as usize;
        let bytes = entries + CHUNKS * size_of::<T>();
        let counters = [offsets.producer as usize, offsets.consumer as usize];
        let is_inside = counters.iter().all(|one| one % 4 == 0 && one + 4 <= bytes);
        if !is_inside || !entries.is_multiple_of(align_of::<T>()) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let [producer, consumer] = counters;
        let (own, theirs) = if produces {
            (producer, consumer)
        } else {
            (consumer, producer)
        };
        let mut ring = Ring {
            mapping: Mapping::of(socket, at, bytes)?,
            own,
            theirs,
            entries,
            next: 0,
            kind: std::marker::PhantomData,
        };
        // Another process may have used it before.
        ring.next = ring.counter(own).load(Ordering::Acquire);
        Ok(ring)
    }

    fn counter(&self, at: usize) -> &AtomicU32 {
        // SAFETY: `map` has checked that the place is aligned and inside of the mapping, which
        // lives as long as `self`; both sides use it by atomic operations alone.
        unsafe { &*self.mapping.begin.add(at).cast::<AtomicU32>() }
    }

    /// Number of entries that this side may write (of a ring that it fills) without overtaking.
    fn room(&self) -> usize {
        CHUNKS.saturating_sub(self.outstanding())
    }

    /// Number of entries (of a ring that this side fills) that the kernel has not taken.
    fn outstanding(&self) -> usize {
        let taken = self.counter(self.theirs).load(Ordering::Acquire);
        self.next.wrapping_sub(taken) as usize
    }

    /// Number of entries (of a ring that the kernel fills) that are there.
    fn filled(&self) -> usize {
        let written = self.counter(self.theirs).load(Ordering::Acquire);
        (written.wrapping_sub(self.next) as usize).min(CHUNKS)
    }

    fn entry(&self) -> *mut T {
        let index = self.next as usize & (CHUNKS - 1);
        // SAFETY: the index is below the number of entries that the mapping has after `entries`.
        unsafe { self.mapping.begin.add(self.entries).cast::<T>().add(index) }
    }

    /// Writes the next entry, for which there must be room. [`Ring::publish`] shows it.
    fn write(&mut self, value: T) {
        // SAFETY: the entry is inside of the mapping, and the kernel does not read it before the
        // counter says so.
        unsafe { self.entry().write(value) };
        self.next = self.next.wrapping_add(1);
    }

    /// Reads the next entry, which must be there. [`Ring::publish`] gives its place back.
    fn read(&mut self) -> T {
        // SAFETY: the entry is inside of the mapping, and `T` is a plain number or descriptor, of
        // which all bits are values.
        let value = unsafe { self.entry().read() };
        self.next = self.next.wrapping_add(1);
        value
    }

    /// Tells the kernel what was written or read.
    fn publish(&mut self) {
        self.counter(self.own).store(self.next, Ordering::Release);
    }
}

/// A socket of one queue of an interface.
pub(super) struct XdpSocket {
    pub(super) fd: OwnedFd,
    /// The file in memory that `frames` maps, so that another process can, too.
    pub(super) memory: OwnedFd,
    frames: Mapping,
    fill: Ring<u64>,
    completed: Ring<u64>,
    received: Ring<libc::xdp_desc>,
    sent: Ring<libc::xdp_desc>,
    /// Places that did not fit into the fill ring, because the kernel tells late what it took.
    stash: Vec<u64>,
    /// Places for frames to be sent.
    free: Vec<u64>,
}

fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

fn set_option<T>(fd: &OwnedFd, option: libc::c_int, value: &T) -> io::Result<()> {
    let (pointer, length) = (
        (&raw const *value).cast(),
        size_of::<T>() as libc::socklen_t,
    );
    // SAFETY: `pointer` is to `length` bytes of `value`, which is borrowed across the call.
    checked(unsafe { libc::setsockopt(fd.as_raw_fd(), libc::SOL_XDP, option, pointer, length) })?;
    Ok(())
}

fn offsets(fd: &OwnedFd) -> io::Result<libc::xdp_mmap_offsets> {
    // SAFETY: offsets are numbers, for which zero is a value.
    let mut offsets: libc::xdp_mmap_offsets = unsafe { zeroed() };
    let mut length = size_of::<libc::xdp_mmap_offsets>() as libc::socklen_t;
    let pointer = (&raw mut offsets).cast();
    let (level, option) = (libc::SOL_XDP, libc::XDP_MMAP_OFFSETS);
    // SAFETY: `pointer` has room for `length` bytes, and both outlive the call.
    checked(unsafe { libc::getsockopt(fd.as_raw_fd(), level, option, pointer, &raw mut length) })?;
    Ok(offsets)
}

impl XdpSocket {
    /// Opens a socket for a queue; InvalidInput if the interface has no such queue.
    pub(super) fn open(interface: u32, queue: u32) -> io::Result<XdpSocket> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        // SAFETY: the call takes numbers only.
        let fd = checked(unsafe { libc::socket(libc::AF_XDP, kind, 0) })?;
        // SAFETY: the call has returned this descriptor, and nothing else has it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let file = rustix::fs::memfd_create("frames", rustix::fs::MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&file, FRAMES_BYTES as u64)?;
        let frames = Mapping::of(&file, 0, FRAMES_BYTES)?;
        let memory = libc::xdp_umem_reg {
            addr: frames.begin as u64,
            len: frames.bytes as u64,
            chunk_size: CHUNK_BYTES as u32,
            headroom: 0,
            flags: 0,
            tx_metadata_len: 0,
        };
        set_option(&fd, libc::XDP_UMEM_REG, &memory)?;
        for ring in [
            libc::XDP_UMEM_FILL_RING,
            libc::XDP_UMEM_COMPLETION_RING,
            libc::XDP_RX_RING,
            libc::XDP_TX_RING,
        ] {
            set_option(&fd, ring, &(CHUNKS as u32))?;
        }
        sys::widen(&fd)?;
        // The kernel sends no more than 32 frames at a call otherwise.
        let _ = set_option(&fd, XDP_MAX_TX_SKB_BUDGET, &(CHUNKS as u32));
        let stash = (0..CHUNKS).map(|one| (one * CHUNK_BYTES) as u64);
        let free = (CHUNKS..2 * CHUNKS).map(|one| (one * CHUNK_BYTES) as u64);
        let mut socket = XdpSocket::map(fd, file, frames, stash.collect(), free.collect())?;
        socket.refill();
        // SAFETY: an address is numbers, for which zero is a value.
        let mut address: libc::sockaddr_xdp = unsafe { zeroed() };
        address.sxdp_family = libc::AF_XDP as u16;
        address.sxdp_ifindex = interface;
        address.sxdp_queue_id = queue;
        let length = size_of::<libc::sockaddr_xdp>() as libc::socklen_t;
        let pointer = (&raw const address).cast();
        // SAFETY: `pointer` is to a whole address of `length` bytes.
        checked(unsafe { libc::bind(socket.fd.as_raw_fd(), pointer, length) })?;
        Ok(socket)
    }

    fn map(
        fd: OwnedFd,
        memory: OwnedFd,
        frames: Mapping,
        stash: Vec<u64>,
        free: Vec<u64>,
    ) -> io::Result<XdpSocket> {
        let at = offsets(&fd)?;
        let (rx, tx) = (
            libc::XDP_PGOFF_RX_RING as u64,
            libc::XDP_PGOFF_TX_RING as u64,
        );
        let completion = libc::XDP_UMEM_PGOFF_COMPLETION_RING;
        Ok(XdpSocket {
            fill: Ring::map(&fd, libc::XDP_UMEM_PGOFF_FILL_RING, &at.fr, true)?,
            completed: Ring::map(&fd, completion, &at.cr, false)?,
            received: Ring::map(&fd, rx, &at.rx, false)?,
            sent: Ring::map(&fd, tx, &at.tx, true)?,
            stash,
            free,
            frames,
            memory,
            fd,
        })
    }

    /// Takes over a socket that another process has opened, with the memory of its frames and the
    /// places that were that process's.
    pub(super) fn adopt(
        fd: OwnedFd,
        memory: OwnedFd,
        stash: Vec<u64>,
        free: Vec<u64>,
    ) -> io::Result<XdpSocket> {
        // A shorter file would end the process where its end is passed.
        if rustix::fs::fstat(&memory)?.st_size as u64 != FRAMES_BYTES as u64 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let frames = Mapping::of(&memory, 0, FRAMES_BYTES)?;
        XdpSocket::map(fd, memory, frames, stash, free)
    }

    /// Places of frames that neither the kernel nor a ring has: of those that come, and of those to
    /// be sent.
    pub(super) fn places(&self) -> (Vec<u64>, Vec<u64>) {
        (self.stash.clone(), self.free.clone())
    }

    /// Gives places back to the kernel, for frames that come.
    fn refill(&mut self) {
        let count = self.stash.len().min(self.fill.room());
        if count > 0 {
            for place in self.stash.drain(self.stash.len() - count..) {
                self.fill.write(place);
            }
            self.fill.publish();
        }
    }

    /// Returns a place's bytes if all of them are inside of the memory.
    fn bytes(&self, at: u64, length: usize) -> Option<*mut u8> {
        let at = usize::try_from(at).ok()?;
        let end = at.checked_add(length)?;
        // SAFETY: the place and its end are inside of the mapping.
        (end <= self.frames.bytes).then(|| unsafe { self.frames.begin.add(at) })
    }

    /// Takes up to `max` frames that have come: `take` is given the bytes of each.
    pub(super) fn receive(&mut self, max: usize, mut take: impl FnMut(&[u8])) {
        let count = self.received.filled().min(max);
        if count == 0 {
            return;
        }
        for _ in 0..count {
            let descriptor = self.received.read();
            let length = (descriptor.len as usize).min(CHUNK_BYTES);
            if let Some(begin) = self.bytes(descriptor.addr, length) {
                // SAFETY: `begin` has `length` bytes; the kernel has handed the place over and
                // writes there only once it is in the fill ring again.
                take(unsafe { std::slice::from_raw_parts(begin, length) });
            }
            self.stash
                .push(descriptor.addr / CHUNK_BYTES as u64 * CHUNK_BYTES as u64);
        }
        self.received.publish();
        self.refill();
    }

    /// Queues a frame to be sent; [`XdpSocket::flush`] has it sent.
    pub(super) fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        let full = || io::Error::from(io::ErrorKind::WouldBlock);
        if frame.len() > CHUNK_BYTES {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if self.free.is_empty() {
            self.flush();
        }
        if self.sent.room() == 0 {
            return Err(full());
        }
        let place = self.free.pop().ok_or_else(full)?;
        let begin = self.bytes(place, frame.len()).ok_or_else(full)?;
        // SAFETY: `begin` has as many bytes, `frame` is apart from it, and the kernel reads the
        // place only once its descriptor is in the ring.
        unsafe { std::ptr::copy_nonoverlapping(frame.as_ptr(), begin, frame.len()) };
        self.sent.write(libc::xdp_desc {
            addr: place,
            len: frame.len() as u32,
            options: 0,
        });
        Ok(())
    }

    fn reclaim(&mut self) {
        let count = self.completed.filled();
        if count > 0 {
            for _ in 0..count {
                let place = self.completed.read();
                self.free.push(place);
            }
            self.completed.publish();
        }
    }

    /// Has the kernel send what is queued. Returns whether it has taken all of it.
    pub(super) fn flush(&mut self) -> bool {
        self.sent.publish();
        if self.sent.outstanding() > 0 {
            // A busy device is asked again at the next turn.
            let _ = rustix::net::send(&self.fd, &[], SendFlags::DONTWAIT);
        }
        self.reclaim();
        self.sent.outstanding() == 0
    }
}
