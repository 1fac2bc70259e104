//! The share of each class of instructions in a kernel's warp instructions.

use std::collections::BTreeMap;

use crate::cases::Case;

pub(crate) const CLASSES: [&str; 12] = [
    "load, store: global",
    "load, store: shared",
    "load, store: other",
    "atomic",
    "floats, 32 bits",
    "floats, other",
    "division, functions",
    "integers",
    "moves, conversions",
    "comparisons, selections",
    "branches, barriers, warp",
    "tensor cores",
];

/// Executions of each class and each opcode in a run of a case.
#[derive(Default)]
pub(crate) struct Mix {
    pub(crate) total: u64,
    pub(crate) classes: BTreeMap<&'static str, u64>,
    pub(crate) opcodes: BTreeMap<String, u64>,
}

impl Mix {
    pub(crate) fn of(case: &Case) -> Self {
        let lines: Vec<&str> = case.ptx.lines().collect();
        let mut mix = Mix::default();
        for (line, count) in case.launch().run_counted().unwrap() {
            let opcode = opcode(lines[line as usize - 1]);
            mix.total += count;
            *mix.classes.entry(class(opcode)).or_default() += count;
            *mix.opcodes.entry(opcode.to_owned()).or_default() += count;
        }
        mix
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        let shares = |count: u64| (count as f64 / self.total as f64 * 1e4).round() / 1e4;
        let classes: BTreeMap<_, _> = self.classes.iter().map(|(k, n)| (*k, shares(*n))).collect();
        let opcodes: BTreeMap<_, _> = self.opcodes.iter().map(|(k, n)| (k, shares(*n))).collect();
        serde_json::json!({"classes": classes, "opcodes": opcodes})
    }
}

/// Returns the opcode of a line with its types, without guard, label and operands.
fn opcode(line: &str) -> &str {
    let line = line.rsplit_once(": ").map_or(line, |(_, rest)| rest).trim();
    let line = match line.starts_with('@') {
        true => line
            .split_once(char::is_whitespace)
            .map_or("", |(_, rest)| rest.trim()),
        false => line,
    };
    line.split([' ', '\t', ';']).next().unwrap_or_default()
}

fn class(opcode: &str) -> &'static str {
    let mut parts = opcode.split('.');
    let name = parts.next().unwrap_or_default();
    let parts: Vec<&str> = parts.collect();
    let has = |part: &str| parts.contains(&part);
    let index = match name {
        "ld" | "st" if has("global") => 0,
        "ld" | "st" if has("shared") => 1,
        "ld" | "st" => 2,
        "atom" | "red" => 3,
        "mov" | "cvt" | "cvta" | "prmt" => 8,
        "setp" | "selp" | "set" | "slct" => 9,
        "bra" | "brx" | "ret" | "exit" | "call" | "bar" | "barrier" | "shfl" | "vote" | "redux"
        | "match" | "activemask" => 10,
        "mma" | "wmma" | "ldmatrix" | "movmatrix" => 11,
        "div" | "rem" | "rcp" | "sqrt" | "rsqrt" | "ex2" | "lg2" | "sin" | "cos" | "tanh" => 6,
        _ if has("f32") => 4,
        _ if has("f64") || has("f16") || has("f16x2") || has("bf16") || has("bf16x2") => 5,
        _ => 7,
    };
    CLASSES[index]
}

/// Makes a table in Markdown with a column for each kernel.
pub(crate) fn table(mixes: &[(&str, Mix)]) -> String {
    let names: Vec<&str> = mixes.iter().map(|(name, _)| *name).collect();
    let mut text = format!(
        "| % | {} |\n|---|{}\n",
        names.join(" | "),
        "---|".repeat(names.len())
    );
    for class in CLASSES {
        let shares = mixes.iter().map(|(_, mix)| {
            let count = mix.classes.get(class).copied().unwrap_or(0);
            match count as f64 / mix.total as f64 * 100.0 {
                0.0 => String::new(),
                share if share < 0.5 => "<1".to_owned(),
                share => format!("{share:.0}"),
            }
        });
        text += &format!("| {class} | {} |\n", shares.collect::<Vec<_>>().join(" | "));
    }
    text
}
