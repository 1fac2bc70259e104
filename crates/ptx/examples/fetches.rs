//! Measures texture fetches: `cargo run --release -p outboard-ptx --example fetches`.
//!
//! Prints the processor time of one thread for each fetch of each lane: the fastest of some rounds,
//! in which the textures take turns. `--callgrind` adds instructions of the host, `--json FILE`
//! writes all of it, `--only NAME --times N` runs one, for profilers.

#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "../tests/all/common/mod.rs"]
mod common;

use std::process::Command;

use common::{Arg, Device};
use outboard_ptx::texture::{AddressMode, Bound, Channel, Cube, Mips, Sampler, Texels, Texture};
use serde_json::json;

const ROUNDS: usize = 15;
/// Fetches of a thread in one run.
const FETCHES: u32 = 64;
const THREADS: u32 = 256;
const BLOCKS: u32 = 16;
const NUMBER: u64 = 0x0d00_0000_0000_0007;
/// Texels along each axis of planes, and of boxes.
const PLANE: u64 = 256;
const BOX: u64 = 32;

struct Case {
    name: &'static str,
    geometry: &'static str,
    channel: Channel,
    channels: u32,
    address: AddressMode,
    linear: bool,
    normalised: bool,
}

const fn case(
    name: &'static str,
    geometry: &'static str,
    (channel, channels): (Channel, u32),
    address: AddressMode,
    (linear, normalised): (bool, bool),
) -> Case {
    Case {
        name,
        geometry,
        channel,
        channels,
        address,
        linear,
        normalised,
    }
}

use AddressMode::{Border, Clamp, Wrap};
use Channel::{Float, Half, U8, U32};

const CASES: [Case; 12] = [
    case(
        "plane, nearest, wrap",
        "2d",
        (Float, 1),
        Wrap,
        (false, false),
    ),
    case(
        "plane, nearest, normalised wrap",
        "2d",
        (Float, 1),
        Wrap,
        (false, true),
    ),
    case(
        "plane, nearest, 4 bytes",
        "2d",
        (U8, 4),
        Clamp,
        (false, false),
    ),
    case(
        "plane, nearest, integers",
        "2d",
        (U32, 1),
        Clamp,
        (false, false),
    ),
    case(
        "plane, linear, clamp",
        "2d",
        (Float, 1),
        Clamp,
        (true, true),
    ),
    case("plane, linear, wrap", "2d", (Float, 1), Wrap, (true, true)),
    case(
        "plane, linear, border",
        "2d",
        (Float, 4),
        Border,
        (true, false),
    ),
    case("plane, linear, 4 bytes", "2d", (U8, 4), Wrap, (true, true)),
    case(
        "plane, linear, halves",
        "2d",
        (Half, 2),
        Clamp,
        (true, true),
    ),
    case("box, linear, clamp", "3d", (Float, 1), Clamp, (true, true)),
    case("box, nearest, clamp", "3d", (U8, 1), Clamp, (false, true)),
    case("line of memory", "1d", (Float, 1), Clamp, (false, false)),
];

impl Case {
    fn by_number(&self) -> bool {
        self.geometry == "1d"
    }

    /// Writes a kernel whose coordinates start at the thread's number and advance in steps, so that
    /// some edges are met.
    fn ptx(&self) -> String {
        let at = match self.geometry {
            "1d" => "{%r4}",
            "2d" => "{%f0, %f1}",
            _ => "{%f0, %f1, %f2, %f2}",
        };
        let of = if self.by_number() { "s32" } else { "f32" };
        let results = match self.channel {
            U32 => "u32",
            _ => "f32",
        };
        let geometry = self.geometry;
        format!(
            "
.version 8.0
.target sm_80
.address_size 64
.visible .entry fetch(.param .u64 object, .param .u64 out, .param .f32 step) {{
    .reg .b64 %rd<6>; .reg .b32 %r<8>; .reg .f32 %f<8>; .reg .b32 %d<4>; .reg .pred %p;
    ld.param.u64 %rd0, [object]; ld.param.u64 %rd1, [out]; ld.param.f32 %f4, [step];
    mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mad.lo.s32 %r2, %r1, {THREADS}, %r0;
    and.b32 %r5, %r2, 63; shr.u32 %r6, %r2, 6;
    cvt.rn.f32.u32 %f0, %r5; mul.f32 %f0, %f0, %f4;
    cvt.rn.f32.u32 %f1, %r6; mul.f32 %f1, %f1, %f4; mov.f32 %f2, %f1;
    mov.u32 %r3, 0; mov.b32 %r7, 0; mov.b32 %r4, %r2;
again:
    tex.{geometry}.v4.{results}.{of} {{%d0, %d1, %d2, %d3}}, [%rd0, {at}];
    xor.b32 %r7, %r7, %d0;
    add.f32 %f0, %f0, %f4; add.f32 %f2, %f2, %f4; add.s32 %r4, %r4, 33;
    add.s32 %r3, %r3, 1; setp.lt.u32 %p, %r3, {FETCHES}; @%p bra again;
    mul.wide.u32 %rd2, %r2, 4; add.u64 %rd1, %rd1, %rd2; st.global.u32 [%rd1], %r7;
    ret;
}}"
        )
    }

