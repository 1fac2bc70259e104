//! An endpoint of the adapter that is a kernel.

use std::{
    collections::HashMap,
    ffi::c_void,
    sync::{Arc, OnceLock},
};

use parking_lot::Mutex;

use crate::{
    adapter::PairSetup,
    bell::{Bell, Rouse},
    block::{ASLEEP, Block, Export, Options, SCRATCH, UNRELIABLE},
    endpoint::{Counts, Endpoint, mapped},
    error::Error,
    keys::Access,
    meet::{Meeting, Window},
    memory::Mapped,
    provider::Provider,
    queue::{clear, pair, received, sent},
};

use super::{
    adapter::KernelAdapter,
    run::{Runner, Shared},
};

/// Domain of all memory of a program.
const DOMAIN: u32 = 1;

/// A queue, and its parts in the adapter.
#[derive(Debug)]
struct Queue {
    _bell: Bell,
    block: Block,
    setup: PairSetup,
    export: Export,
}

/// An endpoint whose entries a kernel executes, in the context of the first call.
#[derive(Debug)]
pub(crate) struct OfKernel {
    blocks: u32,
    warps: u32,
    starting: Mutex<()>,
    runner: OnceLock<Runner>,
    queues: Mutex<HashMap<u32, Arc<Queue>>>,
}

/// Wakes the kernel's thread.
#[derive(Debug)]
struct Waker(Arc<Shared>);

impl Rouse for Waker {
    fn rouse(&self) {
        self.0.rouse();
    }
}

impl OfKernel {
    pub(crate) fn new(blocks: u32, warps: u32) -> OfKernel {
        OfKernel {
            blocks,
            warps,
            starting: Mutex::default(),
            runner: OnceLock::new(),
            queues: Mutex::default(),
        }
    }

    fn shared(&self) -> Result<&Arc<Shared>, Error> {
        let _one_at_a_time = self.starting.lock();
        if self.runner.get().is_none() {
            let _ = self.runner.set(Runner::start(self.blocks, self.warps)?);
        }
        let runner = self.runner.get().map(Runner::shared);
        runner.ok_or(Error::Null("adapter"))
    }

    fn queue(&self, qpn: u32) -> Result<Arc<Queue>, Error> {
        let queues = self.queues.lock();
        queues.get(&qpn).cloned().ok_or(Error::NoPair(qpn))
    }

    /// Fails unless the kernel reaches memory by the program's addresses.
    fn check(shared: &Shared, address: u64, bytes: u64) -> Result<(), Error> {
        let reaches = shared.gpu().within(|gpu| Ok(gpu.reaches(address, bytes)));
        match reaches.map_err(Error::Kernel)? {
            true => Ok(()),
            false => Err(Error::NotReached { address, bytes }),
        }
    }
}

/// Makes the parts of a queue. What was made before a failure is ended.
fn make(adapter: &mut KernelAdapter, block: &Block) -> Result<(PairSetup, Export), Error> {
    let sends = adapter.create_completions(sent(block)?)?;
    let made = receives(adapter, block, sends).and_then(|receives| {
        let made = make_pair(adapter, block, sends, receives);
        if made.is_err() && receives != sends {
            adapter.destroy_completions(receives)?;
        }
        made
    });
    if made.is_err() {
        adapter.destroy_completions(sends)?;
    }
    made
}

/// Makes the completion queue of receives, or takes that of sends if nothing is received.
fn receives(adapter: &mut KernelAdapter, block: &Block, sends: u32) -> Result<u32, Error> {
    match received(block)? {
        Some(setup) => adapter.create_completions(setup),
        None => Ok(sends),
    }
}

fn make_pair(
    adapter: &mut KernelAdapter,
    block: &Block,
    sends: u32,
    receives: u32,
) -> Result<(PairSetup, Export), Error> {
    let setup = pair(block, sends, receives)?;
    let qpn = adapter.create_pair(&setup)?;
    let scratch = block.part(SCRATCH, 64)?;
    let (address, access) = (scratch.address(), Access::LOCAL_WRITE);
    match adapter.register(DOMAIN, address, 64, access) {
        Ok(scratch_key) => {
            if block.options.flags & UNRELIABLE != 0 {
                adapter.set_unreliable(qpn)?;
            }
            Ok((setup, block.export(qpn, scratch_key)))
        }
        Err(error) => adapter.destroy_pair(qpn).and(Err(error)),
    }
}

