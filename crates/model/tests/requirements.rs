//! Results are true: limits are limits, frontiers are monotone, impossible budgets have answers.

#![allow(clippy::unwrap_used, clippy::panic)]

mod builder;

use builder::{Builder, C, call, launch, random, synchronize};
use outboard_api::optimise::Level;
use outboard_model::{
    Both, Budget, Confidence, Constants, Error, Judge, Limit, Network, Pair, PcieRequirements,
    Question, RESOLUTION, RTT_NS_MAX, Requirements, WithoutNetwork, Workload,
};
use outboard_trace::{About, Class, GpuWork, Trace};

fn constants() -> Constants {
    Constants::published()
}

fn ask(trace: &Trace, percent: f64, level: &str) -> Result<Requirements, Error> {
    ask_with(trace, percent, level, Confidence::EVEN)
}

fn ask_with(
    trace: &Trace,
    percent: f64,
    level: &str,
    confidence: Confidence,
) -> Result<Requirements, Error> {
    let constants = constants();
    let question = Question {
        budget: Budget::percent(percent)?,
        confidence,
        level: level.parse().unwrap(),
        constants: &constants,
        at: Network::new(30_000.0, 25e9)?,
        iteration: None,
        without_network: None,
    };
    Requirements::new(&About::default(), &Workload::new(trace)?, &question)
}

/// Orders limits of round-trip times.
fn rank(limit: Limit) -> f64 {
    match limit {
        Limit::Never => -1.0,
        Limit::At(value) => value,
        Limit::Any => f64::INFINITY,
    }
}

/// Orders limits of bandwidths, of which less is better.
fn need(limit: Limit) -> f64 {
    match limit {
        Limit::Any => 0.0,
        Limit::At(value) => value,
        Limit::Never => f64::INFINITY,
    }
}

#[test]
fn limits_are_where_the_budget_ends() {
    for seed in 0..40 {
        let trace = random(seed, 1, 150, 2);
        let workload = Workload::new(&trace).unwrap();
        let constants = constants();
        let mut judge = Judge::new(workload.typical(), Level::ALL_OF_IT, &constants);
        let part = 0.05 + seed as f64 / 20.0;
        let overhead = |judge: &mut Judge, rtt_ns: f64, bits_per_s: f64| {
            judge.overhead(Network::new(rtt_ns, bits_per_s).unwrap())
        };
        let limit = judge.rtt_max(part, 1e10);
        for (limit, of) in [
            (
                limit.simulated,
                (|both| both.simulated) as fn(Both<f64>) -> f64,
            ),
            (limit.closed_form, |both| both.closed_form),
        ] {
            match limit {
                Limit::Never => assert!(of(overhead(&mut judge, 0.0, 1e10)) > part, "seed {seed}"),
                Limit::Any => assert!(of(overhead(&mut judge, RTT_NS_MAX, 1e10)) <= part),
                Limit::At(rtt_ns) => {
                    let margin_ns = 2.0 * RESOLUTION * rtt_ns.max(100.0);
                    assert!(of(overhead(&mut judge, rtt_ns, 1e10)) <= part + 1e-9);
                    assert!(of(overhead(&mut judge, rtt_ns + margin_ns, 1e10)) > part);
                }
            }
        }
        let limit = judge.bandwidth_min(part, 5_000.0);
        for (limit, of) in [
            (
                limit.simulated,
                (|both| both.simulated) as fn(Both<f64>) -> f64,
            ),
            (limit.closed_form, |both| both.closed_form),
        ] {
            match limit {
                Limit::Never => assert!(of(overhead(&mut judge, 5_000.0, 1e13)) > part),
                Limit::Any => assert!(of(overhead(&mut judge, 5_000.0, 1e6)) <= part),
                Limit::At(bits) => {
                    assert!(of(overhead(&mut judge, 5_000.0, bits)) <= part + 1e-9);
                    let less = bits * (1.0 - 4.0 * RESOLUTION);
                    assert!(
                        of(overhead(&mut judge, 5_000.0, less)) > part,
                        "seed {seed}"
                    );
                }
            }
        }
    }
}