    fn texture(&self, address: u64) -> Texture {
        let (size, dimensions) = match self.geometry {
            "1d" => ([PLANE * PLANE, 1, 1], 1),
            "2d" => ([PLANE, PLANE, 1], 2),
            _ => ([BOX, BOX, BOX], 3),
        };
        Texture {
            texels: Texels {
                address,
                channel: self.channel,
                channels: self.channels,
                size,
                dimensions,
                layers: None,
                cube: Cube::No,
                levels: 1,
                pitch_bytes: size[0] * u64::from(self.channel.bytes() * self.channels),
            },
            sampler: Sampler {
                address: [self.address; 3],
                linear: self.linear,
                normalised: self.normalised,
                as_integers: false,
                srgb: false,
                seamless: false,
                border: [0.25; 4],
                mips: Mips::NONE,
            },
            linear_memory: self.by_number(),
        }
    }
}

struct Bench {
    device: Device,
    args: Vec<Arg>,
}

impl Bench {
    fn new(case: &Case) -> Bench {
        let mut device = Device::new(&case.ptx());
        device.workers = 1;
        // As floats these are small numbers.
        let data: Vec<u32> = (0..PLANE * PLANE * 4)
            .map(|i| 0x3c01_3c01 + (i as u32 * 7 % 251) * 0x2_0002)
            .collect();
        let texture = case.texture(device.upload(&data));
        device.memory.bind(NUMBER, Bound::Texture(texture));
        let step = match case.normalised {
            true => 1.0 / 50.0,
            false => 3.7,
        };
        let out = device.alloc((THREADS * BLOCKS * 4) as usize);
        let args = vec![Arg::Ptr(NUMBER), Arg::Ptr(out), Arg::F32(step)];
        Bench { device, args }
    }

    fn run(&self) {
        let (grid, block) = ([BLOCKS, 1, 1], [THREADS, 1, 1]);
        self.device
            .try_run("fetch", grid, block, 0, &self.args)
            .unwrap();
    }
}

const FETCHES_OF_A_RUN: f64 = (FETCHES * THREADS * BLOCKS) as f64;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let option = |name: &str| {
        let at = args.iter().position(|a| a == name)?;
        args.get(at + 1).cloned()
    };
    if let Some(only) = option("--only") {
        let case = CASES.iter().find(|case| case.name == only).unwrap();
        let bench = Bench::new(case);
        for _ in 0..option("--times").map_or(1, |n| n.parse().unwrap()) {
            bench.run();
        }
        return;
    }
    let benches: Vec<_> = CASES.iter().map(Bench::new).collect();
    let mut fastest = [f64::INFINITY; CASES.len()];
    for _ in 0..ROUNDS {
        for (bench, fastest) in benches.iter().zip(&mut fastest) {
            let start = thread_seconds();
            bench.run();
            *fastest = fastest.min(thread_seconds() - start);
        }
    }
    let mut rows = serde_json::Map::new();
    for (case, seconds) in CASES.iter().zip(fastest) {
        let round = |x: f64| (x * 10.0).round() / 10.0;
        let ns = round(seconds * 1e9 / FETCHES_OF_A_RUN);
        let mut row = json!({ "ns": ns });
        print!("{:34} {ns:6.1} ns", case.name);
        if args.iter().any(|a| a == "--callgrind") {
            let count = host_instructions(case.name, 2) - host_instructions(case.name, 1);
            let each = round(count as f64 / FETCHES_OF_A_RUN);
            print!(", {each:6.1} instructions of the host");
            row["host_instructions"] = json!(each);
        }
        println!();
        rows.insert(case.name.into(), row);
    }
    if let Some(path) = option("--json") {
        std::fs::write(path, format!("{:#}\n", json!({ "fetches": rows }))).unwrap();
    }
}

/// Returns the processor time of this thread in seconds.
fn thread_seconds() -> f64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` has room for the result.
    let rc = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(rc, 0);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// Counts instructions of the host, by running this program under callgrind with one texture.
fn host_instructions(name: &str, times: u32) -> u64 {
    let run = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(std::env::current_exe().unwrap())
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
