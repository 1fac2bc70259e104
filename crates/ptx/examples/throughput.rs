//! What the interpreter executes in a second: `cargo run --release -p outboard-ptx --example throughput`.
//!
//! Warp instructions a second of processor time, on one core and on all asked for, the fastest of some rounds in which the kernels take
//! turns; and what loading 250 KB of PTX takes. `--json FILE` keeps the results, `--only NAME --times N` just runs one kernel, for profilers.

#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "../tests/common/mod.rs"]
mod common;

use std::fmt::Write as _;

use common::{Arg, Device};
use outboard_ptx::{Memory, Module, Stats};

const ROUNDS: usize = 7;
const PTX_BYTES: usize = 250_000;

const BASICS: &str = include_str!("../tests/data/basics.ptx");
const WARP: &str = include_str!("../tests/data/warp.ptx");
const SOFTMAX: &str = include_str!("../tests/data/softmax.ptx");
const MATH: &str = include_str!("../tests/data/math.ptx");

/// A kernel that is ready to run, as often as one likes.
struct Case {
    name: String,
    device: Device,
    run: Box<dyn Fn(&Device) -> Stats>,
}

const NAMES: [&str; 6] = [
    "matmul_tiled",
    "softmax",
    "reduction",
    "vector_add",
    "collatz",
    "expf",
];

fn case(name: &str) -> Case {
    let some = |n: usize| (0..n).map(|i| i as f32 * 0.001).collect::<Vec<_>>();
    let device = Device::new(match name {
        "matmul_tiled" | "vector_add" => BASICS,
        "softmax" => SOFTMAX,
        "expf" => MATH,
        _ => WARP,
    });
    let int = |n: usize| Arg::I32(n as i32);
    let (kernel, grid, block, args) = match name {
        "matmul_tiled" => {
            let n = 256;
            let [a, b] = [0; 2].map(|_| Arg::Ptr(device.upload(&some(n * n))));
            let c = Arg::Ptr(device.alloc(n * n * 4));
            ("matmul_tiled", [16, 16], [16, 16], vec![a, b, c, int(n)])
        }
        "softmax" => {
            let (rows, width) = (1024, 1024);
            let x = Arg::Ptr(device.upload(&some(rows * width)));
            let y = Arg::Ptr(device.alloc(rows * width * 4));
            let args = vec![x, y, int(rows), int(width)];
            ("softmax_rows", [rows / 8, 1], [256, 1], args)
        }
        "reduction" => {
            let n = 1 << 21;
            let x = Arg::Ptr(device.upload(&vec![1f32; n]));
            let sum = Arg::Ptr(device.alloc(8));
            ("reduce_sum", [64, 1], [256, 1], vec![x, sum, int(n)])
        }
        "vector_add" => {
            let n = 1 << 20;
            let [x, y, z] = [0; 3].map(|_| Arg::Ptr(device.alloc(n * 4)));
            ("vector_add", [n / 256, 1], [256, 1], vec![x, y, z, int(n)])
        }
        "collatz" => {
            let n = 20_000;
            let x = Arg::Ptr(device.upload(&(1..=n as u32).collect::<Vec<_>>()));
            let steps = Arg::Ptr(device.alloc(n * 4));
            let args = vec![x, steps, int(n)];
            ("collatz", [n.div_ceil(256), 1], [256, 1], args)
        }
        "expf" => {
            let n = 1 << 17;
            let x = Arg::Ptr(device.upload(&some(n)));
            let y = Arg::Ptr(device.alloc(n * 4));
            let args = vec![x, y, int(n), Arg::I32(3)];
            ("math_f32", [n / 256, 1], [256, 1], args)
        }
        other => panic!("no kernel {other}: there are {NAMES:?}"),
    };
    let shape = |[x, y]: [usize; 2]| [x as u32, y as u32, 1];
    let (grid, block) = (shape(grid), shape(block));
    let run = move |device: &Device| device.try_run(kernel, grid, block, 0, &args).unwrap();
    Case {
        name: name.to_owned(),
        device,
        run: Box::new(run),
    }
}

