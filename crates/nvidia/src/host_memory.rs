//! Host memory that the GPU uses at the same address as the client's program.
//!
//! If client and server share a machine, both map the same memory through a file descriptor.
//! Otherwise this process has a mirror: the client sends what the program wrote, and receives what
//! kernels wrote to the parts that it watches.

use std::{
    collections::BTreeMap,
    ffi::c_void,
    fmt,
    fs::File,
    os::fd::{AsRawFd, OwnedFd},
    ptr::{self, NonNull},
    sync::Arc,
};

use outboard_api::CUresult;
use outboard_budget::Charge;
use outboard_device::{Cx, Failure, changed_words};
use outboard_link::Lasting;
use outboard_net::Mapped;
use outboard_wire::messages;

use super::{
    Nvidia,
    addresses::Span,
    compare,
    deferred_free::Retired,
    owned::{ContextHold, given_back},
};

/// `CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP`; the bits of `cuMemHostAlloc` are
/// equal.
const PORTABLE_DEVICEMAP: u32 = 3;
/// Bytes that are compared before single words are.
const PAGE_BYTES: u64 = 4096;
/// Bytes that one thread compares at once.
const PART_BYTES: usize = 16 * PAGE_BYTES as usize;
/// User addresses on x86-64 with four levels of page tables.
const USER_ADDRESS_MIN: u64 = 1 << 16;
const USER_ADDRESS_MAX: u64 = 1 << 47;
/// Length of a huge page on x86-64. The driver registers 64 MiB in 2.1 ms if it consists of those,
/// and in 8.5 ms if not (H200, 580.159).
const HUGE_PAGE_BYTES: u64 = 2 << 20;
/// Host memory of one session, shared and mirrored together, in bytes.
const HOST_MAPPED_BYTES_MAX: u64 = 1 << 40;

/// Memory mapped at an address that the client chose and registered with the GPU. Dropping it
/// undoes both.
pub(super) struct HostRange {
    hold: Arc<ContextHold>,
    va: u64,
    len: u64,
    registered: bool,
    mirror: bool,
    /// A mirror's part of this process's memory.
    _charge: Option<Charge>,
    /// Whether it is a managed variable: memory of the driver that lasts as long as its library is
    /// loaded.
    variable: bool,
}

impl fmt::Debug for HostRange {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("HostRange")
            .field("va", &self.va)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

impl HostRange {
    /// Maps the file, or zeroed memory, at exactly `va`.
    pub(super) fn map(
        hold: &Arc<ContextHold>,
        va: u64,
        len: u64,
        file: Option<OwnedFd>,
    ) -> Result<HostRange, Failure> {
        check_place(va, len)?;
        let file = file.map(File::from);
        let charge = file.is_none().then(|| Charge::take(len)).transpose()?;
        if let Some(file) = &file {
            check_covered(file, len)?;
        }
        map_pages(va, len, file.as_ref())?;
        if file.is_none() && len >= HUGE_PAGE_BYTES {
            ask_huge_pages(va, len);
        }
        Ok(HostRange {
            hold: hold.clone(),
            va,
            len,
            registered: false,
            mirror: file.is_none(),
            _charge: charge,
            variable: false,
        })
    }

    /// Registers the range with the GPU, which must use it at the same address.
    pub(super) fn register(&mut self) -> Result<(), Failure> {
        let driver = &self.hold.driver;
        let base = ptr::with_exposed_provenance_mut::<c_void>(self.va as usize);
        // SAFETY: this object maps the range for as long as it is registered.
        unsafe { driver.cuMemHostRegister_v2(base, self.len, PORTABLE_DEVICEMAP) }?;
        self.registered = true;
        // SAFETY: the range was registered above.
        let address = unsafe { driver.cuMemHostGetDevicePointer_v2(base, 0) }?;
        if address != self.va {
            return Err(Failure::new(
                CUresult::CUDA_ERROR_NOT_SUPPORTED,
                format!(
                    "the GPU reaches host memory at {:#x} at {address:#x}",
                    self.va
                ),
            ));
        }
        Ok(())
    }

    fn pointer(&self, va: u64) -> *mut u8 {
        ptr::with_exposed_provenance_mut(va as usize)
    }

