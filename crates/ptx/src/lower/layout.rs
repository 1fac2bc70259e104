//! Addresses of module-wide variables, and their initial contents.

use std::collections::HashMap;

use super::link::{Declaration, resolve};
use crate::error::Error;
use crate::limits::{CONST_BYTES_MAX, SHARED_OPTIN_BYTES_MAX};
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
    /// Size of module-wide `.shared` variables: the first bytes of every kernel's shared memory.
    pub shared_bytes: u32,
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
        let mut layout = Layout {
            dynamic_shared_align: 16,
            ..Layout::default()
        };
        let declarations: Vec<_> = module
            .variables
            .iter()
            .map(|v| Declaration {
                unit: v.unit,
                name: v.name,
                linkage: v.linkage,
                defines: v.linkage != Linkage::Extern,
                bytes: v.bytes,
                at: v.at,
            })
            .collect();
        let links = resolve(&declarations)?;
        // Definitions first, because declarations that name them may come earlier in the text.
        let mut placed: HashMap<usize, Symbol> = HashMap::new();
        for constants in [true, false] {
            let wanted = |var: &Variable<'_>| (var.space == Space::Const) == constants;
            for (i, var) in module.variables.iter().enumerate() {
                if links.defines[i] && wanted(var) {
                    placed.insert(links.first[i], layout.place(var)?);
                }
            }
            for var in module.inner.iter().filter(|var| wanted(var)) {
                let symbol = layout.place(var)?;
                layout.inner.insert(var.at.offset, symbol);
            }
            if constants {
                layout.const_end = layout.global_bytes;
            }
        }
        for (i, var) in module.variables.iter().enumerate() {
            let symbol = match placed.get(&links.first[i]) {
                Some(&symbol) => symbol,
                None => {
                    let symbol = layout.place(var)?;
                    placed.insert(links.first[i], symbol);
                    symbol
                }
            };
            layout.symbols.insert((var.unit, var.name), symbol);
        }
        layout.defines = links.defines;
        Ok(layout)
    }

    fn place(&mut self, var: &Variable<'_>) -> Result<Symbol, Error> {
        let align = u64::from(var.align.max(1));
        let invalid = |message| {
            Err(Error::Invalid {
                at: var.at,
                message,
            })
        };
        let mut symbol = Symbol {
            space: var.space,
            offset: 0,
            bytes: var.bytes,
            element_bytes: var.ty.bytes(),
            managed: var.managed && var.space == Space::Global,
            dynamic: false,
        };
        match var.space {
            // An external array with a length that nothing defines is an array of the kernel's own,
            // as ptxas has it.
            Space::Shared if var.bytes == 0 => {
                self.dynamic_shared_align = self.dynamic_shared_align.max(var.align);
                symbol.dynamic = true;
            }
            Space::Shared => {
                symbol.offset = u64::from(self.shared_bytes).next_multiple_of(align);
                let end = symbol.offset + var.bytes;
                if end > u64::from(SHARED_OPTIN_BYTES_MAX) {
                    return Err(Error::Limit {
                        at: var.at,
                        what: "shared memory in bytes",
                        actual: end,
                        limit: SHARED_OPTIN_BYTES_MAX.into(),
                    });
                }
                self.shared_bytes = end as u32;
            }
            Space::Global | Space::Const if var.linkage == Linkage::Extern => {
                return invalid(format!(
                    "external variable `{}` is defined nowhere",
                    clipped(var.name)
                ));
            }
            Space::Global | Space::Const => {
                let (area, align) = match symbol.managed {
                    true => (&mut self.managed_bytes, align.max(PAGE_BYTES)),
                    false => (&mut self.global_bytes, align),
                };
                symbol.offset = area.next_multiple_of(align);
                let end = symbol.offset.checked_add(var.bytes);
                let Some(end) = end.filter(|&end| end <= crate::limits::VARIABLE_BYTES_MAX) else {
                    return Err(Error::Limit {
                        at: var.at,
                        what: "bytes of variables",
                        actual: u64::MAX,
                        limit: crate::limits::VARIABLE_BYTES_MAX,
                    });
                };
                *area = end;
                if var.space == Space::Const {
                    self.const_bytes += var.bytes;
                    if self.const_bytes > CONST_BYTES_MAX {
                        return Err(Error::Limit {
                            at: var.at,
                            what: "constant memory in bytes",
                            actual: self.const_bytes,
                            limit: CONST_BYTES_MAX,
                        });
                    }
                }
            }
            _ => {
                return invalid(format!(
                    "`{}` cannot stand outside a function",
                    clipped(var.name)
                ));
            }
        }
        Ok(symbol)
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
