//! Small cases computed by hand, and properties over many random ones.

#![allow(clippy::unwrap_used)]

mod builder;

use builder::{Builder, Rng, call, launch, random, synchronize};
use outboard_api::optimise::Level;
use outboard_model::{
    Constants, LEVELS, Mode, Network, Observer, Outcome, Remote, Replay, Step, Unit, WaitCost,
    Where, Workload,
};
use outboard_trace::{Class, GpuWork, Trace};

const LOCAL: Level = Level::ALL_OF_IT;

fn constants() -> Constants {
    Constants {
        source: "made up".into(),
        start_ns: 100.0,
        start_ns_per_byte: 0.0,
        time_local_ns: 20.0,
        receive_ns: 50.0,
        copy_ns_per_byte: 0.0,
        device_ns_per_byte: 0.0,
        waits_for_copies: false,
        processor_more: 0.0,
        handoff_more: 0.0,
        waits: Vec::new(),
        server_ns: 10.0,
    }
}

/// 8 Gbit/s: a nanosecond per byte.
fn network(rtt_ns: f64) -> Network {
    Network::new(rtt_ns, 8e9).unwrap()
}

fn remote(trace: &Trace, network: Network, level: Level) -> Outcome {
    let workload = Workload::new(trace).unwrap();
    Replay::new(workload.typical()).run(Where::Remote(Remote {
        network,
        level,
        constants: &constants(),
        freed: None,
    }))
}

fn here(trace: &Trace) -> (Outcome, f64) {
    let workload = Workload::new(trace).unwrap();
    let iteration = workload.typical();
    (Replay::new(iteration).run(Where::Here), iteration.step_ns)
}

#[test]
fn one_call_that_waits() {
    let mut b = Builder::new();
    b.mark(0, false).compute(0, 1_000);
    b.call(call("cuModuleLoadData", Class::Synchronous, 5_000).bytes(200, 80));
    b.compute(0, 300).mark(0, true);
    let trace = b.build();
    assert_eq!(here(&trace).0.total_ns, 6_300.0);
    let outcome = remote(&trace, network(4_000.0), LOCAL);
    // compute, start, 200 bytes, half a round trip, server, the call, 80 bytes, half, receive,
    // compute
    let by_hand = 1_000 + 100 + 200 + 2_000 + 10 + 5_000 + 80 + 2_000 + 50 + 300;
    assert_eq!(outcome.total_ns, f64::from(by_hand));
    assert_eq!((outcome.messages, outcome.round_trips), (2, 1));
    assert_eq!((outcome.sent_bytes, outcome.received_bytes), (200, 80));
}

#[test]
fn a_programs_own_code_is_slower_between_calls_that_are_sent() {
    let mut b = Builder::new();
    b.mark(0, false).compute(0, 1_000);
    b.call(call("cuModuleLoadData", Class::Synchronous, 5_000).bytes(200, 80));
    b.compute(0, 300).mark(0, true);
    let trace = b.build();
    let workload = Workload::new(&trace).unwrap();
    let mut replay = Replay::new(workload.typical());
    let mut total_ns = |constants: &Constants| {
        let place = Where::Remote(Remote {
            network: network(4_000.0),
            level: LOCAL,
            constants,
            freed: None,
        });
        replay.run(place).total_ns
    };
    let slower = Constants {
        processor_more: 0.5,
        // No thread waits for another.
        handoff_more: 0.5,
        ..constants()
    };
    assert_eq!(total_ns(&slower), total_ns(&constants()) + 650.0);
    assert_eq!(here(&trace).0.total_ns, 6_300.0);
}

/// Ten launches of 1 us each, 10 us of GPU time each, then a wait.
fn launches() -> Trace {
    let mut b = Builder::new();
    b.mark(0, false);
    for index in 0..10 {
        let start = 4_000 + index * 10_000;
        b.gpu(launch(1_000).stream(1), GpuWork::Kernel, start, 10_000, 0);
    }
    b.call(synchronize(104_000 + 2_000 - 10_000).stream(1));
    b.mark(0, true);
    b.build()
}