    fn holds(&self, va: u64, len: u64) -> bool {
        va >= self.va
            && va
                .checked_add(len)
                .is_some_and(|end| end <= self.va + self.len)
    }

    /// Copies from the range. If the GPU writes at the same time some bytes are old and some new,
    /// as on a local GPU.
    fn read(&self, va: u64, out: &mut [u8]) {
        if self.holds(va, out.len() as u64) {
            // SAFETY: `holds` has checked that the bytes are inside this mapping; `out` is other
            // memory.
            unsafe { ptr::copy_nonoverlapping(self.pointer(va), out.as_mut_ptr(), out.len()) };
        }
    }

    fn write(&self, va: u64, data: &[u8]) {
        if self.holds(va, data.len() as u64) {
            // SAFETY: `holds` has checked that the bytes are inside this mapping; `data` is a
            // message's memory.
            unsafe { ptr::copy_nonoverlapping(data.as_ptr(), self.pointer(va), data.len()) };
        }
    }
}

/// Refuses an address and a length that cannot be pages of a program.
fn check_place(va: u64, len: u64) -> Result<(), Failure> {
    let placed = va.is_multiple_of(PAGE_BYTES)
        && len > 0
        && len.is_multiple_of(PAGE_BYTES)
        && va >= USER_ADDRESS_MIN
        && va
            .checked_add(len)
            .is_some_and(|end| end <= USER_ADDRESS_MAX);
    if placed {
        return Ok(());
    }
    Err(Failure::new(
        CUresult::CUDA_ERROR_INVALID_VALUE,
        format!("{va:#x} and {len:#x} bytes are no pages of a program"),
    ))
}

/// Refuses a file shorter than `len`: touching pages beyond its end would kill this process
/// (SIGBUS).
fn check_covered(file: &File, len: u64) -> Result<(), Failure> {
    let size = file.metadata().map_or(0, |metadata| metadata.len());
    if size >= len {
        return Ok(());
    }
    Err(Failure::new(
        CUresult::CUDA_ERROR_INVALID_VALUE,
        format!("{len} bytes of a file of {size} were to be mapped"),
    ))
}

/// Maps the file, or zeroed memory, at exactly `va`, and replaces no mapping there.
fn map_pages(va: u64, len: u64, file: Option<&File>) -> Result<(), Failure> {
    let (flags, fd) = match file {
        Some(file) => (libc::MAP_SHARED, file.as_raw_fd()),
        None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
    };
    let wanted = ptr::with_exposed_provenance_mut::<c_void>(va as usize);
    // SAFETY: with MAP_FIXED_NOREPLACE the kernel replaces no existing mapping.
    let mapped = unsafe {
        libc::mmap(
            wanted,
            len as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            flags | libc::MAP_FIXED_NOREPLACE,
            fd,
            0,
        )
    };
    let refused = |why: String| Failure::new(CUresult::CUDA_ERROR_NOT_SUPPORTED, why);
    if mapped == libc::MAP_FAILED {
        let error = std::io::Error::last_os_error();
        return Err(refused(format!(
            "host memory at {va:#x} cannot be mapped in the server: {error}"
        )));
    }
    if mapped != wanted {
        // A kernel before 4.17 takes the address as a hint.
        // SAFETY: mapped just now with this length, and not used yet.
        unsafe { libc::munmap(mapped, len as usize) };
        return Err(refused(format!(
            "host memory at {va:#x} is taken in the server"
        )));
    }
    Ok(())
}

/// Asks the kernel for huge pages where memory was mapped and not used yet. All of it will be
/// pinned when it is registered, so that no more memory is used.
fn ask_huge_pages(va: u64, len: u64) {
    let base = ptr::with_exposed_provenance_mut::<c_void>(va as usize);
    // A kernel without huge pages refuses it.
    // SAFETY: the range was mapped by the caller, and the advice changes no contents.
    let _ = unsafe { libc::madvise(base, len as usize, libc::MADV_HUGEPAGE) };
}

impl Drop for HostRange {
    fn drop(&mut self) {
        let base = ptr::with_exposed_provenance_mut::<c_void>(self.va as usize);
        if self.registered {
            // A thread of an endpoint may be the last to use the range, and has no context.
            given_back(self.hold.within(|driver| {
                // SAFETY: this object registered the range, and was dropped only after the GPU's
                // last use.
                unsafe { driver.cuMemHostUnregister(base) }
            }));
        }
        if self.variable {
            return;
        }
        // SAFETY: this object mapped the range, and nothing refers to it any more.
        unsafe { libc::munmap(base, self.len as usize) };
    }
}

/// A part of a mirror that kernels write, and its bytes as the client knows them.
struct Watch {
    va: u64,
    known: Vec<u8>,
}

#[derive(Default)]
pub(super) struct HostRanges {
    ranges: BTreeMap<u64, Arc<HostRange>>,
    watches: Vec<Watch>,
    bytes: u64,
}

impl HostRanges {
    /// Whether any page that kernels write must be sent to the client before a reply.
    pub(super) fn is_watched(&self) -> bool {
        !self.watches.is_empty()
    }

