//! Static shared memory: the variables that each kernel reaches, and their places in a block.
//!
//! As ptxas has it, a kernel has the variables that it and the functions below it name, in the
//! order of the text. A function that calls indirectly, or takes the address of a function, may
//! reach every function whose address is taken anywhere in the module.
//!
//! A variable has one place in all kernels, so a kernel's variables may have others between them.

use std::cmp::Reverse;
use std::collections::HashMap;

use super::Context;
use super::link::Functions;
use crate::error::{Error, Position};
use crate::limits::SHARED_PLACED_BYTES_MAX;
use crate::parse::ast::{Init, Module, Operand, Space, Statement, Variable};

/// Names followed for all kernels together: they could grow with the square of the text.
const VISITS_MAX: u64 = 1 << 25;

/// Static shared memory of a kernel.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reserved {
    /// Bytes of the kernel's variables, one after the other: what the kernel is charged.
    pub bytes: u64,
    /// End of the last variable in the memory of a block.
    pub end: u64,
}

impl Reserved {
    /// Reserves memory after all other variables; returns its place.
    pub fn add(&mut self, bytes: u64, align: u32) -> u64 {
        let after = |end: u64| end.next_multiple_of(align.max(1).into());
        let place = after(self.end);
        self.bytes = after(self.bytes).saturating_add(bytes);
        self.end = place.saturating_add(bytes);
        place
    }
}

/// The places of a module's shared variables with a length.
#[derive(Debug, Default)]
pub struct Places {
    /// By the index of the variable's definition in [`Module::variables`].
    outer: HashMap<usize, u64>,
    /// Variables of device functions, by their offset in the text.
    inner: HashMap<u32, u64>,
    /// By the kernel's index; its own variables are not counted.
    kernels: HashMap<u32, Reserved>,
}

impl Places {
    /// Places the variables. `outer` has the index of each module-wide variable, and `names` the
    /// position in `outer` of the variable that a unit's name means.
    pub fn new(
        module: &Module<'_>,
        functions: &Functions<'_>,
        outer: &[usize],
        names: &HashMap<(u32, &str), u32>,
    ) -> Result<Places, Error> {
        let of_functions = |var: &&Variable<'_>| is_static(var);
        let inner: Vec<_> = module.inner.iter().filter(of_functions).collect();
        let variables: Vec<_> = outer.iter().map(|&i| &module.variables[i]).collect();
        let variables = [variables, inner.clone()].concat();
        if variables.is_empty() {
            return Ok(Places::default());
        }
        let mut graph = Graph::new(functions.count, names);
        let numbers = inner.iter().zip(outer.len() as u32..);
        graph.inner = numbers.map(|(var, n)| (var.at.offset, n)).collect();
        graph.read(module, functions);

        let defined = module.functions.iter().zip(&functions.index);
        let defined = defined.zip(&functions.defines).filter(|(_, used)| **used);
        let kernels: Vec<u32> = defined
            .filter(|((function, _), _)| function.kernel)
            .map(|((_, &index), _)| index)
            .collect();
        let mut walk = Walk::new(&graph);
        let reached = kernels.iter().map(|&kernel| walk.from(kernel));
        let reached = reached.collect::<Result<Vec<_>, _>>()?;
        let (places, reserved) = place(&variables, &reached)?;
        let (outer_places, inner_places) = places.split_at(outer.len());
        Ok(Places {
            outer: outer.iter().copied().zip(outer_places.to_vec()).collect(),
            inner: inner
                .iter()
                .map(|var| var.at.offset)
                .zip(inner_places.to_vec())
                .collect(),
            kernels: kernels.into_iter().zip(reserved).collect(),
        })
    }

    /// Returns the place of a module-wide variable.
    pub fn outer(&self, index: usize) -> u64 {
        self.outer.get(&index).copied().unwrap_or(0)
    }

    /// Returns the place of a variable of a device function.
    pub fn inner(&self, var: &Variable<'_>) -> u64 {
        self.inner.get(&var.at.offset).copied().unwrap_or(0)
    }

    /// Returns the memory of a kernel without its own variables.
    pub fn of_kernel(&self, index: u32) -> Reserved {
        self.kernels.get(&index).copied().unwrap_or_default()
    }
}

/// Returns true for a shared variable with a length; one without is dynamic.
pub(super) fn is_static(var: &Variable<'_>) -> bool {
    var.space == Space::Shared && var.bytes > 0
}

/// Places variables, those of many kernels first: kernels' own ones lie after them without gaps.
fn place(
    variables: &[&Variable<'_>],
    reached: &[Vec<u32>],
) -> Result<(Vec<u64>, Vec<Reserved>), Error> {
    let mut reserved = vec![Reserved::default(); reached.len()];
    let mut kernels_of = vec![Vec::new(); variables.len()];
    for (kernel, numbers) in reached.iter().enumerate() {
        for &n in numbers {
            let var = variables[n as usize];
            reserved[kernel].add(var.bytes, var.align);
            kernels_of[n as usize].push(kernel);
        }
    }
    for kernel in &mut reserved {
        kernel.end = 0;
    }
    let mut order: Vec<usize> = (0..variables.len()).collect();
    order.sort_by_key(|&n| Reverse(kernels_of[n].len()));
    let mut places = vec![0; variables.len()];
    for n in order {
        let (var, kernels) = (variables[n], &kernels_of[n]);
        let free = kernels.iter().map(|&kernel| reserved[kernel].end).max();
        let place = free.unwrap_or(0).next_multiple_of(var.align.max(1).into());
        let end = place + var.bytes;
        Context::limit(
            var.at,
            "shared memory in bytes",
            end,
            SHARED_PLACED_BYTES_MAX,
        )?;
        places[n] = place;
        for &kernel in kernels {
            reserved[kernel].end = end;
        }
    }
    Ok((places, reserved))
}

/// Variables and functions that a function names.
#[derive(Clone, Debug, Default)]
struct Named {
    variables: Vec<u32>,
    calls: Vec<u32>,
    /// True if an indirect call lets it reach every function whose address is taken.
    is_indirect: bool,
}

/// Names in all functions of a module.
struct Graph<'g, 'a> {
    names: &'g HashMap<(u32, &'a str), u32>,
    /// Numbers of the variables of device functions, by their offset in the text.
    inner: HashMap<u32, u32>,
    functions: Vec<Named>,
    /// Functions whose address is taken.
    taken: Vec<u32>,
}

