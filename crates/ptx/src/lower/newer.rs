//! Forms of known instructions that need a later architecture than others of the same name (each
//! section's "Target ISA Notes"). They are executed if the text is for such an architecture, and
//! refused otherwise.

use super::modifiers::Modifiers;

/// Returns the architecture that an instruction needs, if that is later than its name implies.
pub(super) fn needs(name: &str, mods: &Modifiers<'_>) -> Option<u32> {
    let has = |wanted: &str| mods.all().contains(&wanted);
    if name == "cvt" && super::float8::NAMES.iter().any(|format| has(format)) {
        return Some(89);
    }
    let brain = has("bf16") || has("bf16x2");
    let newer = match name {
        "add" | "min" | "max" if super::pairs::TYPES.iter().any(|ty| has(ty)) => true,
        "min" | "max" => has("relu"),
        "add" | "sub" | "mul" | "tanh" | "ex2" | "set" | "setp" => brain,
        // sm_80 converts only between bf16 and f32.
        "cvt" => {
            let types: Vec<&str> = mods.all().iter().copied().filter(|p| is_type(p)).collect();
            has("bf16") && types != ["bf16", "f32"] && types != ["f32", "bf16"]
        }
        "atom" | "red" => brain && has("add"),
        "griddepcontrol" => true,
        _ => false,
    };
    newer.then_some(90)
}

fn is_type(part: &str) -> bool {
    crate::parse::ast::Type::from_name(part).is_some()
}
