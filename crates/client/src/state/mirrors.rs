//! Mirrors: the server's copies of host memory that the GPU uses, at the same addresses.
//!
//! A mirror is opened when work first names the memory, or when the program asks for its device
//! pointer. Before work that may read mirrors, the client sends the bytes that the program changed.
//! Before it answers a wait, the server sends the bytes that kernels changed. The client keeps a
//! copy of the server's bytes, `server_bytes`, to find changes.
//!
//! ```text
//!  program writes ──► page is marked ──► scan before a launch ──► compared ──► HostWrite
//!                     by the kernel        └─ no page marked:     with server_bytes
//!                                             nothing is compared or sent
//!  HostPages, HostRuns ──► server_bytes, program's memory
//! ```
//!
//! A mirror that was opened only because a kernel's argument points into the memory is closed again
//! when work stops naming it: the argument may have been a stale pointer. A kernel that still uses
//! the memory, through a pointer of its own, then gets an illegal address.
//!
//! A copy from the device into mirrored memory must not overtake what kernels wrote there before.
//! So it decides by which way it comes while it holds `copying` shared, until its requests are
//! sent, if its bytes may be mirrored at all. The thread that opens a mirror takes `copying`
//! exclusively for one moment, from which on copies into that memory come in order. Then it waits
//! for those that were sent before. While it waits it does not hold `copying`: a copy that it waits
//! for may itself wait for what another thread does after its next copy.
//!
//! Where looks take long, launches that follow each other closely share one (`held.rs`).
//!
//! Lock order: `naming`, a mirror's `opening`, `copying`, `open`, `questions`, a mirror's
//! `server_bytes`, the session's sender. A thread that holds `copying` shared takes the table of
//! host memory and locks of the session, and waits for the link at most. None who holds these waits
//! for `copying`.

use std::{
    io,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use outboard_api::CUresult;
use outboard_pages::{PAGE_BYTES, Tracker, pages_around};
use outboard_wire::{doc::NET_CONTROL_BYTES, messages, runs::Runs};
use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard};
use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    Driver, StreamRef,
    controls::{Controls, within},
    held::Held,
    host_memory::{HostMemory, HostRange, Writer},
    mirror::Mirror,
    rest::Questions,
};
use crate::{log, observe::conditions, session::MirrorCopy, thread};

/// Most bytes compared at a time, and carried by one message.
const PIECE_BYTES: usize = 64 << 10;

/// Length up to which memory is compared at each look. To ask the kernel which of its pages were
/// written takes 2 us, and the program's first write to each page more.
const COMPARED_BYTES: u64 = 4096;

/// Time limit for work that first names memory to wait for copies into it that are under way.
const COPY_WAIT_MAX: Duration = Duration::from_secs(60);

/// Time limit for a thread to wait for another that opens the same mirror.
const OPENING_WAIT_MAX: Duration = Duration::from_secs(120);

/// Time for which the thread that opens a mirror keeps copies of other threads from beginning,
/// before it reads the link for those that are being sent.
const COPYING_PAUSE: Duration = Duration::from_millis(10);

/// Time limit for work to wait for copies into mirrors that it does not name.
const FOLLOWED_COPY_WAIT_MAX: Duration = Duration::from_secs(2);

/// Time limit for later copies of a stream whose last one did not come in that time.
const DOUBTED_COPY_WAIT_MAX: Duration = Duration::from_millis(10);

/// Short waits in vain for a stream's copies before the next wait is a long one again. Each long
/// wait in vain multiplies that number by the factor, up to the limit.
const SHORT_WAITS_MIN: u32 = 1;
const SHORT_WAITS_FACTOR: u32 = 4;
const SHORT_WAITS_MAX: u32 = 1024;

/// All mirrors of the session.
#[derive(Default)]
pub(crate) struct Mirrors {
    /// Locked shared from the moment a launch names memory until it is sent; exclusively while
    /// mirrors are closed.
    naming: RwLock<()>,
    /// Locked from a look for changes until they are sent, so that no later launch overtakes them.
    pub(super) open: Mutex<OpenMirrors>,
    /// Wakes the thread that sends launches which are held for too long.
    pub(super) wake: Condvar,
    count: AtomicUsize,
    /// Locked shared by a copy from the device, from the moment it decides how it comes until it is
    /// sent; exclusively while that changes.
    copying: RwLock<()>,
    /// Number of mirrors that are open, or were to be opened: copies into them come in order.
    ordered: AtomicUsize,
    /// Number of looks, and of launches that were held back until one.
    looks: AtomicU64,
    figures: Figures,
    /// Memory that adapters have written since the last look: the kernel does not report it.
    written_by_adapter: Mutex<Vec<(u64, u64)>>,
    /// The server's adapters use mirrors at any time.
    pub(super) are_lent: AtomicBool,
    /// Streams whose last copy into a mirror did not come while a launch waited for it.
    doubts: Mutex<Doubts>,
    /// Questions for mirrors that may be closed when all work is done.
    pub(super) questions: Mutex<Questions>,
}

