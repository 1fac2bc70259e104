//! The whole path of packets from memory: parse, find, choose, rewrite.

use crate::share::{Attached, Threads};
use outboard_flow::aging::Timeouts;
use outboard_flow::path::{Deletion, Tracker};
use outboard_flow::shared::SharedTable;
use outboard_flow::traffic::{Frame, Profile, Traffic};
use outboard_flow::{FlowTable, Secret, V4};
use serde_json::{Value, json};
use std::net::Ipv4Addr;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Frames made at a time: 8 MiB, more than the second-level cache.
pub const FRAMES: usize = 1 << 16;
const BURST: usize = 32;
/// Timers that may fire after each burst: several times as many as connections begin in one.
const AGED: usize = 32;

fn backends() -> Vec<Ipv4Addr> {
    (1..=10).map(|i| Ipv4Addr::new(203, 0, 113, i)).collect()
}

fn frames(traffic: &mut Traffic, frames: &mut Vec<Frame>, count: usize) -> u64 {
    frames.clear();
    frames.extend(
        traffic
            .by_ref()
            .take(count)
            .map(|packet| Frame::new(&packet)),
    );
    frames.iter().map(|frame| u64::from(frame.bytes) + 24).sum()
}

fn tracker<T: FlowTable<V4>>(table: T, deletion: &Deletion, timeout_ms: u32) -> Tracker<T> {
    let timeouts = Timeouts::all(timeout_ms);
    Tracker::new(table, &backends(), timeouts, deletion, Secret::from_seed(3)).expect("a tracker")
}

/// Packets and time of one thread.
#[derive(Clone, Copy, Default)]
pub struct Ran {
    packets: u64,
    wire_bytes: u64,
    spent: Duration,
    aging: Duration,
    pub full: u64,
    alive: u64,
}

impl Ran {
    fn mpps(&self) -> f64 {
        self.packets as f64 / self.spent.as_secs_f64() / 1e6
    }
    fn gbps(&self) -> f64 {
        self.wire_bytes as f64 * 8.0 / self.spent.as_secs_f64() / 1e9
    }
}

/// Parameters of a run.
#[derive(Clone, Copy)]
pub struct Load {
    pub profile: Profile,
    pub windows: usize,
    pub packets: usize,
    /// Packets before the measurement begins.
    pub warm: usize,
    /// Frames made at a time.
    pub frames: usize,
    pub timeout_ms: u32,
}

/// Forwards packets with one tracker; time passes at the rate of a full link, split over threads.
fn forward<T: FlowTable<V4>>(
    tracker: &mut Tracker<T>,
    load: &Load,
    thread: usize,
    threads: usize,
    together: &dyn Fn(),
) -> Ran {
    let mut traffic = Traffic::new(
        load.profile,
        load.windows.div_ceil(threads),
        1 + thread as u64,
    )
    .from_network(thread as u8);
    let mut buffer = Vec::with_capacity(load.frames);
    let mut ran = Ran::default();
    let packets_a_ms = load.profile.full_link_mpps * 1000.0 / threads as f64;
    let (total, warm) = (load.warm + load.packets, load.warm);
    let mut done = 0;
    while done < total {
        let wire_bytes = frames(&mut traffic, &mut buffer, load.frames);
        together();
        let start = Instant::now();
        let mut aging = 0;
        for burst in buffer.chunks_mut(BURST) {
            let now_ms = (done as f64 / packets_a_ms) as u64;
            tracker.forward(burst, now_ms);
            let before = crate::clock::ticks();
            tracker.age(now_ms, AGED);
            aging += (crate::clock::ticks() - before).saturating_sub(crate::clock::cost());
            done += burst.len();
        }
        if done > warm {
            ran.packets += load.frames as u64;
            ran.wire_bytes += wire_bytes;
            ran.spent += start.elapsed();
            ran.aging += Duration::from_nanos(crate::clock::ns(aging) as u64);
        }
        together();
    }
    ran.full = tracker.counts.table_full;
    ran.alive = tracker.len() as u64;
    ran
}

/// Runs one thread.
pub fn alone<T: FlowTable<V4>>(entries: usize, load: &Load, deletion: &Deletion) -> Value {
    let table = T::with_capacity(entries, Secret::from_seed(1)).expect("memory");
    let mut tracker = tracker(table, deletion, load.timeout_ms);
    let ran = forward(&mut tracker, load, 0, 1, &|| ());
    report(&[ran])
}

pub fn report(ran: &[Ran]) -> Value {
    let sum = |value: fn(&Ran) -> f64| ran.iter().map(value).sum::<f64>();
    let slowest = ran.iter().map(Ran::mpps).fold(f64::MAX, f64::min) * ran.len() as f64;
    json!({
        "mpps": sum(Ran::mpps), "mpps at the slowest thread's rate": slowest,
        "gbps": sum(Ran::gbps), "refused": ran.iter().map(|one| one.full).sum::<u64>(),
        "connections": ran.iter().map(|one| one.alive).sum::<u64>(),
        "share of deletion": sum(|one| one.aging.as_secs_f64()) / sum(|one| one.spent.as_secs_f64()),
    })
}

