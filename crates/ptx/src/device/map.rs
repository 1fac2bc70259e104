//! The memory map, which changes in the order of calls although work that uses it is still running.
//!
//! Running work keeps its memory: an unmapped range is removed from the map at once, but its memory
//! is released only when everything submitted before is done. A new mapping over such a range waits
//! for that too, and all later work waits for the mapping.

use super::{
    error::Error,
    physical::Physical,
    schedule::{State, TaskId},
    work::{Extent, Mapping, Op, Rows, Work},
};
use crate::memory::{MemoryError, PAGE_BYTES};

/// A range whose memory is released when the task is done.
pub(super) struct Deferred {
    start: u64,
    end: u64,
    task: TaskId,
}

impl State {
    /// Maps memory to a range of the window.
    pub(super) fn map(
        &mut self,
        address: u64,
        bytes: u64,
        backing: Option<(Physical, u64)>,
    ) -> Result<(), Error> {
        let (base, _) = self.memory.window();
        let window_end = base + self.memory.mappable_bytes();
        let end = address
            .checked_add(bytes)
            .and_then(|end| end.checked_next_multiple_of(PAGE_BYTES))
            .filter(|end| address >= base && *end <= window_end && bytes > 0)
            .filter(|_| address.is_multiple_of(PAGE_BYTES))
            .ok_or_else(|| invalid(MemoryError::BadRange { address, bytes }))?;
        if self.overlaps(address, end) {
            return Err(invalid(MemoryError::Overlap { address, bytes }));
        }
        let mapping = Mapping {
            address,
            bytes,
            backing,
        };
        let mut waits: Vec<TaskId> = self.barrier.into_iter().collect();
        let mut deferred = std::mem::take(&mut self.deferred);
        deferred.retain(|d| self.is_live(d.task));
        self.deferred = deferred;
        let deferred = self
            .deferred
            .iter()
            .filter(|d| d.start < end && d.end > address);
        waits.extend(deferred.map(|d| d.task));
        if waits.is_empty() {
            mapping.apply(&self.memory).map_err(invalid)?;
        } else {
            let task = self.add(None, i32::MIN, &waits, Work::Map(mapping));
            self.barrier = Some(task).filter(|task| self.is_live(*task));
        }
        self.mapped.insert(address, address + bytes);
        Ok(())
    }

    /// Replaces a mapped range's memory by memory that other processes can map too. Returns `None`
    /// while running work may use the range.
    pub(super) fn share(&mut self, address: u64) -> Result<Option<Physical>, Error> {
        let (base, _) = self.memory.window();
        let window_end = base + self.memory.mappable_bytes();
        let end = *self
            .mapped
            .get(&address)
            .filter(|end| address >= base && **end <= window_end)
            .ok_or_else(|| invalid(MemoryError::NotMapped { address }))?;
        let barrier = self.barrier.is_some_and(|task| self.is_live(task));
        if barrier || !self.all_tails().is_empty() {
            return Ok(None);
        }
        let bytes = end - address;
        if !bytes.is_multiple_of(PAGE_BYTES) {
            return Err(Error::Unsupported(
                "sharing memory that is no whole pages".into(),
            ));
        }
        Physical::replace(&self.memory, address, bytes).map(Some)
    }

    /// Unmaps the range of [`State::map`] that starts at `address`; returns its length.
    pub(super) fn unmap(&mut self, address: u64) -> Result<u64, Error> {
        let (base, len) = self.memory.window();
        let end = *self
            .mapped
            .get(&address)
            .filter(|_| address >= base && address < base + len)
            .ok_or_else(|| invalid(MemoryError::NotMapped { address }))?;
        self.mapped.remove(&address);
        let tails = self.all_tails();
        if tails.is_empty() {
            self.memory.unmap(address).map_err(invalid)?;
        } else {
            let task = self.add(None, i32::MIN, &tails, Work::Unmap(address));
            let end = end.next_multiple_of(PAGE_BYTES);
            self.deferred.push(Deferred {
                start: address,
                end,
                task,
            });
        }
        Ok(end - address)
    }

    /// Unmaps all ranges inside `[address, address + bytes)`, which they must fill.
    pub(super) fn unmap_all(&mut self, address: u64, bytes: u64) -> Result<(), Error> {
        let end = address.saturating_add(bytes);
        let mut at = address;
        let mut starts = Vec::new();
        for (start, range_end) in self.mapped.range(address..end) {
            if *start != at || *range_end > end {
                break;
            }
            starts.push(*start);
            at = *range_end;
        }
        if at != end || starts.is_empty() {
            return Err(invalid(MemoryError::NotMapped { address: at }));
        }
        for start in starts {
            self.unmap(start)?;
        }
        Ok(())
    }

