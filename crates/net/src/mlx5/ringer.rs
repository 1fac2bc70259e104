//! The doorbell of an adapter that a thread of the CPU rings, for kernels and threads that have it
//! not: they write record and doorbell of the queue's block, as of `nic`'s.
//!
//! The adapter has a record of its own, which says no more than what was seen between two changes
//! of the block by its client: no entry, and no receive, is read before it is whole.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::{
    block::{Block, DOORBELL, RECORD},
    error::Error,
    memory::Mapped,
    ring::Ring,
};

/// Offset of the number of entries in a record, behind that of receives.
const ENTRIES: usize = 4;

pub(super) struct Ringer {
    /// The ring, of which only the record and the doorbell in the block are looked at.
    ring: Ring,
    /// Record of the block.
    posted: Mapped,
    /// Record that the adapter reads.
    record: Mapped,
    /// The address of the adapter's doorbell.
    doorbell: u64,
    /// Receives that the adapter knows of, as the record has them.
    receives: u32,
}

impl Ringer {
    /// Begins with a block in which nothing is posted.
    ///
    /// # Safety
    ///
    /// The doorbell is mapped until what is returned is dropped.
    pub(super) unsafe fn new(
        block: &Block,
        record: &Mapped,
        doorbell: u64,
    ) -> Result<Ringer, Error> {
        let (options, posted) = (&block.options, block.part(RECORD, 8)?);
        let ring = block.part(options.ring_at(), options.ring_bytes())?;
        let rung = block.part(DOORBELL, 8)?;
        let ring = Ring::new(ring.into(), options.log_blocks, posted.clone().into(), rung);
        Ok(Ringer {
            ring,
            posted,
            record: record.clone(),
            doorbell,
            receives: 0,
        })
    }

    /// Begins anew, after a reset of the queue pair.
    pub(super) fn again(&mut self, block: &Block) -> Result<(), Error> {
        for at in [RECORD, DOORBELL] {
            block.memory.u64(at).store(0, Ordering::Relaxed);
        }
        // SAFETY: the doorbell is that of this ringer, which is dropped by it.
        *self = unsafe { Ringer::new(block, &self.record, self.doorbell) }?;
        Ok(())
    }

    /// Shows the adapter what receives there are. Returns whether there are others than before.
    fn show_receives(&mut self) -> bool {
        let receives = self.posted.u32(0).load(Ordering::Acquire);
        let is_new = receives != self.receives;
        if is_new {
            self.receives = receives;
            self.record.u32(0).store(receives, Ordering::Release);
        }
        is_new
    }

    /// Shows the adapter what was posted to a queue, and rings. Returns how much that was.
    pub(super) fn serve(&mut self, qpn: u32) -> usize {
        let receives = usize::from(self.show_receives());
        let posted = self.ring.posted(qpn);
        if posted == 0 {
            return receives;
        }
        self.ring.pass(posted);
        let index = self.ring.consumer();
        let record = self.record.u32(ENTRIES);
        record.store(u32::from(index).to_be(), Ordering::Release);
        self.ring_for(index, qpn);
        receives + usize::from(posted)
    }

    /// Rings for the entries before an index: what was written to memory is there before it.
    fn ring_for(&self, index: u16, qpn: u32) {
        let word = u64::from(index) << 40 | u64::from(qpn << 8);
        let at = std::ptr::with_exposed_provenance_mut::<u64>(self.doorbell as usize);
        // SAFETY: mapped, aligned as adapters have it, and only used atomically.
        let doorbell = unsafe { AtomicU64::from_ptr(at) };
        barrier();
        doorbell.store(word.to_be(), Ordering::Release);
        barrier();
    }
}

/// Orders writes to memory before those to a device's page, and sends these on.
fn barrier() {
    fence(Ordering::SeqCst);
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every processor of this architecture has it.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: it only orders.
    unsafe {
        std::arch::asm!("dsb st", options(nostack, preserves_flags));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::block::{Options, PAGE_BYTES};

    const QPN: u32 = 0x1234;

    fn word(index: u64, qpn: u32) -> u64 {
        (index << 40 | u64::from(qpn << 8)).to_be()
    }

    #[test]
    fn an_adapter_is_rung_for_its_queue_alone_and_shown_no_more_than_was_seen() {
        let options = Options {
            log_blocks: 5,
            log_receives: 3,
            ..Options::default()
        };
        let memory = Mapped::allocate(options.bytes()).unwrap();
        let block = Block::take(memory, options).unwrap();
        let [record, page] = [(); 2].map(|()| Mapped::allocate(PAGE_BYTES).unwrap());
        // SAFETY: the page is kept until the end.
        let mut ringer = unsafe { Ringer::new(&block, &record, page.address()) }.unwrap();
        let seen = || {
            let records =
                [0, ENTRIES].map(|at| u32::from_be(record.u32(at).load(Ordering::Relaxed)));
            (records, page.u64(0).load(Ordering::Relaxed))
        };
        let [posted, doorbell] = [RECORD, DOORBELL].map(|at| block.part(at, 8).unwrap());
        assert_eq!(ringer.serve(QPN), 0);
        // What is in the record is nothing before somebody rings.
        posted.u32(ENTRIES).store(3_u32.to_be(), Ordering::Relaxed);
        assert_eq!((ringer.serve(QPN), seen()), (0, ([0, 0], 0)));
        // For another queue nobody rings.
        doorbell.u64(0).store(word(3, QPN + 1), Ordering::Relaxed);
        assert_eq!((ringer.serve(QPN), seen()), (0, ([0, 0], 0)));
        doorbell.u64(0).store(word(3, QPN), Ordering::Relaxed);
        assert_eq!((ringer.serve(QPN), seen()), (3, ([0, 3], word(3, QPN))));
        // A doorbell before its record.
        doorbell.u64(0).store(word(5, QPN), Ordering::Relaxed);
        assert_eq!((ringer.serve(QPN), seen()), (0, ([0, 3], word(3, QPN))));
        posted.u32(ENTRIES).store(5_u32.to_be(), Ordering::Relaxed);
        posted.u32(0).store(7_u32.to_be(), Ordering::Relaxed);
        assert_eq!((ringer.serve(QPN), seen()), (3, ([7, 5], word(5, QPN))));
        assert_eq!(ringer.serve(QPN), 0);
        // Whatever numbers a program writes, they are the adapter's to refuse.
        for index in [4, 0xffff, 0] {
            doorbell.u64(0).store(word(index, QPN), Ordering::Relaxed);
            posted
                .u32(ENTRIES)
                .store((index as u32).to_be(), Ordering::Relaxed);
            ringer.serve(QPN);
        }
        record.u64(0).store(0, Ordering::Relaxed);
        ringer.again(&block).unwrap();
        assert_eq!(ringer.serve(QPN), 0);
        doorbell.u64(0).store(word(1, QPN), Ordering::Relaxed);
        posted.u32(ENTRIES).store(1_u32.to_be(), Ordering::Relaxed);
        assert_eq!((ringer.serve(QPN), seen()), (1, ([0, 1], word(1, QPN))));
    }
}
