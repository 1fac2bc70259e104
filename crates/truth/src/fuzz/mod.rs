//! Random programs: [`generate`] writes them, a GPU and the software device run them ([`hunt`]),
//! and [`mod@shrink`] shortens one on which they differ.
//!
//! A program is two blocks of two warps. Each thread has a few registers of every width, filled
//! from the input, and a slot of its own in global, shared and local memory. All threads of a block
//! share counters, changed in ways whose order does not matter. At the end everything is written
//! out. PTX leaves nothing in it open: registers have values, loops end, communicating lanes are
//! all present, and NaNs are made one where payloads are open.

pub mod generate;
pub mod hunt;
pub mod shrink;

use std::fmt::Write;

use crate::form::TARGET;
use crate::job::{Job, Outcome};
use crate::values::{Random, hash};

pub const BLOCKS: u32 = 2;
pub const THREADS: u32 = 64;
/// Registers of each width that programs use.
pub const WORDS: usize = 8;
pub const LONGS: usize = 6;
pub const SHORTS: usize = 4;
pub const PREDICATES: usize = 4;
/// Counters shared by a block, 8 bytes each; each has one kind of change.
pub const COUNTERS: usize = 8;
pub const SLOT_BYTES: usize = 16;
/// Bytes that a thread writes out: registers, predicates, its three slots.
pub const THREAD_BYTES: usize = WORDS * 4 + LONGS * 8 + SHORTS * 2 + 8 + 3 * SLOT_BYTES;
const INPUT_BYTES: usize = (WORDS / 2 + LONGS + SHORTS / 4) * 8;

/// One step of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// PTX, one or more instructions.
    Code(String),
    /// Threads whose predicate (`%p1` or `!%p1`) is true take the first side, the others the
    /// second.
    If(String, Vec<Step>, Vec<Step>),
    /// A loop. The PTX sets `%turns`, which may differ between threads.
    Loop(String, Vec<Step>),
}

/// A program: the seed of its input, and its steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    pub seed: u64,
    pub steps: Vec<Step>,
}

impl Program {
    /// Makes the program's job, with a key from its text.
    pub fn job(&self) -> Job {
        job(self.seed, &self.body())
    }

    /// Returns the PTX between the set-up of registers and the writing of results.
    pub fn body(&self) -> String {
        let mut out = String::new();
        let mut labels = 0;
        // Writing to a string does not fail.
        let _ = steps(&mut out, &self.steps, &mut labels);
        out
    }
}

/// Threads whose results a digest keeps.
const DIGEST_THREADS: usize = 4;

impl Outcome {
    /// Makes a random program's results a digest.
    pub fn digest(self) -> Outcome {
        match self {
            Outcome::Results(bytes) => {
                let head = bytes[..bytes.len().min(DIGEST_THREADS * THREAD_BYTES)].to_vec();
                Outcome::Digest(hash(&bytes), head)
            }
            other => other,
        }
    }
}

impl Job {
    /// Makes the job of a random program with this body.
    fn of_program(key: u64, seed: u64, body: &str) -> Job {
        Job {
            key,
            what: format!("program {seed}"),
            text: kernel(&Job::name(key), body),
            target: TARGET,
            blocks: BLOCKS,
            threads: THREADS,
            input: input(seed),
            output_bytes: output_bytes(),
            setup: None,
            optimised: true,
        }
    }
}

/// Makes the job of a program given as text.
pub fn job(seed: u64, body: &str) -> Job {
    let key = hash(body.as_bytes()) ^ seed.rotate_left(32);
    Job::of_program(key, seed, body)
}

/// Makes the job of a program for a driver that compiles without optimisation.
pub fn job_unoptimised(seed: u64, body: &str) -> Job {
    let key = hash(body.as_bytes()).rotate_left(1) ^ seed.rotate_left(32);
    Job {
        optimised: false,
        ..Job::of_program(key, seed, body)
    }
}

fn steps(out: &mut String, list: &[Step], labels: &mut u32) -> std::fmt::Result {
    for step in list {
        *labels += 1;
        let label = *labels;
        match step {
            Step::Code(text) => writeln!(out, "{text};")?,
            Step::If(predicate, yes, no) => {
                let opposite = match predicate.strip_prefix('!') {
                    Some(name) => name.to_owned(),
                    None => format!("!{predicate}"),
                };
                writeln!(out, "@{opposite} bra ELSE{label};")?;
                steps(out, yes, labels)?;
                writeln!(out, "bra END{label};\nELSE{label}:")?;
                steps(out, no, labels)?;
                writeln!(out, "END{label}:")?;
            }
            Step::Loop(turns, body) => {
                writeln!(
                    out,
                    "{{ .reg .b32 %turns; .reg .pred %again; {turns};\nLOOP{label}:"
                )?;
                steps(out, body, labels)?;
                writeln!(
                    out,
                    "sub.u32 %turns, %turns, 1; setp.gt.s32 %again, %turns, 0; @%again bra LOOP{label};\n}}"
                )?;
            }
        }
    }
    Ok(())
}

/// Returns a program's input: random words for all registers.
pub fn input(seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    let words = (BLOCKS * THREADS) as usize * INPUT_BYTES / 8;
    (0..words)
        .map(|_| match random.below(4) {
            // Small numbers, numbers near zero, and floats of ordinary size.
            0 => random.bits() & 0x0000_003f_0000_003f,
            1 => !(random.bits() & 0x0000_003f_0000_003f),
            2 => random.bits() & 0x83ff_ffff_83ff_ffff | 0x3c00_0000_3c00_0000,
            _ => random.bits(),
        })
        .flat_map(u64::to_le_bytes)
        .collect()
}

