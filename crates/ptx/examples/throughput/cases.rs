//! The kernels to measure, with their data, ready to run any number of times.

use outboard_ptx::Stats;

use crate::common::{Arg, Device, params};

const BASICS: &str = include_str!("../../tests/all/data/basics.ptx");
const WARP: &str = include_str!("../../tests/all/data/warp.ptx");
const SOFTMAX: &str = include_str!("../../tests/all/data/softmax.ptx");
const MMA: &str = include_str!("../../tests/all/data/mma.ptx");
const HALF: &str = include_str!("../../tests/all/data/half.ptx");
pub(crate) const MATH: &str = include_str!("../../tests/all/data/math.ptx");

pub(crate) const NAMES: [&str; 14] = [
    "matmul_tiled",
    "softmax",
    "reduction",
    "vector_add",
    "saxpy",
    "transpose",
    "histogram",
    "gcd64",
    "half",
    "collatz",
    "expf",
    "mma_f16",
    "mma_tf32",
    "mma_s8",
];

pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) ptx: &'static str,
    pub(crate) device: Device,
    kernel: &'static str,
    grid: [u32; 3],
    block: [u32; 3],
    params: Vec<u8>,
}

impl Case {
    pub(crate) fn new(name: &str) -> Self {
        let Some(name) = NAMES.into_iter().find(|n| *n == name) else {
            panic!("no kernel {name}: there are {NAMES:?}");
        };
        let ptx = match name {
            "matmul_tiled" | "vector_add" | "saxpy" | "transpose" | "gcd64" => BASICS,
            "softmax" => SOFTMAX,
            "half" => HALF,
            "expf" => MATH,
            "mma_f16" | "mma_tf32" | "mma_s8" => MMA,
            _ => WARP,
        };
        let device = Device::new(ptx);
        let (kernel, grid, block, args) = arguments(name, &device);
        let shape = |[x, y]: [usize; 2]| [x as u32, y as u32, 1];
        Case {
            name,
            ptx,
            device,
            kernel,
            grid: shape(grid),
            block: shape(block),
            params: params(&args),
        }
    }

    pub(crate) fn run(&self) -> Stats {
        self.launch().run().unwrap()
    }

    pub(crate) fn launch(&self) -> outboard_ptx::Launch<'_> {
        self.device
            .launch(self.kernel, self.grid, self.block, 0, &self.params)
    }
}

type Extents = [usize; 2];

/// Kernel, grid, block and arguments of a case.
type Arguments = (&'static str, Extents, Extents, Vec<Arg>);

fn arguments(name: &'static str, device: &Device) -> Arguments {
    let found = of_matrices(name, device).or_else(|| of_arrays(name, device));
    found.unwrap_or_else(|| panic!("no arguments for {name}"))
}

fn int(n: usize) -> Arg {
    Arg::I32(n as i32)
}

/// Floats from 0 in steps of a thousandth.
fn some(device: &Device, n: usize) -> Arg {
    let data: Vec<f32> = (0..n).map(|i| i as f32 * 0.001).collect();
    Arg::Ptr(device.upload(&data))
}

fn of_matrices(name: &'static str, device: &Device) -> Option<Arguments> {
    let some = |n| some(device, n);
    let room = |bytes: usize| Arg::Ptr(device.alloc(bytes));
    Some(match name {
        "matmul_tiled" => {
            let n = 256;
            let args = vec![some(n * n), some(n * n), room(n * n * 4), int(n)];
            ("matmul_tiled", [16, 16], [16, 16], args)
        }
        "softmax" => {
            let (rows, width) = (1024, 1024);
            let [x, y] = [some(rows * width), room(rows * width * 4)];
            let args = vec![x, y, int(rows), int(width)];
            ("softmax_rows", [rows / 8, 1], [256, 1], args)
        }
        "transpose" => {
            let n = 1024;
            let args = vec![room(n * n * 8), room(n * n * 8), int(n), int(n)];
            ("transpose", [n / 16, n / 16], [16, 16], args)
        }
        "mma_f16" | "mma_tf32" | "mma_s8" => {
            let (steps, threads) = (16, 64 * 128);
            // Valid as halves, singles and bytes: numbers around 1, or small integers.
            let data: Vec<u32> = (0..steps * 1024)
                .map(|i| 0x3c01_3c01 + (i as u32 * 7 % 251) * 0x2_0002)
                .collect();
            let args = vec![
                Arg::Ptr(device.upload(&data)),
                room(threads * 32 * 4),
                int(steps),
            ];
            (name, [threads / 128, 1], [128, 1], args)
        }
        _ => return None,
    })
}

fn of_arrays(name: &str, device: &Device) -> Option<Arguments> {
    let some = |n| some(device, n);
    let room = |bytes: usize| Arg::Ptr(device.alloc(bytes));
    Some(match name {
        "reduction" => {
            let n = 1 << 21;
            let x = Arg::Ptr(device.upload(&vec![1f32; n]));
            ("reduce_sum", [64, 1], [256, 1], vec![x, room(8), int(n)])
        }
        "vector_add" => {
            let n = 1 << 20;
            let [x, y, z] = [0; 3].map(|_| room(n * 4));
            ("vector_add", [n / 256, 1], [256, 1], vec![x, y, z, int(n)])
        }
        "saxpy" => {
            let n = 1 << 18;
            let args = vec![Arg::F32(0.5), room(n * 16), room(n * 16), int(n)];
            ("saxpy_stride", [64, 1], [256, 1], args)
        }
        "histogram" => {
            let n = 1 << 20;
            let data: Vec<u8> = (0..n).map(|i| ((i * i) >> 3) as u8).collect();
            let args = vec![Arg::Ptr(device.upload(&data)), room(1024), int(n)];
            ("histogram", [32, 1], [256, 1], args)
        }
        "gcd64" => {
            let n = 1 << 14;
            let numbers = |factor: u64| {
                let data: Vec<u64> = (1..=n as u64).map(|i| i * factor).collect();
                Arg::Ptr(device.upload(&data))
            };
            let args = vec![numbers(6_364_136_223), numbers(97), room(n * 8), int(n)];
            ("gcd64", [n / 256, 1], [256, 1], args)
        }
        "half" => {
            let n = 1 << 14;
            let args = vec![some(n), room(n * 48), int(n)];
            ("half_ops", [n / 256, 1], [256, 1], args)
        }
        "collatz" => {
            let n = 20_000;
            let x = Arg::Ptr(device.upload(&(1..=n as u32).collect::<Vec<_>>()));
            let args = vec![x, room(n * 4), int(n)];
            ("collatz", [n.div_ceil(256), 1], [256, 1], args)
        }
        "expf" => {
            let n = 1 << 17;
            let args = vec![some(n), room(n * 4), int(n), Arg::I32(3)];
            ("math_f32", [n / 256, 1], [256, 1], args)
        }
        _ => return None,
    })
}