#[test]
fn launches_overlap_the_gpu() {
    let trace = launches();
    let (outcome, recorded_ns) = here(&trace);
    assert_eq!((outcome.total_ns, recorded_ns), (106_000.0, 106_000.0));
    // The first launch is on the server after start, 64 bytes, half a round trip and the server's
    // own 10 ns. The GPU starts 4 us later and stays busy. The wait ends 2 us after the GPU; then
    // come 64 bytes, half a round trip and the receiver.
    let by_hand = 100 + 64 + 10_000 + 10 + 4_000 + 100_000 + 2_000 + 64 + 10_000 + 50;
    let outcome = remote(&trace, network(20_000.0), LOCAL);
    assert_eq!(outcome.total_ns, f64::from(by_hand));
    assert_eq!(outcome.gpu_ns, 100_000.0);
    // The closed form counts each launch's half round trip as a loss.
    let workload = Workload::new(&trace).unwrap();
    let closed = outboard_model::Closed::new(workload.typical(), LOCAL, &constants());
    assert_eq!((closed.async_calls, closed.sync_calls), (10, 1));
    assert_eq!(closed.rtts, 6.0);
}

#[test]
fn a_wait_costs_by_the_gpus_time_that_is_left() {
    let trace = launches();
    let workload = Workload::new(&trace).unwrap();
    let total_ns = |waits: &[(f64, f64)]| {
        let cost = |&(gpu_ns, more_ns): &(f64, f64)| WaitCost { gpu_ns, more_ns };
        let constants = Constants {
            waits: waits.iter().map(cost).collect(),
            ..constants()
        };
        let place = Where::Remote(Remote {
            network: network(20_000.0),
            level: LOCAL,
            constants: &constants,
            freed: None,
        });
        Replay::new(workload.typical()).run(place).total_ns
    };
    let free_ns = total_ns(&[]);
    assert_eq!(total_ns(&[(0.0, 700.0)]), free_ns + 700.0);
    // The wait is on the server 10 us before the last of ten launches' 100 us begins to count: more
    // than 80 us are left.
    let added_ns = total_ns(&[(0.0, 0.0), (100_000.0, 100_000.0)]) - free_ns;
    assert!((80_000.0..=100_000.0).contains(&added_ns), "{added_ns}");
    assert_eq!(here(&trace).0.total_ns, 106_000.0);
}

#[test]
fn without_outstanding_requests_each_launch_waits() {
    let outcome = remote(&launches(), network(20_000.0), "sync".parse().unwrap());
    // A launch: start, 64 bytes, half a round trip, server and driver, 64 bytes, half a round trip,
    // receive; more than 21 us, so that the GPU with its 10 us is idle in between. The wait at the
    // end finds the last kernel running: 2.2 us after its launch returned it is not done, and the
    // server waits for it.
    let launch: f64 = 100.0 + 64.0 + 10_000.0 + 1_010.0 + 64.0 + 10_000.0 + 50.0;
    let last_called = 9.0 * launch + 100.0 + 64.0 + 10_000.0 + 10.0;
    let gpu_end = last_called + 4_000.0 + 10_000.0;
    let wait_served = 10.0 * launch + 100.0 + 64.0 + 10_000.0 + 10.0;
    assert!(wait_served < gpu_end + 12_000.0);
    let expected = (gpu_end + 2_000.0).max(wait_served) + 64.0 + 10_000.0 + 50.0;
    assert!(
        (outcome.total_ns - expected).abs() < 1e-6,
        "{outcome:?}, {expected}"
    );
    assert_eq!(outcome.round_trips, 11);
}

