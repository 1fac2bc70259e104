//! Mirrors: the server's copies of host memory that the GPU uses, at the same addresses.
//!
//! A mirror is opened when work first names the memory, or when the program asks for its device
//! pointer. Before work that may read mirrors, the client sends the bytes that the program changed.
//! Before it answers a wait, the server sends the bytes that kernels changed. The client keeps a
//! copy of the server's bytes, `server_bytes`, to find changes (`exchange.rs`).
//!
//! A mirror that was opened only because a kernel's argument points into the memory is closed again
//! when work stops naming it: the argument may have been a stale pointer. A kernel that still uses
//! the memory, through a pointer of its own, then gets an illegal address.
//!
//! Copies from the device into mirrored memory come in the order of the work (`mirror_copies.rs`).
//! Where looks take long, launches that follow each other closely share one (`held.rs`).
//!
//! Lock order: `naming`, a mirror's `opening`, `copying`, `open`, `questions`, a mirror's
//! `server_bytes`, the session's sender. A thread that holds `copying` shared takes the table of
//! host memory and locks of the session, and waits for the link at most. None who holds these waits
//! for `copying`.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use outboard_api::CUresult;
use outboard_pages::Tracker;
use outboard_wire::doc::NET_CONTROL_BYTES;
use parking_lot::{Condvar, Mutex, RwLock, RwLockReadGuard};

use super::{
    Driver,
    controls::Controls,
    held::Held,
    host_memory::{HostMemory, HostRange},
    mirror_copies::Doubts,
    reading::Reading,
    rest::Questions,
};
use crate::log;

/// Length up to which memory is compared at each look. To ask the kernel which of its pages were
/// written takes 2 us, and the program's first write to each page more.
const COMPARED_BYTES: u64 = 4096;

/// Time limit for a thread to wait for another that opens the same mirror.
const OPENING_WAIT_MAX: Duration = Duration::from_secs(120);

/// All mirrors of the session.
#[derive(Default)]
pub(crate) struct Mirrors {
    /// Locked shared from the moment a launch names memory until it is sent; exclusively while
    /// mirrors are closed.
    pub(super) naming: RwLock<()>,
    /// Locked from a look for changes until they are sent, so that no later launch overtakes them.
    pub(super) open: Mutex<OpenMirrors>,
    /// Wakes the thread that sends launches which are held for too long.
    pub(super) wake: Condvar,
    pub(super) count: AtomicUsize,
    /// Locked shared by a copy from the device, from the moment it decides how it comes until it is
    /// sent; exclusively while that changes.
    pub(super) copying: RwLock<()>,
    /// Number of mirrors that are open, or were to be opened: copies into them come in order.
    pub(super) ordered: AtomicUsize,
    /// Number of looks, and of launches that were held back until one.
    pub(super) looks: AtomicU64,
    pub(super) figures: Figures,
    /// Memory that adapters have written since the last look: the kernel does not report it.
    pub(super) written_by_adapter: Mutex<Vec<(u64, u64)>>,
    /// The server's adapters use mirrors at any time.
    pub(super) are_lent: AtomicBool,
    /// Streams whose last copy into a mirror did not come while a launch waited for it.
    pub(super) doubts: Mutex<Doubts>,
    /// Questions for mirrors that may be closed when all work is done.
    pub(super) questions: Mutex<Questions>,
}

#[derive(Default)]
pub(super) struct OpenMirrors {
    /// In the order of their addresses; they are disjoint.
    pub(super) ranges: Vec<Arc<HostRange>>,
    /// The server's adapters look at nothing until this look is over.
    pub(super) is_holding: bool,
    /// Runs of pages written since the last look, by any thread.
    pub(super) written: Vec<(u64, u64)>,
    pub(super) controls: Controls,
    /// The thread that looked first.
    first: Option<libc::pthread_t>,
    pub(super) are_several: bool,
    pub(super) reading: Reading,
    pub(super) held: Held,
}

/// Costs of mirrors so far.
#[derive(Default)]
pub(super) struct Figures {
    pub(super) compared_bytes: AtomicU64,
    pub(super) sent_bytes: AtomicU64,
    /// Copies to the device that the server made from mirrors.
    copied_bytes: AtomicU64,
    /// Messages with bytes that kernels wrote.
    pub(super) received: AtomicU64,
    pub(super) received_bytes: AtomicU64,
    opened: AtomicU64,
    closed: AtomicU64,
    held: AtomicU64,
}

pub(super) fn tracker() -> Option<&'static Tracker> {
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

impl Mirrors {
    /// Returns the names and values for `OUTBOARD_STATS`; `None` if there was no mirror.
    pub(crate) fn figures(&self) -> Option<[(&'static str, u64); 10]> {
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
                ("copied_bytes", of(&figures.copied_bytes)),
                ("received", of(&figures.received)),
                ("received_bytes", of(&figures.received_bytes)),
            ]
        })
    }

    /// Counts a copy to the device that carries no bytes.
    pub(super) fn copied(&self, bytes: u64) {
        self.figures
            .copied_bytes
            .fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts a launch that is held back until a look.
    pub(super) fn holds(&self) {
        // First here, so that there are never more than looks.
        self.looks.fetch_add(1, Ordering::AcqRel);
        self.figures.held.fetch_add(1, Ordering::Relaxed);
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
            true => {
                if !self.session.progress.is_idle() {
                    open.is_looked_at_by_this_thread();
                    self.push_last(&mut open, range);
                }
                self.close_in(&mut open, range)
            }
            false => {
                self.leave_copies_unordered(&range.mirror);
                Ok(())
            }
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

    /// Closes mirrors that no launch has named for a long time. All work is done, so nothing
    /// written is lost.
    pub(super) fn close_unnamed(
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
}