    /// Whether kernels may wait for a word that comes with a message: one of a mirror.
    pub(super) fn is_any_mirrored(&self) -> bool {
        self.ranges.values().any(|range| range.mirror)
    }

    /// Whether an address is in pinned memory, as the driver sees it.
    pub(super) fn is_host(&self, va: u64) -> bool {
        let before = self.ranges.range(..=va).next_back();
        before.is_some_and(|(_, range)| !range.variable && range.holds(va, 1))
    }

    fn mirror(&self, va: u64, len: u64) -> Result<&HostRange, Failure> {
        self.ranges
            .range(..=va)
            .next_back()
            .map(|(_, range)| &**range)
            .filter(|range| range.mirror && range.holds(va, len))
            .ok_or_else(|| {
                Failure::new(
                    CUresult::CUDA_ERROR_INVALID_VALUE,
                    format!("{va:#x} and {len:#x} bytes are in no mirror of this session"),
                )
            })
    }

    /// Writes what the program has changed to a mirror.
    pub(super) fn write(&mut self, va: u64, data: &[u8]) -> Result<(), Failure> {
        self.mirror(va, data.len() as u64)?.write(va, data);
        // The client already knows the bytes that it wrote.
        for watch in &mut self.watches {
            overwrite(&mut watch.known, watch.va, va, data);
        }
        Ok(())
    }

    /// Lends memory to an adapter. It stays mapped and registered until that is done.
    pub(super) fn lend(&self, va: u64, len: u64) -> Result<Mapped, Failure> {
        let before = self.ranges.range(..=va).next_back();
        let range = before.map(|(_, range)| range);
        // A variable's memory ends with its library, and the client may truncate a file of its own
        // (SIGBUS for an adapter).
        let range = range.filter(|range| range.mirror && !range.variable && range.holds(va, len));
        let at = NonNull::new(ptr::with_exposed_provenance_mut::<u8>(va as usize));
        let (Some(range), Some(at)) = (range, at) else {
            return Err(Failure::new(
                CUresult::CUDA_ERROR_INVALID_VALUE,
                format!(
                    "{len} bytes at {va:#x} are not pinned memory of this session; its endpoint does not reach a GPU's here"
                ),
            ));
        };
        let keeper = Arc::clone(range);
        // SAFETY: readable and writable pages of a range, which stay mapped while it is kept. All
        // else that uses them makes the same accesses, or is the GPU.
        Ok(unsafe { Mapped::lent(at, len as usize, va, keeper) })
    }

    /// Adds a managed variable as a watched mirror, of which the client holds zeros. Returns false
    /// if it was added before.
    pub(super) fn keep_managed(
        &mut self,
        hold: &Arc<ContextHold>,
        va: u64,
        len: u64,
    ) -> Result<bool, Failure> {
        if self.ranges.contains_key(&va) {
            return Ok(false);
        }
        if self.bytes.saturating_add(len) > HOST_MAPPED_BYTES_MAX {
            return Err(Failure::new(
                CUresult::CUDA_ERROR_OUT_OF_MEMORY,
                format!("more than {HOST_MAPPED_BYTES_MAX} bytes of host memory"),
            ));
        }
        outboard_budget::reserve(len)?;
        self.bytes += len;
        let range = HostRange {
            hold: hold.clone(),
            va,
            len,
            registered: false,
            mirror: true,
            _charge: None,
            variable: true,
        };
        self.ranges.insert(va, Arc::new(range));
        let known = vec![0; len as usize];
        self.watches.push(Watch { va, known });
        Ok(true)
    }

