//! Iterations by marks, by a period, or none; and recordings that lack information.

#![allow(clippy::unwrap_used)]

mod builder;

use builder::{Builder, call, launch, random, synchronize};
use outboard_api::optimise::Level;
use outboard_model::{
    Constants, Error, FoundBy, ITERATIONS_MAX, Judge, Network, Note, Replay, Where, Workload,
};
use outboard_trace::{Class, GpuTimes, GpuWork, Trace};

#[test]
fn marks_tell_iterations_apart() {
    let workload = Workload::new(&random(1, 5, 50, 2)).unwrap();
    assert_eq!(workload.found_by, FoundBy::Marks);
    assert_eq!((workload.present, workload.iterations.len()), (5, 5));
    assert!(workload.notes.is_empty(), "{:?}", workload.notes);
    for iteration in &workload.iterations {
        assert_eq!(iteration.steps().count(), 51);
    }
    let typical = workload.typical().step_ns;
    let shorter = workload.iterations.iter().filter(|i| i.step_ns < typical);
    assert_eq!(shorter.count(), 2);
    assert_eq!(workload.iteration(5).unwrap().number, 5);
    for asked in [0, 6] {
        assert_eq!(
            workload.iteration(asked).unwrap_err(),
            Error::NoSuchIteration { asked, present: 5 }
        );
    }
}

#[test]
fn of_many_iterations_the_last_are_kept() {
    let workload = Workload::new(&random(1, ITERATIONS_MAX + 3, 3, 1)).unwrap();
    assert_eq!(workload.present, ITERATIONS_MAX + 3);
    assert_eq!(workload.iterations.len(), ITERATIONS_MAX);
    assert_eq!(workload.iterations[0].number, 4);
    assert!(workload.iteration(3).is_err());
}

#[test]
fn beginnings_alone_are_marks_enough() {
    let mut trace = random(1, 5, 50, 2);
    trace.records.retain(|record| match record {
        outboard_trace::Record::Mark(mark) => !mark.is_end,
        _ => true,
    });
    let workload = Workload::new(&trace).unwrap();
    assert_eq!((workload.found_by, workload.present), (FoundBy::Marks, 4));
}

#[test]
fn numbered_and_nested_ranges_are_iterations_too() {
    let mut b = Builder::new();
    for step in 0..4 {
        b.named_mark(&format!("Iteration {step}"), 0, false);
        b.named_mark("iteration, forward", 0, false);
        b.call(synchronize(1_000));
        b.named_mark("iteration, forward", 0, true);
        b.call(synchronize(500));
        b.named_mark(&format!("Iteration {step}"), 0, true);
    }
    let mut trace = b.build();
    let workload = Workload::new(&trace).unwrap();
    assert_eq!((workload.found_by, workload.present), (FoundBy::Marks, 4));
    assert!(workload.iterations.iter().all(|i| i.step_ns == 1_500.0));
    trace.about.iterations = Some("iteration, forward".into());
    let workload = Workload::new(&trace).unwrap();
    assert_eq!(workload.present, 4);
    assert!(workload.iterations.iter().all(|i| i.step_ns == 1_000.0));
    trace.about.iterations = Some("none such".into());
    assert_ne!(Workload::new(&trace).unwrap().found_by, FoundBy::Marks);
}

/// A start-up, then steps of layers, each of the same three calls, and a copy back at the end of
/// each step.
fn unmarked(steps: usize, layers: usize) -> Trace {
    let mut b = Builder::new();
    for index in 0..40 {
        b.call(call("cuMemAlloc_v2", Class::Shadowed, 900).bytes(64 + index, 0));
    }
    for step in 0..steps {
        for _ in 0..layers {
            b.call(call("cuCtxGetDevice", Class::Local, 50));
            let at = b.now(0) + 4_000;
            b.gpu(launch(3_000).stream(1), GpuWork::Kernel, at, 2_000, 0);
            b.call(call("cuEventRecord", Class::Outstanding, 500).stream(1));
        }
        let at = b.now(0) + 4_000;
        let copy = call(
            "cuMemcpyDtoHAsync_v2",
            Class::Synchronous,
            9_000 + step as u64 % 3,
        );
        b.gpu(copy.stream(1), GpuWork::CopyToHost, at, 2_000, 4);
        b.compute(0, 1_000);
    }
    b.build()
}

#[test]
fn without_marks_the_period_is_found_and_not_a_layer() {
    let workload = Workload::new(&unmarked(20, 12)).unwrap();
    let FoundBy::Period { calls, coverage } = workload.found_by else {
        panic!("{:?}", workload.found_by);
    };
    assert_eq!(calls, 12 * 3 + 1);
    assert!(coverage > 0.8);
    assert_eq!(workload.present, 19);
    // It ends with the copy that waits.
    let typical = workload.typical();
    assert!(typical.steps().last().unwrap().is_wait());
    let total_ns = Replay::new(typical).run(Where::Here).total_ns;
    assert!((total_ns - typical.step_ns).abs() < 1e-6);
}