impl<'g, 'a> Graph<'g, 'a> {
    fn new(functions: usize, names: &'g HashMap<(u32, &'a str), u32>) -> Self {
        Graph {
            names,
            inner: HashMap::new(),
            functions: vec![Named::default(); functions],
            taken: Vec::new(),
        }
    }

    fn read(&mut self, module: &Module<'_>, functions: &Functions<'_>) {
        for var in module.variables.iter().chain(&module.inner) {
            for init in &var.init {
                if let Init::Symbol { name, .. } = init {
                    self.taken.extend(functions.by_name.get(&(var.unit, name)));
                }
            }
        }
        let bodies = module.functions.iter().zip(&functions.index);
        for ((function, &index), used) in bodies.zip(&functions.defines) {
            if let Some(body) = function.body.as_ref().filter(|_| *used) {
                let mut named = Named::default();
                let unit = function.unit;
                self.body(functions, unit, body, &mut named);
                named.variables.sort_unstable();
                named.variables.dedup();
                named.calls.sort_unstable();
                named.calls.dedup();
                self.functions[index as usize] = named;
            }
        }
        self.taken.sort_unstable();
        self.taken.dedup();
    }

    fn body(
        &mut self,
        functions: &Functions<'_>,
        unit: u32,
        body: &[Statement<'_>],
        named: &mut Named,
    ) {
        for statement in body {
            match statement {
                Statement::Block(block) => self.body(functions, unit, block, named),
                Statement::Variable(var) => named.variables.extend(self.inner.get(&var.at.offset)),
                Statement::Targets { labels, .. } => {
                    for label in labels {
                        self.taken.extend(functions.by_name.get(&(unit, *label)));
                    }
                }
                Statement::Instruction(instruction) => {
                    let opcode = instruction.opcode;
                    let mut operands = instruction.operands.as_slice();
                    if opcode == "call" || opcode.starts_with("call.") {
                        // The results, if any, are a list before the function's name.
                        if let [Operand::List(_), rest @ ..] = operands {
                            operands = rest;
                        }
                        if let [Operand::Name(callee), rest @ ..] = operands {
                            let function = functions.by_name.get(&(unit, *callee));
                            named.calls.extend(function);
                            named.is_indirect |= function.is_none();
                            operands = rest;
                        }
                    }
                    for operand in operands {
                        self.operand(functions, unit, operand, named);
                    }
                }
                Statement::Label(..) | Statement::Prototype { .. } => {}
            }
        }
    }

    fn operand(
        &mut self,
        functions: &Functions<'_>,
        unit: u32,
        operand: &Operand<'_>,
        named: &mut Named,
    ) {
        let (name, parts): (Option<&str>, &[Operand<'_>]) = match operand {
            Operand::Name(name)
            | Operand::Offset(name, _)
            | Operand::Element { array: name, .. } => (Some(name), &[]),
            Operand::Address { base, .. } => (*base, &[]),
            Operand::Coordinates { base, parts } => (Some(base), parts),
            Operand::Vector(parts) | Operand::VectorAnd(parts, _) | Operand::List(parts) => {
                (None, parts)
            }
            _ => (None, &[]),
        };
        if let Some(name) = name {
            if let Some(&variable) = self.names.get(&(unit, name)) {
                named.variables.push(variable);
            } else if let Some(&function) = functions.by_name.get(&(unit, name)) {
                named.is_indirect = true;
                self.taken.push(function);
            }
        }
        for part in parts {
            self.operand(functions, unit, part, named);
        }
    }
}

/// Finds the variables below kernels.
struct Walk<'w, 'g, 'a> {
    graph: &'w Graph<'g, 'a>,
    visits: u64,
    /// For each function, the walk that last came to it, counted from 1.
    seen: Vec<u32>,
    walk: u32,
}

impl<'w, 'g, 'a> Walk<'w, 'g, 'a> {
    fn new(graph: &'w Graph<'g, 'a>) -> Self {
        Walk {
            graph,
            visits: 0,
            seen: vec![0; graph.functions.len()],
            walk: 0,
        }
    }

    /// Returns the numbers of the variables that a kernel reaches, in order.
    fn from(&mut self, kernel: u32) -> Result<Vec<u32>, Error> {
        self.walk += 1;
        let (mut found, mut is_indirect) = (Vec::new(), false);
        let mut waiting = vec![kernel];
        while let Some(function) = waiting.pop() {
            let seen = &mut self.seen[function as usize];
            if *seen == self.walk {
                continue;
            }
            *seen = self.walk;
            let named = &self.graph.functions[function as usize];
            found.extend(&named.variables);
            waiting.extend(&named.calls);
            let mut names = 1 + named.variables.len() + named.calls.len();
            if named.is_indirect && !is_indirect {
                is_indirect = true;
                waiting.extend(&self.graph.taken);
                names += self.graph.taken.len();
            }
            self.visits += names as u64;
            let what = "names of functions and shared variables below all kernels";
            Context::limit(Position::default(), what, self.visits, VISITS_MAX)?;
        }
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }
}