#[test]
fn frontiers_are_monotone() {
    for seed in 0..25 {
        // Also with two threads, where a single replay may gain from a delay.
        let mut trace = random(seed, 1, 80, 2);
        if seed % 2 == 1 {
            let mut chance = builder::Rng::new(seed);
            for record in &mut trace.records {
                if let outboard_trace::Record::Call(call) = record
                    && chance.one_in(3)
                {
                    call.thread = 1;
                }
            }
        }
        let percent = [0.0, 5.0, 50.0, 400.0][seed as usize % 4];
        let found = ask(&trace, percent, "or+sr+local").unwrap();
        for pair in found.rtt_max.windows(2) {
            let (a, b) = (pair[0].rtt_ns, pair[1].rtt_ns);
            let slack = 1.0 + 2.0 * RESOLUTION;
            assert!(
                rank(a.simulated) <= rank(b.simulated) * slack + 1.0,
                "seed {seed}"
            );
            assert!(
                rank(a.closed_form) <= rank(b.closed_form) * slack + 1.0,
                "seed {seed}"
            );
        }
        for pair in found.bandwidth_min.windows(2) {
            let (a, b) = (pair[0].bits_per_s, pair[1].bits_per_s);
            assert!(need(a.simulated) <= need(b.simulated), "seed {seed}");
            assert!(need(a.closed_form) <= need(b.closed_form), "seed {seed}");
        }
    }
}

#[test]
fn a_larger_budget_allows_more() {
    for seed in 0..20 {
        let trace = random(seed, 1, 100, 2);
        let workload = Workload::new(&trace).unwrap();
        let constants = constants();
        let mut judge = Judge::new(workload.typical(), Level::ALL_OF_IT, &constants);
        let mut before: f64 = -1.0;
        for part in [0.0, 0.05, 0.1, 0.5, 2.0, 10.0] {
            let limit = rank(judge.rtt_max(part, 1e11).simulated);
            assert!(
                limit >= before - 2.0 * RESOLUTION * before.abs(),
                "seed {seed}"
            );
            before = limit;
        }
    }
}

/// Short iterations that wait for each of their calls: over no network are they nearly as fast as
/// locally.
fn hopeless() -> Trace {
    let mut b = Builder::new();
    b.mark(0, false);
    for _ in 0..10 {
        b.call(call("cuModuleGetGlobal_v2", Class::Synchronous, 100));
    }
    b.mark(0, true);
    b.build()
}

#[test]
fn a_budget_that_no_network_meets_is_answered() {
    let found = ask(&hopeless(), 5.0, "or+sr+local").unwrap();
    assert!(!found.can_be_met);
    assert!(found.perfect.simulated > 0.05);
    for point in &found.rtt_max {
        assert_eq!(point.rtt_ns.simulated, Limit::Never);
    }
    for point in &found.bandwidth_min {
        assert_eq!(point.bits_per_s.simulated, Limit::Never);
    }
    assert!(found.known.iter().all(|known| !known.fits.simulated));
}

#[test]
fn no_budget_at_all_is_one_that_remoting_may_meet() {
    // The program waits only for the GPU, and the driver's calls take longer than sending them.
    let mut b = Builder::new();
    b.mark(0, false);
    for _ in 0..100 {
        b.call(call("cuEventRecord", Class::Outstanding, 9_000));
    }
    b.mark(0, true);
    let found = ask(&b.build(), 0.0, "or+sr+local").unwrap();
    // The server needs as long as the program did: even without delays on the network it is done a
    // little later.
    assert_eq!(found.can_be_met, found.perfect.simulated <= 0.0);
    assert!(found.perfect.closed_form < 0.0);
}

#[test]
fn a_huge_budget_is_met_anywhere() {
    let mut b = Builder::new();
    b.mark(0, false).compute(0, 20_000_000_000);
    b.call(synchronize(1_000)).mark(0, true);
    let found = ask(&b.build(), 1_000.0, "or+sr+local").unwrap();
    for point in &found.rtt_max {
        assert_eq!(point.rtt_ns.simulated, Limit::Any);
        assert_eq!(point.rtt_ns.closed_form, Limit::Any);
    }
    assert!(
        found
            .known
            .iter()
            .all(|known| known.fits.simulated && known.fits.closed_form)
    );
}

