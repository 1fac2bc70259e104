//! Kernels of `data/warp.cu`: shuffles, votes, atomics, barriers, divergence, progress of waiting
//! threads.

use crate::common::{Arg, Device, noise};

const PTX: &str = include_str!("data/warp.ptx");

#[test]
fn reduction_by_shuffles() {
    let device = Device::new(PTX);
    let input: Vec<f32> = (0..5000).map(|i| (i % 17) as f32).collect();
    let (pi, po) = (device.upload(&input), device.alloc(4));
    device.run(
        "reduce_sum",
        5,
        256,
        &[Arg::Ptr(pi), Arg::Ptr(po), Arg::I32(5000)],
    );
    // Small integers: exact in any order.
    assert_eq!(device.download::<f32>(po, 1), [input.iter().sum::<f32>()]);
}

#[test]
fn histogram_by_shared_and_global_atomics() {
    let device = Device::new(PTX);
    let mut random = noise(5);
    let input: Vec<u8> = (0..20_000)
        .map(|_| (random() * random() * 256.0) as u8)
        .collect();
    let (pi, po) = (device.upload(&input), device.alloc(1024));
    device.run(
        "histogram",
        6,
        192,
        &[Arg::Ptr(pi), Arg::Ptr(po), Arg::I32(20_000)],
    );
    let mut expected = vec![0u32; 256];
    input.iter().for_each(|&v| expected[v as usize] += 1);
    assert_eq!(device.download::<u32>(po, 256), expected);
}

#[test]
fn scan_of_a_block() {
    let device = Device::new(PTX);
    for n in [1024usize, 1000, 33] {
        let input: Vec<i32> = (0..n as i32).map(|i| i * 7 % 100 - 50).collect();
        let (pi, po) = (device.upload(&input), device.alloc(n * 4));
        device.run(
            "scan_block",
            1,
            1024,
            &[Arg::Ptr(pi), Arg::Ptr(po), Arg::I32(n as i32)],
        );
        let expected: Vec<i32> = input
            .iter()
            .scan(0, |sum, v| {
                *sum += v;
                Some(*sum)
            })
            .collect();
        assert_eq!(device.download::<i32>(po, n), expected);
    }
}

#[test]
fn votes_matches_and_bits() {
    let device = Device::new(PTX);
    let input: Vec<i32> = (0..32)
        .map(|i| [3, 7, 12, 900, -5, 64][i % 6] * (i as i32 / 6 + 1) % 1000)
        .collect();
    let (pi, po) = (device.upload(&input), device.alloc(32 * 16 * 4));
    device.run("votes", 1, 32, &[Arg::Ptr(pi), Arg::Ptr(po)]);
    let out = device.download::<u32>(po, 32 * 16);
    let mask_of = |f: &dyn Fn(i32) -> bool| {
        input
            .iter()
            .enumerate()
            .fold(0u32, |m, (l, &v)| m | u32::from(f(v)) << l)
    };
    for lane in 0..32usize {
        let (v, o) = (input[lane], &out[lane * 16..][..16]);
        let odd = mask_of(&|v| v & 1 == 1);
        let shuffled = if lane & 16 != 0 {
            input[if lane == 31 { 31 } else { lane + 1 }]
        } else {
            input[if lane < 2 { lane } else { lane - 2 }]
        };
        let expected = [
            odd,
            u32::from(input.contains(&7)),
            u32::from(input.iter().all(|&v| v < 1000)),
            mask_of(&|w| w == v),
            u32::MAX,
            1,
            input.iter().sum::<i32>() as u32,
            *input.iter().min().unwrap() as u32,
            input.iter().fold(0, |x, &v| x ^ v) as u32,
            input[lane ^ 5] as u32,
            input[lane / 8 * 8 + 3] as u32,
            if v & 1 == 1 { odd } else { 0 },
            (v as u32).count_ones()
                + v.leading_zeros() * 100
                + (if v == 0 { 0 } else { v.trailing_zeros() + 1 }) * 10000,
            v.reverse_bits() as u32 ^ (v as u32 & 0xffff | (!v as u32) << 16),
            ((u64::from((v * 3) as u32) << 32 | u64::from(v as u32)) << 7 >> 32) as u32,
            shuffled as u32,
        ];
        for (i, (&got, want)) in o.iter().zip(expected).enumerate() {
            let want = if i == 14 {
                want.wrapping_add(v.abs_diff(9).wrapping_add(1))
            } else {
                want
            };
            assert_eq!(got, want, "lane {lane}, result {i}");
        }
    }
}

