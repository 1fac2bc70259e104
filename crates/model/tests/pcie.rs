//! The published numbers of DxPU, and its formulas on small recordings.

#![allow(clippy::unwrap_used)]

mod builder;

use builder::{Builder, call, launch};
use outboard_model::{Pcie, Replay, Where, Workload};
use outboard_trace::{Class, GpuWork, Trace};

#[test]
fn read_throughput_is_what_the_paper_has() {
    let gb = |rtt_ns: f64| Pcie::new(rtt_ns).unwrap().read_bytes_per_s() / 1e9;
    assert_eq!(format!("{:.2}", gb(6_800.0)), "2.64");
    assert_eq!(format!("{:.2}", gb(4_900.0)), "3.66");
    for refused in [0.0, 1_199.0, -1.0, f64::NAN, f64::INFINITY] {
        assert!(Pcie::new(refused).is_err(), "{refused}");
    }
}

/// One unit of work of 10 us, and a wait.
fn one(kind: GpuWork, bytes: u64) -> Trace {
    let mut b = Builder::new();
    b.mark(0, false);
    b.gpu(launch(1_000).stream(1), kind, 4_000, 10_000, bytes);
    b.call(call("cuCtxSynchronize", Class::Synchronous, 14_000));
    b.mark(0, true);
    b.build()
}

fn added_ns(trace: &Trace, rtt_ns: f64) -> f64 {
    let workload = Workload::new(trace).unwrap();
    let mut replay = Replay::new(workload.typical());
    let local_ns = replay.run(Where::Here).total_ns;
    replay
        .run(Where::Pcie(&Pcie::new(rtt_ns).unwrap()))
        .total_ns
        - local_ns
}

#[test]
fn each_kind_of_work_is_late_by_its_formula() {
    // RTT_delta is 5.6 us.
    let added = |kind, bytes| added_ns(&one(kind, bytes), 6_800.0);
    assert_eq!(added(GpuWork::Kernel, 0), 5_600.0);
    assert_eq!(added(GpuWork::Memset, 4_096), 5_600.0);
    assert_eq!(added(GpuWork::CopyToHost, 1_000_000), 2_800.0);
    assert_eq!(added(GpuWork::CopyOnDevice, 1_000_000), 0.0);
    // All tags suffice for 17,920 bytes.
    assert_eq!(added(GpuWork::CopyToDevice, 17_920), 5_600.0);
    // 1 MB at 2.635 GB/s takes 379.5 us, in place of 10 us.
    let read_ns = 1e6 * 6_800.0 / 17_920.0;
    assert!((added(GpuWork::CopyToDevice, 1_000_000) - (read_ns - 10_000.0)).abs() < 1e-6);
}

#[test]
fn the_gpus_own_round_trip_adds_nothing() {
    for kind in [GpuWork::Kernel, GpuWork::CopyToHost, GpuWork::Memset] {
        assert_eq!(added_ns(&one(kind, 64), 1_200.0), 0.0);
    }
}