    /// Stops watching a managed variable, whose memory ends with its library.
    pub(super) fn forget_managed(&mut self, va: u64) {
        if let Some(range) = self.ranges.remove(&va) {
            self.bytes -= range.len;
            self.watches.retain(|watch| watch.va != va);
        }
    }

    /// Reports the words of watched memory that changed since they were last reported or written by
    /// the client.
    pub(super) fn take_changed(&mut self, changed: &mut dyn FnMut(u64, &[u8])) {
        let mut now = Vec::new();
        for (watch, at) in self.differing_parts() {
            let Some(watch) = self.watches.get_mut(watch) else {
                continue;
            };
            let Some((_, range)) = self.ranges.range(..=watch.va).next_back() else {
                continue;
            };
            let end = watch.known.len().min(at + PART_BYTES);
            let (va, known) = (watch.va + at as u64, &mut watch.known[at..end]);
            now.resize(known.len(), 0);
            range.read(va, &mut now);
            take_pages(va, known, &now, changed);
        }
    }

    /// Returns the parts of watched memory that differ from what the client knows: a watch's index,
    /// and the part's offset in it.
    fn differing_parts(&self) -> Vec<(usize, usize)> {
        let mut parts = Vec::new();
        for (index, watch) in self.watches.iter().enumerate() {
            let Some((_, range)) = self.ranges.range(..=watch.va).next_back() else {
                continue;
            };
            if range.holds(watch.va, watch.known.len() as u64) {
                let known = watch.known.chunks(PART_BYTES).enumerate();
                parts.extend(known.map(|(i, known)| compare::MirrorPart {
                    watch: index,
                    at: i * PART_BYTES,
                    address: watch.va + (i * PART_BYTES) as u64,
                    known,
                }));
            }
        }
        // SAFETY: `holds` has checked that every part lies in a mapping of `self`, which stays
        // while it is borrowed.
        unsafe { compare::differing(&parts) }
    }
}

/// Reports the words of `now` that differ from those known, and makes them known. Pages in a row
/// that differ are looked through as one, so that words which go on in the next page are one run.
fn take_pages(va: u64, known: &mut [u8], now: &[u8], changed: &mut dyn FnMut(u64, &[u8])) {
    let page_bytes = PAGE_BYTES as usize;
    let mut differ = None;
    let mut take = |start: usize, end: usize, known: &mut [u8]| {
        let (known, now) = (&mut known[start..end], &now[start..end]);
        changed_words(va + start as u64, known, now, changed);
        known.copy_from_slice(now);
    };
    for at in (0..now.len()).step_by(page_bytes) {
        let end = now.len().min(at + page_bytes);
        match (known[at..end] == now[at..end], differ) {
            (false, None) => differ = Some(at),
            (true, Some(start)) => {
                take(start, at, known);
                differ = None;
            }
            _ => {}
        }
    }
    if let Some(start) = differ {
        take(start, now.len(), known);
    }
}

impl Nvidia {
    pub(super) fn host_map(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::HostMap,
    ) -> Result<(), Failure> {
        let file = match m.fd_tag {
            0 => None,
            tag => Some((cx.fds)(tag)?),
        };
        // The client asks again: what the range waits for may be one of its later messages.
        if self.holds_freed(cx.service, m.va, m.len)? {
            return Err(Failure::new(
                CUresult::CUDA_ERROR_NOT_READY,
                format!("host memory at {:#x} that was freed is still in use", m.va),
            ));
        }
        if self.host.bytes.saturating_add(m.len) > HOST_MAPPED_BYTES_MAX {
            return Err(Failure::new(
                CUresult::CUDA_ERROR_OUT_OF_MEMORY,
                format!("more than {HOST_MAPPED_BYTES_MAX} bytes of host memory"),
            ));
        }
        self.enter_base()?;
        let mut range = HostRange::map(&self.base, m.va, m.len, file)?;
        range.register()?;
        if !self.addresses.insert(m.va, m.len) {
            return Err(Failure::new(
                CUresult::CUDA_ERROR_INVALID_VALUE,
                format!("{:#x} is mapped already", m.va),
            ));
        }
        self.host.bytes += m.len;
        self.host.ranges.insert(m.va, Arc::new(range));
        Ok(())
    }

