//! Transactions a second on one core: encoded, cut to packets, joined and decoded; and simulated.
//! The codec is compared with copying the same bytes, in turns.

use outboard_dxpu::{
    packet::{Joiner, Packet, Route, split},
    sim::{Pcie, Proxies, Setup, Work, run},
    tlp::{Kind, Request, Tlp},
};

const ROUNDS: usize = 5;
const COUNT: u64 = 300_000;

fn main() {
    let (mut carried, mut copied, mut simulated) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        carried.push(codec());
        copied.push(copies());
        simulated.push(simulation());
    }
    let median = |mut rates: Vec<f64>| {
        rates.sort_by(f64::total_cmp);
        rates[ROUNDS / 2]
    };
    let (carried, copied, simulated) = (median(carried), median(copied), median(simulated));
    println!(
        "codec      {carried:.2} million TLPs/s (256 bytes), {:.3} of copying them",
        carried / copied
    );
    println!("simulation {simulated:.2} million TLPs/s");
}

fn codec() -> f64 {
    let data = [7; 256];
    let request = Request {
        first_enable: 15,
        last_enable: 15,
        ..Request::default()
    };
    let mut joiner = Joiner::default();
    let (begin, mut bytes) = (cpu_s(), 0);
    for number in 0..COUNT {
        let address = (1 << 40) + number * 256;
        let tlp = Tlp::new(Kind::MemoryWrite { request, address }, &data);
        let done = split(&tlp, Route::default(), number as u32, |packet| {
            if let Ok(packet) = Packet::parse(packet)
                && let Ok(Some((_, tlp))) = joiner.take(&packet)
            {
                bytes += tlp.data.len();
            }
        });
        assert!(done.is_ok());
    }
    assert_eq!(bytes as u64, COUNT * 256);
    COUNT as f64 / (cpu_s() - begin) / 1e6
}

fn copies() -> f64 {
    let data = vec![7_u8; 300];
    let mut out = Vec::with_capacity(300);
    let begin = cpu_s();
    for _ in 0..COUNT {
        out.clear();
        out.extend_from_slice(std::hint::black_box(&data));
        std::hint::black_box(&out);
    }
    COUNT as f64 / (cpu_s() - begin) / 1e6
}

fn simulation() -> f64 {
    let setup = Setup {
        pcie: Pcie::PAPER,
        proxies: Some(Proxies::PAPER),
        gpus: 8,
        seed: 1,
    };
    let programs = vec![
        vec![
            Work::Read { bytes: 8 << 20 },
            Work::Write { bytes: 4 << 20 }
        ];
        8
    ];
    let begin = cpu_s();
    let report = run(&setup, &programs);
    report.transactions as f64 / (cpu_s() - begin) / 1e6
}

/// Processor time of this process, so that others on the machine do not count.
fn cpu_s() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}
