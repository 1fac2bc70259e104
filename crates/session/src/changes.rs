//! Bytes of mirrors that the device has changed, as notes: long runs by themselves, short ones
//! together.

use outboard_link::Error;
use outboard_wire::{
    limits::CHUNK_BYTES_MAX,
    messages::{HostPagesNote, HostRunsNote},
    runs::GatheredRuns,
};

use crate::outbox::Outbox;

/// Shortest run that is sent by itself, from where it is.
const ALONE_BYTES_MIN: usize = 1024;

/// Sends changes in the order in which they are added.
pub(crate) struct Changes<'a> {
    outbox: &'a mut Outbox,
    gathered: GatheredRuns,
    sent: Result<(), Error>,
}

impl<'a> Changes<'a> {
    pub(crate) fn new(outbox: &'a mut Outbox) -> Changes<'a> {
        Changes {
            outbox,
            gathered: GatheredRuns::default(),
            sent: Ok(()),
        }
    }

    /// Adds a run. After an error nothing more is sent.
    pub(crate) fn add(&mut self, va: u64, run: &[u8]) {
        if run.len() < ALONE_BYTES_MIN {
            if self.gathered.add(va, run) {
                return;
            }
            self.send_gathered();
            if self.gathered.add(va, run) {
                return;
            }
        }
        self.send_gathered();
        let mut va = va;
        for data in run.chunks(CHUNK_BYTES_MAX) {
            self.send(|outbox| outbox.note(HostPagesNote::NUMBER, &HostPagesNote { va, data }));
            va = va.wrapping_add(data.len() as u64);
        }
    }

    /// Sends what is left. Returns the first error.
    pub(crate) fn finish(mut self) -> Result<(), Error> {
        self.send_gathered();
        self.sent
    }

    fn send_gathered(&mut self) {
        let gathered = std::mem::take(&mut self.gathered);
        let (va, runs, data) = (gathered.va(), gathered.places(), gathered.data());
        match gathered.count() {
            0 => {}
            1 => {
                self.send(|outbox| outbox.note(HostPagesNote::NUMBER, &HostPagesNote { va, data }))
            }
            _ => {
                let note = HostRunsNote { va, runs, data };
                self.send(|outbox| outbox.note(HostRunsNote::NUMBER, &note));
            }
        }
        self.gathered = gathered;
        self.gathered.clear();
    }

    fn send(&mut self, send: impl FnOnce(&mut Outbox) -> Result<(), Error>) {
        if self.sent.is_ok() {
            self.sent = send(self.outbox);
        }
    }
}