/// A table for each thread.
pub fn sharded<T: FlowTable<V4> + Send>(
    entries: usize,
    threads: usize,
    load: &Load,
    deletion: fn() -> Deletion,
) -> Value {
    let barrier = Barrier::new(threads);
    let ran: Vec<_> = std::thread::scope(|scope| {
        let started: Vec<_> = (0..threads)
            .map(|thread| {
                let barrier = &barrier;
                scope.spawn(move || {
                    crate::pin(crate::core_of(thread));
                    let secret = Secret::from_seed(1);
                    let table = T::with_capacity(entries / threads, secret).expect("memory");
                    let mut tracker = tracker(table, &deletion(), load.timeout_ms);
                    let together = || drop(barrier.wait());
                    forward(
                        &mut tracker,
                        &split(load, threads),
                        thread,
                        threads,
                        &together,
                    )
                })
            })
            .collect();
        started
            .into_iter()
            .map(|one| one.join().expect("a thread"))
            .collect()
    });
    report(&ran)
}

/// One table for all threads.
pub fn shared<S: SharedTable<V4> + Threads>(
    entries: usize,
    threads: usize,
    load: &Load,
    deletion: fn() -> Deletion,
) -> Value {
    let table = S::with_capacity(entries, threads, Secret::from_seed(1)).expect("memory");
    let barrier = Barrier::new(threads);
    let ran: Vec<_> = std::thread::scope(|scope| {
        let started: Vec<_> = (0..threads)
            .map(|thread| {
                let (table, barrier) = (&table, &barrier);
                scope.spawn(move || {
                    crate::pin(crate::core_of(thread));
                    table.thread(true);
                    let flows = entries / threads;
                    let base = (thread * (flows + 1)) as u32;
                    let attached = Attached {
                        table,
                        thread,
                        base,
                        flows,
                    };
                    let mut tracker = tracker(attached, &deletion(), load.timeout_ms);
                    let together = || drop(barrier.wait());
                    let ran = forward(
                        &mut tracker,
                        &split(load, threads),
                        thread,
                        threads,
                        &together,
                    );
                    table.thread(false);
                    ran
                })
            })
            .collect();
        started
            .into_iter()
            .map(|one| one.join().expect("a thread"))
            .collect()
    });
    report(&ran)
}

/// Splits a warm-up over the threads; each measures as many packets as one alone.
fn split(load: &Load, threads: usize) -> Load {
    Load {
        warm: load.warm / threads,
        ..*load
    }
}

/// Figure 6.5: packets arrive at a rate that keeps the core 70 % busy; a queue of 512 holds those
/// that wait.
pub fn queue<T: FlowTable<V4>>(
    entries: usize,
    load: &Load,
    deletion: &Deletion,
    mpps: f64,
) -> Value {
    let table = T::with_capacity(entries, Secret::from_seed(1)).expect("memory");
    let mut tracker = tracker(table, deletion, load.timeout_ms);
    let mut traffic = Traffic::new(load.profile, load.windows, 1);
    let mut buffer = Vec::with_capacity(load.frames);
    let between = crate::clock::rate() * 1000.0 / mpps;
    // Time of the core, without that in which packets are made.
    let mut clock = 0.0f64;
    let (mut arrived, mut dropped, mut busy, mut aging) = (0u64, 0u64, 0.0, 0.0);
    let (mut longest, mut calls, mut paused) = (0.0f64, 0u64, 0u64);
    let (mut control_longest, mut control_paused) = (0u64, 0u64);
    let pause_min = (20_000.0 * crate::clock::rate()) as u64;
    while (arrived as usize) < load.packets {
        frames(&mut traffic, &mut buffer, load.frames);
        let mut rest = &mut buffer[..];
        while !rest.is_empty() {
            let waiting = ((clock / between) as u64).saturating_sub(arrived);
            if waiting > 512 {
                let lost = ((waiting - 512) as usize).min(rest.len());
                dropped += lost as u64;
                arrived += lost as u64;
                rest = &mut rest[lost..];
                continue;
            }
            let now_ms = (clock / crate::clock::rate() / 1e6) as u64;
            let burst = (waiting.clamp(1, BURST as u64) as usize).min(rest.len());
            // An idle core waits for its next packet.
            clock = clock.max((arrived + 1) as f64 * between);
            let start = crate::clock::ticks();
            tracker.forward(&mut rest[..burst], now_ms);
            let before = crate::clock::ticks();
            tracker.age(now_ms, AGED);
            let end = crate::clock::ticks();
            let pause = (end - before).saturating_sub(crate::clock::cost()) as f64;
            let spent = (end - start).saturating_sub(2 * crate::clock::cost()) as f64;
            aging += pause;
            busy += spent;
            clock += spent;
            longest = longest.max(pause);
            paused += u64::from(pause as u64 > pause_min);
            // The same core waits as long without doing anything.
            let waited = crate::control::wait_like(end - before);
            control_longest = control_longest.max(waited);
            control_paused += u64::from(waited > pause_min);
            calls += 1;
            arrived += burst as u64;
            rest = &mut rest[burst..];
        }
    }
    let ns = |ticks: f64| ticks / crate::clock::rate();
    json!({
        "packets": arrived, "dropped %": dropped as f64 / arrived as f64 * 100.0, "busy": busy / clock,
        "seconds": ns(clock) / 1e9, "share of deletion": aging / busy, "longest pause us": ns(longest) / 1000.0,
        "calls": calls, "pauses above 20 us": paused,
        "longest wait of the control us": ns(control_longest as f64) / 1000.0, "waits above 20 us": control_paused, "connections": tracker.len(), "expired": tracker.counts.expired,
        "refused": tracker.counts.table_full, "cycles a packet": busy / (arrived - dropped) as f64,
    })
}
