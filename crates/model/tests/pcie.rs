//! The published numbers of DxPU, and its formulas on small recordings.

#![allow(clippy::unwrap_used)]

mod builder;

use builder::{Builder, call, launch};
use outboard_model::{Fabric, Late, Pcie, Played, Replay, Traffic, Where, Workload};
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

/// A PCIe that makes every unit equally late.
struct Even(Late);

impl Fabric for Even {
    fn play(&mut self, traffic: &[Traffic]) -> Vec<Late> {
        let late = |unit: &Traffic| Late {
            duration_ns: unit.duration_ns + self.0.duration_ns,
            ..self.0
        };
        traffic.iter().map(late).collect()
    }
}

/// Doorbells and events delay a program that waits, and no kernels of a full stream.
#[test]
fn doorbells_and_events_are_late_where_somebody_waits() {
    let added = |trace: &Trace, late: Late| {
        let workload = Workload::new(trace).unwrap();
        let local_ns = Replay::new(workload.typical()).run(Where::Here).total_ns;
        let played = Played::new(workload.typical(), &mut Even(late));
        assert!(played.is_settled);
        played.outcome.total_ns - local_ns
    };
    let late = |doorbell_ns, begin_ns, duration_ns, seen_ns| Late {
        doorbell_ns,
        begin_ns,
        duration_ns,
        seen_ns,
    };
    let waited = one(GpuWork::Kernel, 0);
    assert_eq!(added(&waited, late(100.0, 20.0, 3.0, 4_000.0)), 4_123.0);
    let mut b = Builder::new();
    b.mark(0, false);
    b.gpu(launch(1_000).stream(1), GpuWork::Kernel, 2_000, 50_000, 0);
    b.gpu(launch(3_000).stream(1), GpuWork::Kernel, 52_000, 9_000, 0);
    b.call(call("cuCtxSynchronize", Class::Synchronous, 57_000));
    b.mark(0, true);
    // The second kernel's doorbell rings while the first one runs.
    let full = b.build();
    assert_eq!(added(&full, late(100.0, 0.0, 0.0, 0.0)), 100.0);
    assert_eq!(added(&full, late(0.0, 20.0, 3.0, 0.0)), 46.0);
}

/// With the formulas' own delays it is the replay by formulas.
#[test]
fn a_fabric_of_the_formulas_is_the_replay() {
    struct Formulas(Pcie);
    impl Fabric for Formulas {
        fn play(&mut self, traffic: &[Traffic]) -> Vec<Late> {
            let late = |unit: &Traffic| Late {
                begin_ns: self.0.delta_ns(),
                duration_ns: unit.duration_ns,
                ..Late::default()
            };
            traffic.iter().map(late).collect()
        }
    }
    let trace = one(GpuWork::Kernel, 0);
    let workload = Workload::new(&trace).unwrap();
    let pcie = Pcie::new(6_800.0).unwrap();
    let played = Played::new(workload.typical(), &mut Formulas(pcie));
    let replayed = Replay::new(workload.typical()).run(Where::Pcie(&pcie));
    assert_eq!(played.outcome, replayed);
}