#[test]
fn what_cannot_be_asked_is_refused() {
    let trace = random(1, 2, 50, 2);
    assert!(matches!(
        ask(&trace, 5.0, "batch=16+sr+local").unwrap_err(),
        Error::Batches { .. }
    ));
    let mut constants = constants();
    constants.start_ns = -1.0;
    assert!(matches!(
        constants.check(),
        Err(Error::Number {
            what: "start_ns",
            ..
        })
    ));
}

#[test]
fn the_calls_that_cost_are_named_with_what_would_help() {
    let mut b = Builder::new();
    b.mark(0, false);
    let item = || call("cuMemcpyDtoHAsync_v2", Class::Synchronous, 10_000).stream(1);
    for _ in 0..20 {
        b.call(call("cuCtxGetDevice", Class::Local, 100));
        let at = b.now(0) + 2_000;
        b.gpu(C { sent: 80, ..item() }, GpuWork::CopyToHost, at, 6_000, 4);
    }
    b.mark(0, true);
    let trace = b.build();
    let top = ask(&trace, 5.0, "or+sr+local").unwrap();
    assert_eq!(top.calls[0].function, "cuMemcpyDtoHAsync_v2");
    assert_eq!(top.calls[0].calls, 20);
    // Twenty round trips of 30 us, less the one that cannot be saved.
    assert!(
        top.calls[0].freed_ns > 19.0 * 30_000.0,
        "{:?}",
        top.calls[0]
    );
    assert!(top.calls[0].advice.contains("copy back less often"));
    let below = ask(&trace, 5.0, "or+sr").unwrap();
    let local = below.calls.iter().find(|c| c.function == "cuCtxGetDevice");
    assert!(local.unwrap().advice.contains("or+sr+local"));
    let slopes = &top.slope.levels;
    assert!(slopes[0].per_us.simulated > 1.9 * slopes[3].per_us.simulated);
}

#[test]
fn iterations_differ_by_a_spread() {
    let found = ask(&random(9, 7, 60, 2), 5.0, "or+sr+local").unwrap();
    let spread = found.at_spread;
    assert_eq!(spread.iterations, 7);
    assert!(spread.min < spread.max);
    assert!((spread.min..=spread.max).contains(&spread.median));
    assert!((spread.min..=spread.max).contains(&found.at_overhead.simulated));
    let one = ask(&random(9, 1, 60, 2), 5.0, "or+sr+local").unwrap();
    assert_eq!(one.at_spread.min, one.at_spread.max);
    assert_eq!(one.at_spread.min, one.at_overhead.simulated);
}

#[test]
fn each_level_allows_as_much_as_the_one_below() {
    for seed in 0..10 {
        let found = ask(&random(seed, 1, 80, 2), 100.0, "or+sr+local").unwrap();
        for pair in found.levels.windows(2) {
            let (a, b) = (pair[0].rtt_ns_max.simulated, pair[1].rtt_ns_max.simulated);
            assert!(
                rank(a) <= rank(b) * (1.0 + 2.0 * RESOLUTION) + 1.0,
                "seed {seed}"
            );
        }
    }
}

#[test]
fn a_longer_pcie_has_a_largest_round_trip_too() {
    let trace = random(5, 3, 100, 1);
    let workload = Workload::new(&trace).unwrap();
    let budget = Budget::percent(10.0).unwrap();
    let found = PcieRequirements::new("x".into(), &workload, budget, None).unwrap();
    let limit = found.rtt_ns_max;
    assert!(rank(limit.simulated) > 1_200.0);
    // Work that the program does meanwhile hides some of the delays.
    assert!(rank(limit.closed_form) <= rank(limit.simulated) * (1.0 + RESOLUTION));
    let overheads = found.points.iter().map(|p| p.overhead.simulated);
    assert!(overheads.is_sorted());
    let mut bare = trace.clone();
    bare.records
        .retain(|record| !matches!(record, outboard_trace::Record::Work(_)));
    let workload = Workload::new(&bare).unwrap();
    let error = PcieRequirements::new("x".into(), &workload, budget, None).unwrap_err();
    assert_eq!(error, Error::NoGpuTimes);
}

