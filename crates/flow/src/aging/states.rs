//! The states of connections, in an array; tables hold their numbers.

use super::{Phase, Timeouts};
use crate::{OutOfMemory, Pages, Zeroable};

/// State of a connection.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct State<H> {
    /// Finds the table's entry.
    pub handle: H,
    /// Time of the last packet, in milliseconds, modulo 2^32.
    pub seen_ms: u32,
    pub backend: u16,
    pub phase: Phase,
    pub used: bool,
}

// SAFETY: numbers, a handle that may be zero, the first phase, and `false`.
unsafe impl<H: Zeroable> Zeroable for State<H> {}

impl<H> State<H> {
    /// Returns the time that is left before the connection is over; 0 if it is. A clock that went
    /// backwards leaves the whole time.
    #[inline]
    pub fn left_ms(&self, now_ms: u32, timeouts: &Timeouts) -> u32 {
        let passed = now_ms.wrapping_sub(self.seen_ms) as i32;
        timeouts.of(self.phase).saturating_sub(passed.max(0) as u32)
    }
}

/// A fixed number of states, and which of them are free.
pub struct States<H> {
    states: Pages<State<H>>,
    free: Vec<u32>,
    /// States from here on were never used.
    fresh: usize,
}

impl<H: Copy + Zeroable> States<H> {
    pub fn new(count: usize) -> Result<Self, OutOfMemory> {
        let states = Pages::new(count.min(crate::NONE as usize))?;
        Ok(States {
            states,
            free: Vec::new(),
            fresh: 0,
        })
    }

    /// Has the memory found before the first packet.
    pub fn populate(&mut self) {
        self.states.populate();
    }

    /// Returns the number that the next [`States::take`] will give.
    #[inline]
    pub fn next(&self) -> Option<u32> {
        let fresh = (self.fresh < self.states.len()).then_some(self.fresh as u32);
        self.free.last().copied().or(fresh)
    }

    /// Fills a free state and returns its number.
    #[inline]
    pub fn take(&mut self, state: State<H>) -> Option<u32> {
        let index = self.next()?;
        if self.free.pop().is_none() {
            self.fresh += 1;
        }
        self.states[index as usize] = State {
            used: true,
            ..state
        };
        Some(index)
    }

    #[inline]
    pub fn give_back(&mut self, index: u32) {
        let state = &mut self.states[index as usize];
        if std::mem::take(&mut state.used) {
            self.free.push(index);
        }
    }

    pub fn used(&self) -> usize {
        self.fresh - self.free.len()
    }

    pub fn len(&self) -> usize {
        self.states.len()
    }

    pub fn is_empty(&self) -> bool {
        self.states.is_empty()
    }

    pub fn bytes(&self) -> usize {
        self.states.bytes()
    }

    #[inline]
    pub fn prefetch(&self, index: u32) {
        if let Some(state) = self.states.get(index as usize) {
            crate::prefetch::prefetch(state);
        }
    }
}

impl<H> std::ops::Index<u32> for States<H> {
    type Output = State<H>;

    #[inline]
    fn index(&self, index: u32) -> &State<H> {
        &self.states[index as usize]
    }
}

impl<H> std::ops::IndexMut<u32> for States<H> {
    #[inline]
    fn index_mut(&mut self, index: u32) -> &mut State<H> {
        &mut self.states[index as usize]
    }
}

/// Deletion by looking at all states, a part at a time.
#[derive(Clone, Debug, Default)]
pub struct Scan {
    next: usize,
}

impl Scan {
    /// Looks at the next `count` states and calls `expire` with each that is over.
    pub fn step<H: Copy + Zeroable>(
        &mut self,
        states: &mut States<H>,
        count: usize,
        now_ms: u32,
        timeouts: &Timeouts,
        mut expire: impl FnMut(&mut States<H>, u32),
    ) {
        for _ in 0..count.min(states.len()) {
            if self.next >= states.fresh {
                self.next = 0;
            }
            if let Some(state) = states.states.get(self.next)
                && state.used
                && state.left_ms(now_ms, timeouts) == 0
            {
                expire(states, self.next as u32);
            }
            self.next += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(seen_ms: u32, phase: Phase) -> State<u64> {
        State {
            handle: 0,
            seen_ms,
            backend: 0,
            phase,
            used: false,
        }
    }

    #[test]
    fn time_left_survives_the_wrap_and_a_clock_that_goes_back() {
        let timeouts = Timeouts::all(5000);
        assert_eq!(state(1000, Phase::Udp).left_ms(3000, &timeouts), 3000);
        assert_eq!(state(1000, Phase::Udp).left_ms(9000, &timeouts), 0);
        assert_eq!(
            state(u32::MAX - 999, Phase::Udp).left_ms(1000, &timeouts),
            3000
        );
        assert_eq!(state(1000, Phase::Udp).left_ms(500, &timeouts), 5000);
    }

    #[test]
    fn a_scan_finds_exactly_those_that_are_over() {
        let mut states = States::<u64>::new(100).expect("memory");
        for i in 0..100 {
            let phase = if i % 2 == 0 {
                Phase::Closed
            } else {
                Phase::Established
            };
            assert_eq!(states.take(state(i, phase)), Some(i));
        }
        assert_eq!(states.take(state(0, Phase::Udp)), None);
        let mut over = Vec::new();
        let mut scan = Scan::default();
        for _ in 0..10 {
            scan.step(
                &mut states,
                10,
                10_050,
                &Timeouts::LINUX,
                |states, index| {
                    states.give_back(index);
                    over.push(index);
                },
            );
        }
        assert_eq!(over, (0..=50).step_by(2).collect::<Vec<_>>());
        assert_eq!(states.used(), 100 - over.len());
        states.give_back(over[0]);
        assert_eq!(states.used(), 100 - over.len(), "given back twice");
        assert!(over.contains(&states.take(state(0, Phase::Udp)).expect("a free one")));
    }
}
