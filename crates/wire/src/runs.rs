//! Runs of changed bytes in one note, `host_runs`, for memory of which many short pieces changed.
//!
//! ```text
//!  va ──gap──┐ run ┌──gap──┐ run ┌ ...     memory
//!  runs      gap, length: 16 bits each, little-endian; for each run
//!  data      the bytes of all runs, one after the other
//! ```

use crate::codec::DecodeError;

/// Bytes that describe one run.
const PLACE_BYTES: usize = 4;

/// Most bytes of runs and of what describes them in one note.
pub const RUNS_BYTES_MAX: usize = 64 << 10;

/// Runs in the order of their addresses, which are gathered for a note.
#[derive(Default)]
pub struct GatheredRuns {
    va: u64,
    end: u64,
    places: Vec<u8>,
    data: Vec<u8>,
}

impl GatheredRuns {
    /// Adds a run after the others. Returns false if it does not fit behind them: then they must be
    /// sent, and cleared, before it.
    pub fn add(&mut self, va: u64, data: &[u8]) -> bool {
        if self.places.is_empty() {
            (self.va, self.end) = (va, va);
        }
        let gap = va.checked_sub(self.end).map(u16::try_from);
        let end = va.checked_add(data.len() as u64);
        let bytes = self.data.len() + self.places.len() + PLACE_BYTES + data.len();
        let (Some(Ok(gap)), Ok(len), Some(end)) = (gap, u16::try_from(data.len()), end) else {
            return false;
        };
        if len == 0 || bytes > RUNS_BYTES_MAX {
            return false;
        }
        self.places.extend(gap.to_le_bytes());
        self.places.extend(len.to_le_bytes());
        self.data.extend(data);
        self.end = end;
        true
    }

    /// Returns where the first run begins.
    pub fn va(&self) -> u64 {
        self.va
    }

    /// Returns the number of runs.
    pub fn count(&self) -> usize {
        self.places.len() / PLACE_BYTES
    }

    /// Returns what describes the runs.
    pub fn places(&self) -> &[u8] {
        &self.places
    }

    /// Returns the bytes of all runs.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// Drops the runs, and keeps the room for others.
    pub fn clear(&mut self) {
        self.places.clear();
        self.data.clear();
    }
}

/// The runs of a note that has come, each with its address. None is empty, and none passes the end
/// of the address space.
#[derive(Debug, Clone)]
pub struct Runs<'a> {
    end: u64,
    places: &'a [u8],
    data: &'a [u8],
}

impl<'a> Runs<'a> {
    /// Returns bytes that lie together as one run, or as none.
    pub fn one(va: u64, data: &'a [u8]) -> Result<Runs<'a>, DecodeError> {
        let end = va.checked_add(data.len() as u64);
        end.ok_or(WRONG)?;
        let places = &[];
        Ok(Runs {
            end: va,
            places,
            data,
        })
    }

    /// Checks the fields of a note.
    pub fn of(va: u64, places: &'a [u8], data: &'a [u8]) -> Result<Runs<'a>, DecodeError> {
        let (of_each, rest) = places.as_chunks::<PLACE_BYTES>();
        if !rest.is_empty() || of_each.is_empty() {
            return Err(WRONG);
        }
        let (mut end, mut bytes) = (va, 0);
        for place in of_each {
            let (gap, len) = parts(*place);
            if len == 0 {
                return Err(WRONG);
            }
            let next = end.checked_add(gap).and_then(|at| at.checked_add(len));
            (end, bytes) = (next.ok_or(WRONG)?, bytes + len);
        }
        match bytes == data.len() as u64 {
            true => Ok(Runs {
                end: va,
                places,
                data,
            }),
            false => Err(WRONG),
        }
    }
}

const WRONG: DecodeError = DecodeError::WrongRuns;

