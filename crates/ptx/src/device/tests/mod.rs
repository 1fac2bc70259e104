//! The device's semantics, with closures for kernels.

mod activity;
mod by_kernel;
mod captures;
mod graphs;
mod order;
mod streams;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use super::*;
use crate::error::{Fault, FaultKind};

const WAIT_MAX: Duration = Duration::from_secs(20);
/// How long a test watches before it assumes that something never happens.
const QUIET: Duration = Duration::from_millis(30);

struct Closure<F>(F);

impl<F: Fn(&AtomicBool) -> Result<(), Fault> + Send + Sync> Code for Closure<F> {
    fn name(&self) -> &str {
        "closure"
    }

    fn run(&self, _: &Launch, running: &Running<'_>) -> Result<(), Fault> {
        self.0(running.cancel)
    }
}

/// Makes a kernel from a closure, which receives the flag that cancels it.
fn kernel(run: impl Fn(&AtomicBool) -> Result<(), Fault> + Send + Sync + 'static) -> Op {
    Op::Launch(Launch {
        code: Arc::new(Closure(run)),
        grid: [1; 3],
        block: [1; 3],
        shared_bytes: 0,
        cooperative: false,
        params: Arc::new([]),
    })
}

/// Makes a kernel that runs until the gate opens or it is cancelled.
fn gated(gate: &Arc<AtomicBool>) -> Op {
    let gate = gate.clone();
    kernel(move |cancel| {
        while !gate.load(Ordering::SeqCst) && !cancel.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    })
}

fn faulty() -> Op {
    kernel(|_| {
        Err(Fault {
            kind: FaultKind::IllegalAddress {
                address: 0x10,
                bytes: 4,
                write: true,
            },
            kernel: "faulty".into(),
            block: [0; 3],
            thread: [0; 3],
            line: 1,
        })
    })
}

struct Bench {
    gpu: Gpu,
    context: ContextId,
    base: u64,
}

/// Makes a device with a context and 1 MiB of memory at `base`.
fn bench() -> Bench {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let base = 0x2200_0000_0000 + (NEXT.fetch_add(1, Ordering::SeqCst) << 32);
    let gpu = Gpu::new(Memory::reserve(base, 1 << 30, 1 << 20).unwrap());
    gpu.map(base, 1 << 20).unwrap();
    let context = gpu.create_context();
    Bench { gpu, context, base }
}

impl Bench {
    fn legacy(&self) -> StreamId {
        self.gpu.legacy_stream(self.context).unwrap()
    }

    fn blocking(&self) -> StreamId {
        self.gpu
            .create_stream(self.context, StreamKind::Blocking, 0)
            .unwrap()
    }

    fn non_blocking(&self) -> StreamId {
        self.gpu
            .create_stream(self.context, StreamKind::NonBlocking, 0)
            .unwrap()
    }

    fn event(&self) -> EventId {
        self.gpu.create_event(self.context, true).unwrap()
    }

    fn set32(&self, stream: StreamId, address: u64, value: u32) {
        self.gpu.submit(stream, set32(address, value)).unwrap();
    }

    /// Returns the word in memory now, without waiting for queued work.
    fn peek32(&self, address: u64) -> u32 {
        let mut word = [0; 4];
        self.gpu.memory().read(address, &mut word).unwrap();
        u32::from_le_bytes(word)
    }

    fn sync(&self, stream: StreamId) -> Result<(), Error> {
        wait(&mut self.gpu.stream_fence(stream)?)
    }
}

fn set32(address: u64, value: u32) -> Op {
    Op::Set(Set {
        dst: address,
        pitch_bytes: 0,
        value,
        element_bytes: 4,
        width: 1,
        height: 1,
    })
}

fn wait(fence: &mut Fence) -> Result<(), Error> {
    let start = Instant::now();
    while !fence.ready()? {
        assert!(start.elapsed() < WAIT_MAX, "the fence was never reached");
        thread::sleep(Duration::from_micros(100));
    }
    Ok(())
}

/// Whether the fence is still not reached after `QUIET`.
fn stays_pending(fence: &mut Fence) -> bool {
    thread::sleep(QUIET);
    !fence.ready().unwrap()
}

fn gate() -> Arc<AtomicBool> {
    Arc::new(AtomicBool::new(false))
}

fn open(gate: &Arc<AtomicBool>) {
    gate.store(true, Ordering::SeqCst);
}
