//! Controls: rows without any table, beside the tables' own, which show what the machine does.

use outboard_flow::{FlowKey, FlowTable, NONE, OutOfMemory, Pages, Refused, Secret, V4};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering};

/// Times of single operations, in ticks.
pub struct Times(Vec<u64>);

impl Times {
    pub fn with_capacity(count: usize) -> Times {
        // Written once, so that no page is missing during the measurement.
        let mut times = vec![1; count];
        times.clear();
        Times(times)
    }

    #[inline]
    pub fn push(&mut self, ticks: u64) {
        self.0.push(ticks);
    }

    pub fn above(&self, ns: f64) -> usize {
        let above = |ticks: &&u64| crate::clock::ns(**ticks) > ns;
        self.0.iter().filter(above).count()
    }

    pub fn report(mut self) -> Value {
        let (above_10, above_50) = (self.above(10_000.0), self.above(50_000.0));
        self.0.sort_unstable();
        let at = |part: f64| {
            let index = (self.0.len().saturating_sub(1) as f64 * part) as usize;
            self.0
                .get(index)
                .map_or(0.0, |ticks| crate::clock::ns(*ticks))
        };
        json!({
            "p50": at(0.5), "p99": at(0.99), "p99.99": at(0.9999), "max": at(1.0),
            "above 10 us": above_10, "above 50 us": above_50,
        })
    }
}

/// Longest wait of a control: an operation that was itself interrupted is not repeated at length.
const WAIT_NS_MAX: f64 = 2_000.0;

/// Reads the clock until `ticks` have passed, and returns how many passed.
#[inline]
pub fn wait(ticks: u64) -> u64 {
    let start = crate::clock::ticks();
    loop {
        let passed = crate::clock::ticks() - start;
        if passed >= ticks {
            return passed;
        }
    }
}

/// Waits as long as an operation of so many ticks took, without doing anything.
#[inline]
pub fn wait_like(ticks: u64) -> u64 {
    wait(ticks.min((WAIT_NS_MAX * crate::clock::rate()) as u64))
}

/// Reads the clock until told to stop; returns the times between two readings that are longer than
/// a microsecond.
pub fn gaps(stop: &AtomicBool) -> Times {
    let mut gaps = Times::with_capacity(1 << 20);
    let long = (1000.0 * crate::clock::rate()) as u64;
    let mut before = crate::clock::ticks();
    while !stop.load(Ordering::Relaxed) {
        let now = crate::clock::ticks();
        if now - before > long && gaps.0.len() < gaps.0.capacity() {
            gaps.push(now - before);
        }
        before = now;
    }
    gaps
}

/// No table: a key's hash is its number, and for each lookup two lines side by side are read, of
/// memory as large as a table's. Threads share nothing, so that its rates are those of the machine.
pub struct NoTable {
    lines: Pages<[u64; 16]>,
    secret: Secret,
    flows: usize,
}

impl NoTable {
    fn number(&self, hash: u64, below: usize) -> usize {
        (((hash >> 32) * below as u64) >> 32) as usize
    }
}

impl FlowTable<V4> for NoTable {
    type Handle = u64;

    fn with_capacity(flows: usize, secret: Secret) -> Result<Self, OutOfMemory> {
        let mut lines = Pages::new(flows.div_ceil(7).max(1))?;
        lines.populate();
        Ok(NoTable {
            lines,
            secret,
            flows,
        })
    }
    fn get(&self, key: &V4) -> Option<u32> {
        let mut value = [NONE];
        self.get_batch(&[*key], &mut value);
        Some(value[0])
    }
    fn insert(&mut self, _: V4, _: u32) -> Result<(), Refused> {
        Err(Refused::Full)
    }
    fn remove(&mut self, _: &V4) -> Option<u32> {
        None
    }
    fn handle(&self, key: &V4) -> u64 {
        key.keyed_hash(&self.secret)
    }
    fn remove_by(&mut self, _: u64, _: u32) -> bool {
        false
    }
    fn len(&self) -> usize {
        self.flows
    }
    fn capacity(&self) -> usize {
        self.flows
    }
    fn bytes(&self) -> usize {
        self.lines.bytes()
    }
    fn get_batch(&self, keys: &[V4], values: &mut [u32]) {
        let mut hashes = [0; outboard_flow::BATCH_MAX];
        for (key, hash) in keys.iter().zip(&mut hashes) {
            *hash = key.keyed_hash(&self.secret);
            let pair = &self.lines[self.number(*hash, self.lines.len())];
            crate::prefetch(&pair[0]);
            crate::prefetch(&pair[8]);
        }
        for (value, hash) in values.iter_mut().zip(&hashes[..keys.len()]) {
            let pair = &self.lines[self.number(*hash, self.lines.len())];
            // All lines are zero.
            *value = self.number(*hash, self.flows) as u32 + (pair[0] | pair[8]) as u32;
        }
    }
}
