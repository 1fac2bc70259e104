//! The interpreter is compiled for several instruction sets, and has functions of their own for what is frequent: results are the
//! same to the bit.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{Arg, Device, noise};
use outboard_ptx::check::{Checker, Checks};

/// What a kernel leaves in its output, by this host's instructions, by those that every host has, and watched: then nothing
/// has a function of its own.
fn both(
    ptx: &str,
    kernel: &str,
    grid: [u32; 3],
    block: [u32; 3],
    bytes: usize,
    args: impl Fn(&Device, u64) -> Vec<Arg>,
) {
    let checker = Checker::new(
        Checks {
            memory: true,
            ..Checks::default()
        },
        None,
    );
    let cases = [(false, None), (true, None), (false, Some(&checker))];
    let [host, baseline, general] = cases.map(|(baseline, checker)| {
        let mut device = Device::new(ptx);
        if baseline {
            device.module.use_baseline();
        }
        let out = device.alloc(bytes);
        let stats = device
            .try_run_watched(kernel, grid, block, 0, &args(&device, out), checker)
            .unwrap();
        (device.download::<u32>(out, bytes / 4), stats)
    });
    assert_eq!(host.1, baseline.1, "{kernel}");
    assert!(host.0.iter().any(|&bits| bits != 0), "{kernel}");
    assert_eq!(host.1, general.1, "{kernel}");
    assert!(host.0 == baseline.0, "{kernel}: results differ");
    assert!(host.0 == general.0, "{kernel}: results differ, watched");
}

/// Numbers of all magnitudes, and what is no number.
fn floats(n: usize) -> Vec<f32> {
    let mut next = noise(5);
    let special = [0.0, -0.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e-42];
    (0..n)
        .map(|i| match i % 16 {
            0 => special[i / 16 % special.len()],
            _ => ((next() - 0.5) * 200.0) as f32,
        })
        .collect()
}

#[test]
fn basics_and_shared_memory() {
    let basics = include_str!("data/basics.ptx");
    let n = 48;
    // Blocks of 16x16 work on halves of warps; 48 is no multiple of 32.
    both(
        basics,
        "matmul_tiled",
        [3, 3, 1],
        [16, 16, 1],
        n * n * 4,
        |device, out| {
            let [a, b] = [0; 2].map(|_| Arg::Ptr(device.upload(&floats(n * n))));
            vec![a, b, Arg::Ptr(out), Arg::I32(n as i32)]
        },
    );
    both(
        basics,
        "vector_add",
        [4, 1, 1],
        [100, 1, 1],
        4 * 390,
        |device, out| {
            let [a, b] = [0; 2].map(|_| Arg::Ptr(device.upload(&floats(390))));
            vec![a, b, Arg::Ptr(out), Arg::I32(390)]
        },
    );
    both(
        basics,
        "saxpy_stride",
        [2, 1, 1],
        [64, 1, 1],
        16 * 300,
        |device, out| {
            let x = Arg::Ptr(device.upload(&floats(1200)));
            vec![Arg::F32(1.5), x, Arg::Ptr(out), Arg::I32(300)]
        },
    );
    let pairs = |factor| (1..=200u64).map(|i| i * factor).collect::<Vec<_>>();
    both(
        basics,
        "gcd64",
        [2, 1, 1],
        [128, 1, 1],
        8 * 200,
        |device, out| {
            let [a, b] = [60, 84].map(|f| Arg::Ptr(device.upload(&pairs(f))));
            vec![a, b, Arg::Ptr(out), Arg::I32(200)]
        },
    );
}

#[test]
fn divergence_and_warps() {
    let warp = include_str!("data/warp.ptx");
    both(
        warp,
        "collatz",
        [2, 1, 1],
        [256, 1, 1],
        4 * 500,
        |device, out| {
            let input: Vec<u32> = (1..=500).collect();
            vec![
                Arg::Ptr(device.upload(&input)),
                Arg::Ptr(out),
                Arg::I32(500),
            ]
        },
    );
    both(
        warp,
        "scan_block",
        [1, 1, 1],
        [512, 1, 1],
        4 * 500,
        |device, out| {
            let input: Vec<i32> = (1..=500).collect();
            vec![
                Arg::Ptr(device.upload(&input)),
                Arg::Ptr(out),
                Arg::I32(500),
            ]
        },
    );
    both(
        warp,
        "votes",
        [1, 1, 1],
        [32, 1, 1],
        4 * 16 * 32,
        |device, out| {
            let input: Vec<i32> = (0..32).map(|i| i * 37 % 11).collect();
            vec![Arg::Ptr(device.upload(&input)), Arg::Ptr(out)]
        },
    );
}

#[test]
fn functions_of_floats() {
    let softmax = include_str!("data/softmax.ptx");
    both(
        softmax,
        "softmax_rows",
        [2, 1, 1],
        [96, 1, 1],
        4 * 5 * 70,
        |device, out| {
            let x = Arg::Ptr(device.upload(&floats(5 * 70)));
            vec![x, Arg::Ptr(out), Arg::I32(5), Arg::I32(70)]
        },
    );
    for math in [
        include_str!("data/math.ptx"),
        include_str!("data/math_fast.ptx"),
    ] {
        for which in 0..24 {
            both(
                math,
                "math_f32",
                [2, 1, 1],
                [128, 1, 1],
                4 * 200,
                |device, out| {
                    let x = Arg::Ptr(device.upload(&floats(200)));
                    vec![x, Arg::Ptr(out), Arg::I32(200), Arg::I32(which)]
                },
            );
        }
    }
}
