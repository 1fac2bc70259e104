//! A device for tests: memory, a loaded module, launches with typed arguments.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::panic)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use outboard_ptx::check::Checker;
use outboard_ptx::launch::STACK_BYTES_DEFAULT;
use outboard_ptx::{Fifo, Heap, Launch, LaunchError, Memory, Module, Stats};

/// Start of the next window, so that windows of concurrent tests do not overlap.
static NEXT_WINDOW: AtomicU64 = AtomicU64::new(0x3000_0000_0000);
const WINDOW_BYTES: u64 = 1 << 32;

pub struct Device {
    pub memory: Memory,
    pub module: Module,
    pub output: Fifo,
    pub heap: Heap,
    pub cancel: AtomicBool,
    pub workers: usize,
    next: AtomicU64,
}

/// One kernel argument.
#[derive(Clone, Copy)]
pub enum Arg {
    Ptr(u64),
    I32(i32),
    I64(i64),
    F32(f32),
}

impl Device {
    pub fn new(ptx: &str) -> Self {
        Self::with(ptx, false)
    }

    /// Makes a device whose memory tracks which bytes were written.
    pub fn tracked(ptx: &str) -> Self {
        Self::with(ptx, true)
    }

    fn with(ptx: &str, tracked: bool) -> Self {
        let base = NEXT_WINDOW.fetch_add(WINDOW_BYTES, Ordering::Relaxed);
        let memory = Memory::reserve(base, WINDOW_BYTES, 64 << 20).unwrap();
        if tracked {
            memory.track_writes();
        }
        let module = Module::load(ptx, &memory).unwrap_or_else(|e| panic!("{e}"));
        let heap = Heap::new(&memory, 8 << 20).unwrap();
        Device {
            memory,
            module,
            output: Fifo::new(1 << 20),
            heap,
            cancel: AtomicBool::new(false),
            workers: 2,
            next: AtomicU64::new(base),
        }
    }

    /// Maps zeroed memory of exactly this many bytes.
    pub fn alloc(&self, bytes: usize) -> u64 {
        let step = (bytes as u64).next_multiple_of(4096) + 4096;
        let address = self.next.fetch_add(step, Ordering::Relaxed);
        self.memory.map(address, bytes as u64).unwrap();
        address
    }

    pub fn upload<T: Pod>(&self, data: &[T]) -> u64 {
        let mut bytes = Vec::with_capacity(size_of_val(data));
        data.iter().for_each(|v| v.append(&mut bytes));
        let address = self.alloc(bytes.len());
        self.memory.write(address, &bytes).unwrap();
        address
    }

    pub fn download<T: Pod>(&self, address: u64, count: usize) -> Vec<T> {
        let mut bytes = vec![0; count * size_of::<T>()];
        self.memory.read(address, &mut bytes).unwrap();
        bytes
            .chunks_exact(size_of::<T>())
            .map(T::from_bytes)
            .collect()
    }

    pub fn try_run(
        &self,
        kernel: &str,
        grid: [u32; 3],
        block: [u32; 3],
        dynamic_shared_bytes: u32,
        args: &[Arg],
    ) -> Result<Stats, LaunchError> {
        self.try_run_watched(kernel, grid, block, dynamic_shared_bytes, args, None)
    }

    pub fn try_run_watched(
        &self,
        kernel: &str,
        grid: [u32; 3],
        block: [u32; 3],
        dynamic_shared_bytes: u32,
        args: &[Arg],
        checker: Option<&Checker>,
    ) -> Result<Stats, LaunchError> {
        let params = params(args);
        let launch = self.launch(kernel, grid, block, dynamic_shared_bytes, &params);
        match checker {
            Some(checker) => launch.run_watched(checker),
            None => launch.run(),
        }
    }

    pub fn launch<'l>(
        &'l self,
        kernel: &'l str,
        grid: [u32; 3],
        block: [u32; 3],
        dynamic_shared_bytes: u32,
        params: &'l [u8],
    ) -> Launch<'l> {
        Launch {
            module: &self.module,
            kernel,
            grid,
            block,
            dynamic_shared_bytes,
            params,
            workers: self.workers,
            stack_bytes: STACK_BYTES_DEFAULT,
            cooperative: false,
            envregs: [0; 32],
            output: &self.output,
            heap: Some(&self.heap),
            cancel: &self.cancel,
            execution: None,
        }
    }

    pub fn run(&self, kernel: &str, grid: u32, block: u32, args: &[Arg]) -> Stats {
        self.try_run(kernel, [grid, 1, 1], [block, 1, 1], 0, args)
            .unwrap_or_else(|e| panic!("{e}"))
    }
}

/// Lays arguments out as a kernel's parameters.
pub fn params(args: &[Arg]) -> Vec<u8> {
    let mut params = Vec::new();
    for arg in args {
        let bytes: Vec<u8> = match *arg {
            Arg::Ptr(v) => v.to_le_bytes().into(),
            Arg::I32(v) => v.to_le_bytes().into(),
            Arg::I64(v) => v.to_le_bytes().into(),
            Arg::F32(v) => v.to_le_bytes().into(),
        };
        params.resize(params.len().next_multiple_of(bytes.len()), 0);
        params.extend(bytes);
    }
    params
}

pub trait Pod: Copy {
    fn append(&self, bytes: &mut Vec<u8>);
    fn from_bytes(bytes: &[u8]) -> Self;
}

macro_rules! pod {
    ($($t:ty),*) => {$(
        impl Pod for $t {
            fn append(&self, bytes: &mut Vec<u8>) {
                bytes.extend(self.to_le_bytes());
            }

            fn from_bytes(bytes: &[u8]) -> Self {
                <$t>::from_le_bytes(bytes.try_into().unwrap())
            }
        }
    )*};
}

pod!(u8, u16, i32, u32, i64, u64, f32, f64);

/// Returns a reproducible generator of random-looking numbers in [0, 1).
pub fn noise(seed: u64) -> impl FnMut() -> f64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Runs `body` in a kernel of one thread; returns the first `n` of its results in %r0.. and %rd0...
pub fn run_thread(body: &str) -> (Vec<u32>, Vec<u64>) {
    run_thread_for("sm_80", body)
}

/// Runs `body` in a text for `target`.
pub fn run_thread_for(target: &str, body: &str) -> (Vec<u32>, Vec<u64>) {
    let mut text = format!(
        ".version 8.0\n.target {target}\n.address_size 64\n.visible .entry k(.param .u64 out)\n{{\n"
    );
    text.push_str(
        ".reg .b32 %r<32>; .reg .b64 %rd<32>; .reg .f32 %f<16>; .reg .f64 %fd<16>; .reg .b16 %rs<16>; .reg .pred %p<16>;\n\
         .reg .b64 %out;\nld.param.u64 %out, [out];\n",
    );
    text.push_str(body);
    for i in 0..16 {
        text.push_str(&format!(
            "st.global.u32 [%out+{}], %r{i};\nst.global.u64 [%out+{}], %rd{i};\n",
            i * 4,
            64 + i * 8
        ));
    }
    text.push_str("ret;\n}\n");
    let device = Device::new(&text);
    let out = device.alloc(64 + 128);
    device.run("k", 1, 1, &[Arg::Ptr(out)]);
    (device.download(out, 16), device.download(out + 64, 16))
}

pub fn check32(body: &str, expected: &[u32]) {
    assert_eq!(&run_thread(body).0[..expected.len()], expected, "{body}");
}

pub fn check64(body: &str, expected: &[u64]) {
    assert_eq!(&run_thread(body).1[..expected.len()], expected, "{body}");
}
