//! A timer wheel: a list of entries for each tick of time.
//!
//! The lists consist of chunks of one cache line, 14 entries each, so that the states of the next
//! entries can be loaded while those before are handled; a list linked through the states would
//! have to wait for each. Where an entry lies is stored for each entry, so cancelling one takes as
//! long with a million others: the last entry of the list takes its place.
//!
//! A time beyond the wheel's turn waits at the farthest tick and is then put back. So does a
//! connection that was used since: its packets do not touch the wheel.

use crate::prefetch::prefetch;
use crate::{OutOfMemory, Pages, Zeroable};

const ENTRIES: usize = 14;

/// Timers for a fixed number of entries.
pub struct Wheel {
    chunks: Pages<Chunk>,
    /// For each entry, chunk times 16 plus place plus one; 0 if its timer is not set.
    places: Pages<u32>,
    /// First chunk of each tick plus one; 0 if there is none. Only a list's first chunk may have
    /// free places.
    heads: Vec<u32>,
    free: u32,
    fresh: usize,
    /// The tick up to which all lists are empty.
    tick: u64,
    len: usize,
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Chunk {
    entries: [u32; ENTRIES],
    /// The list's next chunk plus one.
    next: u32,
    slot: u16,
    count: u16,
}

// SAFETY: numbers, which may be zero.
unsafe impl Zeroable for Chunk {}

const _: () = assert!(size_of::<Chunk>() == 64);

/// Answer to a timer that has fired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    Done,
    /// Fire again after this many ticks.
    Again(u64),
}

/// Handler of timers that fire.
pub trait Timers {
    /// Begins to load what a timer that fires soon will need.
    fn prepare(&mut self, entry: u32) {
        let _ = entry;
    }

    /// Handles timers that have fired, and answers for each.
    fn due(&mut self, entries: &[u32], answers: &mut [Due]);
}

impl Wheel {
    /// Makes a wheel for entries below `entries`, with `ticks` ticks in a turn, rounded up to a
    /// power of two of at most 32,768. Its first tick is `now`.
    pub fn new(entries: usize, ticks: usize, now: u64) -> Result<Wheel, OutOfMemory> {
        let ticks = ticks.clamp(4, 1 << 15).next_power_of_two();
        // Each list may have one chunk that is not full; a place has 28 bits for its chunk.
        let chunks = entries / ENTRIES + ticks + 1;
        let errno = rustix::io::Errno::OVERFLOW;
        if chunks >= 1 << 28 {
            return Err(OutOfMemory {
                bytes: chunks * size_of::<Chunk>(),
                errno,
            });
        }
        let (chunks, places) = (Pages::new(chunks)?, Pages::new(entries)?);
        let heads = vec![0; ticks];
        Ok(Wheel {
            chunks,
            places,
            heads,
            free: 0,
            fresh: 0,
            tick: now,
            len: 0,
        })
    }

    /// Has the memory found before the first packet.
    pub fn populate(&mut self) {
        self.chunks.populate();
        self.places.populate();
    }

    pub fn bytes(&self) -> usize {
        self.chunks.bytes() + self.places.bytes() + self.heads.len() * size_of::<u32>()
    }

    /// Number of timers that are set.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Sets an entry's timer, again if it is set, to fire `after` ticks from `now`, at least one,
    /// or at the wheel's last tick if that is earlier.
    #[inline]
    pub fn set(&mut self, entry: u32, now: u64, after: u64) {
        self.cancel(entry);
        let end = self.tick + self.heads.len() as u64 - 1;
        let tick = now.saturating_add(after.max(1)).clamp(self.tick + 1, end);
        let slot = tick as usize & (self.heads.len() - 1);
        let head = self.head_with_room(slot);
        let chunk = &mut self.chunks[head];
        let at = usize::from(chunk.count);
        chunk.entries[at] = entry;
        chunk.count += 1;
        self.places[entry as usize] = (head << 4 | at) as u32 + 1;
        self.len += 1;
    }

