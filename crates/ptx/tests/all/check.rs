//! Findings of the checkers in programs with a mistake, and none in correct ones.
use std::collections::BTreeSet;

use crate::common::{Arg, Device};
use outboard_ptx::check::{Checker, Checks};

const CHECK: &str = include_str!("data/check.ptx");
const BASICS: &str = include_str!("data/basics.ptx");
const WARP: &str = include_str!("data/warp.ptx");

fn device(ptx: &str) -> Device {
    Device::tracked(ptx)
}

fn all() -> Checks {
    "all".parse().unwrap()
}

/// Returns the reports of one launch.
fn reports(device: &Device, kernel: &str, grid: u32, block: u32, args: &[Arg]) -> Vec<String> {
    let checker = Checker::new(all(), None);
    let shape = [[grid, 1, 1], [block, 1, 1]];
    device
        .try_run_watched(kernel, shape[0], shape[1], 0, args, Some(&checker))
        .unwrap_or_else(|e| panic!("{kernel}: {e}"));
    checker.take_reports()
}

/// Expects one report with all of these words for the faulty program, and none for the corrected
/// one.
fn found(kernel: &str, grid: u32, block: u32, words: &[&str], args: impl Fn(&Device) -> Vec<Arg>) {
    for correct in [0, 1] {
        let device = device(CHECK);
        let mut args = args(&device);
        args.push(Arg::I32(correct));
        let reports = reports(&device, kernel, grid, block, &args);
        if correct == 1 {
            assert!(reports.is_empty(), "{kernel}: {reports:#?}");
        } else {
            let full = |report: &&String| words.iter().all(|word| report.contains(word));
            assert!(
                reports.iter().find(full).is_some(),
                "{kernel}: {reports:#?}"
            );
        }
    }
}

fn zeros(device: &Device, count: usize) -> Arg {
    Arg::Ptr(device.upload(&vec![0u32; count]))
}

#[test]
fn races_name_both_threads_and_their_lines() {
    let words = [
        "race: kernel `neighbours`: block (0,0,0), thread (",
        "writes 4 bytes at 0x",
        " of shared memory",
        "check.cu:4)",
        "reads it",
        "check.cu:6)",
    ];
    found("neighbours", 1, 64, &words, |d| vec![zeros(d, 64)]);
    found(
        "warp_neighbours",
        1,
        32,
        &["race", "check.cu:13)", "check.cu:15)"],
        |d| vec![zeros(d, 32)],
    );
    let words = [
        "race: kernel `lost_update`",
        "writes 4 bytes",
        "check.cu:21)",
    ];
    found("lost_update", 2, 1, &words, |d| vec![zeros(d, 1)]);
    found(
        "last_block",
        4,
        32,
        &["race", "check.cu:31)", "check.cu:38)"],
        |d| vec![zeros(d, 128), zeros(d, 1), zeros(d, 1)],
    );
}

#[test]
fn the_same_value_from_all_threads_is_no_race() {
    let device = device(CHECK);
    let flag = zeros(&device, 1);
    assert_eq!(reports(&device, "same_flag", 4, 64, &[flag]), [""; 0]);
}

#[test]
fn reads_of_what_nobody_wrote() {
    let words = [
        "uninitialised memory",
        "thread (56,0,0) reads 4 bytes at 0x1c of shared memory",
    ];
    found("shared_hole", 1, 64, &words, |d| vec![zeros(d, 64)]);

    let device = device(CHECK);
    let (input, out) = (device.alloc(400), device.alloc(400));
    let args = [Arg::Ptr(input), Arg::Ptr(out), Arg::I32(100)];
    device.memory.write(input, &[1; 396]).unwrap();
    let got = reports(&device, "copy_ints", 1, 128, &args);
    assert_eq!(got.len(), 1, "{got:#?}");
    let words = format!("thread (99,0,0) reads 4 bytes at {:#x}", input + 396);
    assert!(got[0].contains(&words), "{got:#?}");
    // Bytes that a kernel wrote count as written, and so do copies of them; a copy of unwritten
    // bytes is unwritten.
    let chained = [Arg::Ptr(out), Arg::Ptr(input), Arg::I32(100)];
    assert_eq!(reports(&device, "copy_ints", 1, 128, &chained), [""; 0]);
    let fresh = device.alloc(400);
    device.memory.copy(input, fresh + 40, 8).unwrap();
    let got = reports(&device, "copy_ints", 1, 128, &args);
    assert!(
        got[0].contains(&format!("thread (0,0,0) reads 4 bytes at {input:#x}")),
        "{got:#?}"
    );
}

#[test]
fn barriers_at_two_places() {
    let words = [
        "diverged barrier",
        "thread (0,0,0) waits",
        "thread (32,0,0) at that of",
    ];
    found("two_barriers", 1, 64, &words, |d| vec![zeros(d, 64)]);
}

/// Runs correct programs with all checks, in one order of threads.
struct Correct {
    checker: Checker,
    seed: Option<u64>,
}

