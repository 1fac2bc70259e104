//! The simulation against the numbers that the DxPU paper measured.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use outboard_dxpu::sim::{Chain, NS, Pcie, Proxies, Setup, Work, play, read_latency_ps, run};

const MB: u64 = 1 << 20;

fn setup(proxies: Option<Proxies>) -> Setup {
    Setup {
        pcie: Pcie::PAPER,
        proxies,
        gpus: 1,
        seed: 1,
    }
}

fn near(value: f64, expected: f64, part: f64) -> bool {
    (value / expected - 1.0).abs() < part
}

fn read_gb_per_s(setup: &Setup) -> f64 {
    run(setup, &[vec![Work::Read { bytes: 4 * MB }]]).read_bytes_per_s() / 1e9
}

/// Table 6: 1.2 us native, 6.8 us through proxies.
#[test]
fn a_read_takes_the_round_trip_of_table_6() {
    assert_eq!(read_latency_ps(&setup(None), 128), 1_200 * NS);
    assert_eq!(
        read_latency_ps(&setup(Some(Proxies::PAPER)), 128),
        6_800 * NS
    );
    let faster = Proxies::with_rtt(4_900 * NS, 1_200 * NS);
    assert!(near(
        read_latency_ps(&setup(Some(faster)), 128) as f64,
        4.9e6,
        0.001
    ));
}

/// Section 3.5.1: equation 1 gives 2.64 and 3.66 GB/s, measured 2.7 and 3.9.
#[test]
fn long_reads_run_at_equation_1() {
    assert!(near(
        read_gb_per_s(&setup(Some(Proxies::PAPER))),
        2.64,
        0.01
    ));
    let faster = Proxies::with_rtt(4_900 * NS, 1_200 * NS);
    assert!(near(read_gb_per_s(&setup(Some(faster))), 3.66, 0.01));
}

/// Table 7, natively 11.2 and 12.5 GB/s: there the link limits, not the tags.
#[test]
fn native_copies_are_limited_by_the_link() {
    assert!(near(read_gb_per_s(&setup(None)), 11.2, 0.13));
    let written = run(&setup(None), &[vec![Work::Write { bytes: 4 * MB }]]);
    assert!(near(written.written_bytes_per_s() / 1e9, 12.5, 0.08));
}

/// Section 5.1: 9.44 GB/s, to which the proxy's places are fitted; Table 7: writes lose little.
#[test]
fn writes_do_not_wait_for_round_trips() {
    let proxied = setup(Some(Proxies::PAPER));
    let by_processor = Work::HostWrite {
        bytes: 4 * MB,
        unit_bytes: 64,
    };
    let written = run(&proxied, &[vec![by_processor]]).written_bytes_per_s() / 1e9;
    assert!(near(written, 9.44, 0.02), "{written}");
    let copied = run(&proxied, &[vec![Work::Write { bytes: 4 * MB }]]).written_bytes_per_s() / 1e9;
    assert!(near(copied, 11.6, 0.15), "{copied}");
}

/// Figure 3: five tags keep a short round trip full, and not a long one.
#[test]
fn five_tags_suffice_or_block() {
    let mut short = setup(None);
    short.pcie = Pcie {
        tags: 5,
        mrrs_bytes: 512,
        rtt_ps: 150 * NS,
        ..Pcie::PAPER
    };
    let full = read_gb_per_s(&short);
    let long = Setup {
        proxies: Some(Proxies::with_rtt(1_500 * NS, 150 * NS)),
        ..short
    };
    assert!(near(read_gb_per_s(&long), 5.0 * 512.0 / 1_500.0, 0.02));
    short.pcie.tags = 50;
    assert!(near(read_gb_per_s(&short), full, 0.02), "five are enough");
}

#[test]
fn a_seed_gives_one_result_and_loss_costs() {
    let lossy = |seed| Setup {
        seed,
        ..setup(Some(Proxies {
            loss: 0.001,
            ..Proxies::PAPER
        }))
    };
    let work = [vec![Work::Read { bytes: MB }, Work::Write { bytes: MB }]];
    let first = run(&lossy(7), &work);
    assert_eq!(first, run(&lossy(7), &work));
    assert_ne!(first, run(&lossy(8), &work));
    assert!(first.lost_packets > 0);
    assert!(first.ended_ps > run(&setup(Some(Proxies::PAPER)), &work).ended_ps);
    assert_eq!((first.read_bytes, first.written_bytes), (MB, MB));
}

/// Completions are split at 64 and 256 bytes; every byte arrives once, for odd sizes too.
#[test]
fn all_bytes_arrive_whatever_the_sizes() {
    for (mrrs_bytes, bytes) in [(512, 4_097), (128, 1), (4_096, 1_000_003), (64, 12_345)] {
        let mut odd = setup(Some(Proxies {
            loss: 0.01,
            held_max: 3,
            ..Proxies::PAPER
        }));
        odd.pcie.mrrs_bytes = mrrs_bytes;
        odd.gpus = 2;
        let peer = vec![Work::PeerWrite { peer: 1, bytes }];
        let report = run(
            &odd,
            &[vec![Work::Read { bytes }, Work::Write { bytes }], peer],
        );
        assert_eq!(
            (report.read_bytes, report.written_bytes),
            (bytes, 2 * bytes)
        );
    }
}

/// A GPU's works that run at the same time share its link and its tags, and none starves.
#[test]
fn chains_of_one_gpu_share_its_link() {
    let setup = setup(Some(Proxies::PAPER));
    let copy = [Work::Read { bytes: 4 * MB }];
    let command = [Work::Read { bytes: 128 }, Work::Write { bytes: 16 }];
    let chain = |from_ps, works| Chain {
        gpu: 0,
        from_ps,
        works,
    };
    let alone = play(&setup, &[chain(0, &copy)]).1[0][0];
    let (report, ended) = play(&setup, &[chain(0, &copy), chain(0, &copy)]);
    assert_eq!(report.read_bytes, 8 * MB);
    // Together they take as long as one after the other, and end together.
    assert!(near(ended[0][0] as f64, 2.0 * alone as f64, 0.01));
    assert!(near(ended[1][0] as f64, 2.0 * alone as f64, 0.01));
    // A command amid a copy waits for a tag at most, not for the copy's end.
    let (_, ended) = play(&setup, &[chain(0, &copy), chain(alone / 2, &command)]);
    let latency = ended[1][0] - alone / 2;
    let least = read_latency_ps(&setup, 128);
    assert!((least..3 * least).contains(&latency), "{latency}");
    assert!(ended[1][1] > ended[1][0] && ended[1][1] < ended[0][0]);
}