    /// Lets device work use memory of the host.
    ///
    /// # Safety
    /// The memory must stay readable and writable until after `unregister_host`, and until
    /// everything submitted before it is done.
    pub(super) unsafe fn register_host(&mut self, address: u64, bytes: u64) -> Result<(), Error> {
        // SAFETY: the caller fulfils the same contract.
        unsafe { self.memory.register_host(address, bytes) }.map_err(invalid)?;
        self.mapped.insert(address, address + bytes);
        Ok(())
    }

    pub(super) fn unregister_host(&mut self, address: u64) -> Result<u64, Error> {
        let end = *self
            .mapped
            .get(&address)
            .ok_or_else(|| invalid(MemoryError::NotMapped { address }))?;
        self.memory.unregister_host(address).map_err(invalid)?;
        self.mapped.remove(&address);
        Ok(end - address)
    }

    /// Whether a mapped range overlaps. Ranges of the window own their last page whole.
    fn overlaps(&self, start: u64, end: u64) -> bool {
        let before = self.mapped.range(..end).next_back();
        before.is_some_and(|(_, range_end)| range_end.next_multiple_of(PAGE_BYTES) > start)
    }

    /// Returns the range of the window that holds all of these bytes, if its memory is mapped
    /// already: a range that replaces another may have to wait for that one's work.
    pub(super) fn lasting(&self, address: u64, bytes: u64) -> Option<(u64, u64)> {
        let (base, _) = self.memory.window();
        let window_end = base + self.memory.mappable_bytes();
        let (start, range_end) = self.mapped.range(..=address).next_back()?;
        let is_inside = *start >= base
            && *range_end <= window_end
            && address
                .checked_add(bytes)
                .is_some_and(|end| end <= *range_end);
        let is_to_come = self.barrier.is_some_and(|task| self.is_live(task))
            || self
                .deferred
                .iter()
                .any(|d| d.start < *range_end && d.end > *start && self.is_live(d.task));
        (is_inside && !is_to_come).then(|| (*start, range_end - start))
    }

    /// Refuses an operation on unmapped memory, as the driver does at the call.
    pub(super) fn check(&self, op: &Op) -> Result<(), Error> {
        match op {
            Op::Copy(copy) => {
                self.check_span(copy.dst, copy.extent)?;
                self.check_span(copy.src, copy.extent)
            }
            Op::Set(set) => {
                let (rows, extent) = set.rows()?;
                self.check_span(rows, extent)
            }
            Op::Value(op) => {
                if !op.address.is_multiple_of(op.bytes()) {
                    return Err(Error::InvalidValue(format!(
                        "{:#x} is not a multiple of {} bytes",
                        op.address,
                        op.bytes()
                    )));
                }
                self.check_span(Rows::line(op.address), Extent::line(op.bytes()))
            }
            Op::Batch(ops) => ops.iter().try_for_each(|op| self.check(&Op::Value(*op))),
            Op::RecordEvent(event) | Op::WaitEvent(event) => self.event(*event).map(|_| ()),
            Op::Conditional(c) => self.check_span(Rows::line(c.word), Extent::line(4)),
            Op::Launch(_) | Op::Host(_) | Op::Empty | Op::Child(_) => Ok(()),
        }
    }

    pub(super) fn check_span(&self, rows: Rows, extent: Extent) -> Result<(), Error> {
        let (start, len) = rows.span(extent)?;
        if self.covers(start, len) {
            return Ok(());
        }
        Err(Error::InvalidValue(format!(
            "{len} bytes at {start:#x} are not all device memory or mapped host memory"
        )))
    }

    /// Whether all of `[start, start + len)` is mapped, by one range or adjoining ones.
    fn covers(&self, start: u64, len: u64) -> bool {
        let end = start.saturating_add(len);
        let mut at = start;
        while at < end {
            match self.mapped.range(..=at).next_back() {
                Some((_, range_end)) if *range_end > at => at = *range_end,
                _ => return self.is_module_variable(start, len),
            }
        }
        true
    }

    /// Whether the range is a module's variables. They lie after the part of the window that calls
    /// map, and only the engine knows them.
    fn is_module_variable(&self, start: u64, len: u64) -> bool {
        let (base, _) = self.memory.window();
        start >= base + self.memory.mappable_bytes() && self.memory.is_mapped(start, len)
    }
}

fn invalid(error: MemoryError) -> Error {
    Error::InvalidValue(error.to_string())
}