#[test]
fn more_confidence_allows_less() {
    for seed in 0..10 {
        let trace = random(seed, 6, 100, 2);
        let constants = constants();
        let limit = |confidence: &str| {
            let question = Question {
                budget: Budget::percent(60.0).unwrap(),
                confidence: confidence.parse().unwrap(),
                level: Level::ALL_OF_IT,
                constants: &constants,
                at: Network::new(30_000.0, 25e9).unwrap(),
                iteration: None,
                without_network: None,
            };
            let workload = Workload::new(&trace).unwrap();
            let found = Requirements::new(&About::default(), &workload, &question).unwrap();
            assert!(found.margin.margin >= 0.0);
            rank(found.rtt_max[0].rtt_ns.simulated)
        };
        let limits = ["50%", "75%", "90%", "99%"].map(limit);
        assert!(
            limits.is_sorted_by(|a, b| a >= b),
            "seed {seed}: {limits:?}"
        );
    }
}

/// A step of 100 ms, of which the processor or the GPU determines the length.
fn determined_by(processor_ns: u64, gpu_ns: u64) -> Trace {
    let mut b = Builder::new();
    b.mark(0, false).compute(0, processor_ns);
    b.gpu(
        launch(1_000).stream(1),
        GpuWork::Kernel,
        processor_ns + 4_000,
        gpu_ns,
        0,
    );
    b.call(synchronize(gpu_ns + 4_000).stream(1));
    b.mark(0, true);
    b.build()
}

#[test]
fn the_models_error_is_that_of_what_determines_a_program() {
    let model_error = |trace: &Trace| ask(trace, 60.0, "or+sr+local").unwrap().margin.model_error;
    let by_gpu = model_error(&determined_by(1_000, 99_999_000));
    assert!((0.01..0.0101).contains(&by_gpu), "{by_gpu}");
    let by_processor = model_error(&determined_by(99_999_000, 1_000));
    assert!((0.04..0.05).contains(&by_processor), "{by_processor}");
}

#[test]
fn a_program_that_waits_often_gets_no_figure() {
    let waiting = |waits: usize| {
        let mut b = Builder::new();
        b.mark(0, false);
        for _ in 0..waits {
            let now = b.compute(0, 20_000_000 / waits as u64).now(0);
            b.gpu(
                launch(4_000).stream(1),
                GpuWork::Kernel,
                now + 4_000,
                5_000,
                0,
            );
            b.call(synchronize(10_000).stream(1));
        }
        b.mark(0, true);
        ask_with(&b.build(), 10.0, "or+sr+local", Confidence::USUAL).unwrap()
    };
    let seldom = waiting(4);
    assert!(
        seldom.can_be_met && seldom.waits == 4,
        "{:?}",
        seldom.margin
    );
    assert!((0.001..0.002).contains(&seldom.margin.waits_error));
    let often = waiting(400);
    assert_eq!(often.waits, 400);
    assert!(
        (0.09..0.13).contains(&often.margin.waits_error),
        "{:?}",
        often.margin
    );
    for found in [&seldom, &often] {
        let sure = found.rtt_max.iter().zip(&found.rtt_beyond);
        let (keeps, breaks): (Vec<f64>, Vec<f64>) = sure
            .map(|(keeps, breaks)| (rank(keeps.rtt_ns.simulated), rank(breaks.rtt_ns.simulated)))
            .unzip();
        assert!(
            keeps
                .iter()
                .zip(&breaks)
                .all(|(keeps, breaks)| keeps < breaks)
        );
    }
    // A perfect network would do, if waits cost what is foreseen.
    assert!(often.perfect.simulated < 0.1 && !often.can_be_met && often.is_uncertain());
}

/// Iterations of 10 ms with two waits, over which the program computes; `ns` more of them each.
fn steps(ns: u64, gpu: Option<&str>) -> Trace {
    let mut b = Builder::new();
    for number in 0..6 {
        b.mark(0, false);
        for _ in 0..2 {
            b.compute(0, 4_980_000 + ns + 1_000 * number);
            let now = b.now(0);
            b.gpu(
                launch(4_000).stream(1),
                GpuWork::Kernel,
                now + 4_000,
                5_000,
                0,
            );
            b.call(synchronize(10_000).stream(1));
        }
        b.mark(0, true);
    }
    let mut trace = b.build();
    trace.about.gpu = gpu.map(Into::into);
    trace.about.host.cpu = "a processor".into();
    trace
}

