//! Lowering of the syntax tree to [`Program`]. [`layout`] places variables, [`function`] resolves
//! names, labels and frames, and one file per family lowers instructions: [`integer`], [`float`],
//! [`compare`], [`convert`], [`memory`], [`control`], [`warp`], [`sync`], [`tensor`], [`texture`],
//! [`video`]. Whatever cannot be executed is refused here, with its line, and not while a kernel
//! runs, but in long texts ([`refused`]).

mod bits;
mod chains;
mod compare;
mod control;
mod convert;
mod float;
mod float8;
mod function;
mod insn;
mod instruction;
mod integer;
pub mod layout;
mod link;
mod memory;
mod modifiers;
mod newer;
mod operand;
mod pairs;
mod params;
mod refused;
mod shared;
mod special;
mod stack;
mod symbol;
mod sync;
mod temps;
mod tensor;
mod texture;
mod vectors;
mod video;
mod warp;
mod wide;

use std::collections::HashMap;

use crate::code::{Function, Program, Row};
pub use crate::code::{Kernel, KernelParam};
use crate::error::{Error, Position};
use crate::limits::{
    BLOCK_THREADS_MAX, PTX_WHOLE_BYTES_MAX, SHARED_DEFAULT_BYTES_MAX, SHARED_PLACED_BYTES_MAX,
};
use crate::parse::ast;
use crate::verify::verify;
use layout::Layout;
use shared::Reserved;

/// A lowered module without its memory.
#[derive(Debug)]
pub struct Lowered {
    pub program: Program,
    pub kernels: Vec<Kernel>,
}

/// Parses, lowers and verifies a text without memory, for checks.
pub fn check(text: &str) -> Result<(), Error> {
    let ast = crate::parse::parse(text)?;
    let layout = Layout::new(&ast)?;
    let lowered = lower(text, &ast, &layout, 1 << 40)?;
    verify(lowered.program, lowered.kernels).map_err(Box::new)?;
    Ok(())
}

/// Lowers a module whose variables will be at `base`.
pub fn lower<'a>(
    text: &'a str,
    ast: &ast::Module<'a>,
    layout: &Layout<'a>,
    base: u64,
) -> Result<Lowered, Error> {
    let mut context = Context::new(text, ast, layout, base);
    context.declare_functions()?;
    let mut kernels = Vec::new();
    for (function, used) in ast.functions.iter().zip(&layout.functions.defines) {
        if *used {
            let index = layout.functions.by_name[&(function.unit, function.name)];
            let shared = function::lower(&mut context, function, index)?;
            if function.kernel {
                kernels.push(kernel(&context, function, index, shared)?);
            }
        }
    }
    let frame_bytes = context.program.functions.iter().map(|f| f.frame_bytes);
    let stack_bytes = chains::bytes(&context.callees, &frame_bytes.collect::<Vec<_>>());
    for kernel in &mut kernels {
        kernel.local_bytes = stack_bytes[kernel.function as usize];
    }
    Ok(Lowered {
        program: context.program,
        kernels,
    })
}

/// State shared by the lowering of all functions.
struct Context<'m, 'a> {
    text: &'a str,
    ast: &'m ast::Module<'a>,
    layout: &'m Layout<'a>,
    /// Address of the module's variables.
    base: u64,
    program: Program,
    /// For each function, whether it has a body.
    defined: Vec<bool>,
    consts32: HashMap<u32, Row>,
    consts64: HashMap<u64, Row>,
    /// Registers of all functions so far.
    registers: u64,
    /// For each function, those that it calls directly. Indirect calls may reach any function whose
    /// address is taken.
    callees: Vec<Vec<u32>>,
    /// True for a long text: a kernel that comes to an unsupported instruction is refused there.
    is_long: bool,
    /// True if the last error was a function that is defined nowhere.
    is_undefined: bool,
}