impl Queue {
    /// Puts the queue back where entries are executed.
    fn again(&self, shared: &Shared) -> Result<Option<u64>, Error> {
        let (block, setup) = (&self.block, &self.setup);
        shared.with(|adapter| {
            clear(block);
            adapter.reset_completions(setup.send_completions, sent(block)?)?;
            if let Some(receives) = received(block)? {
                adapter.reset_completions(setup.receive_completions, receives)?;
            }
            adapter.reset(self.export.qpn, setup).map(|()| None)
        })
    }

    fn is_unreliable(&self) -> bool {
        self.block.options.flags & UNRELIABLE != 0
    }
}

impl Endpoint for OfKernel {
    fn provider(&self) -> Provider {
        Provider::Nic
    }

    unsafe fn register(&self, at: *mut c_void, bytes: u64, access: Access) -> Result<u32, Error> {
        let address = at as u64;
        if address == 0 {
            return Err(Error::Null("memory"));
        }
        if address.checked_add(bytes).is_none() {
            return Err(Error::Wraps { address, bytes });
        }
        let shared = self.shared()?;
        OfKernel::check(shared, address, bytes)?;
        shared.with(|adapter| adapter.register(DOMAIN, address, bytes, access))
    }

    unsafe fn create(
        &self,
        at: *mut c_void,
        bytes: u64,
        options: Options,
    ) -> Result<Export, Error> {
        // SAFETY: the caller keeps the memory mapped.
        let memory: Mapped = unsafe { mapped(at, bytes, true) }?;
        let shared = self.shared()?;
        OfKernel::check(shared, at as u64, bytes)?;
        let block = Block::take(memory, options)?;
        let (setup, export) = shared.with(|adapter| make(adapter, &block))?;
        shared.tell_posters(block.part(ASLEEP, 8)?);
        let queue = Queue {
            _bell: Bell::hang(export.doorbell, Waker(shared.clone())),
            block,
            setup,
            export,
        };
        self.queues.lock().insert(export.qpn, Arc::new(queue));
        Ok(export)
    }

    fn connect(&self, one: u32, other: u32) -> Result<(), Error> {
        let (one, other) = (self.queue(one)?, self.queue(other)?);
        let (a, b) = (one.export.qpn, other.export.qpn);
        if one.is_unreliable() != other.is_unreliable() {
            return Err(Error::Reliability(if one.is_unreliable() { a } else { b }));
        }
        self.shared()?.with(|adapter| {
            let (of_a, of_b) = (adapter.unconnected(a)?, adapter.unconnected(b)?);
            adapter.connect(a, of_b)?;
            adapter.connect(b, of_a)
        })?;
        one.block.connected();
        other.block.connected();
        Ok(())
    }

    fn meet(&self, _qpn: u32, _meeting: Meeting<'_>, _mine: Window) -> Result<Window, Error> {
        Err(Error::Unsupported("outboard_net_meet"))
    }

    fn reset(&self, qpn: u32) -> Result<(), Error> {
        let (queue, shared) = (self.queue(qpn)?, self.shared()?);
        queue.block.reset(qpn, |_| queue.again(shared))
    }

    unsafe fn reset_counters(&self, qpn: u32, counters: *mut c_void) -> Result<(), Error> {
        let (queue, shared) = (self.queue(qpn)?, self.shared()?);
        let bytes = queue.block.options.counters_bytes() as u64;
        // SAFETY: the caller lends the counters for this call.
        let counters = unsafe { mapped(counters, bytes, true) }?;
        let block = &queue.block;
        block.reset_counters(qpn, &counters, |_| queue.again(shared))
    }

    fn counts(&self, qpn: u32) -> Result<Counts, Error> {
        self.queue(qpn)?;
        let status = self.shared()?.with(|adapter| adapter.status(qpn))?;
        Ok(Counts {
            succeeded: status.succeeded,
            flushed: status.flushed,
            retries: status.retries,
            failure: status.failure,
        })
    }
}