#[test]
fn without_a_period_the_whole_is_one_iteration() {
    let workload = Workload::new(&unmarked(2, 3)).unwrap();
    assert_eq!((workload.found_by, workload.present), (FoundBy::Whole, 1));
    assert_eq!(workload.notes, [Note::WholeRecording]);
}

#[test]
fn one_iteration_is_enough_and_said_to_be_one() {
    let workload = Workload::new(&random(1, 1, 50, 2)).unwrap();
    assert_eq!(workload.notes, [Note::OneIteration]);
}

#[test]
fn a_recording_without_gpu_times_takes_waits_as_they_were() {
    let mut trace = random(1, 3, 50, 2);
    trace
        .records
        .retain(|record| !matches!(record, outboard_trace::Record::Work(_)));
    trace.about.gpu_times = GpuTimes::None;
    let workload = Workload::new(&trace).unwrap();
    assert_eq!(workload.notes, [Note::NoGpuTimes]);
    let typical = workload.typical();
    assert_eq!((typical.works().count(), typical.gpu_busy_ns()), (0, 0.0));
    let waits = typical.steps().filter(|s| s.class == Class::Synchronous);
    for step in waits {
        assert_eq!(step.server_ns, step.duration_ns);
    }
    let total_ns = Replay::new(typical).run(Where::Here).total_ns;
    assert!((total_ns - typical.step_ns).abs() < 1e-6);
}

/// Launches of 4 us each, then a wait of `wait_ns`; without times of the GPU.
fn launches_and_a_wait(count: usize, wait_ns: u64) -> Trace {
    let mut b = Builder::new();
    b.mark(0, false);
    for _ in 0..count {
        b.call(launch(4_000).stream(1));
    }
    b.call(synchronize(wait_ns).stream(1)).mark(0, true);
    b.build()
}

#[test]
fn a_long_wait_shows_that_the_gpu_was_busy() {
    let overhead = |trace: &Trace| {
        let workload = Workload::new(trace).unwrap();
        let constants = Constants::published();
        let mut judge = Judge::new(workload.typical(), Level::ALL_OF_IT, &constants);
        assert_eq!(judge.local_ns, workload.typical().step_ns);
        judge.overhead(Network::PERFECT).simulated
    };
    // The GPU is always busy: sending launches faster than they were made changes nothing.
    let bound = overhead(&launches_and_a_wait(100, 100_000));
    assert!((0.0..0.02).contains(&bound), "{bound}");
    // The GPU is idle when the wait comes: everything depends on the program.
    let idle = overhead(&launches_and_a_wait(1_000, 20_000));
    assert!(idle < bound);
}

#[test]
fn a_recording_made_through_a_server_is_its_own_measure() {
    for seed in 0..30 {
        let mut trace = random(seed, 1, 100, 2);
        trace
            .records
            .retain(|record| !matches!(record, outboard_trace::Record::Work(_)));
        trace.about.gpu = Some("shm:///tmp/gpu.sock".into());
        let workload = Workload::new(&trace).unwrap();
        let iteration = workload.typical();
        let constants = Constants::published();
        let mut judge = Judge::new(iteration, Level::ALL_OF_IT, &constants);
        // Over a perfect network it is what it was.
        let perfect = judge.overhead(Network::PERFECT);
        assert!(perfect.simulated.abs() < 1e-9, "seed {seed}: {perfect:?}");
        assert!((judge.closed().fixed_ns).abs() < 1e-3, "seed {seed}");
        // And each call that waits adds a round trip.
        let waits = trace.calls().filter(|c| c.class == Class::Synchronous);
        let network = Network::new(10_000.0, f64::INFINITY).unwrap();
        let added_ns = judge.total_ns(network, None) - iteration.step_ns;
        assert!((added_ns - waits.count() as f64 * 10_000.0).abs() < 1e-3);
    }
}

#[test]
fn what_is_known_of_a_recording_is_said() {
    let mut trace = random(1, 2, 50, 2);
    trace.about.gpu_times = GpuTimes::Events;
    trace.about.gpu = Some("tcp://10.0.0.7".into());
    trace.lost = 3;
    let notes = Workload::new(&trace).unwrap().notes;
    let gpu = "tcp://10.0.0.7".into();
    assert_eq!(
        notes,
        [
            Note::GpuTimesOfEvents,
            Note::RecordedThroughServer { gpu },
            Note::Incomplete { lost: 3 }
        ]
    );
}

#[test]
fn what_cannot_be_answered_is_an_error() {
    assert_eq!(
        Workload::new(&Trace::default()).unwrap_err(),
        Error::NoCalls
    );
    let mut b = Builder::new();
    b.call(call("cuCtxGetDevice", Class::Local, 50));
    assert_eq!(
        Workload::new(&b.build()).unwrap_err(),
        Error::NoGpuCalls { calls: 1 }
    );
    let mut b = Builder::new();
    b.mark(0, false).compute(0, 100).mark(0, true);
    b.call(synchronize(100));
    assert_eq!(
        Workload::new(&b.build()).unwrap_err(),
        Error::EmptyIterations
    );
    let mut b = Builder::new();
    b.call(synchronize(0));
    assert_eq!(Workload::new(&b.build()).unwrap_err(), Error::NoTime);
}

