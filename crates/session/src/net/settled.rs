//! Changes of memory that a device writes at any time, also while it is looked at: what came before
//! a flag may be seen later than the flag.
//!
//! ```text
//!  device   data         flag
//!  look 1  ─────────────────── sees the flag: it had passed the data's place before
//!  look 2                      ─────────────── sees the data
//! ```
//!
//! So looks are repeated until one finds nothing, and what a later one has found is sent before
//! what an earlier one has. What is kept until then is of the session's memory.

use std::collections::BTreeMap;

use outboard_budget::Exhausted;

/// Looks at most: a device that writes without a pause is not waited for.
const LOOKS_MAX: usize = 8;

/// Bytes that a look has found, by their addresses. None of them overlap.
type Found = BTreeMap<u64, Vec<u8>>;

/// Bytes that a piece takes beside its own.
const PIECE_BYTES: u64 = 64;

/// Sends what has changed, so that what was written before something is sent before it. Fails if
/// there is no room for what was found, as `reserve` says: then nothing is sent.
pub(super) fn take(
    mut look: impl FnMut(&mut dyn FnMut(u64, &[u8])),
    send: &mut dyn FnMut(u64, &[u8]),
    reserve: impl Fn(u64) -> Result<(), Exhausted>,
) -> Result<(), Exhausted> {
    let mut looks: Vec<Found> = Vec::new();
    while looks.len() < LOOKS_MAX {
        let (mut found, mut has_room) = (Found::new(), Ok(()));
        look(&mut |address, bytes| {
            if has_room.is_ok() {
                has_room = reserve(bytes.len() as u64 + PIECE_BYTES);
            }
            if has_room.is_ok() {
                found.insert(address, bytes.to_vec());
            }
        });
        has_room?;
        if found.is_empty() {
            break;
        }
        // Bytes that have changed again are sent last with what was found first.
        looks.iter_mut().for_each(|earlier| renew(earlier, &found));
        looks.push(found);
    }
    for (address, bytes) in looks.iter().rev().flatten() {
        send(*address, bytes);
    }
    Ok(())
}

/// Takes over what a later look has found of the same bytes.
fn renew(earlier: &mut Found, later: &Found) {
    for (&start, bytes) in earlier {
        let end = start + bytes.len() as u64;
        let overlapping = later.range(..end).rev();
        let overlapping = overlapping.take_while(|(at, new)| **at + new.len() as u64 > start);
        for (&at, new) in overlapping {
            let (from, to) = (at.max(start), (at + new.len() as u64).min(end));
            let part = &new[(from - at) as usize..(to - at) as usize];
            bytes[(from - start) as usize..(to - start) as usize].copy_from_slice(part);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::cell::Cell;

    use super::*;

    const BYTES: usize = 64;
    const FLAG: usize = BYTES - 8;

    /// Memory that a device writes, and the other side's copy.
    #[derive(Default)]
    struct Two {
        now: Vec<u8>,
        known: Vec<u8>,
        /// Steps of the look that is under way.
        steps: usize,
    }

    impl Two {
        /// Compares word by word, while the device writes: generations of data, each before its
        /// flag, where a look is at this step.
        fn look(&mut self, writes_at: &[(usize, u8)], changed: &mut dyn FnMut(u64, &[u8])) {
            for at in (0..BYTES).step_by(8) {
                for (_, value) in writes_at.iter().filter(|(step, _)| *step == self.steps) {
                    self.now.fill(*value);
                }
                self.steps += 1;
                if self.now[at..at + 8] != self.known[at..at + 8] {
                    self.known[at..at + 8].copy_from_slice(&self.now[at..at + 8]);
                    changed(at as u64, &self.now[at..at + 8]);
                }
            }
        }
    }

    #[test]
    fn no_flag_is_sent_before_what_was_written_before_it() {
        for first in 0..2 * BYTES / 8 {
            for second in first + 1..3 * BYTES / 8 {
                let writes = [(first, 1), (second, 2)];
                let mut two = Two {
                    now: vec![0; BYTES],
                    known: vec![0; BYTES],
                    steps: 0,
                };
                let mut other = vec![0; BYTES];
                while two.steps <= second {
                    let mut send = |at: u64, bytes: &[u8]| {
                        other[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
                        let flag = other[FLAG];
                        let data = &other[..FLAG];
                        assert!(data.iter().all(|byte| *byte >= flag), "{other:?}");
                    };
                    take(|changed| two.look(&writes, changed), &mut send, |_| Ok(())).unwrap();
                }
                assert_eq!(other, two.now, "{writes:?}");
            }
        }
    }

    #[test]
    fn what_has_no_room_is_not_kept() {
        let (kept, asked) = (Cell::new(0), Cell::new(0));
        let reserve = |bytes: u64| {
            asked.set(asked.get() + 1);
            kept.set(kept.get() + bytes);
            match kept.get() <= 1 << 20 {
                true => Ok(()),
                false => Err(Exhausted::Budget {
                    wanted_bytes: kept.get(),
                    budget_bytes: 1 << 20,
                }),
            }
        };
        let look = |changed: &mut dyn FnMut(u64, &[u8])| {
            (0..1000).for_each(|piece| changed(piece << 16, &[1; 64 << 10]));
        };
        let mut send = |_: u64, _: &[u8]| panic!("sent before all is known");
        assert!(take(look, &mut send, reserve).is_err());
        assert_eq!(asked.get(), 16, "pieces after the first that has no room");
    }

    #[test]
    fn memory_that_changes_without_a_pause_is_sent_all_the_same() {
        let (mut looks, mut sent) = (0_u8, Vec::new());
        let look = |changed: &mut dyn FnMut(u64, &[u8])| {
            looks += 1;
            changed(0, &[looks; 16]);
            changed(16 + u64::from(looks), &[looks]);
        };
        let mut send = |at: u64, bytes: &[u8]| sent.push((at, bytes.to_vec()));
        take(look, &mut send, |_| Ok(())).unwrap();
        let last = LOOKS_MAX as u8;
        assert_eq!(looks, last);
        let of_first: Vec<_> = sent.iter().filter(|(at, _)| *at == 0).collect();
        assert!(of_first.iter().all(|(_, bytes)| *bytes == [last; 16]));
        assert_eq!(sent.len(), 2 * LOOKS_MAX);
    }
}
