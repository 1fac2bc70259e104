//! Prints what the simulation makes of the DxPU paper's figures and tables, as JSON: the input of
//! `tools/paper_pool.py`.

use outboard_dxpu::sim::{NS, Pcie, Proxies, Report, Setup, Work, read_latency_ps, run};
use serde_json::{Value, json};

const COPY_BYTES: u64 = 16 << 20;
const MS: u64 = 1_000_000 * NS;
const STEPS: usize = 4;

fn main() {
    let results = json!({
        "figure3": figure3(),
        "table6": table6(),
        "table7": table7(),
        "table12": [table12(64, 1.5, 0.8), table12(128, 1.4, 0.7)],
        "figure7": figure7(),
        "section51": section51(),
        "section53": section53(),
        "loss": loss(),
    });
    println!("{results}");
}

fn setup(proxies: Option<Proxies>) -> Setup {
    Setup {
        pcie: Pcie::PAPER,
        proxies,
        gpus: 1,
        seed: 1,
    }
}

fn gb_per_s(setup: &Setup, work: Work) -> f64 {
    let report = run(setup, &[vec![work]]);
    (report.read_bytes + report.written_bytes) as f64 * 1e3 / report.ended_ps as f64
}

fn read(setup: &Setup) -> f64 {
    gb_per_s(setup, Work::Read { bytes: COPY_BYTES })
}

fn write(setup: &Setup) -> f64 {
    gb_per_s(setup, Work::Write { bytes: COPY_BYTES })
}

/// Fifteen reads with five tags: with a short round trip, and with a long one.
fn figure3() -> Value {
    let mut short = setup(None);
    short.pcie = Pcie {
        tags: 5,
        mrrs_bytes: 512,
        rtt_ps: 150 * NS,
        ..Pcie::PAPER
    };
    let proxies = Some(Proxies::with_rtt(1_500 * NS, 150 * NS));
    let long = Setup { proxies, ..short };
    let reads = |setup: &Setup| {
        let report = run(setup, &[vec![Work::Read { bytes: 15 * 512 }]]);
        let times = report.noted.iter();
        let times =
            times.map(|n| json!([n.tag, n.asked_ps as f64 / 1e3, n.answered_ps as f64 / 1e3]));
        times.collect::<Vec<_>>()
    };
    json!({
        "short": { "reads": reads(&short), "gb_per_s": read(&short) },
        "long": { "reads": reads(&long), "gb_per_s": read(&long) },
    })
}

fn table6() -> Value {
    let us = |setup: Setup| read_latency_ps(&setup, 128) as f64 / 1e6;
    let native = us(setup(None));
    let whole = us(setup(Some(Proxies::PAPER)));
    let without = |change: fn(&mut Proxies)| {
        let mut proxies = Proxies::PAPER;
        change(&mut proxies);
        whole - us(setup(Some(proxies)))
    };
    let network = without(|proxies| proxies.crossing_ps = 0);
    let conversion = without(|proxies| proxies.conversion_ps = 0);
    json!({ "native_us": native, "whole_us": whole, "network_us": network, "conversion_us": conversion })
}

fn table7() -> Value {
    let (native, proxied) = (setup(None), setup(Some(Proxies::PAPER)));
    let faster = Proxies::with_rtt(4_900 * NS, 1_200 * NS);
    json!({
        "read": { "native": read(&native), "proxied": read(&proxied), "at_4_9us": read(&setup(Some(faster))) },
        "write": { "native": write(&native), "proxied": write(&proxied) },
    })
}

