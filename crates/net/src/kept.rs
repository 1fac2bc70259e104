//! Memory that an endpoint has, of which `libcuda.so.1` is told: calls of CUDA that come later may
//! be against it.

use outboard_api::net::{PLACE_PROGRAM, PLACE_SERVER};
use parking_lot::Mutex;

use crate::{
    endpoint::Endpoint,
    error::Error,
    provider::Provider,
    remote::{is_copied, keep},
};

/// Memory of an endpoint, until this is dropped.
#[derive(Debug, Default)]
pub(crate) struct Kept(Mutex<Ranges>);

#[derive(Debug, Default)]
struct Ranges {
    place: u32,
    told: Vec<(u64, u64)>,
    /// Those of which libcuda does not know: it was not loaded yet.
    untold: Vec<(u64, u64)>,
}

impl Kept {
    /// Lets the endpoint take memory. Refuses what kernels under way and the endpoint do not have
    /// in common, of this memory and of what the endpoint had before libcuda was loaded.
    pub(crate) fn with<T>(
        &self,
        endpoint: &dyn Endpoint,
        (address, bytes): (u64, u64),
        take: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        endpoint.settle()?;
        let place = match (endpoint.is_remote(), endpoint.provider()) {
            (true, _) => PLACE_SERVER,
            // Its memory is the kernels' alone.
            (false, Provider::Nvlink) => return take(),
            (false, _) => PLACE_PROGRAM,
        };
        let mut ranges = self.0.lock();
        ranges.place = place;
        ranges.untold.push((address, bytes));
        let told = ranges.tell();
        drop(ranges);
        let taken = told.and_then(|()| take());
        if taken.is_err() {
            self.0.lock().forget((address, bytes));
        }
        taken
    }
}

impl Ranges {
    /// Tells libcuda first, and asks then: of an endpoint and of a call of CUDA at the same time
    /// one finds the other.
    fn tell(&mut self) -> Result<(), Error> {
        while let Some(&(address, bytes)) = self.untold.last() {
            if !keep(address, bytes, self.place, true) {
                return Ok(());
            }
            if self.place == PLACE_PROGRAM && is_copied(address, bytes) {
                keep(address, bytes, self.place, false);
                return Err(Error::Copied(address));
            }
            self.untold.pop();
            self.told.push((address, bytes));
        }
        Ok(())
    }

    fn forget(&mut self, range: (u64, u64)) {
        let last = |of: &[(u64, u64)]| of.iter().rposition(|one| *one == range);
        if let Some(at) = last(&self.untold) {
            self.untold.remove(at);
        } else if let Some(at) = last(&self.told) {
            self.told.remove(at);
            keep(range.0, range.1, self.place, false);
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let ranges = self.0.get_mut();
        for (address, bytes) in ranges.told.drain(..) {
            keep(address, bytes, ranges.place, false);
        }
    }
}
