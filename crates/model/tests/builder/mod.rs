//! Recordings for tests, made by hand or at random.

#![allow(dead_code)]

use outboard_trace::{Call, Class, GpuTimes, GpuWork, Mark, Record, Trace, Work};

/// Builds a recording call by call. Each thread has a clock of its own.
#[derive(Debug, Default)]
pub(crate) struct Builder {
    trace: Trace,
    clocks_ns: Vec<u64>,
    correlation: u32,
}

/// A call to be recorded.
#[derive(Debug, Clone)]
pub(crate) struct C {
    pub(crate) name: &'static str,
    pub(crate) class: Class,
    pub(crate) thread: u32,
    pub(crate) ns: u64,
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) stream: u32,
    pub(crate) status: u32,
}

pub(crate) fn call(name: &'static str, class: Class, ns: u64) -> C {
    C {
        name,
        class,
        thread: 0,
        ns,
        sent: if class == Class::Local { 0 } else { 64 },
        received: if class == Class::Synchronous { 64 } else { 0 },
        stream: 0,
        status: 0,
    }
}

pub(crate) fn launch(ns: u64) -> C {
    call("cuLaunchKernel", Class::Outstanding, ns)
}

pub(crate) fn synchronize(ns: u64) -> C {
    call("cuStreamSynchronize", Class::Synchronous, ns)
}

impl C {
    pub(crate) fn thread(self, thread: u32) -> C {
        C { thread, ..self }
    }

    pub(crate) fn stream(self, stream: u32) -> C {
        C { stream, ..self }
    }

    pub(crate) fn bytes(self, sent: u64, received: u64) -> C {
        C {
            sent,
            received,
            ..self
        }
    }

    pub(crate) fn status(self, status: u32) -> C {
        C { status, ..self }
    }
}

impl Builder {
    pub(crate) fn new() -> Builder {
        let mut builder = Builder::default();
        builder.trace.about.gpu_times = GpuTimes::Cupti;
        builder.trace.complete = true;
        builder
    }

    fn clock(&mut self, thread: u32) -> &mut u64 {
        let index = thread as usize;
        if self.clocks_ns.len() <= index {
            self.clocks_ns.resize(index + 1, 0);
        }
        &mut self.clocks_ns[index]
    }

    pub(crate) fn now(&mut self, thread: u32) -> u64 {
        *self.clock(thread)
    }

    /// Lets the thread compute.
    pub(crate) fn compute(&mut self, thread: u32, ns: u64) -> &mut Builder {
        *self.clock(thread) += ns;
        self
    }

    pub(crate) fn set_clock(&mut self, thread: u32, ns: u64) -> &mut Builder {
        *self.clock(thread) = ns;
        self
    }

    pub(crate) fn name(&mut self, name: &str) -> u32 {
        if let Some(index) = self.trace.names.iter().position(|known| known == name) {
            return index as u32;
        }
        self.trace.names.push(name.into());
        self.trace.names.len() as u32 - 1
    }

    /// Adds a call without work on the GPU.
    pub(crate) fn call(&mut self, call: C) -> &mut Builder {
        self.record(call, 0);
        self
    }

    /// Adds a call that starts work, which begins and ends at these times.
    pub(crate) fn gpu(
        &mut self,
        call: C,
        kind: GpuWork,
        start_ns: u64,
        ns: u64,
        bytes: u64,
    ) -> &mut Builder {
        self.correlation += 1;
        let name = self.name("kernel");
        let work = Work {
            kind,
            name,
            device: 0,
            stream: call.stream,
            start_ns,
            duration_ns: ns,
            bytes,
            correlation: self.correlation,
        };
        self.record(call, self.correlation);
        self.trace.records.push(Record::Work(work));
        self
    }

    fn record(&mut self, call: C, correlation: u32) {
        let function = self.name(call.name);
        let start_ns = self.now(call.thread);
        *self.clock(call.thread) += call.ns;
        self.trace.records.push(Record::Call(Call {
            function,
            class: call.class,
            thread: call.thread,
            start_ns,
            duration_ns: call.ns,
            request_bytes: call.sent,
            response_bytes: call.received,
            stream: call.stream,
            event: 0,
            correlation,
            status: call.status,
            server: 0,
        }));
    }

