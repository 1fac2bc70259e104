//! The summary of a recording whose sums can be checked by hand.

use outboard_trace::{Call, Class, GpuWork, Mark, Record, Trace, Work, chrome, summary::Summary};

fn call(function: u32, class: Class, start_ns: u64, duration_ns: u64, bytes: (u64, u64)) -> Record {
    Record::Call(Call {
        function,
        class,
        thread: 0,
        start_ns,
        duration_ns,
        request_bytes: bytes.0,
        response_bytes: bytes.1,
        stream: 0,
        event: 0,
        correlation: 0,
        status: 0,
        server: 0,
    })
}

fn kernel(stream: u32, start_ns: u64, duration_ns: u64, correlation: u32) -> Record {
    Record::Work(Work {
        kind: GpuWork::Kernel,
        name: 2,
        device: 0,
        stream,
        start_ns,
        duration_ns,
        bytes: 0,
        correlation,
    })
}

fn mark(name: u32, at_ns: u64, is_end: bool) -> Record {
    Record::Mark(Mark {
        name,
        thread: 0,
        at_ns,
        is_end,
    })
}

fn example() -> Trace {
    let names = [
        "cuLaunchKernel",
        "cuCtxSynchronize",
        "scale",
        "iteration 1",
        "other",
    ];
    let mut records = vec![
        mark(3, 1_000_000, false),
        mark(4, 1_000_000, false),
        call(0, Class::Outstanding, 1_000_000, 500, (100, 0)),
        call(0, Class::Outstanding, 1_001_000, 500, (100, 0)),
        call(1, Class::Synchronous, 1_002_000, 98_000, (28, 1_800)),
        // 4 us; 20 us, of which 5 us overlap with 10 us on another stream; and 10 us more.
        kernel(0, 1_001_000, 4_000, 0),
        kernel(0, 1_010_000, 20_000, 0),
        kernel(1, 1_025_000, 10_000, 0),
        mark(3, 1_100_000, true),
    ];
    records.sort_by_key(Record::end_ns);
    Trace {
        records,
        names: names.map(String::from).into(),
        complete: true,
        ..Trace::default()
    }
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-9
}

#[test]
fn sums() {
    let summary = Summary::of(&example());
    assert_eq!(summary.duration_ns, 100_000);
    assert_eq!(summary.calls.calls, 3);
    let outstanding = &summary.by_class["outstanding"];
    assert_eq!((outstanding.calls, outstanding.duration_ns), (2, 1_000));
    assert!(near(outstanding.share, 2.0 / 3.0));
    assert_eq!(summary.by_class["local"].calls, 0);
    assert_eq!(summary.functions[0].name, "cuCtxSynchronize");
    // 228 bytes to the server and 1800 back in 100 us.
    let bandwidth = &summary.bandwidth;
    assert!(near(bandwidth.request_mb_per_s, 2.28) && near(bandwidth.response_mb_per_s, 18.0));
    assert!(near(bandwidth.both_mb_per_s, 20.28));
    let iterations = summary.iterations.expect("one iteration");
    assert_eq!((iterations.count, iterations.mean_ns), (1, 100_000));
}

#[test]
fn the_share_of_the_gpu() {
    let gpu = Summary::of(&example()).gpu.expect("there is work");
    // 4 us, and from 10 to 35 us.
    assert_eq!(gpu.busy_ns, 29_000);
    assert!(near(gpu.busy_share, 0.29));
    let kernels = gpu.kernels.expect("there are kernels");
    assert_eq!((kernels.count, kernels.total_ns), (3, 34_000));
    assert_eq!(
        (kernels.min_ns, kernels.median_ns, kernels.max_ns),
        (4_000, 10_000, 20_000)
    );
    assert!(near(gpu.short_kernels_share, 2.0 / 3.0));
    assert!(near(gpu.short_kernels_time_share, 14.0 / 34.0));
    let counts: u64 = gpu.distribution.iter().map(|bucket| bucket.count).sum();
    let last = gpu.distribution.last().expect("a last bucket");
    assert_eq!((counts, last.count_cdf, last.time_cdf), (3, 1.0, 1.0));
    assert_eq!(gpu.top_kernels[0].name, "scale");
}

#[test]
fn nothing_is_nothing() {
    let summary = Summary::of(&Trace::default());
    assert_eq!((summary.duration_ns, summary.calls.calls), (0, 0));
    assert_eq!((summary.gpu, summary.iterations), (None, None));
    assert!(near(summary.bandwidth.both_mb_per_s, 0.0));
}

#[test]
fn numbers_without_measure_do_no_harm() {
    let mut trace = example();
    trace
        .records
        .push(kernel(u32::MAX, u64::MAX - 5, u64::MAX, 1));
    trace.records.push(call(
        u32::MAX,
        Class::Unsupported,
        u64::MAX,
        u64::MAX,
        (u64::MAX, u64::MAX),
    ));
    trace.records.push(mark(3, 0, true));
    let summary = Summary::of(&trace);
    assert_eq!(summary.calls.calls, 4);
    chrome::export(&mut Vec::new(), &trace).expect("memory does not fail");
}

#[test]
fn arrows_lead_from_calls_to_their_work() {
    let mut trace = example();
    for record in &mut trace.records {
        match record {
            Record::Call(call) if call.start_ns == 1_000_000 => call.correlation = 7,
            Record::Call(call) if call.start_ns == 1_001_000 => call.correlation = 8,
            Record::Work(work) if work.start_ns == 1_010_000 => work.correlation = 7,
            _ => {}
        }
    }
    let mut out = Vec::new();
    chrome::export(&mut out, &trace).expect("memory does not fail");
    let document: serde_json::Value = serde_json::from_slice(&out).expect("JSON");
    let events = document["traceEvents"].as_array().expect("events");
    let arrows: Vec<(&str, u64, u64)> = events
        .iter()
        .filter(|event| event["name"] == "starts")
        .map(|event| {
            (
                event["ph"].as_str().unwrap_or_default(),
                event["id"].as_u64().unwrap_or_default(),
                event["pid"].as_u64().unwrap_or_default(),
            )
        })
        .collect();
    // The recording has no work of call 8.
    assert_eq!(arrows, [("s", 7, 1), ("f", 7, 100)]);
    let gpu = events
        .iter()
        .find(|event| event["cat"] == "kernel")
        .expect("a kernel");
    assert_eq!(
        (gpu["ts"].as_f64(), gpu["dur"].as_f64()),
        (Some(1_001.0), Some(4.0))
    );
    let named: Vec<&serde_json::Value> = events.iter().filter(|e| e["ph"] == "M").collect();
    assert!(
        named
            .iter()
            .any(|e| e["args"]["name"] == "stream 1" && e["pid"] == 100)
    );
}
