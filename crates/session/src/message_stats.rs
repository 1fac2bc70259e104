//! Message statistics of a session, for its log and for other threads of its process.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use outboard_wire::{
    doc::{WAIT_BUCKETS, wait_bucket},
    messages,
};

/// Counts for each message at one moment.
#[derive(Debug, Clone)]
pub struct MessageStats {
    /// Indexed by the message's number.
    ops: Vec<OpStats>,
    /// Replies that waited for the GPU, by the bucket of the wait.
    wait_counts: [u64; WAIT_BUCKETS],
}

/// Counts of one message, or of all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OpStats {
    pub calls: u64,
    pub failures: u64,
    pub received_bytes: u64,
    pub sent_bytes: u64,
    /// Time spent in the device's method.
    pub executing: Duration,
    /// Time from receipt to reply, for messages that wait for the GPU.
    pub waiting: Duration,
}

/// The counters themselves. The session's thread alone writes them; any thread may read them.
#[derive(Debug)]
pub(super) struct Counters {
    /// Indexed by the message's number.
    ops: Box<[OpCounters]>,
    waits: [Counter; WAIT_BUCKETS],
}

#[derive(Debug, Default)]
struct OpCounters {
    calls: Counter,
    failures: Counter,
    received_bytes: Counter,
    sent_bytes: Counter,
    executing_ns: Counter,
    waiting_ns: Counter,
}

/// A number that one thread writes: an addition is a load and a store.
#[derive(Debug, Default)]
struct Counter(AtomicU64);

impl Counter {
    #[inline(always)]
    fn add(&self, more: u64) {
        let sum = self.read().wrapping_add(more);
        self.0.store(sum, Ordering::Relaxed);
    }

    #[inline(always)]
    fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Returns the declared name of a message.
pub(super) fn name(op: u16) -> &'static str {
    messages::OPS
        .get(usize::from(op))
        .map_or("unknown message", |(name, _)| name)
}

impl Default for Counters {
    fn default() -> Self {
        Counters {
            ops: messages::OPS
                .iter()
                .map(|_| OpCounters::default())
                .collect(),
            waits: Default::default(),
        }
    }
}

impl Counters {
    #[inline]
    pub(super) fn count(&self, op: u16, received: usize, executing: Duration) {
        let op = self.at(op);
        op.calls.add(1);
        op.received_bytes.add(received as u64);
        op.executing_ns.add(ns(executing));
    }

    pub(super) fn answered(&self, op: u16, sent: usize) {
        self.at(op).sent_bytes.add(sent as u64);
    }

    pub(super) fn waited(&self, op: u16, waiting: Duration) {
        let waiting_ns = ns(waiting);
        self.at(op).waiting_ns.add(waiting_ns);
        self.waits[wait_bucket(waiting_ns)].add(1);
    }

    pub(super) fn failed(&self, op: u16) {
        self.at(op).failures.add(1);
    }

    /// `op` was executed before, so it is a declared message.
    #[inline]
    fn at(&self, op: u16) -> &OpCounters {
        let index = usize::from(op).min(self.ops.len() - 1);
        &self.ops[index]
    }

    pub(super) fn read(&self) -> MessageStats {
        let of = |op: &OpCounters| OpStats {
            calls: op.calls.read(),
            failures: op.failures.read(),
            received_bytes: op.received_bytes.read(),
            sent_bytes: op.sent_bytes.read(),
            executing: Duration::from_nanos(op.executing_ns.read()),
            waiting: Duration::from_nanos(op.waiting_ns.read()),
        };
        MessageStats {
            ops: self.ops.iter().map(of).collect(),
            wait_counts: std::array::from_fn(|at| self.waits[at].read()),
        }
    }
}

/// Returns nanoseconds; 584 years overflow.
#[inline(always)]
fn ns(time: Duration) -> u64 {
    time.as_secs()
        .wrapping_mul(1_000_000_000)
        .wrapping_add(u64::from(time.subsec_nanos()))
}

impl MessageStats {
    /// Returns the replies that waited for the GPU, by the bucket of the wait.
    pub fn wait_counts(&self) -> &[u64; WAIT_BUCKETS] {
        &self.wait_counts
    }

    /// Returns the sum over all messages.
    pub fn total(&self) -> OpStats {
        self.ops.iter().fold(OpStats::default(), |sum, op| OpStats {
            calls: sum.calls + op.calls,
            failures: sum.failures + op.failures,
            received_bytes: sum.received_bytes + op.received_bytes,
            sent_bytes: sum.sent_bytes + op.sent_bytes,
            executing: sum.executing + op.executing,
            waiting: sum.waiting + op.waiting,
        })
    }

    /// Returns the messages that occurred, those with the most executing time first.
    pub fn by_name(&self) -> Vec<(&'static str, OpStats)> {
        let mut used: Vec<_> = self
            .ops
            .iter()
            .enumerate()
            .filter(|(_, op)| op.calls > 0)
            .map(|(number, op)| (name(number as u16), *op))
            .collect();
        used.sort_by_key(|(_, op)| std::cmp::Reverse(op.executing));
        used
    }
}

impl fmt::Display for OpStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} calls, {} bytes in, {} bytes out, {:.3} ms executing",
            self.calls,
            self.received_bytes,
            self.sent_bytes,
            self.executing.as_secs_f64() * 1e3
        )?;
        if !self.waiting.is_zero() {
            write!(f, ", {:.3} ms waiting", self.waiting.as_secs_f64() * 1e3)?;
        }
        if self.failures > 0 {
            write!(f, ", {} failed", self.failures)?;
        }
        Ok(())
    }
}