#[test]
fn a_copy_is_limited_by_the_bandwidth() {
    let mut b = Builder::new();
    b.mark(0, false);
    let copy = call("cuMemcpyHtoDAsync_v2", Class::Outstanding, 3_000);
    b.gpu(
        copy.stream(1).bytes(1_000_000, 0),
        GpuWork::CopyToDevice,
        5_000,
        80_000,
        1_000_000,
    );
    b.call(synchronize(84_000).stream(1));
    b.mark(0, true);
    let trace = b.build();
    assert_eq!(here(&trace).0.total_ns, 87_000.0);
    let workload = Workload::new(&trace).unwrap();
    let total = |bits_per_s: f64, waits_for_copies: bool| {
        let constants = Constants {
            waits_for_copies,
            ..constants()
        };
        let remote = Remote {
            network: Network::new(0.0, bits_per_s).unwrap(),
            level: LOCAL,
            constants: &constants,
            freed: None,
        };
        let outcome = Replay::new(workload.typical()).run(Where::Remote(remote));
        (outcome.total_ns, outcome.round_trips)
    };
    for (bits_per_s, ns_per_byte) in [(8e9, 1.0), (8e8, 10.0), (8e11, 0.01)] {
        // start, the bytes, server, 5 us until the GPU begins, its 80 us
        let copied = 100.0 + 1e6 * ns_per_byte + 10.0 + 5_000.0 + 80_000.0;
        // 2 us until that is noticed, the reply, receive
        let told = 2_000.0 + 64.0 * ns_per_byte + 50.0;
        for (waits, by_hand) in [(true, copied + told), (false, copied)] {
            let (total_ns, round_trips) = total(bits_per_s, waits);
            assert!((total_ns - by_hand).abs() < 1e-6, "{total_ns} {by_hand}");
            assert_eq!(round_trips, u64::from(waits));
        }
    }
}

/// Two kernels of 50 us each, on one stream or on two.
fn two_kernels(second: u32, event: bool) -> Trace {
    let mut b = Builder::new();
    let both = second == 1 || event;
    b.mark(0, false);
    b.gpu(launch(1_000).stream(1), GpuWork::Kernel, 4_000, 50_000, 0);
    if event {
        b.call(call("cuEventRecord", Class::Outstanding, 500).stream(1));
        b.call(call("cuStreamWaitEvent", Class::Outstanding, 500).stream(second));
    }
    let start = if both { 55_000 } else { b.now(0) + 4_000 };
    b.gpu(
        launch(1_000).stream(second),
        GpuWork::Kernel,
        start,
        50_000,
        0,
    );
    let took = start + 50_000 + 2_000 - b.now(0);
    b.call(call("cuCtxSynchronize", Class::Synchronous, took));
    b.mark(0, true);
    b.build()
}

#[test]
fn two_streams_run_beside_each_other() {
    let rtt = network(10_000.0);
    let begin = 100.0 + 64.0 + 5_000.0 + 10.0 + 4_000.0;
    let end = 2_000.0 + 64.0 + 5_000.0 + 50.0;
    // On one stream, the second begins 1 us after the first has ended.
    let one = remote(&two_kernels(1, false), rtt, LOCAL).total_ns;
    assert_eq!(one, begin + 50_000.0 + 1_000.0 + 50_000.0 + end);
    // On two, only the server's first launch delays the second: its request waits for 1,010 ns.
    let two = remote(&two_kernels(2, false), rtt, LOCAL).total_ns;
    assert_eq!(two, begin + 1_010.0 + 50_000.0 + end);
    // With an event between them the time is that of one stream.
    let event = remote(&two_kernels(2, true), rtt, LOCAL).total_ns;
    assert_eq!(event, one);
    for trace in [
        two_kernels(1, false),
        two_kernels(2, false),
        two_kernels(2, true),
    ] {
        let (outcome, recorded_ns) = here(&trace);
        assert_eq!(outcome.total_ns, recorded_ns);
    }
}

#[test]
fn the_default_stream_is_ordered_with_others_unless_it_was_seen_not_to_be() {
    let trace = |second_start: u64| {
        let mut b = Builder::new();
        b.mark(0, false);
        b.gpu(launch(1_000).stream(1), GpuWork::Kernel, 4_000, 50_000, 0);
        b.gpu(
            launch(1_000).stream(0),
            GpuWork::Kernel,
            second_start,
            50_000,
            0,
        );
        let took = second_start + 52_000 - b.now(0);
        b.call(call("cuCtxSynchronize", Class::Synchronous, took));
        b.mark(0, true);
        b.build()
    };
    let rtt = network(10_000.0);
    assert_eq!(
        remote(&trace(55_000), rtt, LOCAL).total_ns,
        remote(&two_kernels(1, false), rtt, LOCAL).total_ns
    );
    assert_eq!(
        remote(&trace(5_000), rtt, LOCAL).total_ns,
        remote(&two_kernels(2, false), rtt, LOCAL).total_ns
    );
}

