//! The sending half of a rdma link, with what it does while there is no room to write.

use std::{collections::VecDeque, sync::Arc, time::Instant};

use super::{
    counts::RdmaCounts,
    endpoint::{Endpoint, LINGER, TICK},
    grants::Given,
    registry::{Registered, Registrar},
    ring::{Port, Producer},
    shared::Shared,
};
use crate::{Error, segment::Payload, spin::Spin, tcp::liveness::Watch};

/// The sending half of a rdma link. The functions that every message calls are kept out of line:
/// inlined beside those of other links they would cost these some instructions a message.
pub struct Sender {
    pub(super) producer: Producer<Endpoint>,
    pub(super) is_shut: bool,
    /// Time at which the consumer was told that this end sleeps, if it has not answered.
    asleep: Option<Instant>,
    spin: Spin,
    pub(super) shared: Arc<Shared>,
    pub(super) registrar: Registrar,
    /// The peer's grants.
    pub(super) given: Given,
    /// Memory that the adapter may still read.
    pub(super) kept: VecDeque<Kept>,
    /// Number of the last request that reads GPU memory.
    pub(super) device_read_behind: u64,
    /// Bytes of long frames' data. The queue counts its requests itself.
    pub(super) data_counts: RdmaCounts,
}

impl Sender {
    pub(super) fn new(
        producer: Producer<Endpoint>,
        shared: Arc<Shared>,
        registrar: Registrar,
        given: Given,
    ) -> Self {
        Self {
            producer,
            is_shut: false,
            asleep: None,
            spin: Spin::remote(),
            shared,
            registrar,
            given,
            kept: VecDeque::new(),
            device_read_behind: 0,
            data_counts: RdmaCounts::default(),
        }
    }

    #[cold]
    pub(crate) fn reserve(&mut self, len: usize) -> Result<&mut [u8], Error> {
        let at = self.place(len)?;
        Ok(self.producer.reserve(at, len))
    }

    /// Returns the start of a frame of `len` bytes, once there is room for it.
    #[inline]
    pub(super) fn place(&mut self, len: usize) -> Result<u64, Error> {
        if self.is_shut || self.shared.is_closed() || self.producer.is_refused() {
            return Err(Error::Closed);
        }
        match self.producer.place(len)? {
            Some(at) => Ok(at),
            None => self.wait_for_room(len).inspect_err(|_| self.is_shut = true),
        }
    }

    #[cold]
    pub(crate) fn commit(&mut self, len: usize) -> Result<(), Error> {
        let result = self.producer.commit(len);
        self.after(result)
    }

    #[cold]
    pub(crate) fn flush(&mut self) -> Result<(), Error> {
        if self.is_shut {
            return Ok(());
        }
        let result = self.producer.flush();
        self.after(result)
    }

    /// After an error, nothing that was not posted may follow later.
    #[inline]
    pub(super) fn after(&mut self, result: Result<(), Error>) -> Result<(), Error> {
        result.inspect_err(|error| {
            self.is_shut |= !matches!(error, Error::Misuse(_));
        })
    }

    /// Returns the counts of what was posted.
    pub fn counts(&self) -> RdmaCounts {
        let posted = self.producer.port.queue.counts();
        RdmaCounts {
            requests: posted.requests,
            doorbells: posted.doorbells,
            inline: posted.inline,
            wakes: posted.wakes,
            ..self.data_counts
        }
    }

    pub(crate) fn shutdown(&mut self) {
        if std::mem::replace(&mut self.is_shut, true) || !self.shared.is_ours() {
            return;
        }
        // If the peer is gone, it needs no notice.
        if self.producer.end().is_ok() {
            self.producer.port.settle(LINGER);
        }
    }

    pub(crate) fn closer(&self) -> Closer {
        Closer(Arc::clone(&self.shared))
    }

    #[cold]
    fn wait_for_room(&mut self, len: usize) -> Result<u64, Error> {
        // Flushed first, or the consumer would wait for frames that this end has not posted.
        self.producer.flush()?;
        let start = Instant::now();
        let mut watch = Watch::default();
        let producer = &mut self.producer;
        self.spin.until(start, || producer.has_news());
        loop {
            if let Some(at) = self.producer.place(len)? {
                self.asleep = None;
                self.spin.ended(start);
                return Ok(at);
            }
            if self.shared.is_closed() || self.producer.is_refused() {
                return Err(Error::Closed);
            }
            if let Some(end) = self.shared.peer_end() {
                return Err(end);
            }
            self.shared.watch(&mut watch)?;
            let told_at = match self.asleep {
                Some(at) if !self.producer.port.is_due(at) => at,
                _ => {
                    self.producer.begin_sleep()?;
                    *self.asleep.insert(Instant::now())
                }
            };
            let port = &mut self.producer.port;
            port.queue.check_progress(told_at)?;
            port.queue.arm()?;
            port.poll()?;
            if port.is_idle() && !self.producer.may_sleep() {
                // The consumer is being told.
                self.asleep = None;
                continue;
            }
            if self.producer.place(len)?.is_none() {
                self.producer.port.sleep(false, TICK)?;
            }
        }
    }
}

/// Memory that the device may still read, until the first `behind` requests are done.
pub(super) struct Kept {
    pub(super) behind: u64,
    pub(super) _source: Registered,
    pub(super) owner: Option<Box<dyn Payload>>,
}

/// Access for tests.
#[cfg(test)]
impl Sender {
    pub(super) fn mirror(&self) -> std::ops::Range<u64> {
        self.producer.port.memory.addresses()
    }

    /// Collects the results of what was posted.
    pub(super) fn poll(&mut self) -> Result<(), Error> {
        self.producer.port.poll()
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.shutdown();
    }
}

/// Ends both halves.
#[derive(Clone)]
pub struct Closer(Arc<Shared>);

impl Closer {
    pub(crate) fn close(&self) {
        self.0.close();
    }
}
