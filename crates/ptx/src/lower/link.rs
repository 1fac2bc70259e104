//! Linking: which declaration of a name is its definition, within a unit and between units (PTX ISA
//! 11.6).
//!
//! A name without linkage belongs to its unit. Other names are shared: their definition is the one
//! `.visible` definition, or the first of several `.weak` ones, or the largest of several `.common`
//! ones.

use std::collections::HashMap;

use crate::error::{Error, Position};
use crate::parse::ast::{Linkage, Module};
use crate::parse::lexer::clipped;

/// A unit's declaration of a function or variable.
pub(super) struct Declaration<'a> {
    pub(super) unit: u32,
    pub(super) name: &'a str,
    pub(super) linkage: Linkage,
    /// Whether it has a body, or memory.
    pub(super) defines: bool,
    pub(super) bytes: u64,
    pub(super) at: Position,
}

/// The units that share a name: a single one, or all (`None`).
type Key<'a> = (Option<u32>, &'a str);

/// The definitions that declarations refer to.
pub(super) struct Links {
    /// For each declaration, the first one of the same object.
    pub(super) first: Vec<usize>,
    /// For each declaration, whether it is the definition used.
    pub(super) defines: Vec<bool>,
}

/// Connects every declaration to its definition.
pub(super) fn resolve(declarations: &[Declaration<'_>]) -> Result<Links, Error> {
    // A unit may declare a name without linkage first and with linkage later.
    let mut shared = HashMap::new();
    for d in declarations {
        *shared.entry((d.unit, d.name)).or_insert(false) |= d.linkage != Linkage::Local;
    }
    let key = |d: &Declaration<'_>| -> bool { shared[&(d.unit, d.name)] };
    let mut groups: HashMap<Key<'_>, (usize, Option<usize>)> = HashMap::new();
    let mut links = Links {
        first: Vec::with_capacity(declarations.len()),
        defines: vec![false; declarations.len()],
    };
    for (i, d) in declarations.iter().enumerate() {
        let unit = (!key(d)).then_some(d.unit);
        let (first, definition) = groups.entry((unit, d.name)).or_insert((i, None));
        links.first.push(*first);
        if d.defines {
            *definition = Some(match *definition {
                None => i,
                Some(known) => better(declarations, known, i)?,
            });
        }
    }
    for (_, definition) in groups.values() {
        if let Some(definition) = *definition {
            links.defines[definition] = true;
        }
    }
    Ok(links)
}

/// Functions of a module by number.
#[derive(Debug, Default)]
pub struct Functions<'a> {
    /// For each function of the text, its number.
    pub index: Vec<u32>,
    /// For each function of the text, whether its body is the one used.
    pub defines: Vec<bool>,
    /// Numbers by unit and name, aliases included.
    pub by_name: HashMap<(u32, &'a str), u32>,
    pub count: usize,
}

impl<'a> Functions<'a> {
    /// Gives every function its number, in the order of the text.
    pub fn new(module: &Module<'a>) -> Result<Self, Error> {
        let declarations: Vec<_> = module
            .functions
            .iter()
            .map(|f| Declaration {
                unit: f.unit,
                name: f.name,
                // A kernel belongs to the whole module, whatever its linkage says.
                linkage: match f.linkage {
                    Linkage::Local if f.kernel => Linkage::Visible,
                    linkage => linkage,
                },
                defines: f.body.is_some(),
                bytes: 0,
                at: f.at,
            })
            .collect();
        let links = resolve(&declarations)?;
        let mut functions = Functions {
            defines: links.defines,
            ..Functions::default()
        };
        for (i, (function, first)) in module.functions.iter().zip(links.first).enumerate() {
            let index = if first == i {
                functions.count += 1;
                functions.count as u32 - 1
            } else {
                functions.index[first]
            };
            functions.index.push(index);
            functions
                .by_name
                .insert((function.unit, function.name), index);
        }
        functions.resolve_aliases(module)?;
        Ok(functions)
    }

    /// Makes every unit's use of an alias refer to the other function.
    fn resolve_aliases(&mut self, module: &Module<'a>) -> Result<(), Error> {
        for &(new, old, unit, at) in &module.aliases {
            let Some(&index) = self.by_name.get(&(unit, old)) else {
                return Err(Error::Invalid {
                    at,
                    message: format!("alias of unknown function `{}`", clipped(old)),
                });
            };
            if let Some(declared) = self.by_name.insert((unit, new), index) {
                for known in self.by_name.values_mut() {
                    if *known == declared {
                        *known = index;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Returns the definition to use of two, if both may exist.
fn better(declarations: &[Declaration<'_>], known: usize, other: usize) -> Result<usize, Error> {
    let (a, b) = (&declarations[known], &declarations[other]);
    let rank = |linkage| match linkage {
        Linkage::Weak => 1,
        Linkage::Common => 0,
        _ => 2,
    };
    let (first, second) = (rank(a.linkage), rank(b.linkage));
    if a.unit == b.unit || first == 2 && second == 2 {
        let message = format!("`{}` is defined twice", clipped(b.name));
        return Err(Error::Invalid { at: b.at, message });
    }
    let larger = first == 0 && second == 0 && b.bytes > a.bytes;
    Ok(if second > first || larger {
        other
    } else {
        known
    })
}
