//! The process that makes the calls of one side: `outboard bench-worker`. It measures the driver
//! that its loader finds, and uses nothing of CUDA above the driver.

use std::{
    hint::black_box,
    io::{BufRead, Write},
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use outboard_api::cuda::{CUdeviceptr, CUevent, CUfunction, CUgraphExec};
use rustix::process::{Signal, set_parent_process_death_signal};

use super::{
    cases::{
        BETWEEN_BYTES, CACHE_LINE_BYTES, COPY_BYTES_MAX, GRAPH_NODES, Operation, QUEUED_LAUNCHES,
        SINGLE_LAUNCHES, STEP_INPUT_BYTES, STEP_KERNELS,
    },
    driver::{Arguments, Driver, Pinned},
    net_worker,
    protocol::{Ready, Reply, Request},
    statistics::median,
};

/// One warp: as small as a kernel can usefully be.
const THREADS: u32 = 32;
const COUNTER_BYTES: usize = THREADS as usize * 4;
/// Calls timed together, for calls shorter than a reading of the clock.
const CALLS: usize = 200;
const ALLOCATIONS: usize = 20;
const QUEUED_GRAPHS: usize = 100;
const ALLOCATION_BYTES: usize = 1 << 20;
const ALLOCATION_ASYNC_BYTES: usize = 64 << 10;
/// Duration of a kernel that later work has to wait for, in nanoseconds.
const SPIN_NS: u64 = 5_000_000;
const SPIN_CALIBRATION_TURNS: u64 = 20_000;
/// Longest kernel that is waited for.
const KERNEL_NS_MAX: u64 = 1_000_000_000;
/// Most samples of a pending query that are dropped because the kernel was already done.
const MISSED_MAX: usize = 100;

pub(crate) fn worker() -> anyhow::Result<ExitCode> {
    let start = Instant::now();
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let mut bench = match Bench::start(start) {
        Ok((bench, ready)) => {
            say(&Reply::Ready(ready))?;
            bench
        }
        Err(error) => {
            say(&failed(&error))?;
            return Ok(ExitCode::FAILURE);
        }
    };
    for line in std::io::stdin().lock().lines() {
        let reply = match serde_json::from_str(&line?)? {
            Request::Net(case) => net_worker::run(&bench.driver, &case).map(Reply::Net),
            Request::Memory => bench.driver.memory().map(|(free, _)| Reply::Memory {
                free_bytes: free as u64,
            }),
            Request::Run {
                work,
                samples,
                budget_ms,
            } => bench
                .run(work, samples, Duration::from_millis(budget_ms))
                .inspect_err(|_| bench.recount()),
        };
        say(&reply.unwrap_or_else(|error| failed(&error)))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn failed(error: &anyhow::Error) -> Reply {
    Reply::Failed {
        why: crate::said::whole(error),
    }
}

fn say(reply: &Reply) -> anyhow::Result<()> {
    let mut line = serde_json::to_vec(reply)?;
    line.push(b'\n');
    let mut out = std::io::stdout().lock();
    out.write_all(&line)?;
    out.flush()?;
    Ok(())
}

struct Bench {
    driver: Driver,
    count: CUfunction,
    count_20: CUfunction,
    spin: CUfunction,
    occupy: CUfunction,
    counter: CUdeviceptr,
    counter_arguments: Arguments,
    counter_20_arguments: Arguments,
    /// The expected value of the counter.
    counted: u32,
    sink: CUdeviceptr,
    /// Turns that take about [`SPIN_NS`]; 0 before the first measurement.
    spin_turns: u64,
    graph: Option<CUgraphExec>,
    /// Memory for copies, allocated when first needed.
    device: Option<CUdeviceptr>,
    pinned: Option<Pinned>,
    pageable: Vec<u8>,
}

/// End of sampling: a number of samples, or a time.
#[derive(Clone, Copy)]
struct Span {
    samples: usize,
    deadline: Instant,
}

impl Bench {
    fn start(start: Instant) -> anyhow::Result<(Bench, Ready)> {
        let driver = Driver::open()?;
        let connect = start.elapsed();
        let module = driver.load(include_str!("kernels.ptx"))?;
        let counter = driver.allocate(COUNTER_BYTES)?;
        let sink = driver.allocate(COUNTER_BYTES)?;
        driver.memset(counter, 0, COUNTER_BYTES)?;
        let mut twenty = [0; 20];
        (twenty[0], twenty[19]) = (counter, 1);
        let mut bench = Bench {
            count: driver.function(module, "count")?,
            count_20: driver.function(module, "count_20")?,
            spin: driver.function(module, "spin")?,
            occupy: driver.function(module, "occupy")?,
            counter_arguments: Arguments::new(&[counter]),
            counter_20_arguments: Arguments::new(&twenty),
            counter,
            counted: 0,
            sink,
            spin_turns: 0,
            graph: None,
            device: None,
            pinned: None,
            pageable: Vec::new(),
            driver,
        };
        bench.launch()?;
        bench.driver.synchronize()?;
        bench.check_counter()?;
        let ready = Ready {
            device: bench.driver.name.clone(),
            driver_version: bench.driver.version,
            library: bench.driver.library.display().to_string(),
            connect_ns: ns(connect),
            first_result_ns: ns(start.elapsed()),
        };
        Ok((bench, ready))
    }

    fn run(&mut self, work: Operation, samples: usize, budget: Duration) -> anyhow::Result<Reply> {
        let start = Instant::now();
        let span = Span {
            samples,
            deadline: start + budget,
        };
        let ns_each = self.measure(work, span)?;
        let whole = ns(start.elapsed());
        self.driver.synchronize()?;
        self.check_counter()?;
        Ok(Reply::Samples {
            ns: ns_each,
            span_ns: whole,
        })
    }

    fn measure(&mut self, work: Operation, span: Span) -> anyhow::Result<Vec<f64>> {
        match work {
            Operation::ContextDevice => self.calls(span, |b| b.driver.context_device().map(drop)),
            Operation::MemoryInfo => self.calls(span, |b| b.driver.memory().map(drop)),
            Operation::EventRecord => self.with_event(span, |b, event| b.driver.record(event)),
            Operation::EventQueryDone => {
                self.with_event(span, |b, event| b.driver.is_event_done(event).map(drop))
            }
            Operation::EventQueryPending => self.pending_queries(span),
            Operation::StreamQueryDone => self.calls(span, |b| b.driver.is_stream_done().map(drop)),
            Operation::EventCreateDestroy => {
                self.calls(span, |b| b.driver.destroy_event(b.driver.event()?))
            }
            Operation::Allocate => self.sampled(span, ALLOCATIONS, |b| {
                b.driver.free(b.driver.allocate(ALLOCATION_BYTES)?)
            }),
            Operation::AllocateAsync => self.calls(span, |b| {
                let address = b.driver.allocate_async(ALLOCATION_ASYNC_BYTES)?;
                b.driver.free_async(address)
            }),
            Operation::SynchronizeIdle => self.calls(span, |b| b.driver.synchronize_context()),
            Operation::LaunchSynchronize => self.waited(span, |b| {
                b.launch()?;
                b.driver.synchronize()
            }),
            Operation::SynchronizeAfterLaunch => self.synchronizations(span),
            Operation::LaunchCall => self.sampled(span, QUEUED_LAUNCHES, Bench::launch),
            Operation::LaunchBetween => self.between(span, Bench::launch),
            Operation::LaunchQueued => self.queued(span, QUEUED_LAUNCHES, Bench::launch),
            Operation::LaunchQueued20 => self.queued(span, QUEUED_LAUNCHES, |b| {
                b.counted = b.counted.wrapping_add(1);
                b.driver
                    .launch(b.count_20, THREADS, &b.counter_20_arguments)
            }),
            Operation::GraphQueued => {
                self.prepare_graph()?;
                self.queued(span, QUEUED_GRAPHS, Bench::replay)
            }
            Operation::GraphCall => {
                self.prepare_graph()?;
                self.sampled(span, QUEUED_GRAPHS, Bench::replay)
            }
            Operation::GraphSynchronize => {
                self.prepare_graph()?;
                self.waited(span, |b| {
                    b.replay()?;
                    b.driver.synchronize()
                })
            }
            Operation::ItemPinned => self.pinned_items(span),
            Operation::ItemPageable => {
                let mut four = [0; 4];
                self.waited(span, |b| b.driver.copy_to_host(&mut four, b.counter))
            }
            Operation::ItemAfter { kernel_ns } => self.items_after(span, kernel_ns),
            Operation::ToDevice { bytes, pinned } => self.copies(span, bytes, pinned, true),
            Operation::ToDeviceCall { bytes } => self.copy_calls(span, bytes),
            Operation::ToHost { bytes, pinned } => self.copies(span, bytes, pinned, false),
            Operation::Memset { bytes } => self.memsets(span, bytes),
            Operation::Step => self.steps(span),
            Operation::Nothing => anyhow::bail!("there is nothing to measure"),
        }
    }

    fn pinned_items(&mut self, span: Span) -> anyhow::Result<Vec<f64>> {
        let mut four = self.driver.pinned(4)?;
        let times = self.waited(span, |b| b.driver.copy_to_pinned(&mut four, b.counter, 4));
        self.driver.free_pinned(four)?;
        times
    }

    /// Times a kernel and the wait for four bytes behind it, between other things.
    fn items_after(&mut self, span: Span, kernel_ns: u64) -> anyhow::Result<Vec<f64>> {
        ensure!(
            kernel_ns <= KERNEL_NS_MAX,
            "{kernel_ns} ns are a kernel too long"
        );
        let arguments = Arguments::new(&[self.sink, kernel_ns]);
        let mut touched = vec![0u8; BETWEEN_BYTES];
        let mut four = self.driver.pinned(4)?;
        let times = self.waited_between(span, &mut touched, |b| {
            b.driver.launch(b.occupy, 1, &arguments)?;
            b.driver.copy_to_pinned(&mut four, b.counter, 4)
        });
        self.driver.free_pinned(four)?;
        times
    }

    fn copy_calls(&mut self, span: Span, bytes: usize) -> anyhow::Result<Vec<f64>> {
        ensure!(bytes <= COPY_BYTES_MAX, "{bytes} bytes are too many");
        let (device, host) = (self.device_memory()?, vec![1; bytes]);
        self.sampled(span, 1, |b| b.driver.copy_to_device(device, &host))
    }

    fn memsets(&mut self, span: Span, bytes: usize) -> anyhow::Result<Vec<f64>> {
        ensure!(bytes <= COPY_BYTES_MAX, "{bytes} bytes are too many");
        let device = self.device_memory()?;
        self.waited(span, |b| {
            b.driver.memset(device, 7, bytes)?;
            b.driver.synchronize()
        })
    }

    /// Times `calls` calls per sample, in nanoseconds per call; work left on the stream afterwards
    /// is not timed.
    fn sampled(
        &mut self,
        span: Span,
        calls: usize,
        mut call: impl FnMut(&mut Bench) -> anyhow::Result<()>,
    ) -> anyhow::Result<Vec<f64>> {
        // The first call does work that is not repeated, and is not timed.
        call(self)?;
        self.driver.synchronize()?;
        let mut times = Vec::new();
        loop {
            let start = Instant::now();
            for _ in 0..calls {
                call(self)?;
            }
            times.push(ns(start.elapsed()) as f64 / calls as f64);
            self.driver.synchronize()?;
            if span.is_over(times.len()) {
                return Ok(times);
            }
        }
    }

    /// Times a call between which the program does other things: the median of a sample's, in
    /// nanoseconds.
    fn between(
        &mut self,
        span: Span,
        mut call: impl FnMut(&mut Bench) -> anyhow::Result<()>,
    ) -> anyhow::Result<Vec<f64>> {
        let mut touched = vec![0u8; BETWEEN_BYTES];
        let mut times = Vec::new();
        loop {
            let mut singles = Vec::with_capacity(SINGLE_LAUNCHES);
            for _ in 0..SINGLE_LAUNCHES {
                touch(&mut touched);
                let looked = Instant::now();
                let start = Instant::now();
                call(self)?;
                let took = ns(start.elapsed());
                singles.push(took.saturating_sub(ns(start - looked)) as f64);
            }
            times.push(median(&singles).context("nothing was measured")?);
            self.driver.synchronize()?;
            if span.is_over(times.len()) {
                return Ok(times);
            }
        }
    }

    /// Times one call that waits by itself, in nanoseconds.
    fn waited(
        &mut self,
        span: Span,
        mut call: impl FnMut(&mut Bench) -> anyhow::Result<()>,
    ) -> anyhow::Result<Vec<f64>> {
        call(self)?;
        let mut times = Vec::new();
        loop {
            let start = Instant::now();
            call(self)?;
            times.push(ns(start.elapsed()) as f64);
            if span.is_over(times.len()) {
                return Ok(times);
            }
        }
    }

    /// Times one call that waits by itself, in nanoseconds; before each, it uses `touched`.
    fn waited_between(
        &mut self,
        span: Span,
        touched: &mut [u8],
        mut call: impl FnMut(&mut Bench) -> anyhow::Result<()>,
    ) -> anyhow::Result<Vec<f64>> {
        call(self)?;
        let mut times = Vec::new();
        loop {
            touch(touched);
            let start = Instant::now();
            call(self)?;
            times.push(ns(start.elapsed()) as f64);
            if span.is_over(times.len()) {
                return Ok(times);
            }
        }
    }

    /// Times `calls` calls without a wait, and one at the end that is included.
    fn queued(
        &mut self,
        span: Span,
        calls: usize,
        mut call: impl FnMut(&mut Bench) -> anyhow::Result<()>,
    ) -> anyhow::Result<Vec<f64>> {
        let mut times = self.waited(span, |bench| {
            for _ in 0..calls {
                call(bench)?;
            }
            bench.driver.synchronize()
        })?;
        times.iter_mut().for_each(|time| *time /= calls as f64);
        Ok(times)
    }

    fn calls(
        &mut self,
        span: Span,
        call: impl FnMut(&mut Bench) -> anyhow::Result<()>,
    ) -> anyhow::Result<Vec<f64>> {
        self.sampled(span, CALLS, call)
    }

    fn with_event(
        &mut self,
        span: Span,
        mut call: impl FnMut(&mut Bench, CUevent) -> anyhow::Result<()>,
    ) -> anyhow::Result<Vec<f64>> {
        let event = self.driver.event()?;
        self.driver.record(event)?;
        self.driver.synchronize()?;
        let times = self.calls(span, |bench| call(bench, event));
        self.driver.destroy_event(event)?;
        times
    }

    /// Times the wait for a kernel, without its launch.
    fn synchronizations(&mut self, span: Span) -> anyhow::Result<Vec<f64>> {
        let mut times = Vec::new();
        while times.is_empty() || !span.is_over(times.len()) {
            self.launch()?;
            let start = Instant::now();
            self.driver.synchronize()?;
            times.push(ns(start.elapsed()) as f64);
        }
        Ok(times)
    }

    fn pending_queries(&mut self, span: Span) -> anyhow::Result<Vec<f64>> {
        if self.spin_turns == 0 {
            self.calibrate()?;
        }
        let event = self.driver.event()?;
        let (mut times, mut missed) = (Vec::new(), 0);
        while !span.is_over(times.len()) || times.is_empty() {
            self.spin(self.spin_turns)?;
            self.driver.record(event)?;
            black_box(self.driver.is_event_done(event)?);
            let start = Instant::now();
            let mut is_done = false;
            for _ in 0..CALLS {
                is_done = self.driver.is_event_done(event)?;
            }
            let time = ns(start.elapsed()) as f64 / CALLS as f64;
            self.driver.synchronize()?;
            if is_done {
                missed += 1;
                ensure!(
                    missed < MISSED_MAX,
                    "the device is done before it can be asked"
                );
                self.spin_turns *= 2;
            } else {
                times.push(time);
            }
        }
        self.driver.destroy_event(event)?;
        Ok(times)
    }

    fn calibrate(&mut self) -> anyhow::Result<()> {
        self.spin(1)?;
        self.driver.synchronize()?;
        let start = Instant::now();
        self.spin(SPIN_CALIBRATION_TURNS)?;
        self.driver.synchronize()?;
        let each = ns(start.elapsed()).max(1) as f64 / SPIN_CALIBRATION_TURNS as f64;
        self.spin_turns = ((SPIN_NS as f64 / each) as u64).max(SPIN_CALIBRATION_TURNS);
        Ok(())
    }

    fn spin(&self, turns: u64) -> anyhow::Result<()> {
        let arguments = Arguments::new(&[self.sink, turns]);
        self.driver.launch(self.spin, 1, &arguments)
    }

    #[inline]
    fn launch(&mut self) -> anyhow::Result<()> {
        self.counted = self.counted.wrapping_add(1);
        self.driver
            .launch(self.count, THREADS, &self.counter_arguments)
    }

    fn prepare_graph(&mut self) -> anyhow::Result<()> {
        if self.graph.is_none() {
            let record = || {
                (0..GRAPH_NODES).try_for_each(|_| {
                    self.driver
                        .launch(self.count, THREADS, &self.counter_arguments)
                })
            };
            self.graph = Some(self.driver.capture(record)?);
        }
        Ok(())
    }

    #[inline]
    fn replay(&mut self) -> anyhow::Result<()> {
        if let Some(graph) = self.graph {
            self.counted = self.counted.wrapping_add(GRAPH_NODES as u32);
            self.driver.launch_graph(graph)?;
        }
        Ok(())
    }

    fn device_memory(&mut self) -> anyhow::Result<CUdeviceptr> {
        if let Some(device) = self.device {
            return Ok(device);
        }
        let device = self.driver.allocate(COPY_BYTES_MAX)?;
        self.device = Some(device);
        Ok(device)
    }

    /// Times copies one way, each waited for; the bytes must have arrived.
    fn copies(
        &mut self,
        span: Span,
        bytes: usize,
        is_pinned: bool,
        to_device: bool,
    ) -> anyhow::Result<Vec<f64>> {
        ensure!(
            (4..=COPY_BYTES_MAX).contains(&bytes),
            "{bytes} bytes cannot be copied"
        );
        let device = self.device_memory()?;
        let mut pinned = match self.pinned.take() {
            Some(pinned) => pinned,
            None => self.driver.pinned(COPY_BYTES_MAX)?,
        };
        let mut pageable = std::mem::take(&mut self.pageable);
        pageable.resize(COPY_BYTES_MAX, 0);
        let host = if is_pinned {
            pinned.bytes()
        } else {
            &mut pageable
        };
        let marks = marks(bytes);
        let value = (self.counted as u8).wrapping_add(u8::from(to_device)) | 1;
        if to_device {
            marks.iter().for_each(|at| host[*at] = value);
            self.driver.memset(device, 0, bytes)?;
        } else {
            marks.iter().for_each(|at| host[*at] = 0);
            self.driver.memset(device, value, bytes)?;
        }
        self.driver.synchronize()?;
        let times = self.waited(span, |b| match (to_device, is_pinned) {
            (true, true) => b.driver.copy_from_pinned(device, &pinned, bytes),
            (true, false) => {
                b.driver.copy_to_device(device, &pageable[..bytes])?;
                b.driver.synchronize_context()
            }
            (false, true) => b.driver.copy_to_pinned(&mut pinned, device, bytes),
            (false, false) => b.driver.copy_to_host(&mut pageable[..bytes], device),
        })?;
        for at in marks {
            let found = match (to_device, is_pinned) {
                (true, _) => {
                    let mut byte = [0];
                    self.driver.copy_to_host(&mut byte, device + at as u64)?;
                    byte[0]
                }
                (false, true) => pinned.bytes()[at],
                (false, false) => pageable[at],
            };
            ensure!(
                found == value,
                "byte {at} of {bytes} arrived as {found}, and was sent as {value}"
            );
        }
        self.pinned = Some(pinned);
        self.pageable = pageable;
        Ok(times)
    }

    fn steps(&mut self, span: Span) -> anyhow::Result<Vec<f64>> {
        let device = self.device_memory()?;
        let input = vec![1; STEP_INPUT_BYTES];
        let mut output = [0; 4];
        self.waited(span, |b| {
            b.driver.copy_to_device(device, &input)?;
            for _ in 0..STEP_KERNELS {
                b.launch()?;
            }
            b.driver.synchronize()?;
            b.driver.copy_to_host(&mut output, b.counter)
        })
    }

    /// Resets the counter after a failure: launches and runs need not agree. If that fails too, the
    /// next check reports it.
    fn recount(&mut self) {
        let zeroed = self.driver.memset(self.counter, 0, COUNTER_BYTES);
        if zeroed.and_then(|()| self.driver.synchronize()).is_ok() {
            self.counted = 0;
        }
    }

    /// Checks that every launch has run.
    fn check_counter(&self) -> anyhow::Result<()> {
        let mut counted = [0; COUNTER_BYTES];
        self.driver.copy_to_host(&mut counted, self.counter)?;
        for thread in counted.as_chunks::<4>().0 {
            let found = u32::from_le_bytes(*thread);
            ensure!(
                found == self.counted,
                "kernels were launched {} times and ran {found} times",
                self.counted
            );
        }
        Ok(())
    }
}

impl Span {
    fn is_over(self, samples: usize) -> bool {
        samples >= self.samples || Instant::now() >= self.deadline
    }
}

/// Returns the offsets of the bytes that are checked after copying `bytes`.
fn marks(bytes: usize) -> [usize; 3] {
    [0, bytes / 2, bytes - 1]
}

/// Uses memory as a program does between two calls.
fn touch(memory: &mut [u8]) {
    for line in memory.chunks_exact_mut(CACHE_LINE_BYTES) {
        line[0] = black_box(line[0].wrapping_add(1));
    }
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
