//! Generates programs from the declared forms: every form that is exact and needs only registers
//! and a slot may appear.

use std::collections::HashMap;

use super::{COUNTERS, LONGS, PREDICATES, Program, SHORTS, SLOT_BYTES, Step, WORDS};
use crate::declare::{Check, Line};
use crate::form::{Form, PtxType, Role, Space};
use crate::values::Random;

const DEPTH_MAX: usize = 3;
const TURNS_MAX: usize = 4;

/// The forms that programs consist of.
pub struct Generator<'l> {
    /// Grouped by opcode, so that an opcode with many forms is not overrepresented.
    plain: Vec<Vec<&'l Form>>,
    /// Forms in which lanes communicate, used only where all lanes are present.
    together: Vec<Vec<&'l Form>>,
}

impl<'l> Generator<'l> {
    /// Takes the declared forms for which `usable` returns true.
    pub fn new(lines: &'l [Line], usable: impl Fn(&Form) -> bool) -> Self {
        let mut out = Generator {
            plain: Vec::new(),
            together: Vec::new(),
        };
        let mut places: HashMap<(bool, &str), usize> = HashMap::new();
        for line in lines.iter().filter(|l| l.check == Check::Exact) {
            for form in line.forms.iter().filter(|f| fits(f) && usable(f)) {
                let together = speaks(form);
                let name = form.opcode().split('.').next().unwrap_or_default();
                let groups = if together {
                    &mut out.together
                } else {
                    &mut out.plain
                };
                let place = *places.entry((together, name)).or_insert_with(|| {
                    groups.push(Vec::new());
                    groups.len() - 1
                });
                groups[place].push(form);
            }
        }
        out
    }

    /// Generates the program of a seed, about `length` steps long.
    pub fn program(&self, seed: u64, length: usize) -> Program {
        let mut random = Random::new(seed ^ 0x7072_6f67_7261_6d73);
        let steps = self.steps(&mut random, length, 0, true);
        Program { seed, steps }
    }

    fn steps(&self, random: &mut Random, length: usize, depth: usize, together: bool) -> Vec<Step> {
        let mut out = Vec::new();
        let mut left = length;
        while left > 0 {
            let inner = 1 + random.below(left.min(8));
            let step = match random.below(16) {
                0 | 1 if depth < DEPTH_MAX => {
                    let sign = random.pick(&["", "!"]);
                    let predicate = format!("{sign}%p{}", random.below(PREDICATES));
                    let yes = self.steps(random, inner, depth + 1, false);
                    let no = if random.below(2) == 0 {
                        Vec::new()
                    } else {
                        self.steps(random, inner, depth + 1, false)
                    };
                    Step::If(predicate, yes, no)
                }
                2 if depth < DEPTH_MAX => {
                    let (turns, together) = if together && random.below(2) == 0 {
                        (
                            format!("mov.u32 %turns, {}", 1 + random.below(TURNS_MAX)),
                            true,
                        )
                    } else {
                        let from = random.below(WORDS);
                        (
                            format!("and.b32 %turns, %r{from}, {}", TURNS_MAX - 1),
                            false,
                        )
                    };
                    Step::Loop(turns, self.steps(random, inner, depth + 1, together))
                }
                3 => Step::Code(count(random)),
                4 if together => Step::Code(exchange(random)),
                5 if together && !self.together.is_empty() => {
                    let group = &self.together[random.below(self.together.len())];
                    Step::Code(instance(random.pick(group), random))
                }
                _ => {
                    let group = &self.plain[random.below(self.plain.len())];
                    let text = instance(random.pick(group), random);
                    if may_be_guarded(&text) && random.below(6) == 0 {
                        let sign = random.pick(&["", "!"]);
                        Step::Code(format!("@{sign}%p{} {text}", random.below(PREDICATES)))
                    } else {
                        Step::Code(text)
                    }
                }
            };
            left -= match step {
                Step::Code(_) => 1,
                _ => inner,
            };
            out.push(step);
        }
        out
    }
}

/// Whether a program can provide all that a form needs.
fn fits(form: &Form) -> bool {
    let name = form.opcode().split('.').next().unwrap_or_default();
    let odd = [
        "cells",
        "nook",
        "%in",
        "%out",
        "%tid",
        "%warpid",
        "@",
        "cp.async",
        "mbarrier",
        "bar",
        "membar",
        "fence",
        "createpolicy",
        "stacksave",
        "%ctaid",
        "%nctaid",
        "%ntid",
        "nanosleep",
        "pmevent",
        "activemask",
        "isspacep",
        "prefetch",
        "exit",
        "ret",
        "mma",
        "matrix",
    ];
    if !form.before.is_empty()
        || odd.iter().any(|o| form.text.contains(o))
        || form.text.contains(':') && !form.text.contains("::")
    {
        return false;
    }
    // Without a rounding modifier, a product and a sum may be fused.
    let floats = |kind| {
        matches!(
            kind,
            PtxType::F32
                | PtxType::F64
                | PtxType::F16
                | PtxType::F16x2
                | PtxType::Bf16
                | PtxType::Bf16x2
        )
    };
    let rounded = [".rn", ".rz", ".rm", ".rp"]
        .iter()
        .any(|r| form.text.contains(r));
    let float = form.operands.iter().any(|o| floats(o.kind));
    if float && matches!(name, "add" | "sub" | "mul") && !rounded {
        return false;
    }
    // The NaN of a packed half is open here, and cannot easily be made unique.
    let packed = |kind| matches!(kind, PtxType::F16x2 | PtxType::Bf16x2 | PtxType::Bf16);
    if form.operands.iter().any(|o| packed(o.kind)) && matches!(name, "abs" | "neg") {
        return false;
    }
    let classes = ["", "shift", "nonzero", "lane", "clamp", "few"];
    form.operands.iter().all(|o| {
        classes.contains(&o.class.as_str())
            && match o.role {
                Role::Cell(_) => o.count * o.kind.bytes() <= SLOT_BYTES,
                Role::Scratch => matches!(o.name.as_str(), "t" | "t1") && !o.counted,
                _ => o.count <= 4,
            }
    })
}

