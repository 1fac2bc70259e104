//! Plays recordings through the packet simulation, beside the formula and the replay of the same:
//! `recordings FOLDER MODELS` prints JSON, the input of `tools/paper_pool.py`. `MODELS` is a folder
//! with recordings of the paper's own models.

mod fabric;
mod kernels;

use std::{error::Error, path::Path};

use fabric::{Part, Simulated};
use outboard_dxpu::sim::{NS, Pcie as Link, Proxies, Setup, Work, run};
use outboard_model::{Iteration, Pcie, Played, Replay, Where, Workload, added_ns};
use outboard_trace::GpuWork;
use serde_json::{Value, json};

/// Round trips of the paper's two systems.
const RTTS_NS: [u64; 2] = [6_800, 4_900];
/// Recordings for which several GPUs and generations of PCIe are shown, and the bytes of their
/// gradients.
const TRAININGS: [(&str, u64); 2] = [
    ("resnet50_train_b64", 25_557_032 * 4),
    ("bert_train_b64", 109_482_240 * 4),
];
/// Recording of figure 4's program, and round trips of that and of table 4.
const FIGURE_4: &str = "resnet50_train_b64";
const FIGURE_4_RTTS_NS: [u64; 4] = [4_900, 6_800, 8_000, 19_000];
/// Longer copies to the GPU are images.
const IMAGE_BYTES_MIN: u64 = 1 << 20;
/// NVLink of an H200, one direction.
const NVLINK_BYTES_PER_S: f64 = 450e9;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(folder), Some(models)) = (arguments.next(), arguments.next()) else {
        return Err("two folders of recordings are needed".into());
    };
    let (folder, models) = (Path::new(&folder), Path::new(&models));
    let mut rows = Vec::new();
    for name in names(folder)? {
        let workload = read(folder, &name)?;
        if workload.typical().works().next().is_some() {
            rows.push(row(&name, workload.typical())?);
            eprintln!("{name}");
        }
    }
    let mut of_models = Vec::new();
    for name in names(models)? {
        let workload = read(models, &name)?;
        let mut row = row(&name, workload.typical())?;
        row["durations"] = kernels::kernels(workload.typical());
        of_models.push(row);
        eprintln!("{name}");
    }
    let (mut several, mut generations) = (Vec::new(), Vec::new());
    for (name, gradient_bytes) in TRAININGS {
        let workload = read(folder, name)?;
        several.push(several_gpus(name, workload.typical(), gradient_bytes));
        generations.push(later_pcie(name, workload.typical())?);
        eprintln!("{name} on several GPUs and later PCIe");
    }
    let resnet = read(folder, FIGURE_4)?;
    let figure4 = on_the_gpu(resnet.typical())?;
    println!(
        "{}",
        json!({ "rows": rows, "models": of_models, "several": several, "generations": generations, "figure4": figure4 })
    );
    Ok(())
}

/// Returns the names of a folder's recordings, in order.
fn names(folder: &Path) -> Result<Vec<String>, Box<dyn Error>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_stem().and_then(|name| name.to_str());
        names.extend(
            name.filter(|_| path.extension().is_some_and(|it| it == "trace"))
                .map(str::to_owned),
        );
    }
    names.sort();
    Ok(names)
}

fn read(folder: &Path, name: &str) -> Result<Workload, Box<dyn Error>> {
    let trace = outboard_trace::read(&folder.join(format!("{name}.trace")))?;
    Ok(Workload::new(&trace)?)
}

fn setup(rtt_ns: u64, link: Link) -> Setup {
    Setup {
        pcie: link,
        proxies: Some(Proxies::with_rtt(rtt_ns * NS, link.rtt_ps)),
        gpus: 1,
        seed: 1,
    }
}

fn local_ns(iteration: &Iteration) -> f64 {
    Replay::new(iteration).run(Where::Here).total_ns
}

/// Parts of the local speed, by the formula, by the replay of the formula and by packets.
fn row(name: &str, iteration: &Iteration) -> Result<Value, Box<dyn Error>> {
    let local_ns = local_ns(iteration);
    let graphs = iteration.units.iter().filter(|unit| unit.nodes > 1);
    let graph_nodes = graphs.map(|unit| unit.nodes).sum::<u32>();
    let packets = |rtt_ns: u64, part: Part, nodes_read: bool| {
        let mut fabric = Simulated::new(setup(rtt_ns, Link::PAPER), 1, nodes_read).with(part);
        Played::new(iteration, &mut fabric)
    };
    let part_of = |played: &Played| local_ns / played.outcome.total_ns;
    let mut at = Vec::new();
    for rtt_ns in RTTS_NS {
        let pcie = Pcie::new(rtt_ns as f64)?;
        let replayed_ns = Replay::new(iteration).run(Where::Pcie(&pcie)).total_ns;
        let whole = packets(rtt_ns, Part::All, false);
        at.push(json!({
            "rtt_us": rtt_ns as f64 / 1e3,
            "formula": local_ns / (local_ns + added_ns(iteration, &pcie)),
            "replay": local_ns / replayed_ns,
            "packets": part_of(&whole),
            "is_settled": whole.is_settled,
        }));
    }
    let unsignalled = packets(RTTS_NS[0], Part::WithoutSignals, false);
    let nodes_read = (graph_nodes > 0).then(|| part_of(&packets(RTTS_NS[0], Part::All, true)));
    Ok(json!({
        "recording": name,
        "local_ms": local_ns / 1e6,
        "works": iteration.units.len(),
        "graph_nodes": graph_nodes,
        "at": at,
        "without_signals": part_of(&unsignalled),
        "nodes_read": nodes_read,
    }))
}

