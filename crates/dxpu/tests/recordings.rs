//! A recording that is played through the packet simulation.

#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "../examples/recordings/fabric.rs"]
mod fabric;

use std::path::Path;

use fabric::{Part, Simulated};
use outboard_dxpu::sim::{Pcie as Link, Proxies, Setup};
use outboard_model::{Fabric as _, Pcie, Played, Replay, Traffic, Where, Workload};
use outboard_trace::GpuWork;

const RECORDING: &str = "../../recordings/h200/perceptron_train.trace";

fn setup(proxies: Option<Proxies>) -> Setup {
    Setup {
        pcie: Link::PAPER,
        proxies,
        gpus: 1,
        seed: 1,
    }
}

/// Formula, replay and packets of one recording, and what doorbells, events and further GPUs add.
#[test]
fn packets_agree_with_the_formulas_replay_but_for_what_it_leaves_out() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(RECORDING);
    let workload = Workload::new(&outboard_trace::read(&path).unwrap()).unwrap();
    let iteration = workload.typical();
    let local_ns = Replay::new(iteration).run(Where::Here).total_ns;
    let pcie = Pcie::new(6_800.0).unwrap();
    let replayed_ns = Replay::new(iteration).run(Where::Pcie(&pcie)).total_ns;
    let played_ns = |proxies, gpus, part| {
        let mut fabric = Simulated::new(setup(proxies), gpus, false).with(part);
        let played = Played::new(iteration, &mut fabric);
        assert!(played.is_settled, "{played:?}");
        played.outcome.total_ns
    };
    // Without proxies nothing is late but long copies, for the recorded PCIe was faster.
    let native_ns = played_ns(None, 1, Part::All);
    assert!((0.999..1.05).contains(&(native_ns / local_ns)));
    let proxies = Some(Proxies::PAPER);
    let (all_ns, unsignalled_ns) = (
        played_ns(proxies, 1, Part::All),
        played_ns(proxies, 1, Part::WithoutSignals),
    );
    let near = |a: f64, b: f64| (a / b - 1.0).abs() < 0.01;
    assert!(
        near(unsignalled_ns, replayed_ns),
        "{unsignalled_ns} {replayed_ns}"
    );
    assert!(all_ns > unsignalled_ns);
    // Eight GPUs copy and read commands through one proxy.
    assert!(played_ns(proxies, 8, Part::All) > all_ns);
}

/// Nodes of a graph that each read commands are late one after the other.
#[test]
fn each_node_of_a_graph_may_read_its_commands() {
    let graph = Traffic {
        kind: GpuWork::Graph,
        bytes: 0,
        duration_ns: 1_000.0,
        nodes: 10,
        waits_for_others: false,
        called_ns: 0.0,
        due_ns: 1_000.0,
    };
    let begin_ns = |nodes_read| {
        let mut fabric = Simulated::new(setup(Some(Proxies::PAPER)), 1, nodes_read);
        fabric.play(&[graph])[0].begin_ns
    };
    assert!((begin_ns(false) - 5_600.0).abs() < 1.0);
    assert!((begin_ns(true) - 56_000.0).abs() < 10.0);
}
