//! Equations 1 to 3, term by term, against numbers computed by hand.

#![allow(clippy::unwrap_used)]

mod builder;

use builder::{Builder, call};
use outboard_api::optimise::Level;
use outboard_model::{
    Closed, Constants, LEVELS, Network, Workload, c_async, c_sync, e_async, e_local,
};
use outboard_trace::{Class, Trace};

fn constants() -> Constants {
    Constants {
        source: "made up".into(),
        start_ns: 400.0,
        start_ns_per_byte: 0.0,
        time_local_ns: 30.0,
        receive_ns: 0.0,
        copy_ns_per_byte: 0.0,
        device_ns_per_byte: 0.0,
        waits_for_copies: false,
        processor_more: 0.0,
        handoff_more: 0.0,
        waits: Vec::new(),
        server_ns: 0.0,
    }
}

/// One call of each class: local 100 ns; outstanding 4,000 ns, 1,000 bytes; shadowed 900 ns, 64
/// bytes; synchronous 20,000 ns, 200 bytes to the server and 800 back.
fn trace() -> Trace {
    let mut b = Builder::new();
    b.mark(0, false);
    b.call(call("cuCtxGetDevice", Class::Local, 100));
    b.call(call("cuLaunchKernel", Class::Outstanding, 4_000).bytes(1_000, 0));
    b.call(call("cuMemAllocAsync", Class::Shadowed, 900).bytes(64, 0));
    b.call(call("cuMemcpyDtoH_v2", Class::Synchronous, 20_000).bytes(200, 800));
    b.mark(0, true);
    b.build()
}

fn closed(level: Level) -> Closed {
    let workload = Workload::new(&trace()).unwrap();
    Closed::new(workload.typical(), level, &constants())
}

#[test]
fn the_terms() {
    // 10 us and 8 Gbit/s: a nanosecond per byte.
    let network = Network::new(10_000.0, 8e9).unwrap();
    assert_eq!(c_async(400.0, 1_000, &network), 400.0 + 5_000.0 + 1_000.0);
    assert_eq!(c_sync(400.0, 1_000, &network), 400.0 + 10_000.0 + 1_000.0);
    assert_eq!(e_local(100.0, 30.0), 70.0);
    assert_eq!(e_async(4_000.0), 4_000.0);
}

#[test]
fn the_cost_of_an_application() {
    let network = Network::new(10_000.0, 8e9).unwrap();
    let top = closed(Level::ALL_OF_IT);
    assert_eq!(
        (top.async_calls, top.sync_calls, top.local_calls),
        (2, 1, 1)
    );
    // launch: 400 + 5,000 + 1,000 - 4,000; allocation: 400 + 5,000 + 64 - 900; copy: 400 + 10,000 +
    // 1,000; local: -70
    let by_hand = (6_400.0 - 4_000.0) + (5_464.0 - 900.0) + 11_400.0 - 70.0;
    assert_eq!(top.cost_ns(&network), by_hand);
    assert_eq!((top.rtts, top.payload_bytes), (2.0, 1_000 + 64 + 1_000));
}

#[test]
fn the_levels() {
    let network = Network::new(10_000.0, 8e9).unwrap();
    let copy = 400.0 + 10_000.0 + 1_000.0;
    let launch_async = 400.0 + 5_000.0 + 1_000.0 - 4_000.0;
    // A call without a size at the top level has 64 bytes in each direction.
    let local_sync = 400.0 + 10_000.0 + 128.0;
    let alloc_sync = 400.0 + 10_000.0 + 64.0 + 64.0;
    let launch_sync = 400.0 + 10_000.0 + 1_000.0 + 64.0;
    let alloc_async = 400.0 + 5_000.0 + 64.0 - 900.0;
    let expected = [
        local_sync + launch_sync + alloc_sync + copy,
        local_sync + launch_async + alloc_sync + copy,
        local_sync + launch_async + alloc_async + copy,
        -70.0 + launch_async + alloc_async + copy,
    ];
    assert_eq!(
        LEVELS.map(|level| closed(level).cost_ns(&network)),
        expected
    );
}

#[test]
fn requirements_are_the_equation_solved() {
    let closed = closed(Level::ALL_OF_IT);
    let rtt_ns = closed.rtt_max_ns(20_000.0, 8e9).unwrap();
    let network = Network::new(rtt_ns, 8e9).unwrap();
    assert!((closed.cost_ns(&network) - 20_000.0).abs() < 1e-6);
    let bits_per_s = closed.bandwidth_min(20_000.0, 10_000.0).unwrap();
    let network = Network::new(10_000.0, bits_per_s).unwrap();
    assert!((closed.cost_ns(&network) - 20_000.0).abs() < 1e-6);
    assert_eq!(closed.rtt_max_ns(-1e9, 8e9), None);
    assert_eq!(closed.bandwidth_min(-1e9, 0.0), None);
    let nothing = Closed::default();
    assert_eq!(nothing.rtt_max_ns(0.0, 8e9), Some(f64::INFINITY));
    assert_eq!(nothing.bandwidth_min(0.0, 1e9), Some(0.0));
}
