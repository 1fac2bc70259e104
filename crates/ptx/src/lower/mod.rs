//! Lowering of the syntax tree to [`Program`]. [`layout`] places variables, [`function`] resolves
//! names, labels and frames, and one file per family lowers instructions: [`integer`], [`float`],
//! [`compare`], [`convert`], [`memory`], [`control`], [`warp`], [`sync`], [`tensor`], [`texture`],
//! [`video`]. Whatever cannot be executed is refused here, with its line, and never while a kernel
//! runs.

mod bits;
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
mod params;
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
use crate::limits::{BLOCK_THREADS_MAX, CALL_DEPTH_MAX, LOCAL_BYTES_MAX};
use crate::parse::ast;
use crate::parse::lexer::clipped;
use crate::verify::verify;
use layout::Layout;

/// A lowered module without its memory.
#[derive(Debug)]
pub struct Lowered<'a> {
    pub program: Program,
    pub kernels: Vec<Kernel>,
    /// Indexes into [`Program::functions`], by unit and name.
    pub functions: HashMap<(u32, &'a str), u32>,
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
) -> Result<Lowered<'a>, Error> {
    let mut context = Context::new(text, ast, layout, base);
    let bodies = context.declare_functions()?;
    let mut kernels = Vec::new();
    for (function, counts) in ast.functions.iter().zip(bodies) {
        if counts {
            let index = context.function_index[&(function.unit, function.name)];
            let shared_bytes = function::lower(&mut context, function, index)?;
            if function.kernel {
                kernels.push(kernel(&context, function, index, shared_bytes)?);
            }
        }
    }
    for kernel in &mut kernels {
        kernel.local_bytes = context.stack_bytes(kernel.function);
    }
    Ok(Lowered {
        program: context.program,
        kernels,
        functions: context.function_index,
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
    /// Indexes of functions by unit and name.
    function_index: HashMap<(u32, &'a str), u32>,
    /// For each function, whether it has a body.
    defined: Vec<bool>,
    consts32: HashMap<u32, Row>,
    consts64: HashMap<u64, Row>,
    /// Registers of all functions so far.
    registers: u64,
    /// For each function, those that it calls directly. Indirect calls may reach any function whose
    /// address is taken.
    callees: Vec<Vec<u32>>,
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
            function_index: HashMap::new(),
            defined: Vec::new(),
            consts32: HashMap::new(),
            consts64: HashMap::new(),
            registers: 0,
            callees: Vec::new(),
        }
    }

    /// Gives every function its index, so that bodies may call functions further down. Returns for
    /// each whether its body is the one used.
    fn declare_functions(&mut self) -> Result<Vec<bool>, Error> {
        let functions = &self.ast.functions;
        let declarations: Vec<_> = functions
            .iter()
            .map(|f| link::Declaration {
                unit: f.unit,
                name: f.name,
                // A kernel belongs to the whole module, whatever its linkage says.
                linkage: match f.linkage {
                    ast::Linkage::Local if f.kernel => ast::Linkage::Visible,
                    linkage => linkage,
                },
                defines: f.body.is_some(),
                bytes: 0,
                at: f.at,
            })
            .collect();
        let links = link::resolve(&declarations)?;
        let mut indices = Vec::with_capacity(functions.len());
        for (i, function) in functions.iter().enumerate() {
            let index = if links.first[i] == i {
                self.program.functions.push(Function {
                    name: function.name.to_owned(),
                    ..Function::default()
                });
                self.callees.push(Vec::new());
                self.defined.push(false);
                self.program.functions.len() as u32 - 1
            } else {
                indices[links.first[i]]
            };
            indices.push(index);
            self.function_index
                .insert((function.unit, function.name), index);
            self.defined[index as usize] |= function.body.is_some();
            params::place_params(&mut self.program.functions[index as usize], function)?;
        }
        self.resolve_aliases()?;
        Ok(links.defines)
    }

    /// Makes every unit's use of an alias refer to the other function.
    fn resolve_aliases(&mut self) -> Result<(), Error> {
        for &(new, old, unit, at) in &self.ast.aliases {
            let Some(&index) = self.function_index.get(&(unit, old)) else {
                return Err(Error::Invalid {
                    at,
                    message: format!("alias of unknown function `{}`", clipped(old)),
                });
            };
            if let Some(declared) = self.function_index.insert((unit, new), index) {
                for known in self.function_index.values_mut() {
                    if *known == declared {
                        *known = index;
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the local memory that a chain of calls from `function` needs, in bytes; a cycle
    /// counts once.
    fn stack_bytes(&self, function: u32) -> u32 {
        let mut best = vec![None; self.program.functions.len()];
        self.deepest(function, &mut best, 0)
    }

    fn deepest(&self, function: u32, best: &mut [Option<u32>], depth: usize) -> u32 {
        if let Some(bytes) = best[function as usize] {
            return bytes;
        }
        let own = self.program.functions[function as usize].frame_bytes;
        if depth >= CALL_DEPTH_MAX.min(512) {
            return own;
        }
        best[function as usize] = Some(0);
        let below = self.callees[function as usize]
            .iter()
            .map(|&f| self.deepest(f, best, depth + 1))
            .max();
        let bytes = own.saturating_add(below.unwrap_or(0)).min(LOCAL_BYTES_MAX);
        best[function as usize] = Some(bytes);
        bytes
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
    shared_bytes: u32,
) -> Result<Kernel, Error> {
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
        shared_bytes,
        dynamic_shared_offset: shared_bytes.next_multiple_of(context.layout.dynamic_shared_align),
        local_bytes: 0,
        registers,
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