#[test]
fn two_threads_share_the_link_and_not_their_time() {
    let mut b = Builder::new();
    b.mark(0, false);
    for thread in 0..2 {
        b.compute(thread, 1_000);
        let load = call("cuModuleLoadData", Class::Synchronous, 5_000).bytes(1_000, 64);
        b.call(load.thread(thread));
    }
    b.mark(0, true);
    let trace = b.build();
    assert_eq!(here(&trace).0.total_ns, 6_000.0);
    let outcome = remote(&trace, network(4_000.0), LOCAL);
    // The second thread's request is sent after the first one's 1,000 bytes, and is served after
    // it.
    let first_served = 1_000.0 + 100.0 + 1_000.0 + 2_000.0 + 5_010.0;
    let second_served = first_served + 5_010.0;
    assert_eq!(outcome.total_ns, second_served + 64.0 + 2_000.0 + 50.0);
}

#[test]
fn a_thread_that_is_silent_while_another_works_waits_for_it() {
    let mut b = Builder::new();
    b.mark(0, false);
    b.compute(0, 1_000).call(launch(1_000).stream(1));
    b.set_clock(1, 3_000);
    for _ in 0..10 {
        b.call(call("cuModuleGetGlobal", Class::Synchronous, 1_000).thread(1));
    }
    let end = b.now(1);
    b.set_clock(0, end + 500)
        .call(launch(1_000).stream(1))
        .mark(0, true);
    let trace = b.build();
    let workload = Workload::new(&trace).unwrap();
    assert!(workload.typical().handoffs > 0);
    assert_eq!(here(&trace).0.total_ns, here(&trace).1);
    let outcome = remote(&trace, network(100_000.0), LOCAL);
    // Both launches are sent one after the other; between them are ten round trips of the other
    // thread.
    assert!(outcome.total_ns > 10.0 * 100_000.0, "{outcome:?}");
    assert!(
        outcome.total_ns < 11.0 * 100_000.0 + 50_000.0,
        "{outcome:?}"
    );
}

#[test]
fn polling_ends_with_the_work() {
    let mut b = Builder::new();
    b.mark(0, false);
    b.gpu(launch(1_000).stream(1), GpuWork::Kernel, 4_000, 100_000, 0);
    let query = || call("cuStreamQuery", Class::Synchronous, 500).stream(1);
    while b.now(0) < 104_000 {
        b.call(query().status(600)).compute(0, 10_000);
    }
    b.call(query()).mark(0, true);
    let workload = Workload::new(&b.build()).unwrap();
    let waits: Vec<bool> = workload.typical().steps().map(|s| s.is_wait()).collect();
    assert_eq!(waits.iter().filter(|wait| **wait).count(), 1);
    assert!(waits[waits.len() - 1]);
}

#[test]
fn an_infinite_network_leaves_what_remoting_gains() {
    let mut b = Builder::new();
    b.mark(0, false);
    for _ in 0..7 {
        b.compute(0, 500)
            .call(call("cuCtxGetDevice", Class::Local, 90));
        b.compute(0, 500)
            .call(call("cuMemAllocAsync", Class::Shadowed, 700));
        b.compute(0, 500)
            .call(call("cuEventRecord", Class::Outstanding, 400));
    }
    b.call(call("cuModuleLoadData", Class::Synchronous, 9_000));
    b.mark(0, true);
    let trace = b.build();
    let local = here(&trace).0.total_ns;
    let outcome = remote(&trace, Network::PERFECT, LOCAL).total_ns;
    // Each local call gains 90 - 20, the others their time less start; the server has finished
    // earlier requests.
    let gained = 7.0 * (90.0 - 20.0) + 7.0 * (700.0 - 100.0) + 7.0 * (400.0 - 100.0);
    let cost = 100.0 + 10.0 + 50.0;
    // The server works at earlier requests for at most 1.2 us after its arrival, and is still at
    // the last event when the module comes.
    let behind = outcome - (local - gained + cost);
    assert!((0.0..=1_000.0).contains(&behind), "{behind}");
}