/// Steps of a training whose copies, on one GPU alone, run at the paper's rates: 2 ms, of which the
/// rest is computing. More GPUs do the same, begun at different times.
fn table12(batch: u32, read_gb_per_s: f64, write_gb_per_s: f64) -> Value {
    let step = |gb_per_s: f64| (gb_per_s * 2e6) as u64;
    let (read_bytes, write_bytes) = (step(read_gb_per_s), step(write_gb_per_s));
    let copies = [
        Work::Read { bytes: read_bytes },
        Work::Write { bytes: write_bytes },
    ];
    let copies_ps = run(&setup(Some(Proxies::PAPER)), &[copies.to_vec()]).ended_ps;
    let compute = Work::Compute {
        ps: (2 * MS).saturating_sub(copies_ps),
    };
    let rates = |gpus: u32, pairs: u32| {
        let program = |gpu: u64| {
            let late = Work::Compute {
                ps: gpu * 2 * MS / u64::from(gpus),
            };
            let steps = (0..STEPS).flat_map(|_| [copies[0], copies[1], compute]);
            std::iter::once(late).chain(steps).collect::<Vec<_>>()
        };
        let programs: Vec<_> = (0..u64::from(gpus)).map(program).collect();
        let setup = Setup {
            gpus,
            ..setup(Some(Proxies {
                pairs,
                ..Proxies::PAPER
            }))
        };
        rate(&run(&setup, &programs), gpus, read_bytes, write_bytes)
    };
    let rows: Vec<_> = [1, 2, 4, 8].iter().map(|gpus| rates(*gpus, 1)).collect();
    json!({ "batch": batch, "rows": rows, "two_pairs_8": rates(8, 2) })
}

/// Rates over each GPU's own steps, its late beginning left out.
fn rate(report: &Report, gpus: u32, read_bytes: u64, write_bytes: u64) -> Value {
    let (mut read, mut written) = (0.0, 0.0);
    for (gpu, ended_ps) in report.gpus_ended_ps.iter().enumerate() {
        let began_ps = gpu as u64 * 2 * MS / u64::from(gpus);
        let took_ps = (ended_ps - began_ps) as f64;
        read += (STEPS as u64 * read_bytes) as f64 * 1e3 / took_ps;
        written += (STEPS as u64 * write_bytes) as f64 * 1e3 / took_ps;
    }
    json!({ "gpus": gpus, "read": read, "write": written })
}

fn figure7() -> Value {
    let peer = Work::PeerWrite {
        peer: 1,
        bytes: COPY_BYTES,
    };
    let two = |proxies| Setup {
        gpus: 2,
        ..setup(proxies)
    };
    let across = Some(Proxies {
        pairs: 2,
        ..Proxies::PAPER
    });
    let both = |setup: &Setup| {
        let back = Work::PeerWrite {
            peer: 0,
            bytes: COPY_BYTES,
        };
        run(setup, &[vec![peer], vec![back]]).written_bytes_per_s() / 1e9
    };
    json!({
        "bridge": gb_per_s(&two(None), peer),
        "proxies": gb_per_s(&two(across), peer),
        "bridge_both": both(&two(None)),
        "proxies_both": both(&two(across)),
    })
}

fn section51() -> Value {
    let by_processor = Work::HostWrite {
        bytes: COPY_BYTES,
        unit_bytes: 64,
    };
    let rows = (3..=5).map(|generation: u32| {
        let tags = Pcie::PAPER.tags << (generation - 3);
        let pcie = Pcie {
            generation,
            tags,
            ..Pcie::PAPER
        };
        let native = Setup {
            pcie,
            ..setup(None)
        };
        let proxied = Setup {
            pcie,
            ..setup(Some(Proxies::PAPER))
        };
        json!({
            "generation": generation,
            "tags": tags,
            "native_read": read(&native),
            "read": read(&proxied),
            "write": write(&proxied),
            "by_processor": gb_per_s(&proxied, by_processor),
        })
    });
    json!(rows.collect::<Vec<_>>())
}

/// AES-GCM of each packet: a nonce and a tag, a pipeline of 50 ns at the ports' rate, both assumed.
fn section53() -> Value {
    let cipher = Proxies {
        cipher_ps: 50 * NS,
        cipher_ps_per_byte: 40.0,
        cipher_bytes: 28,
        ..Proxies::PAPER
    };
    let (plain, sealed) = (setup(Some(Proxies::PAPER)), setup(Some(cipher)));
    let of = |setup: &Setup| {
        let us = read_latency_ps(setup, 128) as f64 / 1e6;
        json!({ "rtt_us": us, "read": read(setup), "write": write(setup) })
    };
    json!({ "plain": of(&plain), "sealed": of(&sealed) })
}

fn loss() -> Value {
    let rows = [0.0, 1e-6, 1e-5, 1e-4, 1e-3].map(|loss| {
        let setup = setup(Some(Proxies {
            loss,
            ..Proxies::PAPER
        }));
        json!({ "loss": loss, "read": read(&setup), "write": write(&setup) })
    });
    json!(rows)
}
