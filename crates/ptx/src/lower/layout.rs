//! Addresses of module-wide variables, and their initial contents.

use std::collections::HashMap;

use super::Context;
use super::link::{Declaration, Functions, Links, resolve};
use super::shared::{Places, is_static};
use crate::error::Error;
use crate::limits::{CONST_BYTES_MAX, VARIABLE_BYTES_MAX};
use crate::memory::PAGE_BYTES;
use crate::parse::ast::{Init, Linkage, Module, Space, Type, Variable};
use crate::parse::lexer::clipped;

/// Module-wide variables by name, and the sizes of their areas.
#[derive(Debug, Default)]
pub struct Layout<'a> {
    symbols: HashMap<(u32, &'a str), Symbol>,
    /// Variables declared inside functions, by their offset in the text.
    inner: HashMap<u32, Symbol>,
    /// For each variable, whether it is the definition that provides memory and contents.
    defines: Vec<bool>,
    /// Size of the one area of `.const` and `.global` variables, constants first.
    pub global_bytes: u64,
    /// End of the constants in that area.
    pub const_end: u64,
    pub const_bytes: u64,
    /// Size of the area of `.attribute(.managed)` variables, each on its own pages.
    pub managed_bytes: u64,
    /// Places of `.shared` variables.
    pub shared: Places,
    pub functions: Functions<'a>,
    /// The largest alignment of an `.extern .shared` array, at least 16.
    pub dynamic_shared_align: u32,
}

#[derive(Debug, Clone, Copy)]
pub struct Symbol {
    pub space: Space,
    /// Offset in the area of the space.
    pub offset: u64,
    pub bytes: u64,
    pub element_bytes: u32,
    /// Whether `offset` is in the area of managed variables; [`Layout::place_managed`] resolves it.
    pub managed: bool,
    /// `.extern .shared name[]`
    pub dynamic: bool,
}

impl<'a> Layout<'a> {
    pub fn new(module: &Module<'a>) -> Result<Self, Error> {
        let links = resolve(&declarations(module))?;
        // Of declarations without a definition, the first one counts.
        let mut chosen: HashMap<usize, usize> = HashMap::new();
        for (i, &first) in links.first.iter().enumerate() {
            match links.defines[i] {
                true => drop(chosen.insert(first, i)),
                false => drop(chosen.entry(first).or_insert(i)),
            }
        }
        let functions = Functions::new(module)?;
        let mut layout = Layout {
            dynamic_shared_align: 16,
            shared: place_shared(module, &functions, &links, &chosen)?,
            functions,
            ..Layout::default()
        };
        let mut placed: HashMap<usize, Symbol> = HashMap::new();
        for constants in [true, false] {
            let wanted = |var: &Variable<'_>| (var.space == Space::Const) == constants;
            for (i, var) in module.variables.iter().enumerate() {
                if chosen[&links.first[i]] == i && wanted(var) {
                    let shared = layout.shared.outer(i);
                    placed.insert(links.first[i], layout.place(var, shared)?);
                }
            }
            for var in module.inner.iter().filter(|var| wanted(var)) {
                let shared = layout.shared.inner(var);
                let symbol = layout.place(var, shared)?;
                layout.inner.insert(var.at.offset, symbol);
            }
            if constants {
                layout.const_end = layout.global_bytes;
            }
        }
        for (var, first) in module.variables.iter().zip(&links.first) {
            layout.symbols.insert((var.unit, var.name), placed[first]);
        }
        layout.defines = links.defines;
        Ok(layout)
    }

    /// Gives a variable its place in the area of its space; `shared` is its place if it is shared.
    fn place(&mut self, var: &Variable<'_>, shared: u64) -> Result<Symbol, Error> {
        let mut symbol = Symbol {
            space: var.space,
            offset: 0,
            bytes: var.bytes,
            element_bytes: var.ty.bytes(),
            managed: var.managed && var.space == Space::Global,
            dynamic: false,
        };
        let refused = match var.space {
            // An external array with a length that nothing defines is an array of the kernel's own,
            // as ptxas has it.
            Space::Shared if is_static(var) => {
                symbol.offset = shared;
                return Ok(symbol);
            }
            Space::Shared => {
                self.dynamic_shared_align = self.dynamic_shared_align.max(var.align);
                symbol.dynamic = true;
                return Ok(symbol);
            }
            Space::Global | Space::Const if var.linkage == Linkage::Extern => {
                format!(
                    "external variable `{}` is defined nowhere",
                    clipped(var.name)
                )
            }
            Space::Global | Space::Const => {
                symbol.offset = self.place_global(var, symbol.managed)?;
                return Ok(symbol);
            }
            _ => format!("`{}` cannot stand outside a function", clipped(var.name)),
        };
        Err(Error::Invalid {
            at: var.at,
            message: refused,
        })
    }

