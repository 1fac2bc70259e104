//! Kernels of `data/basics.cu`, also as `nvcc -G` compiles them, against plain Rust.

use crate::common::{Arg, Device, noise};

const RELEASE: &str = include_str!("data/basics.ptx");
const DEBUG: &str = include_str!("data/basics_debug.ptx");

#[test]
fn vector_add() {
    for ptx in [RELEASE, DEBUG] {
        let device = Device::new(ptx);
        let n = 10_007;
        let mut random = noise(1);
        let a: Vec<f32> = (0..n).map(|_| random() as f32).collect();
        let b: Vec<f32> = (0..n).map(|_| random() as f32 - 0.5).collect();
        let (pa, pb, pc) = (device.upload(&a), device.upload(&b), device.alloc(n * 4));
        let args = [Arg::Ptr(pa), Arg::Ptr(pb), Arg::Ptr(pc), Arg::I32(n as i32)];
        let stats = device.run("vector_add", (n as u32).div_ceil(256), 256, &args);
        let expected: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
        assert_eq!(device.download::<f32>(pc, n), expected);
        assert_eq!(stats.blocks, 40);
    }
}

#[test]
fn counted_runs_count_what_is_executed() {
    let device = Device::new(RELEASE);
    let n = 200;
    let [pa, pb, pc] = [0; 3].map(|_| device.upload(&vec![2f32; n]));
    let args = [Arg::Ptr(pa), Arg::Ptr(pb), Arg::Ptr(pc), Arg::I32(n as i32)];
    let params = crate::common::params(&args);
    let launch = device.launch("vector_add", [1, 1, 1], [256, 1, 1], 0, &params);
    let counts = launch.run_counted().unwrap();
    assert_eq!(device.download::<f32>(pc, n), vec![4f32; n]);
    let lines: Vec<_> = RELEASE.lines().collect();
    let count = |text: &str| -> u64 {
        let of = |(line, count): (&u32, &u64)| (lines[*line as usize - 1].contains(text), *count);
        counts.iter().map(of).filter(|c| c.0).map(|c| c.1).sum()
    };
    // The last warp has no element of its own.
    assert_eq!([count("mad.lo"), count("add.f32")], [8, 7]);
    let stats = launch.run().unwrap();
    assert_eq!(counts.values().sum::<u64>(), stats.warp_instructions);
}

#[test]
fn saxpy_with_vectors() {
    for ptx in [RELEASE, DEBUG] {
        let device = Device::new(ptx);
        let n = 4 * 1000;
        let mut random = noise(2);
        let x: Vec<f32> = (0..n).map(|_| random() as f32).collect();
        let y: Vec<f32> = (0..n).map(|_| random() as f32).collect();
        let (px, py) = (device.upload(&x), device.upload(&y));
        device.run(
            "saxpy_stride",
            3,
            96,
            &[Arg::F32(1.5), Arg::Ptr(px), Arg::Ptr(py), Arg::I32(n / 4)],
        );
        for (i, got) in device
            .download::<f32>(py, n as usize)
            .into_iter()
            .enumerate()
        {
            // nvcc may or may not fuse the multiplication; both roundings are correct.
            let (fused, apart) = (1.5f32.mul_add(x[i], y[i]), 1.5 * x[i] + y[i]);
            assert!(got == fused || got == apart, "{i}: {got} {fused} {apart}");
        }
    }
}

#[test]
fn matmul_tiled() {
    for (ptx, n) in [(RELEASE, 100usize), (RELEASE, 64), (DEBUG, 40)] {
        let device = Device::new(ptx);
        let mut random = noise(3);
        let a: Vec<f32> = (0..n * n).map(|_| random() as f32 - 0.5).collect();
        let b: Vec<f32> = (0..n * n).map(|_| random() as f32 - 0.5).collect();
        let (pa, pb, pc) = (
            device.upload(&a),
            device.upload(&b),
            device.alloc(n * n * 4),
        );
        let grid = [n.div_ceil(16) as u32, n.div_ceil(16) as u32, 1];
        let args = [Arg::Ptr(pa), Arg::Ptr(pb), Arg::Ptr(pc), Arg::I32(n as i32)];
        device
            .try_run("matmul_tiled", grid, [16, 16, 1], 0, &args)
            .unwrap();
        let c = device.download::<f32>(pc, n * n);
        for row in 0..n {
            for col in 0..n {
                let exact: f64 = (0..n)
                    .map(|k| f64::from(a[row * n + k]) * f64::from(b[k * n + col]))
                    .sum();
                // n products of size 1/4 each lose at most half an ulp.
                assert!(
                    (f64::from(c[row * n + col]) - exact).abs() < 1e-5,
                    "{row} {col}"
                );
            }
        }
    }
}

#[test]
fn transpose_of_doubles() {
    for ptx in [RELEASE, DEBUG] {
        let device = Device::new(ptx);
        let (w, h) = (50usize, 37usize);
        let input: Vec<f64> = (0..w * h).map(|i| i as f64 * 1.25).collect();
        let (pi, po) = (device.upload(&input), device.alloc(w * h * 8));
        let args = [
            Arg::Ptr(pi),
            Arg::Ptr(po),
            Arg::I32(w as i32),
            Arg::I32(h as i32),
        ];
        device
            .try_run("transpose", [4, 3, 1], [16, 16, 1], 0, &args)
            .unwrap();
        let out = device.download::<f64>(po, w * h);
        for y in 0..h {
            for x in 0..w {
                assert_eq!(out[x * h + y], input[y * w + x]);
            }
        }
    }
}

#[test]
fn gcd_by_64_bit_division() {
    let device = Device::new(RELEASE);
    let mut random = noise(4);
    let mut number = || (random() * 1e18) as u64 >> (random() * 60.0) as u32;
    let (a, b): (Vec<u64>, Vec<u64>) = (0..200).map(|_| (number(), number())).unzip();
    let (pa, pb, po) = (device.upload(&a), device.upload(&b), device.alloc(200 * 8));
    device.run(
        "gcd64",
        2,
        128,
        &[Arg::Ptr(pa), Arg::Ptr(pb), Arg::Ptr(po), Arg::I32(200)],
    );
    let gcd = |mut a: u64, mut b: u64| {
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let expected: Vec<u64> = a.iter().zip(&b).map(|(&a, &b)| gcd(a, b)).collect();
    assert_eq!(device.download::<u64>(po, 200), expected);
}

#[test]
fn dot_product_in_dynamic_shared_memory() {
    for ptx in [RELEASE, DEBUG] {
        let device = Device::new(ptx);
        let a: Vec<f64> = (0..1000).map(|i| f64::from(i) * 0.5).collect();
        let b: Vec<f64> = (0..1000).map(|i| f64::from(1000 - i)).collect();
        let (pa, pb, po) = (device.upload(&a), device.upload(&b), device.alloc(8));
        let args = [Arg::Ptr(pa), Arg::Ptr(pb), Arg::Ptr(po), Arg::I32(1000)];
        device
            .try_run("dot_double", [1; 3], [128, 1, 1], 128 * 8, &args)
            .unwrap();
        // Every product and sum is a multiple of 1/2 below 2^53: exact.
        let expected: f64 = a.iter().zip(&b).map(|(a, b)| a * b).sum();
        assert_eq!(device.download::<f64>(po, 1), [expected]);
    }
}