impl Correct {
    /// Runs a kernel, which must end without a report.
    fn run(&self, device: &Device, kernel: &str, grid: [u32; 2], block: [u32; 2], args: &[Arg]) {
        let (grid, block) = ([grid[0], grid[1], 1], [block[0], block[1], 1]);
        device
            .try_run_watched(kernel, grid, block, 2048, args, Some(&self.checker))
            .unwrap_or_else(|e| panic!("{kernel}: {e}"));
        let reports = self.checker.take_reports();
        assert_eq!(reports, [""; 0], "{kernel}, seed {:?}", self.seed);
    }
}

/// Runs `programs` in the usual order and in those of some seeds.
fn in_each_order(programs: impl Fn(&Correct)) {
    for seed in [None, Some(1), Some(2)] {
        let checker = Checker::new(all(), seed);
        programs(&Correct { checker, seed });
    }
}

#[test]
fn correct_blocks_give_no_report_and_the_same_results() {
    in_each_order(|correct| {
        let basics = device(BASICS);
        let n = 32;
        let ones = Arg::Ptr(basics.upload(&vec![1f32; n * n]));
        let c = basics.alloc(n * n * 4);
        let args = [ones, ones, Arg::Ptr(c), Arg::I32(n as i32)];
        correct.run(&basics, "matmul_tiled", [2, 2], [16, 16], &args);
        assert_eq!(basics.download::<f32>(c, n * n), vec![32.0; n * n]);
        let doubles = Arg::Ptr(basics.upload(&vec![1f64; 512]));
        let dot = basics.alloc(8);
        let args = [doubles, doubles, Arg::Ptr(dot), Arg::I32(512)];
        correct.run(&basics, "dot_double", [1, 1], [128, 1], &args);
        assert_eq!(basics.download::<f64>(dot, 1), [512.0]);
        let turned = Arg::Ptr(basics.alloc(512 * 8));
        let args = [doubles, turned, Arg::I32(16), Arg::I32(32)];
        correct.run(&basics, "transpose", [1, 2], [16, 16], &args);
    });
}

#[test]
fn correct_warps_give_no_report_and_the_same_results() {
    in_each_order(|correct| {
        let warp = device(WARP);
        let run = |kernel, blocks, threads, args: &[Arg]| {
            correct.run(&warp, kernel, [blocks, 1], [threads, 1], args);
        };
        let ints = Arg::Ptr(warp.upload(&vec![1i32; 512]));
        let out = warp.alloc(512 * 4);
        run("scan_block", 1, 512, &[ints, Arg::Ptr(out), Arg::I32(512)]);
        assert_eq!(warp.download::<i32>(out, 512)[511], 512);
        let sum = warp.upload(&[0f32]);
        let floats = Arg::Ptr(warp.upload(&vec![1f32; 512]));
        run(
            "reduce_sum",
            2,
            128,
            &[floats, Arg::Ptr(sum), Arg::I32(512)],
        );
        assert_eq!(warp.download::<f32>(sum, 1), [512.0]);
        let bins = zeros(&warp, 256);
        run("histogram", 2, 128, &[ints, bins, Arg::I32(512)]);
        let (lock, counter) = (zeros(&warp, 1), warp.upload(&[0u32]));
        let args = [lock, Arg::Ptr(counter), Arg::I32(3)];
        run("spin_lock", 2, 32, &args);
        assert_eq!(warp.download::<u32>(counter, 1), [192]);
        let (flags, sums) = (zeros(&warp, 8), zeros(&warp, 8));
        run("chain", 8, 32, &[flags, sums]);
        run("early_exit", 1, 64, &[zeros(&warp, 64), Arg::I32(40)]);
        run("barrier_counts", 1, 64, &[zeros(&warp, 64)]);
    });
}

/// The number of lost updates depends on the order, and so on the seed alone.
#[test]
fn a_seed_decides_the_order() {
    let outcome = |seed| {
        let device = device(CHECK);
        let counter = device.upload(&[0u32]);
        let checker = Checker::new(Checks::default(), Some(seed));
        let args = [Arg::Ptr(counter), Arg::I32(0)];
        device
            .try_run_watched(
                "lost_update",
                [16, 1, 1],
                [1, 1, 1],
                0,
                &args,
                Some(&checker),
            )
            .unwrap();
        device.download::<u32>(counter, 1)[0]
    };
    let outcomes: Vec<u32> = (0..16).map(outcome).collect();
    for _ in 0..3 {
        assert_eq!((0..16).map(outcome).collect::<Vec<_>>(), outcomes);
    }
    let different: BTreeSet<u32> = outcomes.iter().copied().collect();
    assert!(different.len() >= 4, "{outcomes:?}");
}

#[test]
fn names_of_checks() {
    assert_eq!(
        "race,memory".parse::<Checks>().unwrap().to_string(),
        "memory,race"
    );
    assert_eq!(all().to_string(), "memory,race,uninitialised,barrier");
    assert!(
        "races"
            .parse::<Checks>()
            .unwrap_err()
            .contains("known are memory, race")
    );
}