impl<'m, 'a> Context<'m, 'a> {
    fn new(text: &'a str, ast: &'m ast::Module<'a>, layout: &'m Layout<'a>, base: u64) -> Self
    where
        'a: 'm,
    {
        Context {
            text,
            ast,
            layout,
            base,
            program: Program::default(),
            defined: Vec::new(),
            consts32: HashMap::new(),
            consts64: HashMap::new(),
            registers: 0,
            callees: Vec::new(),
            is_long: text.len() > PTX_WHOLE_BYTES_MAX,
            is_undefined: false,
        }
    }

    /// Declares every function, so that bodies may call functions further down.
    fn declare_functions(&mut self) -> Result<(), Error> {
        let functions = &self.layout.functions;
        for (function, &index) in self.ast.functions.iter().zip(&functions.index) {
            if index as usize == self.program.functions.len() {
                self.program.functions.push(Function {
                    name: function.name.to_owned(),
                    ..Function::default()
                });
                self.callees.push(Vec::new());
                self.defined.push(false);
            }
            self.defined[index as usize] |= function.body.is_some();
            params::place_params(&mut self.program.functions[index as usize], function)?;
        }
        Ok(())
    }

    fn limit(at: Position, what: &'static str, actual: u64, limit: u64) -> Result<(), Error> {
        if actual > limit {
            Err(Error::Limit {
                at,
                what,
                actual,
                limit,
            })
        } else {
            Ok(())
        }
    }
}

fn kernel(
    context: &Context<'_, '_>,
    function: &ast::Function<'_>,
    index: u32,
    shared: Reserved,
) -> Result<Kernel, Error> {
    Context::limit(
        function.at,
        "static shared memory of a kernel in bytes",
        shared.bytes,
        SHARED_DEFAULT_BYTES_MAX.into(),
    )?;
    Context::limit(
        function.at,
        "shared memory in bytes",
        shared.end,
        SHARED_PLACED_BYTES_MAX,
    )?;
    let shared_end = shared.end as u32;
    let lowered = &context.program.functions[index as usize];
    let params: Vec<_> = lowered
        .params
        .iter()
        .zip(&function.params)
        .map(|(slot, var)| KernelParam {
            offset: slot.offset,
            bytes: slot.bytes,
            align: var.align,
        })
        .collect();
    let param_bytes = params.last().map_or(0, |p| p.offset + p.bytes);
    let registers = (lowered.rows32 + 2 * lowered.rows64)
        .max(REGISTERS_MIN)
        .min(registers_max(function));
    Ok(Kernel {
        name: function.name.to_owned(),
        function: index,
        params,
        param_bytes,
        max_threads: function.reqntid.or(function.maxntid),
        required_threads: function.reqntid,
        shared_bytes: shared.bytes as u32,
        shared_end,
        dynamic_shared_offset: shared_end.next_multiple_of(context.layout.dynamic_shared_align),
        local_bytes: 0,
        registers,
        bounds_registers: function.maxnreg.is_some()
            || function.minnctapersm.is_some()
            || function.maxntid.is_some(),
    })
}

const REGISTERS_MIN: u32 = 16;
/// Registers of a thread, at most.
const REGISTERS_MAX: u32 = 255;
/// Registers of a multiprocessor, divided among its schedulers, from `sm_70` to `sm_120`.
const SM_REGISTERS: u32 = 64 << 10;
const SCHEDULERS: u32 = 4;
/// Granularity of a thread's registers.
const REGISTER_UNIT: u32 = 8;

/// Returns the most registers with which all blocks that the directives ask for fit into a
/// multiprocessor.
fn registers_max(function: &ast::Function<'_>) -> u32 {
    const WARP_THREADS: u64 = 32;
    let threads = match function.reqntid.or(function.maxntid) {
        Some(block) => block.iter().map(|&n| u64::from(n)).product(),
        None => u64::from(BLOCK_THREADS_MAX),
    };
    let blocks = u64::from(function.minnctapersm.unwrap_or(1).max(1));
    let warps = threads
        .clamp(1, BLOCK_THREADS_MAX.into())
        .div_ceil(WARP_THREADS)
        * blocks;
    let threads = warps.next_multiple_of(SCHEDULERS.into()) * WARP_THREADS;
    let fit = (u64::from(SM_REGISTERS) / threads) as u32 / REGISTER_UNIT * REGISTER_UNIT;
    let fit = fit.clamp(REGISTERS_MIN, REGISTERS_MAX);
    fit.min(function.maxnreg.unwrap_or(REGISTERS_MAX))
}
