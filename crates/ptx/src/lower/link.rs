//! Which declaration of a name is its definition, within a unit and between the units that were linked (PTX ISA 11.6).
//!
//! A name without linkage is its unit's own. The others are shared: one `.visible` definition, or the first of several
//! `.weak` ones, or the largest of several `.common` ones.

use std::collections::HashMap;

use crate::error::{Error, Position};
use crate::parse::ast::Linkage;
use crate::parse::lexer::clipped;

/// A function or variable as a unit names it.
pub(super) struct Declaration<'a> {
    pub(super) unit: u32,
    pub(super) name: &'a str,
    pub(super) linkage: Linkage,
    /// With a body, or with memory.
    pub(super) defines: bool,
    pub(super) bytes: u64,
    pub(super) at: Position,
}

/// The units that share a name: one, or all.
type Key<'a> = (Option<u32>, &'a str);

/// What the declarations of a module mean.
pub(super) struct Links {
    /// By declaration: the first one of the same thing.
    pub(super) first: Vec<usize>,
    /// By declaration: whether it is the definition that counts.
    pub(super) defines: Vec<bool>,
}

/// Ties every declaration to its definition.
pub(super) fn resolve(declarations: &[Declaration<'_>]) -> Result<Links, Error> {
    // A unit may name a thing without linkage first and with it later.
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

/// Which of two definitions counts, if they may stand beside each other.
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
