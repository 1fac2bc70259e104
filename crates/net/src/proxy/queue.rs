//! A queue that the proxy's thread serves: its memory, and what of it is under way.

use std::sync::atomic::Ordering;

use outboard_verbs::Remote;
use parking_lot::Mutex;

use crate::{
    adapter::State,
    bell::{Bell, Rouse},
    block::{ASLEEP, Block, DOORBELL, Export, Options, RECORD, SCRATCH},
    device::{Device, first_psn},
    endpoint::Counts,
    error::Error,
    keys::Access,
    looker::Looked,
    memory::Mapped,
    reach::Reached,
};

use super::served::Served;

const SCRATCH_BYTES: usize = 64;

#[derive(Debug)]
pub(crate) struct Queue {
    _bell: Bell,
    served: Mutex<Served>,
    block: Block,
    export: Export,
    psn: u32,
}

impl Queue {
    /// Makes a queue in a block, whose old contents are lost.
    pub(super) fn create(
        device: &Device,
        memory: Mapped,
        options: Options,
        thread: impl Rouse + 'static,
    ) -> Result<Queue, Error> {
        let block = Block::take(memory, options)?;
        let served = Served::new(device, &block)?;
        let scratch = block.part(SCRATCH, SCRATCH_BYTES)?;
        let key = device.register_mapped(&scratch, Access::LOCAL_WRITE)?;
        let export = block.export(served.number(), key);
        Ok(Queue {
            _bell: Bell::hang(export.doorbell, thread),
            served: Mutex::new(served),
            block,
            export,
            psn: first_psn(),
        })
    }

    pub(super) fn export(&self) -> Export {
        self.export
    }

    pub(super) fn counters_bytes(&self) -> usize {
        self.block.options.counters_bytes()
    }

    pub(super) fn reset(&self) -> Result<(), Error> {
        self.block.reset(self.export.qpn, |_| self.again())
    }

    pub(super) fn reset_counters(&self, counters: &Mapped) -> Result<(), Error> {
        let again = |_: &_| self.again();
        self.block.reset_counters(self.export.qpn, counters, again)
    }

    fn again(&self) -> Result<Option<u64>, Error> {
        let mut served = self.served.lock();
        for at in [RECORD, DOORBELL] {
            self.block.memory.u64(at).store(0, Ordering::Relaxed);
        }
        served.reset(&self.block).map(|()| None)
    }

    pub(super) fn counts(&self) -> Counts {
        self.served.lock().counts()
    }
}

impl Looked for Queue {
    /// Reads what was posted, posts it to the device, and writes what has completed.
    fn serve(&self, device: &Device) -> usize {
        self.served.lock().serve(device)
    }

    fn is_waiting(&self) -> bool {
        self.served.lock().is_waiting()
    }

    /// Tells threads of the CPU that post whether they have to wake the proxy's.
    fn lie_down(&self, is_asleep: bool) {
        let word = self.block.memory.u64(ASLEEP);
        word.store(is_asleep.into(), Ordering::Relaxed);
    }
}

impl Reached for Queue {
    fn reached(&self, device: &Device) -> Remote {
        device.reached(self.export.qpn, self.psn)
    }

    fn check_unconnected(&self) -> Result<(), Error> {
        match self.served.lock().state() {
            State::Reset => Ok(()),
            _ => Err(Error::Connected(self.export.qpn)),
        }
    }

    fn connect(&self, device: &Device, _: &Remote, theirs: &Remote) -> Result<(), Error> {
        self.check_unconnected()?;
        self.served.lock().connect(device, self.psn, theirs)?;
        self.block.connected();
        Ok(())
    }
}