#[derive(Default)]
pub(super) struct OpenMirrors {
    /// In the order of their addresses; they are disjoint.
    ranges: Vec<Arc<HostRange>>,
    /// The server's adapters look at nothing until this look is over.
    is_holding: bool,
    /// Runs of pages written since the last look, by any thread.
    written: Vec<(u64, u64)>,
    controls: Controls,
    /// The thread that looked first.
    first: Option<libc::pthread_t>,
    are_several: bool,
    buffer: Vec<u8>,
    pub(super) held: Held,
}

/// Streams whose copies launches wait for shortly.
///
/// One copy that is slow says little about the next: only a stream whose copies are held each time
/// is waited for shortly nearly always.
#[derive(Default)]
struct Doubts {
    by_stream: FxHashMap<u64, Doubt>,
    /// Number of launches that went on without copies of a stream.
    missed: u64,
}

/// Short waits for a stream's copies: those to come before a long one, and all between two.
struct Doubt {
    left: u32,
    all: u32,
}

impl Doubts {
    /// Returns the streams of these copies that are to be waited for shortly.
    fn among(&self, copies: &[MirrorCopy]) -> FxHashSet<u64> {
        let is_short = |of: &u64| self.by_stream.get(of).is_some_and(|doubt| doubt.left > 0);
        copies.iter().map(|(_, of)| *of).filter(is_short).collect()
    }

    fn has_come(&mut self, of: u64) {
        self.by_stream.remove(&of);
    }

    fn has_not_come(&mut self, of: u64, was_short: bool) {
        match self.by_stream.get_mut(&of) {
            Some(doubt) if was_short => doubt.left = doubt.left.saturating_sub(1),
            Some(doubt) => {
                doubt.all = (doubt.all * SHORT_WAITS_FACTOR).min(SHORT_WAITS_MAX);
                doubt.left = doubt.all;
            }
            None => {
                let all = SHORT_WAITS_MIN;
                self.by_stream.insert(of, Doubt { left: all, all });
            }
        }
    }
}

/// Costs of mirrors so far.
#[derive(Default)]
struct Figures {
    compared_bytes: AtomicU64,
    sent_bytes: AtomicU64,
    /// Messages with bytes that kernels wrote.
    received: AtomicU64,
    received_bytes: AtomicU64,
    opened: AtomicU64,
    closed: AtomicU64,
    held: AtomicU64,
}

fn tracker() -> Option<&'static Tracker> {
    static TRACKER: OnceLock<Option<Tracker>> = OnceLock::new();
    TRACKER
        .get_or_init(|| {
            if std::env::var_os("OUTBOARD_COMPARE").is_some() {
                return None;
            }
            outboard_link::fill_standard_descriptors();
            Tracker::new()
                .inspect_err(|why| {
                    log::debug(format_args!(
                        "host memory that kernels touch is compared before each launch: {why}"
                    ));
                })
                .ok()
        })
        .as_ref()
}

/// Returns the first index from `at` on at which two slices of one length differ.
fn first_difference(a: &[u8], b: &[u8], mut at: usize) -> Option<usize> {
    const STRIDE: usize = 64;
    while at < a.len() {
        let end = (at + STRIDE).min(a.len());
        if a[at..end] != b[at..end] {
            return (at..end).find(|i| a[*i] != b[*i]);
        }
        at = end;
    }
    None
}

/// Returns the error of work that would read registered memory which cannot be looked at.
#[cold]
fn unreadable(error: io::Error) -> CUresult {
    log::warn(format_args!(
        "work is refused: registered memory that it may read cannot be looked at: {error}"
    ));
    CUresult::CUDA_ERROR_OPERATING_SYSTEM
}

/// Returns the ranges that have some bytes of `part`. `run_of` returns where one begins and ends;
/// they are disjoint, in the order of their addresses.
fn touched<R>(ranges: &[R], part: (u64, u64), run_of: impl Fn(&R) -> (u64, u64)) -> &[R] {
    let from = ranges.partition_point(|range| run_of(range).1 <= part.0);
    let rest = &ranges[from..];
    &rest[..rest.partition_point(|range| run_of(range).0 < part.1)]
}