    pub(super) fn host_unmap(
        &mut self,
        _cx: &mut Cx<'_>,
        m: &messages::HostUnmap,
    ) -> Result<(), Failure> {
        let known = self.host.ranges.get(&m.va);
        if known.is_none_or(|range| range.variable) {
            return Err(Failure::wild("host memory", m.va));
        }
        let range = self
            .host
            .ranges
            .remove(&m.va)
            .ok_or_else(|| Failure::wild("host memory", m.va))?;
        self.addresses.remove(m.va);
        self.host.bytes -= range.len;
        self.host.watches.retain(|watch| !range.holds(watch.va, 1));
        let marks = self.busy_marks();
        let place = Some((range.va, range.len));
        self.deferred_frees
            .push(Retired::Other(Box::new(range)), place, marks);
        // The client has waited for the work that used it, and sends more soon.
        self.reap();
        Ok(())
    }

    pub(super) fn host_write(
        &mut self,
        _cx: &mut Cx<'_>,
        m: &messages::HostWrite<'_>,
    ) -> Result<(), Failure> {
        self.host.write(m.va, m.data)
    }

    pub(super) fn host_watch(
        &mut self,
        _cx: &mut Cx<'_>,
        m: &messages::HostWatch,
    ) -> Result<(), Failure> {
        let range = self.host.mirror(m.va, m.len)?;
        let watched =
            self.host.watches.iter().any(|watch| {
                watch.va <= m.va && m.va + m.len <= watch.va + watch.known.len() as u64
            });
        if !watched {
            outboard_budget::reserve(m.len)?;
            let mut known = vec![0; m.len as usize];
            range.read(m.va, &mut known);
            self.host.watches.push(Watch { va: m.va, known });
        }
        Ok(())
    }

    /// Makes the context current that pinned memory belongs to.
    pub(super) fn enter_base(&mut self) -> Result<(), Failure> {
        self.current = None;
        Ok(self.driver.cuCtxSetCurrent(self.base.handle)?)
    }
}

/// Copies the part of `data`, which lies at `at`, that overlaps `known`, which lies at `start`.
fn overwrite(known: &mut [u8], start: u64, at: u64, data: &[u8]) {
    let from = at.max(start);
    let to = (at + data.len() as u64).min(start + known.len() as u64);
    if from < to {
        known[(from - start) as usize..(to - start) as usize]
            .copy_from_slice(&data[(from - at) as usize..(to - at) as usize]);
    }
}

/// Memory that the driver pinned.
pub(super) struct Pinned {
    hold: Arc<ContextHold>,
    _charge: Charge,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the object owns the memory; parts of it are handed out as `PinnedPart`s, which do not
// overlap.
unsafe impl Send for Pinned {}
// SAFETY: shared references only hand out parts that do not overlap.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// Allocates pinned memory. `hold`'s context must be current.
    pub(super) fn new(hold: &Arc<ContextHold>, len: usize) -> Result<Pinned, Failure> {
        let charge = Charge::take(len as u64)?;
        let mut start = ptr::null_mut();
        // SAFETY: `start` has room for the answer.
        unsafe {
            hold.driver
                .cuMemHostAlloc(&mut start, len as u64, PORTABLE_DEVICEMAP)
        }?;
        let start = NonNull::new(start.cast()).ok_or_else(|| {
            Failure::new(
                CUresult::CUDA_ERROR_OUT_OF_MEMORY,
                "the driver pinned no memory",
            )
        })?;
        Ok(Pinned {
            hold: hold.clone(),
            _charge: charge,
            start,
            len,
        })
    }

    /// Makes all of it one part.
    pub(super) fn whole(self) -> PinnedPart {
        let len = self.len;
        PinnedPart {
            block: Arc::new(self),
            offset: 0,
            len,
        }
    }

    /// Divides it into parts of one length.
    pub(super) fn split(self, len: usize) -> Vec<PinnedPart> {
        self.parts(len).collect()
    }

