//! Summarises a recording: calls by class, bandwidth, the GPU's share, durations of kernels.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use crate::{
    Class,
    record::{About, Call, GpuWork, Trace, Work},
};

/// Longest kernel that counts as short: a command to a remote GPU travels about as long.
pub const SHORT_KERNEL_NS_MAX: u64 = 10_000;
/// Bounds of the distribution of durations, from a microsecond to a second.
const BOUNDS_NS: [u64; 19] = [
    1_000,
    2_000,
    5_000,
    10_000,
    20_000,
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    20_000_000,
    50_000_000,
    100_000_000,
    200_000_000,
    500_000_000,
    1_000_000_000,
];

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    pub about: About,
    pub complete: bool,
    pub lost: u64,
    /// From the start of the first record to the end of the last.
    pub duration_ns: u64,
    pub threads: usize,
    pub streams: usize,
    pub calls: Sum,
    /// Calls that did not return CUDA_SUCCESS.
    pub refused: u64,
    pub by_class: BTreeMap<&'static str, Sum>,
    /// The calls for each server of a program with several; empty if it had one, or none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub by_server: Vec<OfServer>,
    /// Sorted by the time spent in them, longest first.
    pub functions: Vec<Function>,
    pub bandwidth: Bandwidth,
    /// `None` if there are no times of the GPU.
    pub gpu: Option<Gpu>,
    pub iterations: Option<Durations>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Sum {
    pub calls: u64,
    /// Share of all calls.
    pub share: f64,
    pub duration_ns: u64,
    pub request_bytes: u64,
    pub response_bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OfServer {
    /// The server's address.
    pub gpu: String,
    #[serde(flatten)]
    pub sum: Sum,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Function {
    pub name: String,
    pub class: &'static str,
    #[serde(flatten)]
    pub sum: Sum,
}

/// Bytes that remoting carries, averaged over the whole duration. A megabyte is a million bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Bandwidth {
    pub request_mb_per_s: f64,
    pub response_mb_per_s: f64,
    pub both_mb_per_s: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Gpu {
    /// Time in which any kernel, copy or memset ran, on any device.
    pub busy_ns: u64,
    /// Share of the duration.
    pub busy_share: f64,
    /// Time in which any kernel ran, and its share.
    pub kernel_ns: u64,
    pub kernel_share: f64,
    pub kernels: Option<Durations>,
    /// Share of kernels of at most 10 us in the number of kernels, and in the kernels' time.
    pub short_kernels_share: f64,
    pub short_kernels_time_share: f64,
    pub distribution: Vec<Bucket>,
    /// Sorted by the time spent in them, longest first.
    pub top_kernels: Vec<Kernel>,
    pub work: BTreeMap<&'static str, WorkSum>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Durations {
    pub count: u64,
    pub total_ns: u64,
    pub mean_ns: u64,
    pub min_ns: u64,
    pub median_ns: u64,
    pub p90_ns: u64,
    pub p99_ns: u64,
    pub max_ns: u64,
}

/// A point of the two cumulative distributions: by number and by time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Bucket {
    /// `None` for no bound.
    pub up_to_ns: Option<u64>,
    pub count: u64,
    pub count_cdf: f64,
    pub time_cdf: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Kernel {
    pub name: String,
    pub count: u64,
    pub total_ns: u64,
    pub mean_ns: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct WorkSum {
    pub count: u64,
    pub total_ns: u64,
    pub bytes: u64,
}

impl GpuWork {
    pub fn name(self) -> &'static str {
        match self {
            GpuWork::Kernel => "kernel",
            GpuWork::CopyToDevice => "copy_to_device",
            GpuWork::CopyToHost => "copy_to_host",
            GpuWork::CopyOnDevice => "copy_on_device",
            GpuWork::Memset => "memset",
            GpuWork::Graph => "graph",
        }
    }
}

impl Summary {
    pub fn of(trace: &Trace) -> Summary {
        let duration_ns = duration_ns(trace);
        let mut calls = Sum::default();
        let mut by_class: BTreeMap<&'static str, Sum> = BTreeMap::new();
        for class in [
            Class::Local,
            Class::Outstanding,
            Class::Shadowed,
            Class::Synchronous,
        ] {
            by_class.insert(class.name(), Sum::default());
        }
        let mut by_function: HashMap<(u32, Class), Sum> = HashMap::new();
        for call in trace.calls() {
            calls.add(call);
            by_class.entry(call.class.name()).or_default().add(call);
            let key = (call.function, call.class);
            by_function.entry(key).or_default().add(call);
        }
        let all = calls.calls;
        by_class.values_mut().for_each(|sum| sum.share_of(all));
        calls.share_of(all);
        let mut functions: Vec<Function> = by_function
            .into_iter()
            .map(|((name, class), mut sum)| {
                sum.share_of(all);
                Function {
                    name: trace.name(name).into(),
                    class: class.name(),
                    sum,
                }
            })
            .collect();
        functions.sort_by(|a, b| {
            let key = |f: &Function| {
                (
                    std::cmp::Reverse(f.sum.duration_ns),
                    f.name.clone(),
                    f.class,
                )
            };
            key(a).cmp(&key(b))
        });
        Summary {
            about: trace.about.clone(),
            complete: trace.complete,
            lost: trace.lost,
            duration_ns,
            threads: count(trace.calls().map(|call| call.thread)),
            // Each server has streams of its own.
            streams: count(trace.calls().map(|call| (call.server, call.stream))),
            refused: trace.calls().filter(|call| call.status != 0).count() as u64,
            bandwidth: Bandwidth::of(&calls, duration_ns),
            calls,
            by_class,
            by_server: by_server(trace, all),
            functions,
            gpu: Gpu::of(trace, duration_ns),
            iterations: Durations::of(iterations(trace)),
        }
    }
}

impl Sum {
    fn add(&mut self, call: &Call) {
        self.calls += 1;
        self.duration_ns = self.duration_ns.saturating_add(call.duration_ns);
        self.request_bytes = self.request_bytes.saturating_add(call.request_bytes);
        self.response_bytes = self.response_bytes.saturating_add(call.response_bytes);
    }

    fn share_of(&mut self, all: u64) {
        self.share = ratio(self.calls, all);
    }
}

impl Bandwidth {
    fn of(calls: &Sum, duration_ns: u64) -> Bandwidth {
        // Bytes per nanosecond are thousands of megabytes per second.
        let rate = |bytes| ratio(bytes, duration_ns) * 1e3;
        let (request, response) = (calls.request_bytes, calls.response_bytes);
        Bandwidth {
            request_mb_per_s: rate(request),
            response_mb_per_s: rate(response),
            both_mb_per_s: rate(request.saturating_add(response)),
        }
    }
}

impl Gpu {
    fn of(trace: &Trace, duration_ns: u64) -> Option<Gpu> {
        trace.work().next()?;
        let kernels: Vec<&Work> = trace
            .work()
            .filter(|work| work.kind == GpuWork::Kernel)
            .collect();
        let (busy_ns, kernel_ns) = (
            covered_ns(trace.work()),
            covered_ns(kernels.iter().copied()),
        );
        let mut work: BTreeMap<&'static str, WorkSum> = BTreeMap::new();
        for one in trace.work() {
            let sum = work.entry(one.kind.name()).or_default();
            sum.count += 1;
            sum.total_ns = sum.total_ns.saturating_add(one.duration_ns);
            sum.bytes = sum.bytes.saturating_add(one.bytes);
        }
        let mut durations: Vec<u64> = kernels.iter().map(|work| work.duration_ns).collect();
        durations.sort_unstable();
        let distribution = distribution(&durations);
        let short = distribution
            .iter()
            .find(|bucket| bucket.up_to_ns == Some(SHORT_KERNEL_NS_MAX));
        let mut by_name: HashMap<u32, (u64, u64)> = HashMap::new();
        for kernel in &kernels {
            let (count, total) = by_name.entry(kernel.name).or_default();
            *count += 1;
            *total = total.saturating_add(kernel.duration_ns);
        }
        let mut top_kernels: Vec<Kernel> = by_name
            .into_iter()
            .map(|(name, (count, total_ns))| Kernel {
                name: trace.name(name).into(),
                count,
                total_ns,
                mean_ns: total_ns / count.max(1),
            })
            .collect();
        top_kernels.sort_by(|a, b| (b.total_ns, &a.name).cmp(&(a.total_ns, &b.name)));
        Some(Gpu {
            busy_ns,
            busy_share: ratio(busy_ns, duration_ns),
            kernel_ns,
            kernel_share: ratio(kernel_ns, duration_ns),
            short_kernels_share: short.map_or(0.0, |bucket| bucket.count_cdf),
            short_kernels_time_share: short.map_or(0.0, |bucket| bucket.time_cdf),
            kernels: Durations::of(durations),
            distribution,
            top_kernels,
            work,
        })
    }
}

impl Durations {
    /// Returns `None` if there are no durations.
    fn of(mut all: Vec<u64>) -> Option<Durations> {
        all.sort_unstable();
        let (min_ns, max_ns) = (*all.first()?, *all.last()?);
        let total_ns = all.iter().fold(0u64, |sum, one| sum.saturating_add(*one));
        // The nearest rank.
        let percentile = |p: usize| all[((all.len() * p).div_ceil(100)).clamp(1, all.len()) - 1];
        Some(Durations {
            count: all.len() as u64,
            total_ns,
            mean_ns: total_ns / all.len() as u64,
            min_ns,
            median_ns: percentile(50),
            p90_ns: percentile(90),
            p99_ns: percentile(99),
            max_ns,
        })
    }
}

/// Computes the distribution of durations, which are in ascending order.
fn distribution(sorted: &[u64]) -> Vec<Bucket> {
    let total: u128 = sorted.iter().map(|one| u128::from(*one)).sum();
    let (mut from, mut time) = (0, 0u128);
    BOUNDS_NS
        .iter()
        .map(|bound| Some(*bound))
        .chain([None])
        .map(|up_to_ns| {
            let to = up_to_ns.map_or(sorted.len(), |bound| {
                sorted.partition_point(|one| *one <= bound)
            });
            time += sorted[from..to]
                .iter()
                .map(|one| u128::from(*one))
                .sum::<u128>();
            let bucket = Bucket {
                up_to_ns,
                count: (to - from) as u64,
                count_cdf: ratio(to as u64, sorted.len() as u64),
                time_cdf: if total == 0 {
                    0.0
                } else {
                    time as f64 / total as f64
                },
            };
            from = to;
            bucket
        })
        .collect()
}

/// Returns the time in which at least one of them ran.
fn covered_ns<'a>(work: impl Iterator<Item = &'a Work>) -> u64 {
    let mut spans: Vec<(u64, u64)> = work
        .map(|one| (one.start_ns, one.start_ns.saturating_add(one.duration_ns)))
        .collect();
    spans.sort_unstable();
    let (mut covered, mut until) = (0u64, 0u64);
    for (start, end) in spans {
        covered = covered.saturating_add(end.saturating_sub(start.max(until)));
        until = until.max(end);
    }
    covered
}

/// Returns the durations of the ranges that are iterations.
fn iterations(trace: &Trace) -> Vec<u64> {
    let mut open: HashMap<(u32, u32), Vec<u64>> = HashMap::new();
    let mut durations = Vec::new();
    for mark in trace.marks() {
        if !trace.is_iteration(trace.name(mark.name)) {
            continue;
        }
        let starts = open.entry((mark.thread, mark.name)).or_default();
        match mark.is_end {
            false => starts.push(mark.at_ns),
            true => durations.extend(starts.pop().map(|start| mark.at_ns.saturating_sub(start))),
        }
    }
    durations
}

fn duration_ns(trace: &Trace) -> u64 {
    let start = trace.records.iter().map(crate::Record::start_ns).min();
    let end = trace.records.iter().map(crate::Record::end_ns).max();
    end.unwrap_or(0).saturating_sub(start.unwrap_or(0))
}

fn by_server(trace: &Trace, all: u64) -> Vec<OfServer> {
    let servers = trace.about.servers.iter().zip(0u8..);
    servers
        .map(|(server, number)| {
            let mut sum = Sum::default();
            let calls = trace.calls().filter(|call| call.server == number);
            calls.for_each(|call| sum.add(call));
            sum.share_of(all);
            OfServer {
                gpu: server.gpu.clone(),
                sum,
            }
        })
        .collect()
}

fn count<T: Eq + std::hash::Hash>(of: impl Iterator<Item = T>) -> usize {
    of.collect::<std::collections::HashSet<T>>().len()
}

fn ratio(part: u64, whole: u64) -> f64 {
    match whole {
        0 => 0.0,
        whole => part as f64 / whole as f64,
    }
}