pub fn output_bytes() -> usize {
    (BLOCKS * THREADS) as usize * THREAD_BYTES + BLOCKS as usize * COUNTERS * 8
}

/// Writes the kernel around a body.
pub fn kernel(name: &str, body: &str) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = write_kernel(&mut out, name, body);
    out
}

/// General registers of a program: their letter, how many there are, and bytes of each.
const REGISTERS: [(&str, usize, usize); 3] = [("r", WORDS, 4), ("l", LONGS, 8), ("h", SHORTS, 2)];

fn write_kernel(out: &mut String, name: &str, body: &str) -> std::fmt::Result {
    write_declarations(out, name)?;
    write_cleared_memory(out)?;
    write_loads(out)?;
    out.push_str(body);
    writeln!(out, "bar.sync 0;")?;
    write_stores(out)?;
    write_counters(out)?;
    writeln!(out, "ret;\n}}")
}

fn write_declarations(out: &mut String, name: &str) -> std::fmt::Result {
    writeln!(
        out,
        ".visible .entry {name}(.param .u64 out, .param .u64 in)\n{{\n\
         .reg .b64 %in, %out, %counts, %global, %window, %local, %place; .reg .b32 %thread, %block, %shared, %shares;\n\
         .reg .b32 %r<{WORDS}>, %tr<2>, %zr; .reg .b64 %l<{LONGS}>, %tl<2>, %zl; .reg .b16 %h<{SHORTS}>, %th<2>, %zh;\n\
         .reg .pred %p<{PREDICATES}>, %tp<2>;\n\
         .shared .align 16 .b8 cells[{}]; .shared .align 16 .b8 counters[{}]; .local .align 16 .b8 nook[{SLOT_BYTES}];\n\
         ld.param.u64 %in, [in]; ld.param.u64 %out, [out]; mov.u32 %block, %ctaid.x; mov.u32 %thread, %tid.x;\n\
         mad.wide.u32 %counts, %block, {}, %out; add.u64 %counts, %counts, {};\n\
         mov.u32 %shares, counters; mov.u32 %shared, cells; mad.lo.u32 %shared, %thread, {SLOT_BYTES}, %shared;\n\
         mov.u64 %window, cells; mad.wide.u32 %window, %thread, {SLOT_BYTES}, %window; cvta.shared.u64 %window, %window;\n\
         mov.u64 %local, nook;",
        THREADS as usize * SLOT_BYTES,
        COUNTERS * 8,
        COUNTERS * 8,
        (BLOCKS * THREADS) as usize * THREAD_BYTES,
    )
}

/// Writes zeros to shared and local memory, and finds the thread's input and output.
fn write_cleared_memory(out: &mut String) -> std::fmt::Result {
    let own = (THREAD_BYTES - SLOT_BYTES) as i32;
    for at in [0, 8] {
        writeln!(
            out,
            "st.shared.u64 [%shared+{at}], 0; st.local.u64 [%local+{at}], 0;"
        )?;
    }
    // Every thread writes the same value.
    for counter in 0..COUNTERS {
        writeln!(out, "st.shared.u64 [counters+{}], 0;", counter * 8)?;
    }
    writeln!(
        out,
        "mad.lo.u32 %block, %block, {THREADS}, %thread; mad.wide.u32 %in, %block, {INPUT_BYTES}, %in;\n\
         mad.wide.u32 %out, %block, {THREAD_BYTES}, %out; add.u64 %global, %out, {own}; bar.sync 0;"
    )
}

/// Writes the loads of a program's registers from its input.
fn write_loads(out: &mut String) -> std::fmt::Result {
    let mut at = 0;
    for (letter, count, bytes) in REGISTERS {
        for i in 0..count {
            writeln!(out, "ld.global.b{} %{letter}{i}, [%in+{at}];", bytes * 8)?;
            at += bytes;
        }
    }
    for i in 0..PREDICATES {
        writeln!(out, "setp.gt.s32 %p{i}, %r{i}, {i};")?;
    }
    Ok(())
}

/// Writes the stores of registers, and of a thread's shared and local memory, to the output.
fn write_stores(out: &mut String) -> std::fmt::Result {
    let mut at = 0;
    for (letter, count, bytes) in REGISTERS {
        for i in 0..count {
            writeln!(out, "st.global.b{} [%out+{at}], %{letter}{i};", bytes * 8)?;
            at += bytes;
        }
    }
    for i in 0..PREDICATES {
        writeln!(
            out,
            "selp.u32 %tr0, 1, 0, %p{i}; st.global.u8 [%out+{}], %tr0;",
            at + i
        )?;
    }
    at += 8;
    for space in ["shared", "local"] {
        for half in [0, 8] {
            writeln!(
                out,
                "ld.{space}.u64 %tl0, [%{space}+{half}]; st.global.u64 [%out+{}], %tl0;",
                at + half
            )?;
        }
        at += SLOT_BYTES;
    }
    Ok(())
}

/// Writes the stores of the block's counters.
fn write_counters(out: &mut String) -> std::fmt::Result {
    for counter in 0..COUNTERS {
        // All threads write the same value again; in global memory the counters already occupy the
        // other half.
        let at = counter * 8;
        writeln!(
            out,
            "ld.shared.u32 %tr0, [counters+{at}]; st.global.u32 [%counts+{}], %tr0;",
            at + 4
        )?;
    }
    Ok(())
}
