//! The weight of all graphs of a device and their nodes. One call can copy a million nodes, so
//! what a graph may hold does not bound what many of them take.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use super::error::Error;

/// Units of all graphs and nodes, those of executable graphs too: some 2 GiB.
const UNITS_MAX: usize = 1 << 22;
/// Bytes that a unit stands for, at most.
pub(super) const UNIT_BYTES: usize = 512;

/// The sum of the charges of one device.
#[derive(Debug)]
pub(super) struct Weight {
    units: Arc<AtomicUsize>,
    pub(super) units_max: usize,
}

impl Default for Weight {
    fn default() -> Self {
        Weight {
            units: Arc::default(),
            units_max: UNITS_MAX,
        }
    }
}

impl Weight {
    /// The charge of a new node or graph.
    pub(super) fn charge(&self, units: usize) -> Charge {
        let mut charge = Charge {
            all: Arc::clone(&self.units),
            units: 0,
        };
        charge.raise(units);
        charge
    }

    /// Fails if there is no room for this much more.
    pub(super) fn check(&self, more: usize) -> Result<(), Error> {
        let units = self.units.load(Ordering::Relaxed);
        match units.saturating_add(more) > self.units_max {
            true => Err(Error::OutOfMemory(format!(
                "all graphs weigh {units} units, of {} at most, and {more} more are asked for",
                self.units_max
            ))),
            false => Ok(()),
        }
    }
}

/// The weight of one node or graph, from when it is made, or copied, until it is dropped.
#[derive(Debug)]
pub(super) struct Charge {
    all: Arc<AtomicUsize>,
    units: usize,
}

impl Charge {
    pub(super) fn units(&self) -> usize {
        self.units
    }

    /// The node has grown to this. It does not shrink before it is dropped.
    pub(super) fn raise(&mut self, units: usize) {
        let more = units.saturating_sub(self.units);
        self.units += more;
        self.all.fetch_add(more, Ordering::Relaxed);
    }
}

impl Clone for Charge {
    fn clone(&self) -> Self {
        self.all.fetch_add(self.units, Ordering::Relaxed);
        Charge {
            all: Arc::clone(&self.all),
            units: self.units,
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.all.fetch_sub(self.units, Ordering::Relaxed);
    }
}
