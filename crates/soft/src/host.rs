//! Host memory that kernels may touch, at the same address on both sides.
//!
//! If the client's memory comes as a file, both processes map the same memory. Otherwise this
//! process has a mirror, which the client writes before launches, and whose changes are sent back
//! before a wait is answered.

use std::{
    collections::BTreeMap,
    os::fd::{AsRawFd, OwnedFd},
    ptr::{self, NonNull},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use outboard_api::CUresult;
use outboard_budget::Charge;
use outboard_device::{Cx, Failure, changed_words};
use outboard_net::{Mapped, remote::Borrower};
use outboard_pages::Tracker;
use outboard_ptx::device::{Fence, Gpu, StreamId};
use outboard_wire::messages;

use super::{
    Soft,
    wait::{failure, invalid},
};

const PAGE_BYTES: u64 = 4096;
/// Bytes compared at once, and the longest run of changes reported at once.
const RUN_BYTES_MAX: usize = 64 << 10;
/// How long a new mapping waits for work that may still use the memory mapped there before. Only
/// this and `ipc.rs` wait.
const REUSE_MS_MAX: u64 = 10_000;
/// Address of managed variables: after the client's pinned memory.
const MANAGED_BASE: u64 = 0x3a00_0000_0000;
const MANAGED_BYTES: u64 = 1 << 40;
/// Offset from [`MANAGED_BASE`] of the next managed variables, counted over all devices of this
/// process.
static MANAGED_NEXT: AtomicU64 = AtomicU64::new(0);
const PLACE_TRIES_MAX: u32 = 64;
/// The lowest address that host memory may have.
const ADDRESS_MIN: u64 = 64 << 10;

/// Host memory mapped at addresses that the client chose.
#[derive(Default)]
pub(super) struct HostMemory {
    regions: BTreeMap<u64, Region>,
    /// Regions that the client has unmapped and that copies have yet to read.
    read_from: Vec<(u64, Region)>,
    /// Regions that the client has unmapped, with fences for the work that ran then.
    leaving: Vec<(Fence, u64, Region)>,
    /// Parts that the client must be sent, whenever they were written.
    untold: Vec<(u64, u64)>,
    /// Finds the pages of mirrors that kernels have written. Opened with the first watched mirror;
    /// `Some(None)` if the kernel cannot.
    tracker: Option<Option<Tracker>>,
}

struct Region {
    bytes: u64,
    /// The library whose managed variables these are; only its end removes them.
    library: Option<u64>,
    /// Whether the tracker watches its pages, so that only written ones are compared.
    is_tracked: bool,
    /// A device may write it, which the tracker does not see.
    is_of_device: bool,
    /// A mirror's part of the worker's memory; the client's own memory is none.
    charge: Option<Charge>,
    /// Watched parts by address, with their bytes as the client knows them.
    watched: BTreeMap<u64, Vec<u8>>,
    /// Shared with those who keep it mapped: adapters.
    lent: Arc<()>,
    /// The end of the last copy from it in each stream, unless that is known to be reached.
    reads: Vec<(StreamId, Fence)>,
}

impl Region {
    fn is_lent(&self) -> bool {
        Arc::strong_count(&self.lent) > 1
    }

    /// Notes a copy from it that is queued.
    fn reads(&mut self, stream: StreamId, end: Fence) {
        if let Some(last) = self.reads.iter_mut().find(|(of, _)| *of == stream) {
            last.1 = end;
            return;
        }
        self.is_read();
        self.reads.push((stream, end));
    }

    /// Returns whether copies from it are still to be made.
    fn is_read(&mut self) -> bool {
        self.reads
            .retain_mut(|(_, end)| matches!(end.ready(), Ok(false)));
        !self.reads.is_empty()
    }
}

impl HostMemory {
    /// Whether any page that kernels write must be sent to the client before a reply.
    pub(super) fn is_watched(&self) -> bool {
        self.regions
            .values()
            .any(|region| !region.watched.is_empty())
    }

    /// Maps zeroed pages for `[va, va + bytes)`, except for pages that are mapped already.
    fn map_mirror(&mut self, va: u64, bytes: u64) -> Result<(), Failure> {
        match self.own_pages(va, bytes) {
            Some((start, bytes)) => map_at(start, bytes, None),
            None => Ok(()),
        }
    }

    fn unmap_mirror(&mut self, va: u64, bytes: u64) {
        if let Some((start, bytes)) = self.own_pages(va, bytes) {
            unmap_at(start, bytes);
        }
    }

    /// Returns address and length of the pages of `[va, va + bytes)` that no region uses. Regions
    /// do not overlap and need not be page aligned, so only the first and the last page may be in
    /// use.
    fn own_pages(&self, va: u64, bytes: u64) -> Option<(u64, u64)> {
        let (mut first, mut end) = page_range(va, bytes);
        first += u64::from(self.is_page_used(first));
        end -= u64::from(first < end && self.is_page_used(end - 1));
        (first < end).then_some((first * PAGE_BYTES, (end - first) * PAGE_BYTES))
    }

    fn is_page_used(&self, page: u64) -> bool {
        let (start, end) = (page * PAGE_BYTES, (page + 1) * PAGE_BYTES);
        let covers = |va: u64, region: &Region| va < end && va + region.bytes > start;
        let last = self.regions.range(..end).next_back();
        last.is_some_and(|(va, region)| covers(*va, region))
            || self.unmapped().any(|(va, region)| covers(va, region))
    }

    /// Returns the regions that the client has unmapped and that may still be used.
    fn unmapped(&self) -> impl Iterator<Item = (u64, &Region)> {
        let read_from = self.read_from.iter().map(|(va, region)| (*va, region));
        let leaving = self.leaving.iter().map(|(_, va, region)| (*va, region));
        read_from.chain(leaving)
    }

    /// Returns true if adapters may write to memory that the client has a copy of.
    pub(super) fn is_lent(&self) -> bool {
        self.regions.values().any(Region::is_lent)
    }

    /// Lends memory to an adapter. It stays mapped until that is done. A device's writes are
    /// noticed by comparing alone.
    pub(super) fn lend(&mut self, va: u64, bytes: u64, to: Borrower) -> Result<Mapped, Failure> {
        let (_, region) = self.find(va, bytes)?;
        // The client may truncate a file of its own (SIGBUS for an adapter).
        if region.charge.is_none() {
            return Err(invalid(format!("memory at {va:#x} is the client's own")));
        }
        if to == Borrower::Device {
            region.is_of_device = true;
            region.is_tracked = false;
        }
        let keeper = region.lent.clone();
        let at = NonNull::new(ptr::with_exposed_provenance_mut(va as usize));
        let at = at.ok_or_else(|| invalid("memory at 0"))?;
        // SAFETY: readable and writable pages of a region, which stay mapped while it is lent. All
        // else that uses them makes the same accesses, or is the GPU.
        Ok(unsafe { Mapped::lent(at, bytes as usize, va, keeper) })
    }

    fn drop_region(&mut self, va: u64, region: &Region) {
        if region.is_lent() {
            // The end of the device: an adapter that still runs keeps the pages.
            return;
        }
        match region.charge {
            None => unmap_at(va, region.bytes),
            Some(_) => self.unmap_mirror(va, region.bytes),
        }
    }

    /// Hides a region that the client has unmapped from later work, once the copies from it that
    /// are queued are made; its pages are unmapped when the work that runs then is done. Work that
    /// only waits may wait for the client, which would hold up the next mapping there.
    fn hide(&mut self, gpu: &Gpu, va: u64, mut region: Region) -> Result<(), Failure> {
        if region.is_read() {
            self.read_from.push((va, region));
            return Ok(());
        }
        gpu.unregister_host(va).map_err(failure)?;
        self.leaving.push((gpu.fence_running(), va, region));
        Ok(())
    }

    /// Unmaps regions that no work can use any more.
    fn sweep(&mut self, gpu: &Gpu) {
        let is_free = |(_, region): &mut (u64, Region)| !region.is_read();
        let free: Vec<_> = self.read_from.extract_if(.., is_free).collect();
        for (va, region) in free {
            // It was registered, and is not yet unregistered.
            if gpu.unregister_host(va).is_ok() {
                self.leaving.push((gpu.fence_running(), va, region));
            }
        }
        let is_done = |(fence, _, region): &mut (Fence, u64, Region)| {
            !region.is_lent() && !matches!(fence.ready(), Ok(false))
        };
        let done: Vec<_> = self.leaving.extract_if(.., is_done).collect();
        for (_, va, region) in done {
            self.drop_region(va, &region);
        }
    }

    /// Waits until no leaving region lies on the same pages.
    fn wait_for_room(&mut self, gpu: &Gpu, va: u64, bytes: u64) -> Result<(), Failure> {
        let start = Instant::now();
        let (first, end) = page_range(va, bytes);
        let overlaps = |old: u64, region: &Region| {
            let (old_first, old_end) = page_range(old, region.bytes);
            old_first < end && old_end > first
        };
        loop {
            self.sweep(gpu);
            // The client asks again: what the copy waits for may be one of its later messages.
            if self.read_from.iter().any(|(old, r)| overlaps(*old, r)) {
                return Err(Failure::new(
                    CUresult::CUDA_ERROR_NOT_READY,
                    format!("a copy has yet to read host memory that was freed at {va:#x}"),
                ));
            }
            if !self.leaving.iter().any(|(_, old, r)| overlaps(*old, r)) {
                return Ok(());
            }
            if start.elapsed() > Duration::from_millis(REUSE_MS_MAX) {
                return Err(Failure::new(
                    CUresult::CUDA_ERROR_MAP_FAILED,
                    format!(
                        "work of {REUSE_MS_MAX} ms still uses host memory that was freed at {va:#x}"
                    ),
                ));
            }
            thread::sleep(Duration::from_micros(100));
        }
    }

    fn find(&mut self, va: u64, bytes: u64) -> Result<(u64, &mut Region), Failure> {
        let found = self.regions.range_mut(..=va).next_back();
        let found = found.filter(|(start, region)| {
            let end = **start + region.bytes;
            va.checked_add(bytes).is_some_and(|wanted| wanted <= end)
        });
        let found = found.ok_or_else(|| {
            invalid(format!(
                "{bytes} bytes at {va:#x} are not mapped host memory"
            ))
        })?;
        Ok((*found.0, found.1))
    }

    /// Unmaps everything. Nothing may use it any more.
    pub(super) fn clear(&mut self) {
        for (va, region) in std::mem::take(&mut self.regions) {
            self.drop_region(va, &region);
        }
        for (_, va, region) in std::mem::take(&mut self.leaving) {
            self.drop_region(va, &region);
        }
        for (va, region) in std::mem::take(&mut self.read_from) {
            self.drop_region(va, &region);
        }
    }

    /// Reports the bytes of watched mirrors that changed since the client last knew them.
    pub(super) fn take_changes(&mut self, gpu: &Gpu, changed: &mut dyn FnMut(u64, &[u8])) {
        self.sweep(gpu);
        let mut now = Vec::new();
        let written = self.take_written();
        for region in self.regions.values_mut() {
            for (start, known) in &mut region.watched {
                let whole = [(*start, start + known.len() as u64)];
                let parts = if region.is_tracked {
                    &written[..]
                } else {
                    &whole
                };
                for (from, to) in parts {
                    compare(gpu, *start, known, (*from, *to), &mut now, changed);
                }
            }
        }
    }

    /// Returns runs of pages of tracked mirrors that were written since the last call.
    fn take_written(&mut self) -> Vec<(u64, u64)> {
        let mut written = std::mem::take(&mut self.untold);
        let Some(Some(tracker)) = &self.tracker else {
            return written;
        };
        for (va, region) in self.regions.iter_mut().filter(|(_, r)| r.is_tracked) {
            let (start, end) = outboard_pages::pages_around(*va, region.bytes);
            if let Err(error) =
                tracker.take_written(start, end, &mut |from, to| written.push((from, to)))
            {
                tracing::debug!(%error, "a mirror is compared from now on");
                region.is_tracked = false;
            }
        }
        written
    }

    /// Has the kernel watch the pages of a region, if it can.
    fn track(&mut self, va: u64) {
        let tracker = self.tracker.get_or_insert_with(|| {
            let opened = Tracker::new();
            opened
                .inspect_err(|why| tracing::debug!(%why, "mirrors are compared"))
                .ok()
        });
        let (Some(tracker), Some(region)) = (tracker, self.regions.get_mut(&va)) else {
            return;
        };
        if region.is_of_device {
            return;
        }
        let (start, end) = outboard_pages::pages_around(va, region.bytes);
        region.is_tracked = tracker.watch(start, end).is_ok();
    }
}

/// Reports the changes in the part `(from, to)` of memory that starts at `start`, compared with
/// `known`.
fn compare(
    gpu: &Gpu,
    start: u64,
    known: &mut [u8],
    (from, to): (u64, u64),
    now: &mut Vec<u8>,
    changed: &mut dyn FnMut(u64, &[u8]),
) {
    let (from, to) = (from.max(start), to.min(start + known.len() as u64));
    if from >= to {
        return;
    }
    let part = &mut known[(from - start) as usize..(to - start) as usize];
    for (index, known) in part.chunks_mut(RUN_BYTES_MAX).enumerate() {
        let va = from + (index * RUN_BYTES_MAX) as u64;
        now.resize(known.len(), 0);
        if gpu.memory().read(va, now).is_err() || now == known {
            continue;
        }
        changed_words(va, known, now, changed);
        known.copy_from_slice(now);
    }
}

impl Soft {
    pub(super) fn host_map(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::HostMap,
    ) -> Result<(), Failure> {
        let in_range = m.va.checked_add(m.len).is_some_and(|end| end < 1 << 47);
        if m.len == 0 || m.va < ADDRESS_MIN || !in_range {
            return Err(invalid(format!(
                "{} bytes of host memory at {:#x}",
                m.len, m.va
            )));
        }
        self.host.wait_for_room(&self.gpu, m.va, m.len)?;
        let before = self.host.regions.range(..m.va + m.len).next_back();
        if before.is_some_and(|(va, region)| va + region.bytes > m.va) {
            return Err(Failure::new(
                CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
                format!("{} bytes at {:#x} are mapped already", m.len, m.va),
            ));
        }
        let charge = if m.fd_tag != 0 {
            if !m.va.is_multiple_of(PAGE_BYTES) {
                return Err(invalid(format!(
                    "shared memory at {:#x}, inside a page",
                    m.va
                )));
            }
            let file = (cx.fds)(m.fd_tag)?;
            check_file(&file, m.len)?;
            map_at(m.va, m.len, Some(&file))?;
            None
        } else {
            let charge = Charge::take(m.len)?;
            self.host.map_mirror(m.va, m.len)?;
            Some(charge)
        };
        self.keep_region(
            m.va,
            Region {
                bytes: m.len,
                library: None,
                is_tracked: false,
                is_of_device: false,
                charge,
                watched: BTreeMap::new(),
                lent: Arc::default(),
                reads: Vec::new(),
            },
        )
    }

    /// Lets kernels use a region whose pages were just mapped.
    fn keep_region(&mut self, va: u64, region: Region) -> Result<(), Failure> {
        // SAFETY: the pages are readable and writable. They stay mapped until the region is
        // dropped, which happens after all work that ran at its unregistration is done.
        if let Err(error) = unsafe { self.gpu.register_host(va, region.bytes) } {
            self.host.drop_region(va, &region);
            return Err(failure(error));
        }
        self.host.regions.insert(va, region);
        Ok(())
    }

    /// Maps zeroed memory for a library's managed variables, at an address that is probably free in
    /// the client too.
    pub(super) fn managed_place(&mut self, library: u64, bytes: u64) -> Result<u64, Failure> {
        if bytes == 0 {
            return Err(invalid("no bytes of managed variables"));
        }
        let charge = Charge::take(bytes)?;
        let mut tries = 0;
        let va = loop {
            // The page of distance keeps an overrun out of the next library's variables.
            let step = bytes.next_multiple_of(PAGE_BYTES) + PAGE_BYTES;
            let va = MANAGED_BASE + MANAGED_NEXT.fetch_add(step, Ordering::Relaxed) % MANAGED_BYTES;
            match self.host.map_mirror(va, bytes) {
                Ok(()) => break va,
                Err(error) if tries == PLACE_TRIES_MAX => return Err(error),
                Err(_) => tries += 1,
            }
        };
        let region = Region {
            bytes,
            library: Some(library),
            is_tracked: false,
            is_of_device: false,
            charge: Some(charge),
            watched: BTreeMap::new(),
            lent: Arc::default(),
            reads: Vec::new(),
        };
        self.keep_region(va, region).map(|()| va)
    }

    /// Starts to report writes to a managed variable. Both sides hold zeros so far.
    pub(super) fn managed_watch(&mut self, va: u64, bytes: u64) -> Result<(), Failure> {
        let (start, region) = self.host.find(va, bytes)?;
        if region.watched.contains_key(&va) {
            return Ok(());
        }
        outboard_budget::reserve(bytes)?;
        region.watched.insert(va, vec![0; bytes as usize]);
        if !region.is_tracked {
            self.host.track(start);
        }
        self.host.untold.push((va, va + bytes));
        self.touched = true;
        Ok(())
    }

    /// Ends a library's managed variables; their pages are unmapped once no work uses them.
    pub(super) fn managed_end(&mut self, library: u64) -> Result<(), Failure> {
        let mut regions = self.host.regions.iter();
        let found = regions.find(|(_, region)| region.library == Some(library));
        match found.map(|(va, _)| *va) {
            Some(va) => self.leave(va),
            None => Ok(()),
        }
    }

    pub(super) fn host_unmap(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::HostUnmap,
    ) -> Result<(), Failure> {
        let region = self.host.regions.get(&m.va);
        if region.is_none_or(|region| region.library.is_some()) {
            return Err(Failure::new(
                CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
                format!("no host memory is mapped at {:#x}", m.va),
            ));
        }
        self.leave(m.va)
    }

    fn leave(&mut self, va: u64) -> Result<(), Failure> {
        let left = match self.host.regions.remove(&va) {
            Some(region) => self.host.hide(&self.gpu, va, region),
            None => Ok(()),
        };
        self.host.sweep(&self.gpu);
        left
    }

    /// Notes a copy that was just queued, if host memory is its source.
    pub(super) fn reads_host(&mut self, stream: StreamId, src: u64) {
        if let Ok((_, region)) = self.host.find(src, 1)
            && let Some(end) = self.gpu.work_fence(stream)
        {
            region.reads(stream, end);
        }
    }

    pub(super) fn host_write(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::HostWrite<'_>,
    ) -> Result<(), Failure> {
        let (_, region) = self.host.find(m.va, m.data.len() as u64)?;
        self.gpu
            .memory()
            .write(m.va, m.data)
            .map_err(|error| invalid(error.to_string()))?;
        let end = m.va + m.data.len() as u64;
        for (start, known) in region.watched.range_mut(..end) {
            let known_end = start + known.len() as u64;
            let (from, to) = (m.va.max(*start), end.min(known_end));
            if from < to {
                let data = &m.data[(from - m.va) as usize..(to - m.va) as usize];
                known[(from - start) as usize..(to - start) as usize].copy_from_slice(data);
            }
        }
        Ok(())
    }

    pub(super) fn host_watch(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::HostWatch,
    ) -> Result<(), Failure> {
        let (va, region) = self.host.find(m.va, m.len)?;
        if region.charge.is_none() {
            // The client sees what kernels write at once.
            return Ok(());
        }
        // Parts already watched keep their known bytes, and so the changes not yet reported.
        let end = m.va + m.len;
        let mut at = m.va;
        while at < end {
            let before = region.watched.range(..=at).next_back();
            let covered = before
                .map(|(start, known)| start + known.len() as u64)
                .filter(|to| *to > at);
            if let Some(to) = covered {
                at = to;
                continue;
            }
            let to = region
                .watched
                .range(at..end)
                .next()
                .map_or(end, |(start, _)| *start);
            outboard_budget::reserve(to - at)?;
            let mut known = vec![0; (to - at) as usize];
            self.gpu
                .memory()
                .read(at, &mut known)
                .map_err(|error| invalid(error.to_string()))?;
            region.watched.insert(at, known);
            at = to;
        }
        if !region.is_tracked {
            self.host.track(va);
        }
        Ok(())
    }
}

/// Returns the page numbers of a range: the first, and one past the last.
fn page_range(va: u64, bytes: u64) -> (u64, u64) {
    (va / PAGE_BYTES, (va + bytes).div_ceil(PAGE_BYTES))
}

/// Checks that the file is long enough: touching pages past its end would kill this process
/// (SIGBUS).
fn check_file(file: &OwnedFd, bytes: u64) -> Result<(), Failure> {
    let wrong = |what: String| Failure::new(CUresult::CUDA_ERROR_MAP_FAILED, what);
    let stat =
        rustix::fs::fstat(file).map_err(|e| wrong(format!("the shared memory's file: {e}")))?;
    if (stat.st_size as u64) < bytes {
        return Err(wrong(format!(
            "a file of {} bytes for {bytes} bytes of memory",
            stat.st_size
        )));
    }
    Ok(())
}

/// Maps pages at exactly this address, and fails if anything is mapped there.
fn map_at(va: u64, bytes: u64, file: Option<&OwnedFd>) -> Result<(), Failure> {
    let (flags, fd) = match file {
        Some(file) => (libc::MAP_SHARED, file.as_raw_fd()),
        None => (
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
        ),
    };
    let bytes = bytes.next_multiple_of(PAGE_BYTES);
    // SAFETY: MAP_FIXED_NOREPLACE fails for addresses in use, so no mapping of this process is
    // replaced.
    let got = unsafe {
        libc::mmap(
            va as *mut libc::c_void,
            bytes as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            flags | libc::MAP_FIXED_NOREPLACE,
            fd,
            0,
        )
    };
    if got as u64 == va {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    if got != libc::MAP_FAILED {
        // Kernels before 4.17 ignore the flag and map elsewhere.
        unmap_at(got as u64, bytes);
    }
    Err(Failure::new(
        CUresult::CUDA_ERROR_MAP_FAILED,
        format!("{bytes} bytes of host memory at {va:#x} cannot be mapped on the server: {error}"),
    ))
}

/// Unmaps what [`map_at`] mapped.
fn unmap_at(va: u64, bytes: u64) {
    // SAFETY: callers pass only pages that `map_at` made and that no region and no work uses any
    // more.
    unsafe {
        libc::munmap(
            va as *mut libc::c_void,
            bytes.next_multiple_of(PAGE_BYTES) as usize,
        )
    };
}
