//! Numbers of free, leased and fragmented GPUs over time, since this manager's start.
//!
//! There are at most [`limits::HISTORY_MAX`] samples. If there would be more, every second one is
//! left out and the time between two doubles, up to a limit; from then on the oldest are dropped.

use crate::{
    api::{HistoryView, Sample},
    limits,
    manager::{Due, Manager},
};

pub(super) struct History {
    samples: Vec<Sample>,
    step_ms: u64,
}

impl Default for History {
    fn default() -> History {
        History {
            samples: Vec::new(),
            step_ms: limits::HISTORY_STEP_MS,
        }
    }
}

impl History {
    fn add(&mut self, sample: Sample) {
        self.samples.push(sample);
        if self.samples.len() <= limits::HISTORY_MAX {
            return;
        }
        if self.step_ms >= limits::HISTORY_STEP_MS_MAX {
            self.samples.remove(0);
            return;
        }
        self.step_ms *= 2;
        let mut at = 0..;
        // The last one stays.
        self.samples
            .retain(|_| at.next().is_some_and(|at| at % 2 == 0));
    }
}

impl Manager {
    /// Returns the numbers of free, leased and fragmented GPUs as they are now.
    pub fn sample(&self) -> Sample {
        let known = self.gpus.iter().filter(|gpu| !gpu.is_forgotten);
        let mut sample = Sample {
            at_s: self.wall_s,
            fragmented_milli: self.placement.fragmented_milli(),
            ..Sample::default()
        };
        for gpu in known {
            sample.gpus += 1;
            sample.free += u32::from(gpu.is_free && !gpu.is_spare);
            sample.leased += u32::from(gpu.record.lease.is_some());
        }
        sample
    }

    /// Returns the samples that are kept.
    pub fn history(&self) -> HistoryView {
        HistoryView {
            step_ms: self.history.step_ms,
            samples: self.history.samples.clone(),
        }
    }

    pub(super) fn history_is_due(&mut self, now_ms: u64) {
        let sample = self.sample();
        self.history.add(sample);
        self.due
            .insert((now_ms + self.history.step_ms, Due::History));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn history_covers_all_the_time_with_few_samples() {
        let mut history = History::default();
        let (mut now_ms, mut all) = (0, 0);
        while history.step_ms < limits::HISTORY_STEP_MS_MAX {
            history.add(Sample {
                at_s: now_ms / 1_000,
                ..Sample::default()
            });
            assert!(history.samples.len() <= limits::HISTORY_MAX);
            assert_eq!(history.samples[0].at_s, 0);
            assert_eq!(history.samples.last().unwrap().at_s, now_ms / 1_000);
            now_ms += history.step_ms;
            all += 1;
        }
        assert!(all > 2 * limits::HISTORY_MAX && now_ms > 86_400_000);
        let gaps = history.samples.windows(2).map(|of| of[1].at_s - of[0].at_s);
        assert!(gaps.max().unwrap() <= history.step_ms / 1_000);
        // From then on the oldest are dropped.
        let first = history.samples[1].at_s;
        while history.samples.len() < limits::HISTORY_MAX {
            history.add(Sample::default());
        }
        history.add(Sample::default());
        assert_eq!(history.samples.len(), limits::HISTORY_MAX);
        assert_eq!(history.samples[0].at_s, first);
    }
}