#[test]
fn any_numbers_in_a_recording_are_borne() {
    for seed in 0..300 {
        let mut rng = builder::Rng::new(seed);
        let mut trace = random(seed, 2, 30, 2);
        for record in &mut trace.records {
            if !rng.one_in(4) {
                continue;
            }
            match record {
                outboard_trace::Record::Call(call) => match rng.range(0, 5) {
                    0 => call.start_ns = rng.next(),
                    1 => call.duration_ns = rng.next(),
                    2 => call.correlation = rng.range(0, 50) as u32,
                    3 => call.stream = rng.next() as u32,
                    _ => call.function = rng.next() as u32,
                },
                outboard_trace::Record::Work(work) => match rng.range(0, 4) {
                    0 => work.start_ns = rng.next(),
                    1 => work.duration_ns = rng.next(),
                    2 => work.correlation = rng.range(0, 50) as u32,
                    _ => work.device = rng.range(0, 9) as u32,
                },
                outboard_trace::Record::Mark(mark) => mark.at_ns = rng.next(),
            }
        }
        if let Ok(workload) = Workload::new(&trace) {
            for iteration in &workload.iterations {
                let total_ns = Replay::new(iteration).run(Where::Here).total_ns;
                assert!(total_ns.is_finite(), "seed {seed}");
            }
        }
    }
}

/// Two launches and a wait. If timed, every call takes 1 us more, and the gap between the kernels
/// is 2 us longer.
fn step(b: &mut Builder, is_timed: bool, ask: bool) {
    let more_ns = if is_timed { 1_000 } else { 0 };
    b.mark(0, false).compute(0, 5_000);
    if ask {
        b.call(call("cuCtxGetDevice", Class::Local, 50));
    }
    let begin_ns = b.now(0);
    let (first_ns, second_ns) = (begin_ns + 3_000 + more_ns, begin_ns + 100_000 + 3 * more_ns);
    for (start_ns, ns) in [(first_ns, 96_000), (second_ns, 50_000)] {
        let launch = launch(2_000 + more_ns);
        match is_timed {
            true => b.gpu(launch, GpuWork::Kernel, start_ns, ns, 0),
            false => b.call(launch),
        };
    }
    // Untimed, the second kernel begins 1 us after the first has ended, and the wait ends 2 us
    // after it.
    let end_ns = match is_timed {
        true => second_ns + 50_000 + 2_000,
        false => begin_ns + 3_000 + 96_000 + 1_000 + 50_000 + 2_000,
    };
    let now_ns = b.now(0);
    b.call(synchronize(end_ns - now_ns));
    b.mark(0, true).compute(0, 1_000);
}

#[test]
fn calls_are_those_of_iterations_that_nobody_timed() {
    let mut b = Builder::new();
    for number in 0..6 {
        step(&mut b, number >= 3, number == 1);
    }
    let workload = Workload::new(&b.build()).unwrap();
    assert_eq!(workload.notes, [Note::Undisturbed { iterations: 3 }]);
    let numbers: Vec<usize> = workload.iterations.iter().map(|i| i.number).collect();
    assert_eq!((workload.present, numbers), (6, vec![1, 2, 3]));
    assert!(workload.iteration(3).is_ok());
    let said = workload.iteration(4).unwrap_err().to_string();
    let expected = "iteration 4 of 6 is left out: timing the GPU slows calls, and others went without it; those that count are 1 to 3";
    assert_eq!(said, expected);
    let (asked, present) = (7, 6);
    let beyond = Error::NoSuchIteration { asked, present };
    assert_eq!(workload.iteration(7).unwrap_err(), beyond);
    for iteration in &workload.iterations {
        let asked_ns = if iteration.number == 2 { 50.0 } else { 0.0 };
        assert_eq!(iteration.step_ns, 157_000.0 + asked_ns);
        assert_eq!(iteration.gpu_busy_ns(), 146_000.0);
        let launches = iteration.steps().filter(|step| step.duration_ns == 2_000.0);
        assert_eq!(launches.count(), 2);
        // The kernels wait for each other as they do when they are not timed.
        let here_ns = Replay::new(iteration).run(Where::Here).total_ns;
        assert!((here_ns - iteration.step_ns).abs() < 10.0, "{here_ns}");
    }
}

#[test]
fn timed_iterations_stand_alone_where_the_others_call_something_else() {
    let mut b = Builder::new();
    for number in 0..6 {
        match number < 3 {
            true => b.mark(0, false).call(launch(2_000)).mark(0, true),
            false => {
                step(&mut b, true, false);
                &mut b
            }
        };
    }
    let workload = Workload::new(&b.build()).unwrap();
    assert_eq!(workload.notes, [Note::TimedOnly]);
    assert_eq!(workload.iterations.len(), 3);
    let said = workload.iteration(2).unwrap_err().to_string();
    assert!(
        said.ends_with("make other calls; those that count are 4 to 6"),
        "{said}"
    );
    assert!(
        workload
            .iterations
            .iter()
            .all(|i| i.gpu_busy_ns() == 146_000.0)
    );
}