    /// Adds the beginning or end of an iteration.
    pub(crate) fn mark(&mut self, thread: u32, is_end: bool) -> &mut Builder {
        self.named_mark("iteration", thread, is_end)
    }

    pub(crate) fn named_mark(&mut self, name: &str, thread: u32, is_end: bool) -> &mut Builder {
        let name = self.name(name);
        let at_ns = self.now(thread);
        self.trace.records.push(Record::Mark(Mark {
            name,
            thread,
            at_ns,
            is_end,
        }));
        self
    }

    pub(crate) fn build(&mut self) -> Trace {
        std::mem::take(self).trace
    }

    pub(crate) fn trace(&mut self) -> &mut Trace {
        &mut self.trace
    }
}

/// Random numbers, equal for equal seeds.
#[derive(Debug, Clone)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number from a to b, b excluded.
    pub(crate) fn range(&mut self, a: u64, b: u64) -> u64 {
        a + self.next() % (b - a)
    }

    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.next().is_multiple_of(n)
    }
}

/// Makes iterations of `calls` calls each on one thread, on a GPU with `streams` streams, as a
/// driver would have run them.
pub(crate) fn random(seed: u64, iterations: usize, calls: usize, streams: u64) -> Trace {
    let mut rng = Rng::new(seed);
    let mut b = Builder::new();
    for _ in 0..iterations {
        let mut shape = Rng::new(seed ^ 0xabcdef);
        let mut free_ns = vec![0_u64; streams as usize + 1];
        b.compute(0, rng.range(0, 20_000));
        b.mark(0, false);
        for _ in 0..calls {
            b.compute(0, rng.range(0, 3_000));
            one(&mut b, &mut shape, &mut rng, &mut free_ns, streams);
        }
        let end_ns = *free_ns.iter().max().unwrap();
        let took_ns = 2_000 + end_ns.saturating_sub(b.now(0));
        b.call(call("cuCtxSynchronize", Class::Synchronous, took_ns));
        b.mark(0, true);
    }
    b.build()
}

fn one(b: &mut Builder, shape: &mut Rng, rng: &mut Rng, free_ns: &mut [u64], streams: u64) {
    let now = b.now(0);
    let stream = 1 + shape.range(0, streams) as u32;
    let free = &mut free_ns[stream as usize];
    let ready_ns = (now + 4_000).max(*free + 900);
    match shape.range(0, 20) {
        0..=8 => {
            let ns = rng.range(1_000, 60_000);
            *free = ready_ns + ns;
            let took = rng.range(1_500, 4_000);
            b.gpu(
                launch(took).stream(stream),
                GpuWork::Kernel,
                ready_ns,
                ns,
                0,
            );
        }
        9..=13 => {
            let took = rng.range(40, 300);
            b.call(call("cuCtxGetDevice", Class::Local, took));
        }
        14 => {
            let took = rng.range(800, 9_000);
            b.call(call("cuMemAllocAsync", Class::Shadowed, took));
        }
        15 => {
            let bytes = shape.range(4, 2_000_000);
            let ns = 1_500 + bytes / 12;
            *free = ready_ns + ns;
            let copy = call("cuMemcpyHtoDAsync_v2", Class::Outstanding, 3_000);
            let copy = copy.stream(stream).bytes(bytes + 64, 0);
            b.gpu(copy, GpuWork::CopyToDevice, ready_ns, ns, bytes);
        }
        16 => {
            let bytes = shape.range(4, 200_000);
            let ns = 1_500 + bytes / 12;
            *free = ready_ns + ns;
            let copy = call(
                "cuMemcpyDtoHAsync_v2",
                Class::Synchronous,
                *free + 2_000 - now,
            );
            let copy = copy.stream(stream).bytes(64, bytes + 64);
            b.gpu(copy, GpuWork::CopyToHost, ready_ns, ns, bytes);
        }
        17 => {
            let until = (now + 1_000).max(*free + 1_500);
            b.call(synchronize(until - now).stream(stream));
        }
        18 => {
            let ns = rng.range(1_000, 5_000);
            *free = ready_ns + ns;
            let set = call("cuMemsetD8Async", Class::Outstanding, 2_000).stream(stream);
            b.gpu(set, GpuWork::Memset, ready_ns, ns, 4_096);
        }
        _ => {
            b.call(call("cuEventRecord", Class::Outstanding, 600).stream(stream));
        }
    }
}