/// Returns the gap before a run, and its length.
fn parts([gap, gap_high, len, len_high]: [u8; PLACE_BYTES]) -> (u64, u64) {
    let of = |low, high| u64::from(u16::from_le_bytes([low, high]));
    (of(gap, gap_high), of(len, len_high))
}

impl<'a> Iterator for Runs<'a> {
    type Item = (u64, &'a [u8]);

    fn next(&mut self) -> Option<(u64, &'a [u8])> {
        let Some((place, others)) = self.places.split_first_chunk() else {
            // Bytes without a description are one run.
            let data = std::mem::take(&mut self.data);
            return (!data.is_empty()).then_some((self.end, data));
        };
        let (gap, len) = parts(*place);
        let (data, rest) = self.data.split_at_checked(len as usize)?;
        let at = self.end.checked_add(gap)?;
        self.end = at.checked_add(len)?;
        (self.places, self.data) = (others, rest);
        Some((at, data))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all<'a>(runs: Result<Runs<'a>, DecodeError>) -> Vec<(u64, &'a [u8])> {
        runs.expect("runs").collect()
    }

    #[test]
    fn runs_come_as_they_were_gathered() {
        let given: [(u64, &[u8]); 4] = [
            (100, &[1, 2, 3, 4]),
            (104, &[5; 4]),
            (112, &[6; 300]),
            (412 + 65_535, &[7]),
        ];
        let mut gathered = GatheredRuns::default();
        for round in 0..2 {
            for (va, data) in given {
                assert!(gathered.add(va, data), "{va}, round {round}");
            }
            assert_eq!((gathered.va(), gathered.count()), (100, 4));
            let (places, data) = (gathered.places(), gathered.data());
            assert_eq!(all(Runs::of(100, places, data)), given);
            gathered.clear();
        }
        assert_eq!(all(Runs::one(9, &[1, 2])), [(9, &[1, 2][..])]);
        assert_eq!(all(Runs::one(9, &[])), []);
    }

    #[test]
    fn what_does_not_fit_behind_the_others_is_refused() {
        let mut gathered = GatheredRuns::default();
        assert!(gathered.add(1 << 20, &[1; 8]));
        let end = (1 << 20) + 8;
        for (va, bytes) in [
            (end - 1, 1),
            (end + 65_536, 1),
            (end, 65_536),
            (end, 0),
            (u64::MAX, 1),
        ] {
            assert!(!gathered.add(va, &vec![1; bytes]), "{va}, {bytes} bytes");
        }
        assert_eq!(gathered.count(), 1);
        let mut next = end + 4;
        while gathered.add(next, &[2; 4]) {
            next += 8;
        }
        let bytes = gathered.places().len() + gathered.data().len();
        assert!(
            (RUNS_BYTES_MAX - 8..=RUNS_BYTES_MAX).contains(&bytes),
            "{bytes}"
        );
    }

    #[test]
    fn runs_that_have_no_meaning_are_errors() {
        let place = |gap: u16, len: u16| [gap.to_le_bytes(), len.to_le_bytes()].concat();
        let two = [place(1, 2), place(0, 3)].concat();
        assert_eq!(
            all(Runs::of(10, &two, &[9; 5])),
            [(11, &[9; 2][..]), (13, &[9; 3])]
        );
        for (va, places, bytes) in [
            (10, &two[..], 4),
            (10, &two[..], 6),
            (10, &two[..7], 5),
            (10, &[][..], 0),
            (10, &[][..], 3),
            (10, &place(5, 0)[..], 0),
            (u64::MAX - 4, &two[..], 5),
        ] {
            let data = vec![9; bytes];
            let refused = Runs::of(va, places, &data).map(|runs| runs.count());
            assert_eq!(refused, Err(WRONG), "{va}, {places:?}, {bytes} bytes");
        }
        assert!(Runs::of(u64::MAX - 6, &two, &[9; 5]).is_ok());
        assert_eq!(
            Runs::one(u64::MAX, &[1]).map(|runs| runs.count()),
            Err(WRONG)
        );
    }
}