/// Every third recording lacks the times of the GPU.
fn any(seed: u64, calls: usize, streams: u64) -> Trace {
    let mut trace = random(seed, 1, calls, streams);
    if seed.is_multiple_of(3) {
        trace
            .records
            .retain(|record| !matches!(record, outboard_trace::Record::Work(_)));
    }
    trace
}

#[test]
fn the_local_replay_is_the_recording() {
    for seed in 0..200 {
        let trace = any(seed, 120, 1 + seed % 4);
        let (outcome, recorded_ns) = here(&trace);
        let error = (outcome.total_ns - recorded_ns).abs() / recorded_ns;
        assert!(
            error < 1e-9,
            "seed {seed}: {} for {recorded_ns}",
            outcome.total_ns
        );
    }
}

#[test]
fn a_slower_network_never_helps() {
    for seed in 0..150 {
        let mut rng = Rng::new(seed + 1_000);
        let trace = any(seed, 100, 1 + seed % 4);
        let workload = Workload::new(&trace).unwrap();
        let mut replay = Replay::new(workload.typical());
        let constants = constants();
        let mut total = |rtt_ns: f64, bits_per_s: f64, level: Level| {
            let network = Network::new(rtt_ns, bits_per_s).unwrap();
            let place = Where::Remote(Remote {
                network,
                level,
                constants: &constants,
                freed: None,
            });
            replay.run(place).total_ns
        };
        for level in LEVELS {
            let rtt_ns = rng.range(0, 200_000) as f64;
            let bits_per_s = rng.range(1_000_000, 100_000_000_000) as f64;
            let (worse_rtt, worse_bits) = (
                rtt_ns + rng.range(0, 50_000) as f64,
                bits_per_s / (1.0 + rng.range(0, 100) as f64 / 10.0),
            );
            let base = total(rtt_ns, bits_per_s, level);
            assert!(
                total(worse_rtt, bits_per_s, level) >= base,
                "seed {seed}, {level}"
            );
            assert!(
                total(rtt_ns, worse_bits, level) >= base,
                "seed {seed}, {level}"
            );
        }
    }
}

#[test]
fn each_level_is_as_good_as_the_one_below() {
    for seed in 0..150 {
        let trace = any(seed, 100, 1 + seed % 4);
        let mut rng = Rng::new(seed + 2_000);
        let network = Network::new(rng.range(0, 300_000) as f64, 1e9).unwrap();
        let totals = LEVELS.map(|level| remote(&trace, network, level).total_ns);
        assert!(
            totals.is_sorted_by(|a, b| a >= b),
            "seed {seed}: {totals:?}"
        );
    }
}

#[derive(Default)]
struct Sums {
    calls: usize,
    gpu_ns: f64,
    up: u64,
    down: u64,
    cpu_ns: f64,
    link_until_ns: [f64; 2],
}

impl Observer for Sums {
    fn call(&mut self, _: usize, step: &Step, _: Mode, from_ns: f64, to_ns: f64) {
        assert!(to_ns >= from_ns);
        self.calls += 1;
        self.cpu_ns += step.gap_ns;
    }

    fn unit(&mut self, unit: &Unit, from_ns: f64, to_ns: f64) {
        let longer_ns = to_ns - from_ns - unit.duration_ns;
        // The GPU may wait for the pieces of a long copy.
        let is_long = unit.kind == GpuWork::CopyToDevice && unit.bytes > 1 << 20;
        assert!(longer_ns.abs() < 1e-3 || (is_long && longer_ns > 0.0));
        self.gpu_ns += unit.duration_ns;
    }

    fn link(&mut self, is_up: bool, bytes: u64, from_ns: f64, to_ns: f64) {
        let until = &mut self.link_until_ns[usize::from(is_up)];
        assert!(
            *until <= from_ns && from_ns <= to_ns,
            "one message at a time"
        );
        *until = to_ns;
        *(if is_up { &mut self.up } else { &mut self.down }) += bytes;
    }
}

/// Bytes of a wait's request, and of its reply.
const WAIT_BYTES: u64 = 64;

