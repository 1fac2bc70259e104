//! A loaded module: its program, and its variables in device memory.

use std::collections::HashMap;

use crate::code::{FUNCTION_WINDOW, Program};
use crate::error::Error;
use crate::interp::lanes::{Lanes32, Lanes64};
use crate::lower::layout::Layout;
use crate::lower::{self, Kernel};
use crate::memory::Memory;
use crate::parse;

/// A `.global` or `.const` variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Global {
    pub name: String,
    pub address: u64,
    pub bytes: u64,
    pub constant: bool,
}

/// PTX ready to run. Dropping it frees its variables: no launch may still use it, which borrowing enforces.
#[derive(Debug)]
pub struct Module {
    program: Program,
    consts32: Vec<Lanes32>,
    consts64: Vec<Lanes64>,
    kernels: Vec<Kernel>,
    kernel_index: HashMap<String, usize>,
    globals: Vec<Global>,
    const_bytes: u64,
    memory: Memory,
    /// The variables' range.
    allocation: Option<u64>,
}

impl Module {
    /// Parses and lowers `ptx`, and puts its variables into the internal area of `memory`.
    pub fn load(ptx: &str, memory: &Memory) -> Result<Self, Error> {
        let ast = parse::parse(ptx)?;
        let layout = Layout::new(&ast)?;
        let allocation = match layout.global_bytes {
            0 => None,
            bytes => Some(memory.allocate_internal(bytes, 256)?),
        };
        let loaded = Self::build(ptx, &ast, &layout, memory, allocation);
        if loaded.is_err()
            && let Some(address) = allocation
        {
            memory.free_internal(address);
        }
        loaded
    }

    fn build(
        ptx: &str,
        ast: &parse::ast::Module<'_>,
        layout: &Layout<'_>,
        memory: &Memory,
        allocation: Option<u64>,
    ) -> Result<Self, Error> {
        let base = allocation.unwrap_or(0);
        let lowered = lower::lower(ptx, ast, layout, base)?;
        let functions: HashMap<&str, u64> = lowered
            .program
            .functions
            .iter()
            .zip(FUNCTION_WINDOW..)
            .map(|(f, address)| (f.name.as_str(), address))
            .collect();
        layout.initialise(
            ast,
            base,
            |name| functions.get(name).copied(),
            |offset, bytes| Ok(memory.write(base + offset, bytes)?),
        )?;
        let mut globals: Vec<_> = layout
            .globals()
            .map(|(name, symbol)| Global {
                name: name.to_owned(),
                address: base + symbol.offset,
                bytes: symbol.bytes,
                constant: symbol.space == parse::ast::Space::Const,
            })
            .collect();
        globals.sort_by_key(|g| g.address);
        let kernel_index = lowered
            .kernels
            .iter()
            .enumerate()
            .map(|(i, k)| (k.name.clone(), i))
            .collect();
        Ok(Module {
            consts32: lowered
                .program
                .consts32
                .iter()
                .map(|&row| Lanes32(row))
                .collect(),
            consts64: lowered
                .program
                .consts64
                .iter()
                .map(|&row| Lanes64(row))
                .collect(),
            program: lowered.program,
            kernels: lowered.kernels,
            kernel_index,
            globals,
            const_bytes: layout.const_bytes,
            memory: memory.clone(),
            allocation,
        })
    }

    pub fn kernels(&self) -> &[Kernel] {
        &self.kernels
    }

    pub fn kernel(&self, name: &str) -> Result<&Kernel, Error> {
        self.kernel_index
            .get(name)
            .map(|&i| &self.kernels[i])
            .ok_or_else(|| Error::NoSuchKernel(name.to_owned()))
    }

    /// By address.
    pub fn globals(&self) -> &[Global] {
        &self.globals
    }

    pub fn global(&self, name: &str) -> Option<&Global> {
        self.globals.iter().find(|g| g.name == name)
    }

    /// Constant memory that the module declares.
    pub fn const_bytes(&self) -> u64 {
        self.const_bytes
    }

    /// Whether kernels call `malloc` or `free`, so that launches need a [`crate::heap::Heap`].
    pub fn uses_heap(&self) -> bool {
        self.program.uses_heap
    }

    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    pub(crate) fn program(&self) -> &Program {
        &self.program
    }

    pub(crate) fn constants(&self) -> (&[Lanes32], &[Lanes64]) {
        (&self.consts32, &self.consts64)
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if let Some(address) = self.allocation {
            self.memory.free_internal(address);
        }
    }
}