    /// Gives a `.global` or `.const` variable its place in its area.
    fn place_global(&mut self, var: &Variable<'_>, managed: bool) -> Result<u64, Error> {
        let align = u64::from(var.align.max(1));
        let (area, align) = match managed {
            true => (&mut self.managed_bytes, align.max(PAGE_BYTES)),
            false => (&mut self.global_bytes, align),
        };
        let offset = area.next_multiple_of(align);
        let end = offset.saturating_add(var.bytes);
        Context::limit(var.at, "bytes of variables", end, VARIABLE_BYTES_MAX)?;
        *area = end;
        if var.space == Space::Const {
            self.const_bytes += var.bytes;
            let what = "constant memory in bytes";
            Context::limit(var.at, what, self.const_bytes, CONST_BYTES_MAX)?;
        }
        Ok(offset)
    }

    /// Moves the managed variables to their own area at `managed_base`. All offsets count from
    /// `base` afterwards.
    pub fn place_managed(&mut self, managed_base: u64, base: u64) {
        let symbols = self.symbols.values_mut().chain(self.inner.values_mut());
        for symbol in symbols.filter(|symbol| symbol.managed) {
            symbol.offset = (managed_base + symbol.offset).wrapping_sub(base);
        }
    }

    /// Returns the offset of a variable declared inside a function.
    pub fn inner(&self, var: &Variable<'_>) -> Option<u64> {
        self.inner.get(&var.at.offset).map(|symbol| symbol.offset)
    }

    pub fn find(&self, unit: u32, name: &'a str) -> Option<Symbol> {
        self.symbols.get(&(unit, name)).copied()
    }

    /// Calls `write(offset, bytes)` for everything that is initialised; the rest is zero.
    /// `function` returns the address of a unit's function.
    pub fn initialise(
        &self,
        module: &Module<'a>,
        base: u64,
        function: impl Fn(u32, &str) -> Option<u64>,
        mut write: impl FnMut(u64, &[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let outer = module.variables.iter().zip(&self.defines);
        let outer = outer.filter(|(_, defines)| **defines).map(|(var, _)| {
            let symbol = self.find(var.unit, var.name);
            (var, symbol.map(|symbol| symbol.offset))
        });
        let inner = module.inner.iter().map(|var| (var, self.inner(var)));
        for (var, offset) in outer.chain(inner) {
            let Some(place) = offset.filter(|_| !var.init.is_empty()) else {
                continue;
            };
            if var.space == Space::Shared {
                continue;
            }
            let size = var.ty.bytes() as usize;
            let mut bytes = Vec::with_capacity(var.init.len() * size);
            for init in &var.init {
                let value = match *init {
                    Init::Number(number) => match var.ty {
                        Type::F32 => u64::from(number.single_bits()),
                        Type::F64 => number.double_bits(),
                        _ => number.double_bits(),
                    },
                    Init::Symbol { name, offset, mask } => {
                        let address = match self.find(var.unit, name) {
                            Some(s) if matches!(s.space, Space::Global | Space::Const) => {
                                Some(base.wrapping_add(s.offset))
                            }
                            Some(s) => Some(s.offset),
                            None => function(var.unit, name),
                        };
                        let Some(address) = address else {
                            return Err(Error::Invalid {
                                at: var.at,
                                message: format!("unknown symbol `{}`", clipped(name)),
                            });
                        };
                        let value = address.wrapping_add_signed(offset);
                        mask.map_or(value, |mask| {
                            (value & mask)
                                .checked_shr(mask.trailing_zeros())
                                .unwrap_or(0)
                        })
                    }
                };
                bytes.extend_from_slice(&u128::from(value).to_le_bytes()[..size]);
            }
            write(place, &bytes)?;
        }
        Ok(())
    }

    /// Returns the `.global` and `.const` variables, once for each unit that names one.
    pub fn globals(&self) -> impl Iterator<Item = (&'a str, Symbol)> + '_ {
        self.symbols
            .iter()
            .map(|(&(_, name), &symbol)| (name, symbol))
            .filter(|(_, s)| matches!(s.space, Space::Global | Space::Const))
    }
}

fn declarations<'a>(module: &Module<'a>) -> Vec<Declaration<'a>> {
    let variables = module.variables.iter();
    let declarations = variables.map(|v| Declaration {
        unit: v.unit,
        name: v.name,
        linkage: v.linkage,
        defines: v.linkage != Linkage::Extern,
        bytes: v.bytes,
        at: v.at,
    });
    declarations.collect()
}

/// Places the shared variables. `chosen` has the definition of each variable, by its first
/// declaration.
fn place_shared<'a>(
    module: &Module<'a>,
    functions: &Functions<'a>,
    links: &Links,
    chosen: &HashMap<usize, usize>,
) -> Result<Places, Error> {
    let mut outer = Vec::new();
    let mut numbers = HashMap::new();
    for (i, var) in module.variables.iter().enumerate() {
        if chosen[&links.first[i]] == i && is_static(var) {
            numbers.insert(links.first[i], outer.len() as u32);
            outer.push(i);
        }
    }
    let declared = module.variables.iter().zip(&links.first);
    let names = declared.filter_map(|(var, first)| {
        let number = numbers.get(first)?;
        Some(((var.unit, var.name), *number))
    });
    Places::new(module, functions, &outer, &names.collect())
}
