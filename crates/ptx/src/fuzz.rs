//! Fuzz targets: any text; and changed lowered programs, which run if they pass verification. With
//! debug assertions the interpreter checks each index that it trusts, so a rule that verification
//! lacks is a panic.

use std::sync::{OnceLock, atomic::AtomicBool};

use crate::code::{CONST, Kernel, Program, SINK};
use crate::launch::{Launch, STACK_BYTES_DEFAULT};
use crate::memory::Memory;
use crate::module::Module;
use crate::output::Discard;
use crate::verify::operands::{self, Operand};
use crate::verify::{Verified, verify};

const BASE: u64 = 0x3000_0000_0000;
const WINDOW_BYTES: u64 = 1 << 30;
/// Device memory that kernels get pointers into.
const BUFFER_BYTES: u64 = 1 << 20;
const BLOCK_THREADS: u32 = 40;
/// Warp instructions after which a run ends.
const INSTRUCTIONS_MAX: u64 = 20_000;
/// Bytes that describe one change.
const CHANGE_BYTES: usize = 8;

/// A lowered text.
#[derive(Clone)]
struct Seed {
    program: Program,
    kernels: Vec<Kernel>,
}

/// Parses, lowers and verifies any bytes.
pub fn text(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data)
        && let Some(Seed { program, kernels }) = seed(text)
    {
        let verified = verify(program, kernels);
        assert!(verified.is_ok(), "a lowered text was refused");
    }
}

/// Fuzzes one of the programs in `texts`, which are the same at every call. Returns whether the
/// changed program passed verification, and so was run.
///
/// `data` chooses text and kernel by its first two bytes; each eight further bytes are one change.
pub fn lowered(texts: &[&str], data: &[u8]) -> bool {
    static SEEDS: OnceLock<(Vec<Seed>, Option<Memory>)> = OnceLock::new();
    let (seeds, memory) =
        SEEDS.get_or_init(|| (texts.iter().filter_map(|t| seed(t)).collect(), memory()));
    let (Some((&[text, kernel], changes)), Some(memory)) = (data.split_first_chunk(), memory)
    else {
        return false;
    };
    let Some(seed) = seeds.get(usize::from(text) % seeds.len().max(1)) else {
        return false;
    };
    let mut changed = seed.clone();
    for change in changes.as_chunks::<CHANGE_BYTES>().0.iter().take(16) {
        changed.change(*change);
    }
    let Ok(verified) = verify(changed.program, changed.kernels) else {
        return false;
    };
    run(verified, memory, kernel);
    true
}

fn seed(text: &str) -> Option<Seed> {
    let ast = crate::parse::parse(text).ok()?;
    let layout = crate::lower::layout::Layout::new(&ast).ok()?;
    let lowered = crate::lower::lower(text, &ast, &layout, BASE).ok()?;
    Some(Seed {
        program: lowered.program,
        kernels: lowered.kernels,
    })
}

fn memory() -> Option<Memory> {
    let memory = Memory::reserve(BASE, WINDOW_BYTES, 1 << 24).ok()?;
    memory.map(BASE, BUFFER_BYTES).ok()?;
    Some(memory)
}

/// Runs a kernel on pointers into the buffer.
fn run(verified: Verified, memory: &Memory, kernel: u8) {
    let kernels = verified.kernels();
    let Some(kernel) = kernels.get(usize::from(kernel) % kernels.len().max(1)) else {
        return;
    };
    let name = kernel.name.clone();
    let words = (kernel.param_bytes as usize).div_ceil(8);
    let params: Vec<u8> = (0..words as u64)
        .flat_map(|i| (BASE + i % 8 * (BUFFER_BYTES / 8)).to_le_bytes())
        .collect();
    let module = Module::of_verified(verified, memory);
    let launch = Launch {
        module: &module,
        kernel: &name,
        grid: [2, 1, 1],
        block: [BLOCK_THREADS, 1, 1],
        dynamic_shared_bytes: 1024,
        params: &params,
        workers: 1,
        stack_bytes: STACK_BYTES_DEFAULT,
        cooperative: false,
        envregs: [0; 32],
        output: &Discard,
        heap: None,
        cancel: &AtomicBool::new(false),
        execution: None,
    };
    // A fault is an outcome like any other.
    let _ = launch.run_at_most(INSTRUCTIONS_MAX);
}

impl Seed {
    fn change(&mut self, [what, at_low, at_high, which, v0, v1, v2, v3]: [u8; CHANGE_BYTES]) {
        let at = usize::from(u16::from_le_bytes([at_low, at_high]));
        let value = value(u32::from_le_bytes([v0, v1, v2, v3]));
        let program = &mut self.program;
        let Some(pc) = at.checked_rem(program.code.len()) else {
            return;
        };
        match what % 8 {
            0..=2 => operands::operands(&mut program.code[pc].op, &mut nth(which, value)),
            3 => program.code[pc] = program.code[value as usize % program.code.len()],
            4 => program.code[pc].guard.pred = value as u16,
            5 => match program.rows.len() {
                0 => {}
                len => program.rows[at % len] = value,
            },
            6 => self.change_function(at, which, value),
            _ => self.change_table(at, which, value),
        }
    }

    fn change_function(&mut self, at: usize, which: u8, value: u32) {
        let Some(index) = at.checked_rem(self.program.functions.len()) else {
            return;
        };
        let function = &mut self.program.functions[index];
        match which % 6 {
            0 => function.rows32 = value,
            1 => function.rows64 = value,
            2 => function.preds = value,
            3 => function.frame_bytes = value,
            4 => function.entry = Some(value),
            _ => {
                if let Some(slot) = function.params.first_mut() {
                    slot.offset = value;
                }
            }
        }
    }

    fn change_table(&mut self, at: usize, which: u8, value: u32) {
        let program = &mut self.program;
        let mut see = nth(which, value);
        match which % 6 {
            0 => pick(&mut program.targets, at, |target| *target = value),
            1 => pick(&mut program.tensors, at, |t| {
                operands::of_tensor(t, &mut see)
            }),
            2 => pick(&mut program.textures, at, |t| {
                operands::of_texture(t, &mut see)
            }),
            3 => pick(&mut program.videos, at, |v| operands::of_video(v, &mut see)),
            4 => pick(&mut program.calls, at, |call| {
                pick(&mut call.params, at, |slot| slot.offset = value);
            }),
            _ => pick(&mut program.calls, at, |call| {
                pick(&mut call.returns, at, |slot| slot.bytes = value);
            }),
        }
    }
}

fn pick<T>(table: &mut [T], at: usize, change: impl FnOnce(&mut T)) {
    if let Some(index) = at.checked_rem(table.len()) {
        change(&mut table[index]);
    }
}

/// Small numbers, and those at the borders of what rows and tables can be.
fn value(number: u32) -> u32 {
    match number % 8 {
        0 => SINK,
        1 => SINK - 1,
        2 => CONST | number >> 24,
        3 => 0xffff,
        _ => number >> 3 & 0xff,
    }
}

/// Returns a visitor that sets the n-th operand.
fn nth(n: u8, value: u32) -> impl FnMut(Operand<'_>) {
    let mut left = n % 8;
    move |operand| {
        if left == 0 {
            match operand {
                Operand::Row(_, row) => *row = value,
                Operand::ReadPred(pred) | Operand::WritePred(pred) => *pred = value as u16,
                Operand::Target(at)
                | Operand::Targets(at, _)
                | Operand::List(at, ..)
                | Operand::Item(_, at) => *at = value,
            }
        }
        left = left.wrapping_sub(1);
    }
}