    fn head_with_room(&mut self, slot: usize) -> usize {
        let head = self.heads[slot];
        if let Some(first) = head.checked_sub(1)
            && usize::from(self.chunks[first as usize].count) < ENTRIES
        {
            return first as usize;
        }
        let new = match self.free.checked_sub(1) {
            Some(free) => {
                self.free = self.chunks[free as usize].next;
                free as usize
            }
            None => {
                self.fresh += 1;
                self.fresh - 1
            }
        };
        let chunk = &mut self.chunks[new];
        (chunk.next, chunk.slot, chunk.count) = (head, slot as u16, 0);
        self.heads[slot] = new as u32 + 1;
        new
    }

    fn free_chunk(&mut self, chunk: usize) {
        self.chunks[chunk].next = self.free;
        self.free = chunk as u32 + 1;
    }

    /// Stops an entry's timer. Returns whether it was set.
    #[inline]
    pub fn cancel(&mut self, entry: u32) -> bool {
        let Some(place) = self.places[entry as usize].checked_sub(1) else {
            return false;
        };
        self.places[entry as usize] = 0;
        self.len -= 1;
        let (hole, at) = (place as usize >> 4, place as usize & 15);
        let slot = usize::from(self.chunks[hole].slot);
        let head = self.heads[slot] as usize - 1;
        let last = &mut self.chunks[head];
        last.count -= 1;
        let (count, moving) = (last.count, last.entries[usize::from(last.count)]);
        if moving != entry {
            self.chunks[hole].entries[at] = moving;
            self.places[moving as usize] = place + 1;
        }
        if count == 0 {
            self.heads[slot] = self.chunks[head].next;
            self.free_chunk(head);
        }
        true
    }

    /// Fires the timers up to tick `now`, the earliest first, at most `budget` and those of one
    /// chunk. Returns the number of timers fired; fewer than are due if the budget ended.
    pub fn advance(&mut self, now: u64, budget: usize, timers: &mut impl Timers) -> usize {
        let mut fired = 0;
        while self.tick < now && fired < budget {
            if self.is_empty() {
                self.tick = now;
                break;
            }
            let slot = (self.tick + 1) as usize & (self.heads.len() - 1);
            while let Some(first) = self.heads[slot].checked_sub(1) {
                if fired >= budget {
                    return fired;
                }
                fired += self.fire(slot, first as usize, now, timers);
            }
            self.tick += 1;
        }
        fired
    }