const THROUGH: &str = "shm:///tmp/a.sock";

fn through(ns: u64) -> Trace {
    let mut trace = steps(ns, Some(THROUGH));
    trace.about.emulated = Some("rtt=1ns,bandwidth=100Gbps".into());
    trace.about.optimise = Some("or+sr+local".into());
    trace
}

#[test]
fn what_was_measured_without_a_network_is_what_it_takes_there() {
    let trace = steps(0, None);
    let workload = Workload::new(&trace).unwrap();
    let constants = constants();
    let ask = |known: Option<&WithoutNetwork>, rtt_ns: f64| {
        let question = Question {
            budget: Budget::percent(5.0).unwrap(),
            confidence: Confidence::EVEN,
            level: Level::ALL_OF_IT,
            constants: &constants,
            at: Network::new(rtt_ns, 1e11).unwrap(),
            iteration: None,
            without_network: known,
        };
        Requirements::new(&About::default(), &workload, &question).unwrap()
    };
    let known = WithoutNetwork::given(-7.0, 1.0, &"rtt=1ns,bandwidth=100Gbps".parse().unwrap());
    let known = known.unwrap();
    let measured = ask(Some(&known), 1.0);
    assert!((measured.at_overhead.simulated + 0.07).abs() < 1e-9);
    assert!((measured.perfect.simulated + 0.07).abs() < 1e-5);
    let (foreseen, same) = (ask(None, 1.0), measured.without_network.unwrap());
    assert!((same.foreseen - foreseen.at_overhead.simulated).abs() < 1e-12);
    // A network adds what it did, so that of 12 % two waits may take 0.6 ms each.
    let added =
        |known| ask(known, 4e5).at_overhead.simulated - ask(known, 1.0).at_overhead.simulated;
    assert!((added(Some(&known)) - added(None)).abs() < 1e-12);
    let rtt_ns = rank(measured.rtt_max.last().unwrap().rtt_ns.simulated);
    assert!((590e3..605e3).contains(&rtt_ns), "{rtt_ns}");
    // Bounds of what a question may say.
    for (percent, error) in [
        (-100.0, 1.0),
        (f64::NAN, 1.0),
        (1_001.0, 1.0),
        (5.0, -1.0),
        (5.0, 101.0),
    ] {
        let network = "rtt=1ns".parse().unwrap();
        assert!(
            WithoutNetwork::given(percent, error, &network).is_err(),
            "{percent} {error}"
        );
    }
    for network in ["rtt=50us", "rtt=1ns,bandwidth=99Gbps"] {
        let far = WithoutNetwork::given(1.0, 1.0, &network.parse().unwrap());
        assert!(matches!(far, Err(Error::WithNetwork { .. })), "{far:?}");
    }
    // The error is of the local time as well, margins are of the time through the server.
    let twice = WithoutNetwork::given(100.0, 4.0, &"rtt=1ns".parse().unwrap()).unwrap();
    assert!((twice.error - 0.02).abs() < 1e-12, "{twice:?}");
}

#[test]
fn a_measurement_answers_questions_of_its_own_level() {
    let (here, mut through) = (steps(0, None), through(0));
    through.about.optimise = Some("or".into());
    let known = WithoutNetwork::of(&[Pair {
        here: &here,
        through: &through,
    }]);
    let known = known.unwrap();
    let constants = constants();
    let ask = |level: &str| {
        let question = Question {
            budget: Budget::percent(5.0).unwrap(),
            confidence: Confidence::USUAL,
            level: level.parse().unwrap(),
            constants: &constants,
            at: Network::PERFECT,
            iteration: None,
            without_network: Some(&known),
        };
        let workload = Workload::new(&here).unwrap();
        Requirements::new(&About::default(), &workload, &question)
    };
    assert!(ask("or").is_ok());
    let error = ask("or+sr+local").unwrap_err().to_string();
    assert!(
        error.contains("at --optimise or, and the question is about or+sr+local"),
        "{error}"
    );
}

