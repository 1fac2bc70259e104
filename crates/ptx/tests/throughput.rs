//! Warp instructions a second of processor time on one worker: other load on the machine does not count. Prints; run with
//! `cargo test --release -p outboard-ptx --test throughput -- --ignored --nocapture`.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{Arg, Device};

fn thread_seconds() -> f64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a valid place for the result.
    let rc = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(rc, 0);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

fn report(name: &str, f: impl Fn() -> outboard_ptx::Stats) {
    let mut best = f64::INFINITY;
    let mut count = 0;
    for _ in 0..5 {
        let start = thread_seconds();
        count = f().warp_instructions;
        best = best.min(thread_seconds() - start);
    }
    println!(
        "{name:12} {count:>10} warp instructions in {:8.3} ms: {:6.1} million/s",
        best * 1e3,
        count as f64 / best / 1e6
    );
    assert!(count > 0);
}

#[test]
#[ignore = "a measurement"]
fn warp_instructions_per_second() {
    let mut device = Device::new(include_str!("data/basics.ptx"));
    device.workers = 1;
    let n = 256usize;
    let (a, b, c) = (
        device.alloc(n * n * 4),
        device.alloc(n * n * 4),
        device.alloc(n * n * 4),
    );
    report("matmul", || {
        let args = [Arg::Ptr(a), Arg::Ptr(b), Arg::Ptr(c), Arg::I32(n as i32)];
        device
            .try_run("matmul_tiled", [16, 16, 1], [16, 16, 1], 0, &args)
            .unwrap()
    });
    let n = 1 << 20;
    let (x, y, z) = (
        device.alloc(n * 4),
        device.alloc(n * 4),
        device.alloc(n * 4),
    );
    report("vector add", || {
        device.run(
            "vector_add",
            (n / 256) as u32,
            256,
            &[Arg::Ptr(x), Arg::Ptr(y), Arg::Ptr(z), Arg::I32(n as i32)],
        )
    });

    let mut warp = Device::new(include_str!("data/warp.ptx"));
    warp.workers = 1;
    let input: Vec<u32> = (1..=20_000).collect();
    let (pi, po) = (warp.upload(&input), warp.alloc(80_000));
    report("collatz", || {
        warp.run(
            "collatz",
            79,
            256,
            &[Arg::Ptr(pi), Arg::Ptr(po), Arg::I32(20_000)],
        )
    });

    let mut math = Device::new(include_str!("data/math.ptx"));
    math.workers = 1;
    let input: Vec<f32> = (0..1 << 16).map(|i| i as f32 * 0.001).collect();
    let (pi, po) = (math.upload(&input), math.alloc(4 << 16));
    report("expf", || {
        math.run(
            "math_f32",
            256,
            256,
            &[Arg::Ptr(pi), Arg::Ptr(po), Arg::I32(1 << 16), Arg::I32(3)],
        )
    });
}