/// One module of many kernels, of about [`PTX_BYTES`].
fn large_module() -> String {
    let start = MATH.find(".visible .entry").unwrap();
    let (mut text, kernels) = (MATH[..start].to_owned(), &MATH[start..]);
    let mut copy = 0;
    while text.len() + kernels.len() <= PTX_BYTES {
        let renamed = |text: String, name: &str| text.replace(name, &format!("{name}_{copy}"));
        text += &["math_f32", "math_f64", "slowpathd", "accurate_pow"]
            .into_iter()
            .fold(kernels.to_owned(), renamed);
        copy += 1;
    }
    text
}

fn clock_seconds(clock: libc::clockid_t) -> f64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a valid place for the result.
    let rc = unsafe { libc::clock_gettime(clock, &mut time) };
    assert_eq!(rc, 0);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// What `f` gives, and how long it took.
fn timed<T>(clock: libc::clockid_t, f: impl FnOnce() -> T) -> (T, f64) {
    let start = clock_seconds(clock);
    let result = f();
    (result, clock_seconds(clock) - start)
}

fn load(text: &str, memory: &Memory) -> f64 {
    let (module, seconds) = timed(libc::CLOCK_THREAD_CPUTIME_ID, || Module::load(text, memory));
    module.unwrap();
    seconds
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let option = |name: &str| {
        let at = args.iter().position(|a| a == name)?;
        args.get(at + 1).cloned()
    };
    if let Some(only) = option("--only") {
        let mut case = case(&only);
        case.device.workers = 1;
        let times = option("--times").map_or(1, |n| n.parse().unwrap());
        for _ in 0..times {
            println!("{:?}", (case.run)(&case.device));
        }
        return;
    }
    let mut cases = NAMES.map(case);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let text = large_module();
    let memory = Memory::reserve(0x2f00_0000_0000, 1 << 30, 64 << 20).unwrap();
    let mut fastest = vec![[f64::INFINITY; 2]; cases.len()];
    let mut counts = vec![0; cases.len()];
    let mut load_seconds = f64::INFINITY;
    for _ in 0..ROUNDS {
        load_seconds = load_seconds.min(load(&text, &memory));
        for (i, case) in cases.iter_mut().enumerate() {
            // One core: its own time, so that other load does not count. All cores: what a clock on the wall shows.
            for (k, (workers, clock)) in [
                (1, libc::CLOCK_THREAD_CPUTIME_ID),
                (cores, libc::CLOCK_MONOTONIC),
            ]
            .into_iter()
            .enumerate()
            {
                case.device.workers = workers;
                let (stats, seconds) = timed(clock, || (case.run)(&case.device));
                fastest[i][k] = fastest[i][k].min(seconds);
                counts[i] = stats.warp_instructions;
            }
        }
    }
    let mut json = String::new();
    for ((case, seconds), count) in cases.iter().zip(&fastest).zip(&counts) {
        let [one, all] = seconds.map(|s| *count as f64 / s / 1e6);
        println!(
            "{:14} {count:>9} warp instructions: {one:6.1} million/s on one core, {all:6.1} on {cores}",
            case.name
        );
        let comma = if json.is_empty() { "" } else { "," };
        write!(
            json,
            "{comma}\n    \"{}\": {{\"warp_instructions\": {count}, \"million_per_second_one_core\": {one:.1}, \"million_per_second_all_cores\": {all:.1}}}",
            case.name
        )
        .unwrap();
    }
    println!(
        "loading {} bytes of PTX: {:.2} ms",
        text.len(),
        load_seconds * 1e3
    );
    if let Some(path) = option("--json") {
        let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cpu = cpu
            .lines()
            .find_map(|l| l.strip_prefix("model name\t: "))
            .unwrap_or("unknown");
        let document = format!(
            "{{\n  \"machine\": {{\"cpu\": \"{cpu}\", \"cores\": {cores}}},\n  \"rounds\": {ROUNDS},\n  \"load\": {{\"ptx_bytes\": {}, \"ms\": {:.2}}},\n  \"kernels\": {{{json}\n  }}\n}}\n",
            text.len(),
            load_seconds * 1e3
        );
        std::fs::write(path, document).unwrap();
    }
}