#[test]
fn recordings_of_both_are_compared() {
    let pair = |here: u64, there: u64| (steps(here, None), through(there));
    let of = |pairs: &[(Trace, Trace)]| {
        let pairs: Vec<Pair> = pairs
            .iter()
            .map(|(here, through)| Pair { here, through })
            .collect();
        WithoutNetwork::of(&pairs).unwrap()
    };
    let one = of(&[pair(0, 250_000)]);
    assert!((one.overhead - 0.05).abs() < 1e-3, "{one:?}");
    assert!(
        (0.03..0.031).contains(&one.error) && one.pairs == 1,
        "{one:?}"
    );
    let pairs = [(0, 250_000), (100_000, 350_000), (0, 200_000), (0, 300_000)];
    let four = of(&pairs.map(|(here, there)| pair(here, there)));
    assert!((four.overhead - 0.05).abs() < 2e-3, "{four:?}");
    // What is taken is the median, which is less sure than the mean.
    assert!(
        (0.0188..0.0195).contains(&four.error) && four.pairs == 4,
        "{four:?}"
    );
    let unsteady = [(0, 500_000), (0, 0), (0, 1_000_000), (0, 1_500_000)];
    let unsteady = of(&unsteady.map(|(here, there)| pair(here, there)));
    // Ratios of 1, 1.1, 1.2 and 1.3: 11.2 % of their mean, by 1.278 and 1.2533, over the root of 4.
    assert!((unsteady.error - 0.0899).abs() < 1e-3, "{unsteady:?}");
    // Two say little of how much pairs differ: 13.5 % of their mean, by 2.402, over the root of 2.
    let two = of(&[pair(0, 0), pair(0, 1_000_000)]);
    assert!((two.error - 0.2184).abs() < 2e-3, "{two:?}");
    assert!((two.overhead - 0.1).abs() < 2e-3, "{two:?}");
}

#[test]
fn pairs_over_different_links_or_of_different_levels_are_refused() {
    let (here, first) = (steps(0, None), through(0));
    let refuse = |change: &dyn Fn(&mut Trace), says: &str| {
        let mut other = through(0);
        change(&mut other);
        let pairs = [&first, &other].map(|through| Pair {
            here: &here,
            through,
        });
        let error = WithoutNetwork::of(&pairs).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    };
    refuse(
        &|t| t.about.emulated = Some("rtt=2us,bandwidth=200Gbps".into()),
        "different links: rtt=1ns,bandwidth=100Gbps and rtt=2us,bandwidth=200Gbps",
    );
    refuse(
        &|t| t.about.optimise = Some("or".into()),
        "different levels: --optimise or+sr+local and or",
    );
}

#[test]
fn recordings_that_are_no_pair_are_refused() {
    let here = steps(0, None);
    let refuse = |here: &Trace, change: &dyn Fn(&mut Trace), says: &str| {
        let mut through = through(0);
        change(&mut through);
        let error = WithoutNetwork::of(&[Pair {
            here,
            through: &through,
        }])
        .unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
    };
    refuse(
        &here,
        &|t| t.about.gpu = None,
        "made here, not through a server",
    );
    refuse(
        &here,
        &|t| t.about.gpu = Some("tcp://a:1".into()),
        "through tcp://a:1, whose own",
    );
    refuse(
        &here,
        &|t| t.about.emulated = None,
        "names no emulated network",
    );
    refuse(
        &here,
        &|t| t.about.emulated = Some("rtt=1ms".into()),
        "over rtt=1ms, it is not without",
    );
    refuse(
        &here,
        &|t| t.about.emulated = Some("rtt=1ns,bandwidth=1Mbps".into()),
        "at most, and the bandwidth 100Gbps at least",
    );
    refuse(
        &here,
        &|t| t.about.optimise = None,
        "does not tell its level",
    );
    refuse(
        &here,
        &|t| t.about.host.cores = 9,
        "9 cores of a processor through",
    );
    let gpu = outboard_trace::Device {
        name: "another GPU".into(),
        memory_bytes: 1,
    };
    refuse(
        &here,
        &|t| t.about.devices = vec![gpu.clone()],
        "another GPU through",
    );
    refuse(&through(0), &|_| (), "with outboard run --local");
    let mut other = random(3, 6, 60, 1);
    other.about.host.cpu = "a processor".into();
    refuse(&other, &|_| (), "different programs: an iteration makes");
}
