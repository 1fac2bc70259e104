//! Bytes between two processes by memory that both have mapped: a ring each way.
//!
//! ```text
//!     0  of side 0: bytes written     64  bytes that it has read     128  1 while it sleeps
//!   256  of side 1, likewise
//!  4096  ring of side 0               behind it: ring of side 1
//! ```
//!
//! The other process may write anything anywhere. So a count of its is read once, checked against
//! what this side remembers, and nothing that this side has written is read back.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::memory::Mapped;

/// Bytes on their way, in one direction.
const RING_BYTES: usize = 1 << 20;
const DATA: usize = 4096;
/// Bytes of the memory.
pub(crate) const RINGS_BYTES: usize = DATA + 2 * RING_BYTES;

const SIDE_BYTES: usize = 256;
const WRITTEN: usize = 0;
const READ: usize = 64;
const ASLEEP: usize = 128;

/// The other process has counted what cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Broken;

/// One side of a pair of rings.
#[derive(Debug)]
pub(crate) struct Rings {
    memory: Mapped,
    mine: usize,
    /// Bytes that this side has written, and of these: shown to the other, known to be read there.
    written: u64,
    shown: u64,
    taken: u64,
    /// Bytes that this side has read, and that are known to be there.
    read: u64,
    there: u64,
}

impl Rings {
    /// Takes side 0 or 1 of zeroed memory of [`RINGS_BYTES`].
    pub(crate) fn new(memory: Mapped, is_second: bool) -> Rings {
        Rings {
            memory,
            mine: is_second.into(),
            written: 0,
            shown: 0,
            taken: 0,
            read: 0,
            there: 0,
        }
    }

    fn word(&self, side: usize, at: usize) -> &AtomicU64 {
        self.memory.u64(side * SIDE_BYTES + at)
    }

    /// Copies in as much as there is room for. The other side sees it after [`Rings::show`].
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<usize, Broken> {
        let room = |of: &Rings| RING_BYTES - (of.written - of.taken) as usize;
        if room(self) < bytes.len() {
            let taken = self.word(1 - self.mine, READ).load(Ordering::Acquire);
            if !(self.taken..=self.written).contains(&taken) {
                return Err(Broken);
            }
            self.taken = taken;
        }
        let count = bytes.len().min(room(self));
        let at = (self.written % RING_BYTES as u64) as usize;
        let (first, second) = bytes[..count].split_at(count.min(RING_BYTES - at));
        let ring = DATA + self.mine * RING_BYTES;
        self.memory.write(ring + at, first);
        self.memory.write(ring, second);
        self.written += count as u64;
        Ok(count)
    }

    /// Shows the other side what was written. Returns true if it sleeps and has to be roused.
    pub(crate) fn show(&mut self) -> bool {
        if self.shown == self.written {
            return false;
        }
        self.shown = self.written;
        let written = self.word(self.mine, WRITTEN);
        written.store(self.written, Ordering::Release);
        // Orders the store before the look, as `announce` does: one of the two sees the other's.
        fence(Ordering::SeqCst);
        let asleep = self.word(1 - self.mine, ASLEEP);
        asleep.load(Ordering::Relaxed) != 0 && asleep.swap(0, Ordering::Relaxed) != 0
    }

    /// Copies out as much as is there.
    pub(crate) fn read(&mut self, into: &mut [u8]) -> Result<usize, Broken> {
        if self.there - self.read < into.len() as u64 {
            let there = self.word(1 - self.mine, WRITTEN).load(Ordering::Acquire);
            let is_possible = there >= self.there && there - self.read <= RING_BYTES as u64;
            if !is_possible {
                return Err(Broken);
            }
            self.there = there;
        }
        let count = into.len().min((self.there - self.read) as usize);
        if count == 0 {
            return Ok(0);
        }
        let at = (self.read % RING_BYTES as u64) as usize;
        let (first, second) = into[..count].split_at_mut(count.min(RING_BYTES - at));
        let ring = DATA + (1 - self.mine) * RING_BYTES;
        self.memory.read(ring + at, first);
        self.memory.read(ring, second);
        self.read += count as u64;
        let read = self.word(self.mine, READ);
        read.store(self.read, Ordering::Release);
        Ok(count)
    }

    /// Returns how many bytes are to be read, as the other side has it; at most those of a ring.
    pub(crate) fn waiting(&self) -> usize {
        let there = self.word(1 - self.mine, WRITTEN).load(Ordering::Acquire);
        there.saturating_sub(self.read).min(RING_BYTES as u64) as usize
    }

    /// Says that this side sleeps, or does not. What is to be read has to be looked at after it.
    pub(crate) fn announce(&self, is_asleep: bool) {
        let asleep = self.word(self.mine, ASLEEP);
        asleep.store(is_asleep.into(), Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn both() -> (Mapped, Rings, Rings) {
        let memory = Mapped::allocate(RINGS_BYTES).unwrap();
        let rings = |is_second| Rings::new(memory.clone(), is_second);
        (memory.clone(), rings(false), rings(true))
    }

    #[test]
    fn bytes_arrive_in_order_around_the_end_of_the_ring() {
        let (_, mut one, mut other) = both();
        let whole: Vec<u8> = (0..3 * RING_BYTES).map(|at| (at % 251) as u8).collect();
        let (mut sent, mut got) = (0, Vec::new());
        let mut piece = vec![0; 77_777];
        while got.len() < whole.len() {
            sent += one.write(&whole[sent..]).unwrap();
            assert!(sent - got.len() <= RING_BYTES);
            one.show();
            let count = other.read(&mut piece).unwrap();
            got.extend_from_slice(&piece[..count]);
            assert_eq!(one.read(&mut [0]).unwrap(), 0, "nothing was sent this way");
        }
        assert!(got == whole);
    }

    #[test]
    fn what_is_not_shown_is_not_there_and_a_sleeper_is_roused_once() {
        let (_, mut one, mut other) = both();
        one.write(b"word").unwrap();
        assert_eq!(other.read(&mut [0; 4]).unwrap(), 0);
        other.announce(true);
        assert!(one.show());
        one.write(b"word").unwrap();
        assert!(!one.show());
        assert_eq!(other.read(&mut [0; 9]).unwrap(), 8);
    }

    /// Any counts of the other side are refused, or bound what is read and written.
    #[test]
    fn counts_of_the_other_side_are_not_trusted() {
        let mut state = 9_u64;
        let mut random = move || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            state >> 20
        };
        let mut refused = [0, 0];
        for _ in 0..300 {
            let (memory, mut one, _) = both();
            let (mut sent, mut got) = (0, 0);
            for _ in 0..50 {
                let near = random() % (3 * RING_BYTES as u64);
                let count = [near, random() << 20, u64::MAX - near][random() as usize % 3];
                let at = [WRITTEN, READ, ASLEEP][random() as usize % 3];
                memory.u64(SIDE_BYTES + at).store(count, Ordering::Relaxed);
                match one.write(&vec![1; random() as usize % 400_000]) {
                    Ok(count) => sent += count,
                    Err(Broken) => refused[0] += 1,
                }
                one.show();
                match one.read(&mut vec![0; random() as usize % 400_000]) {
                    Ok(count) => got += count,
                    Err(Broken) => refused[1] += 1,
                }
                assert!(one.written - one.taken <= RING_BYTES as u64);
                assert!(one.there - one.read <= RING_BYTES as u64);
            }
            assert_eq!((sent as u64, got as u64), (one.written, one.read));
        }
        assert!(refused.iter().all(|count| *count > 100), "{refused:?}");
    }
}