/// A mirror into which changes of the server's are merged.
struct Merging<'a> {
    range: &'a HostRange,
    server_bytes: MutexGuard<'a, Vec<u8>>,
    writer: Writer<'a>,
}

impl<'a> Merging<'a> {
    fn into(range: &'a HostRange) -> Merging<'a> {
        Merging {
            range,
            server_bytes: range.mirror.server_bytes.lock(),
            writer: range.writer(),
        }
    }

    /// Merges a run that begins in this mirror; `None` if it does not end there, or the mirror is
    /// closed.
    fn take(&mut self, address: u64, data: &[u8]) -> Option<()> {
        let start = (address - self.range.base) as usize;
        let known = self.server_bytes.get_mut(start..start + data.len())?;
        let mut at = 0;
        while let Some(from) = first_difference(known, data, at) {
            let to = (from..data.len())
                .find(|i| known[*i] == data[*i])
                .unwrap_or(data.len());
            known[from..to].copy_from_slice(&data[from..to]);
            self.writer.write((start + from) as u64, &data[from..to]);
            at = to;
        }
        Some(())
    }
}

impl Mirrors {
    /// Returns the names and values for `OUTBOARD_STATS`; `None` if there was no mirror.
    pub(crate) fn figures(&self) -> Option<[(&'static str, u64); 9]> {
        let of = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
        let figures = &self.figures;
        (of(&figures.opened) > 0).then(|| {
            [
                ("opened", of(&figures.opened)),
                ("closed", of(&figures.closed)),
                ("tracked", u64::from(tracker().is_some())),
                ("looks", of(&self.looks) - of(&figures.held)),
                ("held", of(&figures.held)),
                ("compared_bytes", of(&figures.compared_bytes)),
                ("sent_bytes", of(&figures.sent_bytes)),
                ("received", of(&figures.received)),
                ("received_bytes", of(&figures.received_bytes)),
            ]
        })
    }

    /// Counts a launch that is held back until a look.
    pub(super) fn holds(&self) {
        // First here, so that there are never more than looks.
        self.looks.fetch_add(1, Ordering::AcqRel);
        self.figures.held.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that an adapter has written the data of a reply into this memory.
    pub(super) fn written_by_adapter(&self, address: u64, bytes: u64) {
        if self.count.load(Ordering::Acquire) > 0 {
            let written = pages_around(address, bytes);
            self.written_by_adapter.lock().push(written);
        }
    }

    /// Merges bytes that kernels wrote to mirrors into the program's memory; only those that
    /// changed. Returns the first address where that was impossible.
    pub(super) fn take_pages(&self, host: &HostMemory, runs: Runs<'_>) -> Option<u64> {
        let (mut lost, mut merging) = (None, None::<Merging<'_>>);
        let (mut received_bytes, mut received) = (0, 0);
        for (address, data) in runs {
            if !merging.as_ref().is_some_and(|m| m.range.contains(address)) {
                lost = lost.or(merging.take().and_then(|before| before.writer.lost()));
                let range = host.find(address).filter(|range| !range.shared);
                merging = range.map(Merging::into);
            }
            let taken = merging.as_mut().and_then(|m| m.take(address, data));
            if taken.is_some() {
                received_bytes += data.len() as u64;
                received = 1;
            }
        }
        let figures = &self.figures;
        figures
            .received_bytes
            .fetch_add(received_bytes, Ordering::Relaxed);
        figures.received.fetch_add(received, Ordering::Relaxed);
        lost.or(merging.and_then(|last| last.writer.lost()))
    }
}

impl Driver {
    /// Makes the range that contains this address usable by the GPU until the range is freed.
    pub(crate) fn make_visible(&self, address: u64) -> Result<(), CUresult> {
        self.show(&self.host_range(address)?)
    }

    /// Makes such a range usable by kernels that need not name it, too.
    pub(crate) fn make_reachable(&self, address: u64) -> Result<(), CUresult> {
        let range = self.host_range(address)?;
        self.show(&range)?;
        self.kernels_reach(&range);
        Ok(())
    }

    fn show(&self, range: &Arc<HostRange>) -> Result<(), CUresult> {
        if range.shared {
            return Ok(());
        }
        // It cannot be closed in between: if it is open, it stays so from now on.
        let _naming = self.mirrors.naming.read();
        match range.mirror.stays_open() {
            true => Ok(()),
            false => self.open_by_one(range, true),
        }
    }

    /// Notes that the server's adapters will use this memory, which is pinned, from now on.
    pub(crate) fn lends_range(&self, address: u64, bytes: u64) -> Result<(), CUresult> {
        let range = self.host_range(address)?;
        let end = address.checked_add(bytes);
        if end.is_none_or(|end| end > range.base + range.bytes) {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        self.mirrors.are_lent.store(true, Ordering::Release);
        Ok(())
    }

    /// Notes that a queue of an adapter's begins here, in memory that was lent.
    pub(crate) fn lends_queue(&self, address: u64) {
        let control = (address, address.saturating_add(NET_CONTROL_BYTES));
        self.mirrors.open.lock().controls.add(control);
    }

    /// Keeps the way by which copies into these bytes come as it is, until it is dropped: the
    /// caller decides about a copy from the device, and sends it. `None` if the server maps the
    /// bytes, or they are not pinned: no mirror is of them, and threads that copy share no lock.
    pub(crate) fn copying_out(&self, address: u64, bytes: u64) -> Option<RwLockReadGuard<'_, ()>> {
        HostMemory::may_be_private(address, bytes).then(|| self.mirrors.copying.read())
    }

    /// Returns whether copies into some memory come in order.
    pub(super) fn orders_copies(&self) -> bool {
        self.mirrors.ordered.load(Ordering::Acquire) > 0
    }

    /// Makes copies into this memory that are not sent yet come after what kernels write there
    /// before them.
    fn order_copies(&self, mirror: &Mirror) -> Result<(), CUresult> {
        let begin = Instant::now();
        while !mirror.orders_copies() {
            if let Some(_none_is_sent) = self.mirrors.copying.try_write_for(COPYING_PAUSE) {
                if !mirror.orders_copies.swap(true, Ordering::AcqRel) {
                    self.mirrors.ordered.fetch_add(1, Ordering::AcqRel);
                }
                return Ok(());
            }
            self.session.check()?;
            // A thread that sends may wait for the server, which waits until replies are read.
            self.session.poll();
            if begin.elapsed() > COPY_WAIT_MAX {
                log::warn(format_args!(
                    "work that first names pinned memory is refused: copies of other threads could not be sent in {} s",
                    COPY_WAIT_MAX.as_secs()
                ));
                return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
            }
        }
        Ok(())
    }

    /// Waits for copies into this memory that are under way: work that reads the mirror would miss
    /// them. A copy may itself wait for a later act of the calling thread, and never arrive; then
    /// the work is refused.
    fn wait_for_copies(&self, range: &HostRange) -> Result<(), CUresult> {
        let copies = self.session.copies_into(range.base, range.bytes, false);
        if self.wait_until_come(copies, COPY_WAIT_MAX) {
            return Ok(());
        }
        log::warn(format_args!(
            "work that first names pinned memory while a copy is on its way into it, which has not come in {} s, is not supported: a stream may wait for what comes later",
            COPY_WAIT_MAX.as_secs()
        ));
        Err(CUresult::CUDA_ERROR_NOT_SUPPORTED)
    }

    /// Waits for copies into this memory that other threads wait for, and that do not come in
    /// order: they could come after what kernels write later.
    fn wait_for_awaited_copies(&self, range: &HostRange) {
        let copies = self.session.copies_into(range.base, range.bytes, true);
        if !self.wait_until_come(copies, FOLLOWED_COPY_WAIT_MAX) {
            log::warn(format_args!(
                "a copy into pinned memory that another thread waits for may be written over what kernels write there later: it has not come in {} s",
                FOLLOWED_COPY_WAIT_MAX.as_secs()
            ));
        }
    }

    /// Waits until these copies have come. Returns false if they have not by then.
    pub(super) fn wait_until_come(&self, mut copies: Vec<u32>, time: Duration) -> bool {
        let begin = Instant::now();
        while !copies.is_empty() {
            if begin.elapsed() > time {
                return false;
            }
            self.session.poll();
            std::thread::yield_now();
            self.session.retain_expected(&mut copies);
        }
        true
    }

    /// Opens mirrors of private memory that these arguments point to. The caller sends the launch
    /// while it holds the result.
    ///
    /// `is_kept` means that the work may run again without naming its arguments again.
    #[cold]
    pub(crate) fn open_named(
        &self,
        params: &[u8],
        is_kept: bool,
    ) -> Result<Option<RwLockReadGuard<'_, ()>>, CUresult> {
        let mut naming = None;
        let mut last: Option<Arc<HostRange>> = None;
        for address in HostMemory::may_name_private(params) {
            // Arguments of 4 KiB may name one range 500 times.
            if last.as_ref().is_some_and(|range| range.contains(address)) {
                continue;
            }
            let Some(range) = self.private_range(address) else {
                continue;
            };
            last = Some(range.clone());
            if is_kept {
                self.make_visible(address)?;
                continue;
            }
            // Locked before the test whether the mirror is open, so that it is not closed
            // afterwards.
            naming.get_or_insert_with(|| self.mirrors.naming.read());
            let look = self.mirrors.looks.load(Ordering::Acquire);
            range.mirror.named(look, self.session.waits());
            match range.mirror.is_open() {
                true => self.wait_for_copies(&range)?,
                false => self.open_by_one(&range, false)?,
            }
        }
        Ok(naming)
    }

    /// Opens the mirror of a range, if it is closed, and waits for copies into it, on one thread at
    /// a time. The caller holds `naming`. If it `stays`, only the end of the memory closes it.
    fn open_by_one(&self, range: &Arc<HostRange>, stays: bool) -> Result<(), CUresult> {
        let mirror = &range.mirror;
        let Some(_one_at_a_time) = mirror.opening.try_lock_for(OPENING_WAIT_MAX) else {
            log::warn(format_args!(
                "work that names pinned memory is refused: another thread's work has been waiting for copies into it for {} s",
                OPENING_WAIT_MAX.as_secs()
            ));
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        };
        let opened = self.open_after_copies(range);
        // Not before: whoever sees that it stays open waits for no copy. Nobody closes it while the
        // caller holds `naming`.
        if stays && opened.is_ok() {
            mirror.stays.store(true, Ordering::Release);
        }
        if opened.is_err() && !mirror.is_open() {
            self.leave_copies_unordered(mirror);
        }
        opened
    }

    fn open_after_copies(&self, range: &Arc<HostRange>) -> Result<(), CUresult> {
        let mirror = &range.mirror;
        self.order_copies(mirror)?;
        if !mirror.is_open() {
            self.wait_for_awaited_copies(range);
        }
        self.wait_for_copies(range)?;
        match mirror.is_open() {
            true => Ok(()),
            false => self.open_mirror(range),
        }
    }

    fn open_mirror(&self, range: &Arc<HostRange>) -> Result<(), CUresult> {
        let mirror = &range.mirror;
        // The server maps whole pages; both sides leave the parts outside the range unused.
        let (start, end) = range.pages();
        if !range.is_variable() {
            self.map_on_server(start, end - start, range.flags, None)?;
        }
        // A new mirror contains zeros, and the server assumes the same of a variable.
        *mirror.server_bytes.lock() = vec![0; range.bytes as usize];
        if let Err(error) = self.watch_on_server(range.base, range.bytes) {
            *mirror.server_bytes.lock() = Vec::new();
            return match range.is_variable() {
                true => Err(error),
                false => self.unmap_on_server(start).and(Err(error)),
            };
        }
        // This process does not see other processes' writes to shared memory as written pages.
        let is_tracked = tracker().is_some_and(|tracker| {
            range.bytes > COMPARED_BYTES
                && !(range.is_registered() && outboard_pages::is_shared(start, end))
                && tracker.watch(start, end).is_ok()
                && tracker.take_written(start, end, &mut |_, _| ()).is_ok()
        });
        mirror.is_tracked.store(is_tracked, Ordering::Release);
        let mut open = self.mirrors.open.lock();
        open.add(range.clone());
        // Earlier contents are compared at the next look.
        open.written.push((start, end));
        // Counted first: a launch that sees it open must also see that there are mirrors to look
        // at.
        self.mirrors.count.fetch_add(1, Ordering::AcqRel);
        mirror.is_open.store(true, Ordering::Release);
        self.mirrors.figures.opened.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Closes the mirror of a range, if it is open. The memory is no longer read after this
    /// returns.
    pub(super) fn close_mirror(&self, range: &Arc<HostRange>) -> Result<(), CUresult> {
        let mut open = self.mirrors.open.lock();
        if !open.held.is_empty() {
            // An error is that of the launches, and is told as theirs.
            let _ = self.look(&mut open, false);
        }
        match range.mirror.is_open() {
            true => self.close_in(&mut open, range),
            false => {
                self.leave_copies_unordered(&range.mirror);
                Ok(())
            }
        }
    }

    fn leave_copies_unordered(&self, mirror: &Mirror) {
        if mirror.orders_copies.swap(false, Ordering::AcqRel) {
            self.mirrors.ordered.fetch_sub(1, Ordering::AcqRel);
        }
    }

    fn close_in(&self, open: &mut OpenMirrors, range: &Arc<HostRange>) -> Result<(), CUresult> {
        open.remove(range);
        open.controls.forget((range.base, range.base + range.bytes));
        let mirror = &range.mirror;
        mirror.is_open.store(false, Ordering::Release);
        self.leave_copies_unordered(mirror);
        self.mirrors.count.fetch_sub(1, Ordering::AcqRel);
        self.mirrors.figures.closed.fetch_add(1, Ordering::Relaxed);
        let (start, end) = range.pages();
        if mirror.is_tracked.swap(false, Ordering::AcqRel)
            && let Some(tracker) = tracker()
        {
            tracker.forget(start, end);
        }
        *mirror.server_bytes.lock() = Vec::new();
        match range.is_variable() {
            true => Ok(()),
            false => self.unmap_on_server(start),
        }
    }

    #[inline]
    pub(crate) fn has_mirrors(&self) -> bool {
        self.mirrors.count.load(Ordering::Acquire) > 0
    }

    /// Updates mirrors, before work that may read them.
    #[inline]
    pub(crate) fn push_visible(&self) -> Result<(), CUresult> {
        // The last mirror may be closed before the launches that were held are sent.
        match self.has_mirrors() || conditions::are_held() {
            true => self.push_written(true),
            false => Ok(()),
        }
    }

    /// Updates mirrors before a wait or a query: a kernel may be waiting for the program's word.
    /// That has been done if the call began with a look.
    pub(crate) fn push_before_wait(&self) -> Result<(), CUresult> {
        if !thread::here().has_looked.take() {
            return self.push_visible();
        }
        let look = self.mirrors.looks.load(Ordering::Acquire);
        match self.mirrors.are_lent.load(Ordering::Acquire) {
            true => self.push_visible(),
            false => self.close_unnamed(&mut self.mirrors.open.lock(), look, true),
        }
    }

    /// Updates mirrors before work in a stream that may reach any of them by pointers in the GPU's
    /// memory: what copies before it in the stream bring to the program is part of them.
    #[inline]
    pub(crate) fn push_for_work(&self, stream: &StreamRef) -> Result<(), CUresult> {
        if !self.has_mirrors() && !conditions::are_held() {
            return Ok(());
        }
        if self.session.is_receiving() && !stream.is_capturing() {
            self.wait_for_copies_before(stream);
        }
        self.push_written(false)
    }

    /// Waits for copies into mirrors that are under way now and that work in this stream may come
    /// after. A copy may itself wait for a later act of the calling thread: the wait has a bound,
    /// and no copy is waited for again.
    #[cold]
    fn wait_for_copies_before(&self, stream: &StreamRef) {
        let mut copies = self.session.copies_into_mirrors(|of| stream.may_follow(of));
        let begin = Instant::now();
        let doubted = self.mirrors.doubts.lock().among(&copies);
        let is_late = |(_, of): &mut MirrorCopy| {
            let bound = match doubted.contains(of) {
                true => DOUBTED_COPY_WAIT_MAX,
                false => FOLLOWED_COPY_WAIT_MAX,
            };
            begin.elapsed() > bound
        };
        let mut missed = FxHashSet::default();
        while !copies.is_empty() {
            self.session.poll();
            let arrived = self.session.take_arrived(&mut copies);
            if !arrived.is_empty() {
                let mut doubts = self.mirrors.doubts.lock();
                arrived.iter().for_each(|(_, of)| doubts.has_come(*of));
            }
            let late: Vec<_> = copies.extract_if(.., is_late).collect();
            self.session.give_up(&late);
            missed.extend(late.into_iter().map(|(_, of)| of));
            std::thread::yield_now();
        }
        for of in missed {
            self.missed(of, doubted.contains(&of));
        }
    }

    /// Notes that a launch has gone on without copies of a stream, and says so at powers of two.
    fn missed(&self, of: u64, was_doubted: bool) {
        let mut doubts = self.mirrors.doubts.lock();
        doubts.has_not_come(of, was_doubted);
        doubts.missed += 1;
        let missed = doubts.missed;
        drop(doubts);
        if missed.is_power_of_two() {
            log::warn(format_args!(
                "a kernel that reads pinned memory by a pointer in the GPU's memory may miss a copy into it, which has not come in {} ms ({missed} such launches); after one of {} s later ones of the stream are mostly waited for for {} ms, until one comes in that time",
                match was_doubted {
                    true => DOUBTED_COPY_WAIT_MAX.as_millis(),
                    false => FOLLOWED_COPY_WAIT_MAX.as_millis(),
                },
                FOLLOWED_COPY_WAIT_MAX.as_secs(),
                DOUBTED_COPY_WAIT_MAX.as_millis()
            ));
        }
    }

    /// `may_ask` unless this is for a launch: its own work would follow the question.
    #[cold]
    fn push_written(&self, may_ask: bool) -> Result<(), CUresult> {
        let mut open = self.mirrors.open.lock();
        open.is_looked_at_by_this_thread();
        self.look(&mut open, may_ask)
    }

    /// Sends the program's changes, and the launches that are held back until then.
    pub(super) fn look(&self, open: &mut OpenMirrors, may_ask: bool) -> Result<(), CUresult> {
        let begin = Instant::now();
        let pushed = self.push_all(open, may_ask);
        // Adapters see all of it, or what was there before.
        if std::mem::take(&mut open.is_holding) {
            self.submit(&messages::NetHold { held: 0 })?;
        }
        match pushed {
            Ok(()) => {
                open.held.looked(begin);
                self.send_after_look(open)
            }
            Err(error) => {
                self.refuse_held(open, error);
                Err(error)
            }
        }
    }

    fn push_all(&self, open: &mut OpenMirrors, may_ask: bool) -> Result<(), CUresult> {
        let look = self.mirrors.looks.fetch_add(1, Ordering::AcqRel) + 1;
        // While kernels or adapters may be writing, only the words that the program itself changed
        // may be sent. A launch of another thread may be sent at any time after its own look.
        let are_lent = self.mirrors.are_lent.load(Ordering::Acquire);
        let is_idle = self.session.progress.is_idle() && !are_lent;
        let is_alone = is_idle && !open.are_several;
        if are_lent {
            self.submit(&messages::NetHold { held: 1 })?;
            open.is_holding = true;
        }
        if !are_lent {
            self.close_unnamed(open, look, may_ask)?;
        }
        // An error of one piece of memory keeps no other back.
        let mut pushed = self.push_controls(open);
        open.find_written(&mut self.mirrors.written_by_adapter.lock());
        open.controls.set_aside(&mut open.written);
        let is_tracked = |range: &HostRange| range.mirror.is_tracked.load(Ordering::Acquire);
        for range in open.ranges.iter().filter(|range| !is_tracked(range)) {
            for (from, to) in open.controls.around(range.run()) {
                pushed = pushed.and(self.push_part(range, from, to, !is_alone, &mut open.buffer));
            }
        }
        for part in &open.written {
            let touched = touched(&open.ranges, *part, |range| range.run());
            for range in touched.iter().filter(|range| is_tracked(range)) {
                if let Some((from, to)) = within(*part, range.run()) {
                    pushed =
                        pushed.and(self.push_part(range, from, to, !is_alone, &mut open.buffer));
                }
            }
        }
        open.written.clear();
        pushed
    }

    /// Sends what the program has changed in pages with the doorbells of queues, before anything
    /// else is looked for: whatever another thread wrote before a doorbell that is read here is
    /// found after it.
    fn push_controls(&self, open: &mut OpenMirrors) -> Result<(), CUresult> {
        let mut pushed = Ok(());
        for at in open.controls.take_written(&open.ranges, tracker()) {
            let found = open.ranges.iter().find(|range| range.contains(at.0));
            if let Some(range) = found {
                let whole = (range.base, range.base + range.bytes);
                if let Some((from, to)) = within(at, whole) {
                    pushed = pushed.and(self.push_part(range, from, to, true, &mut open.buffer));
                }
            }
        }
        pushed
    }

    /// Closes mirrors that no launch has named for a long time. All work is done, so nothing
    /// written is lost.
    fn close_unnamed(
        &self,
        open: &mut OpenMirrors,
        look: u64,
        may_ask: bool,
    ) -> Result<(), CUresult> {
        let waits = self.session.waits();
        let is_unnamed = |range: &Arc<HostRange>| range.mirror.is_unnamed(look, waits);
        if !open.ranges.iter().any(is_unnamed) || !self.is_at_rest(may_ask, waits) {
            return Ok(());
        }
        // A launch that is being sent may have named one just now.
        let Some(_no_launch) = self.mirrors.naming.try_write() else {
            return Ok(());
        };
        let unnamed: Vec<_> = open
            .ranges
            .iter()
            .filter(|r| is_unnamed(r))
            .cloned()
            .collect();
        for range in unnamed {
            log::debug(format_args!(
                "host memory at {:#x} has been named by no launch for long: kernels reach it no more until one names it",
                range.base
            ));
            self.close_in(open, &range)?;
        }
        Ok(())
    }

    /// Sends the program's changes in `[from, to)`.
    fn push_part(
        &self,
        range: &HostRange,
        from: u64,
        to: u64,
        exact: bool,
        buffer: &mut Vec<u8>,
    ) -> Result<(), CUresult> {
        buffer.resize(PIECE_BYTES, 0);
        let figures = &self.mirrors.figures;
        let mut at = from;
        while at < to {
            // Pieces end at page borders, so that an unmapped page costs only itself.
            let piece_end = to.min((at / PAGE_BYTES * PAGE_BYTES) + PIECE_BYTES as u64);
            let wanted = (piece_end - at) as usize;
            let start = (at - range.base) as usize;
            let read = |out: &mut [u8]| range.read(start as u64, out);
            let buffer = &mut buffer[..wanted];
            let taken = range.mirror.take_changes(start, buffer, exact, read);
            let (got, changes) = taken.map_err(unreadable)?;
            let now = &buffer[..got];
            for (offset, len) in changes {
                let written = messages::HostWrite {
                    va: at + offset as u64,
                    data: &now[offset..offset + len],
                };
                if let Err(error) = self.submit(&written) {
                    range.mirror.forget(start, now);
                    return Err(error);
                }
                figures.sent_bytes.fetch_add(len as u64, Ordering::Relaxed);
            }
            figures
                .compared_bytes
                .fetch_add(got as u64, Ordering::Relaxed);
            // Memory that the program has unmapped is skipped.
            at = match got == wanted {
                true => piece_end,
                false => pages_around(at + got as u64, 1).1,
            };
        }
        Ok(())
    }
}

impl OpenMirrors {
    fn add(&mut self, range: Arc<HostRange>) {
        let at = self.ranges.partition_point(|other| other.base < range.base);
        self.ranges.insert(at, range);
    }

    fn remove(&mut self, range: &Arc<HostRange>) {
        let from = self.ranges.partition_point(|other| other.base < range.base);
        let mut others = self.ranges[from..].iter();
        if let Some(at) = others.position(|other| Arc::ptr_eq(other, range)) {
            self.ranges.remove(from + at);
        }
    }

    pub(super) fn has_any(&self) -> bool {
        !self.ranges.is_empty()
    }

    pub(super) fn is_looked_at_by_this_thread(&mut self) {
        // SAFETY: asks nothing of the caller.
        let this = unsafe { libc::pthread_self() };
        self.are_several |= *self.first.get_or_insert(this) != this;
    }

    /// Finds the pages written since the last look: those of adapters, and those that the kernel
    /// reports.
    fn find_written(&mut self, by_adapter: &mut Vec<(u64, u64)>) {
        self.written.append(by_adapter);
        let Some(tracker) = tracker() else { return };
        for range in &self.ranges {
            let mirror = &range.mirror;
            if !mirror.is_tracked.load(Ordering::Acquire) {
                continue;
            }
            let (start, end) = range.pages();
            let written = &mut self.written;
            if tracker
                .take_written(start, end, &mut |from, to| written.push((from, to)))
                .is_err()
            {
                // The program has mapped other memory there, or closed the library's descriptors.
                written.push((start, end));
                let again = tracker.watch(start, end).is_ok();
                mirror.is_tracked.store(again, Ordering::Release);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// One slow copy costs one launch its bytes; a stream whose copies are always held costs few
    /// long waits.
    #[test]
    fn a_stream_is_waited_for_at_length_again() {
        let mut doubts = Doubts::default();
        let wait = |doubts: &mut Doubts| {
            let is_short = doubts.among(&[(1, 7), (2, 8)]).contains(&7);
            doubts.has_not_come(7, is_short);
            !is_short
        };
        let long: Vec<usize> = (0..1400).filter(|_| wait(&mut doubts)).collect();
        assert_eq!(long, [0, 2, 7, 24, 89, 346, 1371]);
        assert!(doubts.among(&[(1, 7)]).contains(&7));
        doubts.has_come(7);
        assert!(doubts.among(&[(1, 7)]).is_empty());
        assert!(wait(&mut doubts) && !wait(&mut doubts) && wait(&mut doubts));
    }

    #[test]
    fn ranges_of_a_written_part_are_found_without_a_look_at_the_others() {
        const COUNT: u64 = 10_000;
        let ranges: Vec<_> = (0..COUNT).map(|n| (n * 100, n * 100 + 60)).collect();
        let looks = Cell::new(0);
        let of = |part| {
            let run_of = |range: &(u64, u64)| {
                looks.set(looks.get() + 1);
                *range
            };
            touched(&ranges, part, run_of)
        };
        for n in 0..COUNT {
            assert_eq!(of((n * 100 + 59, n * 100 + 100)), [ranges[n as usize]]);
        }
        assert!(looks.get() <= 30 * COUNT, "{} looks", looks.get());
        assert_eq!(of((60, 100)), []);
        assert_eq!(*of((59, 201)), ranges[..3]);
        assert_eq!(of((COUNT * 100, COUNT * 200)), []);
    }
}
