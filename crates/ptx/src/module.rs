//! A loaded module: its program, and its variables in device memory.

use std::{collections::HashMap, sync::OnceLock};

use outboard_budget::Charge;

use crate::check::Sources;
use crate::code::{FUNCTION_WINDOW, Program};
use crate::error::Error;
use crate::interp::Features;
use crate::interp::steps::program::Steps;
use crate::interp::storage::Storage;
use crate::lanes::{Lanes32, Lanes64};
use crate::limits::{LOADING_BYTES_PER_BYTE, PTX_WHOLE_BYTES_MAX};
use crate::lower::layout::Layout;
use crate::lower::{self, Kernel};
use crate::memory::{Memory, MemoryError, PAGE_BYTES};
use crate::parse;
use crate::verify::{Verified, verify};

/// A `.global` or `.const` variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Global {
    pub name: String,
    pub address: u64,
    pub bytes: u64,
    pub constant: bool,
    /// `.attribute(.managed)`
    pub managed: bool,
}

/// Allocates memory for managed variables of the given length, in bytes.
pub type ManagedPlace<'p> = &'p mut dyn FnMut(u64) -> Result<u64, MemoryError>;

/// PTX ready to run. Dropping it frees its variables; borrowing ensures that no launch still uses
/// it.
#[derive(Debug)]
pub struct Module {
    verified: Verified,
    steps: Steps,
    watched_steps: OnceLock<Steps>,
    sources: Sources,
    consts32: Vec<Lanes32>,
    consts64: Vec<Lanes64>,
    kernel_index: HashMap<String, usize>,
    globals: Vec<Global>,
    const_bytes: u64,
    memory: Memory,
    /// The variables' range.
    allocation: Option<u64>,
    /// The variables' part of this process's memory.
    charge: Option<Charge>,
}

impl Module {
    /// Parses and lowers `ptx`, and allocates its variables in the internal area of `memory`. The
    /// host can access managed variables only by copies.
    pub fn load(ptx: &str, memory: &Memory) -> Result<Self, Error> {
        Self::load_at(ptx, memory, None)
    }

    /// Loads `ptx`. `managed` allocates memory for managed variables: the caller owns it, zeroed,
    /// and it must outlive the module's launches.
    pub fn load_with(ptx: &str, memory: &Memory, managed: ManagedPlace<'_>) -> Result<Self, Error> {
        Self::load_at(ptx, memory, Some(managed))
    }

    fn load_at(
        ptx: &str,
        memory: &Memory,
        managed: Option<ManagedPlace<'_>>,
    ) -> Result<Self, Error> {
        let bytes = ptx.len() as u64;
        if ptx.len() > PTX_WHOLE_BYTES_MAX {
            outboard_budget::reserve(bytes * LOADING_BYTES_PER_BYTE)
                .map_err(|_| MemoryError::OutOfMemory { bytes })?;
        }
        let ast = parse::parse(ptx)?;
        let mut layout = Layout::new(&ast)?;
        let own_place = layout.global_bytes.next_multiple_of(PAGE_BYTES);
        let own_bytes = match managed {
            None if layout.managed_bytes > 0 => own_place + layout.managed_bytes,
            _ => layout.global_bytes,
        };
        let charge =
            Charge::take(own_bytes).map_err(|_| MemoryError::OutOfMemory { bytes: own_bytes })?;
        let allocation = match own_bytes {
            0 => None,
            bytes => Some(memory.allocate_internal(bytes, 256)?),
        };
        let base = allocation.unwrap_or(0);
        let placed = match (layout.managed_bytes, managed) {
            (0, _) => Ok(0),
            (_, None) => Ok(base + own_place),
            (bytes, Some(place)) => place(bytes),
        };
        let loaded = match placed {
            Ok(at) => {
                layout.place_managed(at, base);
                Self::build(ptx, &ast, &layout, memory, (allocation, charge))
            }
            Err(error) => Err(error.into()),
        };
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
        (allocation, charge): (Option<u64>, Charge),
    ) -> Result<Self, Error> {
        let base = allocation.unwrap_or(0);
        let lowered = lower::lower(ptx, ast, layout, base)?;
        layout.initialise(
            ast,
            base,
            |unit, name| {
                let index = *layout.functions.by_name.get(&(unit, name))?;
                Some(FUNCTION_WINDOW | u64::from(index))
            },
            |offset, bytes| Ok(memory.write(base.wrapping_add(offset), bytes)?),
        )?;
        let mut globals: Vec<_> = layout
            .globals()
            .map(|(name, symbol)| Global {
                name: name.to_owned(),
                address: base.wrapping_add(symbol.offset),
                bytes: symbol.bytes,
                managed: symbol.managed,
                constant: symbol.space == parse::ast::Space::Const,
            })
            .collect();
        globals.sort_by(|a, b| (a.address, &a.name).cmp(&(b.address, &b.name)));
        globals.dedup_by(|a, b| a.address == b.address && a.name == b.name);
        let verified = verify(lowered.program, lowered.kernels).map_err(Box::new)?;
        let mut module = Self::of_verified(verified, memory);
        module.sources = Sources::new(ptx);
        (module.globals, module.const_bytes) = (globals, layout.const_bytes);
        (module.allocation, module.charge) = (allocation, Some(charge));
        Ok(module)
    }