    /// Divides it into parts of one length that the client's adapter may write.
    pub(super) fn split_for_grants(self, len: usize) -> Vec<GrantedPart> {
        self.parts(len).map(GrantedPart).collect()
    }

    fn parts(self, len: usize) -> impl Iterator<Item = PinnedPart> {
        let count = self.len / len;
        let block = Arc::new(self);
        (0..count).map(move |i| PinnedPart {
            block: block.clone(),
            offset: i * len,
            len,
        })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let start = self.start.as_ptr().cast();
        // A thread that sends data may be the last to use the memory, and has no context.
        given_back(self.hold.within(|driver| {
            // SAFETY: this object pinned the memory, and no part of it is left.
            unsafe { driver.cuMemFreeHost(start) }
        }));
    }
}

/// A part of pinned memory with a single owner.
pub(super) struct PinnedPart {
    block: Arc<Pinned>,
    offset: usize,
    len: usize,
}

impl PinnedPart {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns a span for the driver's copies.
    pub(super) fn span(&self, len: usize) -> Span {
        let address = self.block.start.as_ptr().expose_provenance() + self.offset;
        // SAFETY: whoever submits a copy keeps the part until a mark after the copy is reached.
        unsafe { Span::new_unchecked(address as u64, len.min(self.len) as u64) }
    }

    /// Returns the memory for adapters: it is pinned until the device is dropped, which is after
    /// every link.
    pub(super) fn lasting(&self) -> Lasting {
        let address = self.block.start.as_ptr().expose_provenance() + self.offset;
        // SAFETY: parts used for staging stay allocated until the device is dropped.
        unsafe { Lasting::new(address as u64, self.len) }
    }

    /// Returns the first bytes. The caller has seen the mark after the GPU's copy into them.
    pub(super) fn bytes(&self, len: usize) -> &[u8] {
        // SAFETY: the bytes are inside the block, and the GPU's writes ended before the mark.
        unsafe {
            std::slice::from_raw_parts(
                self.block.start.as_ptr().add(self.offset),
                len.min(self.len),
            )
        }
    }

    pub(super) fn bytes_mut(&mut self, len: usize) -> &mut [u8] {
        // SAFETY: the bytes are inside the block, and `&mut self` is the part's only owner.
        unsafe {
            std::slice::from_raw_parts_mut(
                self.block.start.as_ptr().add(self.offset),
                len.min(self.len),
            )
        }
    }

    pub(super) fn fill(&mut self, data: &[u8]) {
        let room = self.bytes_mut(data.len());
        room.copy_from_slice(&data[..room.len()]);
    }
}

/// A part of pinned memory that the client's adapter may write at any time: it is never anything
/// else, and no reference to its bytes exists.
pub(super) struct GrantedPart(PinnedPart);

impl GrantedPart {
    pub(super) fn len(&self) -> usize {
        self.0.len
    }

    pub(super) fn span(&self, len: usize) -> Span {
        self.0.span(len)
    }

    pub(super) fn lasting(&self) -> Lasting {
        self.0.lasting()
    }

    /// Returns a copy of the first bytes. The client can change them meanwhile, but not the copy.
    pub(super) fn copied(&self, len: usize) -> Vec<u8> {
        let len = len.min(self.0.len);
        let mut copy = Vec::with_capacity(len);
        // SAFETY: the bytes are inside the block, and `copy` has room for them. They are read
        // through a raw pointer, because the client's adapter may write them meanwhile.
        unsafe {
            let from = self.0.block.start.as_ptr().add(self.0.offset);
            ptr::copy_nonoverlapping(from, copy.as_mut_ptr(), len);
            copy.set_len(len);
        }
        copy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overwriting_clips_at_both_ends() {
        for (at, expected) in [
            (8, [3, 4, 0, 0]),
            (9, [2, 3, 4, 0]),
            (12, [0, 0, 1, 2]),
            (14, [0; 4]),
            (6, [0; 4]),
        ] {
            let mut known = [0; 4];
            overwrite(&mut known, 10, at, &[1, 2, 3, 4]);
            assert_eq!(known, expected, "{at}");
        }
        let mut known = [0; 2];
        overwrite(&mut known, 11, 10, &[1, 2, 3, 4]);
        assert_eq!(known, [2, 3]);
    }
}
