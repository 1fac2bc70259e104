//! Memory that queues of this process lie in: no byte is of two.

use std::{collections::BTreeMap, ops::Range};

use parking_lot::Mutex;

use crate::error::Error;

/// First addresses of what is taken, and the addresses after the last.
static TAKEN: Mutex<BTreeMap<u64, u64>> = Mutex::new(BTreeMap::new());

/// Memory that is taken until this is dropped.
#[derive(Debug)]
pub(crate) struct Claim(u64);

impl Claim {
    pub(crate) fn take(what: &'static str, range: Range<u64>) -> Result<Claim, Error> {
        let mut taken = TAKEN.lock();
        let before = taken.range(..range.end).next_back();
        if before.is_some_and(|(_, end)| *end > range.start) {
            let address = range.start;
            return Err(Error::Taken { what, address });
        }
        taken.insert(range.start, range.end);
        Ok(Claim(range.start))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        TAKEN.lock().remove(&self.0);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn no_byte_is_taken_twice() {
        let at = 1 << 60;
        let middle = Claim::take("memory", at..at + 16).unwrap();
        for range in [
            at..at + 16,
            at - 8..at + 1,
            at + 15..at + 20,
            at + 4..at + 8,
            at - 8..at + 20,
        ] {
            assert!(Claim::take("memory", range).is_err());
        }
        let beside = (
            Claim::take("memory", at - 8..at),
            Claim::take("memory", at + 16..at + 17),
        );
        assert!(beside.0.is_ok() && beside.1.is_ok());
        drop(middle);
        assert!(Claim::take("memory", at..at + 16).is_ok());
    }
}
