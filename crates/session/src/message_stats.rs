//! Message statistics of a session, for the log.

use std::{fmt, time::Duration};

use outboard_wire::messages;

/// Counts for each message.
#[derive(Debug, Clone)]
pub struct MessageStats {
    /// Indexed by the message's number.
    ops: Vec<OpStats>,
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

/// Returns the declared name of a message.
pub(super) fn name(op: u16) -> &'static str {
    messages::OPS
        .get(usize::from(op))
        .map_or("unknown message", |(name, _)| name)
}

impl Default for MessageStats {
    fn default() -> Self {
        MessageStats {
            ops: vec![OpStats::default(); messages::OPS.len()],
        }
    }
}

impl MessageStats {
    #[inline]
    pub(super) fn count(&mut self, op: u16, received: usize, executing: Duration) {
        let op = self.at(op);
        op.calls += 1;
        op.received_bytes += received as u64;
        op.executing += executing;
    }

    pub(super) fn answered(&mut self, op: u16, sent: usize) {
        self.at(op).sent_bytes += sent as u64;
    }

    pub(super) fn waited(&mut self, op: u16, waiting: Duration) {
        self.at(op).waiting += waiting;
    }

    pub(super) fn failed(&mut self, op: u16) {
        self.at(op).failures += 1;
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

    /// `op` was executed before, so it is a declared message.
    #[inline]
    fn at(&mut self, op: u16) -> &mut OpStats {
        let index = usize::from(op).min(self.ops.len() - 1);
        &mut self.ops[index]
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