#[test]
fn all_atomics() {
    let device = Device::new(PTX);
    let ints = device.upload(&[0i32, 0, 0, 0]);
    let uints = device.upload(&[u32::MAX, 0, 0, 0, 3, 0, 1]);
    let longs = device.upload(&[0u64, 0, 0]);
    let (float, double) = (device.upload(&[0f32]), device.upload(&[0f64]));
    let args = [ints, uints, longs, float, double].map(Arg::Ptr);
    let threads = 4 * 96;
    device.run("atomics", 4, 96, &args);
    let sum: i32 = (0..threads).sum();
    assert_eq!(
        device.download::<i32>(ints, 4),
        [sum, -sum, -(threads - 1), threads - 1]
    );
    let u = device.download::<u32>(uints, 7);
    assert_eq!(u[0], !0xffff);
    assert_eq!(u[1], u32::MAX);
    assert_eq!(
        u[2],
        (0..threads as u32).fold(0, |x, t| x ^ t.wrapping_mul(2_654_435_761))
    );
    // atomicInc counts 0..=9 and wraps; atomicDec counts down from 3 to 0, then from 6.
    assert_eq!(u[3], threads as u32 % 10);
    assert_eq!(
        u[4],
        (0..threads).fold(3, |v: u32, _| if v == 0 || v > 6 { 6 } else { v - 1 })
    );
    assert_eq!(u[5], 77);
    assert_eq!(
        u[6],
        (0..threads).fold(1u32, |v, _| v.wrapping_mul(3).wrapping_add(1))
    );
    let l = device.download::<u64>(longs, 3);
    assert_eq!(
        l,
        [
            (sum as u64) << 33,
            ((threads - 1) as u64) << 20,
            -i64::from(threads - 1) as u64
        ]
    );
    assert_eq!(device.download::<f32>(float, 1), [threads as f32 * 0.5]);
    assert_eq!(
        device.download::<f64>(double, 1),
        [f64::from(threads) * 0.25]
    );
}

#[test]
fn every_lane_takes_a_spin_lock() {
    let device = Device::new(PTX);
    let (lock, counter) = (device.alloc(4), device.alloc(4));
    device.run(
        "spin_lock",
        3,
        64,
        &[Arg::Ptr(lock), Arg::Ptr(counter), Arg::I32(3)],
    );
    assert_eq!(device.download::<i32>(counter, 1), [3 * 64 * 3]);
}

#[test]
fn blocks_wait_for_earlier_blocks() {
    for workers in [1, 2] {
        let mut device = Device::new(PTX);
        device.workers = workers;
        let (flags, sum) = (device.alloc(200 * 4), device.alloc(200 * 4));
        device.run("chain", 200, 32, &[Arg::Ptr(flags), Arg::Ptr(sum)]);
        let expected: Vec<i32> = (0..200)
            .scan(0, |s, b| {
                *s += b;
                Some(*s)
            })
            .collect();
        assert_eq!(device.download::<i32>(sum, 200), expected);
    }
}

#[test]
fn divergent_loops() {
    let device = Device::new(PTX);
    let input: Vec<u32> = (1..=500).collect();
    let (pi, po) = (device.upload(&input), device.alloc(500 * 4));
    device.run(
        "collatz",
        4,
        128,
        &[Arg::Ptr(pi), Arg::Ptr(po), Arg::I32(500)],
    );
    let steps = |mut v: u64| {
        let mut s = 0u32;
        while v != 1 {
            v = if v & 1 == 1 { 3 * v + 1 } else { v / 2 };
            s += 1;
        }
        s
    };
    let expected: Vec<u32> = input.iter().map(|&v| steps(v.into())).collect();
    assert_eq!(device.download::<u32>(po, 500), expected);
}

#[test]
fn barriers_that_reduce() {
    let device = Device::new(PTX);
    for threads in [64u32, 100] {
        let out = device.alloc(threads as usize * 4);
        device.run("barrier_counts", 1, threads, &[Arg::Ptr(out)]);
        let expected = threads.div_ceil(3) as i32 * 4 + 2 + 1;
        assert_eq!(
            device.download::<i32>(out, threads as usize),
            vec![expected; threads as usize]
        );
    }
}

