//! Measures the interpreter: `cargo run --release -p outboard-ptx --example throughput`.
//!
//! Prints warp instructions per second of processor time, on one core and on all of them: the
//! fastest of some rounds, in which the kernels take turns. Also prints the time to load 250 KB of
//! PTX.
//!
//! - `--mix` counts the instructions that the kernels execute,
//! - `--callgrind` counts the host's instructions for each, if valgrind is installed,
//! - `--json FILE` writes all of it,
//! - `--rounds N` measures for longer, or not at all,
//! - `--only NAME --times N` only runs one kernel, for profilers.

#![allow(clippy::unwrap_used, clippy::panic)]

mod cases;
#[path = "../../tests/all/common/mod.rs"]
mod common;
mod mix;

use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use cases::{Case, NAMES};
use mix::Mix;
use outboard_ptx::{Memory, Module};
use serde_json::{Value, json};

const ROUNDS: usize = 15;
/// Consecutive runs per measurement with an imprecise clock.
const REPEATED: u32 = 10;
const PTX_BYTES: usize = 250_000;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let option = |name: &str| {
        let at = args.iter().position(|a| a == name)?;
        args.get(at + 1).cloned()
    };
    let has = |name: &str| args.iter().any(|a| a == name);
    let number = |name: &str| option(name).map(|n| n.parse::<usize>().unwrap());
    if let Some(only) = option("--only") {
        let mut case = Case::new(&only);
        case.device.workers = 1;
        for _ in 0..number("--times").unwrap_or(1) {
            println!("{:?}", case.run());
        }
        return;
    }
    let rounds = number("--rounds").unwrap_or(ROUNDS);
    let (mut kernels, load) = speeds(rounds);
    if has("--mix") {
        let mixes = NAMES.map(|name| (name, Mix::of(&Case::new(name))));
        println!("{}", mix::table(&mixes));
        for (kernel, (_, mix)) in kernels.iter_mut().zip(&mixes) {
            kernel["mix"] = mix.json();
        }
    }
    if has("--callgrind") {
        for (kernel, name) in kernels.iter_mut().zip(NAMES) {
            let count = kernel["warp_instructions"].as_u64().unwrap();
            // The work before and after the runs is the same in both.
            let instructions = host_instructions(name, 2) - host_instructions(name, 1);
            let each = instructions as f64 / count as f64;
            println!("{name:14} {each:6.1} instructions of the host for each");
            kernel["host_instructions_each"] = json!((each * 10.0).round() / 10.0);
        }
    }
    if let Some(path) = option("--json") {
        let kernels: serde_json::Map<_, _> =
            NAMES.into_iter().map(str::to_owned).zip(kernels).collect();
        let document = json!({
            "format": 1,
            "release": env!("CARGO_PKG_VERSION"),
            "time_s": SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs()),
            "machine": machine(),
            "rounds": rounds,
            "load": load,
            "kernels": kernels,
        });
        std::fs::write(path, format!("{document:#}\n")).unwrap();
    }
}

/// Measures each kernel, and the loading of a module.
fn speeds(rounds: usize) -> (Vec<Value>, Value) {
    let mut cases = NAMES.map(Case::new);
    let cores = cores();
    let text = large_module();
    let memory = Memory::reserve(0x2f00_0000_0000, 1 << 30, 64 << 20).unwrap();
    // One core: the thread's own time, so that other load does not count. All cores: wall-clock
    // time, and the time of all threads together, which the system knows to some milliseconds.
    let measured = [
        (1, libc::CLOCK_THREAD_CPUTIME_ID, 1),
        (cores, libc::CLOCK_MONOTONIC, 1),
        (cores, libc::CLOCK_PROCESS_CPUTIME_ID, REPEATED),
    ];
    let mut fastest = [[f64::INFINITY; 3]; NAMES.len()];
    let mut load_seconds = f64::INFINITY;
    let mut counts = [0; NAMES.len()];
    for round in 0..rounds.max(1) {
        load_seconds = load_seconds.min(load(&text, &memory));
        for (i, case) in cases.iter_mut().enumerate() {
            for (k, (workers, clock, times)) in measured.into_iter().enumerate() {
                if rounds == 0 && k > 0 {
                    continue;
                }
                case.device.workers = workers;
                let run = || (0..times).map(|_| case.run().warp_instructions).sum();
                let (count, seconds): (u64, f64) = timed(clock, run);
                // The first access to memory is the operating system's work.
                if round > 0 || rounds <= 1 {
                    fastest[i][k] = fastest[i][k].min(seconds / f64::from(times));
                }
                counts[i] = count / u64::from(times);
            }
        }
    }
    let kernels = cases.iter().zip(fastest).zip(counts);
    let kernels = kernels.map(|((case, seconds), count)| {
        let [one, all, each] = seconds.map(|s| (count as f64 / s / 1e5).round() / 10.0);
        println!(
            "{:14} {count:>9} warp instructions: {one:6.1} million/s on one core, {all:6.1} on {cores}, {each:6.1} on each of them",
            case.name
        );
        json!({
            "warp_instructions": count,
            "million_per_second_one_core": one,
            "million_per_second_all_cores": all,
            "million_per_second_each_of_all_cores": each,
        })
    });
    let kernels = kernels.collect();
    let ms = (load_seconds * 1e5).round() / 100.0;
    println!("loading {} bytes of PTX: {ms:.2} ms", text.len());
    (kernels, json!({"ptx_bytes": text.len(), "ms": ms}))
}

/// Makes one module of many kernels, about [`PTX_BYTES`] long.
fn large_module() -> String {
    let text = cases::MATH;
    let start = text.find(".visible .entry").unwrap();
    let (mut text, kernels) = (text[..start].to_owned(), &text[start..]);
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

fn load(text: &str, memory: &Memory) -> f64 {
    let (module, seconds) = timed(libc::CLOCK_THREAD_CPUTIME_ID, || Module::load(text, memory));
    module.unwrap();
    seconds
}

fn clock_seconds(clock: libc::clockid_t) -> f64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` has room for the result.
    let rc = unsafe { libc::clock_gettime(clock, &mut time) };
    assert_eq!(rc, 0);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// Returns the result of `f` and the time that it took.
fn timed<T>(clock: libc::clockid_t, f: impl FnOnce() -> T) -> (T, f64) {
    let start = clock_seconds(clock);
    let result = f();
    (result, clock_seconds(clock) - start)
}

/// Counts instructions of the host, by running this program under callgrind with one kernel.
fn host_instructions(name: &str, times: u32) -> u64 {
    let program = std::env::current_exe().unwrap();
    let run = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .args(["--only", name, "--times", &times.to_string()])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stderr);
    let count = said.split("Collected : ").nth(1).unwrap_or_default();
    let digits = count.split_whitespace().next().unwrap_or_default();
    digits
        .parse()
        .unwrap_or_else(|_| panic!("callgrind: {said}"))
}

fn machine() -> Value {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = cpu.lines().find_map(|l| l.strip_prefix("model name\t: "));
    let version = |program: &str| {
        let run = Command::new(program).arg("--version").output().ok()?;
        Some(String::from_utf8_lossy(&run.stdout).trim().to_owned())
    };
    json!({
        "cpu": cpu,
        "cores": cores(),
        "rustc": version("rustc"),
        "valgrind": version("valgrind"),
    })
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