    /// Makes a module without variables and text.
    pub(crate) fn of_verified(verified: Verified, memory: &Memory) -> Self {
        let program = verified.program();
        let kernels = verified.kernels().iter().enumerate();
        Module {
            watched_steps: OnceLock::new(),
            sources: Sources::new(""),
            steps: Steps::new(program, Features::detect()),
            consts32: program.consts32.iter().map(|&row| Lanes32(row)).collect(),
            consts64: program.consts64.iter().map(|&row| Lanes64(row)).collect(),
            kernel_index: kernels.map(|(i, k)| (k.name.clone(), i)).collect(),
            globals: Vec::new(),
            const_bytes: 0,
            memory: memory.clone(),
            allocation: None,
            charge: None,
            verified,
        }
    }

    /// Restricts execution to instructions that every host of this architecture has.
    pub fn use_baseline(&mut self) {
        self.steps = Steps::new(self.program(), Features::Baseline);
    }

    pub fn kernels(&self) -> &[Kernel] {
        self.verified.kernels()
    }

    pub fn kernel(&self, name: &str) -> Result<&Kernel, Error> {
        self.kernel_index
            .get(name)
            .map(|&i| &self.kernels()[i])
            .ok_or_else(|| Error::NoSuchKernel(name.to_owned()))
    }

    /// Ordered by address.
    pub fn globals(&self) -> &[Global] {
        &self.globals
    }

    pub fn global(&self, name: &str) -> Option<&Global> {
        self.globals.iter().find(|g| g.name == name)
    }

    /// Returns the bytes of constant memory that the module declares.
    pub fn const_bytes(&self) -> u64 {
        self.const_bytes
    }

    /// Whether kernels call `malloc` or `free`, so that launches need a [`crate::heap::Heap`].
    pub fn uses_heap(&self) -> bool {
        self.program().uses_heap
    }

    /// Returns this process's memory that a block of the kernel needs at its start, in bytes.
    pub fn block_bytes(&self, kernel: &Kernel, block: [u32; 3], dynamic_shared_bytes: u32) -> u64 {
        let threads = block.iter().map(|&n| u64::from(n)).product::<u64>();
        let function = self.program().functions.get(kernel.function as usize);
        let warp = function.map_or(0, Storage::first_bytes);
        let shared = u64::from(kernel.shared_bytes) + u64::from(dynamic_shared_bytes);
        threads.div_ceil(32) * warp + shared
    }

    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    pub(crate) fn program(&self) -> &Program {
        self.verified.program()
    }

    pub(crate) fn watched_steps(&self) -> &Steps {
        self.watched_steps
            .get_or_init(|| Steps::watched(self.program(), Features::detect()))
    }

    pub(crate) fn sources(&self) -> &Sources {
        &self.sources
    }

    pub(crate) fn steps(&self) -> &Steps {
        &self.steps
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