/// Whether the form may have a guard. Sequences may not, since a guard applies to one instruction.
/// The driver for CUDA 13.0 drops some guards and always writes the results, with or without
/// optimisation: those of `testp`, of `set` with 16-bit operands, and of sums of four.
fn may_be_guarded(text: &str) -> bool {
    let forgotten = [
        "testp",
        "set.",
        "vadd4.u32.u32.u32.add",
        "vsub4.u32.u32.u32.add",
    ];
    !text.contains(';') && !forgotten.iter().any(|name| text.starts_with(name))
}

fn speaks(form: &Form) -> bool {
    form.text.contains(".sync")
}

/// Returns the form's text with registers of a program.
fn instance(form: &Form, random: &mut Random) -> String {
    let mut names: HashMap<String, String> = HashMap::new();
    let (mut before, mut after) = (String::new(), String::new());
    let mut taken: Vec<String> = Vec::new();
    for operand in &form.operands {
        let letter = match operand.kind.register_bytes() {
            _ if operand.kind == PtxType::Pred => "p",
            8 => "l",
            2 => "h",
            _ => "r",
        };
        match operand.role {
            Role::Cell(space) => {
                let register = match space {
                    Space::Global => "%global",
                    Space::Shared => "%shared",
                    Space::Local => "%local",
                    Space::Window => "%window",
                };
                names.insert(format!("%{}", operand.name), register.into());
            }
            Role::Scratch => {
                let number = usize::from(operand.name == "t1");
                names.insert(format!("%{}", operand.name), format!("%t{letter}{number}"));
            }
            Role::Source | Role::Result => {
                for name in operand.registers() {
                    let mut register = any_register(letter, random);
                    // Results of one instruction go to different registers.
                    while operand.role == Role::Result && taken.contains(&register) {
                        register = any_register(letter, random);
                    }
                    if operand.role == Role::Result {
                        taken.push(register.clone());
                        after.push_str(&one_nan(operand.kind, &register));
                    } else if operand.class == "nonzero" {
                        let bits = operand.kind.register_bytes() * 8;
                        before.push_str(&format!("or.b{bits} %z{letter}, {register}, 1; "));
                        register = format!("%z{letter}");
                    }
                    names.insert(name, register);
                }
            }
        }
    }
    format!("{before}{}{after}", renamed(&form.text, &names))
}

fn any_register(letter: &str, random: &mut Random) -> String {
    let count = match letter {
        "p" => PREDICATES,
        "l" => LONGS,
        "h" => SHORTS,
        _ => WORDS,
    };
    format!("%{letter}{}", random.below(count))
}

/// Returns PTX that replaces every NaN by one, where the choice of NaN is open.
fn one_nan(kind: PtxType, register: &str) -> String {
    match kind {
        PtxType::F32 => format!(
            "; testp.notanumber.f32 %tp1, {register}; selp.b32 {register}, 0x7fffffff, {register}, %tp1"
        ),
        PtxType::F64 => format!(
            "; testp.notanumber.f64 %tp1, {register}; selp.b64 {register}, 0x7ff8000000000000, {register}, %tp1"
        ),
        PtxType::F16 => format!(
            "; setp.nan.f16 %tp1, {register}, {register}; selp.b16 {register}, 0x7fff, {register}, %tp1"
        ),
        _ => String::new(),
    }
}

fn renamed(text: &str, names: &HashMap<String, String>) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        let tail = &rest[at + 1..];
        let end = tail
            .find(|c: char| !c.is_ascii_alphanumeric())
            .unwrap_or(tail.len());
        let name = &rest[at..at + 1 + end];
        out.push_str(names.get(name).map_or(name, String::as_str));
        rest = &tail[end..];
    }
    out.push_str(rest);
    out
}

/// Generates a change of a counter. Each counter has one kind of change, so the order of threads
/// does not matter.
fn count(random: &mut Random) -> String {
    const KINDS: [&str; COUNTERS] = [
        "add.u32", "and.b32", "or.b32", "xor.b32", "min.s32", "max.s32", "max.u32", "add.s32",
    ];
    let which = random.below(COUNTERS);
    let (at, kind, value) = (which * 8, KINDS[which], random.below(WORDS));
    if random.below(2) == 0 {
        format!("red.shared.{kind} [%shares+{at}], %r{value}")
    } else {
        format!("red.global.{kind} [%counts+{at}], %r{value}")
    }
}

/// Generates an exchange of words between all threads of a block.
fn exchange(random: &mut Random) -> String {
    let (from, to) = (random.below(WORDS), random.below(WORDS));
    let other = random.below(super::THREADS as usize);
    format!(
        "bar.sync 0; st.shared.u32 [%shared+4], %r{from}; bar.sync 0; xor.b32 %tr0, %thread, {other}; \
         mov.u32 %tr1, cells; mad.lo.u32 %tr0, %tr0, {SLOT_BYTES}, %tr1; ld.shared.u32 %r{to}, [%tr0+4]; bar.sync 0"
    )
}