#[test]
fn nothing_is_lost_and_nothing_is_made() {
    for seed in 0..100 {
        let trace = random(seed, 1, 100, 1 + seed % 4);
        let gpu_ns: u64 = trace.work().map(|w| w.duration_ns).sum();
        let workload = Workload::new(&trace).unwrap();
        let iteration = workload.typical();
        // Waits for what was waited for before send nothing; they take one request and reply each.
        let local = iteration.steps().filter(|s| s.class == Class::Local);
        let local_recorded = trace.calls().filter(|c| c.class == Class::Local);
        let known = (local.count() - local_recorded.count()) as u64;
        let sent: u64 = iteration.steps().map(|s| s.request_bytes).sum();
        let received: u64 = iteration.steps().map(|s| s.response_bytes).sum();
        let recorded = trace.calls().map(|c| c.request_bytes + c.response_bytes);
        assert_eq!(
            recorded.sum::<u64>(),
            sent + received + known * 2 * WAIT_BYTES
        );
        let mut sums = Sums::default();
        let outcome = Replay::new(iteration).run_observed(
            Where::Remote(Remote {
                network: network(10_000.0),
                level: LOCAL,
                constants: &constants(),
                freed: None,
            }),
            &mut sums,
        );
        assert_eq!(sums.calls, trace.calls().count());
        assert_eq!(
            (outcome.sent_bytes, outcome.received_bytes),
            (sent, received)
        );
        assert_eq!((sums.up, sums.down), (sent, received));
        assert_eq!(outcome.gpu_ns, gpu_ns as f64);
        let sent_calls = iteration
            .steps()
            .filter(|s| s.class != Class::Local)
            .count() as u64;
        assert_eq!(outcome.messages, sent_calls + outcome.round_trips);
        // No time is shorter than what the GPU or the program alone needs.
        assert!(outcome.total_ns >= sums.cpu_ns);
        assert!(outcome.total_ns >= gpu_ns as f64 / (1 + seed % 4) as f64);
    }
}

#[test]
fn a_replay_is_the_same_each_time() {
    let trace = random(7, 1, 500, 3);
    let workload = Workload::new(&trace).unwrap();
    let mut replay = Replay::new(workload.typical());
    let constants = constants();
    let place = Where::Remote(Remote {
        network: network(10_000.0),
        level: LOCAL,
        constants: &constants,
        freed: None,
    });
    let first = replay.run(place);
    replay.run(Where::Here);
    assert_eq!(replay.run(place), first);
}

#[test]
fn an_iteration_costs_a_few_events_a_call() {
    let trace = random(3, 1, 20_000, 3);
    let calls = trace.calls().count() as u64;
    for level in LEVELS {
        let outcome = remote(&trace, network(10_000.0), level);
        assert!(
            outcome.events <= 2 * calls + 2,
            "{level}: {} events",
            outcome.events
        );
    }
}

/// A copy of less than a piece: the thread writes it, the wire carries it and the server copies it,
/// one after the other.
#[test]
fn a_short_copy_is_copied_at_both_ends() {
    const BYTES: u64 = 500_000;
    let mut b = Builder::new();
    b.mark(0, false);
    let now = b.now(0);
    let copy = call("cuMemcpyHtoDAsync_v2", Class::Outstanding, 3_000).bytes(BYTES, 0);
    b.gpu(copy, GpuWork::CopyToDevice, now + 4_000, 10_000, BYTES);
    b.call(call("cuCtxSynchronize", Class::Synchronous, 20_000));
    b.mark(0, true);
    let trace = b.build();
    let free = constants();
    let slow = Constants {
        start_ns_per_byte: 0.1,
        copy_ns_per_byte: 0.2,
        ..free.clone()
    };
    let workload = Workload::new(&trace).unwrap();
    let takes_ns = |constants: &Constants, bits_per_s: f64| {
        let place = Where::Remote(Remote {
            network: Network::new(10_000.0, bits_per_s).unwrap(),
            level: LOCAL,
            constants,
            freed: None,
        });
        Replay::new(workload.typical()).run(place).total_ns
    };
    let added = takes_ns(&slow, 8e9) - takes_ns(&free, 8e9);
    assert!((added - 0.3 * BYTES as f64).abs() < 1_000.0, "{added}");
    // 8 Gbps: a nanosecond a byte, after the wait for it to be written.
    let wire = takes_ns(&slow, 8e9) - takes_ns(&slow, 8e12);
    assert!((wire - BYTES as f64).abs() < 1_000.0, "{wire}");
}