    /// Fires the timers of a list's first chunk.
    fn fire(&mut self, slot: usize, first: usize, now: u64, timers: &mut impl Timers) -> usize {
        let chunk = self.chunks[first];
        self.heads[slot] = chunk.next;
        self.free_chunk(first);
        if let Some(next) = chunk.next.checked_sub(1) {
            let next = &self.chunks[next as usize];
            for entry in &next.entries[..usize::from(next.count)] {
                timers.prepare(*entry);
                prefetch(&self.places[*entry as usize]);
            }
            if let Some(after) = next.next.checked_sub(1) {
                prefetch(&self.chunks[after as usize]);
            }
        }
        let entries = &chunk.entries[..usize::from(chunk.count)];
        for entry in entries {
            self.places[*entry as usize] = 0;
        }
        self.len -= entries.len();
        let mut answers = [Due::Done; ENTRIES];
        timers.due(entries, &mut answers[..entries.len()]);
        for (entry, answer) in entries.iter().zip(answers) {
            if let Due::Again(after) = answer {
                // Not into the list that is being fired: it would never end.
                self.set(*entry, now.max(self.tick + 1), after.max(1));
            }
        }
        entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use std::collections::BTreeMap;

    /// Handles timers by a function.
    struct By<F>(F);

    impl<F: FnMut(&[u32], &mut [Due])> Timers for By<F> {
        fn due(&mut self, entries: &[u32], answers: &mut [Due]) {
            (self.0)(entries, answers);
        }
    }

    /// Timers set, set again, cancelled and fired at random do what a sorted map does.
    #[test]
    fn does_what_a_map_does() {
        for (seed, budget) in [(1, usize::MAX), (2, 20), (3, 1)] {
            let (entries, ticks) = (500u32, 64);
            let mut wheel = Wheel::new(entries as usize, ticks, 1000).expect("memory");
            let mut reference = BTreeMap::new();
            let mut random = Random::new(seed);
            let mut now = 1000;
            let mut fired_sum = 0;
            for _ in 0..if cfg!(miri) { 300 } else { 50_000 } {
                let entry = random.below(entries.into()) as u32;
                match random.below(6) {
                    0 => assert_eq!(wheel.cancel(entry), reference.remove(&entry).is_some()),
                    1 => {
                        now += random.below(20);
                        fired_sum += turn(&mut wheel, &mut reference, now, budget, &mut random);
                    }
                    _ => {
                        let after = 1 + random.below(ticks as u64 * 2);
                        wheel.set(entry, now, after);
                        reference.insert(entry, now + after);
                    }
                }
                assert_eq!(wheel.len(), reference.len());
            }
            assert!(fired_sum > 100);
        }
    }

    /// Advances, and compares what fires: all that is due unless the budget ended. Timers whose
    /// time is beyond the wheel fire early and are set again.
    fn turn(
        wheel: &mut Wheel,
        reference: &mut BTreeMap<u32, u64>,
        now: u64,
        budget: usize,
        random: &mut Random,
    ) -> usize {
        let mut again = Vec::new();
        let before = reference.clone();
        let fired = wheel.advance(
            now,
            budget,
            &mut By(|entries: &[u32], answers: &mut [Due]| {
                for (entry, answer) in entries.iter().zip(answers) {
                    let deadline = reference[entry];
                    if deadline > now {
                        *answer = Due::Again(deadline - now);
                    } else if random.below(4) == 0 {
                        again.push((*entry, now + 5));
                        *answer = Due::Again(5);
                    } else {
                        reference.remove(entry);
                    }
                }
            }),
        );
        reference.extend(again);
        assert!(fired <= budget.saturating_add(ENTRIES));
        if fired < budget {
            for (entry, deadline) in &before {
                assert!(*deadline > now || reference.get(entry).is_none_or(|new| *new > now));
            }
        }
        fired
    }

    #[test]
    fn an_idle_wheel_skips_time_and_a_budget_is_kept() {
        let mut wheel = Wheel::new(1000, 128, 0).expect("memory");
        wheel.set(3, 0, 10);
        wheel.cancel(3);
        assert_eq!(
            wheel.advance(
                1 << 60,
                1,
                &mut By(|_: &[u32], _: &mut [Due]| unreachable!())
            ),
            0
        );
        for entry in 0..1000 {
            wheel.set(entry, 1 << 60, 5);
        }
        let mut calls = 0;
        let mut fired = 0;
        while !wheel.is_empty() {
            let now = wheel.advance((1 << 60) + 6, 50, &mut By(|_: &[u32], _: &mut [Due]| {}));
            assert!((1..=50 + ENTRIES).contains(&now));
            (calls, fired) = (calls + 1, fired + now);
        }
        assert_eq!(fired, 1000);
        assert!(calls >= 1000 / (50 + ENTRIES));
    }

    /// As many chunks as lists are partly full at the worst: there is always one more.
    #[test]
    fn chunks_suffice() {
        let entries = 600;
        let mut wheel = Wheel::new(entries, 32, 0).expect("memory");
        let mut random = Random::new(4);
        for round in 0..if cfg!(miri) { 1 } else { 200 } {
            for entry in 0..entries as u32 {
                wheel.set(entry, 0, if round % 2 == 0 { random.below(32) } else { 31 });
            }
        }
        assert_eq!(wheel.len(), entries);
    }
}