/// Training on several GPUs that share a proxy, each with the whole batch; gradients are
/// summed by a ring after the step.
fn several_gpus(name: &str, iteration: &Iteration, gradient_bytes: u64) -> Value {
    let local_ns = local_ns(iteration);
    let rows = [1, 2, 4, 8].map(|gpus: u32| {
        let step_ns = |pairs: u32| {
            let mut setup = setup(6_800, Link::PAPER);
            setup.proxies = setup.proxies.map(|proxies| Proxies { pairs, ..proxies });
            let mut fabric = Simulated::new(setup, gpus, false);
            Played::new(iteration, &mut fabric).outcome.total_ns
        };
        let bytes = 2 * gradient_bytes * u64::from(gpus - 1) / u64::from(gpus);
        let nvlink_ns = bytes as f64 * 1e9 / NVLINK_BYTES_PER_S;
        let (bridge_ns, across_ns) = (ring_ns(gpus, bytes, false), ring_ns(gpus, bytes, true));
        let (one_ns, two_ns) = (step_ns(1), step_ns(2));
        json!({
            "gpus": gpus,
            "step_ms": one_ns / 1e6,
            "nvlink": { "sum_ms": nvlink_ns / 1e6, "part": (local_ns + nvlink_ns) / (one_ns + nvlink_ns) },
            "bridge": { "sum_ms": bridge_ns / 1e6, "part": (local_ns + bridge_ns) / (one_ns + bridge_ns) },
            "two_proxies": { "sum_ms": across_ns / 1e6, "part": (local_ns + bridge_ns) / (two_ns + across_ns) },
        })
    });
    json!({ "recording": name, "gradient_bytes": gradient_bytes, "local_ms": local_ns / 1e6, "rows": rows })
}

/// Time in which each GPU writes its share to the next one: below one bridge, or every one behind
/// the other proxy.
fn ring_ns(gpus: u32, bytes: u64, is_across: bool) -> f64 {
    if gpus < 2 {
        return 0.0;
    }
    let proxies = is_across.then_some(Proxies {
        pairs: 2,
        ..Proxies::PAPER
    });
    let setup = Setup {
        pcie: Link::PAPER,
        proxies,
        gpus,
        seed: 1,
    };
    // A tenth of it shows the rate.
    let share = |gpu: u32| {
        vec![Work::PeerWrite {
            peer: (gpu + 1) % gpus,
            bytes: bytes / 10,
        }]
    };
    let programs: Vec<_> = (0..gpus).map(share).collect();
    run(&setup, &programs).ended_ps as f64 / 1e3 * 10.0
}

/// A training whose images are on the GPU already, as the paper's synthetic ones.
fn on_the_gpu(iteration: &Iteration) -> Result<Value, Box<dyn Error>> {
    let mut iteration = iteration.clone();
    let copies = iteration.units.iter_mut();
    for copy in copies.filter(|it| it.kind == GpuWork::CopyToDevice && it.bytes > IMAGE_BYTES_MIN) {
        (copy.bytes, copy.duration_ns) = (1, 0.0);
    }
    let local_ns = local_ns(&iteration);
    let mut rows = Vec::new();
    for rtt_ns in FIGURE_4_RTTS_NS {
        let pcie = Pcie::new(rtt_ns as f64)?;
        let mut fabric = Simulated::new(setup(rtt_ns, Link::PAPER), 1, false);
        let played = Played::new(&iteration, &mut fabric);
        rows.push(json!({
            "rtt_us": rtt_ns as f64 / 1e3,
            "formula": local_ns / (local_ns + added_ns(&iteration, &pcie)),
            "replay": local_ns / Replay::new(&iteration).run(Where::Pcie(&pcie)).total_ns,
            "packets": local_ns / played.outcome.total_ns,
        }));
    }
    Ok(
        json!({ "recording": FIGURE_4, "local_ms": local_ns / 1e6, "works": iteration.units.len(), "rows": rows }),
    )
}

/// Later generations with twice the rate and tags each, and the same proxies.
fn later_pcie(name: &str, iteration: &Iteration) -> Result<Value, Box<dyn Error>> {
    let local_ns = local_ns(iteration);
    let mut rows = Vec::new();
    for generation in 3..=5 {
        let tags = Link::PAPER.tags << (generation - 3);
        let link = Link {
            generation,
            tags,
            ..Link::PAPER
        };
        let pcie: Pcie = format!("rtt=6.8us,tags={tags}").parse()?;
        let mut fabric = Simulated::new(setup(6_800, link), 1, false);
        let played = Played::new(iteration, &mut fabric);
        rows.push(json!({
            "generation": generation,
            "tags": tags,
            "formula": local_ns / (local_ns + added_ns(iteration, &pcie)),
            "replay": local_ns / Replay::new(iteration).run(Where::Pcie(&pcie)).total_ns,
            "packets": local_ns / played.outcome.total_ns,
        }));
    }
    Ok(json!({ "recording": name, "rows": rows }))
}
