//! Changes of mirrors: what the program changed is sent before work that may read it, and what
//! kernels changed is merged when it comes.
//!
//! ```text
//!  program writes ──► page is marked ──► scan before a launch ──► compared ──► HostWrite
//!                     by the kernel        └─ no page marked:     with server_bytes
//!                                             nothing is compared or sent
//!  HostPages, HostRuns ──► server_bytes, program's memory
//! ```

use std::{io, sync::atomic::Ordering, time::Instant};

use outboard_api::CUresult;
use outboard_pages::{PAGE_BYTES, pages_around};
use outboard_wire::{messages, runs::Runs};
use parking_lot::MutexGuard;

use super::{
    Driver, StreamRef,
    controls::within,
    host_memory::{HostMemory, HostRange, Writer},
    mirrors::{Mirrors, OpenMirrors, tracker},
    reading::Reading,
};
use crate::{log, observe::conditions, thread};

/// Most bytes compared at a time, and carried by one message.
const PIECE_BYTES: usize = 64 << 10;

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
    /// Updates mirrors, before work that may read them.
    #[inline]
    pub(crate) fn push_visible(&self) -> Result<(), CUresult> {
        // The last mirror may be closed before the launches that were held are sent.
        match self.has_mirrors() || conditions::are_held() {
            true => self.push_written(true),
            false => Ok(()),
        }
    }

    /// Updates mirrors before a wait, a query, or a copy from the device: a kernel may be waiting
    /// for the program's word.
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
            self.submit_in(0, &messages::NetHold { held: 0 })?;
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

    /// Returns whether nobody else writes to mirrors, so that whole pages may be sent.
    pub(super) fn is_alone(&self, open: &OpenMirrors) -> bool {
        let are_lent = self.mirrors.are_lent.load(Ordering::Acquire);
        self.session.progress.is_idle() && !are_lent && !open.are_several
    }

    fn push_all(&self, open: &mut OpenMirrors, may_ask: bool) -> Result<(), CUresult> {
        let look = self.mirrors.looks.fetch_add(1, Ordering::AcqRel) + 1;
        // While kernels or adapters may be writing, only the words that the program itself changed
        // may be sent. A launch of another thread may be sent at any time after its own look.
        let are_lent = self.mirrors.are_lent.load(Ordering::Acquire);
        let is_alone = self.is_alone(open);
        if are_lent {
            self.submit_in(0, &messages::NetHold { held: 1 })?;
            open.is_holding = true;
        }
        if !are_lent {
            self.close_unnamed(open, look, may_ask)?;
        }
        let mut unread = open.reading.take_unread();
        open.controls.set_aside(&mut unread);
        open.written.append(&mut unread);
        // An error of one piece of memory keeps no other back.
        let mut pushed = self.push_controls(open);
        open.find_written(&mut self.mirrors.written_by_adapter.lock());
        open.controls.set_aside(&mut open.written);
        let is_tracked = |range: &HostRange| range.mirror.is_tracked.load(Ordering::Acquire);
        for range in open.ranges.iter().filter(|range| !is_tracked(range)) {
            for (from, to) in open.controls.around(range.run()) {
                pushed = pushed.and(self.push_part(range, from, to, !is_alone, &mut open.reading));
            }
        }
        for part in &open.written {
            let touched = touched(&open.ranges, *part, |range| range.run());
            for range in touched.iter().filter(|range| is_tracked(range)) {
                if let Some((from, to)) = within(*part, range.run()) {
                    pushed =
                        pushed.and(self.push_part(range, from, to, !is_alone, &mut open.reading));
                }
            }
        }
        open.written.clear();
        pushed
    }

    /// Sends the program's changes in these pages of a mirror, all of which are compared. No look
    /// compares them again until they are written. Returns false if some cannot be read.
    pub(super) fn push_whole(
        &self,
        open: &mut OpenMirrors,
        range: &HostRange,
        part: (u64, u64),
        exact: bool,
    ) -> Result<bool, CUresult> {
        let (base, end) = range.run();
        // A page that other memory has a part of keeps its mark.
        let own = (
            base.next_multiple_of(PAGE_BYTES),
            end / PAGE_BYTES * PAGE_BYTES,
        );
        if let Some(own) = within(part, own) {
            let mut written = Vec::new();
            find_written_in(range, own, &mut written);
            written.retain(|run| run.0 < own.0 || run.1 > own.1);
            open.written.append(&mut written);
        }
        match within(part, range.run()) {
            Some((from, to)) => self.push_read(range, from, to, exact, &mut open.reading),
            None => Ok(true),
        }
    }

    /// Sends the program's changes in a mirror that is about to be closed: work under way may wait
    /// for one.
    pub(super) fn push_last(&self, open: &mut OpenMirrors, range: &HostRange) {
        open.written.append(&mut open.reading.take_unread());
        find_written_in(range, range.pages(), &mut open.written);
        let runs = match range.mirror.is_tracked.load(Ordering::Acquire) {
            true => open.written.clone(),
            false => vec![range.run()],
        };
        for (from, to) in runs.into_iter().filter_map(|run| within(run, range.run())) {
            // No work is refused: what is lost with the session is lost anyway.
            let _ = self.push_part(range, from, to, true, &mut open.reading);
        }
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
                    pushed = pushed.and(self.push_part(range, from, to, true, &mut open.reading));
                }
            }
        }
        pushed
    }

    /// Sends the program's changes in `[from, to)`, where that can be read.
    fn push_part(
        &self,
        range: &HostRange,
        from: u64,
        to: u64,
        exact: bool,
        reading: &mut Reading,
    ) -> Result<(), CUresult> {
        self.push_read(range, from, to, exact, reading).map(drop)
    }

    /// Sends the program's changes in `[from, to)`. Returns false if some of it cannot be read.
    fn push_read(
        &self,
        range: &HostRange,
        from: u64,
        to: u64,
        exact: bool,
        reading: &mut Reading,
    ) -> Result<bool, CUresult> {
        let mut is_whole = true;
        reading.buffer.resize(PIECE_BYTES, 0);
        let figures = &self.mirrors.figures;
        let mut at = from;
        while at < to {
            // Pieces end at page borders, so that an unmapped page costs only itself.
            let piece_end = to.min((at / PAGE_BYTES * PAGE_BYTES) + PIECE_BYTES as u64);
            let wanted = (piece_end - at) as usize;
            let start = (at - range.base) as usize;
            let read = |out: &mut [u8]| range.read(start as u64, out);
            let buffer = &mut reading.buffer[..wanted];
            let taken = range.mirror.take_changes(start, buffer, exact, read);
            let (got, changes) = taken.map_err(unreadable)?;
            let now = &buffer[..got];
            for (offset, len) in changes {
                let written = messages::HostWrite {
                    va: at + offset as u64,
                    data: &now[offset..offset + len],
                };
                // A mirror is of no context: it changes whatever context of the caller's is lost.
                if let Err(error) = self.submit_in(0, &written) {
                    range.mirror.forget(start, now);
                    return Err(error);
                }
                figures.sent_bytes.fetch_add(len as u64, Ordering::Relaxed);
            }
            figures
                .compared_bytes
                .fetch_add(got as u64, Ordering::Relaxed);
            at = match got == wanted {
                true => piece_end,
                false => {
                    is_whole = false;
                    let is_tracked = range.mirror.is_tracked.load(Ordering::Acquire);
                    reading.pass(is_tracked, at + got as u64, to)
                }
            };
        }
        Ok(is_whole)
    }
}

impl OpenMirrors {
    /// Finds the pages written since the last look: those of adapters, and those that the kernel
    /// reports.
    fn find_written(&mut self, by_adapter: &mut Vec<(u64, u64)>) {
        self.written.append(by_adapter);
        for range in &self.ranges {
            find_written_in(range, range.pages(), &mut self.written);
        }
    }
}

/// Adds the pages of a part of a mirror that the kernel reports as written since the last time, or
/// all of the mirror if it cannot tell.
fn find_written_in(range: &HostRange, part: (u64, u64), written: &mut Vec<(u64, u64)>) {
    let mirror = &range.mirror;
    let Some(tracker) = tracker().filter(|_| mirror.is_tracked.load(Ordering::Acquire)) else {
        return;
    };
    let taken = tracker.take_written(part.0, part.1, &mut |from, to| written.push((from, to)));
    if taken.is_err() {
        // The program has mapped other memory there, or closed the library's descriptors.
        let (start, end) = range.pages();
        written.push((start, end));
        let again = tracker.watch(start, end).is_ok();
        mirror.is_tracked.store(again, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

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
