//! Fragmentation gradient descent ("Beware of Fragmentation", 2023): the measure by which the
//! simulation and a pool's manager choose a place.
//!
//! The fragment of a place is the part of its free GPUs that a task cannot use, in the mean over
//! the tasks that are known. Each task goes where the fragment grows least.

/// GPUs that a task asks for, each or of each this part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Need {
    pub gpus: u32,
    pub gpu_milli: u32,
}

impl Need {
    /// Returns whether a place with these free parts of GPUs has enough.
    pub fn is_met(&self, free: &[u32]) -> bool {
        let fitting = free.iter().filter(|left| **left >= self.gpu_milli);
        fitting.count() >= self.gpus as usize
    }

    /// Returns the free part that such a task cannot use. A task without GPUs uses none.
    pub fn lost(&self, free: &[u32]) -> u64 {
        let sum = |least: u32| {
            let left = free.iter().filter(|left| **left < least);
            left.map(|left| u64::from(*left)).sum()
        };
        match self.gpus > 0 && self.is_met(free) {
            true => sum(self.gpu_milli),
            false => sum(u32::MAX),
        }
    }
}

/// Returns the fragment: the mean of what tasks cannot use, each with its share of all.
pub fn fragment(lost: impl Iterator<Item = (f64, u64)>) -> f64 {
    lost.map(|(share, lost)| share * lost as f64).sum()
}