#[test]
fn threads_that_left_do_not_hold_up_a_barrier() {
    let device = Device::new(PTX);
    for keep in [1, 31, 32, 50, 128] {
        let out = device.alloc(128 * 4);
        device.run("early_exit", 1, 128, &[Arg::Ptr(out), Arg::I32(keep)]);
        let got = device.download::<i32>(out, 128);
        for (thread, &value) in got.iter().enumerate() {
            assert_eq!(value, if (thread as i32) < keep { keep } else { 0 });
        }
    }
}

/// Lanes 1 and 3 wait at one shuffle, each for the other lane of its pair. `first` is what lane 0
/// does before it comes, `second` what lane 2 does; both may spin until a flag is set by lane
/// `by` after its own shuffle.
fn pairs(first: &str, second: &str, by: u32) -> Vec<u32> {
    let spin = |name: &str| {
        format!(
            "{name}: add.u32 %n, %n, 1; ld.relaxed.gpu.u32 %x, [%out+64]; setp.ne.u32 %p, %x, 0;
             @%p bra meet; setp.lt.u32 %p, %n, 1000000; @%p bra {name}; bra meet;"
        )
    };
    let text = format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 out) {{
         .reg .b32 %lane, %mask, %n, %x, %y; .reg .b64 %out, %at; .reg .pred %p, %q;
         ld.param.u64 %out, [out]; mov.u32 %lane, %tid.x; mul.wide.u32 %at, %lane, 4;
         add.u64 %at, %out, %at; setp.ge.u32 %p, %lane, 4; @%p bra end;
         and.b32 %x, %lane, 2; mov.u32 %mask, 3; shl.b32 %mask, %mask, %x; mov.u32 %n, 0;
         setp.eq.u32 %p, %lane, 0; @%p bra first; setp.eq.u32 %p, %lane, 2; @%p bra second;
         bra meet;
         first: {} second: {}
         meet: shfl.sync.bfly.b32 %y|%q, %lane, 1, 31, %mask;
         setp.ne.u32 %p, %lane, {by}; @%p bra store; st.relaxed.gpu.u32 [%out+64], 1;
         store: st.global.u32 [%at], %y; st.global.u32 [%at+16], %n;
         end: ret; }}",
        first.replace("spin", &spin("spin0")),
        second.replace("spin", &spin("spin2")),
    );
    let device = Device::new(&text);
    let out = device.alloc(128);
    device.run("k", 1, 32, &[Arg::Ptr(out)]);
    device.download(out, 8)
}

#[test]
fn lanes_do_not_wait_for_members_of_others() {
    let spun = pairs("spin", "bra meet;", 3);
    assert_eq!(spun[..4], [1, 0, 3, 2]);
    assert!(spun[4] < 1_000_000, "lane 0 waited in vain");
    // Lane 1 goes on when lane 0 exits; the value that it reads is its own.
    let left = pairs("bra end;", "spin", 1);
    assert_eq!(left[2..4], [3, 2]);
    assert!(left[6] < 1_000_000, "lane 2 waited in vain");
}

/// Lanes 0 and 1 meet at two instructions of one mask; lane 2 spins until lane 0 is past its own.
#[test]
fn lanes_meet_at_two_places_while_another_spins() {
    let text = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 out) {
         .reg .b32 %lane, %n, %x; .reg .b64 %out; .reg .pred %p;
         ld.param.u64 %out, [out]; mov.u32 %lane, %tid.x; mov.u32 %n, 0;
         setp.ge.u32 %p, %lane, 3; @%p bra end; setp.eq.u32 %p, %lane, 1; @%p bra other;
         setp.eq.u32 %p, %lane, 2; @%p bra spin;
         bar.warp.sync 3; st.relaxed.gpu.u32 [%out], 1; bra end;
         spin: add.u32 %n, %n, 1; ld.relaxed.gpu.u32 %x, [%out]; setp.ne.u32 %p, %x, 0;
         @%p bra seen; setp.lt.u32 %p, %n, 1000000; @%p bra spin;
         seen: st.global.u32 [%out+4], %n; bra end;
         other: bar.warp.sync 3;
         end: ret; }";
    let device = Device::new(text);
    let out = device.alloc(128);
    device.run("k", 1, 32, &[Arg::Ptr(out)]);
    let [set, spun] = device.download(out, 2)[..] else {
        panic!("two words");
    };
    assert_eq!(set, 1);
    assert!((1..1_000_000u32).contains(&spun), "lane 2 waited in vain");
}
